"""Calling a Python function as a tool: in a thread of its own, bounded in time, whatever it does.

Nothing that the function does ends the worker: an exception, even SystemExit, becomes the result of
the call, and a function that does not return is left behind. What it returns is turned into JSON, and
checked, inside the same thread and the same time limit, for that runs foreign code too.
"""

import dataclasses
import json
import logging
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from agentloom_worker import limits, telemetry
from agentloom_worker.cancellation import Cancellation
from agentloom_worker.canonical import canonical_bytes, parse
from agentloom_worker.capabilities.arguments import invalid_arguments
from agentloom_worker.capabilities.context import ToolContext
from agentloom_worker.capabilities.handler import ArgumentsError, PythonHandler
from agentloom_worker.capabilities.json_text import nested_deeper
from agentloom_worker.capabilities.result import failed
from agentloom_worker.capabilities.schema import output_problems
from agentloom_worker.capabilities.threads import THREADS, ToolThreads
from agentloom_worker.clock import Clock
from agentloom_worker.domain.capability import CapabilitySpec, ResultStatus, ToolResult
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.errors import CallError, Code
from agentloom_worker.secrecy import conceal_known

_CANCELLED: Literal["cancelled"] = "cancelled"


@dataclass(frozen=True, slots=True)
class _Ended:
    """The function came back. `crash` is what `entered` raised; it belongs to the caller."""

    result: ToolResult | None
    crash: BaseException | None = None


_Signals = queue.SimpleQueue[_Ended | Literal["cancelled"]]


def invoke_python(
    handler: PythonHandler,
    spec: CapabilitySpec,
    arguments: dict[str, object],
    context: ToolContext,
    *,
    cancellation: Cancellation | None = None,
    entered: Callable[[], None] | None = None,
    threads: ToolThreads = THREADS,
) -> ToolResult:
    """Run one attempt and wait for it: at most `spec.timeout_ms`, and never beyond the context's deadline.

    `entered` runs in the tool's thread just before the function; what it raises leaves this call.
    At the time limit the context's `cancelled` is set, the thread is abandoned and the outcome unknown.
    At a cancellation the function has TOOL_CANCEL_GRACE_S to return; what it returns then counts.
    Raises RuntimeError, before anything began, if the system gives no thread.
    """
    call = _Call(handler, spec, arguments, context.within(spec.timeout_ms / 1000), entered)
    if (refused := call.refuse(cancellation)) is not None:
        return refused
    signals: _Signals = queue.SimpleQueue()

    def on_cancel() -> None:
        call.context.cancelled.set()
        signals.put(_CANCELLED)

    thread = threads.take()
    remove = cancellation.on_cancel(on_cancel) if cancellation is not None else None
    signal: _Ended | Literal["cancelled"] | None = None
    try:
        thread.submit(lambda: signals.put(call.run()))
        clock, deadline_at_s = call.context.clock, call.context.deadline_at_s
        signal = _wait(signals, clock, deadline_at_s)
        given_up = call.timed_out
        if signal == _CANCELLED:
            signal = _wait(signals, clock, min(deadline_at_s, clock.monotonic_s() + limits.TOOL_CANCEL_GRACE_S))
            given_up = call.cancelled
    finally:
        if remove is not None:
            remove()
        if isinstance(signal, _Ended):
            threads.give_back(thread)
        else:  # also when an interrupt ended the wait
            call.context.cancelled.set()
            threads.abandon(thread)
    if isinstance(signal, _Ended):
        return _result_of(signal)
    telemetry.log(logging.WARNING, "tool_thread_abandoned", operation_id=context.operation_id, key=spec.key)
    return given_up()


