"""Assemble the events of one Responses stream into one response. Knows no transport.

The events are those of https://developers.openai.com/api/reference/resources/responses/streaming-events. A stream
has no `[DONE]`; it is complete by `response.completed` or `response.incomplete` and by nothing else (CASES S09),
and only if that frame shows the same text and calls as the stream did. Of the event and the status of its response, the
one that says that the answer was cut counts. Items are told apart by `output_index`, since some servers give one item
several ids, and by their ids where a server sends no index: llama.cpp does not
(https://github.com/ggml-org/llama.cpp/blob/master/tools/server/server-task.cpp, to_json_oaicompat_resp).
Ollama numbers no words that a call follows: the call has their index, and an id of its own
(https://github.com/ollama/ollama/blob/main/openai/responses.go, processToolCalls).

An item that ends with another status than `completed` was cut, and so was the message: nobody knows what the model was
going to say (CASES W06). vLLM ends so what its generator was cut in, whatever the response says
(https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/responses/harmony.py).
"""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from agentloom_worker import limits
from agentloom_worker.domain.model import (
    FirstOutputKind,
    ModelResponse,
    Partial,
    ReasoningItem,
    RequestParameters,
    ResponseCall,
    Usage,
)
from agentloom_worker.frozen import replace
from agentloom_worker.llm.assembly import (
    IncompleteAnswerError,
    ModelProtocolError,
    ProviderReportedError,
    arguments_text,
    join_deltas,
    other_model,
    parse_payload,
    refuse_error,
    text_of,
    usage_of,
)
from agentloom_worker.llm.profiles import Profile, ReasoningReplay

_DONE = "[DONE]"

_MESSAGE, _CALL, _REASONING = "message", "function_call", "reasoning"
_TEXT, _REFUSAL, _SUMMARY, _CONTENT = "output_text", "refusal", "summary_text", "reasoning_text"

# Items that wait for somebody's answer, which nobody offered to give. Other unknown items are the provider's own.
_FOREIGN_CALLS = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "local_shell_call",
        "mcp_approval_request",
        "shell_call",
    }
)

# Event → (kind of its part, kind of its item, field that numbers the part).
_PART_DELTAS = {
    "response.output_text.delta": (_TEXT, _MESSAGE, "content_index"),
    "response.refusal.delta": (_REFUSAL, _MESSAGE, "content_index"),
    "response.reasoning_text.delta": (_CONTENT, _REASONING, "content_index"),
    "response.reasoning_summary_text.delta": (_SUMMARY, _REASONING, "summary_index"),
}
# Event → (the same, field that holds the whole text).
_PART_DONES = {
    "response.output_text.done": (_TEXT, _MESSAGE, "content_index", "text"),
    "response.refusal.done": (_REFUSAL, _MESSAGE, "content_index", "refusal"),
    "response.reasoning_text.done": (_CONTENT, _REASONING, "content_index", "text"),
    "response.reasoning_summary_text.done": (_SUMMARY, _REASONING, "summary_index", "text"),
}
_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}


@dataclass(slots=True)
class _Item:
    """One item of the output. `parts`: deltas by kind and number of the part."""

    kind: str
    item_id: str = ""
    parts: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    call_id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    arguments_done: bool = False
    encrypted: str = ""
    closed: bool = False
    unfinished: bool = False  # it was closed with another status than `completed`
    not_text: bool = False  # it holds what is made for people to see or hear

    def texts(self, kind: str) -> tuple[str, ...]:
        """The texts of the parts of a kind, in order."""
        numbers = sorted(number for part, number in self.parts if part == kind)
        return tuple(join_deltas(self.parts[kind, number]) for number in numbers)

    def text(self, kind: str) -> str:
        """The same as one text."""
        return "".join(self.texts(kind))

    @property
    def reasoning(self) -> str:
        """The thoughts themselves where they are shown, else their summary."""
        return self.text(_CONTENT) or "\n\n".join(self.texts(_SUMMARY))

    @property
    def first_kind(self) -> FirstOutputKind | None:
        """What of it counts as output."""
        if self.kind == _CALL:
            if self.name:
                return FirstOutputKind.TOOL_NAME
            return FirstOutputKind.TOOL_ARGUMENTS if any(self.arguments) else None
        if not any(delta for deltas in self.parts.values() for delta in deltas):
            return None
        return FirstOutputKind.REASONING if self.kind == _REASONING else FirstOutputKind.TEXT


