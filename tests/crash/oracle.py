"""What a death promises (RULINGS N1): the table, and the outcome that it makes of an undisturbed one.

A death costs at most the one claim that died with it. Which claim that is, and what its effect had done by
then, is `POINTS`, one row a fault point. What becomes of a lost claim is `LOST`, one row a kind of step and
`on_unknown` policy. Everything else is as in the run that nobody disturbed: status, code, answer,
transcript, operations, attempts, effects, arrivals, delivery.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.runtime.accept import Sending
from tests.crash.case import Action, AttemptSeen, Hit, Kind, Message, OperationSeen, Outcome, Setup, Work
from tests.crash.scenarios import RETRY_AFTER_MS, SCENARIOS, SUPPLEMENT, TOOL_UNKNOWN, UNKNOWN_ANSWER


@dataclass(frozen=True)
class Death:
    """What dies at a fault point.

    `claim`: the row that the process held, if it held one, or the one that its commit had claimed for it.
    `happened`: the effect of that claim was made and counted. `received`: its first output is durable, where one
    had to be. `ended`: the ends of the run that, where they came during that effect, are durable too: a stop comes
    before the first output, the deadline behind it.
    """

    claim: Literal["held", "successor", "none"]
    happened: bool
    received: bool
    ended: tuple[Code, ...]


STOP = (Code.RUN_STOPPED,)
EITHER = (Code.RUN_STOPPED, Code.RUN_DEADLINE_EXCEEDED)

#   fault point                     claim that dies   effect made   first output   run's end
#                                                                   durable        durable
POINTS: dict[str, Death] = {
    "claim.after":            Death("held",           False,        False,         ()),
    "step.loaded":            Death("held",           False,        False,         ()),
    "attempt.before":         Death("held",           False,        False,         ()),
    # The request has left or the function is entered; the suite's counters stand just behind it.
    "attempt.sent":           Death("held",           False,        False,         ()),
    "first_output.saved":     Death("held",           True,         True,          STOP),
    "effect.done":            Death("held",           True,         True,          EITHER),
    # A pure part, alone or behind an effect whose outcome is still in memory only.
    "tail.raise":             Death("held",           True,         True,          EITHER),
    "commit.before":          Death("held",           True,         True,          EITHER),
    # The claim held is consumed: what may die is the row that the commit inserted already claimed (T13).
    "commit.after":           Death("successor",      False,        False,         ()),
    "publish.after":          Death("successor",      False,        False,         ()),
    # The claim was void before; what it had brought back is lost with the process, or kept (R3).
    "late.before":            Death("held",           True,         True,          EITHER),
    "late.after":             Death("none",           True,         True,          EITHER),
    # A client that asks, publishes or opens a session holds no row, and does it again. One that stops does so during
    # an attempt of its own process, before the first output: then that claim dies with it, and the stop stands or not.
    "command.before":         Death("held",           True,         False,         ()),
    "command.between":        Death("held",           True,         False,         ()),
    "command.after":          Death("held",           True,         False,         EITHER),
}  # fmt: skip

Promise = Literal["nothing", "another attempt", "the role fails", "the call is unknown"]

#    kind of step, on_unknown              what becomes of a claim that died
LOST: dict[tuple[Kind, Action | None], Promise] = {
    ("pure",     None):                    "nothing",
    ("internal", None):                    "nothing",              # no attempt, answered again (A23)
    ("model",    "retry"):                 "another attempt",      # the same bytes; once (R11)
    ("model",    "fail"):                  "the role fails",       # MODEL_OUTCOME_UNKNOWN (A20)
    ("tool",     "retry"):                 "another attempt",      # declared idempotent (U12); once
    ("tool",     "fail"):                  "the call is unknown",  # executed: unknown, and the loop goes on
}  # fmt: skip
# A second loss of an operation that may be repeated once is a loss under `fail`.
UNKNOWN_RETRIES = 1

UNKNOWN_RESULT = (
    '{"error":{"code":"TOOL_OUTCOME_UNKNOWN","executed":"unknown","message":"the worker that made this call died'
    ' before it could record the outcome: it may or may not have been executed"}}'
)
_UNKNOWN_CODES = {"model": Code.MODEL_OUTCOME_UNKNOWN.value, "tool": Code.TOOL_OUTCOME_UNKNOWN.value}


def promise(base: Outcome, hit: Hit, setup: Setup, *, said: int = 0) -> Outcome:
    """What must be left by a session that is like `base` until a process dies at `hit` of its tape.

    `said` counts the words that lives before that tape had sent (`words_said`).
    """
    return with_histories(_promise(base, hit, setup, said), setup)


def _promise(base: Outcome, hit: Hit, setup: Setup, said: int) -> Outcome:
    death, work = POINTS[hit.point], claim_lost(hit)
    # A claim that is not the first begins no effect: it only says that the outcome is unknown (A1).
    if work is None or not work.first:
        return base
    promised = LOST[work.kind, policy_of(base, work, setup)]
    if promised == "nothing":
        return base
    part = replace(part_of(base, work), following=(), supplements=(), places=())
    changed = _promise_of_run(part, replace(work, run_no=1), death, promised, setup)
    sent = words_said(base, hit, setup, said) if promised == "the role fails" else None
    return _in_session(base, work, changed, _heard(base, work, changed, setup, sent))


def words_said(base: Outcome, hit: Hit, setup: Setup, before: int = 0) -> int:
    """How many words of the script the database holds when a process dies at a hit of the tape.

    `before` were sent by earlier lives; a loop that is asked again sends its words again, under the same keys.
    """
    tape = base.tape[: base.tape.index(hit) + 1]
    loops = [
        (one.held.run_no, one.held.loop_no)
        for one in tape
        if (one.point, one.detail) == ("command.after", "ask") and one.held is not None
    ]
    earlier = sum((run_no, loop_no) < min(loops) for run_no, loop_no, _ in SCENARIOS[setup.scenario].says if loops)
    return max(before, earlier + len(loops))


def part_of(base: Outcome, work: Work) -> Outcome:
    """The run that a claim is of."""
    return base if work.run_no == 1 else base.following[work.run_no - 2]


def _heard(base: Outcome, work: Work, changed: Outcome, setup: Setup, sent: int | None) -> list[Sending]:
    """What the user has sent in the end, in order: each word goes out while the model is asked at its loop.

    `sent` counts what had been sent when the model's loop was lost that is not asked again; None: it is.
    """
    runs = [base, *base.following]
    runs[work.run_no - 1] = changed
    asked = {(run_no, loop_no) for run_no, run in enumerate(runs, 1) for loop_no, count in run.arrivals if count}
    if sent is not None:
        asked -= {(work.run_no, work.loop_no)}
    heard: list[Sending] = []
    for number, (run_no, loop_no, sending) in enumerate(SCENARIOS[setup.scenario].says):
        # A run that nobody asked for has no loops.
        exists = run_no <= 1 + heard.count(Sending.QUESTION)
        if exists and ((run_no, loop_no) in asked or number < (sent or 0)):
            heard.append(sending)
    return heard


def _in_session(base: Outcome, work: Work, changed: Outcome, heard: list[Sending]) -> Outcome:
    """The other runs of the session when one of them has changed and this is what was sent.

    Every question has its run. A supplement is carried on by a run that did not deliver it, and waits where none
    follows.
    """
    runs = [base, *base.following]
    runs[work.run_no - 1] = changed
    runs = runs[: 1 + heard.count(Sending.QUESTION)]
    # The first question stands at 1.
    places = tuple(place for place, sending in enumerate(heard, 2) if sending is Sending.SUPPLEMENT)
    if not places:
        runs = [replace(run, transcript=tuple(one for one in run.transcript if one != _ADDED)) for run in runs]
    supplements = []
    for chain in base.supplements[: len(places)]:
        links = [link for link in chain if link[0] <= len(runs)]
        if links[-1][0] == work.run_no and changed.delivery != "delivered":
            links[-1] = (work.run_no, "carried")
        supplements.append((*links, *(((0, "pending"),) if links[-1][1] == "carried" else ())))
    return replace(runs[0], following=tuple(runs[1:]), supplements=tuple(supplements), places=places)


def with_histories(base: Outcome, setup: Setup) -> Outcome:
    """The outcome with what each of its runs must have seen of those before it (seed 000, 4; seed 004, 3.1)."""
    runs = [base, *base.following]
    recent = SCENARIOS[setup.scenario].recent_runs
    seen: list[Outcome] = []
    for run_no, run in enumerate(runs, 1):
        history = [
            message
            for number, earlier in enumerate(runs[: run_no - 1], 1)
            for message in _as_history(base, number, earlier, run_no, full=number >= run_no - recent)
        ]
        # A run that froze no request has shown nothing.
        seen.append(replace(run, history=tuple(history) if run.transcript else ()))
    return replace(seen[0], following=tuple(seen[1:]))


def _as_history(base: Outcome, run_no: int, run: Outcome, current: int, *, full: bool) -> list[Message]:
    """An ended run: all of its process or its inputs alone, then its answer, what was passed on, and its real end."""
    own = run.transcript[1:]
    shown = [message for message in own if full or dict(message)["role"] == "user"]
    answer = [] if run.answer is None else [_said("assistant", run.answer)]
    passed = []
    for seq, chain in zip(base.places, base.supplements, strict=True):
        if (run_no, "carried") in chain:
            later = next(number for number, _ in chain[chain.index((run_no, "carried")) + 1 :])
            where = "the current run, below" if later == current else f"run {later}"
            passed.append(f"[run {run_no}: input {seq} of this session was passed on; its words stand in {where}]")
    end = run.status if run.code is None else f"{run.status}, {run.code}"
    end += "; no final result was formed" if run.answer is None else ""
    markers = [_said("system", text) for text in passed]
    last = _said("system", f"[run {run_no} ended: {end}]")
    return [*shown, *answer, *markers, last] if full else [*shown, *markers, *answer, last]


_ADDED: Message = (("content", SUPPLEMENT), ("role", "user"))


def _said(role: str, content: str) -> Message:
    return (("content", content), ("role", role))


def _promise_of_run(base: Outcome, work: Work, death: Death, promised: Promise, setup: Setup) -> Outcome:
    lost = _operation(base, work)
    if lost.code in death.ended:
        return _ended_meanwhile(base, lost)
    match promised:
        case "another attempt":
            return _another_attempt(base, lost, work, death)
        case "the role fails":
            return _role_fails(base, lost, work, death)
        case "the call is unknown":
            return _call_unknown(base, lost, work, death, setup)
        case never:
            assert_never(never)


def claim_lost(hit: Hit) -> Work | None:
    """The claim that dies at a hit, if there is one."""
    match POINTS[hit.point].claim:
        case "held":
            return hit.held
        case "successor":
            return hit.successor
        case "none":
            return None


def policy_of(base: Outcome, work: Work, setup: Setup) -> Action | None:
    """Which `on_unknown` row counts for a claim: its own, or `fail` where its one repetition is used up."""
    if work.kind in ("pure", "internal"):
        return None
    lost = _operation(base, work)
    action: Action = setup.model_unknown if work.kind == "model" else TOOL_UNKNOWN[lost.capability]
    codes = [attempt.code for attempt in lost.attempts[: work.attempt_no - 1]]
    return "fail" if codes.count(_UNKNOWN_CODES[work.kind]) >= UNKNOWN_RETRIES else action


def _operation(base: Outcome, work: Work) -> OperationSeen:
    (found,) = (
        operation for operation in part_of(base, work).operations if operation.name == (work.loop_no, work.ordinal)
    )
    return found


def _unknown(work: Work) -> AttemptSeen:
    return AttemptSeen("unknown", _UNKNOWN_CODES[work.kind])


def _ended_meanwhile(base: Outcome, lost: OperationSeen) -> Outcome:
    """The run was stopped, or its deadline passed, while the attempt was out: nothing is tried again (R11).

    Finalize finds an attempt that may have been sent (A3); what had come back is lost with the process.
    """
    assert lost.code is not None
    closed = replace(
        lost,
        status="unknown",
        executed="unknown",
        attempts=(*lost.attempts[:-1], AttemptSeen("unknown", lost.code)),
    )
    return _with_operation(base, closed)


def _another_attempt(base: Outcome, lost: OperationSeen, work: Work, death: Death) -> Outcome:
    """The attempt is unknown, the next one repeats it; a script that fails first fails by arrivals, not attempts."""
    made = work.attempt_no - 1
    rest = lost.attempts[made:]
    if death.happened and len(rest) > 1 and work.kind == "model":
        rest = rest[1:]
    attempts = (*lost.attempts[:made], _unknown(work), *rest)
    more = int(death.happened) + len(rest) - len(lost.attempts[made:])
    changed = _with_operation(base, replace(lost, attempts=attempts))
    if work.kind == "tool":
        return _with_effects(changed, lost, more)
    shift = len(attempts) - len(lost.attempts)
    return replace(
        _with_arrivals(changed, work.loop_no, more),
        delivered_by=_delivered_by(base, work, death, shift),
    )


def _delivered_by(base: Outcome, work: Work, death: Death, shift: int | None) -> int | None:
    """The attempt whose first output delivered the question; `shift` is None where none follows the lost one."""
    if work.loop_no != 1 or base.delivered_by is None or base.delivered_by < work.attempt_no:
        return base.delivered_by
    if base.delivered_by == work.attempt_no and death.received:
        return base.delivered_by
    return None if shift is None else base.delivered_by + shift


def _role_fails(base: Outcome, lost: OperationSeen, work: Work, death: Death) -> Outcome:
    made = work.attempt_no - 1
    code = _UNKNOWN_CODES["model"]
    failed = replace(
        lost, status="unknown", code=code, executed="unknown", attempts=(*lost.attempts[:made], _unknown(work))
    )
    more = int(death.happened) - len(lost.attempts[made:])
    delivered_by = _delivered_by(base, work, death, None)
    cut = _cut(_with_operation(base, failed), work.loop_no)
    # What is behind a batch comes to pass if a batch was there before.
    batches = any(one.loop_no < work.loop_no and one.ordinal is not None for one in cut.operations)
    return replace(
        _with_arrivals(cut, work.loop_no, more),
        status=RunStatus.FAILED.value,
        code=code,
        answer=None,
        operations=tuple(
            operation
            for operation in cut.operations
            if operation.loop_no < work.loop_no or operation.name == (work.loop_no, None)
        ),
        effects=tuple(effect for effect in cut.effects if effect[0][0] < work.loop_no),
        delivered_by=delivered_by,
        delivery="claimed" if delivered_by is None else "delivered",
        parked=cut.parked if batches else (),
    )


def _call_unknown(base: Outcome, lost: OperationSeen, work: Work, death: Death, setup: Setup) -> Outcome:
    """The member settles as unknown; the model hears of it in the next request, if there is one."""
    made = work.attempt_no - 1
    code = _UNKNOWN_CODES["tool"]
    settled = replace(
        lost, status="unknown", code=code, executed="unknown", attempts=(*lost.attempts[:made], _unknown(work))
    )
    more = int(death.happened) - len(lost.attempts[made:])
    changed = _with_effects(_with_operation(base, settled), lost, more)
    call = f"call-{work.loop_no}-{work.ordinal}"
    changed = replace(changed, transcript=tuple(_told(message, call) for message in changed.transcript))
    following = work.loop_no + 1
    if SCENARIOS[setup.scenario].steadfast or not any(one.loop_no == following for one in base.operations):
        return changed
    cut = _cut(changed, following)
    return replace(
        cut,
        status=RunStatus.SUCCEEDED.value,
        code=None,
        answer=UNKNOWN_ANSWER,
        operations=tuple(
            operation
            for operation in cut.operations
            if operation.loop_no < following or operation.name == (following, None)
        ),
        effects=tuple(effect for effect in cut.effects if effect[0][0] < following),
    )


def _told(message: Message, call: str) -> Message:
    fields = dict(message)
    if fields.get("tool_call_id") != call:
        return message
    return tuple(sorted((fields | {"content": UNKNOWN_RESULT}).items()))


def _with_operation(base: Outcome, changed: OperationSeen) -> Outcome:
    return replace(
        base,
        operations=tuple(changed if operation.name == changed.name else operation for operation in base.operations),
    )


def _with_effects(base: Outcome, lost: OperationSeen, more: int) -> Outcome:
    counted = Counter(dict(base.effects))
    counted[lost.name] += more
    return replace(base, effects=tuple(sorted((+counted).items())))


def _with_arrivals(base: Outcome, loop_no: int, more: int) -> Outcome:
    counted = Counter(dict(base.arrivals))
    counted[loop_no] += more
    return replace(base, arrivals=tuple(sorted((+counted).items())))


def _cut(base: Outcome, last_loop: int) -> Outcome:
    """No loop after this one: what only they left is away."""
    kept: list[Message] = []
    loop_no = 1
    for message in base.transcript:
        loop_no += dict(message)["role"] == "assistant"
        if loop_no > last_loop:
            break
        kept.append(message)
    return replace(
        base,
        loops_used=min(base.loops_used, last_loop),
        transcript=tuple(kept),
        operations=tuple(operation for operation in base.operations if operation.loop_no <= last_loop),
        effects=tuple(effect for effect in base.effects if effect[0][0] <= last_loop),
        arrivals=tuple(arrival for arrival in base.arrivals if arrival[0] <= last_loop),
    )


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Where an outcome is not the promised one; its events are held against itself (`inconsistencies`)."""
    names = [
        "status", "code", "answer", "cleanup", "loops_used", "loops_reserved", "transcript", "operations",
        "delivery", "delivered_by", "effects", "arrivals", "rows_left", "parked", "supplements", "places", "history",
    ]  # fmt: skip
    problems = []
    for name in names:
        wanted, got = getattr(expected, name), getattr(found, name)
        if wanted == got:
            continue
        if isinstance(wanted, tuple):
            missing = [one for one in wanted if one not in got]
            extra = [one for one in got if one not in wanted]
            problems.append(f"{name}: missing {missing}, instead {extra}")
        else:
            problems.append(f"{name}: promised {wanted!r}, found {got!r}")
    if len(expected.following) != len(found.following):
        problems.append(f"{len(expected.following)} more runs promised, found {len(found.following)}")
    for run_no, (one, other) in enumerate(zip(expected.following, found.following, strict=False), 2):
        problems += [f"run {run_no}: {problem}" for problem in differences(one, other)]
    return problems


