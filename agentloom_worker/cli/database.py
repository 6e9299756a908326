"""`agentloom migrate`: bring a database to the schema that this version needs."""

from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.cli.output import print_text
from agentloom_worker.cli.place import Database, Embedded, locate


def migrate(embedded: Embedded = None, database: Database = None) -> None:
    """Make or upgrade the tables. Harmless when they are there; several at once wait for each other."""
    place = locate(embedded, database)
    if place.file is not None:
        place.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate_database(place.url)
    print_text("the schema is up to date")