class ResponsesAssembly:
    """The state of one attempt. For one thread."""

    def __init__(self, profile: Profile, asked: RequestParameters | None = None) -> None:
        self._profile = profile
        self._asked = asked
        self._items: dict[int, _Item] = {}
        self._left: list[tuple[int, _Item]] = []  # messages whose place a call has taken, and that place
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self._response_id: str | None = None
        self._model = ""

    @property
    def complete(self) -> bool:
        """As Assembly says."""
        return self._finish_reason is not None

    @property
    def may_end(self) -> bool:
        """As Assembly says: never, since every stream has a final frame."""
        return False

    def apply_payload(self, payload: str) -> FirstOutputKind | None:
        """As Assembly says."""
        if payload.strip() == _DONE:
            # Some proxies end every stream so, also one that they lost.
            raise IncompleteAnswerError("the stream said [DONE] without a final frame")
        return self.apply_frame(parse_payload(payload))

    def apply_frame(self, frame: object) -> FirstOutputKind | None:
        """Take one JSON value of the stream; say what its first effective output is, if it has any."""
        if not isinstance(frame, dict):
            raise ModelProtocolError("a frame is not a JSON object")
        kind = frame.get("type")
        if not isinstance(kind, str):
            refuse_error(frame, self._profile)
            if frame:
                raise ModelProtocolError("an event has no type")
            return None
        if kind in _PART_DELTAS:
            return self._take_part_delta(frame, *_PART_DELTAS[kind])
        if kind in _PART_DONES:
            return self._take_part_done(frame, *_PART_DONES[kind])
        return self._take_end(frame, _ENDS[kind]) if kind in _ENDS else self._take_event(frame, kind)

    def apply_document(self, document: object) -> FirstOutputKind | None:
        """As Assembly says: a whole response object."""
        if not isinstance(document, dict):
            raise ModelProtocolError("the answer is not a JSON object")
        refuse_error(document, self._profile)
        status = document.get("status")
        if status not in _ENDS.values() or not isinstance(document.get("output"), list):
            raise ModelProtocolError("the answer is no ended response: it has no output or no final status")
        return self._take_end({"response": document}, str(status))

    def response(self, *, request_id: str | None, transport_sha256: str, transport_bytes: int) -> ModelResponse:
        """As Assembly says. `finish_reason` is in the words of chat completions, which the runtime reads."""
        calls = self._calls()
        for call in calls:
            if not call.name:
                raise ModelProtocolError(f"tool call {call.ordinal} has no name")
        text, refusal = self._text(_TEXT), self._text(_REFUSAL)
        if not (text or refusal or calls) and any(item.not_text for item in self._ordered()):
            raise ModelProtocolError("the answer is made of what nobody here reads, and of no text")
        return ModelResponse(
            text=text,
            calls=calls,
            finish_reason=self._finish_reason,
            reasoning=self._reasoning(),
            refusal=refusal,
            usage=self._usage,
            provider_request_id=request_id or self._response_id,
            transport_sha256=transport_sha256,
            transport_bytes=transport_bytes,
            reasoning_items=self._reasoning_items(),
            served_model=other_model(self._model, self._asked),
        )

    def partial(self) -> Partial:
        """As Assembly says."""
        return Partial(self._text(_TEXT), self._reasoning(), self._calls(), self._text(_REFUSAL))

    def _take_event(self, frame: dict[str, Any], kind: str) -> FirstOutputKind | None:
        match kind:
            case "response.function_call_arguments.delta":
                return self._take_arguments(frame)
            case "response.function_call_arguments.done":
                return self._take_arguments_done(frame)
            case "response.output_item.added":
                return self._open(self._place(frame), _object(frame, "item")).first_kind
            case "response.output_item.done":
                return self._close(self._place(frame), _object(frame, "item"))
            case "response.created":
                self._take_envelope(_object(frame, "response"))
            case "error":
                # Documented flat; the service itself and its proxies also nest it (CASES S09).
                nested = frame.get("error")
                named = {name: frame[name] for name in ("code", "message", "param") if name in frame}
                raise ProviderReportedError(nested or named)
            case _:
                # Errors have a type too, where a proxy sends them as they are.
                refuse_error(frame, self._profile)
        return None

    def _take_envelope(self, response: dict[str, Any]) -> None:
        usage = _usage(response.get("usage"))
        if usage is not None:
            self._usage = usage
        if self._response_id is None and isinstance(response.get("id"), str):
            self._response_id = response["id"] or None
        if isinstance(response.get("model"), str):
            self._model = response["model"] or self._model

    def _take_part_delta(self, frame: dict[str, Any], part: str, kind: str, numbered: str) -> FirstOutputKind | None:
        item = self._open_item(frame, kind)
        delta = text_of(frame, "delta")
        if not delta:
            return None
        item.parts.setdefault((part, _part_number(frame, numbered)), []).append(delta)
        return FirstOutputKind.REASONING if kind == _REASONING else FirstOutputKind.TEXT

    def _take_part_done(
        self, frame: dict[str, Any], part: str, kind: str, numbered: str, whole: str
    ) -> FirstOutputKind | None:
        item = self._open_item(frame, kind)
        text, key = text_of(frame, whole), (part, _part_number(frame, numbered))
        streamed = join_deltas(item.parts.get(key, []))
        if kind == _MESSAGE and streamed not in ("", text):
            raise ModelProtocolError("a part ends with another text than was streamed")
        item.parts[key] = [text or streamed]
        return item.first_kind

    def _take_arguments(self, frame: dict[str, Any]) -> FirstOutputKind | None:
        item = self._open_item(frame, _CALL)
        delta = text_of(frame, "delta")
        if not delta:
            return None
        if item.arguments_done:
            raise ModelProtocolError("a fragment for a closed tool call")
        item.arguments.append(delta)
        return FirstOutputKind.TOOL_ARGUMENTS

    def _take_arguments_done(self, frame: dict[str, Any]) -> FirstOutputKind | None:
        item = self._open_item(frame, _CALL)
        _end_arguments(item, _arguments_of(frame))
        return FirstOutputKind.TOOL_ARGUMENTS if any(item.arguments) else None

    def _place(self, frame: dict[str, Any]) -> int:
        """The number of an event's item. llama.cpp gives none and names an item by its id, a call by its call's."""
        if frame.get("output_index") is not None:
            return _number(frame, "output_index")
        shown = frame.get("item")
        if isinstance(shown, dict):
            name = text_of(shown, "id") or text_of(shown, "call_id")
        else:
            name = text_of(frame, "item_id")
        if not name:
            raise ModelProtocolError("an event names no output item")
        known = (number for number, item in self._items.items() if name in (item.item_id, item.call_id))
        return next(known, len(self._items))

    def _open_item(self, frame: dict[str, Any], kind: str) -> _Item:
        """The item that a fragment continues. Never two items in one."""
        number = self._place(frame)
        item = self._items.get(number)
        if item is None:
            raise ModelProtocolError(f"a fragment for output item {number}, which was not opened")
        if item.kind != kind:
            raise ModelProtocolError(f"a fragment of a {kind} for output item {number}, which is none")
        if item.closed:
            raise ModelProtocolError(f"a fragment for output item {number}, which is closed")
        return item

    def _open(self, number: int, document: dict[str, Any]) -> _Item:
        kind, item_id = text_of(document, "type"), text_of(document, "id")
        if number in self._items:
            self._leave(number, kind, item_id)
        if kind in _FOREIGN_CALLS:
            raise ModelProtocolError(f"the provider asks for a {kind}, which was not offered")
        if len(self._items) + len(self._left) >= limits.OUTPUT_ITEMS_MAX:
            raise ModelProtocolError(f"more than {limits.OUTPUT_ITEMS_MAX} output items")
        calls = sum(item.kind == _CALL for item in self._items.values())
        if kind == _CALL and calls >= limits.CALLS_PER_MESSAGE_MAX:
            raise ModelProtocolError(f"more than {limits.CALLS_PER_MESSAGE_MAX} tool calls in one message")
        item = self._items[number] = _Item(kind, item_id)
        if kind == _CALL:
            # What it says of the arguments is not counted: they follow, in fragments or whole.
            item.name = text_of(document, "name")
            item.call_id = text_of(document, "call_id") or None
        return item

    def _leave(self, number: int, kind: str, item_id: str) -> None:
        """Make room where a call takes the place of the message before it. Two calls are never in one place."""
        before = self._items[number]
        told_apart = item_id and before.item_id and item_id != before.item_id
        if kind != _CALL or before.kind != _MESSAGE or before.closed or not told_apart:
            raise ModelProtocolError(f"output index {number} is used by two items")
        self._left.append((number, before))
        del self._items[number]

    def _close(self, number: int, document: dict[str, Any]) -> FirstOutputKind | None:
        item = self._items.get(number) or self._open(number, document)
        if item.closed:
            raise ModelProtocolError(f"output item {number} is closed twice")
        if item.kind != text_of(document, "type"):
            raise ModelProtocolError(f"output item {number} ends as another kind of item")
        if item.kind in (_MESSAGE, _CALL):
            item.unfinished = text_of(document, "status") not in ("", "completed")
        match item.kind:
            case "function_call":
                _end_call(item, document)
            case "message":
                _end_message(item, document)
            case "reasoning":
                _end_reasoning(item, document)
            case "image_generation_call":
                item.not_text = True
        item.closed = True
        return item.first_kind

    def _take_end(self, frame: dict[str, Any], status: str) -> FirstOutputKind | None:
        response = _object(frame, "response")
        shown = response.get("status")
        if status == "completed" and shown == "incomplete":
            # Versions of LiteLLM name the event so whatever came of it, and say what did in the response.
            status = "incomplete"
        if shown not in (None, status):
            raise ModelProtocolError(f"a final frame for {status} shows another status")
        error = response.get("error")
        if status == "failed" or error:
            raise ProviderReportedError(error or {})
        self._take_envelope(response)
        output, cut = response.get("output"), self._unfinished
        if output:
            final = _closed_items(output)
            cut = cut or final._unfinished
            self._compare(final)
        elif status == "completed" and any(not item.closed for item in self._ordered()):
            raise ModelProtocolError("the final frame came before the end of an output item")
        self._finish_reason = self._reason_of(response, status, cut=cut)
        return next((kind for item in self._ordered() if (kind := item.first_kind) is not None), None)

    def _reason_of(self, response: dict[str, Any], status: str, *, cut: bool) -> str:
        if status == "completed":
            if cut or self._at_limit:
                return "length"
            return "tool_calls" if self._calls() else "stop"
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        # `max_output_tokens` or `content_filter`; whatever else cuts an answer off, it is cut off.
        return "content_filter" if reason == "content_filter" else "length"

    @property
    def _unfinished(self) -> bool:
        return any(item.unfinished for item in self._ordered())

    @property
    def _at_limit(self) -> bool:
        """Whether the answer took all that it may, where a provider does not say that this cut it."""
        limit = self._asked.max_output_tokens if self._asked is not None and self._profile.silent_limit else None
        return limit is not None and self._usage is not None and self._usage.output_tokens >= limit

    def _compare(self, final: "ResponsesAssembly") -> None:
        """The final frame's own list of items against what was streamed; what was not, is taken from it."""
        items = self._ordered()
        streamed = [item for item in items if item.kind == _CALL]
        shown = [item for item in final._ordered() if item.kind == _CALL]
        if streamed and not (len(streamed) == len(shown) and all(map(_continues, streamed, shown))):
            raise ModelProtocolError("the final frame shows other tool calls than the stream")
        whole = len(streamed) == len(shown) and all(item.closed for item in items)
        for part in (_TEXT, _REFUSAL):
            before, after = self._text(part), final._text(part)
            # vLLM strips it there (https://github.com/vllm-project/vllm/issues/49412).
            same = "".join(before.split()) == "".join(after.split())
            if before and not same and (whole or not after.startswith(before)):
                raise ModelProtocolError("the final frame shows another text than the stream")
            whole = whole and same
        if not whole:
            self._items, self._left = final._items, []

    def _ordered(self) -> list[_Item]:
        return [item for _, item in sorted([*self._left, *self._items.items()], key=itemgetter(0))]

    def _text(self, part: str) -> str:
        return "".join(item.text(part) for item in self._ordered())

    def _reasoning(self) -> str:
        return "".join(item.reasoning for item in self._ordered())

    def _calls(self) -> tuple[ResponseCall, ...]:
        calls = (item for item in self._ordered() if item.kind == _CALL)
        return tuple(
            ResponseCall(ordinal, item.call_id, item.name, join_deltas(item.arguments))
            for ordinal, item in enumerate(calls)
        )

    def _reasoning_items(self) -> tuple[ReasoningItem, ...]:
        """What the profile sends back, each with what followed it; one that nothing followed is of no use."""
        if self._profile.reasoning_replay is ReasoningReplay.NEVER:
            return ()
        found: list[ReasoningItem] = []
        waiting: list[_Item] = []
        calls = 0
        for item in self._ordered():
            if item.kind == _REASONING:
                waiting.append(item)
            elif item.kind in (_MESSAGE, _CALL):
                before_call = calls if item.kind == _CALL else None
                found += [self._reasoning_item(one, before_call) for one in waiting]
                waiting = []
                calls += item.kind == _CALL
        return _as_one(found) if self._profile.strict_alternation else tuple(found)

    def _reasoning_item(self, item: _Item, before_call: int | None) -> ReasoningItem:
        encrypted = self._profile.encrypted_reasoning
        return ReasoningItem(
            item_id=item.item_id,
            summary=item.texts(_SUMMARY),
            content=() if encrypted else item.texts(_CONTENT),
            encrypted=item.encrypted if encrypted else "",
            before_call=before_call,
        )


