"""What an operator sets: every variable of the environment that a process of the fleet reads, documented.

The environment alone, so that a container needs no file. A URL may hold a password and is masked wherever it
is shown. Nothing here changes what a run does, only where, how fast and how often.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from agentloom_worker import limits
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.runtime.connection import read_name
from agentloom_worker.runtime.ports import KeepTransport, Settings

PREFIX = "AGENTLOOM_"
# Read elsewhere: the command line's own store, and what a process hands to its solitary child.
_OTHER_VARIABLES = (f"{PREFIX}EMBEDDED", f"{PREFIX}SETTINGS")
_OF_TESTS = (f"{PREFIX}TEST_", f"{PREFIX}SOAK_")
_CLOSE = 0.75
_REDIS_SCHEMES = ("redis://", "rediss://", "sentinel://")
_SCHEMES = (*_REDIS_SCHEMES, "amqp://", "amqps://")
_VALKEY = ("valkey://", "valkeys://")


def _check_address(address: str) -> None:
    """Refuse what libraries stumble over, whose words then quote the password. Raises ValueError without it."""
    try:
        split = urlsplit(address)
        readable = bool(split.hostname) and (split.port is None or split.port > 0)
    except ValueError:
        readable = False
    if not readable or "#" in address:
        raise ValueError(
            "its host or port cannot be read: write special characters of a password as %XX (# is %23, / is %2F)"
        )
    if any(name.lower() in ("password", "username") for name, _ in parse_qsl(split.query)):
        raise ValueError("name user and password before the @, not as parameters")


class FleetSettings(BaseSettings):
    """Read once, when a process starts. `load_settings` turns what is wrong into a RequestError."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True, hide_input_in_errors=True)

    database: SecretStr = Field(
        default=SecretStr("postgresql://127.0.0.1:5432/agentloom"),
        description="The database that holds everything: postgresql://user:password@host/name, reached directly or "
        "through session pooling (prepared statements rule out transaction pooling).",
    )
    broker: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        description="Carries wake-ups and commands: redis://, rediss://, valkey:// or valkeys://, "
        "sentinel://host:26379;sentinel://host:26379 or amqp://. Losing it loses time, never work.",
    )
    redis: SecretStr | None = Field(
        default=None,
        description="The Redis of the lease fast path: wake-ups that somebody has, cancel push, lanes; an address "
        "as the broker's. Unset: the broker, where that is a Redis; else none, and PostgreSQL alone decides.",
    )
    key_prefix: str = Field(
        default="agentloom:",
        max_length=64,
        description="Stands before every Redis key, the broker's too. The same in every process of a fleet.",
    )
    queue_prefix: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Stands before every queue's name, for a RabbitMQ virtual host that others use as well. "
        "The names after -Q carry it too.",
    )
    sentinel_master: str = Field(
        default="mymaster",
        min_length=1,
        description="The master's name, where the broker or the Redis is a sentinel:// address.",
    )
    database_connections: int = Field(
        default=20,
        ge=8,
        le=500,
        description="At most so many connections a process. None is held while a model or a tool is awaited, so "
        "20 serve 200 streams.",
    )
    inline_hops: int = Field(
        default=limits.INLINE_HOPS,
        ge=0,
        description="So many further steps one wake-up may carry a run through without the broker.",
    )
    inline_ms: int = Field(
        default=limits.INLINE_MS,
        ge=0,
        description="So many milliseconds one wake-up may do so before others get a turn.",
    )
    fusion: bool = Field(
        default=True,
        description="Whether pure steps share the commit of the effect before them. For tests: leave it on.",
    )
    claim_ttl_s: float = Field(
        default=limits.CLAIM_TTL_S,
        gt=0,
        description="A claim that was not renewed for so long may be taken over. The same in every process.",
    )
    claim_renew_s: float = Field(
        default=limits.CLAIM_RENEW_S,
        gt=0,
        description="How often claims are renewed; at most a third of the time above.",
    )
    suspect_grace_s: float = Field(
        default=limits.SUSPECT_GRACE_S,
        gt=0,
        description="An expired claim stays suspect for so long before it is taken.",
    )
    sweep_tick_s: float = Field(
        default=limits.SWEEP_TICK_S,
        gt=0,
        description="How often somebody sweeps: beat, or a worker where there is none.",
    )
    control_poll_s: float = Field(
        default=limits.CONTROL_POLL_S, gt=0, description="How often a process asks which of its runs were stopped."
    )
    model_lanes: str = Field(
        default="",
        max_length=4096,
        description="At most so many model attempts at once over one connection, over the whole fleet: NAME=NUMBER, "
        "separated by blanks, as in `api.example.com=40 10.0.0.7:8000=8 *=100`. The name is an endpoint, "
        "host and port as in the release's base_url, where the scheme's own port may be left out; `*` is "
        "each of the others. Behind the endpoint may stand a model's id and a credential reference, as "
        "the release has them: `api.example.com/vendor/model-x:free=20` is this model there, "
        "`api.example.com@env:TEAM_KEY=50` what goes there with this key, "
        "`api.example.com/model-x@env:TEAM_KEY=5` both. In a model's id write %40 for @, %20 for a blank "
        "and %25 for %. Every limit that names an attempt counts it. Rows that find no place wait, "
        "uncounted. Counted in the Redis of the leases: without one each process counts its own, and "
        "while it is away nobody does. The same in every process.",
    )
    model_requests_per_minute: str = Field(
        default="",
        max_length=4096,
        description="At most so many requests over one connection in any minute, over the whole fleet: "
        "`api.example.com=500`, written, counted and waited for as AGENTLOOM_MODEL_LANES.",
    )
    model_tokens_per_minute: str = Field(
        default="",
        max_length=4096,
        description="At most so many tokens, written and counted as AGENTLOOM_MODEL_REQUESTS_PER_MINUTE. An attempt "
        "takes a token for three bytes of its request, until its answer reports what was used; the answer's own "
        "tokens count once it has ended.",
    )
    keep_transport: Literal["unusual", "all"] = Field(
        default="all",
        description="Of which model attempts the received bytes are kept, compressed, for `agentloom request --raw`: "
        "all, or `unusual` ones, that failed, were cut off or ended oddly. They end where the reading stopped, behind "
        "the final frame or the fault, and are unpacked where they came packed. An ordinary answer says no more than "
        "its response, and its stream of small frames can cost the database as much again as the rest of its loop.",
    )
    drain_s: float = Field(
        default=limits.DRAIN_S,
        gt=0,
        description="After SIGTERM steps have so long to end; then the process leaves. Give the container 10 s more.",
    )
    start_wait_s: float = Field(
        default=limits.START_WAIT_S,
        ge=0,
        le=3600,
        description="A process that starts waits so long for a database that cannot be reached, then ends with 69. "
        "A schema of another version or a refused login ends it at once.",
    )
    publish_timeout_s: float = Field(
        default=limits.PUBLISH_TIMEOUT_S,
        gt=0,
        le=30,
        description="A broker that takes longer is left alone for a while; the sweep repeats what it missed.",
    )
    log_format: Literal["json", "text"] = Field(default="json", description="One JSON object a line, or text.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="DEBUG adds a line for each committed step."
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65000,
        description="Where each process shows its counters to Prometheus; 0: nowhere. Children of a prefork pool "
        "take the ports that follow.",
    )
    metrics_host: str = Field(default="0.0.0.0", description="The address that the counters are shown on.")

    @field_validator("broker", "redis", mode="before")
    @classmethod
    def _known_scheme(cls, value: object, field: ValidationInfo) -> object:
        """Valkey speaks Redis; the libraries know the one name only."""
        if not isinstance(value, str):
            return value
        text = value.strip().replace("valkeys://", "rediss://").replace("valkey://", "redis://")
        schemes = _SCHEMES if field.field_name == "broker" else _REDIS_SCHEMES
        if text and not text.startswith(schemes):
            raise ValueError(f"begin it with one of {', '.join((*schemes, *_VALKEY))}")
        for address in filter(None, text.split(";")):
            _check_address(address)
        return text or None

    @field_validator("model_lanes", "model_requests_per_minute", "model_tokens_per_minute")
    @classmethod
    def _readable_lanes(cls, value: str) -> str:
        parse_lanes(value)
        return value

    @model_validator(mode="after")
    def _renews_in_time(self) -> "FleetSettings":
        if self.claim_renew_s * 3 > self.claim_ttl_s:
            raise ValueError(f"{PREFIX}CLAIM_RENEW_S must be at most a third of {PREFIX}CLAIM_TTL_S")
        return self

    @property
    def redis_url(self) -> str | None:
        """Where the lease fast path stands; None: there is none."""
        if self.redis is not None:
            return self.redis.get_secret_value()
        broker = self.broker.get_secret_value()
        return broker if broker.startswith(_REDIS_SCHEMES) else None

    def runtime(self, queues: tuple[str, ...]) -> Settings:
        """What the runtime is given by a process that serves these queues."""
        return Settings(
            fusion=self.fusion,
            inline_hops=self.inline_hops,
            inline_ms=self.inline_ms,
            queues=queues,
            claim_ttl_s=self.claim_ttl_s,
            claim_renew_s=self.claim_renew_s,
            suspect_grace_s=self.suspect_grace_s,
            sweep_tick_s=self.sweep_tick_s,
            control_poll_s=self.control_poll_s,
            drain_s=self.drain_s,
            model_lanes=parse_lanes(self.model_lanes),
            model_requests=parse_lanes(self.model_requests_per_minute),
            model_tokens=parse_lanes(self.model_tokens_per_minute),
            keep_transport=KeepTransport(self.keep_transport),
        )


