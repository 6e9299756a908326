"""`agentloom models`: the profiles, what an endpoint says it has, and how it answers to one small call."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from agentloom_worker.cli.output import print_json, print_table, print_text
from agentloom_worker.cli.place import AsJson
from agentloom_worker.client import read_release
from agentloom_worker.clock import SystemClock
from agentloom_worker.errors import Code, RequestError, RunError
from agentloom_worker.http.credentials import installed_providers, resolve_credential
from agentloom_worker.llm import discover as discovery
from agentloom_worker.llm import probe as probing
from agentloom_worker.llm.endpoint import Endpoint, EndpointClient, shown
from agentloom_worker.llm.profiles import PROFILES, Profile, profile_of
from agentloom_worker.llm.profiles.custom import CUSTOM
from agentloom_worker.llm.profiles.generic import GENERIC
from agentloom_worker.runtime.publish import resolve_model
from agentloom_worker.secrecy import conceal_known, conceal_value, known_secrets

app = typer.Typer(help="Profiles of model providers, and what an endpoint has.", no_args_is_help=True)

_LONGEST_S = 86_400.0

BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="The endpoint; else the profile's own address.")
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="How the provider is spoken to; generic.")
]
Credential = Annotated[
    str | None,
    typer.Option(
        "--credential",
        metavar="REF",
        help="Where the key is found: env:NAME, file:PATH, or PROVIDER:NAME of an installed provider.",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="ID",
        help="The provider's id of the model; with --release a key of its models, or its agent's.",
    ),
]
ReleaseFile = Annotated[
    Path | None,
    typer.Option(
        "--release", metavar="FILE", help="Ask as a run of this release would: its model entry says the rest."
    ),
]
ProtocolName = Annotated[
    str | None,
    typer.Option("--protocol", metavar="NAME", help=f"{' or '.join(probing.PROTOCOLS)}; else the profile's first."),
]
FirstOutput = Annotated[
    float | None,
    typer.Option(
        "--first-output",
        metavar="SECONDS",
        min=0.001,
        max=_LONGEST_S,
        help=f"How long to wait for the first output; {probing.BOUNDS.first_output_s:g}, or what the release says.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.001, max=_LONGEST_S, help="How long the whole call may take."),
]


class _Asking(TyperCommand):
    """A command that takes a credential: its help names the providers that are installed here, and looks only then."""

    @property
    def epilog(self) -> str | None:
        """What stands below the options."""
        installed = ", ".join(installed_providers()) or "none"
        return f"Credential providers installed here: {installed} (docs/credentials.md)."

    @epilog.setter
    def epilog(self, text: str | None) -> None:
        """Typer sets what a command was given, which is nothing."""


@app.callback()
def models() -> None:
    """Profiles of model providers, and what an endpoint has."""


@app.command("profiles")
def profiles(as_json: AsJson = False) -> None:
    """List the profiles with their flags, the facts they stand on and the pages that say so."""
    if as_json:
        print_json({"profiles": [_document(profile) for profile in PROFILES.values()]})
        return
    print_table(
        ("profile", "version", "protocols", "address", "order of roles", "reasoning back", "parameters"),
        [
            (
                profile.name,
                profile.version,
                ", ".join(profile.protocols or ("any",)),
                profile.base_url or "none: name one",
                _roles(profile),
                _reasoning(profile),
                "any" if profile.parameters is None else len(profile.parameters),
            )
            for profile in PROFILES.values()
        ],
    )
    for profile in PROFILES.values():
        print_text(f"\n{profile.name}")
        for other in profile.other_addresses:
            print_text(f"  address {other.base_url}: {other.text}\n    {other.source}")
        for fact in profile.facts:
            print_text(f"  {fact.text}\n    {fact.source}")
        for known in profile.models:
            print_text(f"  model {known.model}: {_numbers(known.context_window_tokens, known.max_output_tokens)}")
            print_text(f"    {known.source}")


@app.command("discover", cls=_Asking)
def discover(
    base_url: BaseUrl = None, profile: ProfileName = None, credential: Credential = None, as_json: AsJson = False
) -> None:
    """List the models that an endpoint says it has. A window that nobody tells is unknown; none is guessed."""
    with _asking(base_url, _profile_of(profile), credential) as (client, endpoint):
        found = conceal_value(discovery.discover(client, endpoint), known_secrets())
    if as_json:
        print_json({"base_url": _address(endpoint), "profile": endpoint.profile.name, "models": found})
        return
    print_table(
        ("id", "window", "maximum output", "told by", "features"),
        [
            (
                one.provider_model_id,
                one.context_window_tokens or "unknown",
                one.max_output_tokens or "unknown",
                f"{one.metadata_source.value}: {one.told_by}" if one.told_by else None,
                ", ".join(one.supported_features),
            )
            for one in found
        ],
    )


@app.command("probe", cls=_Asking)
def probe(
    *,
    model: ModelName = None,
    release: ReleaseFile = None,
    base_url: BaseUrl = None,
    profile: ProfileName = None,
    protocol: ProtocolName = None,
    credential: Credential = None,
    first_output: FirstOutput = None,
    timeout: Timeout = probing.BOUNDS.total_s,
    as_json: AsJson = False,
) -> None:
    """Make one small call with a tool, and show what it showed and what it could not. It may cost a few tokens.

    Exit code 1 where the answer contradicts the profile.
    """
    if release is None:
        subject = _described(model, base_url, profile, protocol, credential)
    else:
        _refuse_beside_release(base_url=base_url, profile=profile, protocol=protocol, credential=credential)
        subject = _released(release, model)
    bounds = probing.Bounds(first_output or subject.first_output_s, timeout)
    with _asking(subject.base_url, subject.profile, subject.credential) as (client, endpoint):
        asked = probing.probe(
            client,
            endpoint,
            subject.model,
            protocol=subject.protocol,
            parameters=subject.parameters,
            bounds=bounds,
        )
        found = conceal_value(asked, known_secrets())
    if as_json:
        named = {"base_url": _address(endpoint), "profile": subject.profile.name, "model": subject.model}
        print_json({**named, **_shown(found)})
    else:
        print_table(("about", "found", "what was seen"), [(one.about, one.found, one.detail) for one in found.findings])
        for sentence in found.contradictions:
            print_text(f"contradiction: {sentence}")
        print_text("\nnot shown by a call:")
        for sentence in found.not_shown:
            print_text(f"  {sentence}")
    if found.contradictions:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What is probed, as the options describe it or as a release says it."""

    profile: Profile
    model: str
    base_url: str | None
    protocol: str | None
    credential: str | None
    parameters: probing.ExtraParameters | None = None
    first_output_s: float = probing.BOUNDS.first_output_s


