"""The register of requirements and the tests in the tree agree, in both directions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.requirements import REQUIREMENTS

TESTS = Path(__file__).resolve().parents[1]
_ID = re.compile(r"([BCDKLPSW]\d\d[a-z]?)_")


def _ids_of(name: str) -> list[str]:
    """The ids that a test's name begins with."""
    ids, rest = [], name.removeprefix("test_")
    while (found := _ID.match(rest)) is not None:
        ids.append(found[1])
        rest = rest[found.end() :]
    return ids


def _tree() -> Iterator[tuple[str, str]]:
    """Each requirement id beside a test whose name carries it."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for requirement in _ids_of(node.name):
                    yield requirement, f"{path.relative_to(TESTS).as_posix()}::{node.name}"


def _shown(pairs: set[tuple[str, str]]) -> str:
    return "".join(f'\n  {requirement}: "{test}",' for requirement, test in sorted(pairs))


def test_every_listed_test_exists_and_carries_the_id() -> None:
    listed = {(requirement, test) for requirement, entry in REQUIREMENTS.items() for test in entry.tests}
    gone = listed - set(_tree())
    assert not gone, f"take these away:{_shown(gone)}"


def test_every_test_that_carries_an_id_is_listed() -> None:
    listed = {(requirement, test) for requirement, entry in REQUIREMENTS.items() for test in entry.tests}
    new = set(_tree()) - listed
    assert not new, f"add these:{_shown(new)}"


def test_every_requirement_says_where_it_is_written_and_has_each_of_its_tests_once() -> None:
    for requirement, entry in REQUIREMENTS.items():
        assert entry.source and entry.built, requirement
        assert entry.tests and len(set(entry.tests)) == len(entry.tests), requirement
    assert list(REQUIREMENTS) == sorted(REQUIREMENTS, key=lambda one: ("CLBDPWSK".index(one[0]), one))


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("test_W05_broken", ["W05"]),
        ("test_C15_L21_raw", ["C15", "L21"]),
        ("test_K01b_old", ["K01b"]),
        ("test_T10_claims", []),
        ("test_a_D05_inside", []),
    ],
)
def test_ids_are_read_from_the_beginning_of_a_name(name: str, ids: list[str]) -> None:
    assert _ids_of(name) == ids