def _as_one(items: list[ReasoningItem]) -> tuple[ReasoningItem, ...]:
    """All that was thought for one message as one text in front of it, for servers that want the roles in turns.

    They make chat messages of items, each with one reasoning, of which vLLM reads the first text alone: a second item
    would begin another message of the assistant, and what it led to would be in that one
    (https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/openai/responses/utils.py). What is sealed cannot
    be joined.
    """
    texts = [text for item in items for text in item.content or item.summary if text]
    if max(len(items), len(texts)) < 2 or any(item.encrypted for item in items):
        return tuple(items)
    return (replace(items[0], summary=(), content=("\n\n".join(texts),)),) if texts else ()


def _closed_items(output: object) -> ResponsesAssembly:
    """The items of a final frame, as if each had been streamed whole."""
    if not isinstance(output, list):
        raise ModelProtocolError("output is not a list")
    found = ResponsesAssembly(Profile("", 0))
    for number, document in enumerate(output):
        if not isinstance(document, dict):
            raise ModelProtocolError("an output item is not a JSON object")
        found._close(number, document)
    return found


def _continues(streamed: _Item, shown: _Item) -> bool:
    """Whether a call of the final frame is the streamed one; an unfinished one may have grown.

    Its id says nothing: vLLM gives it another one there (https://github.com/vllm-project/vllm/pull/47916).
    """
    if streamed.name not in ("", shown.name):
        return False
    before, after = join_deltas(streamed.arguments), join_deltas(shown.arguments)
    return before == after or (not streamed.closed and after.startswith(before))


