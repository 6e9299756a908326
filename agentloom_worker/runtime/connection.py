"""A model connection, and how a limit names it: an endpoint, a model there, a credential there, or both.

Written `ENDPOINT[/MODEL][@CREDENTIAL]`. No endpoint holds a `/` or an `@`, so the first of them ends it. The model goes
up to the first `@`: one that is part of a model's id is written `%40`, as a blank is `%20` and a percent sign `%25`.
What stands behind the `@` is a reference as a release has it (docs/credentials.md). `*` is each endpoint without a
limit of its own; one for a model or a credential there is none for the endpoint.
"""

import re
import string
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlsplit

from agentloom_worker.domain.release import ModelBinding
from agentloom_worker.wire.release_check import CREDENTIAL

ANY_ENDPOINT = "*"
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_LAST_DOT = re.compile(r"\.(?=$|:)")
_ENDPOINT = r"script:[A-Za-z0-9_.-]+|(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?"
_NAME = re.compile(rf"(?P<endpoint>\*|{_ENDPOINT})(?:/(?P<model>[^\s@]+))?(?:@(?P<credential>\S+))?")
_PLAIN = string.punctuation.replace("%", "").replace("@", "")


def endpoint_of(base_url: str) -> str:
    """Host and port as the address has them; all of an address without a host.

    Spellings of one address are one endpoint: case, a dot behind the host and the scheme's own port mean nothing.
    Another name of the same host is another endpoint, for nobody here asks who stands behind a name.
    """
    address = urlsplit(base_url)
    if not address.netloc:
        return base_url.lower()
    place = address.netloc.rpartition("@")[2].lower()
    for own_port in (f":{_DEFAULT_PORTS.get(address.scheme, '')}", ":"):
        place = place.removesuffix(own_port)
    return _LAST_DOT.sub("", place)


def read_name(written: str) -> str:
    """The one spelling of a limit's name. Raises ValueError, without quoting it, for what names no connection."""
    found = _NAME.fullmatch(written)
    if found is None:
        raise ValueError("names no host[:port], host[:port]/model, host[:port]@credential or `*`")
    endpoint, model, credential = found.group("endpoint", "model", "credential")
    if endpoint == ANY_ENDPOINT and found.group() != ANY_ENDPOINT:
        raise ValueError("limits a model or a credential at `*`: name the endpoint")
    credential = None if credential is None else unquote(credential)
    if credential is not None and not re.fullmatch(CREDENTIAL, credential):
        raise ValueError(
            "has no credential reference (env:NAME, file:/path, provider:name) behind its `@`;"
            " write %40 for one in a model's id"
        )
    return endpoint.lower() + _behind_endpoint(None if model is None else unquote(model), credential)


def limits_on(limits: Mapping[str, int], model: ModelBinding) -> dict[str, int]:
    """Every limit that names a model's connection: what it counts under → its number, the narrowest first.

    `limits` has names as `read_name` spells them. What counts for `*` counts under each endpoint alone.
    """
    if not limits:
        return {}
    endpoint = endpoint_of(model.base_url)
    spelt_out = f"{endpoint}:{_DEFAULT_PORTS.get(urlsplit(model.base_url).scheme, '')}"
    found: dict[str, int] = {}
    credentials = (None,) if model.credential_ref is None else (model.credential_ref, None)
    for wanted, credential in ((wanted, one) for wanted in (model.model, None) for one in credentials):
        rest = _behind_endpoint(wanted, credential)
        for name in (endpoint + rest, spelt_out + rest, ANY_ENDPOINT + rest):
            if name in limits:
                found[endpoint + rest] = limits[name]
                break
    return found


def _behind_endpoint(model: str | None, credential: str | None) -> str:
    named = "" if model is None else f"/{quote(model, safe=_PLAIN)}"
    return named if credential is None else f"{named}@{quote(credential, safe=_PLAIN)}"
