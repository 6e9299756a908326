"""The store's part of history: what a session's earlier runs left, in pages."""

from collections.abc import Sequence
from uuid import UUID

from agentloom_worker.domain.context import RoleContext
from agentloom_worker.domain.operation import Operation, Payload
from agentloom_worker.domain.run import NodeTask, Run
from agentloom_worker.ids import InputId, OperationId, RunId
from agentloom_worker.storage import blob, context, history, operation, run, tree
from agentloom_worker.storage.access import Access

_BLOBS_PAGE = 100


class History(Access):
    """What readers of ended runs ask."""

    def load_bodies(self, owner_id: UUID, payloads: Sequence[Payload]) -> list[bytes]:
        """Bodies in the order of their payloads; those in blobs come with one query a page."""
        wanted = [payload.blob_id for payload in payloads if payload.inline is None and payload.blob_id is not None]
        held: dict[UUID, bytes] = {}
        if wanted:
            with self.read() as conn:
                for start in range(0, len(wanted), _BLOBS_PAGE):
                    page = blob.read_many(conn, owner_id, wanted[start : start + _BLOBS_PAGE])
                    held |= page
        bodies = [
            held.get(payload.blob_id) if payload.inline is None and payload.blob_id else payload.inline
            for payload in payloads
        ]
        found = [body for body in bodies if body is not None]
        assert len(found) == len(payloads), f"{len(payloads) - len(found)} bodies of owner {owner_id} are missing"
        return found

    def list_ended_runs(
        self,
        session_id: UUID,
        *,
        run_no_max: int,
        after_seq: int = 0,
        before_seq: int | None = None,
        newest: bool = False,
        limit: int,
    ) -> list[Run]:
        """A page of a session's ended runs, by their questions' places."""
        with self.read() as conn:
            return run.list_ended(
                conn,
                session_id,
                run_no_max=run_no_max,
                after_seq=after_seq,
                before_seq=before_seq,
                newest=newest,
                limit=limit,
            )

    def list_given_inputs(
        self, run_ids: Sequence[RunId]
    ) -> tuple[list[history.GivenInput], dict[InputId, list[history.InputPlace]]]:
        """What was given to these runs, by input_seq, and every run that each of it was given to."""
        with self.read() as conn:
            return history.list_given_inputs(conn, run_ids), history.list_places(conn, run_ids)

    def load_operations(self, operation_ids: Sequence[OperationId]) -> dict[OperationId, Operation]:
        """Some operations by id."""
        with self.read() as conn:
            return operation.load_operations(conn, operation_ids)

    def load_calls(self, run_id: UUID, model_operation_id: UUID) -> tuple[Operation, ...]:
        """The calls of one model operation by ordinal."""
        with self.read() as conn:
            return operation.load_calls(conn, run_id, model_operation_id)

    def load_root_context(self, run_id: UUID) -> RoleContext | None:
        """The context of a run's root role."""
        with self.read() as conn:
            node_id = tree.find_node(conn, run_id)
            return None if node_id is None else context.load_context(conn, node_id)

    def has_root_role(self, session_id: UUID, role_key: str) -> bool:
        """Whether a run of the session has this role at its root."""
        with self.read() as conn:
            return history.has_root_role(conn, session_id, role_key)

    def list_root_roles(self, run_ids: Sequence[RunId]) -> dict[RunId, str]:
        """The role of the root of each of some runs."""
        with self.read() as conn:
            return history.list_root_roles(conn, run_ids)

    def load_node(self, run_id: UUID) -> NodeTask | None:
        """The root role's node of a run."""
        with self.read() as conn:
            return tree.load_node(conn, run_id)
