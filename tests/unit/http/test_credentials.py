import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from agentloom_worker import limits, secrecy
from agentloom_worker.errors import Code, RunError
from agentloom_worker.http import credentials
from agentloom_worker.http.credentials import CredentialError, installed_providers, resolve_credential
from agentloom_worker.wire.release import Credential


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


MODULE = """
from agentloom_worker.http.credentials import CredentialRevokedError

SECRETS = {"team/model": " tok-0123456789abcdef\\n", "number": 7, "empty": " "}


def read(name):
    if name == "gone":
        raise CredentialRevokedError("tok-0123456789abcdef was revoked")
    if name == "down":
        raise RuntimeError("no answer for tok-0123456789abcdef")
    return SECRETS[name]


nothing = 7
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is installed as pip would: a module, and its entry points beside it."""
    (tmp_path / "vault_for_tests.py").write_text(MODULE)
    info = tmp_path / "vault_for_tests-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vault-for-tests\nVersion: 1\n")
    points = "vault = vault_for_tests:read\nodd = vault_for_tests:nothing\nbroken = vault_for_tests_no_such:read\n"
    (info / "entry_points.txt").write_text(f"[agentloom.credentials]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(credentials, "_providers", {})
    yield info
    sys.modules.pop("vault_for_tests", None)


def test_a_credential_is_asked_of_an_installed_provider(installed: Path) -> None:
    assert resolve_credential("vault:team/model") == "tok-0123456789abcdef"


def test_the_providers_are_listed_that_a_reference_can_reach(installed: Path) -> None:
    points = installed / "entry_points.txt"
    points.write_text(points.read_text() + "env = vault_for_tests:read\nNot-A-Name = vault_for_tests:read\n")
    assert installed_providers() == ("broken", "odd", "vault")


def test_a_provider_is_asked_at_each_attempt(installed: Path) -> None:
    assert resolve_credential("vault:team/model") == "tok-0123456789abcdef"
    sys.modules["vault_for_tests"].SECRETS["team/model"] = "tok-another-0123456"
    assert resolve_credential("vault:team/model") == "tok-another-0123456"


def test_secrets_are_learnt_without_a_word_and_a_provider_is_asked_for_each_once(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrecy, "_known", {})
    monkeypatch.setattr(secrecy, "_in_order", ())
    monkeypatch.setattr(credentials, "_ask_again_s", {})
    monkeypatch.setenv("MODEL_KEY", "sk-0123456789abcdef")
    references = ("env:MODEL_KEY", "env:NOT_SET", "vault:team/model", "vault:gone", "vault:down", "another:x")
    credentials.learn_secrets(references, 1000.0)
    assert set(secrecy.known_secrets()) == {"sk-0123456789abcdef", "tok-0123456789abcdef"}
    monkeypatch.setenv("MODEL_KEY", "sk-another-0123456")
    sys.modules["vault_for_tests"].SECRETS["team/model"] = "tok-another-0123456"
    credentials.learn_secrets(references, 1000.0)
    assert set(secrecy.known_secrets()) == {"sk-0123456789abcdef", "tok-0123456789abcdef", "sk-another-0123456"}
    assert credentials._ask_again_s == {
        "vault:team/model": math.inf,
        "vault:gone": math.inf,
        "vault:down": 1000.0 + limits.CREDENTIAL_LEARN_PAUSE_S,
        "another:x": math.inf,
    }
    credentials.learn_secrets(["vault:down"], 1000.0 + limits.CREDENTIAL_LEARN_PAUSE_S)
    assert credentials._ask_again_s["vault:down"] == 1000.0 + 2 * limits.CREDENTIAL_LEARN_PAUSE_S


@pytest.mark.parametrize(
    ("reference", "code", "transient", "says"),
    [
        ("vault:gone", Code.CREDENTIAL_REVOKED, False, "was revoked"),
        ("vault:unknown", Code.CREDENTIAL_UNAVAILABLE, False, "not known to its provider"),
        ("vault:down", Code.CREDENTIAL_UNAVAILABLE, True, "failed: RuntimeError"),
        ("vault:number", Code.CREDENTIAL_UNAVAILABLE, False, "gave a int"),
        ("vault:empty", Code.CREDENTIAL_UNAVAILABLE, False, "not set or empty"),
        ("odd:x", Code.CREDENTIAL_UNAVAILABLE, False, "is not callable"),
        ("broken:x", Code.CREDENTIAL_UNAVAILABLE, False, "cannot be imported: ModuleNotFoundError"),
        ("another:x", Code.CREDENTIAL_UNAVAILABLE, False, "here: broken, odd, vault"),
    ],
)
def test_what_a_provider_raises_becomes_one_typed_error_without_its_words(
    installed: Path, reference: str, code: Code, transient: bool, says: str
) -> None:
    with pytest.raises(CredentialError) as caught:
        resolve_credential(reference)
    assert (caught.value.code, caught.value.transient) == (code, transient)
    assert says in caught.value.message and "tok-0123456789abcdef" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback would quote its words"


def test_a_provider_that_two_packages_install_is_refused(installed: Path) -> None:
    points = installed / "entry_points.txt"
    points.write_text(points.read_text() + "[x]\n")
    other = installed.parent / "other_vault-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-vault\nVersion: 1\n")
    (other / "entry_points.txt").write_text("[agentloom.credentials]\nvault = other_vault:read\n")
    with pytest.raises(CredentialError, match="several packages install the credential provider vault"):
        resolve_credential("vault:team/model")


@pytest.mark.parametrize(
    ("reference", "valid"),
    [
        ("env:MODEL_KEY", True),
        ("env:model-key", False),
        ("file:/run/secrets/key", True),
        ("vault:team/model#key", True),
        ("gcp:projects/1/secrets/key", True),
        ("aws:key", True),
        ("https://user:password@vault", False),
        ("vault:", False),
        ("vault:two words", False),
        ("sk-0123456789", False),
        ("sk-0123456789:x", False),
        ("Vault:x", False),
    ],
)
def test_a_release_takes_references_only(reference: str, valid: bool) -> None:
    check = TypeAdapter(Credential)
    if valid:
        assert check.validate_python(reference) == reference
    else:
        with pytest.raises(ValidationError):
            check.validate_python(reference)
