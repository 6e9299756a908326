"""Findings, and what an invariant looks at. No finding holds a body or a secret: ids, numbers, codes and hashes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentloom_worker.audit.facts import RunFacts
from agentloom_worker.audit.fault import Fault
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.storage.audit_rows import SessionRows


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant: its name in INVARIANTS, the row that shows it, and how."""

    invariant: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class OfRun:
    """Holds for each run by itself; the facts are one snapshot."""

    check: Callable[[RunFacts], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class OfSession:
    """Holds for each session; the rows are one snapshot."""

    check: Callable[[SessionRows], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class OfDatabase:
    """Holds across runs and owners; left out of the audit of a single run."""

    check: Callable[[Ports], Iterator[Fault]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """`source` says where the rule is laid down."""

    description: str
    source: str
    scope: OfRun | OfSession | OfDatabase
