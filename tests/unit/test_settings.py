"""Settings: every one documented, nothing secret shown, what is wrong named."""

import pytest

from agentloom_worker.bootstrap import load_process_settings
from agentloom_worker.domain.dispatch import Queue
from agentloom_worker.errors import RequestError
from agentloom_worker.settings import (
    PREFIX,
    FleetSettings,
    current_values,
    load_settings,
    settings_reference,
    show_url,
    unread_variables,
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in settings_reference():
        monkeypatch.delenv(line.env, raising=False)


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    lines = settings_reference()
    assert [line.name for line in lines] == list(FleetSettings.model_fields)
    for line in lines:
        assert line.env == f"{PREFIX}{line.name.upper()}"
        assert len(line.description) > 20 and line.description.endswith("."), line.name
    by_name = {line.name: line for line in lines}
    assert by_name["fusion"].default == "true"
    assert by_name["claim_ttl_s"].default == "20.0"
    assert by_name["redis"].default == ""


def test_every_setting_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {
        "database": "postgresql://other/db", "broker": "amqp://other//", "redis": "redis://other/1",
        "log_format": "text", "log_level": "DEBUG", "fusion": "false",
        "claim_ttl_s": "30", "metrics_host": "127.0.0.1", "key_prefix": "mine:", "queue_prefix": "mine.",
        "sentinel_master": "main", "model_lanes": "api.example.com=9",
        "model_requests_per_minute": "api.example.com=9", "model_tokens_per_minute": "*=9",
        "keep_transport": "unusual",
    }  # fmt: skip
    before = FleetSettings()
    for line in settings_reference():
        value = other.get(line.name, "9")
        monkeypatch.setenv(line.env, value)
    after = load_settings()
    for name in FleetSettings.model_fields:
        assert getattr(after, name) != getattr(before, name), name


def test_no_password_is_shown() -> None:
    settings = FleetSettings(
        database="postgresql://me:secret@db/x", broker="redis://:secret@b/0", redis="redis://:secret@r/0"
    )
    assert "secret" not in repr(settings) and "secret" not in settings.model_dump_json()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inline_hops", "many"),
        ("broker", "http://secret"),
        ("redis", "amqp://secret"),
        ("broker", "redis://:secret#word@127.0.0.1:6379/0"),
        ("broker", "amqp://user:secret/word@127.0.0.1//"),
        ("redis", "redis://127.0.0.1:6379/0?password=secret"),
        ("broker", "sentinel://127.0.0.1:26379;sentinel://:se/cret@127.0.0.1:26380"),
        ("queue_prefix", "a secret"),
        ("claim_ttl_s", "0"),
        ("log_level", "secret"),
        ("model_lanes", "secret"),
        ("model_lanes", "https://secret=3"),
        ("model_lanes", "secret=0"),
        ("model_lanes", "secret=1 SECRET=2"),
        ("model_lanes", "*/secret=1"),
        ("model_lanes", "a/secret=1 a/%73ecret=2"),
        ("model_requests_per_minute", "secret"),
        ("model_tokens_per_minute", "secret=0"),
    ],
)
def test_what_is_wrong_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"{PREFIX}{name.upper()}", value)
    with pytest.raises(RequestError) as caught:
        load_settings()
    assert caught.value.message.startswith(f"{PREFIX}{name.upper()}: ")
    assert "Value error" not in caught.value.message
    assert value not in caught.value.message or name == "claim_ttl_s"


@pytest.mark.parametrize("value", ["secret", "mysql://me:secret@db/x", "postgresql://me:secret@db:port/x", ""])
def test_a_database_that_no_process_could_open_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AGENTLOOM_DATABASE", value)
    with pytest.raises(RequestError) as caught:
        load_process_settings()
    assert caught.value.message.startswith("AGENTLOOM_DATABASE: ")
    assert "secret" not in caught.value.message


def test_a_renewal_that_is_too_rare_for_its_claims_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTLOOM_CLAIM_TTL_S", "10")
    with pytest.raises(RequestError, match="AGENTLOOM_CLAIM_RENEW_S"):
        load_settings()


@pytest.mark.parametrize(
    ("broker", "redis", "expected"),
    [
        ("redis://b/0", None, "redis://b/0"),
        ("valkey://b/0", None, "redis://b/0"),
        ("valkeys://b/0", "redis://r/1", "redis://r/1"),
        ("amqp://b//", None, None),
        ("amqp://b//", "valkey://r/1", "redis://r/1"),
        ("sentinel://a:1;sentinel://b:1", None, "sentinel://a:1;sentinel://b:1"),
        ("amqp://b//", "sentinel://a:1;sentinel://b:1", "sentinel://a:1;sentinel://b:1"),
        ("redis://b/0", "valkeys://r/1?ssl_ca_certs=/ca.pem", "rediss://r/1?ssl_ca_certs=/ca.pem"),
    ],
)
def test_the_lease_fast_path_stands_on_the_broker_where_that_is_a_redis(
    broker: str, redis: str | None, expected: str | None
) -> None:
    assert FleetSettings(broker=broker, redis=redis).redis_url == expected


