"""What a script document may say, and how its problems are told."""

from pathlib import Path
from typing import Any

import pytest

from agentloom_worker.devmodel.script import (
    ScriptInvalidError,
    load_script,
    parse_script,
)


def problems_of(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ScriptInvalidError) as caught:
        parse_script(document)
    return dict(caught.value.problems)


def one_turn(answer: dict[str, Any], **turn: Any) -> dict[str, Any]:
    return {"schema_version": 1, "turns": [{"answer": answer, **turn}]}


def test_yaml_and_json_give_the_same_script() -> None:
    from_yaml = parse_script("schema_version: 1\nturns:\n  - answer: {text: hello}\n")
    from_json = parse_script('{"schema_version": 1, "turns": [{"answer": {"text": "hello"}}]}')
    assert from_yaml == from_json
    assert from_yaml.turns[0].answer.text == "hello"


def test_every_problem_is_listed_with_its_path() -> None:
    problems = problems_of(
        {
            "schema_version": 2,
            "colour": "red",
            "turns": [
                {"answer": {"text": 7}},
                {"answer": {"http_error": {"status": 200}}},
                {"when": {"last_text_matches": "("}, "answer": {"text": "{{nonsense}}"}},
                {"first": 0, "answer": {"text": "x", "delay": {"headers_ms": -1}}},
            ],
        }
    )
    assert set(problems) == {
        "/schema_version",
        "/colour",
        "/turns/0/answer/text",
        "/turns/1/answer/http_error/status",
        "/turns/2/when/last_text_matches",
        "/turns/2/answer/text",
        "/turns/3/first",
        "/turns/3/answer/delay/headers_ms",
    }
    assert "{{nonsense}}" in problems["/turns/2/answer/text"]


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "a", "raw": {"text": "b"}},
        {"http_error": {"status": 500}, "no_answer": "stall"},
        {"delay": {"headers_ms": 5}},
        {},
    ],
)
def test_an_answer_is_of_exactly_one_kind(answer: dict[str, Any]) -> None:
    assert set(problems_of(one_turn(answer))) == {"/turns/0/answer"}


@pytest.mark.parametrize(
    "call",
    [
        {"name": "f", "arguments": {}, "arguments_text": "{}"},
        {"name": "f", "arguments": {"deep": ["{{tool_result:}}"]}},
        {"name": "f", "arguments_text": "{{tool_result:f#0}}"},
    ],
)
def test_arguments_come_in_one_form_with_known_places(call: dict[str, Any]) -> None:
    (path,) = problems_of(one_turn({"tool_calls": [call]}))
    assert path.startswith("/turns/0/answer/tool_calls/0")


@pytest.mark.parametrize(
    "raw", [{}, {"text": "a", "base64": "YQ=="}, {"base64": "not base64!"}, {"text": "a", "repeat": 10**9}]
)
def test_raw_bytes_are_a_bounded_text_or_base64(raw: dict[str, Any]) -> None:
    (path,) = problems_of(one_turn({"raw": raw}))
    assert path.startswith("/turns/0/answer/raw")


@pytest.mark.parametrize("headers", [{"bad name": "x"}, {"x": "a\r\nb: c"}, {"x": "é"}])
def test_a_header_cannot_break_the_head(headers: dict[str, str]) -> None:
    (path,) = problems_of(one_turn({"http_error": {"status": 503, "headers": headers}}))
    assert path.startswith("/turns/0/answer/http_error/headers")


def test_a_script_without_turns_is_refused() -> None:
    assert set(problems_of({"schema_version": 1, "turns": []})) == {"/turns"}


def test_a_turn_behind_one_that_fits_all_is_reported() -> None:
    document = {"schema_version": 1, "turns": [{"answer": {"text": "a"}}, {"answer": {"text": "b"}}]}
    assert "turns[1] is never reached" in problems_of(document)[""]


def test_a_turn_behind_one_for_first_arrivals_is_fine() -> None:
    turns = [{"first": 1, "answer": {"http_error": {"status": 503}}}, {"answer": {"text": "b"}}]
    assert len(parse_script({"schema_version": 1, "turns": turns}).turns) == 2


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ScriptInvalidError, match="is given more than once"):
        parse_script("schema_version: 1\nturns: [{answer: {text: a, text: b}}]")


def test_a_date_in_yaml_stays_text() -> None:
    script = parse_script("schema_version: 1\nturns: [{answer: {text: 2026-03-17}}]")
    assert script.turns[0].answer.text == "2026-03-17"


@pytest.mark.parametrize("text", ["turns: [", "a: !!python/object:object {}", ""])
def test_what_is_no_document_is_a_problem_and_no_crash(text: str) -> None:
    with pytest.raises(ScriptInvalidError):
        parse_script(text)


def test_a_file_that_is_not_utf_8_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ScriptInvalidError, match="not UTF-8"):
        load_script(path)
