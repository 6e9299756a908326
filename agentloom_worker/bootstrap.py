"""Where ports meet their implementations, and only here."""

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentloom_worker import __version__
from agentloom_worker.broker.address import BrokerAddress
from agentloom_worker.broker.publisher import Publisher
from agentloom_worker.capabilities.http import HttpCaller
from agentloom_worker.capabilities.python import invoke_inline, invoke_python
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.http.credentials import resolve_credential
from agentloom_worker.ids import Ids, SystemIds
from agentloom_worker.leases import LOCAL, FastPath, open_fast_path
from agentloom_worker.llm.adapters import AdapterPorts, Adapters
from agentloom_worker.llm.adapters.scripted import Script
from agentloom_worker.runtime.ports import Ports, Settings, ToolRunner
from agentloom_worker.runtime.relay import Relay
from agentloom_worker.settings import PREFIX, FleetSettings, load_settings
from agentloom_worker.storage.driver import KEEPER_CONNECTIONS
from agentloom_worker.storage.schema import migrate
from agentloom_worker.storage.store import check_url, open_store

# Alembic keeps its state in module globals: one migration a process at a time.
_migrating = threading.Lock()


def make_adapters(clock: Clock, scripts: Mapping[str, Script]) -> Adapters:
    """The adapters of a whole process, one per protocol and profile."""
    return Adapters(AdapterPorts(clock, scripts))


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
    know of each other. Raises ValueError for a limit in `settings` that could name no connection.
    """
    clock = clock or SystemClock()
    settings = (settings or Settings()).spelt()
    return Ports(
        store=open_store(database_url, clock, pool_size=pool_size),
        clock=clock,
        ids=ids or SystemIds(clock),
        chance=random.Random(seed),
        adapters=make_adapters(clock, scripts or {}),
        tools=tools,
        http=HttpCaller(clock, user_agent=f"agentloom-worker/{__version__}"),
        resolve_credential=resolve_credential,
        settings=settings,
        publish=publish,
        fast=fast or open_fast_path(LOCAL, clock),
    )


@dataclass(frozen=True, slots=True)
class FleetPorts:
    """A fleet process's ports, and the two ends of its publishing."""

    ports: Ports
    relay: Relay
    publisher: Publisher


def load_process_settings() -> FleetSettings:
    """The settings of a process of the fleet, its database's URL checked as well; `load_settings` knows no database.

    Raises RequestError naming the variable that is wrong, never its value.
    """
    settings = load_settings()
    try:
        check_url(settings.database.get_secret_value())
    except RequestError as error:
        raise RequestError(error.code, f"{PREFIX}DATABASE: {error.message}") from None
    return settings


def broker_address(settings: FleetSettings) -> BrokerAddress:
    """The broker that these settings name."""
    return BrokerAddress(
        settings.broker.get_secret_value(), settings.key_prefix, settings.queue_prefix, settings.sentinel_master
    )


def make_fleet_ports(
    settings: FleetSettings, queues: tuple[str, ...], slots: int, *, scripts: Mapping[str, Script] | None = None
) -> FleetPorts:
    """The ports of a process that serves these queues of a fleet. Opens no connection yet; make them after a fork."""
    clock = SystemClock()
    ids = SystemIds(clock)
    # The store has a pool for commits and one for reads, each with four connections beyond its size, and the
    # keeper's connections.
    pool_size = min(slots + 2, max(1, (settings.database_connections - KEEPER_CONNECTIONS) // 2 - 4))
    store = open_store(settings.database.get_secret_value(), clock, pool_size=pool_size)
    publisher = Publisher(broker_address(settings), clock, ids, timeout_s=settings.publish_timeout_s)
    relay = Relay(store, publisher)
    ports = Ports(
        store=store,
        clock=clock,
        ids=ids,
        chance=random.Random(),
        adapters=make_adapters(clock, scripts or {}),
        tools=invoke_python,
        http=HttpCaller(clock, user_agent=f"agentloom-worker/{__version__}"),
        resolve_credential=resolve_credential,
        settings=settings.runtime(queues),
        publish=relay.publish,
        fast=open_fast_path(
            settings.redis_url or LOCAL,
            clock,
            prefix=f"{settings.key_prefix}fast:",
            sentinel_master=settings.sentinel_master,
        ),
    )
    return FleetPorts(ports, relay, publisher)


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


__all__ = [
    "FleetPorts",
    "broker_address",
    "invoke_inline",
    "make_adapters",
    "make_fleet_ports",
    "make_ports",
    "migrate_database",
]
