from pathlib import Path

import pytest

from agentloom_worker.errors import Code, RunError
from agentloom_worker.http.credentials import resolve_credential


def test_a_credential_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", " sk-1\n")
    assert resolve_credential("env:MODEL_KEY") == "sk-1"


def test_a_credential_is_read_from_a_file_each_time(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-1\n")
    assert resolve_credential(f"file:{path}") == "sk-1"
    path.write_text("sk-2\n")
    assert resolve_credential(f"file:{path}") == "sk-2"


@pytest.mark.parametrize("content", ["", " \n", "two\nlines", "schlüssel", "a\x00b"])
def test_what_no_header_can_carry_is_refused_without_being_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(RunError) as caught:
        resolve_credential(f"file:{path}")
    assert caught.value.code is Code.CREDENTIAL_UNAVAILABLE
    assert str(path) in caught.value.message
    assert not content.strip() or content.strip() not in caught.value.message


@pytest.mark.parametrize("reference", ["env:AGENTLOOM_NO_SUCH_KEY", "env:", "file:", "file:no/such/file", "file:\x00"])
def test_an_unavailable_credential_names_its_reference(reference: str) -> None:
    with pytest.raises(RunError) as caught:
        resolve_credential(reference)
    assert caught.value.code is Code.CREDENTIAL_UNAVAILABLE
    assert reference in caught.value.message


@pytest.mark.parametrize("pasted", ["sk-0123456789", "ENV:sk-0123456789", "sk-0123456789:x"])
def test_a_key_pasted_as_reference_is_not_quoted(pasted: str) -> None:
    with pytest.raises(RunError) as caught:
        resolve_credential(pasted)
    assert "0123456789" not in str(caught.value)