def inconsistencies(found: Outcome) -> list[str]:
    """What holds of every outcome at rest: its events tell its operations, no counter is off, nothing is left."""
    problems = [f"audit: {finding}" for finding in found.findings]
    sequence = [run_seq for run_seq, _, _ in found.events]
    if sequence != list(range(1, len(sequence) + 1)):
        problems.append(f"run_seq has gaps: {sequence}")
    told = Counter((kind, fields) for _, kind, fields in found.events)
    due = _due_events(found)
    if told != due:
        problems.append(f"events: missing {list((due - told).elements())}, instead {list((told - due).elements())}")
    consumed = sum(one.kind == "model" and one.executed != "not_executed" for one in found.operations)
    if (found.loops_used, found.loops_reserved) != (consumed, 0):
        problems.append(f"loops: {found.loops_used} used, {found.loops_reserved} reserved, {consumed} consumed")
    if found.rows_left or found.cleanup != "done":
        problems.append(f"not at rest: {found.rows_left}, cleanup {found.cleanup}")
    if any(code == Code.MODEL_PROVIDER_ERROR and delay_ms < RETRY_AFTER_MS for code, delay_ms in found.delays_ms):
        problems.append(f"asked again sooner than the provider wished: {found.delays_ms}")
    answered = any(one.name == (1, None) and one.status == "completed" for one in found.operations)
    if answered and (found.delivery != "delivered" or found.delivered_by is None):
        problems.append(f"the question was answered, its delivery is {found.delivery} by {found.delivered_by}")
    effects = dict(found.effects)
    for one in found.operations:
        allowed = 1 + (one.kind == "tool" and TOOL_UNKNOWN.get(one.capability) == "retry")
        if effects.get(one.name, 0) > allowed:
            problems.append(f"{one.capability} of {one.name} happened {effects[one.name]} times")
    for run_no, other in enumerate(found.following, 2):
        problems += [f"run {run_no}: {problem}" for problem in inconsistencies(other)]
    return problems


