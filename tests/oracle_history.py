"""The slow, obvious projection: whole tables as lists of plain rows, and what a request must show of them.

Written from the specification alone (seed 000, 4-6; seed 004, 3.1 and 4.1). It shares no code with the program
but the reading of JSON and the tables' names.
"""

import json
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.storage.store import Store
from agentloom_worker.storage.tables import metadata

Row = dict[str, Any]
Facts = dict[str, list[Row]]
TABLES = (
    "session",
    "run",
    "user_input",
    "user_input_delivery",
    "role_context",
    "context_record",
    "operation",
    "attempt",
    "blob",
    "release",
)
ENDED = ("succeeded", "failed", "cancelled", "timed_out", "budget_exhausted")


def read_facts(store: Store) -> Facts:
    """Every row of every table that matters."""
    facts: Facts = {}
    with store.read() as conn:
        for name in TABLES:
            rows = conn.execute(sa.select(metadata.tables[name]))
            facts[name] = [dict(row._mapping) for row in rows]
    return facts


def expect_messages(facts: Facts, run_id: UUID, records: int, recent_n: int, prompt: str) -> list[Row]:
    """The messages of a request that shows the run's first `records` records, as chat-completions JSON."""
    (current,) = [run for run in facts["run"] if run["run_id"] == run_id]
    own = _records(facts, run_id)[:records]
    earlier = [
        run
        for run in facts["run"]
        if run["session_id"] == current["session_id"] and run["run_no"] < current["run_no"] and run["status"] in ENDED
    ]
    earlier.sort(key=lambda run: run["question_seq"])
    recent = earlier[-recent_n:] if recent_n else []
    older = earlier[:-recent_n] if recent_n else earlier
    messages: list[Row] = [{"role": "system", "content": prompt}]
    for run in older:
        messages += _older(facts, run, current)
    for run in recent:
        messages += _recent(facts, run, current)
    for record in own[1:]:
        messages += _record(facts, record)
    return messages


def _older(facts: Facts, run: Row, current: Row) -> list[Row]:
    messages = [_input(facts, run, one, current) for one in _inputs(facts, run)]
    answer = _answer(facts, run)
    if answer is not None:
        messages.append(_assistant(answer))
    return [*messages, _end(facts, run)]


def _recent(facts: Facts, run: Row, current: Row) -> list[Row]:
    messages: list[Row] = []
    shown: list[UUID] = []
    records = _records(facts, run["run_id"])
    for record in records[1:]:
        if record["message_kind"] == "user_ref":
            (one,) = [one for one in facts["user_input"] if one["input_id"] == record["origin_input_id"]]
            messages.append(_input(facts, run, one, current))
            shown.append(one["input_id"])
        else:
            messages += _record(facts, record)
    if records and records[-1]["message_kind"] == "assistant":
        messages += _close(facts, records[-1])
    messages += _broken(facts, run)
    messages += [_input(facts, run, one, current) for one in _inputs(facts, run) if one["input_id"] not in shown]
    return [*messages, _end(facts, run)]


def _inputs(facts: Facts, run: Row) -> list[Row]:
    given = [row["input_id"] for row in facts["user_input_delivery"] if row["target_run_id"] == run["run_id"]]
    return sorted((one for one in facts["user_input"] if one["input_id"] in given), key=lambda one: one["input_seq"])


def _input(facts: Facts, run: Row, one: Row, current: Row) -> Row:
    place = _place(facts, one, current)
    if place == run["run_no"]:
        return {"role": "user", "content": _text(facts, one)}
    where = "the current run, below" if place == current["run_no"] else f"run {place}"
    return _system(
        f"[run {run['run_no']}: input {one['input_seq']} of this session was passed on; its words stand in {where}]"
    )


def _place(facts: Facts, one: Row, current: Row) -> int:
    """Protected now: here. Else where it was delivered last. Else where it was received."""
    numbers = {run["run_id"]: run["run_no"] for run in facts["run"]}
    given = sorted(
        (numbers[row["target_run_id"]], row["state"])
        for row in facts["user_input_delivery"]
        if row["input_id"] == one["input_id"] and row["target_run_id"] is not None
    )
    given = [(number, state) for number, state in given if number <= current["run_no"]]
    if any(number == current["run_no"] for number, _ in given):
        return int(current["run_no"])
    delivered = [number for number, state in given if state == "delivered"]
    return delivered[-1] if delivered else given[0][0]


def _record(facts: Facts, record: Row) -> list[Row]:
    if record["message_kind"] == "user_ref":
        (one,) = [one for one in facts["user_input"] if one["input_id"] == record["origin_input_id"]]
        return [{"role": "user", "content": _text(facts, one)}]
    (operation,) = [row for row in facts["operation"] if row["operation_id"] == record["operation_id"]]
    if record["message_kind"] == "assistant":
        return [_assistant(_document(facts, operation))]
    return [_result(facts, operation)]