def parse_lanes(text: str) -> dict[str, int]:
    """Name of a connection -> number from `NAME=NUMBER …`. Raises ValueError that names the word and not its value."""
    lanes: dict[str, int] = {}
    for number, word in enumerate(text.split(), start=1):
        written, _, places = word.rpartition("=")
        if not places.isascii() or not places.isdecimal():
            raise ValueError(f"word {number} is not NAME=NUMBER")
        try:
            name = read_name(written)
        except ValueError as error:
            raise ValueError(f"word {number} {error}") from None
        if int(places) == 0 or name in lanes:
            raise ValueError(f"word {number} allows nothing, or names again what another one limits")
        lanes[name] = int(places)
    return lanes


@dataclass(frozen=True, slots=True)
class SettingLine:
    """One setting as it is documented."""

    name: str
    env: str
    default: str
    description: str


def load_settings(given: Mapping[str, str | None] | None = None) -> FleetSettings:
    """The settings of this process: what is given by name and not None, else the environment, else the default.

    Raises RequestError naming each variable that is wrong, never its value.
    """
    named = {name: value for name, value in (given or {}).items() if value is not None}
    try:
        return FleetSettings(**named)  # type: ignore[arg-type]
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_input=False, include_url=False):
            where = problem["loc"]
            name = f"{PREFIX}{str(where[0]).upper()}: " if where else ""
            lines.append(f"{name}{problem['msg'].removeprefix('Value error, ')}")
        raise RequestError(Code.INPUT_INVALID, "; ".join(lines)) from None


