import hashlib
import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloom_worker import limits
from agentloom_worker.canonical import canonical_bytes
from agentloom_worker.capabilities.arguments import check_arguments
from agentloom_worker.capabilities.builtin import BUILTINS
from agentloom_worker.capabilities.builtin.result import (
    ResultRead,
    read_arguments,
    read_slice,
    result_not_found,
    result_read_spec,
)
from agentloom_worker.capabilities.python import shape
from agentloom_worker.capabilities.result import (
    EffectiveText,
    decode_result,
    encode_result,
    failed,
    model_text,
    parse_result_ref,
    present,
    preview,
    result_ref,
)
from agentloom_worker.domain.capability import CapabilityKind, ResultStatus, ToolResult
from agentloom_worker.domain.model import Category, Executed, Failure
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.errors import Code, InvariantError
from tests.unit.capabilities.declaring import OPERATION

KIB64 = 64 * 1024
REF = f"result:{OPERATION}"
ODD = "a\x00b\ud800c<|endoftext|>\u2028d"

ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=10,
)


def text_result(text: str) -> ToolResult:
    return ToolResult(ResultStatus.SUCCEEDED, text=text)


def sliced(result: ToolResult) -> dict[str, Any]:
    assert result.structured is not None
    value = result.structured[0]
    assert isinstance(value, dict)
    return value


@given(ANY_JSON)
def test_W08_raw_result_survives_its_bytes_and_gives_the_same_bytes_again(value: object):
    result = shape(value)
    body = encode_result(result)
    assert decode_result(body) == result
    assert encode_result(decode_result(body)) == body
    body.decode("utf-8")


@given(ANY_JSON)
def test_W08_effective_text_is_valid_utf8_and_the_same_from_raw(value: object):
    result = shape(value)
    effective = model_text(result)
    effective.text.encode("utf-8")
    assert model_text(decode_result(encode_result(result))) == effective


def test_W08_lone_surrogate_is_kept_in_raw_and_replaced_in_the_effective_text():
    result = shape(ODD)
    assert decode_result(encode_result(result)).text == ODD
    effective = model_text(result)
    first_line, note = effective.text.split("\n")
    assert first_line == "a\x00b\ufffdc<|endoftext|>\u2028d"
    assert "U+FFFD" in note
    assert effective.replaced == 1


def test_W08_lone_surrogates_inside_of_json_are_replaced_and_said():
    effective = model_text(shape({"k\udc00": ["\ud800", "\\ud800", "ok"]}))
    first_line, note = effective.text.split("\n")
    assert json.loads(first_line) == {"k\ufffd": ["\ufffd", "\\ud800", "ok"]}
    assert effective.replaced == 2
    assert note.startswith("[2 ")


def test_W08_ten_megabytes_on_one_line_keep_their_hash_and_get_a_marked_preview():
    text = ("x" * 999 + "é") * 10_500
    result = shape(text)
    raw = encode_result(result)
    assert decode_result(raw).text == text
    shown = present(result, OPERATION, kind=CapabilityKind.PYTHON)
    assert shown.preview is not None
    assert shown.effective_hash == hashlib.sha256(text.encode()).hexdigest()
    assert shown.preview.effective_result_hash == shown.effective_hash
    assert shown.total_bytes == len(text.encode())
    assert len(shown.text) < KIB64 + 1000
    assert "truncated" in shown.text.split("\n")[0]


def test_failure_and_cancellation_round_trip_and_are_told_as_json():
    failure = Failure(
        code=Code.TOOL_TIMEOUT,
        category=Category.TIMEOUT,
        message="too slow",
        external_outcome=Executed.UNKNOWN,
        retry_class=RetryClass.TRANSPORT,
        retry_after_ms=5,
        http_status=503,
    )
    for result in (failed(failure), ToolResult(ResultStatus.CANCELLED, failure=failure)):
        assert decode_result(encode_result(result)) == result
        assert model_text(result).text == (
            '{"error":{"code":"TOOL_TIMEOUT","executed":"unknown","message":"too slow"}}'
        )


def test_structured_null_is_not_the_same_as_nothing():
    null = ToolResult(ResultStatus.SUCCEEDED, structured=(None,))
    assert decode_result(encode_result(null)) == null
    assert model_text(null).text == "null"
    assert model_text(text_result("")).text == ""


def test_body_of_another_version_is_not_guessed_at():
    with pytest.raises(InvariantError):
        decode_result(canonical_bytes({"v": 2, "status": "succeeded", "text": ""}))


def test_C19_preview_names_exactly_the_range_that_it_shows():
    text = "é" * 40_000
    shown = preview(EffectiveText("a" + text, 0, "text/plain"), OPERATION)
    assert shown is not None
    # 64 KiB fall inside of an é that began one byte earlier.
    assert (shown.preview_start, shown.preview_end, shown.total_bytes) == (0, KIB64 - 1, 80_001)
    assert shown.text.encode() == ("a" + text).encode()[: KIB64 - 1]
    assert shown.truncated
    assert (shown.result_ref, shown.source_operation_id) == (REF, OPERATION)
    header, body, footer = shown.wire_text.split("\n")
    assert body == shown.text
    assert f"bytes 0 to {KIB64 - 1} of 80001" in header
    assert f'{{"result_ref":"{REF}","offset":{KIB64 - 1}}}' in footer


