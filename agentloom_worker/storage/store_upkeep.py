"""The store's part of processes and upkeep: who is there, whose turn it is, what is renewed and freed."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentloom_worker.domain.process import WorkerProcess
from agentloom_worker.ids import ProcessId, RunId
from agentloom_worker.storage import commit_log, run, upkeep
from agentloom_worker.storage.access import Access, unavailable


class Upkeep(Access):
    """What keeps a fleet and its database in order."""

    def worker_seen(
        self,
        process_id: ProcessId,
        *,
        host: str,
        pid: int,
        queues: str,
        slots: int,
        version: str,
        draining: bool,
    ) -> None:
        """Say that a process is there; for people, and for the sweep's sense of how many slots there are."""
        self.driver.apply([commit_log.WORKER_SEEN(process_id, host, pid, queues, slots, version, draining)])

    def worker_gone(self, process_id: ProcessId) -> None:
        """Say that a process has left."""
        self.driver.apply([commit_log.WORKER_GONE(process_id)])

    def list_workers(self) -> list[WorkerProcess]:
        """The processes that are there, and those that fell silent within the prune time."""
        now = self.now_us()
        with self.read() as conn:
            return commit_log.list_workers(conn, now)

    def prune_workers(self, silent_us: int) -> int:
        """Forget processes that died without a farewell; how many."""
        return len(self.driver.returning(commit_log.WORKER_PRUNE(silent_us)))

    @contextmanager
    def turn(self, duty: str) -> Iterator[bool]:
        """Whether no other process does this duty now; SQLite's duties need no turns."""
        if self.driver.dialect == "sqlite":
            yield True
            return
        with unavailable("take a turn"), upkeep.turn(self.driver.engine, duty) as mine:
            yield mine

    def renew_held_leases(self, run_ids: list[RunId], ttl_us: int) -> set[RunId]:
        """Extend the leases of these runs where they hold one; a run that a commit has locked is left to it (R7)."""
        with self.keep() as conn:
            return run.renew_leases(conn, self.now_argument(), list(run_ids), ttl_us)

    def renew_run_leases(self, *, ttl_us: int, limit: int) -> int:
        """Extend the leases of runs that wait for a timer only; how many (RULINGS R7)."""
        return len(self.driver.returning(run.RUN_LEASES_RENEW(ttl_us, limit)))

    def vacuum(self) -> None:
        """Free what dead dispatch rows hold; SQLite frees its own."""
        if self.driver.dialect == "postgresql":
            with unavailable("vacuum"):
                upkeep.vacuum(self.driver.engine)

    def oldest_snapshot(self) -> upkeep.OldestSnapshot | None:
        """What keeps dead rows from being freed; None on SQLite, which has nothing of the kind."""
        if self.driver.dialect == "sqlite":
            return None
        with self.read() as conn:
            return upkeep.oldest_snapshot(conn)
