"""Resolve a credential by reference, at the attempt and only there: the secret is in no row, log or error.

`env:NAME` and `file:PATH` are built in. `NAME:rest` asks the provider that a package installs under NAME in the entry
point group `agentloom.credentials` (docs/credentials.md).
"""

import math
import os
import re
import threading
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from agentloom_worker import limits
from agentloom_worker.errors import Code, RunError
from agentloom_worker.secrecy import keep_secret

ENTRY_POINT_GROUP = "agentloom.credentials"
BUILT_IN = frozenset({"env", "file"})
_PROVIDER = re.compile(r"[a-z][a-z0-9]{1,31}", re.ASCII)


class CredentialProvider(Protocol):
    """What an entry point of the group `agentloom.credentials` names: a callable, shared by all threads."""

    def __call__(self, name: str, /) -> str:
        """The secret that stands behind `PROVIDER:name`, now.

        Called at each attempt, in its thread, and by `learn_secrets`: it bounds its own waits, and keeps what it likes
        for as long as a revocation may take. Raises CredentialRevokedError, LookupError for a name that it does not
        know, and anything else where it cannot tell now.
        """
        ...


class CredentialRevokedError(Exception):
    """Raised by a provider: the credential existed and must not be used any more. Its text is not shown."""


class CredentialError(RunError):
    """There is no secret to send: nothing was begun. `transient`: the next attempt may find one."""

    def __init__(self, code: Code, message: str, *, transient: bool = False) -> None:
        super().__init__(code, message)
        self.transient = transient


def resolve_credential(reference: str) -> str:
    """Read the secret of a reference, without surrounding white space.

    Raises CredentialError with CREDENTIAL_UNAVAILABLE or CREDENTIAL_REVOKED. Its message names the reference, never
    what it holds; and not even the reference when that has no known scheme, since then it may be a key somebody pasted.
    """
    scheme, _, target = reference.partition(":")
    match scheme:
        case "env":
            secret = os.environ.get(target, "")
        case "file":
            secret = _read_file(reference, Path(target))
        case _:
            secret = _ask_provider(_find_provider(scheme), reference, target)
    secret = secret.strip()
    if not secret:
        raise CredentialError(Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} is not set or empty")
    # Before it is looked at any closer, so that no text about it can carry it.
    keep_secret(secret)
    if not (secret.isascii() and secret.isprintable()):
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} holds characters that no header can carry"
        )
    return secret


def learn_secrets(references: Iterable[str], now_s: float) -> None:
    """Read secrets only to know them where somebody says them aloud (secrecy.py); one that cannot be had is left out.

    `now_s` is a monotonic clock's. A provider, which may be far away, is asked once a process for each name; where it
    could not tell, again after a while.
    """
    for reference in references:
        if _ask_again_s.get(reference, now_s) > now_s:
            continue
        again_s = math.inf
        try:
            resolve_credential(reference)
        except CredentialError as error:
            if error.transient:
                again_s = now_s + limits.CREDENTIAL_LEARN_PAUSE_S
        if reference.partition(":")[0] not in BUILT_IN:
            _ask_again_s[reference] = again_s


def installed_providers() -> tuple[str, ...]:
    """The names under which a reference reaches a provider here, whether it works or not."""
    names = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return tuple(sorted(name for name in names - BUILT_IN if _PROVIDER.fullmatch(name)))


def _read_file(reference: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limits.CREDENTIAL_BYTES_MAX).decode("ascii", "replace")
    except (OSError, ValueError) as error:
        # The cause is cut off (`from None`): tracebacks are kept with parked steps.
        reason = type(error).__name__
        raise CredentialError(Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} cannot be read: {reason}") from None


_providers: dict[str, CredentialProvider] = {}
_ask_again_s: dict[str, float] = {}
_loading = threading.Lock()


def _find_provider(name: str) -> CredentialProvider:
    """The provider of a name, imported once a process."""
    if not _PROVIDER.fullmatch(name):
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE,
            "a credential reference must begin with 'env:', 'file:' or the name of an installed provider",
        )
    with _loading:
        provider = _providers.get(name)
        if provider is None:
            provider = _providers[name] = _load_provider(name)
    return provider


def _load_provider(name: str) -> CredentialProvider:
    found = {point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if not found:
        # Not named: it may be the beginning of a key that somebody pasted.
        installed = ", ".join(installed_providers()) or "none"
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE,
            "the provider of a credential reference is not installed where this attempt runs: install its package"
            f" (entry point group {ENTRY_POINT_GROUP}; here: {installed})",
        )
    if len(found) > 1:
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE,
            f"several packages install the credential provider {name}: {', '.join(sorted(found))}",
        )
    try:
        loaded = next(iter(found.values())).load()
    except Exception as error:  # noqa: BLE001 - whatever somebody else's module raises when it is imported
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE, f"the credential provider {name} cannot be imported: {type(error).__name__}"
        ) from None
    if not callable(loaded):
        raise CredentialError(Code.CREDENTIAL_UNAVAILABLE, f"the credential provider {name} is not callable")
    provider: CredentialProvider = loaded
    return provider


def _ask_provider(provider: CredentialProvider, reference: str, name: str) -> str:
    try:
        secret: object = provider(name)
    except CredentialRevokedError:
        raise CredentialError(Code.CREDENTIAL_REVOKED, f"credential {reference} was revoked") from None
    except LookupError:
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE, f"credential {reference} is not known to its provider"
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever somebody else's provider raises; its text may hold the secret
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE,
            f"the provider of credential {reference} failed: {type(error).__name__}",
            transient=True,
        ) from None
    if not isinstance(secret, str):
        raise CredentialError(
            Code.CREDENTIAL_UNAVAILABLE, f"the provider of credential {reference} gave a {type(secret).__name__}"
        )
    return secret