@pytest.mark.parametrize(("size", "cut"), [(KIB64, False), (KIB64 + 1, True)])
def test_C19_only_texts_above_64_kib_are_previewed(size: int, cut: bool):
    shown = present(text_result("x" * size), OPERATION, kind=CapabilityKind.PYTHON)
    assert (shown.preview is not None) == cut
    assert cut or shown.text == "x" * size


def test_C19_structured_result_is_previewed_as_json_text():
    shown = present(shape(["x" * 100] * 1000), OPERATION, kind=CapabilityKind.PYTHON).preview
    assert shown is not None
    assert shown.media_type == "application/json"
    assert shown.structured_ref == REF


def test_C19_answer_of_result_read_is_never_previewed_itself():
    part = read_slice(('"' * KIB64).encode(), ResultRead(REF, 0, KIB64))
    shown = present(part, OPERATION, kind=CapabilityKind.BUILTIN)
    assert shown.preview is None
    assert shown.total_bytes > KIB64


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("aé€😀\x00\n"), min_size=1, max_size=40), st.integers(1, 4000))
def test_C19_preview_and_the_slices_after_it_are_the_whole_text(pattern: str, repeat: int):
    text = (pattern * (KIB64 // len(pattern.encode()) + repeat))[: KIB64 + repeat]
    body = text.encode()
    shown = preview(EffectiveText(text, 0, "text/plain"), OPERATION)
    assert (shown is None) == (len(body) <= KIB64)
    if shown is None:
        return
    assert KIB64 - 3 <= shown.preview_end <= KIB64
    parts, offset = [shown.text], shown.preview_end
    while offset is not None:
        part = sliced(read_slice(body, ResultRead(REF, offset, KIB64)))
        assert part["etag"] == shown.effective_result_hash
        parts.append(part["text"])
        offset = part["next_offset"]
    assert "".join(parts) == text


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.integers(1, 20))
def test_C19_slices_one_after_the_other_are_the_whole_text(text: str, limit: int):
    body = text.encode()
    parts, offset = [], 0
    for _ in range(len(body) + 1):
        part = sliced(read_slice(body, ResultRead(REF, offset, limit)))
        assert (part["offset"], part["total_bytes"]) == (offset, len(body))
        assert part["text"].encode() == body[offset : part["end_offset"]]
        assert len(part["text"].encode()) <= limit or len(part["text"]) == 1
        parts.append(part["text"])
        if part["next_offset"] is None:
            break
        assert part["next_offset"] == part["end_offset"] > offset
        offset = part["next_offset"]
    assert "".join(parts) == text


@pytest.mark.parametrize("offset", [1, 3, 4])
def test_C19_offset_inside_a_character_is_invalid(offset: int):
    result = read_slice("é€".encode(), ResultRead(REF, offset, 10))
    assert result.failure is not None
    assert result.failure.code == Code.INVALID_OFFSET


@pytest.mark.parametrize("offset", [5, 6, 10**12])
def test_C19_reading_at_or_past_the_end_is_empty_and_ends(offset: int):
    part = sliced(read_slice("é€".encode(), ResultRead(REF, offset, 10)))
    assert (part["text"], part["offset"], part["end_offset"], part["next_offset"]) == (
        "",
        offset,
        offset,
        None,
    )


def test_C19_limit_below_one_character_reads_that_character():
    part = sliced(read_slice("😀a".encode(), ResultRead(REF, 0, 1)))
    assert (part["text"], part["next_offset"]) == ("😀", 4)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f'{{"result_ref":"{REF}"}}', ResultRead(REF, 0, 16_384)),
        (f'{{"result_ref":"{REF}","offset":3.0,"limit":65536}}', ResultRead(REF, 3, 65_536)),
        (f'{{"result_ref":"{REF}","limit":0}}', None),
        (f'{{"result_ref":"{REF}","limit":65537}}', None),
        (f'{{"result_ref":"{REF}","offset":-1}}', None),
        (f'{{"result_ref":"{REF}","whole":true}}', None),
        ("{}", None),
    ],
)
def test_C19_arguments_of_result_read(text: str, read: ResultRead | None):
    arguments = check_arguments(result_read_spec(), text)
    if read is None:
        assert isinstance(arguments, Failure)
    else:
        assert isinstance(arguments, dict)
        assert read_arguments(arguments) == read


def test_result_reference_has_one_form():
    assert result_ref(OPERATION) == REF
    assert parse_result_ref(REF) == OPERATION
    for other in (
        str(OPERATION),
        REF.upper(),
        f"result:{{{OPERATION}}}",
        f"result:{UUID(int=0).hex}",
        "result:",
        "",
    ):
        assert parse_result_ref(other) is None


def test_foreign_and_absent_references_get_the_same_answer():
    failure = result_not_found(REF).failure
    assert failure is not None
    assert failure.code == Code.RESULT_NOT_FOUND
    assert failure.external_outcome is Executed.NOT_EXECUTED


def test_builtins_stand_under_their_own_keys():
    for key, build in BUILTINS.items():
        spec = build()
        assert spec.key == key
        assert spec.kind is CapabilityKind.BUILTIN


def test_slice_bound_is_that_of_the_preview():
    assert limits.RESULT_READ_MAX_BYTES == limits.PREVIEW_BYTES == KIB64
