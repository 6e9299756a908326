"""PostgreSQL and SQLite behind one set of tables and one list of statements. SQL lives only here."""
