"""A cancellation: the first reason stands, every callback runs once."""

import threading

from agentloom_worker.cancellation import Cancellation, CancelReason


def test_the_first_reason_stands() -> None:
    cancellation = Cancellation()
    assert (cancellation.cancelled, cancellation.reason) == (False, None)
    cancellation.cancel(CancelReason.STOP)
    cancellation.cancel(CancelReason.DRAIN)
    assert (cancellation.cancelled, cancellation.reason) == (True, CancelReason.STOP)


def test_callbacks_run_once_and_not_after_their_removal() -> None:
    cancellation, ran = Cancellation(), list[str]()
    cancellation.on_cancel(lambda: ran.append("kept"))
    remove = cancellation.on_cancel(lambda: ran.append("removed"))
    remove()
    remove()
    cancellation.cancel(CancelReason.DEADLINE)
    cancellation.cancel(CancelReason.DEADLINE)
    assert ran == ["kept"]


def test_a_callback_that_comes_too_late_runs_at_once() -> None:
    cancellation, ran = Cancellation(), list[str]()
    cancellation.cancel(CancelReason.TIMEOUT)
    cancellation.on_cancel(lambda: ran.append("late"))()
    assert ran == ["late"]


def test_a_callback_may_ask_for_the_reason_and_cancel_again() -> None:
    cancellation, seen = Cancellation(), list[CancelReason | None]()

    def callback() -> None:
        cancellation.cancel(CancelReason.DRAIN)
        seen.append(cancellation.reason)

    cancellation.on_cancel(callback)
    cancellation.cancel(CancelReason.SUPERSEDED)
    assert seen == [CancelReason.SUPERSEDED]


def test_of_many_threads_one_gives_the_reason_and_each_callback_runs_once() -> None:
    for _ in range(50):
        cancellation, ran, begin = Cancellation(), list[int](), threading.Barrier(6)

        def give(reason: CancelReason, held: Cancellation = cancellation, at: threading.Barrier = begin) -> None:
            at.wait(timeout=10)
            held.cancel(reason)

        def register(number: int, held: Cancellation = cancellation, at: threading.Barrier = begin) -> None:
            at.wait(timeout=10)
            held.on_cancel(lambda: ran.append(number))  # noqa: B023 - the thread is joined within the turn

        threads = [threading.Thread(target=give, args=(reason,)) for reason in list(CancelReason)[:3]]
        threads += [threading.Thread(target=register, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        assert sorted(ran) == [0, 1, 2]
        assert cancellation.reason in list(CancelReason)[:3]
