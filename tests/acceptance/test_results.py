"""Large results (seed 004, 7.2): stored whole, shown as a marked preview, read on by an operation of its own."""

import json
import re
from typing import Any

import pytest

from agentloom_worker.canonical import sha256, sha256_hex
from agentloom_worker.capabilities.result import decode_result, result_ref
from agentloom_worker.domain.operation import OperationKind, OperationStatus
from agentloom_worker.domain.run import RunStatus
from agentloom_worker.errors import Code
from agentloom_worker.ids import OperationId, RunId
from agentloom_worker.limits import PREVIEW_BYTES
from agentloom_worker.llm.adapters.scripted import CallsTurn, ScriptedCall, ScriptedRequest, ScriptedTurn, TextTurn
from agentloom_worker.runtime.ports import Ports
from tests.acceptance import tools
from tests.acceptance.harness import (
    answer,
    ask,
    assert_paired,
    attempts,
    dev_model,
    frozen_requests,
    http_release,
    operations,
    owner_of,
    query,
    run_of,
    simulated,
    tool_texts,
)
from tests.factories import python_tool, release_document

SIZE = 200_000
WIDE = {"wide": python_tool(handler="tests.acceptance.tools:wide")}
WINDOW = {"models": {"main": {"context_window_tokens": 1_000_000}}}
FIRST = {
    "when": {"assistant_turns": 0},
    "answer": {"tool_calls": [{"name": "wide", "arguments": {"size_bytes": SIZE}}]},
}


def _whole(ports: Ports, run_id: RunId) -> tuple[Any, bytes]:
    """The operation of the large result, and its stored body."""
    (operation,) = operations(ports, run_id, OperationKind.TOOL)
    assert operation.raw is not None
    return operation, ports.store.load_payload(owner_of(ports, run_id), operation.raw)


def test_C19_a_large_result_is_stored_whole_and_shown_as_the_range_that_it_names(database_url: str) -> None:
    with dev_model(FIRST, {"answer": {"text": "done"}}) as model, simulated(database_url) as worker:
        run_id = ask(worker.ports, http_release(model, WIDE, **WINDOW))
        worker.drive()
        assert answer(worker.ports, run_id) == "done"
        operation, body = _whole(worker.ports, run_id)
        text = decode_result(body).text
        assert text == tools.wide(SIZE)
        stored = query(
            worker.ports, "SELECT sha256, size_bytes FROM blob WHERE blob_id = :blob", blob=operation.raw.blob_id
        )
        assert [(bytes(row[0]), row[1]) for row in stored] == [(sha256(body), len(body))]
        (shown,) = tool_texts(frozen_requests(worker.ports, run_id)[-1])
        header, _, rest = shown.partition("\n")
        preview, _, footer = rest.rpartition("\n")
        whole = text.encode()
        end = PREVIEW_BYTES - PREVIEW_BYTES % 3
        assert preview.encode() == whole[:end]
        assert f"bytes 0 to {end} of {len(whole)} of {result_ref(operation.operation_id)}" in header
        assert f'"offset":{end}' in footer
        assert len(shown.encode()) < PREVIEW_BYTES + 1000


def _reads_on(request: ScriptedRequest) -> ScriptedTurn:
    """A model that reads a preview's rest to the end, then says what it saw last."""
    if request.last_message["role"] == "user":
        return CallsTurn((ScriptedCall("wide", json.dumps({"size_bytes": SIZE})),))
    content = request.last_message["content"]
    named = re.search(r"call result_read with (\{.*\})\]$", content)
    if named is not None:
        return CallsTurn((ScriptedCall("result_read", json.dumps({**json.loads(named[1]), "limit": PREVIEW_BYTES})),))
    part = json.loads(content)
    if part["next_offset"] is None:
        return TextTurn(f"read to {part['end_offset']}")
    again = {"result_ref": part["result_ref"], "offset": part["next_offset"], "limit": PREVIEW_BYTES}
    return CallsTurn((ScriptedCall("result_read", json.dumps(again)),))


def test_C19_reading_on_is_a_new_operation_each_time_and_shows_nothing_that_was_not_asked_for(
    database_url: str,
) -> None:
    with simulated(database_url, scripts={"main": _reads_on}) as worker:
        ports = worker.ports
        run_id = ask(ports, release_document(tools=WIDE, **WINDOW))
        worker.drive()
        assert answer(ports, run_id) == f"read to {SIZE}"
        operation, body = _whole(ports, run_id)
        whole = decode_result(body).text.encode()
        reads = operations(ports, run_id, OperationKind.INTERNAL)
        assert [read.capability for read in reads] == ["result.read"] * 3
        assert len({read.operation_id for read in (operation, *reads)}) == 4
        assert attempts(ports, run_id, OperationKind.INTERNAL) == []
        requests = frozen_requests(ports, run_id)
        # Each request shows the preview and as many parts as were read before it, in order, without a gap.
        for loop, request in enumerate(requests):
            assert_paired(request)
            shown = tool_texts(request)
            parts = [json.loads(text) for text in shown[1:]]
            assert len(shown) == loop
            position = PREVIEW_BYTES - PREVIEW_BYTES % 3
            for part in parts:
                assert part["offset"] == position
                assert part["text"].encode() == whole[position : part["end_offset"]]
                assert part["etag"] == sha256_hex(whole)
                position = part["end_offset"]
        assert position == len(whole)


