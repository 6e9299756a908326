"""What an endpoint says it has: its list of models, and of each what it tells, never what is guessed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agentloom_worker import limits
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.llm.endpoint import Endpoint, EndpointClient, shown
from agentloom_worker.llm.profiles import KnownModel

# Under these names servers tell the window that they serve; the training context of a model is none of them.
_WINDOW_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
_OUTPUT_FIELDS = ("max_output_tokens", "max_completion_tokens", "top_provider.max_completion_tokens")
_FEATURE_FIELDS = ("supported_parameters", "capabilities", "architecture.input_modalities")
_PROPS_WINDOW = "default_generation_settings.n_ctx"


class MetadataSource(StrEnum):
    """Who says how large a model's window is."""

    PROVIDER = "provider"
    PROFILE = "profile"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ModelDescriptor:
    """One model as its endpoint lists it (seed 004, 6.1). `told_by` is the field or the page that says the window."""

    provider_model_id: str
    context_window_tokens: int | None
    max_output_tokens: int | None
    supported_features: tuple[str, ...]
    metadata_source: MetadataSource
    told_by: str | None


def discover(client: EndpointClient, endpoint: Endpoint) -> tuple[ModelDescriptor, ...]:
    """The endpoint's models by id. What it does not tell is taken from the profile's documented facts, or unknown.

    Raises RequestError where it cannot be asked or does not answer with a list of models.
    """
    document = client.get_json(endpoint, "/models", timeout_s=limits.DISCOVER_TIMEOUT_S)
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise RequestError(Code.MODEL_PROTOCOL_ERROR, f"{shown(endpoint.url('/models'))} lists no models")
    served = _served_window(client, endpoint)
    found = [
        _described(entry, endpoint.profile.known_model(entry["id"]), served)
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    return tuple(sorted(found, key=lambda one: one.provider_model_id))


def _described(
    entry: Mapping[str, object], known: KnownModel | None, served: tuple[int, str] | None
) -> ModelDescriptor:
    window, output = served or _first_count(entry, _WINDOW_FIELDS), _first_count(entry, _OUTPUT_FIELDS)
    source = MetadataSource.PROVIDER
    if window is None and known is not None and known.context_window_tokens is not None:
        window, source = (known.context_window_tokens, known.source), MetadataSource.PROFILE
    if output is None and known is not None and known.max_output_tokens is not None:
        output = (known.max_output_tokens, known.source)
    return ModelDescriptor(
        str(entry["id"]),
        None if window is None else window[0],
        None if output is None else output[0],
        tuple(sorted({feature for name in _FEATURE_FIELDS for feature in _texts(_at(entry, name))})),
        MetadataSource.UNKNOWN if window is None else source,
        None if window is None else window[1],
    )


def _served_window(client: EndpointClient, endpoint: Endpoint) -> tuple[int, str] | None:
    """What a server tells beside its list, where its profile knows the place; None where it does not."""
    path = endpoint.profile.props_path
    if path is None:
        return None
    try:
        props = client.get_json(endpoint.root(), path, timeout_s=limits.DISCOVER_TIMEOUT_S)
    except RequestError:
        return None  # It may be switched off, or need a key of its own; the list stands without it.
    return _first_count(props, (_PROPS_WINDOW,)) if isinstance(props, dict) else None


def _first_count(entry: Mapping[str, object], names: tuple[str, ...]) -> tuple[int, str] | None:
    for name in names:
        value = _at(entry, name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value, name
    return None


def _at(value: object, dotted: str) -> object:
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
