"""What is wrong with a candidate answer, and what the model is told of it (seed 004, 6.3)."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentloom_worker.canonical import canonical_bytes

_CORRECTION = (
    "The answer was not accepted. It must be one JSON text that is valid against the output schema, with nothing"
    " before or after it. Correct what is listed and answer again.\n"
)


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One thing that is wrong. It repeats no value of the candidate, only names of its properties.

    `json_pointer` (RFC 6901) leads into the candidate, "" is all of it. `keyword` is the schema's, or one of
    `json`, `size`, `depth`, `work`, `empty`, `refusal`, `truncated`, `false`. `expected` is the keyword's value as
    JSON text. Each text has at most OUTPUT_ISSUE_CHARS_MAX characters; a longer one ends with `…`.
    """

    json_pointer: str
    keyword: str
    message: str
    expected: str | None = None


@dataclass(frozen=True, slots=True)
class OutputValidation:
    """The verdict on one candidate: no issue means that it is valid.

    `issues` are ordered by pointer and keyword; `more` says that there are others beyond OUTPUT_ISSUES_MAX.
    """

    issues: tuple[ValidationIssue, ...] = ()
    more: bool = False

    @property
    def valid(self) -> bool:
        """Whether the candidate is an answer."""
        return not self.issues


def correction_text(validation: OutputValidation, schema: Mapping[str, object]) -> str:
    """What the model is told of a candidate that is no answer; the same verdict and schema give the same text."""
    listed = [
        {
            "json_pointer": issue.json_pointer,
            "keyword": issue.keyword,
            "message": issue.message,
            **({} if issue.expected is None else {"expected": issue.expected}),
        }
        for issue in validation.issues
    ]
    document: dict[str, object] = {"issues": listed, "output_schema": dict(schema)}
    if validation.more:
        document["more_issues"] = True
    return _CORRECTION + canonical_bytes(document).decode()
