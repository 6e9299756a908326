"""A worker's life: which process has which ports, how it drains, when it leaves.

The threads pool has one process with as many slots as threads; a prefork pool makes one fleet process in each
child, after the fork, with one slot. A signal handler only closes a pipe: whoever reads it (this process, or its
children) drains in a thread of its own.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from billiard.process import current_process
from celery import Celery, bootsteps, signals

from agentloom_worker import telemetry
from agentloom_worker.bootstrap import make_fleet_ports
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.errors import (
    AgentloomError,
    Code,
    PersistenceUnavailableError,
    PersistenceUnreachableError,
    RequestError,
)
from agentloom_worker.fleet import FleetProcess, begin_when_reachable
from agentloom_worker.limits import DRAIN_GRACE_S
from agentloom_worker.metrics import serve_metrics
from config import settings, unread
from config.logs import set_up_logging

_EX_UNAVAILABLE = 69
_EX_STUCK = 70
_EX_CONFIG = 78
_CHILD_WAIT_S = 60.0


class _Life:
    """What this process holds; a forked child starts over with its own."""

    def __init__(self) -> None:
        self.queues: tuple[str, ...] = ()
        self.slots = 1
        self.is_master = False
        self.pid = 0
        self.process: FleetProcess | None = None
        self.close_metrics: Callable[[], None] = lambda: None
        self.drain_reader, self.drain_writer = -1, -1
        self.told_early = False


_life = _Life()


def process() -> FleetProcess:
    """The fleet process that serves in this operating-system process."""
    assert _life.process is not None and _life.pid == os.getpid(), "no fleet process was started here"
    return _life.process


def connect(app: Celery) -> None:
    """Listen to the signals of a worker, and find the tools that stand beside this package."""
    _import_from_beside()
    app.steps["worker"].add(_HearEarlySignal)
    signals.celeryd_init.connect(_check_names, weak=False)
    signals.worker_init.connect(_init, weak=False)
    signals.worker_process_init.connect(_init_child, weak=False)
    signals.worker_shutting_down.connect(_shutting_down, weak=False)
    signals.worker_shutdown.connect(_leave, weak=False)
    signals.worker_process_shutdown.connect(_leave_child, weak=False)
    signals.task_unknown.connect(_unknown, weak=False)
    signals.task_rejected.connect(_rejected, weak=False)


def _import_from_beside() -> None:
    """Celery's script takes the working directory back after it has imported `-A`; tools are imported later.

    Last, so that nothing there hides a library.
    """
    sys.path.append(str(Path(__file__).parents[1]))


class _HearEarlySignal(bootsteps.StartStopStep):  # type: ignore[misc]
    """The first moment at which Celery listens to SIGTERM: says again what came before it."""

    def start(self, _worker: object) -> None:
        if _life.told_early:
            os.kill(os.getpid(), signal.SIGTERM)


def _note_early_signal(_number: int, _frame: object) -> None:
    _life.told_early = True


def _served(worker: object) -> tuple[str, ...]:
    """The queues of -Q by their own names."""
    names = tuple(worker.app.amqp.queues.consume_from)  # type: ignore[attr-defined]
    prefix = settings.queue_prefix
    return tuple(sorted(name.removeprefix(prefix) for name in names))


def _choose_queues(worker: object) -> tuple[str, ...]:
    """A worker without -Q serves all but `solitary`, which wants a process that does nothing else (RULINGS T8).

    One that names it beside others would let a row that kills its process take theirs with it: refused.
    """
    served = _served(worker)
    if Queue.SOLITARY.value not in served or len(served) == 1:
        return served
    others = tuple(queue for queue in served if queue != Queue.SOLITARY.value)
    if len(served) < len(Queue):
        refused = RequestError(
            Code.INPUT_INVALID,
            f"solitary is served by a process that does nothing else: start one worker with -Q {','.join(others)} and"
            f" another with -Q {Queue.SOLITARY.value} -P prefork -c 1",
        )
        _refuse(refused, _EX_CONFIG)
    worker.app.amqp.queues.deselect(settings.queue_prefix + Queue.SOLITARY.value)  # type: ignore[attr-defined]
    return others


def _check_names(instance: object = None, options: Mapping[str, object] | None = None, **_kwargs: object) -> None:
    """Before Celery looks at -Q, which it would refuse with a traceback."""
    asked = (options or {}).get("queues") or ()
    known = tuple(instance.app.amqp.queues)  # type: ignore[attr-defined]
    unknown = [name for name in (asked.split(",") if isinstance(asked, str) else asked) if name not in known]  # type: ignore[attr-defined]
    if unknown:
        set_up_logging(settings.log_format, settings.log_level)
        listed = ", ".join(sorted(known))
        _refuse(RequestError(Code.INPUT_INVALID, f"-Q names {', '.join(unknown)}: the queues are {listed}"), _EX_CONFIG)


def _init(sender: object, **_kwargs: object) -> None:
    """In the main process, before the pool is made, and before Celery sets logging up."""
    set_up_logging(settings.log_format, settings.log_level)
    for name, close in unread.items():
        telemetry.log(logging.WARNING, "setting_unread", variable=name, meant=close)
    pool = str(getattr(sender.pool_cls, "__module__", sender.pool_cls))  # type: ignore[attr-defined]
    _life.is_master = "prefork" in pool or "processes" in pool
    _life.drain_reader, _life.drain_writer = os.pipe()
    # Steps may run before Celery listens: without this a SIGTERM until then would leave their claims to the TTL.
    signal.signal(signal.SIGTERM, _note_early_signal)
    _life.queues = _choose_queues(sender)
    _life.slots = 1 if _life.is_master or "solo" in pool else int(sender.concurrency)  # type: ignore[attr-defined]
    if _life.is_master:
        _check_database()
    else:
        _start(settings.metrics_port)


def _init_child(**_kwargs: object) -> None:
    """In a child of the prefork pool, after the fork; the solo pool sends this as well."""
    if not _life.is_master:
        return
    _life.is_master = False
    os.close(_life.drain_writer)
    index = int(getattr(current_process(), "index", 0) or 0)
    _start(settings.metrics_port + index if settings.metrics_port else 0, in_pool=True)


def _check_database() -> None:
    """A prefork worker refuses as a whole, not child by child for ever (CASES D16)."""
    ports = make_fleet_ports(settings, (), 1).ports
    try:
        begin_when_reachable(
            ports.clock, ports.store.check_schema, wait_s=settings.start_wait_s, given_up=lambda: _life.told_early
        )
    except AgentloomError as error:
        _refuse(error)
    finally:
        ports.store.close()


def _start(metrics_port: int, *, in_pool: bool = False) -> None:
    made = make_fleet_ports(settings, _life.queues, _life.slots)
    process = FleetProcess(made, slots=_life.slots, worn_out=_end_this_process)
    _begin(process, in_pool=in_pool)
    _life.process, _life.pid = process, os.getpid()
    if metrics_port:
        store = made.ports.store
        _life.close_metrics = serve_metrics(settings.metrics_host, metrics_port, made.ports.clock, store.count_queues)
    threading.Thread(target=_drain_when_told, args=(process,), name="agentloom-drain", daemon=True).start()
    telemetry.log(
        logging.INFO,
        "process_started",
        process_id=process.process_id,
        queues=",".join(_life.queues),
        slots=_life.slots,
    )


def _begin(process: FleetProcess, *, in_pool: bool) -> None:
    """Start it. A child waits in any case, and whatever the database says: its pool would only make the next one."""
    try:
        begin_when_reachable(
            process.ports.clock,
            process.start,
            wait_s=max(settings.start_wait_s, _CHILD_WAIT_S) if in_pool else settings.start_wait_s,
            awaited=PersistenceUnavailableError if in_pool else PersistenceUnreachableError,
            given_up=lambda: _life.told_early,
        )
    except AgentloomError as error:
        _refuse(error)


def _refuse(error: AgentloomError, exit_code: int = _EX_UNAVAILABLE) -> NoReturn:
    """Celery logs exceptions of a receiver and goes on; this one ends the worker, and says why."""
    telemetry.log(logging.CRITICAL, "not_ready", code=error.code, error=error.message)
    raise SystemExit(exit_code)


def _shutting_down(**_kwargs: object) -> None:
    """Inside a signal handler of the main process: nothing may be locked here."""
    if _life.drain_writer >= 0:
        os.write(_life.drain_writer, b"d")
        os.close(_life.drain_writer)
        _life.drain_writer = -1


def _drain_when_told(process: FleetProcess) -> None:
    """The byte or the pipe's end wakes every process that shares it."""
    os.read(_life.drain_reader, 1)
    process.drain()
    # A warm shutdown waits for its threads without a bound; a step that ignores its end must not hold the process.
    clock = process.ports.clock
    clock.wait(threading.Event(), settings.drain_s + DRAIN_GRACE_S)
    telemetry.log(logging.ERROR, "drain_overdue", held=len(process.keeper.held()))
    os._exit(_EX_STUCK)


def _leave(**_kwargs: object) -> None:
    """After the pool has stopped: the last step has returned."""
    _say_farewell()


def _leave_child(**_kwargs: object) -> None:
    _say_farewell()


def _say_farewell() -> None:
    process = _life.process
    if process is None or _life.pid != os.getpid():
        return
    _life.process = None
    process.stop(settings.drain_s)
    _life.close_metrics()
    telemetry.log(logging.INFO, "process_left", process_id=process.process_id)


def _end_this_process() -> None:
    """Ask for a warm shutdown; whoever supervises the process starts a new one."""
    os.kill(os.getppid() if current_process().name != "MainProcess" else os.getpid(), signal.SIGTERM)


def _unknown(name: str = "", **_kwargs: object) -> None:
    telemetry.count("task_unknown")
    telemetry.log(logging.WARNING, "task_unknown", task=name)


def _rejected(**_kwargs: object) -> None:
    telemetry.count("message_rejected")
