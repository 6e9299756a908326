"""Questions to an endpoint outside of any run, over real HTTP: what it tells is shown, the rest stays unknown."""

import json
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentloom_worker import limits
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.devmodel import DevModel, parse_script
from agentloom_worker.errors import Code, RequestError
from agentloom_worker.llm.discover import MetadataSource, ModelDescriptor, discover
from agentloom_worker.llm.endpoint import Endpoint, EndpointClient, shown
from agentloom_worker.llm.probe import PROTOCOLS, TOOL_NAME, Bounds, Found, Probe, probe, protocol_of
from agentloom_worker.llm.profiles import PROFILES, Profile, ReasoningReplay
from tests.unit.http.raw_server import STREAM_HEAD, WAIT_S, Exchange, bytes_of, serving
from tests.unit.llm import response_streams, streams

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


def probed(profile: str, *turns: dict[str, Any], protocol: str | None = None, **script: Any) -> Probe:
    with asking(profile, *turns, **script) as (_, client, endpoint):
        return probe(client, endpoint, "dev-model", protocol=protocol)


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

CERTIFICATES = Path(__file__).parent / "certificates"
in_every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def refused(profile: str, turn: dict[str, Any], protocol: str, model: str = "dev-model") -> RequestError:
    with pytest.raises(RequestError) as caught, asking(profile, turn) as (_, client, endpoint):
        probe(client, endpoint, model, protocol=protocol)
    assert SECRET not in caught.value.message
    return caught.value


def asked(base_url: str, protocol: str) -> Probe:
    with closing(EndpointClient(SystemClock())) as client:
        return probe(client, Endpoint(base_url, PROFILES["generic"]), "m", protocol=protocol)


@pytest.mark.parametrize(
    ("profile", "protocol", "end", "field"),
    [
        ("deepseek", "openai-chat", "finish reason tool_calls, then [DONE]", "reasoning_content"),
        ("openai", "openai-responses", "final event response.completed", "summary_text"),
    ],
)
def test_an_endpoint_that_does_everything(profile: str, protocol: str, end: str, field: str) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 9, "cached_tokens": 8}
    turn = {"answer": {"reasoning": "hm", "tool_calls": [CALL], "usage": usage}}
    result = probed(profile, turn, protocol=protocol)
    assert set(told(result).values()) == {Found.YES}
    assert result.contradictions == ()
    assert detail(result, "usage") == "40 tokens in, 8 of them cached, 9 out"
    assert detail(result, "end of stream") == end
    assert detail(result, "reasoning").endswith(field)
    assert detail(result, "tools") == "called with the arguments asked for"
    assert detail(result, "tool call ids") == "one for each call"
    assert result.protocol == protocol and result.not_shown


@pytest.mark.parametrize(
    ("protocol", "limit"), [("openai-chat", "max_tokens"), ("openai-responses", "max_output_tokens")]
)
def test_it_is_one_call_with_a_bounded_answer(protocol: str, limit: str) -> None:
    with asking("generic") as (model, client, endpoint):
        probe(client, endpoint, "dev-model", protocol=protocol)
        (request,) = model.requests
    sent = json.loads(request.body or b"")
    assert (sent[limit], sent["stream"], len(sent["tools"])) == (1024, True, 1)
    assert dict(request.headers)["authorization"] != f"Bearer {SECRET}"  # hidden in the log, so it came


def test_the_profile_says_which_protocol_is_asked_in_and_which_are_refused() -> None:
    for profile in PROFILES.values():
        assert protocol_of(profile) == (profile.protocols or PROTOCOLS)[0]
    assert {protocol_of(PROFILES[name]) for name in ("generic", "custom", "openai")} == {"openai-chat"}
    assert protocol_of(Profile("p", 1, protocols=("openai-responses",))) == "openai-responses"
    for wanted, code in (
        ("openai-responses", Code.MODEL_FEATURE_UNSUPPORTED),
        ("scripted", Code.INPUT_INVALID),
        ("no-such", Code.INPUT_INVALID),
    ):
        with pytest.raises(RequestError) as caught, asking("deepseek") as (model, client, endpoint):
            probe(client, endpoint, "dev-model", protocol=wanted)
        assert caught.value.code == code and "openai-chat" in caught.value.message
        assert not model.requests


def test_what_the_adapter_cannot_do_for_a_profile_is_refused_in_its_words() -> None:
    client, endpoint = (
        EndpointClient(SystemClock()),
        Endpoint("http://127.0.0.1:1", Profile("p", 1, reasoning_field="x")),
    )
    with closing(client), pytest.raises(RequestError) as caught:
        probe(client, endpoint, "m")
    assert caught.value.code == Code.MODEL_FEATURE_UNSUPPORTED and "profile p" in caught.value.message


