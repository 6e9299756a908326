"""The audit of a case's database: the one place where the crash suite asks for it."""

from agentloom_worker.audit import run_audit
from agentloom_worker.runtime.ports import Ports


def audit_findings(ports: Ports) -> tuple[str, ...]:
    """What the audit finds in a database at rest; nothing is expected."""
    findings = run_audit(ports)
    return tuple(f"{finding.invariant} {finding.subject}: {finding.detail}" for finding in findings)
