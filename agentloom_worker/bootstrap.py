"""Where ports meet their implementations, and only here."""

import random
import threading
from collections.abc import Callable, Mapping

from agentloom_worker.capabilities.python import invoke_inline, invoke_python
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.http.credentials import resolve_credential
from agentloom_worker.ids import Ids, SystemIds
from agentloom_worker.leases import LOCAL, FastPath, open_fast_path
from agentloom_worker.llm.adapter import ModelAdapter
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts
from agentloom_worker.llm.adapters.scripted import Script
from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.runtime.ports import Ports, Settings, ToolRunner
from agentloom_worker.storage.schema import migrate
from agentloom_worker.storage.store import open_store

# Alembic keeps its state in module globals: one migration a process at a time.
_migrating = threading.Lock()


def make_adapters(clock: Clock, scripts: Mapping[str, Script]) -> dict[tuple[str, str], ModelAdapter]:
    """One adapter per protocol and profile; it serves the whole process."""
    made = AdapterPorts(clock, scripts)
    return {
        (protocol, name): make(made, profile)
        for protocol, make in ADAPTERS.items()
        for name, profile in PROFILES.items()
    }


def make_ports(
    database_url: str,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    settings: Settings | None = None,
    scripts: Mapping[str, Script] | None = None,
    tools: ToolRunner = invoke_python,
    publish: Callable[[list[WakeUp]], None] = lambda _due: None,
    seed: int | None = None,
    pool_size: int = 12,
    fast: FastPath | None = None,
) -> Ports:
    """The ports of one process. Opens no connection yet.

    `fast` is what the processes of a fleet share (`leases.open_fast_path`); without it the threads of this one
    know of each other.
    """
    clock = clock or SystemClock()
    return Ports(
        store=open_store(database_url, clock, pool_size=pool_size),
        clock=clock,
        ids=ids or SystemIds(clock),
        chance=random.Random(seed),
        adapters=make_adapters(clock, scripts or {}),
        tools=tools,
        resolve_credential=resolve_credential,
        settings=settings or Settings(),
        publish=publish,
        fast=fast or open_fast_path(LOCAL, clock),
    )


def migrate_database(database_url: str) -> None:
    """Bring a database to the newest schema; harmless when it is there already.

    Raises RequestError (no database URL, a schema newer than this code), PersistenceUnavailableError.
    """
    store = open_store(database_url, SystemClock(), pool_size=1)
    try:
        store.check_schema()
    except RequestError as error:
        if error.code is not Code.SCHEMA_BEHIND:
            raise
        with _migrating:
            migrate(store.url)
    finally:
        store.close()


__all__ = ["invoke_inline", "make_adapters", "make_ports", "migrate_database"]