@pytest.mark.parametrize("whose", ["another session", "nobody"])
def test_C19_L25_a_reference_of_another_session_is_refused_like_one_of_nobody(clean_sqlite: str, whose: str) -> None:
    foreign: list[str] = []

    def script(request: ScriptedRequest) -> ScriptedTurn:
        if request.last_message["role"] == "user" and "theirs" in request.last_message["content"]:
            return CallsTurn((ScriptedCall("result_read", json.dumps({"result_ref": foreign[0]})),))
        if request.last_message["role"] == "user":
            return CallsTurn((ScriptedCall("wide", json.dumps({"size_bytes": SIZE})),))
        return TextTurn(request.last_message["content"] if foreign else "done")

    with simulated(clean_sqlite, scripts={"main": script}) as worker:
        ports = worker.ports
        document = release_document(tools=WIDE, **WINDOW)
        run_id = ask(ports, document)
        worker.drive()
        (operation,) = operations(ports, run_id, OperationKind.TOOL)
        foreign.append(result_ref(OperationId(ports.ids.new()) if whose == "nobody" else operation.operation_id))
        again = ask(ports, document, "read theirs", session_of=None)
        worker.drive()
        (read,) = operations(ports, again, OperationKind.INTERNAL)
        assert (read.status, read.code) == (OperationStatus.FAILED, Code.RESULT_NOT_FOUND)
        error = json.loads(answer(ports, again))["error"]
        assert error["code"] == Code.RESULT_NOT_FOUND
        assert foreign[0] in error["message"]
        assert run_of(ports, again).status is RunStatus.SUCCEEDED


def test_L08_a_preview_in_the_history_is_not_unfolded_and_can_be_read_on_by_a_new_operation(clean_sqlite: str) -> None:
    with simulated(clean_sqlite, scripts={"main": _reads_the_history}) as worker:
        ports = worker.ports
        document = release_document(tools=WIDE, **WINDOW)
        run_id = ask(ports, document, "make it")
        worker.drive()
        again = ask(ports, document, "read on", session_of=run_id)
        worker.drive()
        (_, body) = _whole(ports, run_id)
        whole = decode_result(body).text.encode()
        (theirs,) = tool_texts(frozen_requests(ports, run_id)[-1])
        first, second = frozen_requests(ports, again)
        assert tool_texts(first) == [theirs]
        assert len(theirs.encode()) < PREVIEW_BYTES + 1000
        (read,) = operations(ports, again, OperationKind.INTERNAL)
        assert (read.capability, read.status) == ("result.read", OperationStatus.COMPLETED)
        assert tool_texts(second)[0] == theirs
        part = json.loads(tool_texts(second)[1])
        assert part["text"].encode() == whole[part["offset"] : part["end_offset"]]
        assert len(operations(ports, run_id)) == 3


def _reads_the_history(request: ScriptedRequest) -> ScriptedTurn:
    """A model that makes a large result in its first run and reads on in it in the second."""
    last = request.last_message
    if last["role"] == "user" and last["content"] == "make it":
        return CallsTurn((ScriptedCall("wide", json.dumps({"size_bytes": SIZE})),))
    if last["role"] == "user":
        (content,) = tool_texts(request.body)
        named = re.search(r"call result_read with (\{.*\})\]$", content)
        assert named is not None
        return CallsTurn((ScriptedCall("result_read", named[1]),))
    return TextTurn("done")


@pytest.mark.parametrize("size_bytes", [5_000, PREVIEW_BYTES + 1])
def test_bodies_in_blobs_fuse_like_inline_ones(database_url: str, size_bytes: int) -> None:
    def commits(answer_chars: int, result_bytes: int) -> int:
        calls = [{"name": "wide", "arguments": {"size_bytes": result_bytes}}]
        turns = {"when": {"assistant_turns": 0}, "answer": {"text": "x" * answer_chars, "tool_calls": calls}}
        with dev_model(turns, {"answer": {"text": "y" * answer_chars}}) as model:
            run_id = ask(worker.ports, http_release(model, WIDE, **WINDOW))
            worker.drive()
            assert answer(worker.ports, run_id) == "y" * answer_chars
        return len(query(worker.ports, "SELECT 1 FROM scope_commit WHERE scope_id = :run", run=run_id))

    with simulated(database_url) as worker:
        assert commits(5_000, size_bytes) == commits(10, 10)
