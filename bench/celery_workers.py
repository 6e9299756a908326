"""Fleets of real Celery workers on new databases, with default settings."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.database import Postgres
from tests.fleet import Fleet, open_fleet
from tests.servers import RedisServer

ALL_QUEUES = "control,model,tools,maintenance,commands"


@contextmanager
def fresh_fleet(database: Postgres, cache: RedisServer) -> Iterator[tuple[Fleet, str]]:
    """A fleet with default settings on a new database and an empty broker; its processes end with the block."""
    url = database.fresh()
    database.checkpoint()
    with tempfile.TemporaryDirectory(prefix="agentloom-bench-", ignore_cleanup_errors=True) as folder:
        prefix = f"{cache.key_prefix}{Path(folder).name}:"
        with open_fleet(url, cache.url, Path(folder), key_prefix=prefix, settings_of={}) as fleet:
            yield fleet, url
