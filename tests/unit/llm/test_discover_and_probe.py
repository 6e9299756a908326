"""Questions to an endpoint outside of any run, over real HTTP: what it tells is shown, the rest stays unknown."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentloom_worker.clock import SystemClock
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.llm.discover import MetadataSource, ModelDescriptor, discover
from agentloom_worker.llm.endpoint import Endpoint, EndpointClient, shown
from agentloom_worker.llm.probe import TOOL_NAME, Found, Probe, probe
from agentloom_worker.llm.profiles import PROFILES

SECRET = "sk-test-0123456789abcdef"
CALL = {"name": TOOL_NAME, "arguments": {"word": "ready"}}


@contextmanager
def asking(profile: str, *turns: dict[str, Any], **script: Any) -> Iterator[tuple[DevModel, EndpointClient, Endpoint]]:
    turns = turns or ({"answer": {"text": "x"}},)
    client = EndpointClient(SystemClock())
    with DevModel(parse_script({"schema_version": 1, "turns": list(turns), **script})) as model:
        try:
            yield model, client, Endpoint(model.base_url, PROFILES[profile], SECRET)
        finally:
            client.close()


def found(profile: str, **script: Any) -> tuple[ModelDescriptor, ...]:
    with asking(profile, **script) as (_, client, endpoint):
        return discover(client, endpoint)


def probed(profile: str, *turns: dict[str, Any], **script: Any) -> Probe:
    with asking(profile, *turns, **script) as (_, client, endpoint):
        return probe(client, endpoint, "dev-model")


def told(result: Probe) -> dict[str, Found]:
    return {finding.about: finding.found for finding in result.findings}


def detail(result: Probe, about: str) -> str:
    return next(finding.detail for finding in result.findings if finding.about == about)


# -- discover ----------------------------------------------------------------------------------------


def test_a_window_that_nobody_tells_is_unknown() -> None:
    (one,) = found("generic")
    assert one == ModelDescriptor("dev-model", None, None, (), MetadataSource.UNKNOWN, None)


@pytest.mark.parametrize(
    ("entry", "window", "output", "told_by"),
    [
        ({"max_model_len": 32768}, 32768, None, "max_model_len"),
        (
            {"context_length": 131072, "top_provider": {"max_completion_tokens": 4096}},
            131072,
            4096,
            "context_length",
        ),
        ({"meta": {"n_ctx_train": 131072}}, None, None, None),
        ({"context_length": "many", "max_model_len": True}, None, None, None),
        ({"context_length": 0}, None, None, None),
    ],
)
def test_what_the_endpoint_tells_of_a_model_is_shown_with_the_field_that_says_it(
    entry: dict[str, Any], window: int | None, output: int | None, told_by: str | None
) -> None:
    (one,) = found("generic", models=[{"id": "m", **entry}])
    assert (one.context_window_tokens, one.max_output_tokens, one.told_by) == (window, output, told_by)
    assert one.metadata_source is (MetadataSource.PROVIDER if window else MetadataSource.UNKNOWN)


def test_features_are_listed_as_the_endpoint_names_them() -> None:
    entry = {"id": "m", "supported_parameters": ["tools", "seed"], "architecture": {"input_modalities": ["text"]}}
    assert found("openrouter", models=[entry])[0].supported_features == ("seed", "text", "tools")


def test_what_the_endpoint_does_not_tell_comes_from_the_documented_facts_and_says_so() -> None:
    listed = found("dashscope", models=["kimi-k2.5", "unheard-of", {"id": "kimi-k2-thinking", "context_length": 5}])
    by_id = {one.provider_model_id: one for one in listed}
    known = by_id["kimi-k2.5"]
    assert (known.context_window_tokens, known.metadata_source) == (262_144, MetadataSource.PROFILE)
    assert known.told_by and known.told_by.startswith("https://")
    assert by_id["unheard-of"].metadata_source is MetadataSource.UNKNOWN
    assert by_id["kimi-k2-thinking"].context_window_tokens == 5


def test_a_server_of_llama_cpp_tells_the_window_that_it_serves_in_its_props() -> None:
    models = [{"id": "m", "meta": {"n_ctx_train": 131072}}]
    props = {"default_generation_settings": {"n_ctx": 4096}}
    (one,) = found("llama-cpp", models=models, props=props)
    assert (one.context_window_tokens, one.told_by) == (4096, "default_generation_settings.n_ctx")
    # Without props (they can be switched off) the list stands, the window is unknown.
    assert found("llama-cpp", models=models)[0].context_window_tokens is None
    assert found("generic", models=models, props=props)[0].context_window_tokens is None


def test_the_key_goes_where_the_profile_says_and_a_wrong_one_is_an_error_without_it() -> None:
    auth = {"auth": {"header": "api-key", "value": SECRET}}
    assert found("azure-openai", dialect=auth)
    with pytest.raises(RequestError) as caught:
        found("openai", dialect=auth)
    assert caught.value.code == Code.MODEL_REQUEST_REJECTED
    assert "HTTP 401" in caught.value.message and SECRET not in caught.value.message


@pytest.mark.parametrize("answer", [[1, 2], {"models": []}, "no JSON"])
def test_what_is_no_list_of_models_is_an_error(answer: object) -> None:
    class Client(EndpointClient):
        def get_json(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> object:
            return answer

    with pytest.raises(RequestError) as caught:
        discover(Client(SystemClock()), Endpoint("http://127.0.0.1:1/v1", PROFILES["generic"]))
    assert caught.value.code == Code.MODEL_PROTOCOL_ERROR


def test_an_endpoint_that_nobody_serves_is_an_error_that_names_it() -> None:
    endpoint = Endpoint("http://127.0.0.1:1/v1?key=hidden", PROFILES["generic"])
    with pytest.raises(RequestError) as caught:
        discover(EndpointClient(SystemClock()), endpoint)
    assert caught.value.code == Code.MODEL_TRANSPORT_FAILED
    assert "http://127.0.0.1:1/v1/models" in caught.value.message and "hidden" not in caught.value.message


@pytest.mark.parametrize("address", ["api.example.com", "ftp://x/v1", "http://"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(RequestError) as caught:
        Endpoint(address, PROFILES["generic"]).url("/models")
    assert caught.value.code == Code.INPUT_INVALID


def test_a_shown_address_holds_no_secret() -> None:
    url = Endpoint("http://user:pw@example.com:1/v1?key=k", PROFILES["generic"]).url("/models")
    assert shown(url) == "http://example.com:1/v1/models"


# -- probe -------------------------------------------------------------------------------------------


def test_an_endpoint_that_does_everything() -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 9, "cached_tokens": 8}
    result = probed("deepseek", {"answer": {"reasoning": "hm", "tool_calls": [CALL], "usage": usage}})
    assert set(told(result).values()) == {Found.YES}
    assert result.contradictions == ()
    assert detail(result, "usage") == "40 tokens in, 8 of them cached, 9 out"
    assert detail(result, "end of stream") == "finish reason tool_calls, then [DONE]"
    assert detail(result, "reasoning").endswith("reasoning_content")
    assert detail(result, "tools") == "called with the arguments asked for"
    assert result.not_shown


def test_it_is_one_call_with_a_bounded_answer() -> None:
    with asking("generic") as (model, client, endpoint):
        probe(client, endpoint, "dev-model")
        (request,) = model.requests
    sent = json.loads(request.body or b"")
    assert (sent["max_tokens"], sent["stream"], len(sent["tools"])) == (1024, True, 1)
    assert dict(request.headers)["authorization"] != f"Bearer {SECRET}"  # hidden in the log, so it came


def test_a_missing_end_contradicts_a_profile_that_waits_for_it() -> None:
    turn = {"answer": {"tool_calls": [CALL], "omit": ["done"]}}
    result = probed("generic", turn)
    assert detail(result, "end of stream") == "finish reason tool_calls, no [DONE]"
    assert any("waits for [DONE]" in sentence for sentence in result.contradictions)
    assert probed("minimax", turn).contradictions == ()


def test_an_answer_without_usage_contradicts_a_profile_that_asks_for_it() -> None:
    result = probed("generic", {"answer": {"text": "x", "usage": "none"}})
    assert told(result)["usage"] is Found.NO
    assert any("asks for usage" in sentence for sentence in result.contradictions)


def test_reasoning_in_another_field_than_it_goes_back_in_is_a_contradiction() -> None:
    turn = {"answer": {"reasoning": "hm", "tool_calls": [CALL]}}
    result = probed("deepseek", turn, dialect={"reasoning_field": "reasoning"})
    assert result.contradictions == (
        "profile deepseek sends reasoning back as reasoning_content; it came as reasoning",
    )
    assert probed("vllm", turn, dialect={"reasoning_field": "reasoning"}).contradictions == ()


@pytest.mark.parametrize(
    ("call", "expected", "words"),
    [
        ([{**CALL, "id": TOOL_NAME}], Found.NO, "not unique"),
        ([{**CALL, "id": "1"}, {**CALL, "id": "1"}], Found.NO, "not unique"),
        ([{**CALL, "id": ""}], Found.NO, "without ids"),
        ([{**CALL, "id": "1"}, {**CALL, "id": "2"}], Found.YES, "one for each call"),
    ],
)
def test_W03_ids_are_looked_at(call: list[dict[str, Any]], expected: Found, words: str) -> None:
    result = probed("generic", {"answer": {"tool_calls": call}})
    assert told(result)["tool call ids"] is expected
    assert words in detail(result, "tool call ids")


@pytest.mark.parametrize(
    ("answer", "about", "expected", "words"),
    [
        ({"text": "no"}, "tools", Found.UNKNOWN, "answered with text and called no tool"),
        ({"tool_calls": [{"name": TOOL_NAME, "arguments_text": '{"wo'}]}, "tools", Found.NO, "are no JSON"),
        ({"tool_calls": [{"name": "other"}]}, "tools", Found.YES, "other arguments than asked for"),
        ({"tool_calls": [{**CALL, "id": "a"}, {**CALL, "id": "b", "index": 0}]}, "protocol", Found.NO, "index 0"),
        ({"text": "x", "omit": ["finish"]}, "end of stream", Found.NO, "no finish reason, then [DONE]"),
    ],
)
def test_what_is_not_as_it_should_be_is_shown(answer: dict[str, Any], about: str, expected: Found, words: str) -> None:
    result = probed("generic", {"answer": answer})
    assert told(result)[about] is expected
    assert words in detail(result, about)


def test_a_document_in_place_of_a_stream_is_shown_as_such() -> None:
    document = {"id": "1", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    raw = {"text": json.dumps(document), "headers": {"content-type": "application/json"}}
    result = probed("generic", {"answer": {"raw": raw}})
    assert told(result)["streaming"] is Found.NO
    assert told(result)["end of stream"] is Found.UNKNOWN
    assert result.contradictions == ()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"text": "<html>", "headers": {"content-type": "text/html"}}, "neither an event stream nor JSON (text/html)"),
        ({"text": "data: nonsense\n\n"}, "not JSON"),
        ({"base64": "ZGF0YTog//8KCg=="}, "invalid UTF-8"),
    ],
)
def test_what_cannot_be_read_is_shown_and_not_guessed(raw: dict[str, Any], words: str) -> None:
    result = probed("generic", {"answer": {"raw": raw}})
    assert words in detail(result, "protocol")
    assert told(result)["tools"] is told(result)["usage"] is Found.UNKNOWN


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"http_error": {"status": 429, "body": {"error": {"code": "1113"}}}}, Code.MODEL_RATE_LIMITED),
        ({"http_error": {"status": 404}}, Code.MODEL_REQUEST_REJECTED),
        (
            {"text": "x", "cut": {"then": "error", "event": {"error": {"code": "1261"}}}},
            Code.MODEL_CONTEXT_LENGTH_EXCEEDED,
        ),
        ({"no_answer": "hang_up"}, Code.MODEL_TRANSPORT_FAILED),
        ({"text": "x" * 100, "cut": {"then": "hang_up", "after_chunks": 1}}, Code.MODEL_TRANSPORT_FAILED),
    ],
)
def test_a_call_that_is_not_answered_is_an_error_with_the_code_of_its_class(answer: dict[str, Any], code: Code) -> None:
    with pytest.raises(RequestError) as caught:
        probed("zhipu", {"answer": answer})
    assert caught.value.code == code
