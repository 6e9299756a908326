"""`agentloom audit`: are all invariants true of this database?"""

from dataclasses import dataclass

import typer

from agentloom_worker.audit import INVARIANTS, Finding, run_audit
from agentloom_worker.cli.output import print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson, Database, Embedded, Place, locate, open_to_look


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an audit found; `ok` where it found nothing."""

    ok: bool
    invariants: int
    findings: tuple[Finding, ...]

    @property
    def words(self) -> str:
        """The verdict in a line."""
        found = "all hold" if self.ok else f"{len(self.findings)} finding(s)"
        return f"audit: {self.invariants} invariants checked, {found}"


def reach_verdict(place: Place) -> Verdict:
    """Read a store and check every invariant; it writes nothing."""
    with open_to_look(place) as loom:
        findings = tuple(run_audit(loom.ports.store))
    return Verdict(not findings, len(INVARIANTS), findings)


def audit(embedded: Embedded = None, database: Database = None, as_json: AsJson = False) -> None:
    """Check every invariant by reading the database; exit code 1 if one is broken."""
    verdict = reach_verdict(locate(embedded, database))
    if as_json:
        print_json(verdict)
    else:
        if verdict.findings:
            rows = [(finding.invariant, finding.subject, finding.detail) for finding in verdict.findings]
            print_table(("invariant", "subject", "detail"), rows)
        print_text(verdict.words)
    if not verdict.ok:
        raise typer.Exit(1)
