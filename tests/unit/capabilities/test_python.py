import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from agentloom_worker import limits, telemetry
from agentloom_worker.cancellation import Cancellation, CancelReason
from agentloom_worker.capabilities.context import ToolContext
from agentloom_worker.capabilities.declare import recall_python
from agentloom_worker.capabilities.python import invoke_inline, invoke_python
from agentloom_worker.capabilities.threads import ToolThreads
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.capability import CapabilitySpec, ResultStatus, ToolResult
from agentloom_worker.domain.model import Executed, Failure
from agentloom_worker.errors import Code
from tests.unit.capabilities import sample_tools
from tests.unit.capabilities.declaring import OPERATION, context_of, declare


@pytest.fixture
def latches(monkeypatch: pytest.MonkeyPatch) -> Iterator[sample_tools.Latches]:
    fresh = sample_tools.Latches()
    monkeypatch.setattr(sample_tools, "latches", fresh)
    yield fresh
    fresh.release.set()


@pytest.fixture
def threads() -> ToolThreads:
    return ToolThreads()


def call(
    name: str,
    arguments: dict[str, object] | None = None,
    *,
    context: ToolContext | None = None,
    spec: dict[str, Any] | None = None,
    **options: Any,
) -> ToolResult:
    declared = declare(name, **(spec or {}))
    handler = recall_python(declared)
    return invoke_python(handler, declared, arguments or {}, context or context_of(), **options)


def failure_of(result: ToolResult, status: ResultStatus = ResultStatus.FAILED) -> Failure:
    assert result.status is status
    assert result.failure is not None
    return result.failure


def test_function_gets_typed_arguments_defaults_and_its_context():
    result = call("look", {"path": "p", "item": {"name": "n"}}, context=replace(context_of(), attempt_no=3))
    assert result == ToolResult(ResultStatus.SUCCEEDED, text=f"p:5:Item(name='n', count=1):3:{OPERATION}")


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("words", "words", None),
        (None, "", None),
        ("\ud83d\ude00", "😀", None),
        (0, "", (0,)),
        (False, "", (False,)),
        ([1, (2.5, None)], "", ([1, [2.5, None]],)),
        ({"b": "\ud800", 1: {}}, "", ({"b": "\ud800", "1": {}},)),
        (sample_tools.Item(name="n"), "", ({"name": "n", "count": 1},)),
        ([sample_tools.Point(1, date(2030, 1, 2))], "", ([{"x": 1, "at": "2030-01-02"}],)),
    ],
)
def test_returned_value_becomes_text_or_json(
    latches: sample_tools.Latches, value: object, text: str, structured: tuple[object] | None
):
    latches.value = value
    assert call("give") == ToolResult(ResultStatus.SUCCEEDED, text=text, structured=structured)


def circular() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (b"bytes", "bytes"),
        ({"a": {1, 2}}, "set"),
        (object(), "object"),
        (float("nan"), "float"),
        ([float("inf")], "list"),
        (sample_tools.Bag(anything=[float("nan")]), "Bag"),
        ([sample_tools.Bag(anything=b"\xff")], "list"),
        ({1: 1, "1": 2}, "two keys"),
        (circular(), "list"),
        (deep(101), "levels deep"),
        (deep(100_000), "list"),
        ({(1, 2): 3}, "dict"),
        pytest.param(10**5000, "int", id="digits"),
    ],
)
def test_value_that_is_not_json_is_named_and_counts_as_executed(
    latches: sample_tools.Latches, value: object, word: str
):
    latches.value = value
    failure = failure_of(call("give"))
    assert failure.code == Code.TOOL_OUTPUT_INVALID
    assert word in failure.message
    assert failure.external_outcome is Executed.EXECUTED
    assert len(failure.message) <= limits.TOOL_MESSAGE_CHARS_MAX


@pytest.mark.parametrize(("value", "fits"), [({"n": 1}, True), ({"n": "x"}, False), ("text", False), (None, False)])
def test_declared_output_is_checked(latches: sample_tools.Latches, value: object, fits: bool):
    latches.value = value
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    result = call("give", spec={"output_schema": schema})
    if fits:
        assert result.structured == (value,)
    else:
        failure = failure_of(result)
        assert failure.code == Code.TOOL_OUTPUT_INVALID
        assert failure.external_outcome is Executed.EXECUTED


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad value"), "ValueError: bad value"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (GeneratorExit(), "GeneratorExit: "),
        (Hostile(), "Hostile: (its message cannot be read)"),
    ],
)
def test_exception_becomes_a_failure_and_the_worker_lives(
    latches: sample_tools.Latches, threads: ToolThreads, error: BaseException, message: str
):
    latches.value = error
    failure = failure_of(call("throw", threads=threads))
    assert (failure.code, failure.message) == (Code.TOOL_FAILED, message)
    assert failure.external_outcome is Executed.EXECUTED
    first = call("whoami", threads=threads).text
    assert call("whoami", threads=threads).text == first


