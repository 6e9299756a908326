"""What people may see of a run: its state, its answer once it has ended, and what it did.

Read only. No text of a model leaves this module before the run's terminal commit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from agentloom_worker.canonical import effective_text
from agentloom_worker.domain.budget import prefix_hit_tokens
from agentloom_worker.domain.model import Executed
from agentloom_worker.domain.operation import Attempt, AttemptState, Operation, OperationKind, OperationStatus
from agentloom_worker.domain.recipe import Recipe
from agentloom_worker.domain.run import EndCause, Run, RunStatus
from agentloom_worker.domain.session import OnBusy
from agentloom_worker.errors import Code, InvariantError, RequestError
from agentloom_worker.ids import OperationId, OwnerId, ReleaseId, RunId, SessionId
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.slice import load_response

_PAGE = 500
_PARKED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run without its texts. Instants are microseconds since the epoch.

    `blocked` says that one of its steps is parked, so that it waits for an operator (RULINGS A4). `detail`
    explains a failure.
    """

    run_id: RunId
    session_id: SessionId
    release_id: ReleaseId
    agent_id: str
    status: RunStatus
    blocked: bool
    end_cause: EndCause | None
    code: str | None
    detail: str | None
    loops: int
    max_loops: int
    created_at: int
    started_at: int | None
    ended_at: int | None
    deadline_at: int

    @property
    def ended(self) -> bool:
        """Nothing about it will change any more."""
        return self.status.terminal

    @property
    def succeeded(self) -> bool:
        """It ended with an answer."""
        return self.status is RunStatus.SUCCEEDED

    @property
    def state(self) -> str:
        """The status, or `blocked` for a live run that waits for an operator."""
        return "blocked" if self.blocked else self.status.value


@dataclass(frozen=True, slots=True)
class RunResult(RunSummary):
    """A run with its answer, which is None until the run has succeeded.

    `refused`: the model declined, the answer is its refusal. `truncated`: it was cut at the output limit.
    `filtered`: the provider's content filter cut it. `empty`: the model ended without a word.
    """

    answer: str | None
    truncated: bool
    filtered: bool
    refused: bool
    empty: bool


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session without its texts. `created_at` is in microseconds.

    `waiting` inputs go with the next question, `queued` questions become runs by themselves.
    """

    session_id: SessionId
    agent_id: str
    on_busy: OnBusy
    inputs: int
    runs: int
    waiting: int
    queued: int
    live_run_id: RunId | None
    live_status: RunStatus | None
    created_at: int


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Tokens as the provider reported them for completed model calls; `cached_tokens` are some of the input's."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of an operation. `started_at` is when its intent was committed."""

    attempt_no: int
    state: AttemptState
    maybe_sent: bool
    code: str | None
    http_status: int | None
    started_at: int | None
    first_output_at: int | None
    ended_at: int | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One operation of a run: what was called, how often it was tried, how it ended. No texts.

    `capability` is the release's key of a tool, `result.read` for an internal call, empty for one whose name
    no tool has. `duration_ms` runs from the first intent to the last outcome, waits between attempts included.
    `issues` says of a model's answer that it did not match the output schema, and in how many ways the model was told.
    `request_tokens` is the estimate of a frozen request, `repeated_tokens` how many of them are in front of it as they
    were in the request before, in whole blocks of a prefix cache (CONTEXT, Prefix cache).
    """

    operation_id: OperationId
    loop_no: int
    kind: OperationKind
    capability: str
    ordinal: int | None
    status: OperationStatus
    code: str | None
    executed: Executed | None
    attempts: tuple[AttemptRow, ...]
    started_at: int | None
    ended_at: int | None
    tokens: TokenCount | None
    issues: int | None = None
    request_tokens: int | None = None
    repeated_tokens: int | None = None

    @property
    def duration_ms(self) -> int | None:
        """How long it took; None while it is open, and for what needed no attempt."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at) // 1000


def require_run(ports: Ports, run_id: UUID) -> Run:
    """A run. Raises RequestError(RUN_NOT_FOUND)."""
    run = ports.store.load_run(run_id)
    if run is None:
        raise RequestError(Code.RUN_NOT_FOUND, f"there is no run {run_id}")
    return run


