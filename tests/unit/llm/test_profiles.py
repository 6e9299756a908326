"""The table of profiles: what it promises about itself, what it refuses in a release, how it reads errors."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloom_worker.canonical import sha256_hex
from agentloom_worker.clock import SystemClock
from agentloom_worker.context.view import View
from agentloom_worker.domain.model import Executed, Message, MessageCall, ReasoningItem, Role, ToolSchema
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.release import freeze_release, load_release
from agentloom_worker.errors import Code, ReleaseInvalidError, RunError
from agentloom_worker.llm.adapters import ADAPTERS, AdapterPorts, Adapters
from agentloom_worker.llm.adapters.openai_chat import OpenAIChatAdapter
from agentloom_worker.llm.assembly import ProviderReportedError
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.chat_encoding import RESERVED_PARAMETERS, ChatEncoding
from agentloom_worker.llm.http_failures import failure_of_frame, failure_of_status
from agentloom_worker.llm.profiles import PROFILES, Ending, ErrorClass, Profile, ReasoningReplay, custom_profile
from agentloom_worker.llm.responses_assembly import ResponsesAssembly
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.wire.release import DialectDocument, parse_release
from tests.factories import python_tool, release_document
from tests.unit.llm.test_role_order import CONVERSATION, PARAMETERS

BODIES = Path(__file__).parents[2] / "golden" / "openai_chat_1" / "profiles.json"
NAMES = [
    "generic",
    "openai",
    "azure-openai",
    "openrouter",
    "deepseek",
    "zhipu",
    "dashscope",
    "minimax",
    "moonshot",
    "vllm",
    "llama-cpp",
    "ollama",
    "litellm-proxy",
    "custom",
]
URL = "https://api.example.com/v1"
TOOLS = (ToolSchema("look", "Looks.", {"type": "object"}),)


def body_of(profile: Profile) -> bytes:
    encoding = ChatEncoding(profile)
    view = View(seam=encoding.seam).extend([encoding.encode_message(message) for message in CONVERSATION])
    return encoding.frame_body(PARAMETERS, view, encoding.encode_tools(TOOLS)).join()


def problems(**model: Any) -> dict[str, str]:
    main = {"protocol": "openai-chat", "base_url": URL, **model}
    document = release_document(models={"main": main})
    for name in [name for name, value in model.items() if value is None]:
        del document["models"]["main"][name]
    with pytest.raises(ReleaseInvalidError) as caught:
        resolve_release(document)
    found = dict(caught.value.problems)
    assert len(found) == len(caught.value.problems), "a place is reported twice"
    return found


def bound(**model: Any) -> Any:
    main = {"protocol": "openai-chat", "base_url": URL, **model}
    document = release_document(models={"main": main})
    for name in [name for name, value in model.items() if value is None]:
        del document["models"]["main"][name]
    return load_release(resolve_release(document).body).model


def test_every_profile_stands_in_the_table_under_its_name() -> None:
    assert list(PROFILES) == NAMES
    assert all(name == profile.name for name, profile in PROFILES.items())


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_complete(name: str) -> None:
    profile = PROFILES[name]
    ChatEncoding(profile)  # its flags are implemented
    assert profile.facts
    if name not in ("generic", "custom"):
        assert profile.protocols and profile.protocols[0] == "openai-chat"
    for names in (profile.parameters, profile.responses_parameters):
        assert not names or not names & (RESERVED_PARAMETERS - {"functions"})
    assert profile.base_url is None or re.fullmatch(r"https?://[^/?]+(/[^?]*[^/?])?", profile.base_url)
    assert {dotted.split(".")[0] for dotted in profile.unsupported} <= (profile.parameters or frozenset())
    for other in profile.other_addresses:
        assert re.fullmatch(r"https://[^/?]+/[^?]*[^/?]", other.base_url) and other.text
        assert other.base_url != profile.base_url
    # A word of a profile's own never changes what one of the four endings means.
    assert not {ending.value for ending in Ending} & set(profile.finish_reasons)
    assert not profile.models or all(known.context_window_tokens for known in profile.models)


# Whose word counts: a provider's pages, and the repositories of its own people. Model makers publish their templates
# as part of the models; those that are read here are the copies that llama.cpp keeps.
_TEMPLATES = "https://github.com/ggml-org/llama.cpp/blob/master/models/templates/"
_ALIBABA = ("https://help.aliyun.com/", "https://www.alibabacloud.com/help/", "https://docs.qwencloud.com/")
OWN = {
    "openai": ("https://developers.openai.com/", "https://github.com/openai/"),
    "azure-openai": ("https://learn.microsoft.com/", "https://github.com/Azure/"),
    "openrouter": ("https://openrouter.ai/docs/", "https://github.com/OpenRouterTeam/"),
    "deepseek": ("https://api-docs.deepseek.com/", "https://huggingface.co/deepseek-ai/"),
    "zhipu": ("https://docs.bigmodel.cn/", "https://docs.z.ai/", "https://github.com/zai-org/", _TEMPLATES + "GLM-"),
    "dashscope": (*_ALIBABA, "https://github.com/dashscope/"),
    "minimax": (
        "https://platform.minimax.io/docs/",
        "https://platform.minimaxi.com/docs/",
        "https://github.com/MiniMax-AI/",
        _TEMPLATES + "unsloth-MiniMax-",
    ),
    "moonshot": (
        "https://platform.kimi.ai/docs/",
        "https://platform.moonshot.ai/docs/",
        "https://platform.moonshot.cn/docs/",
        "https://www.kimi.com/code/docs/",
        "https://github.com/MoonshotAI/",
    ),
    "vllm": ("https://docs.vllm.ai/", "https://github.com/vllm-project/vllm/"),
    "llama-cpp": ("https://github.com/ggml-org/llama.cpp/",),
    "ollama": ("https://docs.ollama.com/", "https://github.com/ollama/ollama/"),
    "litellm-proxy": ("https://docs.litellm.ai/", "https://github.com/BerriAI/litellm/"),
}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("generic", "custom")])
def test_facts_stand_on_the_word_of_the_provider_itself(name: str) -> None:
    profile = PROFILES[name]
    sources = [fact.source for fact in profile.facts] + [known.source for known in profile.models]
    sources += [other.source for other in profile.other_addresses]
    assert [source for source in sources if not source.startswith(OWN[name])] == []


def test_the_bytes_of_a_version_of_a_profile_never_change() -> None:
    recorded = json.loads(BODIES.read_bytes())
    found = {f"{profile.name}@{profile.version}": sha256_hex(body_of(profile)) for profile in PROFILES.values()}
    assert {name: recorded[name] for name in found} == found, "other bytes need a new version of the profile"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("generic", "custom")])
def test_every_finish_reason_that_a_profile_translates_is_documented(name: str) -> None:
    said = " ".join(fact.text for fact in PROFILES[name].facts)
    undocumented = {reason for reason in PROFILES[name].finish_reasons if reason not in said}
    # GLM's answers name it, no page that was found does.
    assert undocumented == ({"model_context_window_exceeded"} if name == "zhipu" else set())


def test_what_ends_a_stream_is_said_wherever_a_page_says_it() -> None:
    silent = {"generic", "custom", "dashscope", "litellm-proxy"}
    for name in set(NAMES) - silent:
        assert any("[DONE]" in fact.text for fact in PROFILES[name].facts), name
    assert {name for name in NAMES if not PROFILES[name].done_required} == {"minimax"}


def test_the_addresses_of_plans_and_regions_are_there_to_be_written() -> None:
    plans = {
        (name, other.base_url)
        for name in NAMES
        for other in PROFILES[name].other_addresses
        if "Plan" in other.text or "Kimi Code" in other.text
    }
    assert plans == {
        ("zhipu", "https://open.bigmodel.cn/api/coding/paas/v4"),
        ("zhipu", "https://api.z.ai/api/coding/paas/v4"),
        ("dashscope", "https://coding.dashscope.aliyuncs.com/v1"),
        ("dashscope", "https://coding-intl.dashscope.aliyuncs.com/v1"),
        ("dashscope", "https://token-plan.cn-beijing.maas.aliyuncs.com/compatible-mode/v1"),
        ("dashscope", "https://token-plan.ap-southeast-1.maas.aliyuncs.com/compatible-mode/v1"),
        ("moonshot", "https://api.kimi.com/coding/v1"),
    }
    assert bound(profile="zhipu", base_url="https://api.z.ai/api/coding/paas/v4").profile == "zhipu"


def test_generic_is_the_protocol_and_nothing_else() -> None:
    plain = dataclasses.replace(PROFILES["generic"], facts=())
    assert plain == Profile("generic", 1)
    assert OpenAIChatAdapter(SystemClock(), plain).version == "openai-chat@1/generic@1"


def test_a_setting_that_a_profile_does_not_carry_is_refused_with_its_path() -> None:
    found = problems(profile="deepseek", parameters={"temperature": 0, "top_k": 4, "seed": 1})
    assert list(found) == ["/models/main/parameters/seed", "/models/main/parameters/top_k"]
    text = found["/models/main/parameters/top_k"]
    assert text.startswith("MODEL_FEATURE_UNSUPPORTED: profile deepseek carries no such parameter; it carries")
    assert "temperature" in text


def test_a_value_that_needs_what_a_profile_lacks_is_refused_with_its_path() -> None:
    found = problems(profile="zhipu", parameters={"thinking": {"type": "enabled", "clear_thinking": False}})
    assert list(found) == ["/models/main/parameters/thinking/clear_thinking"]
    bound(profile="zhipu", parameters={"thinking": {"type": "enabled"}})


def test_a_parameter_of_the_worker_is_reported_once() -> None:
    assert (
        "is set by the worker"
        in problems(profile="openai", parameters={"max_tokens": 1})["/models/main/parameters/max_tokens"]
    )


@pytest.mark.parametrize("name", [name for name in NAMES if PROFILES[name].parameters])
def test_every_parameter_of_a_profile_can_be_set(name: str) -> None:
    parameters = dict.fromkeys(PROFILES[name].parameters or (), 1)
    assert [key for key, _ in bound(profile=name, parameters=parameters).parameters] == sorted(parameters)


def test_profiles_that_know_no_list_pass_any_parameter_on() -> None:
    for name in ("generic", "litellm-proxy", "custom"):
        settled = PROFILES[name].settled.items()
        assert bound(profile=name, parameters={"anything": 1}).parameters == (("anything", 1), *settled)


@pytest.mark.parametrize(
    ("profile", "protocol", "parameters"),
    [
        ("vllm", "openai-responses", {"top_k": 20, "seed": 1, "stop": ["x"], "structured_outputs": {"regex": "a"}}),
        ("llama-cpp", "openai-chat", {"mirostat": 2, "dry_multiplier": 0.8, "parallel_tool_calls": True}),
    ],
)
def test_what_a_server_documents_for_its_protocol_is_taken(
    profile: str, protocol: str, parameters: dict[str, Any]
) -> None:
    assert dict(bound(profile=profile, protocol=protocol, parameters=parameters).parameters) == parameters


FALLBACKS = {
    "fallbacks": ["other"],
    "context_window_fallbacks": [{"m": ["other"]}],
    "content_policy_fallbacks": [{"m": ["other"]}],
    "models": ["other"],
    "route": "fallback",
    "providerOptions": {"gateway": {"models": ["other"], "order": ["a"]}},
    "extra_body": {"model": "other", "models": ["other"], "route": "fallback", "top_k": 1},
}


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses", "scripted"])
@pytest.mark.parametrize("name", NAMES)
def test_no_profile_carries_what_lets_another_model_answer(name: str, protocol: str) -> None:
    address = "script:x" if protocol == "scripted" else URL
    if protocol not in (*(PROFILES[name].protocols or ("openai-chat", "openai-responses")), "scripted"):
        return
    found = problems(profile=name, protocol=protocol, base_url=address, parameters=FALLBACKS)
    refused = {path: text for path, text in found.items() if "no run falls back to one" in text}
    behind = ("providerOptions/gateway/models", "extra_body/model", "extra_body/models", "extra_body/route")
    places = [*list(FALLBACKS)[:-2], *behind]
    assert set(refused) == {f"/models/main/parameters/{place}" for place in places}
    assert set(refused.values()) == {
        "MODEL_FEATURE_UNSUPPORTED: lets another model answer than `model` names, and no run falls back to one:"
        " leave it out"
    }
    unknown = {f"/models/main/parameters/{parameter}" for parameter in ("providerOptions", "extra_body")}
    assert set(found) - set(refused) <= unknown, "a list has no such parameter"


def test_a_dialect_lists_no_parameter_that_lets_another_model_answer() -> None:
    flags = {"parameters": ["temperature", "models", "route"]}
    found = problems(profile="custom", dialect=flags, parameters={"temperature": 0, "models": ["other"]})
    assert list(found) == [
        "/models/main/dialect/parameters/1",
        "/models/main/dialect/parameters/2",
        "/models/main/parameters/models",
    ]
    assert all("no run falls back to one: leave it out" in text for text in found.values())


def test_where_only_another_host_of_the_same_model_may_answer_a_release_decides() -> None:
    routing = {"provider": {"allow_fallbacks": False, "only": ["a"]}}
    assert bound(profile="openrouter", parameters=routing).parameters == tuple(routing.items())
    options = {"providerOptions": {"gateway": {"order": ["a"]}}, "extra_body": {"provider": {"only": ["a"]}}}
    assert dict(bound(profile="generic", parameters=options).parameters) == options


def test_a_proxy_is_always_told_to_use_no_fallback_of_its_own() -> None:
    off = (("disable_fallbacks", True),)
    assert bound(profile="litellm-proxy").parameters == off
    assert bound(profile="litellm-proxy", protocol="openai-responses").parameters == off
    assert bound(profile="litellm-proxy", parameters={"disable_fallbacks": True}).parameters == off
    assert problems(profile="litellm-proxy", parameters={"disable_fallbacks": False}) == {
        "/models/main/parameters/disable_fallbacks": (
            "MODEL_FEATURE_UNSUPPORTED: profile litellm-proxy always sends true: leave it out"
        )
    }
    assert [profile.name for profile in PROFILES.values() if profile.settled] == ["litellm-proxy"]


def test_a_frozen_release_of_before_stays_what_it_is() -> None:
    """Only publishing refuses and adds: the bytes of a release that is in a database mean what they meant."""
    main = {"protocol": "openai-chat", "profile": "litellm-proxy", "base_url": f"{URL}/chat/completions"}
    parsed = parse_release(release_document(models={"main": {**main, "base_url": URL}}), known_profiles=NAMES)
    before = parsed.models["main"].model_copy(update={"parameters": FALLBACKS, "base_url": main["base_url"]})
    document = parsed.model_copy(update={"models": {"main": before}})
    model = load_release(freeze_release(document, ()).body).model
    assert (dict(model.parameters), model.base_url) == (FALLBACKS, main["base_url"])


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
@pytest.mark.parametrize("end", ["", "/"])
def test_an_address_ends_in_front_of_the_path_of_its_protocol(protocol: str, path: str, end: str) -> None:
    assert problems(protocol=protocol, base_url=f"{URL}{path}{end}") == {
        "/models/main/base_url": f"must end in front of `{path}`: the worker adds the path of the protocol itself"
    }
    assert bound(protocol=protocol, base_url=f"{URL}{path}/v1").base_url == f"{URL}{path}/v1"


def test_a_model_without_an_address_takes_that_of_its_profile() -> None:
    assert bound(profile="moonshot", base_url=None).base_url == "https://api.moonshot.ai/v1"
    assert bound(profile="moonshot", base_url=URL).base_url == URL


@pytest.mark.parametrize("name", [name for name in NAMES if PROFILES[name].base_url is None])
def test_a_profile_without_an_address_wants_one(name: str) -> None:
    found = problems(profile=name, base_url=None)
    assert found == {"/models/main/base_url": f"is required: profile {name} has no address of its own"}


def test_a_protocol_that_a_provider_does_not_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    only_responses = dataclasses.replace(PROFILES["deepseek"], protocols=("openai-responses",))
    monkeypatch.setitem(PROFILES, "deepseek", only_responses)
    text = problems(profile="deepseek")["/models/main/protocol"]
    assert text == "MODEL_FEATURE_UNSUPPORTED: profile deepseek offers openai-responses, not openai-chat"
    # A simulation stands for any of them.
    assert bound(profile="deepseek", protocol="scripted", base_url="script:x").profile == "deepseek"


ORDERED = [
    {"profile": "vllm"},
    {"profile": "llama-cpp"},
    {"profile": "custom", "dialect": {"mid_system": False, "strict_alternation": True}},
    {"profile": "custom", "dialect": {"mid_system": False, "first_must_be_user": True}},
]


@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
@pytest.mark.parametrize("model", ORDERED)
def test_every_protocol_makes_the_order_of_roles_that_a_profile_wants(model: dict[str, Any], protocol: str) -> None:
    frozen = bound(protocol=protocol, **model)
    adapter = Adapters(AdapterPorts(SystemClock())).of(frozen.protocol, frozen.profile, frozen.dialect)
    assert adapter is not None and adapter.seam is not None
    free = Adapters(AdapterPorts(SystemClock())).of(protocol, "generic")
    assert free is not None and free.seam is None


@pytest.mark.parametrize("name", [name for name in NAMES if PROFILES[name].protocols != ("openai-chat",)])
def test_what_may_be_published_with_responses_has_an_adapter(name: str) -> None:
    profile = PROFILES[name]
    parameters = dict.fromkeys(profile.responses_parameters or (), 1)
    model = bound(protocol="openai-responses", profile=name, parameters=parameters)
    assert [key for key, _ in model.parameters] == sorted({**parameters, **profile.settled})
    adapter = Adapters(AdapterPorts(SystemClock())).of(model.protocol, model.profile)
    assert adapter is not None and adapter.version == f"openai-responses@1/{name}@{profile.version}"


def test_a_simulation_never_takes_the_address_of_a_provider() -> None:
    assert problems(profile="openai", protocol="scripted", base_url=None) == {
        "/models/main/base_url": "is required: `script:NAME`"
    }


def test_a_window_beyond_the_documented_one_is_a_warning_with_its_source() -> None:
    model = {"profile": "dashscope", "model": "kimi-k2.5", "context_window_tokens": 300_000}
    document = release_document(models={"main": {"protocol": "openai-chat", "base_url": URL, **model}})
    (warning,) = resolve_release(document).warnings
    assert warning.startswith(
        "context_window_tokens 300000 of model kimi-k2.5 is more than the documented 262144 (http"
    )
    document["models"]["main"]["context_window_tokens"] = 262_144
    assert resolve_release(document).warnings == ()


def test_what_is_defined_and_unused_or_known_to_nobody_here_is_a_warning() -> None:
    document = release_document(tools={"echo": python_tool()})
    assert resolve_release(document).warnings == ()
    document["tools"]["spare"] = python_tool()
    document["models"]["other"] = {**document["models"]["main"]}
    document["models"]["main"]["credential"] = "ven:MODEL_KEY"
    assert resolve_release(document).warnings == (
        "tool spare is defined, and no agent uses it",
        "model other is defined, and no agent uses it",
        "credential ven:MODEL_KEY: no provider ven is installed here, and every worker needs it",
    )


def test_a_window_is_required_though_it_is_documented() -> None:
    found = problems(profile="dashscope", model="kimi-k2.5", context_window_tokens=None)
    assert "a window is never guessed" in found["/models/main/context_window_tokens"]


# -- custom ------------------------------------------------------------------------------------------


def test_the_flags_of_custom_are_frozen_with_every_default_and_make_its_adapter() -> None:
    model = bound(profile="custom", dialect={"done_required": False, "auth_header": "x-key", "auth_prefix": ""})
    flags = json.loads(model.dialect)
    assert set(flags) == set(DialectDocument.model_fields) - {"finish_reasons", "silent_limit"}
    assert (flags["done_required"], flags["stream_options"]) == (False, True)
    adapter = Adapters(AdapterPorts(SystemClock())).of(model.protocol, model.profile, model.dialect)
    assert isinstance(adapter, OpenAIChatAdapter)
    assert (adapter.profile.done_required, adapter.profile.auth_header) == (False, "x-key")
    assert re.fullmatch(r"openai-chat@1/custom\+[0-9a-f]{12}@1", adapter.version)


def test_custom_sends_the_reasoning_of_responses_back_as_it_says() -> None:
    flags = {"reasoning_replay": "in_tool_turns", "encrypted_reasoning": True}
    model = bound(protocol="openai-responses", profile="custom", dialect=flags)
    adapter = Adapters(AdapterPorts(SystemClock())).of(model.protocol, model.profile, model.dialect)
    assert adapter is not None
    assert b'"include":["reasoning.encrypted_content"]' in adapter.encode_parameters(PARAMETERS)
    item = ReasoningItem(item_id="rs_1", summary=("so",), encrypted="sealed", before_call=0)
    said = Message(Role.ASSISTANT, "", (MessageCall("c", "f", "{}"),), reasoning="so it is", reasoning_items=(item,))
    sent = adapter.encode_message(said)
    assert b'"encrypted_content":"sealed"' in sent and b"so it is" not in sent
    chat = ChatEncoding(custom_profile(model.dialect)).encode_message(said)
    assert b'"reasoning_content":"so it is"' in chat and b"sealed" not in chat


def test_a_flag_that_is_younger_than_frozen_dialects_stands_in_them_only_where_it_is_on() -> None:
    off = bound(profile="custom", dialect={"silent_limit": False}).dialect
    assert off == bound(profile="custom").dialect and "silent_limit" not in json.loads(off)
    on = bound(profile="custom", dialect={"silent_limit": True}).dialect
    assert json.loads(on) == {**json.loads(off), "silent_limit": True}
    assert [custom_profile(dialect).silent_limit for dialect in (off, on)] == [False, True]


SEALING = [name for name in NAMES if PROFILES[name].encrypted_replay is not None]


def test_encrypted_reasoning_is_carried_where_a_provider_documents_it() -> None:
    assert SEALING == ["openai", "azure-openai", "ollama"]
    for name in SEALING:
        profile = PROFILES[name]
        assert "openai-responses" in (profile.protocols or ())
        assert any("encrypted_content" in fact.text for fact in profile.facts)
        assert (profile.encrypted_reasoning, profile.reasoning_replay) == (False, ReasoningReplay.NEVER)


@pytest.mark.parametrize("name", SEALING)
def test_S07_a_release_turns_encrypted_reasoning_on_and_it_stands_in_every_hash(name: str) -> None:
    plain, off, on = (
        bound(protocol="openai-responses", profile=name, encrypted_reasoning=said) for said in (None, False, True)
    )
    assert [model.encrypted_reasoning for model in (plain, off, on)] == [False, False, True]
    item = ReasoningItem(item_id="rs_1", summary=("so",), encrypted="sealed", before_call=0)
    said = Message(Role.ASSISTANT, "", (MessageCall("c", "f", "{}"),), reasoning_items=(item,))
    made = []
    adapters = Adapters(AdapterPorts(SystemClock()))
    for model in (plain, on):
        adapter = adapters.of(model.protocol, model.profile, encrypted_reasoning=model.encrypted_reasoning)
        assert adapter is not None
        made.append(
            (adapter.version, adapter.encode_parameters(PARAMETERS), json.loads(b"[%b]" % adapter.encode_message(said)))
        )
    (version, parameters, items), (other_version, other_parameters, other_items) = made
    assert (version, other_version) == (f"openai-responses@1/{name}@1", f"openai-responses@1/{name}+encrypted@1")
    assert b"include" not in parameters and b'"include":["reasoning.encrypted_content"]' in other_parameters
    assert other_items == [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "so"}],
            "encrypted_content": "sealed",
        },
        *items,
    ]


def test_a_release_that_does_not_ask_freezes_to_the_same_bytes_as_ever() -> None:
    bodies = []
    for more in ({}, {"encrypted_reasoning": False}, {"encrypted_reasoning": True}):
        main = {"protocol": "openai-responses", "profile": "openai", "base_url": URL, **more}
        bodies.append(resolve_release(release_document(models={"main": main})).body)
    assert bodies[0] == bodies[1] and b"encrypted_reasoning" not in bodies[0]
    assert json.loads(bodies[2])["models"]["main"]["encrypted_reasoning"] is True


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"profile": "openai"}, "MODEL_FEATURE_UNSUPPORTED: there is encrypted reasoning in openai-responses alone"),
        ({"profile": "deepseek"}, "MODEL_FEATURE_UNSUPPORTED: profile deepseek knows of no encrypted reasoning"),
        ({"protocol": "openai-responses"}, "MODEL_FEATURE_UNSUPPORTED: profile generic knows of no encrypted"),
        ({"protocol": "openai-responses", "profile": "custom"}, "of `profile: custom` stands in its `dialect`"),
    ],
)
def test_encrypted_reasoning_is_refused_where_nobody_documents_it(model: dict[str, Any], text: str) -> None:
    found = problems(**model, encrypted_reasoning=True)
    assert list(found) == ["/models/main/encrypted_reasoning"]
    assert found["/models/main/encrypted_reasoning"].startswith(text)


def test_an_adapter_for_what_no_profile_carries_is_refused() -> None:
    with pytest.raises(RunError) as caught:
        Adapters(AdapterPorts(SystemClock())).of("openai-responses", "vllm", encrypted_reasoning=True)
    assert caught.value.code == Code.MODEL_FEATURE_UNSUPPORTED


def test_other_flags_are_another_version_and_custom_without_flags_is_the_plain_protocol() -> None:
    plain, other = bound(profile="custom"), bound(profile="custom", dialect={"mid_system": False})
    profiles = custom_profile(plain.dialect), custom_profile(other.dialect)
    assert profiles[0].name != profiles[1].name
    assert body_of(profiles[0]) == body_of(PROFILES["generic"]) != body_of(profiles[1])


def test_finish_reasons_of_custom_have_the_meaning_that_it_gives_them() -> None:
    said = {"done": "stop", "blocked": "content_filter", "lost": "transport", "too_long": "context_length"}
    profile = custom_profile(bound(profile="custom", dialect={"finish_reasons": said}).dialect)
    assert profile.finish_reasons == {
        "done": Ending.STOP,
        "blocked": Ending.CONTENT_FILTER,
        "lost": ErrorClass.TRANSPORT,
        "too_long": ErrorClass.CONTEXT_LENGTH,
    }
    assert [type(what) for what in profile.finish_reasons.values()] == [Ending, Ending, ErrorClass, ErrorClass]
    assert profile.name != custom_profile(bound(profile="custom").dialect).name


def test_a_dialect_without_finish_reasons_freezes_to_the_same_bytes_as_ever() -> None:
    for flags, digest in (
        ({}, "6e7e953ffdb71fc38a3acc4cae43260ef013e65fd20f8d6173d0d03b8bf6b4cb"),
        (
            {"codes": {"E7": "rate_limit"}, "done_required": False},
            "d708905be3c52b508b542f8ea34a9023f0b3b5c75d6d380c9c418b42af46b9b1",
        ),
    ):
        assert sha256_hex(bound(profile="custom", dialect=flags).dialect.encode()) == digest


def test_every_flag_of_a_dialect_is_a_flag_of_a_profile_with_the_same_default() -> None:
    named = {field.name: field.default for field in dataclasses.fields(Profile)}
    for name, field in DialectDocument.model_fields.items():
        assert name in named
        if name not in ("codes", "finish_reasons"):
            assert field.default == named[name]


def test_a_dialect_belongs_to_custom_alone() -> None:
    found = problems(profile="vllm", dialect={"mid_system": True})
    assert found == {"/models/main/dialect": "belongs to `profile: custom`; the flags of vllm are its own"}


@pytest.mark.parametrize(
    ("dialect", "path", "text"),
    [
        ({"strict_alternation": True}, "/models/main/dialect", "must say `mid_system: false`"),
        ({"first_must_be_user": True}, "/models/main/dialect", "must say `mid_system: false`"),
        ({"reasoning_replay": "sometimes"}, "/models/main/dialect/reasoning_replay", "must be 'never'"),
        ({"done_requird": False}, "/models/main/dialect/done_requird", "did you mean `done_required`?"),
        ({"auth_header": "a b"}, "/models/main/dialect/auth_header", "must be the name of a header"),
        ({"codes": {"4 2": "quota"}}, "/models/main/dialect/codes/4 2", "must be an error code"),
        ({"finish_reasons": {"a": "bad"}}, "/models/main/dialect/finish_reasons/a", "must be 'stop'"),
        ({"finish_reasons": {"a b": "stop"}}, "/models/main/dialect/finish_reasons/a b", "must be an error code"),
        ({"codes": {"42": "bad"}}, "/models/main/dialect/codes/42", "must be 'context_length'"),
    ],
)
def test_a_wrong_flag_is_refused_with_its_path(dialect: dict[str, Any], path: str, text: str) -> None:
    found = problems(profile="custom", dialect=dialect)
    assert list(found) == [path]
    assert text in found[path]


def test_the_parameters_of_custom_are_those_that_it_lists() -> None:
    dialect = {"parameters": ["temperature"]}
    found = problems(profile="custom", dialect=dialect, parameters={"temperature": 0, "top_p": 1})
    assert list(found) == ["/models/main/parameters/top_p"]
    assert custom_profile(bound(profile="custom", dialect=dialect).dialect).parameters == {"temperature"}


def test_the_codes_of_custom_classify() -> None:
    profile = custom_profile(bound(profile="custom", dialect={"codes": {"E7": "rate_limit"}}).dialect)
    assert profile.codes == {"E7": ErrorClass.RATE_LIMIT}


def test_adapters_are_made_once_and_only_for_what_is_known() -> None:
    adapters = Adapters(AdapterPorts(SystemClock()))
    assert adapters.of("openai-chat", "vllm") is adapters.of("openai-chat", "vllm")
    assert adapters.of("openai-chat", "no-such") is None
    assert adapters.of("no-such", "vllm") is None
    assert {protocol for protocol in ADAPTERS if adapters.of(protocol, "generic")} == set(ADAPTERS)
    adapters.close()


# -- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "error", "code", "retry_class"),
    [
        ("zhipu", 400, {"code": "1261"}, Code.MODEL_CONTEXT_LENGTH_EXCEEDED, None),
        ("zhipu", 429, {"code": "1113"}, Code.MODEL_RATE_LIMITED, None),
        ("zhipu", 429, {"code": "1302"}, Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        ("zhipu", 400, {"code": 1301}, Code.MODEL_CONTENT_FILTERED, None),
        ("dashscope", 429, {"code": "insufficient_quota"}, Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        ("openai", 429, {"code": "insufficient_quota"}, Code.MODEL_RATE_LIMITED, None),
        ("dashscope", 400, {"code": "Arrearage"}, Code.MODEL_RATE_LIMITED, None),
        ("moonshot", 429, {"type": "exceeded_current_quota_error"}, Code.MODEL_RATE_LIMITED, None),
        ("moonshot", 429, {"type": "engine_overloaded_error"}, Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        ("moonshot", 400, {"type": "content_filter"}, Code.MODEL_CONTENT_FILTERED, None),
        (
            "llama-cpp",
            500,
            {"code": 500, "type": "exceed_context_size_error"},
            Code.MODEL_CONTEXT_LENGTH_EXCEEDED,
            None,
        ),
        ("llama-cpp", 503, {"type": "unavailable_error"}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
        ("openrouter", 402, {"code": 402}, Code.MODEL_RATE_LIMITED, None),
        ("openrouter", 400, {"code": "context_length_exceeded"}, Code.MODEL_CONTEXT_LENGTH_EXCEEDED, None),
        ("deepseek", 503, {}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
        ("minimax", 500, {"code": "1004"}, Code.MODEL_REQUEST_REJECTED, None),
        ("minimax", 500, {"code": "1008"}, Code.MODEL_RATE_LIMITED, None),
        ("minimax", 200, {"code": "1024"}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
        ("dashscope", 400, {"code": "DataInspectionFailed"}, Code.MODEL_CONTENT_FILTERED, None),
        (
            "openrouter",
            403,
            {"code": 403, "metadata": {"error_type": "content_policy_violation"}},
            Code.MODEL_CONTENT_FILTERED,
            None,
        ),
        (
            "openrouter",
            429,
            {"code": 429, "metadata": {"error_type": "payment_required"}},
            Code.MODEL_RATE_LIMITED,
            None,
        ),
        ("minimax", 200, {"code": 1026}, Code.MODEL_CONTENT_FILTERED, None),
        ("minimax", 200, {"code": 1033}, Code.MODEL_PROVIDER_ERROR, RetryClass.TRANSPORT),
        (
            "azure-openai",
            400,
            {"code": "content_filter", "innererror": {"code": "ResponsibleAIPolicyViolation"}, "status": 400},
            Code.MODEL_CONTENT_FILTERED,
            None,
        ),
        ("dashscope", 429, {"code": "insufficient_quota", "type": "x"}, Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT),
        # It may be a flagged input as well as a missing permission: no code says which.
        ("openrouter", 403, {"code": 403}, Code.MODEL_REQUEST_REJECTED, None),
    ],
)
def test_D23_the_codes_of_a_provider_decide_before_the_common_tables(
    name: str, status: int, error: dict[str, Any], code: Code, retry_class: RetryClass | None
) -> None:
    body = json.dumps({"error": error}).encode()
    headers = httpx.Headers({"Retry-After": "7"})
    failure = failure_of_status(status, headers, body, wall_us=0, secret=None, profile=PROFILES[name])
    assert (failure.code, failure.retry_class) == (code, retry_class)
    assert failure.retry_after_ms == (None if retry_class is None else 7_000)
    unknown = status >= 500 and code is not Code.MODEL_CONTEXT_LENGTH_EXCEEDED
    assert failure.external_outcome is (Executed.UNKNOWN if unknown else Executed.NOT_EXECUTED)


def test_of_two_known_codes_the_one_that_forbids_another_attempt_decides() -> None:
    profile = Profile("p", 1, codes={"a": ErrorClass.TRANSPORT, "b": ErrorClass.QUOTA})
    for error in ({"code": "a", "type": "b"}, {"code": "b", "type": "a"}):
        failure = failure_of_frame(error, secret=None, profile=profile)
        assert (failure.code, failure.retry_class) == (Code.MODEL_RATE_LIMITED, None)


def test_a_profile_may_know_a_status_that_others_do_not() -> None:
    profile = Profile("p", 1, statuses={434: ErrorClass.TRANSPORT})
    assert failure_of_status(434, {}, b"", wall_us=0, secret=None, profile=profile).retry_class is RetryClass.TRANSPORT
    assert failure_of_status(434, {}, b"", wall_us=0, secret=None).retry_class is None


def test_S03_an_error_in_base_resp_is_a_provider_error_where_the_profile_says_so() -> None:
    frame = {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}}
    with pytest.raises(ProviderReportedError) as caught:
        ChatAssembly(PROFILES["minimax"]).apply_frame(frame)
    failure = failure_of_frame(caught.value.error, secret=None, profile=PROFILES["minimax"])
    assert (failure.code, failure.retry_class) == (Code.MODEL_RATE_LIMITED, RetryClass.RATE_LIMIT)
    fine = {"choices": [], "base_resp": {"status_code": 0, "status_msg": ""}}
    assert ChatAssembly(PROFILES["minimax"]).apply_frame(fine) is None
    assert ChatAssembly(PROFILES["generic"]).apply_frame(frame) is None
    with pytest.raises(ProviderReportedError):
        ResponsesAssembly(PROFILES["minimax"]).apply_document({"output": None, **frame})
