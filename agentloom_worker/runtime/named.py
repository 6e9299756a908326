"""By what a caller may name a run, a session, a release or an input: an id, its text, or what holds it."""

from uuid import UUID

from agentloom_worker.domain.run import RunEvent
from agentloom_worker.domain.session import Session
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.ids import RunId, SessionId
from agentloom_worker.runtime.accept import StopReceipt
from agentloom_worker.runtime.inputs import InputReceipt, InputState, InputView
from agentloom_worker.runtime.inspect import RunSummary
from agentloom_worker.runtime.publish import ReleaseRef

RunLike = InputReceipt | StopReceipt | RunSummary | RunEvent | UUID | str
SessionLike = Session | InputReceipt | UUID | str
ReleaseLike = ReleaseRef | UUID | str
InputLike = InputReceipt | InputView | UUID | str


def to_uuid(value: UUID | str, noun: str) -> UUID:
    """An id from its text. Raises RequestError(INPUT_INVALID)."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (AttributeError, TypeError, ValueError):
        raise RequestError(Code.INPUT_INVALID, f"{value!r} is no {noun} id: an id is a UUID") from None


def session_id_of(session: SessionLike) -> SessionId:
    """The session that is named. Raises RequestError(INPUT_INVALID)."""
    named = session.session_id if isinstance(session, Session | InputReceipt) else to_uuid(session, "session")
    return SessionId(named)


def run_id_of(run: RunLike) -> RunId:
    """The run that is named. Raises RequestError(INPUT_INVALID), also for an input that has no run."""
    named: UUID | str | None = getattr(run, "run_id", run)  # type: ignore[arg-type]
    if named is None:
        assert isinstance(run, InputReceipt), "only an input may be without a run"
        over = run.state in (InputState.WITHDRAWN, InputState.FAILED)
        rest = "gets no run" if over else "has no run yet: `inputs` of its session names it as soon as there is one"
        raise RequestError(Code.INPUT_INVALID, f"input {run.input_id} is {run.state} and {rest}")
    return RunId(to_uuid(named, "run"))