def _end_call(item: _Item, document: dict[str, Any]) -> None:
    name, call_id = text_of(document, "name"), text_of(document, "call_id") or None
    if item.name and name not in ("", item.name):
        raise ModelProtocolError("a tool call has two names")
    if item.call_id and call_id not in (None, item.call_id):
        raise ModelProtocolError("a tool call has two ids")
    item.name, item.call_id = name or item.name, call_id or item.call_id
    _end_arguments(item, _arguments_of(document))


def _end_arguments(item: _Item, whole: str | None) -> None:
    streamed = join_deltas(item.arguments)
    if whole is not None:
        if streamed not in ("", whole):
            raise ModelProtocolError("a tool call ends with other arguments than were streamed")
        item.arguments = [whole]
    item.arguments_done = True


def _end_message(item: _Item, document: dict[str, Any]) -> None:
    content = document.get("content")
    if content is None:
        return
    whole = _Item(_MESSAGE)
    for number, part in enumerate(_objects(content, "content")):
        kind = part.get("type")
        if kind in (_TEXT, _REFUSAL):
            whole.parts[kind, number] = [text_of(part, "text" if kind == _TEXT else "refusal")]
        else:
            item.not_text = True
    for kind in (_TEXT, _REFUSAL):
        if item.text(kind) not in ("", whole.text(kind)):
            raise ModelProtocolError("a message ends with another text than was streamed")
    item.parts = whole.parts


