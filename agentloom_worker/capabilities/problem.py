"""What is wrong with a declared capability: every problem with its place, all of them at once."""

from collections.abc import Iterable
from dataclasses import dataclass

from agentloom_worker.errors import Code, RequestError


@dataclass(frozen=True, slots=True)
class DeclarationProblem:
    """One problem. `path` starts at the capability: `handler/limit`, `input_schema/properties/x/$ref`."""

    path: str
    text: str


class DeclarationError(RequestError):
    """A capability cannot be declared as asked; `problems` is never empty."""

    def __init__(self, key: str, problems: Iterable[DeclarationProblem]) -> None:
        self.key = key
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem.path}: {problem.text}" for problem in self.problems)
        super().__init__(Code.RELEASE_INVALID, f"capability {key!r} has {len(self.problems)} problem(s):\n{lines}")