def require_operation(ports: Ports, operation_id: UUID) -> Operation:
    """An operation. Raises RequestError(OPERATION_NOT_FOUND)."""
    operation = ports.store.load_operation(operation_id)
    if operation is None:
        raise RequestError(Code.OPERATION_NOT_FOUND, f"there is no operation {operation_id}")
    return operation


def read_result(ports: Ports, run_id: UUID) -> RunResult:
    """A run as it stands, with its answer if it has succeeded. Raises RequestError(RUN_NOT_FOUND)."""
    run = require_run(ports, run_id)
    parked = not run.status.terminal and bool(ports.store.list_dispatches(run_id=run_id, parked_only=True, limit=1))
    base = _summary(run, _agent_id(ports, run.owner_id), parked)
    marks: frozenset[str] = frozenset()
    answer = None
    if run.status is RunStatus.SUCCEEDED:
        marks = frozenset((run.end_detail or "").split())
        answer = _answer(ports, run)
    values = {name: getattr(base, name) for name in RunSummary.__slots__}
    return RunResult(
        **values,
        answer=answer,
        truncated="truncated" in marks,
        filtered="filtered" in marks,
        refused="refused" in marks,
        empty="empty" in marks,
    )


def list_summaries(
    ports: Ports, *, limit: int, live_only: bool = False, session_id: UUID | None = None
) -> tuple[RunSummary, ...]:
    """Runs, newest first."""
    runs = ports.store.list_runs(limit=limit, live_only=live_only, session_id=session_id)
    parked = {row.run_id for row in ports.store.list_dispatches(parked_only=True, limit=_PARKED_MAX)}
    agents = {owner_id: _agent_id(ports, owner_id) for owner_id in {run.owner_id for run in runs}}
    return tuple(_summary(run, agents[run.owner_id], run.run_id in parked) for run in runs)


def list_sessions(ports: Ports, *, limit: int) -> tuple[SessionSummary, ...]:
    """Sessions, newest first."""
    return tuple(
        SessionSummary(
            session_id=one.session.session_id,
            agent_id=one.session.agent_id,
            on_busy=one.session.on_busy,
            inputs=one.session.input_head,
            runs=one.session.run_head,
            waiting=one.waiting,
            queued=one.queued,
            live_run_id=None if live is None else live.run_id,
            live_status=None if live is None else live.status,
            created_at=one.created_at,
        )
        for one, live in ports.store.list_sessions(limit=limit)
    )


def _summary(run: Run, agent_id: str, parked: bool) -> RunSummary:
    # The detail of an answer holds its marks, which RunResult shows as fields.
    failed = run.end_cause is not EndCause.ANSWER
    return RunSummary(
        run_id=run.run_id,
        session_id=run.session_id,
        release_id=run.release_id,
        agent_id=agent_id,
        status=run.status,
        blocked=parked and not run.status.terminal,
        end_cause=run.end_cause,
        code=run.end_code,
        detail=run.end_detail if failed else None,
        loops=run.loops_used,
        max_loops=run.max_loops,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        deadline_at=run.deadline_at,
    )


def _agent_id(ports: Ports, owner_id: OwnerId) -> str:
    agent_id = ports.store.find_agent_id(owner_id)
    if agent_id is None:
        raise InvariantError(f"owner {owner_id} of a run is missing")
    return agent_id


def _answer(ports: Ports, run: Run) -> str:
    """The effective text of the answer that the terminal commit names."""
    operation = ports.store.load_operation(run.answer_operation_id) if run.answer_operation_id else None
    if operation is None:
        raise InvariantError(f"run {run.run_id} succeeded without an answer")
    response = load_response(ports, run, operation)
    return effective_text(response.text or response.refusal)[0]


