"""The project's own files keep what they promise."""

import configparser
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "agentloom_worker"
MIGRATIONS = ROOT / "migrations"
GENERATED = {"build", "dist", "__pycache__"}

# Put together here, so that this file does not hold what it looks for.
FOREIGN = re.compile("/(?:" + "|".join(("work", "root", "home")) + r")/|\b" + r"issue #?\d+\b", re.IGNORECASE)
HARD_LOCK = re.compile(r"\bFOR\s+(?:UPDATE|SHARE)\b", re.IGNORECASE)
SOFT_SQLALCHEMY_LOCK = re.compile(r"with_for_update\((?=[^)]*\bkey_share=True)")


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


def lines(section: str, option: str) -> list[str]:
    text = settings()[section][option]
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def packages_below(folder: Path, name: str) -> Iterator[str]:
    yield name
    for child in sorted(folder.iterdir()):
        if child.is_dir() and child.name not in GENERATED:
            yield from packages_below(child, f"{name}.{child.name}")


def own_files() -> list[Path]:
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name == ".ci" or not (name in GENERATED or name.startswith(".") or name.endswith(".egg-info"))
        ]
        found += [Path(folder, name) for name in files if name != ".git"]
    return found


def locks_too_much(text: str) -> bool:
    if HARD_LOCK.search(text):
        return True
    return text.count("with_for_update(") != len(SOFT_SQLALCHEMY_LOCK.findall(text))


def test_every_package_of_the_tree_is_in_the_wheel_and_no_other() -> None:
    tree = {
        name
        for name in packages_below(PACKAGE, "agentloom_worker")
        if any((PACKAGE.parent / name.replace(".", "/")).glob("*.py"))
    }
    tree |= set(packages_below(MIGRATIONS, "agentloom_worker.migrations"))
    assert set(lines("options", "packages")) == tree


def test_the_deployment_stands_outside_of_the_wheel() -> None:
    deployment = {"beat", "config", "tasks"}
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} >= deployment
    packaged = {name.split(".")[0] for name in lines("options", "packages")}
    assert packaged == {"agentloom_worker"}
    # And yet it is checked like the rest.
    assert deployment <= set(settings()["mypy"]["files"].replace(" ", "").split(","))
    assert deployment <= set(lines("importlinter", "root_packages"))


def test_every_folder_with_python_is_a_package() -> None:
    folders = {path.parent for top in (PACKAGE, MIGRATIONS) for path in top.rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_data_file_of_the_package_is_in_the_wheel() -> None:
    packaged: set[Path] = set()
    tops = {"agentloom_worker.migrations": MIGRATIONS}
    for name, patterns in settings()["options.package_data"].items():
        top = tops.get(name, ROOT / name.replace(".", "/"))
        packaged |= {path for pattern in patterns.split(",") for path in top.glob(pattern.strip())}
    data = {path for path in own_files() if path.is_relative_to(PACKAGE) or path.is_relative_to(MIGRATIONS)}
    assert {str(path) for path in data if path.suffix not in {".py", ".pyc"} and path not in packaged} == set()


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    requirements = lines("options", "install_requires")
    for extra in settings()["options.extras_require"]:
        requirements += lines("options.extras_require", extra)
    pinned = re.compile(r"^[A-Za-z0-9-]+(?:\[[a-z]+\])?>=[0-9.]+,<[0-9.]+$")
    assert [line for line in requirements if not pinned.match(line)] == []


def test_the_project_speaks_of_itself_alone() -> None:
    offenders = []
    for path in own_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        offenders += [f"{path.relative_to(ROOT)}: {match.group()}" for match in FOREIGN.finditer(text)]
    assert offenders == []


def test_no_statement_takes_a_lock_that_blocks_foreign_keys() -> None:
    files = [*(PACKAGE / "storage").rglob("*.py"), *MIGRATIONS.rglob("*.py")]
    assert files
    assert [str(path) for path in files if locks_too_much(path.read_text())] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id FROM run FOR UPDATE", True),
        ("select id from run for  share of run", True),
        ("SELECT id FROM run\nFOR\n  UPDATE SKIP LOCKED", True),
        ("select(run).with_for_update()", True),
        ("select(run).with_for_update(read=True)", True),
        ("SELECT id FROM run FOR NO KEY UPDATE SKIP LOCKED", False),
        ("SELECT id FROM run FOR KEY SHARE", False),
        ("select(run).with_for_update(skip_locked=True, key_share=True)", False),
    ],
)
def test_the_lock_rule_tells_the_kinds_apart(text: str, expected: bool) -> None:
    assert locks_too_much(text) is expected


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("demo", "agentloom demo"),
        ("fleet", "python -m bench.fleet_demo"),
        ("test", 'pytest -n 3 --dist loadfile -m "not full and not soak"'),
        ("test-all", 'pytest -n 3 --dist loadfile -m "not soak"'),
        ("soak", "pytest -m soak"),
        ("bench", "python -m bench"),
        ("check", "lint-imports"),
    ],
)
def test_every_make_target_sets_up_and_runs_its_command(target: str, command: str, tmp_path: Path) -> None:
    result = subprocess.run(
        ["make", "--dry-run", f"VENV={tmp_path}/venv", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--editable '.[test,dev]'" in result.stdout
    assert command in result.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_set_up_with_an_old_python_names_the_remedy(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.9.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    result = subprocess.run(
        ["make", f"VENV={tmp_path}/venv", f"PYTHON={old}", "setup"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "Python 3.9.2" in result.stderr
    assert "Remedy:" in result.stderr


def test_ci_runs_the_check_and_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make check", "make test"]
