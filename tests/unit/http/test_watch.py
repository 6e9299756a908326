import threading

import pytest

from agentloom_worker.clock import ManualClock
from agentloom_worker.http.watch import CallInterrupted, CallWatch, Limit, LimitExpired


def new_watch(clock: ManualClock) -> CallWatch:
    watch = CallWatch(clock, lambda: None)
    watch.limit(Limit.DEADLINE, 100.0)
    return watch


def test_the_nearest_limit_bounds_the_wait_and_is_named() -> None:
    clock = ManualClock()
    watch = new_watch(clock)
    watch.limit(Limit.FIRST_OUTPUT, 10.0)
    clock.advance(4.0)
    assert watch.block_s() == pytest.approx(6.0)
    clock.advance(6.0)
    with pytest.raises(LimitExpired) as caught:
        watch.block_s()
    assert caught.value.limit is Limit.FIRST_OUTPUT
    watch.lift(Limit.FIRST_OUTPUT)
    assert watch.block_s() == pytest.approx(90.0)


def test_S05_bytes_re_arm_the_idle_limit_and_not_the_deadline() -> None:
    clock = ManualClock()
    watch = new_watch(clock)
    watch.bytes_arrived()
    assert watch.block_s() == pytest.approx(100.0)
    watch.start_idle(10.0)
    for _ in range(12):
        clock.advance(8.0)
        watch.bytes_arrived()
    assert watch.block_s() == pytest.approx(4.0)
    clock.advance(8.0)
    with pytest.raises(LimitExpired) as caught:
        watch.block_s()
    assert caught.value.limit is Limit.DEADLINE


def test_an_interruption_wakes_the_wait_and_refuses_the_next() -> None:
    watch = new_watch(ManualClock())
    woken = threading.Event()
    watch.attach(woken.set)
    watch.interrupt()
    assert woken.is_set()
    with pytest.raises(CallInterrupted):
        watch.block_s()
    with pytest.raises(CallInterrupted):
        watch.attach(woken.set)


def test_an_interruption_after_detach_touches_nothing() -> None:
    watch = new_watch(ManualClock())
    woken = threading.Event()
    watch.attach(woken.set)
    watch.detach()
    watch.interrupt()
    assert not woken.is_set()