def test_long_message_is_cut_and_carries_no_traceback(latches: sample_tools.Latches):
    latches.value = ValueError("x" * 10_000)
    message = failure_of(call("throw")).message
    assert len(message) == limits.TOOL_MESSAGE_CHARS_MAX
    assert "Traceback" not in message


def test_call_error_keeps_its_code_and_message():
    failure = failure_of(call("refuse"))
    assert (failure.code, failure.message) == (Code.INVALID_OFFSET, "the shop is closed")


def test_arguments_that_fit_the_schema_but_not_the_type_execute_nothing():
    failure = failure_of(call("typed", {"on": "someday", "colour": "red", "items": []}))
    assert failure.code == Code.TOOL_ARGUMENTS_INVALID
    assert failure.external_outcome is Executed.NOT_EXECUTED
    assert "on:" in failure.message


def test_given_schema_passes_values_as_they_are():
    spec = {"input_schema": {"type": "object", "properties": {"arguments": {}}}}
    assert call("raw", {"arguments": [1], "more": "x"}, spec=spec).structured == ({"arguments": [1], "more": "x"},)
    spec = {"input_schema": {"type": "object", "required": ["path", "limit"]}}
    failure = failure_of(call("exact", {"path": "p", "limit": 1, "more": 2}, spec=spec))
    assert failure.code == Code.TOOL_ARGUMENTS_INVALID
    assert failure.external_outcome is Executed.NOT_EXECUTED


def test_timeout_leaves_the_function_behind_and_says_unknown(latches: sample_tools.Latches, threads: ToolThreads):
    before = telemetry.counters().get("tool_threads_abandoned", 0)
    failure = failure_of(call("hang", spec={"timeout_ms": 50}, threads=threads))
    assert failure.code == Code.TOOL_TIMEOUT
    assert failure.external_outcome is Executed.UNKNOWN
    assert telemetry.counters()["tool_threads_abandoned"] == before + 1
    assert latches.entered.wait(sample_tools.BOUND_S)
    context, thread = latches.value
    assert context.cancelled.is_set()
    assert threads.stuck() == 1
    # Others go on, in another thread; the one left behind ends as soon as it can.
    assert call("whoami", threads=threads).text != str(thread.ident)
    latches.release.set()
    thread.join(sample_tools.BOUND_S)
    assert not thread.is_alive()
    assert threads.stuck() == 0


def test_run_deadline_is_a_limit_below_the_tools_own(latches: sample_tools.Latches, threads: ToolThreads):
    failure = failure_of(call("hang", context=context_of(deadline_s=0.05), threads=threads))
    assert failure.code == Code.TOOL_TIMEOUT
    assert latches.entered.wait(sample_tools.BOUND_S)
    context, _ = latches.value
    assert context.deadline_s() == 0


def test_passed_deadline_executes_nothing(latches: sample_tools.Latches):
    failure = failure_of(call("hang", context=context_of(ManualClock(), deadline_s=0)))
    assert (failure.code, failure.external_outcome) == (Code.TOOL_TIMEOUT, Executed.NOT_EXECUTED)
    assert not latches.entered.is_set()


def test_manual_clock_ends_a_call_when_it_is_moved(latches: sample_tools.Latches, threads: ToolThreads):
    clock = ManualClock()
    ended: list[ToolResult] = []
    caller = threading.Thread(
        target=lambda: ended.append(call("hang", context=context_of(clock, 3600), threads=threads)),
        daemon=True,
    )
    caller.start()
    assert latches.entered.wait(sample_tools.BOUND_S)
    clock.advance(40)
    caller.join(sample_tools.BOUND_S)
    assert failure_of(ended[0]).code == Code.TOOL_TIMEOUT


def cancel_when_entered(latches: sample_tools.Latches, cancellation: Cancellation) -> threading.Thread:
    def wait_and_cancel() -> None:
        latches.entered.wait(sample_tools.BOUND_S)
        cancellation.cancel(CancelReason.STOP)

    thread = threading.Thread(target=wait_and_cancel, daemon=True)
    thread.start()
    return thread


def test_cancelled_function_that_returns_in_the_grace_has_its_result(latches: sample_tools.Latches):
    cancellation = Cancellation()
    cancel_when_entered(latches, cancellation)
    result = call("obey", cancellation=cancellation)
    assert result == ToolResult(ResultStatus.SUCCEEDED, text="told")


