"""`agentloom models` as people and programs use it, against a dev-model over real HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentloom_worker.cli.app import main
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.llm.probe import TOOL_NAME
from agentloom_worker.llm.profiles import PROFILES
from tests.unit.http.raw_server import STREAM_HEAD, answer, bytes_of, serving

KEY = "sk-test-0123456789abcdef"
SCRIPT = {
    "schema_version": 1,
    "models": ["plain", {"id": "big", "max_model_len": 32768}],
    "dialect": {"auth": {"header": "Authorization", "value": f"Bearer {KEY}"}},
    "turns": [
        {"when": {"model": "endless"}, "answer": {"text": "x", "omit": ["done"]}},
        {"answer": {"tool_calls": [{"name": TOOL_NAME, "arguments": {"word": "ready"}}]}},
    ],
}


@pytest.fixture
def model() -> Iterator[DevModel]:
    with DevModel(parse_script(SCRIPT)) as served:
        yield served


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MODELS_TEST_KEY", KEY)
    return "env:MODELS_TEST_KEY"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["models", *map(str, arguments)])
    streams = capsys.readouterr()
    return int(left.value.code or 0), streams.out, streams.err


def test_profiles_are_listed_with_their_facts_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "profiles")
    assert code == 0
    for profile in PROFILES.values():
        assert all(fact.source in out for fact in profile.facts)
        for other in profile.other_addresses:
            assert f"address {other.base_url}: {other.text}" in out and other.source in out
    assert "window 262144, maximum output 32768" in out


def test_profiles_as_json_hold_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "profiles", "--json")
    listed: list[dict[str, Any]] = json.loads(out)["profiles"]
    assert [one["name"] for one in listed] == list(PROFILES)
    zhipu = next(one for one in listed if one["name"] == "zhipu")
    assert zhipu["codes"]["1261"] == "context_length"
    assert zhipu["reasoning_replay"] == "in_tool_turns"
    assert {"text", "source"} <= set(zhipu["facts"][0])
    assert zhipu["finish_reasons"]["sensitive"] == "content_filter"
    assert {"base_url", "text", "source"} == set(zhipu["other_addresses"][0])


def test_discover_lists_what_the_endpoint_tells(capsys: pytest.CaptureFixture[str], model: DevModel, key: str) -> None:
    code, out, _ = run(capsys, "discover", "--base-url", model.base_url, "--profile", "vllm", "--credential", key)
    assert code == 0
    assert "provider: max_model_len" in out and "unknown" in out
    _, out, _ = run(capsys, "discover", "--base-url", model.base_url, "--credential", key, "--json")
    assert [
        (one["provider_model_id"], one["context_window_tokens"], one["metadata_source"])
        for one in json.loads(out)["models"]
    ] == [
        ("big", 32768, "provider"),
        ("plain", None, "unknown"),
    ]


def test_probe_shows_what_it_found_and_what_it_could_not(
    capsys: pytest.CaptureFixture[str], model: DevModel, key: str
) -> None:
    asked = ("probe", "--base-url", model.base_url, "--model", "plain", "--credential", key)
    code, out, _ = run(capsys, *asked)
    assert code == 0
    assert "called with the arguments asked for" in out and "not shown by a call:" in out
    code, out, _ = run(capsys, *asked, "--json")
    document = json.loads(out)
    assert code == 0 and document["contradictions"] == []
    assert {one["about"]: one["found"] for one in document["findings"]}["usage"] == "yes"


def test_probe_leaves_with_1_where_the_answer_contradicts_the_profile(
    capsys: pytest.CaptureFixture[str], model: DevModel, key: str
) -> None:
    asked = ("probe", "--base-url", model.base_url, "--model", "endless", "--credential", key)
    code, out, _ = run(capsys, *asked)
    assert code == 1 and "contradiction: profile generic waits for [DONE]" in out
    assert run(capsys, *asked, "--profile", "minimax")[0] == 0


def test_probe_asks_in_the_protocol_that_is_named(
    capsys: pytest.CaptureFixture[str], model: DevModel, key: str
) -> None:
    asked = ("probe", "--base-url", model.base_url, "--model", "plain", "--credential", key, "--json")
    for named, protocol in ((), "openai-chat"), (("--protocol", "openai-responses"), "openai-responses"):
        code, out, _ = run(capsys, *asked, *named)
        document = json.loads(out)
        assert (code, document["protocol"], document["contradictions"]) == (0, protocol, [])
        assert {one["about"]: one["found"] for one in document["findings"]}["tools"] == "yes"
    bodies = [json.loads(request.body or b"") for request in model.requests]
    assert ["messages" in body for body in bodies] == ["input" not in body for body in bodies] == [True, False]


def test_probe_waits_no_longer_than_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with DevModel(
        parse_script({"schema_version": 1, "turns": [{"answer": {"text": "x", "hold": {"gate": "g"}}}]})
    ) as held:
        asked = ("probe", "--base-url", held.base_url, "--model", "m")
        _, _, err = run(capsys, *asked, "--first-output", "0.1")
        assert "error MODEL_FIRST_OUTPUT_TIMEOUT: openai-chat at http://127.0.0.1:" in err
        _, _, err = run(capsys, *asked, "--timeout", "0.1")
        assert "error WAIT_TIMEOUT: openai-chat at http://127.0.0.1:" in err


CUSTOM = {
    "profile": "custom",
    "dialect": {"done_required": False, "auth_prefix": "Bearer ", "parameters": ["temperature"]},
    "parameters": {"temperature": 0},
}


def released(folder: Path, model: DevModel, **entries: dict[str, Any]) -> Path:
    """A release whose agent has a model that nobody serves, and a tool that nobody can import."""
    shared = {"protocol": "openai-chat", "base_url": model.base_url, "model": "plain", "context_window_tokens": 8000}
    models = {key: {**shared, "credential": "env:MODELS_TEST_KEY", **entry} for key, entry in entries.items()}
    document = {
        "schema_version": 1,
        "agent": {"id": "probed", "prompt": "Answer.", "model": next(iter(models)), "tools": ["far"]},
        "models": models,
        "tools": {"far": {"kind": "python", "handler": "no_such_package:tool", "effect": "none"}},
    }
    file = folder / "release.json"
    file.write_text(json.dumps(document))
    return file


def test_probe_asks_as_a_run_of_a_release_would(
    capsys: pytest.CaptureFixture[str], model: DevModel, key: str, tmp_path: Path
) -> None:
    endless = {"model": "endless"}
    file = released(tmp_path, model, main={**endless, **CUSTOM}, strict=endless, other={"protocol": "openai-responses"})
    code, out, _ = run(capsys, "probe", "--release", file, "--json")
    document = json.loads(out)
    assert (code, document["model"], document["contradictions"]) == (0, "endless", [])
    assert document["profile"].startswith("custom+") and document["base_url"] == model.base_url
    code, out, _ = run(capsys, "probe", "--release", file, "--model", "strict")
    assert code == 1 and "contradiction: profile generic waits for [DONE]" in out
    code, out, _ = run(capsys, "probe", "--release", file, "--model", "other", "--json")
    assert (code, json.loads(out)["protocol"]) == (0, "openai-responses")
    bodies = [json.loads(request.body or b"") for request in model.requests]
    assert [body.get("temperature") for body in bodies] == [0, None, None]


def test_probe_sends_what_a_profile_puts_into_every_release(
    capsys: pytest.CaptureFixture[str], model: DevModel, key: str, tmp_path: Path
) -> None:
    file = released(tmp_path, model, main={"profile": "litellm-proxy"})
    run(capsys, "probe", "--release", file)
    described = ("--base-url", model.base_url, "--model", "plain", "--credential", key)
    run(capsys, "probe", "--profile", "litellm-proxy", *described)
    assert [json.loads(request.body or b"")["disable_fallbacks"] for request in model.requests] == [True, True]


def test_probe_waits_for_the_first_output_as_long_as_the_release_says(
    capsys: pytest.CaptureFixture[str], key: str, tmp_path: Path
) -> None:
    held = {"schema_version": 1, "turns": [{"answer": {"text": "x", "hold": {"gate": "g"}}}]}
    with DevModel(parse_script(held)) as silent:
        file = released(tmp_path, silent, main={"first_output_timeout_ms": 50})
        _, _, err = run(capsys, "probe", "--release", file)
    assert "error MODEL_FIRST_OUTPUT_TIMEOUT: openai-chat at http://127.0.0.1:" in err


def test_probe_of_a_release_names_a_mistake_with_its_remedy(
    capsys: pytest.CaptureFixture[str], model: DevModel, key: str, tmp_path: Path
) -> None:
    file = released(tmp_path, model, main={}, wrong={"parameters": {"models": ["other"]}})
    code, _, err = run(capsys, "probe", "--release", file)
    assert code == 1 and "/models/wrong/parameters/models" in err
    file = released(tmp_path, model, main={}, simulated={"protocol": "scripted", "base_url": "script:x"})
    for arguments, words in (
        (("--model", "absent"), "error INPUT_INVALID: the release has no model absent: there are main, simulated"),
        (("--model", "simulated"), "error INPUT_INVALID: no protocol scripted"),
        (("--base-url", "http://x"), "error INPUT_INVALID: --base-url stands in the release"),
        (("--profile", "vllm"), "error INPUT_INVALID: --profile stands in the release"),
        (("--protocol", "openai-chat"), "error INPUT_INVALID: --protocol stands in the release"),
        (("--credential", "env:X"), "error INPUT_INVALID: --credential stands in the release"),
    ):
        code, _, err = run(capsys, "probe", "--release", file, *arguments)
        assert code == 1 and words in err
    code, _, err = run(capsys, "probe", "--release", tmp_path / "absent.yaml")
    assert code == 1 and "error INPUT_INVALID: cannot read" in err


@pytest.mark.parametrize("command", ["discover", "probe"])
def test_help_names_the_credential_providers_that_are_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0 and "PROVIDER:NAME" in out
    assert "Credential providers installed here: none" in " ".join(out.split())
    info = tmp_path / "vault_of_a_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault-of-a-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[agentloom.credentials]\nvault = no_such_module:read\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, out, _ = run(capsys, command, "--help")
    assert "Credential providers installed here: vault (docs/credentials.md)." in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("probe", "--profile", "deepseek", "--model", "m", "--protocol", "openai-responses"),
            "error MODEL_FEATURE_UNSUPPORTED: profile deepseek offers openai-chat, not openai-responses",
        ),
        (
            ("probe", "--profile", "deepseek", "--model", "m", "--protocol", "chat"),
            "error INPUT_INVALID: no protocol chat: there are openai-chat, openai-responses",
        ),
        (("probe", "--base-url", "http://x"), "error INPUT_INVALID: say --model, or --release FILE"),
        (("probe", "--profile", "custom", "--model", "m"), "profile custom has its flags in a release: say --release"),
        (("discover", "--profile", "openai", "--credential", "vault:x"), "error CREDENTIAL_UNAVAILABLE"),
        (("discover", "--profile", "no-such"), "error INPUT_INVALID: no profile no-such: there are generic, openai"),
        (("discover",), "error INPUT_INVALID: profile generic has no address of its own: say --base-url"),
        (("discover", "--base-url", "x"), "error INPUT_INVALID: the base URL must be an http or https address"),
        (("discover", "--profile", "openai", "--credential", "env:NOT_SET_HERE"), "error CREDENTIAL_UNAVAILABLE"),
        (
            ("discover", "--base-url", "http://127.0.0.1:1/v1"),
            "error MODEL_TRANSPORT_FAILED: http://127.0.0.1:1/v1/models",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 1 and words in err


def test_a_key_that_is_refused_is_shown_nowhere(
    capsys: pytest.CaptureFixture[str], model: DevModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_KEY", "sk-wrong-0123456789")
    code, out, err = run(capsys, "discover", "--base-url", model.base_url, "--credential", "env:WRONG_KEY")
    assert code == 1 and "HTTP 401" in err
    assert "sk-wrong" not in out + err


ESCAPED = "".join(f"\\u{ord(one):04x}" for one in KEY)


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_key_that_the_endpoint_echoes_is_shown_by_no_command(
    capsys: pytest.CaptureFixture[str], key: str, as_json: list[str]
) -> None:
    listed = {"data": [{"id": f"for-{KEY}", "supported_parameters": [KEY, "tools"], "max_model_len": 8}]}
    named = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": KEY, "function": {"name": KEY}}]}}]}
    bodies = [
        ("200 OK", json.dumps(listed).encode()),
        ("200 OK", json.dumps(listed).replace(KEY, ESCAPED).encode()),
        ("403 Forbidden", json.dumps({"error": {"message": f"no {KEY} {ESCAPED}", "code": KEY}}).encode()),
        ("404 Not Found", json.dumps({"error": {"message": "no such model"}}).encode()),
        ("200 OK", json.dumps(listed).encode()),
    ]
    stream = (
        f"data: {json.dumps(named)}\n\ndata: {json.dumps({'choices': [{'finish_reason': KEY}]})}\n\ndata: [DONE]\n\n"
    )
    with serving(*(answer(status, body) for status, body in bodies), bytes_of(STREAM_HEAD + stream.encode())) as server:
        said = ["--base-url", server.base_url, "--credential", key, *as_json]
        shown = [run(capsys, "discover", *said) for _ in range(2)]
        assert all(code == 0 and "for-[redacted]" in out and "tools" in out for code, out, _ in shown)
        shown.append(run(capsys, "discover", *said))
        shown.append(run(capsys, "probe", "--model", "m", *said))
        assert "it lists no model m (but for-[redacted])" in shown[-1][2]
        shown.append(run(capsys, "probe", "--model", "m", *said))
        assert server.served == 6
    for _, out, err in shown:
        assert KEY not in out + err and ESCAPED not in out + err and "0123456789abcdef" not in out + err


@pytest.mark.parametrize("command", [("discover",), ("probe", "--model", "plain")])
def test_what_an_address_hides_is_not_printed(
    command: tuple[str, ...], model: DevModel, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = model.base_url.replace("://", "://user:hidden@") + "/?api-key=hidden"
    code, out, err = run(capsys, *command, "--base-url", hidden, "--credential", key, "--json")
    assert (code, json.loads(out)["base_url"]) == (0, model.base_url)
    assert "hidden" not in out + err


@pytest.mark.parametrize("option", ["--timeout", "--first-output"])
@pytest.mark.parametrize("seconds", ["inf", "1e12", "nan", "0", "-1"])
def test_bounds_that_are_none_are_refused(
    option: str, seconds: str, model: DevModel, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "probe", "--base-url", model.base_url, "--model", "plain", option, seconds)
    assert code == 2 and option in err and "Traceback" not in err
    assert not model.requests
