"""What a check found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """`subject` names the row as `kind id`, `detail` what is wrong with it."""

    subject: str
    detail: str