def test_a_missing_end_contradicts_a_profile_that_waits_for_it() -> None:
    turn = {"answer": {"tool_calls": [CALL], "omit": ["done"]}}
    result = probed("generic", turn)
    assert detail(result, "end of stream") == "finish reason tool_calls, no [DONE]"
    assert (told(result)["tools"], told(result)["protocol"]) == (Found.YES, Found.NO)
    (sentence,) = result.contradictions
    assert "waits for [DONE]" in sentence
    assert probed("minimax", turn).contradictions == ()
    assert probed("generic", turn, protocol="openai-responses").contradictions == ()


def test_an_answer_without_usage_contradicts_a_profile_that_asks_for_it() -> None:
    turn = {"answer": {"text": "x", "usage": "none"}}
    result = probed("generic", turn)
    assert told(result)["usage"] is Found.NO
    assert any("asks for usage" in sentence for sentence in result.contradictions)
    result = probed("generic", turn, protocol="openai-responses")
    assert (told(result)["usage"], result.contradictions) == (Found.NO, ())


def test_reasoning_in_another_field_than_it_goes_back_in_is_a_contradiction() -> None:
    turn = {"answer": {"reasoning": "hm", "tool_calls": [CALL]}}
    result = probed("deepseek", turn, dialect={"reasoning_field": "reasoning"})
    assert result.contradictions == (
        "profile deepseek sends reasoning back as reasoning_content; it came as reasoning",
    )
    assert probed("vllm", turn, dialect={"reasoning_field": "reasoning"}).contradictions == ()


def test_reasoning_that_came_open_contradicts_a_profile_that_sends_it_back_encrypted() -> None:
    sealing = Profile("p", 1, reasoning_replay=ReasoningReplay.ALWAYS, encrypted_reasoning=True)
    for sealed, contradictions in (
        ("", ("profile p sends reasoning back as encrypted_content; it came as summary_text",)),
        ("x", ()),
    ):
        with (
            serving(bytes_of(STREAM_HEAD + _thinking(sealed))) as server,
            closing(EndpointClient(SystemClock())) as client,
        ):
            result = probe(client, Endpoint(server.base_url, sealing), "m", protocol="openai-responses")
        assert result.contradictions == contradictions


def _thinking(sealed: str) -> bytes:
    item = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    said = response_streams.message("x")
    if sealed:
        item["encrypted_content"] = sealed
    closed = response_streams.closed(0, **item) + response_streams.closed(1, **said)
    return (response_streams.CREATED + closed + response_streams.ended("completed")).encode()


@in_every_protocol
@pytest.mark.parametrize(
    ("call", "expected", "words"),
    [
        ([{**CALL, "id": TOOL_NAME}], Found.NO, "not unique"),
        ([{**CALL, "id": "1"}, {**CALL, "id": "1"}], Found.NO, "not unique"),
        ([{**CALL, "id": ""}], Found.NO, "without ids"),
        ([{**CALL, "id": "1"}, {**CALL, "id": "2"}], Found.YES, "one for each call"),
    ],
)
def test_W03_ids_are_looked_at(call: list[dict[str, Any]], expected: Found, words: str, protocol: str) -> None:
    result = probed("generic", {"answer": {"tool_calls": call}}, protocol=protocol)
    assert told(result)["tool call ids"] is expected
    assert words in detail(result, "tool call ids")


@in_every_protocol
def test_calls_that_come_without_a_place_are_said_to(protocol: str) -> None:
    arguments = '{"word":"ready"}'
    chat = streams.delta(tool_calls=[{"id": "1", "function": {"name": TOOL_NAME, "arguments": arguments}}])
    item = {"type": "function_call", "call_id": "1", "name": TOOL_NAME}
    added = response_streams.event("response.output_item.added", item=item)
    done = response_streams.event("response.output_item.done", item={**item, "arguments": arguments})
    stream = {
        "openai-chat": chat + streams.delta("tool_calls") + streams.DONE,
        "openai-responses": added + done + response_streams.ended("completed"),
    }[protocol]
    with serving(bytes_of(STREAM_HEAD + stream.encode())) as server:
        result = asked(server.base_url, protocol)
    assert detail(result, "tool call ids") == "one for each call, without indexes"


