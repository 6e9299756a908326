"""What is logged of an exception: where it was raised, never what it says."""

from pydantic import TypeAdapter, ValidationError

from agentloom_worker import telemetry

BODY = "the model's own words"


def _refuse() -> None:
    try:
        TypeAdapter(int).validate_python(BODY)
    except ValidationError as error:
        raise RuntimeError(f"cannot take {BODY}") from error


def test_frames_name_types_and_places_of_an_exception_and_its_cause_and_no_value() -> None:
    try:
        _refuse()
    except RuntimeError as error:
        assert BODY in f"{error} {error.__cause__}"
        told = telemetry.frames_of(error)
    assert BODY not in told
    assert "builtins.RuntimeError\nraised from\n" in told
    assert told.endswith("ValidationError")
    assert "in _refuse" in told


def test_frames_follow_no_circle_of_causes() -> None:
    one, other = ValueError(), TypeError()
    one.__cause__, other.__cause__ = other, one
    assert telemetry.frames_of(one).count("raised from") < 10