def _described(
    model: str | None, base_url: str | None, profile: str | None, protocol: str | None, credential: str | None
) -> _Subject:
    if model is None:
        raise RequestError(Code.INPUT_INVALID, "say --model, or --release FILE")
    if profile == CUSTOM.name:
        raise RequestError(Code.INPUT_INVALID, "profile custom has its flags in a release: say --release FILE")
    return _Subject(_profile_of(profile), model, base_url, protocol, credential)


def _refuse_beside_release(**options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise RequestError(
                Code.INPUT_INVALID, f"{option} stands in the release: leave it out, or leave out --release"
            )


def _released(file: Path, key: str | None) -> _Subject:
    """A model entry as a run is given it: validated, with the flags of its dialect."""
    bound = resolve_model(read_release(file), key)
    profile = profile_of(bound.profile, bound.dialect, encrypted_reasoning=bound.encrypted_reasoning)
    assert profile is not None, "the release was checked"
    return _Subject(
        profile,
        bound.model,
        bound.base_url,
        bound.protocol,
        bound.credential_ref,
        bound.parameters,
        bound.first_output_timeout_ms / 1000,
    )


def _profile_of(name: str | None) -> Profile:
    profile = PROFILES.get(name or GENERIC.name)
    if profile is None:
        raise RequestError(Code.INPUT_INVALID, f"no profile {name}: there are {', '.join(PROFILES)}")
    return profile


@contextmanager
def _asking(
    base_url: str | None, profile: Profile, credential: str | None
) -> Iterator[tuple[EndpointClient, Endpoint]]:
    address = base_url or profile.base_url
    if address is None:
        raise RequestError(Code.INPUT_INVALID, f"profile {profile.name} has no address of its own: say --base-url")
    try:
        key = None if credential is None else resolve_credential(credential)
    except RunError as error:
        raise RequestError(error.code, error.message) from None
    client = EndpointClient(SystemClock())
    try:
        yield client, Endpoint(address, profile, key)
    except RequestError as error:
        # An endpoint may answer with the key that it was asked with.
        raise RequestError(error.code, conceal_known(error.message)) from None
    finally:
        client.close()


def _address(endpoint: Endpoint) -> str:
    """What was asked, without what may be a secret in it."""
    return conceal_known(shown(endpoint.url("")))


def _document(profile: Profile) -> dict[str, object]:
    named = {name: getattr(profile, name) for name in Profile.__slots__}
    for name in ("parameters", "responses_parameters", "unsupported"):
        named[name] = None if named[name] is None else sorted(named[name])
    return named


def _shown(found: probing.Probe) -> dict[str, object]:
    return {
        "protocol": found.protocol,
        "findings": found.findings,
        "contradictions": found.contradictions,
        "not_shown": found.not_shown,
    }


def _roles(profile: Profile) -> str:
    if profile.strict_alternation:
        return "alternating"
    return "free" if profile.mid_system else "one system message"


def _reasoning(profile: Profile) -> str:
    return profile.reasoning_replay.value + ("; sealed if asked" if profile.encrypted_replay else "")


def _numbers(window: int | None, output: int | None) -> str:
    return f"window {window or 'unknown'}, maximum output {output or 'unknown'}"