def _result(facts: Facts, operation: Row) -> Row:
    (model,) = [row for row in facts["operation"] if row["operation_id"] == operation["model_operation_id"]]
    call = _document(facts, model)["calls"][operation["ordinal"]]
    body = _document(facts, operation)
    if "failure" in body:
        failure = body["failure"]
        text = _json(
            {"error": {"code": failure["code"], "message": failure["message"], "executed": failure["external_outcome"]}}
        )
    else:
        text = _json(body["structured"]) if "structured" in body else body["text"]
    return {"role": "tool", "content": text, "tool_call_id": call["id"]}


def _close(facts: Facts, record: Row) -> list[Row]:
    """Every call of the last message gets an answer: its result where there is one, else what is known of it."""
    made = [row for row in facts["operation"] if row["model_operation_id"] == record["operation_id"]]
    messages = []
    for operation in sorted(made, key=lambda row: row["ordinal"]):
        if operation["raw"] is not None or operation["raw_blob_id"] is not None:
            messages.append(_result(facts, operation))
            continue
        (model,) = [row for row in facts["operation"] if row["operation_id"] == record["operation_id"]]
        call = _document(facts, model)["calls"][operation["ordinal"]]
        if operation["executed"] == "not_executed":
            known: Row = {"executed": False, "explanation": "the run ended before this call was executed"}
        else:
            words = "the run ended while this call was under way; whether it was executed is not known"
            known = {"executed": "unknown", "explanation": words}
        known["status"] = operation["status"]
        messages.append({"role": "tool", "content": _json(known), "tool_call_id": call["id"]})
    return messages


def _broken(facts: Facts, run: Row) -> list[Row]:
    """What had arrived of a last answer that never became whole: said to be that, by the system."""
    (context,) = [row for row in facts["role_context"] if row["run_id"] == run["run_id"]]
    tries = [row for row in facts["attempt"] if row["operation_id"] == context["last_model_operation_id"]]
    tries.sort(key=lambda row: row["attempt_no"])
    if not tries or tries[-1]["state"] == "complete" or tries[-1]["partial"] is None:
        return []
    text = json.loads(bytes(tries[-1]["partial"]))["text"]
    if not text:
        return []
    return [
        _system(
            f"[run {run['run_no']}: an answer of the model that broke off follows; it is not a complete answer, and"
            f" nothing of it was carried out]\n{text}\n[end of the answer that broke off]"
        )
    ]


def _answer(facts: Facts, run: Row) -> Row | None:
    found = [row for row in facts["operation"] if row["operation_id"] == run["answer_operation_id"]]
    return _document(facts, found[0]) if found else None


def _end(facts: Facts, run: Row) -> Row:
    said = [run["status"]]
    if run["end_code"]:
        said.append(run["end_code"])
    if run["end_cause"] == "answer" and run["end_detail"]:
        said.append(run["end_detail"])
    tail = "" if _answer(facts, run) is not None else "; no final result was formed"
    return _system(f"[run {run['run_no']} ended: {', '.join(said)}{tail}]")


def _assistant(response: Row) -> Row:
    text = response["text"] or response.get("refusal", "")
    message: Row = {"role": "assistant", "content": text}
    if response.get("calls"):
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in response["calls"]
        ]
    if not text.strip():
        message["content"] = None if response.get("calls") else "(no content)"
    return message


def _records(facts: Facts, run_id: UUID) -> list[Row]:
    (context,) = [row for row in facts["role_context"] if row["run_id"] == run_id]
    found = [row for row in facts["context_record"] if row["context_id"] == context["context_id"]]
    return sorted(found, key=lambda row: row["context_seq"])


def _document(facts: Facts, operation: Row) -> Row:
    for inline, blob in (("effective", "effective_blob_id"), ("raw", "raw_blob_id")):
        if operation[inline] is not None or operation[blob] is not None:
            found: Row = json.loads(_bytes(facts, operation[inline], operation[blob]))
            return found
    raise AssertionError("an operation without a result is shown")


def _text(facts: Facts, one: Row) -> str:
    text: str = json.loads(_bytes(facts, one["body"], one["blob_id"]))
    return "".join("\ufffd" if 0xD800 <= ord(character) <= 0xDFFF else character for character in text)


def _bytes(facts: Facts, inline: Any, blob_id: Any) -> bytes:
    if inline is not None:
        return bytes(inline)
    (row,) = [row for row in facts["blob"] if row["blob_id"] == blob_id]
    assert row["encoding"] == "identity", "the sessions of the oracle hold small bodies only"
    return bytes(row["content"])


def _system(text: str) -> Row:
    return {"role": "system", "content": text}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
