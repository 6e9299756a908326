"""`agentloom audit`: are all invariants true of this database?"""

from dataclasses import dataclass
from typing import Annotated

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


def reach_verdict(place: Place, run: str | None = None) -> Verdict:
    """Read a store, or one run of it, and check every invariant; it writes nothing."""
    with open_to_look(place) as loom:
        findings = run_audit(loom.ports, run_id=None if run is None else loom.run(run).run_id)
    return Verdict(not findings, len(INVARIANTS), findings)


def audit(
    *,
    embedded: Embedded = None,
    database: Database = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only this run and its session.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check every invariant by reading the database; exit code 1 if one is broken."""
    verdict = reach_verdict(locate(embedded, database), run)
    if as_json:
        print_json(verdict)
    else:
        if verdict.findings:
            rows = [(finding.invariant, finding.subject, finding.detail) for finding in verdict.findings]
            print_table(("invariant", "subject", "detail"), rows)
        print_text(verdict.words)
    if not verdict.ok:
        raise typer.Exit(1)
