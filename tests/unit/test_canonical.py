"""Canonical bytes: one form for a value, and every string survives a round trip (RULINGS R13)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.canonical import canonical_bytes, effective_text, parse, sha256, sha256_hex

# Any code point, lone surrogates and NUL among them.
TEXTS = st.text(st.characters(codec=None, categories=None), max_size=20) | st.text("\ud83d\ude00a\0", max_size=6)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def _as_json_means_it(value: Any) -> Any:
    """JSON has no way to write two halves of a pair beside each other but as their one character."""
    return json.loads(json.dumps(value))


@given(VALUES)
def test_every_value_survives_a_round_trip(value: Any) -> None:
    assert parse(canonical_bytes(value)) == _as_json_means_it(value)


@given(VALUES)
def test_what_was_read_is_written_as_the_same_bytes(value: Any) -> None:
    body = canonical_bytes(value)
    assert canonical_bytes(parse(body)) == body


@given(VALUES)
def test_the_bytes_are_utf_8(value: Any) -> None:
    canonical_bytes(value).decode("utf-8")


@given(st.dictionaries(TEXTS, NUMBERS, max_size=6), st.randoms())
def test_the_order_of_a_mapping_says_nothing(value: dict[str, Any], chance: Any) -> None:
    items = list(value.items())
    chance.shuffle(items)
    assert canonical_bytes(dict(items)) == canonical_bytes(value)


def test_the_form_is_the_shortest() -> None:
    assert (
        canonical_bytes({"b": [1, 2.5, None, True], "a": "é\u2028"}) == '{"a":"é\u2028","b":[1,2.5,null,true]}'.encode()
    )


def test_a_lone_surrogate_is_written_as_its_escape() -> None:
    assert canonical_bytes("a\ud800") == b'"a\\ud800"'
    assert parse(b'"a\\ud800"') == "a\ud800"


def test_the_halves_of_a_pair_are_written_as_their_character_wherever_they_stand() -> None:
    apart = "\ud83d\ude00"
    assert canonical_bytes([apart, {apart: 1}]) == canonical_bytes(["😀", {"😀": 1}]) == '["😀",{"😀":1}]'.encode()
    assert canonical_bytes("\ude00\ud83d") == b'"\\ude00\\ud83d"'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_bytes(value)


def test_what_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError):
        canonical_bytes({"when": object()})


@given(TEXTS)
def test_an_effective_text_is_valid_utf_8_and_says_what_it_replaced(raw: str) -> None:
    text, replaced = effective_text(raw)
    text.encode("utf-8")
    assert len(text) == len(raw)
    lone = [position for position, character in enumerate(raw) if "\ud800" <= character <= "\udfff"]
    assert replaced == len(lone)
    assert [position for position in range(len(raw)) if text[position] != raw[position]] == lone


def test_digests_are_those_of_sha_256() -> None:
    assert sha256(b"") == bytes.fromhex(sha256_hex(b""))
    assert sha256_hex(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
