"""Resolve a credential by reference, at the attempt and only there: the secret is in no row, log or error."""

import os
from pathlib import Path

from agentloom_worker import limits
from agentloom_worker.errors import Code, RunError


def resolve_credential(reference: str) -> str:
    """Read the secret of `env:NAME` or `file:PATH`, without surrounding white space.

    Raises RunError(CREDENTIAL_UNAVAILABLE). Its message names the reference, never what it holds; and not
    even the reference when that has no known scheme, since then it may be a key somebody pasted.
    """
    scheme, _, target = reference.partition(":")
    match scheme:
        case "env":
            secret = os.environ.get(target, "")
        case "file":
            secret = _read_file(reference, Path(target))
        case _:
            raise RunError(Code.CREDENTIAL_UNAVAILABLE, "a credential reference must begin with 'env:' or 'file:'")
    secret = secret.strip()
    if not secret:
        raise RunError(Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} is not set or empty")
    if not (secret.isascii() and secret.isprintable()):
        raise RunError(Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} holds characters that no header can carry")
    return secret


def _read_file(reference: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limits.CREDENTIAL_BYTES_MAX).decode("ascii", "replace")
    except (OSError, ValueError) as error:
        # The cause is cut off (`from None`): tracebacks are kept with parked steps.
        reason = type(error).__name__
        raise RunError(Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} cannot be read: {reason}") from None