def test_cancelled_function_that_raises_is_cancelled_with_unknown_effect(latches: sample_tools.Latches):
    cancellation = Cancellation()
    cancel_when_entered(latches, cancellation)
    failure = failure_of(call("obey_by_raising", cancellation=cancellation), ResultStatus.CANCELLED)
    assert (failure.code, failure.external_outcome) == (Code.TOOL_CANCELLED, Executed.UNKNOWN)


def test_cancelled_function_that_does_not_return_is_left_behind(
    latches: sample_tools.Latches, threads: ToolThreads, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "TOOL_CANCEL_GRACE_S", 0.05)
    cancellation = Cancellation()
    cancel_when_entered(latches, cancellation)
    failure = failure_of(call("hang", cancellation=cancellation, threads=threads), ResultStatus.CANCELLED)
    assert (failure.code, failure.external_outcome) == (Code.TOOL_CANCELLED, Executed.UNKNOWN)
    assert threads.stuck() == 1


def test_call_cancelled_before_it_began_executes_nothing(latches: sample_tools.Latches):
    cancellation = Cancellation()
    cancellation.cancel(CancelReason.STOP)
    failure = failure_of(call("hang", cancellation=cancellation), ResultStatus.CANCELLED)
    assert failure.external_outcome is Executed.NOT_EXECUTED
    assert not latches.entered.is_set()


def test_finished_call_leaves_no_callback_on_the_cancellation():
    cancellation = Cancellation()
    call("nothing", cancellation=cancellation)
    assert cancellation._callbacks == []


class Crash(BaseException):
    pass


@pytest.mark.parametrize("invoke", [invoke_python, invoke_inline])
def test_what_the_fault_point_raises_leaves_the_call(latches: sample_tools.Latches, invoke: Any):
    def entered() -> None:
        raise Crash

    declared = declare("hang")
    with pytest.raises(Crash):
        invoke(recall_python(declared), declared, {}, context_of(), entered=entered)
    assert not latches.entered.is_set()


def test_context_variables_come_from_the_caller_and_never_from_the_call_before(threads: ToolThreads):
    assert call("read_and_set_variable", {"value": "one"}, threads=threads).text == "nothing"
    assert call("read_and_set_variable", {"value": "two"}, threads=threads).text == "nothing"
    token = sample_tools.variable.set("caller")
    try:
        assert call("read_and_set_variable", {"value": "three"}, threads=threads).text == "caller"
    finally:
        sample_tools.variable.reset(token)


def test_idle_threads_are_bounded():
    threads = ToolThreads(idle_max=1)
    first, second = threads.take(), threads.take()
    threads.give_back(first)
    threads.give_back(second)
    second._thread.join(sample_tools.BOUND_S)
    assert not second.alive
    assert threads.take() is first


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_uses_no_thread_of_its_parent(threads: ToolThreads):
    call("whoami", threads=threads)
    child = os.fork()
    if child == 0:
        # pytest must not see this process: it reports by its exit code alone.
        result = call("nothing", context=context_of(deadline_s=20), threads=threads)
        os._exit(0 if result.status is ResultStatus.SUCCEEDED else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def inline(name: str, arguments: dict[str, object], **options: Any) -> tuple[CapabilitySpec, ToolResult]:
    declared = declare(name, timeout_ms=10_000)
    context = context_of(ManualClock(), deadline_s=100)
    return declared, invoke_inline(recall_python(declared), declared, arguments, context, **options)


@pytest.mark.parametrize(("seconds", "code"), [(9.0, None), (11.0, Code.TOOL_TIMEOUT)])
def test_inline_call_times_out_by_the_clock_alone(seconds: float, code: Code | None):
    _, result = inline("take", {"seconds": seconds})
    assert (result.failure.code if result.failure else None) == code


@pytest.mark.parametrize(("seconds", "code"), [(1.0, None), (3.0, Code.TOOL_CANCELLED)])
def test_inline_call_has_the_same_grace_after_a_cancellation(
    latches: sample_tools.Latches, seconds: float, code: Code | None
):
    _, result = inline("cancel_and_take", {"seconds": seconds}, cancellation=latches.cancellation)
    assert (result.failure.code if result.failure else None) == code


def test_inline_and_threaded_calls_give_equal_results():
    declared = declare("look")
    handler, arguments = recall_python(declared), {"path": "p"}
    threaded = invoke_python(handler, declared, arguments, context_of())
    assert invoke_inline(handler, declared, arguments, context_of()) == threaded
