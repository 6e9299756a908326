"""Time as a port: instants are whole microseconds, a manual clock moves only when told to."""

import threading
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.clock import US, ManualClock, SystemClock, to_datetime, to_text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.integers(0, 253_402_300_799 * US + 999_999))
def test_an_instant_keeps_every_microsecond(instant_us: int) -> None:
    assert (to_datetime(instant_us) - EPOCH) // timedelta(microseconds=1) == instant_us
    assert datetime.fromisoformat(to_text(instant_us)) == to_datetime(instant_us)


def test_the_text_has_one_width_and_sorts_as_the_instants_do() -> None:
    assert to_text(0) == "1970-01-01T00:00:00.000000Z"
    assert to_text(1_800_000_000 * US + 7) == "2027-01-15T08:00:00.000007Z"


def test_a_manual_clock_moves_forward_only() -> None:
    clock = ManualClock(5 * US)
    clock.advance_to(3 * US)
    assert clock.database_now_us() == 5 * US
    clock.advance(1.5)
    assert (clock.database_now_us(), clock.monotonic_s()) == (6_500_000, 1.5)
    clock.advance_to(9 * US)
    assert clock.database_now_us() == 9 * US


def test_a_manual_clock_passes_the_time_of_a_wait_unless_the_event_is_set() -> None:
    clock, event = ManualClock(0), threading.Event()
    assert not clock.wait(event, 3)
    assert clock.monotonic_s() == 3
    event.set()
    assert clock.wait(event, 3)
    assert clock.monotonic_s() == 3


def test_two_looks_at_a_manual_clock_differ() -> None:
    clock = ManualClock()
    assert clock.wall_us() < clock.wall_us()


def test_the_system_clock_leaves_the_database_its_own() -> None:
    clock, event = SystemClock(), threading.Event()
    assert clock.database_now_us() is None
    assert not clock.wait(event, 0)
    event.set()
    assert clock.wait(event, 60)
    before = clock.monotonic_s()
    assert clock.monotonic_s() >= before
