"""Functions that the tests of this folder declare and call; they are named, never imported, as tools."""

import contextvars
import enum
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

from pydantic import BaseModel, Field

from agentloom_worker.cancellation import Cancellation, CancelReason
from agentloom_worker.capabilities import ToolContext
from agentloom_worker.errors import CallError, Code

BOUND_S = 30.0  # no test waits longer for anything


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    """A thing to buy."""

    name: str
    count: int = 1


class Bag(BaseModel):
    anything: Any


@dataclass
class Point:
    x: int
    at: date


class Latches:
    """What tests and tools wait on; fresh for every test."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()
        self.left = threading.Event()
        self.cancellation = Cancellation()
        self.value: Any = None


latches = Latches()


def look(path: str, context: ToolContext, limit: int = 5, *, item: Item | None = None) -> str:
    """Look at a path.

    Says what it was given.
    """
    return f"{path}:{limit}:{item!r}:{context.attempt_no}:{context.idempotency_key}"


def odd_names(json: int, copy: str = "c", _private: Annotated[float, Field(ge=1)] = 2.0) -> list[object]:
    return [json, copy, _private]


def field_default(count: int = Field(5, ge=1, description="How many.")) -> int:
    return count


def typed(on: date, colour: Colour, items: list[Item]) -> list[str]:
    return [type(on).__name__, type(colour).__name__, *(type(item).__name__ for item in items)]


def nothing() -> None:
    """Does nothing."""


def untyped(path, limit: int = 1):  # type: ignore[no-untyped-def]
    return path, limit


def spread(*paths: str, **more: int) -> None: ...


def positional(path: str, /) -> None: ...


def two_contexts(first: ToolContext, second: ToolContext) -> None: ...


def no_schema(lock: threading.Lock, ok: int) -> None: ...


async def asynchronous() -> None: ...


def generator() -> Iterator[int]:
    yield 1


def unknown_annotation(path: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def raw(arguments: Any = None, **keywords: Any) -> dict[str, Any]:
    return {"arguments": arguments, **keywords}


def exact(path: str, limit: int) -> str:
    return f"{path}{limit}"


def give() -> Any:
    return latches.value


def throw() -> None:
    raise latches.value


def hang(context: ToolContext) -> str:
    latches.value = (context, threading.current_thread())
    latches.entered.set()
    latches.release.wait(BOUND_S)
    latches.left.set()
    return "late"


def obey(context: ToolContext) -> str:
    latches.entered.set()
    if not context.cancelled.wait(BOUND_S):
        return "was not told"
    return "told"


def obey_by_raising(context: ToolContext) -> str:
    latches.entered.set()
    context.cancelled.wait(BOUND_S)
    raise KeyError("stopped in the middle")


def whoami() -> str:
    return str(threading.get_ident())


def read_and_set_variable(value: str) -> str:
    found = variable.get()
    variable.set(value)
    return found


def refuse() -> None:
    raise CallError(Code.INVALID_OFFSET, "the shop is closed")


def cancel_and_take(seconds: float, context: ToolContext) -> str:
    latches.cancellation.cancel(CancelReason.STOP)
    context.clock.advance(seconds)  # type: ignore[attr-defined]
    return "done"


def take(seconds: float, context: ToolContext) -> str:
    context.clock.advance(seconds)  # type: ignore[attr-defined]
    return "done"


class Callable:
    def __call__(self, path: str) -> str:
        return path


an_object = Callable()
a_number = 7