def invoke_inline(
    handler: PythonHandler,
    spec: CapabilitySpec,
    arguments: dict[str, object],
    context: ToolContext,
    *,
    cancellation: Cancellation | None = None,
    entered: Callable[[], None] | None = None,
) -> ToolResult:
    """The same in the caller's thread, for the simulator: time passes only as the context's clock says.

    A function that came back after its time limit, or later than the grace after a cancellation, has
    the result that `invoke_python` would have given. One that never returns hangs the caller.
    """
    call = _Call(handler, spec, arguments, context.within(spec.timeout_ms / 1000), entered)
    if (refused := call.refuse(cancellation)) is not None:
        return refused
    clock, deadline_at_s = call.context.clock, call.context.deadline_at_s
    cancelled_at: list[float] = []

    def on_cancel() -> None:
        call.context.cancelled.set()
        cancelled_at.append(clock.monotonic_s())

    remove = cancellation.on_cancel(on_cancel) if cancellation is not None else None
    try:
        ended = call.run()
    finally:
        if remove is not None:
            remove()
    now = clock.monotonic_s()
    if ended.crash is None and cancelled_at and cancelled_at[0] <= deadline_at_s:
        if now > min(deadline_at_s, cancelled_at[0] + limits.TOOL_CANCEL_GRACE_S):
            return call.cancelled()
    elif ended.crash is None and now > deadline_at_s:
        call.context.cancelled.set()
        return call.timed_out()
    return _result_of(ended)


def _result_of(ended: _Ended) -> ToolResult:
    if ended.crash is not None:
        raise ended.crash
    assert ended.result is not None
    return ended.result


def _wait(signals: _Signals, clock: Clock, until_s: float) -> _Ended | Literal["cancelled"] | None:
    """The next signal, or None when the time is up by the clock, or by the real time waited.

    In slices, because a real wait does not see the clock move: not through a suspend, not in a test.
    """
    slices = math.ceil(max(0.0, until_s - clock.monotonic_s()) / limits.TOOL_WAIT_SLICE_S)
    for _ in range(slices):
        remaining_s = until_s - clock.monotonic_s()
        if remaining_s <= 0:
            break
        try:
            return signals.get(timeout=min(remaining_s, limits.TOOL_WAIT_SLICE_S))
        except queue.Empty:
            continue
    try:
        return signals.get_nowait()
    except queue.Empty:
        return None


@dataclass(frozen=True, slots=True)
class _Call:
    """One attempt: what to run, and how each of its ends is told."""

    handler: PythonHandler
    spec: CapabilitySpec
    arguments: dict[str, object]
    context: ToolContext
    entered: Callable[[], None] | None

    def refuse(self, cancellation: Cancellation | None) -> ToolResult | None:
        """The result of a call that must not begin, or None."""
        if cancellation is not None and cancellation.cancelled:
            return self.cancelled(Executed.NOT_EXECUTED)
        if self.context.deadline_s() <= 0:
            return self.timed_out(Executed.NOT_EXECUTED)
        return None

    def run(self) -> _Ended:
        """Call the function and shape its result; never raises."""
        try:
            keywords = self.handler.bind(self.arguments)
        except ArgumentsError as error:
            return _Ended(failed(invalid_arguments(str(error)[: limits.TOOL_MESSAGE_CHARS_MAX])))
        except BaseException as error:  # noqa: BLE001  (a validator of the tool's own types)
            return _Ended(self._raised(error, Executed.NOT_EXECUTED))
        if self.handler.context_parameter is not None:
            keywords[self.handler.context_parameter] = self.context
        try:
            if self.entered is not None:
                self.entered()
        except BaseException as crash:  # noqa: BLE001  (carried to the caller)
            return _Ended(None, crash)
        try:
            return _Ended(self._shaped(self.handler.function(**keywords)))
        except KeyboardInterrupt as interrupt:
            if threading.current_thread() is threading.main_thread():
                return _Ended(None, interrupt)  # a person at the terminal, not the tool
            return _Ended(self._raised(interrupt, Executed.EXECUTED))
        except BaseException as error:  # noqa: BLE001  (the border: no tool may end its worker)
            return _Ended(self._raised(error, Executed.EXECUTED))

    def timed_out(self, executed: Executed = Executed.UNKNOWN) -> ToolResult:
        """The time limit passed."""
        text = f"no result within {self.spec.timeout_ms} ms or before the deadline of the run"
        return failed(Failure(Code.TOOL_TIMEOUT, Category.TIMEOUT, text, executed))

    def cancelled(self, executed: Executed = Executed.UNKNOWN) -> ToolResult:
        """The call was told to stop."""
        text = "the call was cancelled"
        failure = Failure(Code.TOOL_CANCELLED, Category.CANCELLED, text, executed)
        return ToolResult(ResultStatus.CANCELLED, failure=failure)

    def _raised(self, error: BaseException, executed: Executed) -> ToolResult:
        if isinstance(error, CallError):
            message = error.message[: limits.TOOL_MESSAGE_CHARS_MAX]
            return failed(Failure(error.code, Category.BUSINESS, message, executed))
        telemetry.log(
            logging.DEBUG,
            "tool_raised",
            operation_id=self.context.operation_id,
            key=self.spec.key,
            traceback=telemetry.frames_of(error),
        )
        if self.context.cancelled.is_set():
            # Obeying the signal by raising is an answer to it, and says nothing about the effect.
            return self.cancelled(executed if executed is Executed.NOT_EXECUTED else Executed.UNKNOWN)
        message = f"{type(error).__name__}: {_message(error)}"[: limits.TOOL_MESSAGE_CHARS_MAX]
        return failed(Failure(Code.TOOL_FAILED, Category.BUSINESS, message, executed))

    def _shaped(self, returned: object) -> ToolResult:
        try:
            result = shape(returned)
        except (TypeError, ValueError, RecursionError, PydanticUserError) as error:
            name = type(returned).__name__
            return output_invalid(f"the tool returned a {name} that is not JSON: {_message(error)}")
        return check_output(self.spec, result, returned)