def _end_reasoning(item: _Item, document: dict[str, Any]) -> None:
    # "The encrypted_content in response.output_item.added may be incomplete": the item's end has the whole.
    item.encrypted = text_of(document, "encrypted_content")
    item.item_id = text_of(document, "id") or item.item_id
    for name, kind in (("summary", _SUMMARY), ("content", _CONTENT)):
        texts = [text_of(part, "text") for part in _objects(document.get(name) or [], name)]
        if any(texts):
            item.parts = {key: deltas for key, deltas in item.parts.items() if key[0] != kind}
            item.parts.update({(kind, number): [text] for number, text in enumerate(texts)})


def _arguments_of(fields: dict[str, Any]) -> str | None:
    arguments = fields.get("arguments")
    if isinstance(arguments, dict):
        # Some local servers send the parsed object in place of its text.
        return arguments_text(arguments)
    return None if arguments is None else text_of(fields, "arguments")


def _number(frame: dict[str, Any], name: str) -> int:
    value = frame.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelProtocolError(f"{name} is not a number")
    return value


def _part_number(frame: dict[str, Any], name: str) -> int:
    """The number of a part in its item; servers whose items have one part leave it out."""
    return 0 if frame.get(name) is None else _number(frame, name)


def _object(frame: dict[str, Any], name: str) -> dict[str, Any]:
    value = frame.get(name)
    if not isinstance(value, dict):
        raise ModelProtocolError(f"{name} is not a JSON object")
    return value


def _objects(value: object, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ModelProtocolError(f"{name} is not a list of JSON objects")
    return value


def _usage(value: object) -> Usage | None:
    if not isinstance(value, dict):
        return None
    inputs, outputs = value.get("input_tokens_details"), value.get("output_tokens_details")
    return usage_of(
        value.get("input_tokens"),
        value.get("output_tokens"),
        inputs.get("cached_tokens") if isinstance(inputs, dict) else None,
        outputs.get("reasoning_tokens") if isinstance(outputs, dict) else None,
    )