@pytest.mark.parametrize(
    ("answer", "about", "expected", "words", "protocol"),
    [
        *(
            (answer, about, expected, words, protocol)
            for protocol in PROTOCOLS
            for answer, about, expected, words in (
                ({"text": "no"}, "tools", Found.UNKNOWN, "answered with text and called no tool"),
                (
                    {"tool_calls": [{"name": TOOL_NAME, "arguments_text": '{"wo'}]},
                    "tools",
                    Found.NO,
                    "are no JSON",
                ),
                ({"tool_calls": [{"name": "other"}]}, "tools", Found.YES, "other arguments than asked for"),
                (
                    {"tool_calls": [{**CALL, "id": "a"}, {**CALL, "id": "b", "index": 0}]},
                    "protocol",
                    Found.NO,
                    "index",
                ),
            )
        ),
        ({"text": "x", "omit": ["finish"]}, "end of stream", Found.NO, "no finish reason, then", "openai-chat"),
    ],
)
def test_what_is_not_as_it_should_be_is_shown(
    answer: dict[str, Any], about: str, expected: Found, words: str, protocol: str
) -> None:
    result = probed("generic", {"answer": answer}, protocol=protocol)
    assert told(result)[about] is expected
    assert words in detail(result, about)
    # What a run could not read contradicts any profile; what a model chose to say contradicts none.
    assert bool(result.contradictions) is (told(result)["protocol"] is Found.NO)


@in_every_protocol
def test_an_answer_that_uses_up_its_tokens_and_does_not_say_so_is_shown(protocol: str) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": limits.PROBE_OUTPUT_TOKENS}
    result = probed("generic", {"answer": {"text": "x", "usage": usage}}, protocol=protocol)
    assert "a cut answer looks like a whole one" in detail(result, "end of stream")
    cut = {"text": "x", "usage": usage, "finish_reason": "length"}
    result = probed("generic", {"answer": cut}, protocol=protocol)
    assert "cut" not in detail(result, "end of stream")


@in_every_protocol
def test_S10_a_document_in_place_of_a_stream_contradicts_what_every_profile_asks_for(protocol: str) -> None:
    chat = {"id": "1", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}
    said = {"object": "response", "status": "completed", "output": [response_streams.message("hi")]}
    document = {"openai-chat": chat, "openai-responses": said}[protocol]
    raw = {"text": json.dumps(document), "headers": {"content-type": "application/json"}}
    result = probed("generic", {"answer": {"raw": raw}}, protocol=protocol)
    assert (told(result)["streaming"], told(result)["protocol"]) == (Found.NO, Found.YES)
    assert told(result)["end of stream"] is Found.UNKNOWN
    assert detail(result, "tools") == "the model answered with text and called no tool"
    (sentence,) = result.contradictions
    assert "asks for a stream, which did not come" in sentence


@in_every_protocol
@pytest.mark.parametrize(
    ("raw", "words"),
    [({"text": "data: nonsense\n\n"}, "not JSON"), ({"base64": "ZGF0YTog//8KCg=="}, "invalid UTF-8")],
)
def test_what_cannot_be_read_is_shown_and_not_guessed(raw: dict[str, Any], words: str, protocol: str) -> None:
    result = probed("generic", {"answer": {"raw": raw}}, protocol=protocol)
    assert words in detail(result, "protocol")
    assert told(result)["tools"] is told(result)["usage"] is Found.UNKNOWN
    assert result.contradictions == ("profile generic cannot be read from this: a run would see MODEL_PROTOCOL_ERROR",)


@in_every_protocol
@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ({"http_error": {"status": 429, "body": {"error": {"code": "1113"}}}}, Code.MODEL_RATE_LIMITED, "HTTP 429"),
        (
            {"text": "x", "cut": {"then": "error", "event": {"error": {"code": "context_length_exceeded"}}}},
            Code.MODEL_CONTEXT_LENGTH_EXCEEDED,
            "inside its answer",
        ),
        ({"no_answer": "hang_up"}, Code.MODEL_TRANSPORT_FAILED, ""),
        ({"text": "x" * 100, "cut": {"then": "hang_up", "after_chunks": 1}}, Code.MODEL_TRANSPORT_FAILED, ""),
        (
            {"raw": {"text": "<html>", "headers": {"content-type": "text/html"}}},
            Code.MODEL_PROTOCOL_ERROR,
            "web page",
        ),
        (
            {"raw": {"text": "hello", "headers": {"content-type": "text/plain"}}},
            Code.MODEL_PROTOCOL_ERROR,
            "no event stream",
        ),
    ],
)
def test_a_call_that_is_not_answered_is_an_error_with_the_code_of_a_run(
    answer: dict[str, Any], code: Code, words: str, protocol: str
) -> None:
    error = refused("generic", {"answer": answer}, protocol)
    assert error.code == code
    assert f"{protocol} at http://127.0.0.1:" in error.message and words in error.message