def settings_reference() -> list[SettingLine]:
    """Every setting in the order of the class, for `agentloom settings` and the documentation."""
    return [
        SettingLine(name, f"{PREFIX}{name.upper()}", _shown(field.default), field.description or "")
        for name, field in FleetSettings.model_fields.items()
    ]


def unread_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are named like a setting and are none → the closest setting's variable, empty where none is close.

    A mistyped variable changes nothing and says nothing by itself. Those of the tests (`AGENTLOOM_TEST_…`) are none.
    """
    known = [line.env for line in settings_reference()] + [*_OTHER_VARIABLES]
    found = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return {
        name: next(iter(difflib.get_close_matches(name, known, 1, _CLOSE)), "")
        for name in found
        if not name.startswith(_OF_TESTS)
    }


def current_values(settings: FleetSettings) -> dict[str, str]:
    """Every setting as it is, by name; a URL without what may be secret in it."""
    return {
        name: show_url(value.get_secret_value()) if isinstance(value, SecretStr) else _shown(value)
        for name in FleetSettings.model_fields
        for value in (getattr(settings, name),)
    }


def show_url(url: str) -> str:
    """A URL for people: scheme, hosts and path; neither user nor password nor parameters.

    One that does not look like a URL shows its scheme alone: a password with odd characters may stand anywhere.
    """
    parts = []
    for part in re.split(r";(?=[a-z+]+://)", url):
        found = _URL.fullmatch(part)
        if found is None:
            parts.append(f"{_scheme(part)}://…")
        else:
            hidden = "…@" if found["user"] else ""
            parts.append(f"{found['scheme']}://{hidden}{found['host']}{found['path'] or ''}")
    return ";".join(parts)


_URL = re.compile(
    r"(?P<scheme>[a-z0-9+]+)://(?P<user>[^@/?#;]*@)?(?P<host>[A-Za-z0-9.,:_\[\]-]*)(?P<path>/[A-Za-z0-9._/-]*)?(\?[^@]*)?"
)


def _scheme(url: str) -> str:
    name, found, _ = url.partition("://")
    return name if found and name.replace("+", "").isalnum() else "…"


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return value.get_secret_value()  # a default is no secret
        case bool():
            return str(value).lower()
        case _:
            return str(value)
