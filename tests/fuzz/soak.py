"""Many inputs in one process: each is checked, none may hang, and the process must not grow."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.mutation import inputs
from tests.fuzz.stream_input import check

BLOCKS_GROWN_MAX = 5_000
RESIDENT_MB_GROWN_MAX = 32.0
_WARM_UP = 1_000
_CPU_S_MAX = 20.0  # of one input, which takes less than a millisecond


@dataclass(slots=True)
class Found:
    """How many inputs ended how, and what the process holds more than after the first thousand."""

    outcomes: Counter[str] = field(default_factory=Counter)
    blocks_grown: int = 0
    resident_mb_grown: float = 0.0

    @property
    def total(self) -> int:
        """All inputs."""
        return self.outcomes.total()

    def __str__(self) -> str:
        shown = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        grown = f"{self.blocks_grown} blocks and {self.resident_mb_grown:.1f} MB of memory more than after the warm-up"
        return f"{self.total} inputs ({shown}); {grown}"


def fuzz(count: int, seed: int) -> Found:
    """Check so many inputs, in the main thread. What `check` raises carries its input as a note."""
    found = Found()
    blocks, resident_mb = _memory()
    with _hangs_found():
        for number, data in enumerate(inputs(count, seed)):
            if number == _WARM_UP:
                blocks, resident_mb = _memory()
            signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_S_MAX)
            try:
                found.outcomes[check(data)] += 1
            except BaseException as error:
                error.add_note(f"input {number} of seed {seed}: {data!r}")
                raise
    blocks_now, resident_mb_now = _memory()
    found.blocks_grown, found.resident_mb_grown = blocks_now - blocks, resident_mb_now - resident_mb
    return found


def assert_harmless(found: Found, count: int) -> None:
    """All inputs were read, all ends are among them (else they test little), and nothing grew."""
    assert found.total == count
    assert set(found.outcomes) == {"complete", "incomplete", "protocol", "provider"}, found
    assert found.blocks_grown < BLOCKS_GROWN_MAX, found
    assert found.resident_mb_grown < RESIDENT_MB_GROWN_MAX, found


@contextmanager
def _hangs_found() -> Iterator[None]:
    def hangs(_number: int, _frame: object) -> None:
        raise RuntimeError(f"one input took {_CPU_S_MAX} s of CPU")

    previous = signal.signal(signal.SIGVTALRM, hangs)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _memory() -> tuple[int, float]:
    """Blocks of Python's allocator, and the resident MB of the process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE") / 1e6
