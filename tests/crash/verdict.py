"""The audit of a case's database: the one place where the crash suite asks for it."""

from importlib import import_module
from typing import Final

from agentloom_worker.runtime.ports import Ports

# True as soon as agentloom_worker.audit has `run_audit`; test_crash.py fails while the two disagree.
AUDITED: Final = False


def audit_is_built() -> bool:
    """Whether there is an audit to ask."""
    return hasattr(import_module("agentloom_worker.audit"), "run_audit")


def audit_findings(ports: Ports) -> tuple[str, ...]:
    """What the audit finds in a database at rest; nothing is expected."""
    if not AUDITED:
        return ()
    run_audit = import_module("agentloom_worker.audit").run_audit
    return tuple(str(finding) for finding in run_audit(ports))
