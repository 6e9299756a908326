"""What a fleet's servers say, judged: ok, warn or fail, and for all but ok what to do. Pure rules over facts.

`fail` means that a promise does not hold or that nothing runs; `warn` that it will be slow, or that somebody
should look. Redis and the broker carry hints, so a fault of theirs costs time and not work.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker.clock import US, ClockOffset
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.domain.health import BrokerFacts, DatabaseFacts, RedisFacts, Unreachable
from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.runtime.queues import QueueState, is_present

POSTGRES_MIN = 140000
REDIS_MIN = (6, 2)
RABBITMQ_MIN = (3, 10)
SKEW_WARN_S = 2.0
SNAPSHOT_WARN_S = 300.0
SNAPSHOT_WARN_XIDS = 5_000_000
DUE_WARN_MS = 30_000
MEMORY_WARN = 0.9
# Runs come through these, through `compaction` from a session's second one on. `solitary` is wanted only by a row that
# cost processes their life.
NEEDED = frozenset({Queue.CONTROL, Queue.MODEL, Queue.TOOLS, Queue.COMPACTION, Queue.MAINTENANCE})


class State(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Line:
    """One finding: its stable name, what was found, and what to do about it."""

    name: str
    state: State
    found: str
    advice: str | None = None


def ok(name: str, found: str) -> Line:
    """Nothing to do."""
    return Line(name, State.OK, found)


def warn(name: str, found: str, advice: str) -> Line:
    """Somebody should look."""
    return Line(name, State.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Line:
    """A promise does not hold, or nothing runs."""
    return Line(name, State.FAIL, found, advice)


def judge_database(facts: DatabaseFacts | Unreachable) -> Iterator[Line]:
    """PostgreSQL: what the promises need (RULINGS T16), and what the driver needs."""
    if isinstance(facts, Unreachable):
        advice = "check that it is up, that AGENTLOOM_DATABASE is right and that its user may log in from here"
        yield fail("database.reachable", facts.reason, advice)
        return
    yield ok("database.reachable", "answers")
    if facts.version_number < POSTGRES_MIN:
        yield fail("database.version", facts.version, "upgrade to PostgreSQL 14 or newer")
    else:
        yield ok("database.version", facts.version)
    if facts.standby:
        yield fail("database.primary", "this server is a standby", "name the primary: a standby takes no writes")
    yield from _durability(facts)
    if facts.pooled:
        advice = "pool by the session (pool_mode = session), or connect directly: prepared statements must live on"
        yield fail("database.pooling", "a pooler lends out sessions by the transaction", advice)
    else:
        yield ok("database.pooling", "one session a connection")
    yield _snapshot(facts)
    yield _skew("database.clock", facts.clock)


def _durability(facts: DatabaseFacts) -> Iterator[Line]:
    for name in ("fsync", "full_page_writes"):
        value = facts.settings[name]
        advice = f"set {name} = on: without it a crash of the machine can lose or tear what was committed"
        yield ok(f"database.{name}", value) if value == "on" else fail(f"database.{name}", value, advice)
    value = facts.settings["synchronous_commit"]
    if value in ("on", "remote_apply"):
        yield ok("database.synchronous_commit", value)
    else:
        advice = "set it on: this program's sessions do so themselves, others on this database do not"
        yield warn("database.synchronous_commit", value, advice)
    named = facts.settings["synchronous_standby_names"]
    if facts.standbys and not named:
        advice = "before you fail over to one, name it in synchronous_standby_names: else the newest commits are lost"
        yield warn("database.replication", f"{facts.standbys} standby(s), none of them synchronous", advice)
    else:
        yield ok("database.replication", f"{facts.standbys} standby(s), synchronous: {named or 'none'}")
    if facts.settings["autovacuum"] != "on":
        yield warn("database.autovacuum", facts.settings["autovacuum"], "set autovacuum = on")


def _snapshot(facts: DatabaseFacts) -> Line:
    found = f"{facts.oldest_age_xids} transactions, held for {facts.oldest_held_s:.0f} s"
    if facts.oldest_held_s < SNAPSHOT_WARN_S and facts.oldest_age_xids < SNAPSHOT_WARN_XIDS:
        return ok("database.snapshot", found)
    advice = (
        "find who holds it (pg_stat_activity.backend_xmin, pg_prepared_xacts, pg_replication_slots) and end it:"
        " dead rows cannot be freed meanwhile, and every scan grows slower"
    )
    return warn("database.snapshot", found, advice)


def judge_connections(facts: DatabaseFacts, workers: Sequence[WorkerProcess], each: int) -> Line:
    """Whether the server has room for what the processes seen may open, `each` of them (its own setting)."""
    most = int(facts.settings["max_connections"])
    there = sum(is_present(worker) for worker in workers)
    found = f"{facts.connections} of {most} in use; {there} process(es) of up to {each} each"
    if facts.connections > MEMORY_WARN * most or there * each > most:
        advice = "raise max_connections, lower AGENTLOOM_DATABASE_CONNECTIONS, or put a session pooler between"
        return warn("database.connections", found, advice)
    return ok("database.connections", found)


def judge_redis(name: str, facts: RedisFacts | Unreachable) -> Iterator[Line]:
    """A Redis by the name of its job: `broker`, `redis` (leases), or both on one."""
    if isinstance(facts, Unreachable):
        advice = "check that it is up and that its URL and password are right; meanwhile the table alone is used"
        yield fail(f"{name}.reachable", facts.reason, advice)
        return
    yield ok(f"{name}.reachable", "answers")
    version = f"{facts.product} {facts.version}"
    if facts.product == "Redis" and _number(facts.version) < REDIS_MIN:
        yield warn(f"{name}.version", version, "older than what this is tested on: use Redis 6.2 or newer, or Valkey")
    else:
        yield ok(f"{name}.version", version)
    if facts.cluster:
        yield fail(f"{name}.cluster", "a cluster", "use a plain or a Sentinel Redis: queues need multi-key commands")
    if facts.role not in ("master", ""):
        yield fail(f"{name}.role", facts.role, "name the primary: a replica takes no writes")
    yield _eviction(name, facts)
    yield _disk(name, facts)
    yield _skew(f"{name}.clock", facts.clock)


def judge_no_redis(lanes: Mapping[str, int]) -> Line:
    """A fleet without a Redis: nothing is wrong with that, unless something is to be counted over the fleet."""
    found = "none: leases are known inside each process only"
    if not lanes:
        return ok("redis.address", found)
    advice = "set AGENTLOOM_REDIS: without it the AGENTLOOM_MODEL_… limits count in each process, not in the fleet"
    return warn("redis.address", f"{found}; lanes: {', '.join(lanes)}", advice)


def _eviction(name: str, facts: RedisFacts) -> Line:
    limit = f"{facts.memory_max // 2**20} MiB" if facts.memory_max else "no limit"
    found = f"{facts.eviction or 'unknown'}, {facts.memory_used // 2**20} MiB used of {limit}"
    name = f"{name}.eviction"
    set_it = "set maxmemory-policy noeviction"
    if facts.eviction.startswith("allkeys"):
        return fail(name, found, f"{set_it}: this policy drops whole queues of wake-ups and commands in silence")
    if facts.eviction != "noeviction":
        return warn(name, found, f"{set_it}: this policy drops leases early, and slots with them")
    if facts.memory_max and facts.memory_used > MEMORY_WARN * facts.memory_max:
        return warn(name, found, "give it more memory: a full one refuses wake-ups, and every step waits for a sweep")
    return ok(name, found)


def _disk(name: str, facts: RedisFacts) -> Line:
    found = ", ".join(facts.persistence) or "nothing is written to disk"
    if facts.saving_fails:
        advice = "make room on its disk, or switch saving off (--save '' --appendonly no): it may refuse writes"
        return fail(f"{name}.persistence", f"{found}; the last write failed", advice)
    # Either way is fine: all that it holds can be made again from the database.
    return ok(f"{name}.persistence", found)


def judge_broker_address(url: str, shown: str) -> Line:
    """Whom the broker's address trusts: unlike the leases' client, kombu verifies no certificate by itself."""
    if not url.startswith("rediss://") or re.search(r"[?&]ssl_cert_reqs=(CERT_)?REQUIRED\b", url, re.IGNORECASE):
        return ok("broker.address", shown)
    advice = "add ?ssl_cert_reqs=required to AGENTLOOM_BROKER, and &ssl_ca_certs=FILE for an authority of your own"
    return warn("broker.address", f"{shown}: its certificate is not verified", advice)


def judge_broker(facts: BrokerFacts | Unreachable) -> Iterator[Line]:
    """The broker as wake-ups are published to it."""
    if isinstance(facts, Unreachable):
        advice = "check that it is up and that AGENTLOOM_BROKER is right; meanwhile workers poll the table"
        yield fail("broker.publish", facts.reason, advice)
        return
    if facts.version and _number(facts.version) < RABBITMQ_MIN:
        yield warn("broker.version", f"{facts.product} {facts.version}", "use RabbitMQ 3.10 or newer: quorum queues")
    elif facts.version:
        yield ok("broker.version", f"{facts.product} {facts.version}")
    waiting = {queue: count for queue, count in facts.waiting.items() if count}
    yield ok("broker.publish", "waiting: " + (", ".join(f"{count} {queue}" for queue, count in waiting.items()) or "0"))


def judge_fleet(workers: Sequence[WorkerProcess], queues: Sequence[QueueState], version: str) -> Iterator[Line]:
    """Who is there, and what waits for nobody."""
    there = [worker for worker in workers if is_present(worker)]
    taking = [worker for worker in there if not worker.draining]
    versions = Counter(worker.version for worker in there)
    found = f"{len(taking)} process(es), {sum(worker.slots for worker in taking)} slots"
    if len(there) > len(taking):
        found += f"; {len(there) - len(taking)} more drain"
    if taking:
        yield ok("fleet.workers", found)
    else:
        yield warn(
            "fleet.workers",
            found,
            "start one: celery -A tasks worker -Q control,model,tools,compaction,maintenance,commands",
        )
    if len(versions) > 1 or (versions and version not in versions):
        shown = ", ".join(f"{count} × {name}" for name, count in versions.items())
        advice = "finish the upgrade: rows of a step that an old version does not know wait for a new one"
        yield warn("fleet.versions", f"{shown}; here {version}", advice)
    elif versions:
        yield ok("fleet.versions", version)
    if silent := len(workers) - len(there):
        advice = "see why they died or cannot reach the database; their rows pass on by themselves"
        yield warn("fleet.silent", f"{silent} process(es) fell silent in the last quarter of an hour", advice)
    late = [queue for queue in queues if queue.due and queue.oldest_due_ms >= DUE_WARN_MS]
    unserved = [queue.queue for queue in queues if queue.queue in NEEDED and not queue.slots and queue not in late]
    if taking and unserved:
        advice = "start a worker of it before a run comes there: its rows would wait until their deadline"
        yield warn("fleet.queues", f"nobody serves {', '.join(unserved)}", advice)
    yield from _late(late)
    yield _parked(queues)


def _late(queues: Sequence[QueueState]) -> Iterator[Line]:
    for queue in queues:
        found = f"{queue.due} due, the oldest for {queue.oldest_due_ms / 1000:.0f} s, {queue.slots} slots"
        if queue.slots == 0:
            pool = "prefork -c 1" if queue.queue == Queue.SOLITARY else "threads"
            start = f"start a worker: celery -A tasks worker -Q {queue.queue} -P {pool}"
            yield fail(f"queue.{queue.queue}", f"{found}: nobody serves it", start)
        else:
            yield warn(f"queue.{queue.queue}", found, "start more workers of this queue, or give them more slots")


def _parked(queues: Sequence[QueueState]) -> Line:
    parked = sum(queue.parked for queue in queues)
    if not parked:
        return ok("fleet.parked", "none")
    advice = "look at them: agentloom dispatches parked; then retry or fail each"
    return warn("fleet.parked", f"{parked} step(s)", advice)


def _skew(name: str, clock: ClockOffset) -> Line:
    ahead_s = clock.ahead_us / US
    found = (
        f"{abs(ahead_s):.3f} s {'ahead of' if ahead_s >= 0 else 'behind'} this machine, ± {clock.error_us / US:.3f} s"
    )
    if clock.certain_us < SKEW_WARN_S * US:
        return ok(name, found)
    return warn(
        name, found, "let both machines keep time (chrony, ntpd): claims do not mind, logs and deadlines mislead"
    )


def _number(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts[:2])


def summarize(lines: Sequence[Line]) -> Mapping[State, int]:
    """How many lines of each state."""
    return Counter(line.state for line in lines)