def test_lanes_are_read_by_endpoint() -> None:
    settings = FleetSettings(model_lanes="Api.Example.com=40  127.0.0.1:8000=8\n[::1]:9=1 *=100")
    lanes = settings.runtime((Queue.MODEL.value,)).model_lanes
    assert lanes == {"api.example.com": 40, "127.0.0.1:8000": 8, "[::1]:9": 1, "*": 100}
    assert FleetSettings().runtime(()).model_lanes == {}


def test_lanes_are_read_by_model_and_credential() -> None:
    text = "api.Example.com/qwen/qwen3:free=20 api.example.com@env:TEAM_KEY=50 api.example.com/x=1@file:/a=b=5"
    lanes = FleetSettings(model_lanes=text, model_tokens_per_minute=text).runtime(())
    expected = {
        "api.example.com/qwen/qwen3:free": 20,
        "api.example.com@env:TEAM_KEY": 50,
        "api.example.com/x=1@file:/a=b": 5,
    }
    assert (lanes.model_lanes, lanes.model_requests, lanes.model_tokens) == (expected, {}, expected)


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("a=1 b", "AGENTLOOM_MODEL_LANES: word 2 is not NAME=NUMBER"),
        ("a=1 b=", "AGENTLOOM_MODEL_LANES: word 2 is not NAME=NUMBER"),
        ("a=1 b=2 c/=3", "AGENTLOOM_MODEL_LANES: word 3 names no host[:port], host[:port]/model"),
        ("a/m@key=1", "AGENTLOOM_MODEL_LANES: word 1 has no credential reference"),
        ("a=1 a/m=2 A/m=3", "AGENTLOOM_MODEL_LANES: word 3 allows nothing, or names again"),
    ],
)
def test_the_limit_that_cannot_be_read_is_named(text: str, trouble: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_settings({"model_lanes": text})
    assert caught.value.message.startswith(trouble)


def test_the_runtime_is_given_what_is_set() -> None:
    settings = FleetSettings(claim_ttl_s=30, inline_hops=3)
    runtime = settings.runtime((Queue.MODEL.value,))
    assert (runtime.claim_ttl_s, runtime.inline_hops, runtime.queues) == (30, 3, ("model",))


def test_what_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTLOOM_BROKER", "redis://environment/0")
    monkeypatch.setenv("AGENTLOOM_KEY_PREFIX", "theirs:")
    settings = load_settings({"broker": "redis://given/0", "redis": None})
    assert (settings.redis_url, settings.key_prefix) == ("redis://given/0", "theirs:")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db:5432/loom?sslmode=require", "postgresql://…@db:5432/loom"),
        ("postgresql+psycopg2://db/loom?password=secret", "postgresql+psycopg2://db/loom"),
        ("redis://:secret@cache/0", "redis://…@cache/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sentinel://:secret@a:1;sentinel://:secret@b:1", "sentinel://…@a:1;sentinel://…@b:1"),
        # Written without the escapes that a URL wants, a password may hold anything.
        ("redis://:se/secret@cache/0", "redis://…"),
        ("redis://:se?secret@cache/0", "redis://…"),
        ("redis://:se;secret@cache/0", "redis://…"),
        ("redis://cache/0?password=p@secret", "redis://…"),
        ("redis://:p@secret@cache/0", "redis://…"),
        ("secret", "…://…"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert show_url(url) == shown
    assert "secret" not in show_url(url)


def test_a_variable_that_nothing_reads_is_named_with_the_one_that_may_be_meant() -> None:
    environment = {
        "AGENTLOOM_MODEL_LANE": "*=1",
        "AGENTLOOM_WHATEVER": "",
        "AGENTLOOM_MODEL_LANES": "*=1",
        "AGENTLOOM_EMBEDDED": "state",
        "AGENTLOOM_TEST_REDIS": "wheel",
        "MODEL_LANES": "*=1",
    }
    assert unread_variables(environment) == {"AGENTLOOM_MODEL_LANE": "AGENTLOOM_MODEL_LANES", "AGENTLOOM_WHATEVER": ""}


def test_every_value_is_shown_as_it_is_and_no_secret() -> None:
    values = current_values(FleetSettings(redis="redis://:secret@cache/1", claim_ttl_s=30, fusion=False))
    assert list(values) == list(FleetSettings.model_fields)
    assert (values["redis"], values["claim_ttl_s"], values["fusion"]) == ("redis://…@cache/1", "30.0", "false")
