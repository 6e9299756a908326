"""Examples that run as they are: data, tools, a release and a script for the dev-model each."""
