"""The store's part of claims: taking, keeping and giving up rows, and the sweep."""

from dataclasses import dataclass
from uuid import UUID

from agentloom_worker.domain.dispatch import Claim, DispatchRow, QueueDepth
from agentloom_worker.ids import ClaimToken, DispatchId, ProcessId, RunId
from agentloom_worker.limits import LOSSES_BEFORE_SOLITARY
from agentloom_worker.storage import blob, commit_log, dispatch, operation
from agentloom_worker.storage.access import Access
from agentloom_worker.storage.driver import NotAppliedError


@dataclass(frozen=True, slots=True)
class SweptRow:
    """A row that the sweep touched; `token` is the claim under which it stands, or was parked."""

    dispatch_id: DispatchId
    queue: str
    publish: bool
    run_id: RunId | None
    step: str
    version: int
    parked: bool
    token: ClaimToken | None


class Claims(Access):
    """What the runtime asks of `pending_dispatch`."""

    def claim(
        self,
        dispatch_id: DispatchId,
        token: ClaimToken,
        process_id: ProcessId,
        *,
        ttl_us: int,
        grace_us: int,
        solitary: bool,
    ) -> Claim | None:
        """Take a free row, or one whose holder is gone (RULINGS T7, T10); None if it cannot be had."""
        rows = self.driver.returning(
            dispatch.CLAIM(dispatch_id, token, process_id, ttl_us, grace_us, solitary, LOSSES_BEFORE_SOLITARY)
        )
        return dispatch.to_claim(dispatch_id, token, rows[0]) if rows else None

    def hand_back(self, claim: Claim, *, delay_us: int, failed: bool, failures_max: int, error: str | None) -> bool:
        """Give a row back before its effect began; True if that parked it."""
        rows = self.driver.returning(
            dispatch.HAND_BACK(claim.dispatch_id, claim.token, delay_us, int(failed), failures_max, error)
        )
        return bool(rows and rows[0][0] is not None)

    def release(self, dispatch_id: DispatchId, token: ClaimToken, *, began: bool) -> bool:
        """Give up a claim that its step had to leave; False if it is not held by this token (any more)."""
        return bool(self.driver.returning(dispatch.RELEASE(dispatch_id, token, began)))

    def park(self, claim: Claim, error: str) -> bool:
        """Stop a row until an operator decides; False if the claim was lost."""
        return bool(self.driver.returning(dispatch.PARK(claim.dispatch_id, claim.token, error)))

    def renew(self, pairs: list[tuple[DispatchId, ClaimToken]], ttl_us: int) -> set[DispatchId]:
        """Extend the claims that are still ours; an id that does not come back is unknown."""
        with self.keep() as conn:
            return dispatch.renew(conn, self.now_argument(), [(a, b) for a, b in pairs], ttl_us)

    def load_tokens(self, dispatch_ids: list[DispatchId]) -> dict[DispatchId, ClaimToken | None]:
        """Who holds these rows; a missing id has no row."""
        with self.keep() as conn:
            return dispatch.load_tokens(conn, list(dispatch_ids))

    def list_due(self, queues: tuple[str, ...], limit: int, *, patience_us: int = 0) -> list[DispatchId]:
        """Free rows that have been due for so long."""
        with self.read() as conn:
            return dispatch.list_due(conn, self.now_argument(), queues=queues, limit=limit, patience_us=patience_us)

    def wake(self, dispatch_ids: list[DispatchId]) -> None:
        """Make rows whose wake-up could not be published due for the next sweep at once (RULINGS T13)."""
        self.driver.apply([dispatch.WAKE(dispatch_id) for dispatch_id in sorted(dispatch_ids)])

    def count_queues(self) -> list[QueueDepth]:
        """The depth of every queue that has rows."""
        now = self.now_us()
        with self.read() as conn:
            return dispatch.count_queues(conn, now)

    def sweep(
        self,
        *,
        low_us: int,
        batch: int,
        grace_us: int,
        ttl_us: int,
        again_us: int,
        again_max_us: int,
        losses_before_solitary: int,
    ) -> list[SweptRow]:
        """One batch of rows whose `wake_at` has come."""
        rows = self.driver.returning(
            dispatch.SWEEP(low_us, batch, grace_us, again_us, again_max_us, losses_before_solitary, ttl_us)
        )
        return [
            SweptRow(
                DispatchId(dispatch.as_uuid(row[0])),
                str(row[1]),
                row[5] is None and (row[2] is None or int(row[7]) < int(row[8]) - grace_us),  # type: ignore[call-overload]
                RunId(dispatch.as_uuid(row[3])) if row[3] else None,
                str(row[4]),
                int(row[6]),  # type: ignore[call-overload]
                row[5] is not None,
                ClaimToken(dispatch.as_uuid(row[2])) if row[2] else None,
            )
            for row in rows
        ]

    def sweep_ahead(self, *, batch: int, ttl_us: int) -> int:
        """Let the next batch see claims that end later than any claim can; how many there were."""
        return len(self.driver.returning(dispatch.SWEEP_AHEAD(batch, ttl_us)))

    def list_suspect(self, queues: tuple[str, ...], grace_us: int, limit: int) -> list[DispatchId]:
        """Rows of these queues that may be claimed or taken over now."""
        with self.read() as conn:
            return dispatch.list_suspect(conn, self.now_argument(), queues=queues, grace_us=grace_us, limit=limit)

    def list_blob_ids(self, *, after: UUID, limit: int) -> list[UUID]:
        """A page of the blobs' ids behind one, in order."""
        with self.read() as conn:
            return blob.list_ids(conn, after=after, limit=limit)

    def collect_blobs(self, *, after: UUID, last: UUID, grace_us: int) -> int:
        """Delete the blobs behind `after` up to `last` that nothing refers to, older than the grace time; how many."""
        return len(self.driver.returning(blob.BLOB_COLLECT(after, last, grace_us)))

    def next_wake(self) -> int | None:
        """The earliest `wake_at` of any row that is not parked."""
        with self.read() as conn:
            return dispatch.next_wake(conn)

    def list_dispatches(
        self, *, run_id: UUID | None = None, parked_only: bool = False, limit: int = 1000
    ) -> list[DispatchRow]:
        """Rows for operators and for audit."""
        with self.read() as conn:
            return dispatch.list_rows(conn, run_id=run_id, parked_only=parked_only, limit=limit)

    def load_dispatch(self, dispatch_id: UUID) -> DispatchRow | None:
        """One row, for operators."""
        with self.read() as conn:
            return dispatch.load_row(conn, dispatch_id)

    def retry_dispatch(self, row: DispatchRow, queue: str) -> bool:
        """An operator's retry of a row as it was parked; what may have been sent stays marked so (RULINGS U13).

        False if it is no longer parked, unless it was this parking that was retried already (T6).
        """
        key = f"retry:{row.dispatch_id}:{row.parked_at}"
        statements = [operation.ATTEMPT_MARK_ROW_SENT(row.dispatch_id)]
        if row.run_id is not None:
            statements.append(commit_log.note(row.run_id, key))
        statements.append(dispatch.RETRY(row.dispatch_id, row.parked_at, queue))
        try:
            self.driver.apply(statements)
        except NotAppliedError:
            return row.run_id is not None and self.find_commit(row.run_id, key.encode()) is not None
        return True
