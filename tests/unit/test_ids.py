"""Identities: ordered within a process whatever its clock does, and tokens that follow from nothing (T7)."""

import threading
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.ids import SystemIds, parse_short_id, short_id


class _BackwardClock(ManualClock):
    """A host whose clock is set back at every look."""

    def wall_us(self) -> int:
        with self._lock:
            self._now_us -= 3_000
            return self._now_us


def test_later_ids_sort_after_earlier_ones_although_the_clock_goes_back() -> None:
    for clock in (ManualClock(), SystemClock(), _BackwardClock()):
        ids = SystemIds(clock)
        made = [ids.new() for _ in range(5000)]
        assert made == sorted(made)
        assert len(set(made)) == len(made)


def test_ids_are_version_7_and_carry_the_milliseconds() -> None:
    made = SystemIds(ManualClock(1_700_000_000_123_000)).new()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == 1_700_000_000_123


def test_many_threads_make_different_ids() -> None:
    ids, made, begin = SystemIds(ManualClock()), list[UUID](), threading.Barrier(8)

    def make() -> None:
        begin.wait(timeout=10)
        mine = [ids.new() for _ in range(500)]
        assert mine == sorted(mine)
        made.extend(mine)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(set(made)) == 4000


def test_T7_tokens_say_nothing_about_time_or_order() -> None:
    ids = SystemIds(ManualClock())
    tokens = [ids.token() for _ in range(500)]
    assert len(set(tokens)) == 500
    # Every bit takes both values, the ones that a version or a time would fix too.
    ones, zeros = 0, 0
    for token in tokens:
        ones, zeros = ones | token.int, zeros | ~token.int
    mask = (1 << 128) - 1
    assert (ones & mask, zeros & mask) == (mask, mask)


@given(st.uuids())
def test_a_short_id_is_read_back(identity: UUID) -> None:
    text = short_id(identity)
    assert (len(text), parse_short_id(text)) == (22, identity)