_Event = tuple[str, tuple[tuple[str, object], ...]]


def _due_events(found: Outcome) -> Counter[_Event]:
    """The events that these operations and this end must have written (U9)."""
    due: Counter[_Event] = Counter()

    def expect(kind: str, **fields: object) -> None:
        due[kind, tuple(sorted((name, value) for name, value in fields.items() if value is not None))] += 1

    expect("run.accepted")
    expect("run.started")
    for one in found.operations:
        for number, attempt in enumerate(one.attempts[:-1], start=2):
            expect("attempt.retrying", code=attempt.code, ordinal=one.ordinal, attempt=number)
        if one.kind == "model" and one.status == "completed":
            calls = sum(other.loop_no == one.loop_no for other in found.operations) - 1
            expect("model.completed", loop=one.loop_no, calls=calls)
            if not calls and any(other.loop_no > one.loop_no for other in found.operations):
                # The role went on after an answer: it was not of the declared form, in one way.
                expect("output.rejected", loop=one.loop_no, issues=1)
        elif one.kind != "model" and one.code in (Code.RUN_STOPPED, Code.RUN_DEADLINE_EXCEEDED):
            pass  # closed by the run's end
        elif one.kind != "model" and not one.attempts and one.status == "failed":
            expect("call.settled", ordinal=one.ordinal, status=one.status, code=one.code)
        elif one.kind != "model":
            expect(
                "call.settled",
                loop=one.loop_no,
                ordinal=one.ordinal,
                capability=one.capability,
                status=one.status,
                code=one.code,
            )
    for line in found.parked:
        expect("step.parked", step=line.partition(" ")[0])
    cause = {RunStatus.CANCELLED.value: "stop", RunStatus.TIMED_OUT.value: "deadline"}.get(found.status)
    if cause is not None:
        expect("run.stopping", cause=cause)
    expect(f"run.{found.status}", loops=found.loops_used, code=found.code)
    return due
