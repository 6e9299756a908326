"""Programs beside the library that show how it is used."""
