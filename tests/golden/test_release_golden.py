"""Frozen bytes of released versions: they are in databases, so no change of the code may change them."""

import hashlib
import json
from pathlib import Path

import pytest

from agentloom_worker.domain.capability import CapabilityKind, Effect
from agentloom_worker.domain.policy import Jitter, OnUnknown, OnUnknownAction, RetryPolicy
from agentloom_worker.domain.release import freeze_release, load_release
from agentloom_worker.errors import ReleaseInvalidError
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.wire.release import parse_release
from tests.factories import capability, release_document

HERE = Path(__file__).parent
DIGEST = "7b3ff569d8e6f70bae5a73f8073c2dc211f7e79299f09366f75961640a4b8081"

READ_LOG = capability(
    "read_log",
    description="Reads lines.",
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "default": 100}},
        "required": ["path"],
        "additionalProperties": False,
    },
    handler_ref="examples.tools:read_log",
    effect=Effect.READ,
    schema_derived=True,
)
SUM_CSV = capability("sum_csv", handler_ref="sum-csv", output_schema={"type": "number"})
RESULT_READ = capability(
    "result.read",
    kind=CapabilityKind.BUILTIN,
    model_name="result_read",
    description="Reads on in a long result.",
    handler_ref="result.read",
    retry=RetryPolicy(1, 0, 1.0, 0, Jitter.NONE, OnUnknown(OnUnknownAction.FAIL, 0)),
)


def test_release_of_version_1_freezes_to_the_recorded_bytes() -> None:
    document = parse_release((HERE / "release_v1.yaml").read_bytes())
    frozen = freeze_release(document, (READ_LOG, SUM_CSV, RESULT_READ))
    assert frozen.body == (HERE / "release_v1.json").read_bytes()
    assert frozen.digest.hex() == DIGEST


def test_recorded_bytes_of_version_1_are_read_as_recorded() -> None:
    body = (HERE / "release_v1.json").read_bytes()
    release = load_release(body)
    assert release.digest.hex() == hashlib.sha256(body).hexdigest() == DIGEST
    assert release.catalog.catalog_hash == ("95eb71f451cd062a75b8169cd0c8dc14ebdd9222b3c710891ce0bb359d1118ca")
    assert [spec.model_name for spec in release.catalog.capabilities] == [
        "addNumbers",
        "read_log",
        "result_read",
    ]
    assert release.model.retry.max_attempts == 6
    assert (release.budget.input_budget_tokens, release.budget.trigger_tokens) == (121_569, 97_255)


def test_http_tools_freeze_to_the_recorded_form_and_read_back_from_it() -> None:
    body = (HERE / "release_v1_http.json").read_bytes()
    recorded, release = json.loads(body)["tools"], load_release(body)
    resolved = resolve_release((HERE / "release_v1_http.yaml").read_bytes())
    now, fresh = json.loads(resolved.body)["tools"], load_release(resolved.body)
    for key in ("file_ticket", "find_tickets"):
        assert now[key] == recorded[key]
        assert fresh.catalog.by_model_name[key] == release.catalog.by_model_name[key]
    assert release.digest.hex() == "071b3197c75be5dcdbef1cbed454f8b61b708a7c25f613e4505851dd93eae0d7"
    assert release.catalog.catalog_hash == "26c0ba2c047129c14e6acefbf84423c70337cdae9232ab2a49d6a9e1e388c17b"


def test_an_output_schema_freezes_to_the_recorded_form_and_reads_back_from_it() -> None:
    body = (HERE / "release_v1_output.json").read_bytes()
    assert resolve_release((HERE / "release_v1_output.yaml").read_bytes()).body == body
    release = load_release(body)
    assert release.output_schema == json.loads(body)["agent"]["output_schema"]
    assert release.digest.hex() == "1e2a8453b8255c011c35ca803067eed76894bed95d1121ae07fee3ebd91ed96d"
    assert load_release((HERE / "release_v1.json").read_bytes()).output_schema is None


def test_fields_of_the_history_stand_in_the_bytes_only_where_they_are_written() -> None:
    document = json.loads((HERE / "release_v1.json").read_bytes())
    assert not {"recent_runs", "protocol"} & set(document["context"])
    release = load_release((HERE / "release_v1.json").read_bytes())
    assert (release.recent_runs, release.protocol) == (2, "rounds@1")


def test_a_written_context_protocol_freezes_to_the_recorded_form() -> None:
    protocol = {"id": "rounds", "version": 1}
    resolved = resolve_release(release_document(context={"recent_runs": 0, "protocol": protocol}))
    assert b'"protocol":{"id":"rounds","options":{},"version":1},"recent_runs":0,' in resolved.body
    release = load_release(resolved.body)
    assert (release.recent_runs, release.protocol) == (0, "rounds@1")
    assert resolved.digest != resolve_release(release_document()).digest


@pytest.mark.parametrize(
    ("context", "path"),
    [
        ({"recent_runs": -1}, "/context/recent_runs"),
        ({"recent_runs": 1001}, "/context/recent_runs"),
        ({"protocol": {"id": "squares", "version": 1}}, "/context/protocol/id"),
        ({"protocol": {"id": "rounds", "version": 2}}, "/context/protocol/version"),
        ({"protocol": {"id": "rounds", "version": 1, "options": {"n": 1}}}, "/context/protocol/options"),
    ],
)
def test_a_history_that_no_protocol_can_show_is_refused_by_its_path(context: dict[str, object], path: str) -> None:
    with pytest.raises(ReleaseInvalidError) as caught:
        resolve_release(release_document(context=context))
    assert [one for one, _ in caught.value.problems] == [path]
