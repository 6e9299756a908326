"""Who may read: every read of a session's material names its session and its role (seed 000, 12, row L25)."""

from dataclasses import dataclass

from agentloom_worker.ids import SessionId


@dataclass(frozen=True, slots=True)
class ReadAuthority:
    """What a reader was given. An id of a context, a run or an operation is a name, never a permission."""

    session_id: SessionId
    role_key: str
