"""Azure OpenAI, the v1 API: the address is the resource's own, the model is the name of a deployment."""

from agentloom_worker.llm.profiles.openai import CHAT_PARAMETERS, RESPONSES_PARAMETERS
from agentloom_worker.llm.profiles.profile import Fact, Profile, ReasoningReplay

_RESPONSES = "https://learn.microsoft.com/en-us/azure/foundry/openai/how-to/responses"
_SPECIFICATION = (
    "https://github.com/Azure/azure-rest-api-specs/blob/main/specification/cognitiveservices/data-plane/AzureOpenAI/"
    "inference/stable/2024-10-21/inference.yaml"
)
_REFERENCE = "https://learn.microsoft.com/en-us/azure/foundry/reference/rest/chat-create-chat-completion"

AZURE_OPENAI = Profile(
    "azure-openai",
    1,
    protocols=("openai-chat", "openai-responses"),
    auth_header="api-key",
    auth_prefix="",
    output_limit_field="max_completion_tokens",
    encrypted_replay=ReasoningReplay.ALWAYS,
    parameters=CHAT_PARAMETERS,
    responses_parameters=RESPONSES_PARAMETERS,
    # The common tables know what a filtered prompt is answered with.
    facts=(
        Fact("a stream of chat completions ends with [DONE]", _SPECIFICATION),
        Fact(
            "the inner code ResponsibleAIPolicyViolation: the prompt violated one or more rules of the content filter",
            _SPECIFICATION,
        ),
        Fact(
            "a prompt that is filtered is answered with 400 and the code content_filter, an answer that is cut ends by"
            " the finish reason content_filter",
            "https://learn.microsoft.com/en-us/azure/ai-services/openai/concepts/content-filter",
        ),
        Fact(
            "with store: false, include: [reasoning.encrypted_content] gives the reasoning sealed (encrypted_content);"
            " it goes along in later requests to be kept across turns",
            _RESPONSES,
        ),
        Fact("base_url is https://RESOURCE.openai.azure.com/openai/v1; parameters as OpenAI's", _REFERENCE),
        Fact("requests are OpenAI's: its own client is used, with another address", _RESPONSES),
        Fact(
            "v1 needs no api-version",
            "https://learn.microsoft.com/en-us/azure/foundry/openai/api-version-lifecycle",
        ),
        Fact(
            "the key goes into the header api-key (Authorization: Bearer takes tokens of Entra ID)",
            _RESPONSES,
        ),
        Fact("responses are served at the same address", _RESPONSES),
        Fact(
            "reasoning models take max_completion_tokens in place of max_tokens",
            "https://learn.microsoft.com/en-us/azure/foundry/openai/how-to/chatgpt",
        ),
    ),
)