def shape(returned: object) -> ToolResult:
    """What a function returned as a result: text as text, None as no text, everything else as JSON.

    Models and dataclasses are dumped as their types say. The value is a copy: what the tool does to its
    own objects later changes nothing. Raises TypeError, ValueError or RecursionError for what is not JSON.
    """
    if returned is None:
        return ToolResult(ResultStatus.SUCCEEDED)
    if isinstance(returned, str):
        return ToolResult(ResultStatus.SUCCEEDED, text=_paired(returned))
    try:
        body = canonical_bytes(returned)
    except TypeError:  # a model, a dataclass, keys of several types, or something that is not JSON
        body = canonical_bytes(_dumped(returned))
    value = parse(body)
    brackets = body.count(b"[") + body.count(b"{")
    if brackets > limits.JSON_DEPTH_MAX and nested_deeper(value, limits.JSON_DEPTH_MAX):
        raise ValueError(f"nested more than {limits.JSON_DEPTH_MAX} levels deep")
    return ToolResult(ResultStatus.SUCCEEDED, structured=(value,))


def _paired(text: str) -> str:
    """Join a high and a low surrogate that stand side by side, as JSON cannot keep them apart."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return str(text)


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        _refuse_nan(value.model_dump())
        return value.model_dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        adapter = _adapter(type(value))
        _refuse_nan(adapter.dump_python(value))
        return adapter.dump_python(value, mode="json", by_alias=True)
    if isinstance(value, dict):
        dumped = {_key(key): _dumped(item) for key, item in value.items()}
        if len(dumped) != len(value):
            raise ValueError("two keys of one dict are the same in JSON")
        return dumped
    if isinstance(value, list | tuple):
        return [_dumped(item) for item in value]
    return value


def _refuse_nan(plain: object) -> None:
    """pydantic would write null for a NaN in an untyped field, and nobody would know."""
    pending = [plain]
    while pending:
        value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a JSON number")
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            pending.extend(value)


def _key(key: object) -> str:
    """A key as the json module writes it; its own sorting refuses keys of several types."""
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key, allow_nan=False)
    raise TypeError(f"a dict has a key of type {type(key).__name__}")


@lru_cache(maxsize=limits.HANDLER_CACHE)
def _adapter(of: type) -> TypeAdapter[Any]:
    return TypeAdapter(of)


def check_output(spec: CapabilitySpec, result: ToolResult, returned: object) -> ToolResult:
    """The result of a returned value, or what the model is told where it does not fit the declared schema."""
    if spec.output_schema is None:
        return result
    value = result.structured[0] if result.structured is not None else returned
    try:
        problems = output_problems(spec, value)
    except RecursionError:
        problems = ("the schema refers to itself without end for this value",)
    if problems:
        return output_invalid("the result does not match the declared schema: " + "; ".join(problems))
    return result


def output_invalid(text: str) -> ToolResult:
    """The call was carried out, and what it gave back is nothing that the model can have."""
    message = text[: limits.TOOL_MESSAGE_CHARS_MAX]
    return failed(Failure(Code.TOOL_OUTPUT_INVALID, Category.PROTOCOL, message, Executed.EXECUTED))


def _message(error: BaseException) -> str:
    try:
        return conceal_known(str(error))
    except Exception:  # noqa: BLE001  (a foreign __str__)
        return "(its message cannot be read)"
