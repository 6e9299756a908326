"""`python -m tests.fuzz [--inputs N] [--seed S] [--coverage DIRECTORY]`: fuzz the reading of answers, offline.

Without `--coverage` the inputs are mutations of the committed corpus, the same for the same seed. With it atheris,
which is no dependency of ours and has to be installed beside it, looks for inputs that reach new code, and keeps them
in the directory.
"""

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path

from tests.fuzz.mutation import CORPUS
from tests.fuzz.soak import fuzz

_INPUT_MAX = 4_000
_SLOWEST_S = 5


def main() -> int:
    """Fuzz, and say how many inputs ended how."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", type=Path, metavar="DIRECTORY")
    options = parser.parse_args()
    if options.coverage is not None:
        return _fuzz_by_coverage(options.coverage, options.inputs, options.seed)
    sys.stdout.write(f"{fuzz(options.inputs, options.seed)}\n")
    return 0


def _fuzz_by_coverage(kept: Path, inputs: int, seed: int) -> int:
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("atheris is not installed. Remedy: pip install atheris, in an environment made for it\n")
        return 2
    atheris = importlib.import_module("atheris")
    read_by = ("tests.fuzz.stream_input", "tests.fuzz.attempt_input")
    ours = [name for name in sys.modules if name.startswith(("agentloom_worker", *read_by))]
    for name in ours:
        del sys.modules[name]  # to be loaded again, counted
    with atheris.instrument_imports(include=["agentloom_worker.llm", "agentloom_worker.http", *read_by]):
        target = importlib.import_module("tests.fuzz.stream_input")
    kept.mkdir(parents=True, exist_ok=True)
    bounds = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={_INPUT_MAX}", f"-timeout={_SLOWEST_S}"]
    atheris.Setup([sys.argv[0], str(kept), str(CORPUS), *bounds], lambda data: target.check(data) and None)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
