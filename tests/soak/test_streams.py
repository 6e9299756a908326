"""The reading of spoilt streams at full size."""

from collections.abc import Callable

import pytest

from tests.fuzz.soak import assert_harmless, fuzz
from tests.soak.sizes import SIZES


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_million_spoilt_streams_crash_hang_and_grow_nothing(seed: int, result: Callable[..., None]) -> None:
    count = SIZES.spoilt_streams // 10
    found = fuzz(count, seed)
    assert_harmless(found, count)
    result(inputs=found.total, blocks_grown=found.blocks_grown, **found.outcomes)
