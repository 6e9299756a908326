"""`agentloom migrate`: bring a database to the schema that this version needs."""

from agentloom_worker.bootstrap import migrate_database
from agentloom_worker.cli.output import print_json, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, locate


def migrate(embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """Make or upgrade the tables. Harmless when they are there; several at once wait for each other."""
    place = locate(embedded, database)
    if place.file is not None:
        place.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate_database(place.url)
    if as_json:
        print_json({"up_to_date": True})
    else:
        print_text("the schema is up to date")
