"""Secrets that were read are carried away by no text."""

import json
from dataclasses import dataclass

import pytest

from agentloom_worker import limits, secrecy
from agentloom_worker.domain.model import Completed, ModelResponse, ResponseCall
from agentloom_worker.secrecy import (
    conceal_bytes,
    conceal_known,
    conceal_text,
    conceal_value,
    keep_secret,
    known_secrets,
)

SECRET = "tok-0123456789abcdef"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrecy, "_known", {})
    monkeypatch.setattr(secrecy, "_in_order", ())


def test_a_short_secret_is_an_ordinary_word() -> None:
    keep_secret("EMPTY")
    assert known_secrets() == () and conceal_known("EMPTY") == "EMPTY"


def test_the_longer_secret_goes_first() -> None:
    keep_secret(SECRET)
    keep_secret(SECRET + "-and-more")
    keep_secret(SECRET)
    assert conceal_known(f"{SECRET}-and-more {SECRET}") == "[redacted] [redacted]"


def test_so_many_are_remembered_and_the_newest_of_them() -> None:
    for number in range(limits.SECRETS_KEPT_MAX + 5):
        keep_secret(f"secret-number-{number:06d}")
    assert len(known_secrets()) == limits.SECRETS_KEPT_MAX
    assert conceal_known("secret-number-000000 secret-number-000260") == "secret-number-000000 [redacted]"


@dataclass(frozen=True, slots=True)
class Box:
    """A value of a class of no quick copies."""

    text: str
    more: tuple[object, ...] = ()


def test_a_value_is_searched_to_its_depth_and_comes_back_itself_where_nothing_is_found() -> None:
    clean = Completed(ModelResponse("hello", (ResponseCall(0, "c", "f", '{"a": "\\u0041"}'),), "stop"))
    assert conceal_value(clean, (SECRET,)) is clean
    assert conceal_value(clean, ()) is clean
    found = conceal_value(Box("x", ({"k": [SECRET, b"<" + SECRET.encode() + b">", 7, None]},)), (SECRET,))
    assert found == Box("x", ({"k": ["[redacted]", b"<[redacted]>", 7, None]},))
    assert conceal_value({SECRET: 1}, (SECRET,)) == {"[redacted]": 1}


def test_arguments_that_spell_a_secret_with_escapes_are_read() -> None:
    spelled = "".join(f"\\u{ord(one):04x}" for one in SECRET)
    response = ModelResponse("", (ResponseCall(0, "c", "f", f'{{"token": "{spelled}", "n": 1}}'),), "tool_calls")
    (call,) = conceal_value(response, (SECRET,)).calls
    assert json.loads(call.arguments_text) == {"token": "[redacted]", "n": 1}
    assert call.arguments_text == '{"token": "[redacted]", "n": 1}'
    broken = ModelResponse("", (ResponseCall(0, "c", "f", '{"token": "\\u00'),), "tool_calls")
    assert conceal_value(broken, (SECRET,)) is broken


ODD = 'tok-"01/23\\45'


@pytest.mark.parametrize("secret", [SECRET, ODD])
@pytest.mark.parametrize("text", ['{"token": "%s', "It said %s, then nothing.", '[1, "%s", NaN}', "%s", '"%s'])
def test_a_secret_is_found_however_json_spells_it_in_a_text_that_is_none(text: str, secret: str) -> None:
    quoted = json.dumps(secret)[1:-1]
    spellings = [
        secret,
        quoted,
        quoted.replace("/", "\\/"),
        "".join(f"\\u{ord(one):04x}" for one in secret),
        "".join(f"\\u{ord(one):04X}" for one in secret),
        "".join(f"\\u{ord(one):04x}" if one in "to4" else json.dumps(one)[1:-1] for one in secret),
    ]
    # Of JSON that stands in the text of JSON, and of that in turn.
    spellings += [json.dumps(one)[1:-1] for one in spellings if "\\\\" not in one]
    spellings.append(json.dumps(json.dumps("".join(f"\\u{ord(one):04x}" for one in secret))[1:-1])[1:-1])
    for spelled in spellings:
        before, after = text % spelled, text % "[redacted]"
        assert conceal_text(before, ("another-secret-01", secret)) == after
        assert conceal_value((before, before.encode()), (secret,)) == (after, after.encode())
        assert conceal_bytes(b"\xff" + before.encode(), (secret,)) == b"\xff" + after.encode()


def test_a_text_of_escapes_without_a_secret_stays_itself_and_costs_no_more_than_another() -> None:
    for text in ("\\" * 200_000, "\\u0041" * 50_000, '\\"' * 50_000, "caf\\u00e9 " * 50_000, "\\u006" * 20_000):
        assert conceal_text(text, (SECRET, ODD)) is text
        assert conceal_bytes(body := text.encode(), (SECRET, ODD)) is body


def test_what_is_logged_spells_no_secret_either() -> None:
    keep_secret(SECRET)
    spelled = "".join(f"\\u{ord(one):04x}" for one in SECRET)
    assert conceal_known(f"it answered {spelled} and {SECRET}") == "it answered [redacted] and [redacted]"