@in_every_protocol
def test_a_path_that_is_not_there_names_the_other_protocol_and_what_the_list_of_models_tells(protocol: str) -> None:
    (other,) = (one for one in PROTOCOLS if one != protocol)
    for status in (404, 405, 501):
        turn = {"answer": {"http_error": {"status": status}}}
        error = refused("generic", turn, protocol)
        assert error.code == Code.MODEL_FEATURE_UNSUPPORTED
        assert f"HTTP {status}" in error.message
        assert f"it does not offer {protocol}: try --protocol {other}" in error.message
    error = refused("generic", turn, protocol, model="unheard-of")
    assert "it lists no model unheard-of (but dev-model), or" in error.message
    error = refused("generic", {"answer": {"http_error": {"status": 404}}}, protocol, model="unheard-of")
    assert error.code == Code.MODEL_REQUEST_REJECTED


@in_every_protocol
def test_a_base_url_below_which_nothing_is_served_is_asked_about(protocol: str) -> None:
    with asking("generic") as (_, client, endpoint), pytest.raises(RequestError) as caught:
        probe(client, Endpoint(f"{endpoint.base_url}/v9", endpoint.profile), "dev-model", protocol=protocol)
    assert caught.value.code == Code.MODEL_REQUEST_REJECTED
    assert "is the base URL right?" in caught.value.message


def test_a_provider_of_one_protocol_has_no_other_to_try() -> None:
    error = refused("zhipu", {"answer": {"http_error": {"status": 404}}}, "openai-chat")
    assert error.message.endswith("so it does not offer openai-chat: profile zhipu offers no other")


@in_every_protocol
def test_a_key_that_is_missing_or_refused_is_said_to_be(protocol: str) -> None:
    with asking("generic", dialect={"auth": {"header": "api-key", "value": "other"}}) as (_, client, endpoint):
        for key, words in ((SECRET, "the key was sent"), (None, "no key was sent: name one as the credential")):
            with pytest.raises(RequestError) as caught:
                probe(client, Endpoint(endpoint.base_url, endpoint.profile, key), "dev-model", protocol=protocol)
            assert caught.value.code == Code.MODEL_REQUEST_REJECTED
            assert "HTTP 401" in caught.value.message and words in caught.value.message
            assert SECRET not in caught.value.message


@in_every_protocol
def test_nobody_who_listens_is_a_transport_failure(protocol: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked("http://user:hidden@127.0.0.1:1/v1?key=hidden", protocol)
    assert caught.value.code == Code.MODEL_TRANSPORT_FAILED
    assert f"{protocol} at http://127.0.0.1:1/v1: cannot connect" in caught.value.message
    assert "hidden" not in caught.value.message


@in_every_protocol
def test_a_certificate_that_nobody_signed_is_a_transport_failure_of_tls(protocol: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "loopback.pem", CERTIFICATES / "loopback.key")
    with serving(lambda exchange: None, context=context) as server, pytest.raises(RequestError) as caught:
        asked(server.base_url, protocol)
    assert caught.value.code == Code.MODEL_TRANSPORT_FAILED
    assert "TLS handshake failed" in caught.value.message
    assert server.served == 0


@in_every_protocol
@pytest.mark.parametrize(
    ("bounds", "code", "words"),
    [
        (Bounds(), Code.MODEL_FIRST_OUTPUT_TIMEOUT, "may need more (--first-output)"),
        (Bounds(first_output_s=5_000.0), Code.WAIT_TIMEOUT, "the answer had not ended after 120 s"),
    ],
)
def test_a_stream_that_never_ends_is_ended_by_the_bounds(bounds: Bounds, code: Code, words: str, protocol: str) -> None:
    clock = ManualClock()

    def endless(exchange: Exchange) -> None:
        exchange.send(STREAM_HEAD + b": still here\n\n")
        clock.advance(1_000.0)
        exchange.send(b": and still\n\n")
        exchange.wait_for_end()

    with serving(endless) as server, closing(EndpointClient(clock)) as client:
        with pytest.raises(RequestError) as caught:
            probe(client, Endpoint(server.base_url, PROFILES["generic"]), "m", protocol=protocol, bounds=bounds)
        assert server.ended.wait(WAIT_S), "the stream was left open"
    assert caught.value.code == code
    assert words in caught.value.message