def list_steps(ports: Ports, run_id: UUID) -> tuple[StepRow, ...]:
    """What a run did, in order. Raises RequestError(RUN_NOT_FOUND)."""
    require_run(ports, run_id)
    operations = ports.store.list_operations(run_id)
    attempts: dict[OperationId, list[Attempt]] = {}
    ids = [operation.operation_id for operation in operations if operation.attempts_made]
    for start in range(0, len(ids), _PAGE):
        for attempt in ports.store.list_attempts(ids[start : start + _PAGE]):
            attempts.setdefault(attempt.operation_id, []).append(attempt)
    told, requests = _told_by_loop(ports, run_id), _requests(operations)
    return tuple(
        _step(operation, attempts.get(operation.operation_id, ()), told, requests.get(operation.operation_id))
        for operation in operations
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """The size of a frozen request, and how much of it repeats the one before."""

    tokens: int
    repeated: int


def _requests(operations: Iterable[Operation]) -> dict[OperationId, _Request]:
    """By the recipes alone: what a context shows is only ever added to, so each request begins with the one before.

    Nothing more is stored: whatever comes to change what was shown has to say in the recipe from where on.
    """
    found: dict[OperationId, _Request] = {}
    before = 0
    for operation in sorted(operations, key=lambda one: one.loop_no):
        if operation.request is None:
            continue
        tokens = Recipe.from_bytes(operation.request).tokens
        found[operation.operation_id] = _Request(tokens, prefix_hit_tokens(before))
        before = tokens
    return found


@dataclass(frozen=True, slots=True)
class _Told:
    """What the events say of the loops: usage, and the issues of rejected answers."""

    tokens: dict[int, TokenCount]
    issues: dict[int, int]


def _told_by_loop(ports: Ports, run_id: UUID) -> _Told:
    """From the events: the responses themselves, which may be large, stay where they are."""
    told = _Told({}, {})
    after = 0
    while True:
        page = ports.store.list_events(run_id, after=after, limit=_PAGE)
        for event in page:
            match event.kind, event.fields:
                case "model.completed", {"loop": int(loop), "input_tokens": int(sent), "output_tokens": int(received)}:
                    cached = event.fields.get("cached_tokens", 0)
                    told.tokens[loop] = TokenCount(sent, received, cached if isinstance(cached, int) else 0)
                case "output.rejected", {"loop": int(loop), "issues": int(issues)}:
                    told.issues[loop] = issues
        if len(page) < _PAGE:
            return told
        after = page[-1].run_seq


def _step(operation: Operation, attempts: Iterable[Attempt], told: _Told, request: _Request | None) -> StepRow:
    tried = tuple(
        AttemptRow(
            attempt.attempt_no,
            attempt.state,
            attempt.maybe_sent,
            attempt.code,
            attempt.http_status,
            attempt.started_at,
            attempt.first_output_at,
            attempt.ended_at,
        )
        for attempt in attempts
    )
    model = operation.kind is OperationKind.MODEL
    return StepRow(
        operation_id=operation.operation_id,
        loop_no=operation.loop_no,
        kind=operation.kind,
        capability=operation.capability,
        ordinal=operation.ordinal,
        status=operation.status,
        code=operation.code,
        executed=operation.executed,
        attempts=tried,
        started_at=tried[0].started_at if tried else None,
        ended_at=tried[-1].ended_at if tried and operation.status.settled else None,
        tokens=told.tokens.get(operation.loop_no) if model else None,
        issues=told.issues.get(operation.loop_no) if model else None,
        request_tokens=request.tokens if request else None,
        repeated_tokens=request.repeated if request else None,
    )


def total_tokens(steps: Iterable[StepRow]) -> TokenCount:
    """The sum over a run's model calls."""
    counted = [step.tokens for step in steps if step.tokens is not None]
    return TokenCount(
        sum(count.input_tokens for count in counted),
        sum(count.output_tokens for count in counted),
        sum(count.cached_tokens for count in counted),
    )


def repeated_share(steps: Iterable[StepRow]) -> float | None:
    """The part of a run's request tokens that repeats the request before; None where none was frozen."""
    frozen = [(step.request_tokens, step.repeated_tokens or 0) for step in steps if step.request_tokens]
    return sum(repeated for _, repeated in frozen) / sum(tokens for tokens, _ in frozen) if frozen else None
