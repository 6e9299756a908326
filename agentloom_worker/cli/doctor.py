"""`agentloom doctor`: ask every server of a fleet how it is, and say what to do about each answer."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import typer

from agentloom_worker.bootstrap import broker_address, make_fleet_ports
from agentloom_worker.broker.probe import probe_broker
from agentloom_worker.cli.diagnosis import (
    Line,
    State,
    fail,
    judge_broker,
    judge_broker_address,
    judge_connections,
    judge_database,
    judge_fleet,
    judge_no_redis,
    judge_redis,
    ok,
    summarize,
    warn,
)
from agentloom_worker.cli.output import print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Broker, Database, Redis
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.domain.health import DatabaseFacts, Unreachable
from agentloom_worker.errors import AgentloomError
from agentloom_worker.leases.probe import probe_redis
from agentloom_worker.runtime.queues import list_queues
from agentloom_worker.settings import FleetSettings, load_settings, parse_lanes, show_url, unread_variables
from agentloom_worker.storage.probe import probe_database
from agentloom_worker.version import __version__

ANSWER_S = 15.0
Facts = TypeVar("Facts")


def doctor(*, database: Database = None, broker: Broker = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Examine a fleet's servers and its queues; settings are the environment's unless named here.

    Exit code 1 where a line says `fail`. It writes nothing and reads no body.
    """
    settings = load_settings({"database": database, "broker": broker, "redis": redis})
    lines = list(examine(settings, SystemClock()))
    counts = summarize(lines)
    if as_json:
        print_json({"ok": State.FAIL not in counts, "version": __version__, "lines": lines})
    else:
        print_table(
            ("", "what", "found", "what to do"), [(line.state, line.name, line.found, line.advice) for line in lines]
        )
        print_text(f"{counts[State.OK]} ok, {counts[State.WARN]} to look at, {counts[State.FAIL]} failed")
    if State.FAIL in counts:
        raise typer.Exit(1)


def examine(settings: FleetSettings, clock: Clock) -> Iterator[Line]:
    """Every line, in an order in which an earlier one may explain a later one."""
    url = settings.database.get_secret_value()
    yield ok("version", __version__)
    for name, close in unread_variables(os.environ).items():
        meant = f"is {close} meant? " if close else ""
        yield warn("settings.unread", f"nothing reads {name}", f"{meant}`agentloom settings` lists what is read")
    if not url.startswith("postgresql"):
        yield fail("database.kind", show_url(url), "a fleet needs PostgreSQL: postgresql://user:password@host/name")
        return
    yield ok("database.address", show_url(url))
    facts = _ask(lambda: probe_database(url, clock))
    yield from judge_database(facts)
    if isinstance(facts, DatabaseFacts):
        yield from _tables(settings, facts)
    yield from _messages(settings, clock)


def _tables(settings: FleetSettings, facts: DatabaseFacts) -> Iterator[Line]:
    """What only the tables know, read as a worker reads them."""
    ports = make_fleet_ports(settings, (), 1).ports
    with closing(ports.store):
        try:
            ports.store.check_schema()
            yield ok("database.schema", "up to date")
            workers = ports.store.list_workers()
            yield judge_connections(facts, workers, settings.database_connections)
            yield from judge_fleet(workers, list_queues(ports), __version__)
        except AgentloomError as error:
            yield fail("database.schema", error.code.value, error.message)


def _messages(settings: FleetSettings, clock: Clock) -> Iterator[Line]:
    """The broker and the Redis of the leases, which are often one."""
    address = broker_address(settings)
    yield judge_broker_address(address.url, show_url(address.url))
    if address.is_redis:
        yield from judge_redis("broker", _ask(lambda: probe_redis(address.url, clock, settings.sentinel_master)))
    yield from judge_broker(_ask(lambda: probe_broker(address, settings.publish_timeout_s)))
    leases = settings.redis_url
    if leases is None:
        bounds = (settings.model_lanes, settings.model_requests_per_minute, settings.model_tokens_per_minute)
        yield judge_no_redis({name: number for bound in bounds for name, number in parse_lanes(bound).items()})
    elif leases != address.url:
        yield ok("redis.address", show_url(leases))
        yield from judge_redis("redis", _ask(lambda: probe_redis(leases, clock, settings.sentinel_master)))


def _ask(probe: Callable[[], Facts | Unreachable]) -> Facts | Unreachable:
    """Ask in a thread that is left behind if it hangs: name look-ups and poolers have no time limit of their own."""
    found: list[Facts | Unreachable] = []
    thread = threading.Thread(target=lambda: found.append(probe()), name="agentloom-probe", daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    if found:
        return found[0]
    # A probe that raised has printed its traceback.
    return Unreachable(f"no answer within {ANSWER_S:g} s" if thread.is_alive() else "the question itself failed")
