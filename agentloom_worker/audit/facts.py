"""One run as its checks see it: the rows of a snapshot, found by id, and its messages built anew."""

from collections.abc import Sequence
from functools import cached_property

from agentloom_worker.audit.earlier import Earlier
from agentloom_worker.audit.history import History, read_history
from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.run import CallBatch, Run
from agentloom_worker.ids import BatchId, ContextId, NodeId, OperationId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.audit_rows import (
    AttemptRow,
    EntryRow,
    NodeRow,
    OperationRow,
    RecordRow,
    RevisionRow,
    RunRows,
)


class RunFacts:
    """Lives as long as the snapshot that `ports.store` reads from."""

    def __init__(self, ports: Ports, rows: RunRows, earlier: Earlier) -> None:
        self._earlier = earlier
        self.ports = ports
        self.rows = rows
        self.run: Run = rows.run
        self.subject = f"run {rows.run.run_id}"

    @cached_property
    def operations(self) -> dict[OperationId, OperationRow]:
        """Operations by id."""
        return {row.operation_id: row for row in self.rows.operations}

    @cached_property
    def nodes(self) -> dict[NodeId, NodeRow]:
        """Nodes by id."""
        return {row.node_id: row for row in self.rows.nodes}

    @cached_property
    def batches(self) -> dict[BatchId, CallBatch]:
        """Batches by id."""
        return {row.batch_id: row for row in self.rows.batches}

    @cached_property
    def _attempts(self) -> dict[OperationId, list[AttemptRow]]:
        found: dict[OperationId, list[AttemptRow]] = {}
        for row in self.rows.attempts:
            found.setdefault(row.operation_id, []).append(row)
        return found

    def attempts_of(self, operation_id: OperationId) -> Sequence[AttemptRow]:
        """The attempts of an operation, by number."""
        return self._attempts.get(operation_id, [])

    @cached_property
    def _members(self) -> dict[BatchId, list[OperationRow]]:
        found: dict[BatchId, list[OperationRow]] = {}
        for row in self.rows.operations:
            if row.batch_id is not None:
                found.setdefault(row.batch_id, []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: -1 if row.ordinal is None else row.ordinal)
        return found

    def members_of(self, batch_id: BatchId) -> Sequence[OperationRow]:
        """The members of a batch, by ordinal."""
        return self._members.get(batch_id, [])

    def records_of(self, context_id: ContextId) -> Sequence[RecordRow]:
        """The records of a context, in order."""
        return [row for row in self.rows.records if row.context_id == context_id]

    def entries_of(self, context_id: ContextId) -> Sequence[EntryRow]:
        """The entries of a context, by revision and then by record."""
        return [row for row in self.rows.entries if row.context_id == context_id]

    def revisions_of(self, context_id: ContextId) -> Sequence[RevisionRow]:
        """The revisions of a context, in order."""
        return [row for row in self.rows.revisions if row.context_id == context_id]

    @cached_property
    def histories(self) -> tuple[tuple[RoleContext, History], ...]:
        """Each context with its messages and frozen requests, built from the records alone."""
        return tuple(
            (context, read_history(self.ports, self.run, context, self.rows.operations, self._earlier))
            for context in self.rows.contexts
        )
