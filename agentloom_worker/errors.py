"""Errors say what the worker does next.

```
AgentloomError(code)
├── TransientError    the same work may succeed later: retried with backoff, bounded
├── SupersededError   another worker has it or did it: stop quietly
├── CallError         the model must hear of it: a settled result, the loop goes on
├── RunError          the role cannot go on: it fails with this code
├── RequestError      a caller's input is wrong: nothing was written, the message says what to change
└── InvariantError    our own bug: the step is parked with its evidence
```
Codes are stable: clients may branch on them. An effect that may or may not have happened is the state
`unknown`, never an exception.
"""

from enum import StrEnum


class Code(StrEnum):
    """Every stable code, with what it tells its reader."""

    # how a run ends
    RUN_STOPPED = "RUN_STOPPED"
    RUN_DEADLINE_EXCEEDED = "RUN_DEADLINE_EXCEEDED"
    LOOP_BUDGET_EXHAUSTED = "LOOP_BUDGET_EXHAUSTED"
    CONTEXT_PROTECTED_INPUT_TOO_LARGE = "CONTEXT_PROTECTED_INPUT_TOO_LARGE"
    CONTEXT_WINDOW_EXCEEDED = "CONTEXT_WINDOW_EXCEEDED"
    MODEL_OUTCOME_UNKNOWN = "MODEL_OUTCOME_UNKNOWN"
    MODEL_RATE_LIMITED = "MODEL_RATE_LIMITED"
    MODEL_INTERRUPTED = "MODEL_INTERRUPTED"
    MODEL_TRANSPORT_FAILED = "MODEL_TRANSPORT_FAILED"
    MODEL_REQUEST_REJECTED = "MODEL_REQUEST_REJECTED"
    MODEL_FIRST_OUTPUT_TIMEOUT = "MODEL_FIRST_OUTPUT_TIMEOUT"
    MODEL_PROTOCOL_ERROR = "MODEL_PROTOCOL_ERROR"
    MODEL_PROVIDER_ERROR = "MODEL_PROVIDER_ERROR"
    MODEL_CONTENT_FILTERED = "MODEL_CONTENT_FILTERED"
    MODEL_CONTEXT_LENGTH_EXCEEDED = "MODEL_CONTEXT_LENGTH_EXCEEDED"
    CREDENTIAL_UNAVAILABLE = "CREDENTIAL_UNAVAILABLE"
    CREDENTIAL_REVOKED = "CREDENTIAL_REVOKED"
    STEP_FAILED_BY_OPERATOR = "STEP_FAILED_BY_OPERATOR"
    # what a call's result tells the model
    CAPABILITY_NOT_FOUND = "CAPABILITY_NOT_FOUND"
    TOOL_ARGUMENTS_INVALID = "TOOL_ARGUMENTS_INVALID"
    TOOL_CALL_TRUNCATED = "TOOL_CALL_TRUNCATED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    TOOL_FAILED = "TOOL_FAILED"
    TOOL_OUTPUT_INVALID = "TOOL_OUTPUT_INVALID"
    TOOL_OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
    TOOL_CANCELLED = "TOOL_CANCELLED"
    INVALID_OFFSET = "INVALID_OFFSET"
    RESULT_NOT_FOUND = "RESULT_NOT_FOUND"
    # what a caller is told
    CONTEXT_FORBIDDEN = "CONTEXT_FORBIDDEN"
    RELEASE_INVALID = "RELEASE_INVALID"
    RELEASE_NOT_FOUND = "RELEASE_NOT_FOUND"
    RELEASE_AGENT_MISMATCH = "RELEASE_AGENT_MISMATCH"
    MODEL_FEATURE_UNSUPPORTED = "MODEL_FEATURE_UNSUPPORTED"
    CAPABILITY_VERSION_MISMATCH = "CAPABILITY_VERSION_MISMATCH"
    AGENT_NOT_FOUND = "AGENT_NOT_FOUND"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    SESSION_BUSY = "SESSION_BUSY"
    SESSION_QUEUE_FULL = "SESSION_QUEUE_FULL"
    RUN_STOPPING = "RUN_STOPPING"
    INPUT_NOT_FOUND = "INPUT_NOT_FOUND"
    INPUT_NOT_QUEUED = "INPUT_NOT_QUEUED"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    OPERATION_NOT_FOUND = "OPERATION_NOT_FOUND"
    ATTEMPT_NOT_FOUND = "ATTEMPT_NOT_FOUND"
    TRANSPORT_NOT_KEPT = "TRANSPORT_NOT_KEPT"
    DISPATCH_NOT_FOUND = "DISPATCH_NOT_FOUND"
    INPUT_INVALID = "INPUT_INVALID"
    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    # how storage and the machinery speak
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    REVISION_CONFLICT = "REVISION_CONFLICT"
    LEASE_LOST = "LEASE_LOST"
    PERSISTENCE_UNAVAILABLE = "PERSISTENCE_UNAVAILABLE"
    ROWS_UNREADABLE = "ROWS_UNREADABLE"
    RELEASE_UNREADABLE = "RELEASE_UNREADABLE"
    WRITE_REFUSED = "WRITE_REFUSED"
    SCHEMA_BEHIND = "SCHEMA_BEHIND"
    REQUEST_HASH_MISMATCH = "REQUEST_HASH_MISMATCH"
    INVARIANT_BROKEN = "INVARIANT_BROKEN"


class AgentloomError(Exception):
    """Base of all: `code` is stable, the message is for people and holds no secret and no body."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class TransientError(AgentloomError):
    """The same work may succeed later."""


class RevisionConflictError(TransientError):
    """A row on which the step decided has moved on; reload and rebuild the pure part (RULINGS T3)."""

    def __init__(self, entity: str) -> None:
        super().__init__(Code.REVISION_CONFLICT, f"{entity} has moved on since it was read")
        self.entity = entity


class ContentionError(TransientError):
    """What a step decides on moved on before each of its commits: nothing is wrong, somebody else was quicker."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.REVISION_CONFLICT, message)


class PersistenceUnavailableError(TransientError):
    """The store cannot be reached or refuses to work; the step stops and delivers nothing onward."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.PERSISTENCE_UNAVAILABLE, message)


class PersistenceUnreachableError(PersistenceUnavailableError):
    """Nobody answers for the store, or it says itself that it is not there yet: waiting may help."""


class SupersededError(AgentloomError):
    """Another worker has it or did it."""


class LeaseLostError(SupersededError):
    """The claim is no longer ours, or the run no longer takes this kind of commit."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.LEASE_LOST, message)


class CallError(AgentloomError):
    """The model must hear of it: becomes the settled result of one call."""


class RunError(AgentloomError):
    """The role cannot go on: it fails with this code."""


class RequestError(AgentloomError):
    """A caller's input is wrong; nothing was written."""


class ReleaseInvalidError(RequestError):
    """A release document has problems; every one is listed with its path."""

    def __init__(self, problems: tuple[tuple[str, str], ...]) -> None:
        lines = "\n".join(f"  {path or '(document)'}: {text}" for path, text in problems)
        super().__init__(Code.RELEASE_INVALID, f"{len(problems)} problem(s):\n{lines}")
        self.problems = problems


class InvariantError(AgentloomError):
    """Our own bug: the step is parked with its evidence."""

    def __init__(self, message: str, code: Code = Code.INVARIANT_BROKEN) -> None:
        super().__init__(code, message)
