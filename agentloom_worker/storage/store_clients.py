"""The store's part of clients: sessions, owners, releases, runs and their events."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from agentloom_worker import faults
from agentloom_worker.domain.blob import blob_id_of
from agentloom_worker.domain.run import Run, RunEvent
from agentloom_worker.domain.session import OnBusy, QueuedQuestion, Session, UserInputDelivery
from agentloom_worker.ids import InputId, OwnerId, ReleaseId, SessionId
from agentloom_worker.limits import QUEUED_QUESTIONS_MAX
from agentloom_worker.storage import blob, commit_log, owner, run, session
from agentloom_worker.storage.access import Access
from agentloom_worker.storage.session import StoredInput, StoredSession, Undelivered


@dataclass(frozen=True, slots=True)
class FrozenBody:
    """A release as stored."""

    release_id: ReleaseId
    owner_id: OwnerId
    digest: bytes
    body: bytes


class Clients(Access):
    """What clients ask."""

    def load_session(self, session_id: UUID) -> Session | None:
        """A session."""
        with self.read() as conn:
            return session.load_session(conn, session_id)

    def find_live_run(self, session_id: UUID) -> Run | None:
        """The session's one run that has not ended, if there is one."""
        with self.read() as conn:
            return run.find_live_run(conn, session_id)

    def list_sessions(self, *, limit: int) -> list[tuple[StoredSession, Run | None]]:
        """Sessions, newest first, each with its live run if it has one."""
        with self.read() as conn:
            found = session.list_sessions(conn, limit=limit)
            live = run.find_live_runs(conn, [one.session.session_id for one in found])
        return [(one, live.get(one.session.session_id)) for one in found]

    def load_inputs(self, input_ids: Sequence[InputId]) -> list[StoredInput]:
        """Some inputs, in the order in which they came."""
        with self.read() as conn:
            return session.load_inputs(conn, input_ids)

    def load_input(self, input_id: UUID) -> StoredInput | None:
        """One input."""
        with self.read() as conn:
            return session.load_input(conn, input_id)

    def list_inputs(self, session_id: UUID, *, after: int = 0, limit: int) -> list[StoredInput]:
        """A page of a session's inputs above an input_seq."""
        with self.read() as conn:
            return session.list_inputs(conn, session_id, after=after, limit=limit)

    def list_deliveries(self, input_ids: Sequence[InputId]) -> list[UserInputDelivery]:
        """Every delivery of some inputs, in no order."""
        with self.read() as conn:
            return session.list_deliveries(conn, input_ids)

    def list_waiting(self, session_id: UUID) -> list[UserInputDelivery]:
        """What waits for the session's next run, in order."""
        with self.read() as conn:
            return session.list_waiting(conn, session_id)

    def measure_undelivered(self, session_id: UUID) -> Undelivered:
        """What of a session no model has begun to answer, without its queue."""
        with self.read() as conn:
            return session.measure_undelivered(conn, session_id)

    def list_queue(self, session_id: UUID, *, limit: int = QUEUED_QUESTIONS_MAX) -> list[QueuedQuestion]:
        """The questions that wait for the session's live run to end, the next one first."""
        with self.read() as conn:
            return session.list_queue(conn, session_id, limit=limit)

    def find_queued(self, input_ids: Sequence[InputId]) -> list[QueuedQuestion]:
        """What became of those of some inputs that were ever queued."""
        with self.read() as conn:
            return session.find_queued(conn, input_ids)

    def open_session(self, session_id: SessionId, owner_id: OwnerId, on_busy: OnBusy = OnBusy.REJECT) -> None:
        """Insert a session."""
        faults.hit("command.before", "open")
        self.driver.apply([session.SESSION_INSERT(session_id, owner_id, str(on_busy))])
        faults.hit("command.after", "open")

    def find_owner(self, slug: str) -> OwnerId | None:
        """The owner of an agent id."""
        with self.read() as conn:
            return owner.find_owner(conn, slug)

    def find_agent_id(self, owner_id: UUID) -> str | None:
        """The agent id of an owner."""
        with self.read() as conn:
            return owner.find_slug(conn, owner_id)

    def publish_release(
        self,
        agent_id: str,
        owner_id: OwnerId,
        release_id: ReleaseId,
        *,
        digest: bytes,
        body: bytes,
        version: int,
        inline_max: int,
    ) -> ReleaseId:
        """Store a frozen release once; publishing the same bytes again returns the same id."""
        self.driver.apply([owner.OWNER_ENSURE(owner_id, "agent", agent_id)])
        faults.hit("command.between", "publish")
        found = self.find_owner(agent_id)
        assert found is not None, f"owner of {agent_id} was not stored"
        statements = []
        inline: bytes | None = body
        stored_blob: UUID | None = None
        if len(body) > inline_max:
            inline, stored_blob = None, blob_id_of(found, body)
            statements.append(blob.put(stored_blob, found, body, "application/json"))
        statements.append(owner.RELEASE_PUBLISH(release_id, "agent", agent_id, digest, version, inline, stored_blob))
        self.driver.apply(statements)
        with self.read() as conn:
            stored = owner.find_release(conn, found, digest)
        assert stored is not None, "the release was not stored"
        return stored

    def newest_release(self, owner_id: UUID) -> ReleaseId | None:
        """The release of an owner that was published last."""
        with self.read() as conn:
            return owner.newest_release(conn, owner_id)

    def load_release(self, release_id: UUID) -> FrozenBody | None:
        """A release's frozen bytes."""
        with self.read() as conn:
            row = owner.load_release(conn, release_id)
            if row is None:
                return None
            owner_id, digest, body, blob_id = row
            if body is None:
                assert blob_id is not None, f"release {release_id} has no body"
                body = self.read_blob(conn, owner_id, blob_id)
            return FrozenBody(ReleaseId(release_id), OwnerId(owner_id), bytes(digest), bytes(body))

    def list_runs(self, *, limit: int = 100, live_only: bool = False, session_id: UUID | None = None) -> list[Run]:
        """Runs, newest first."""
        with self.read() as conn:
            return run.list_runs(conn, limit=limit, live_only=live_only, session_id=session_id)

    def list_events(self, run_id: UUID, *, after: int = 0, limit: int = 1000) -> list[RunEvent]:
        """A run's events after a sequence number."""
        with self.read() as conn:
            return commit_log.list_events(conn, run_id, after=after, limit=limit)
