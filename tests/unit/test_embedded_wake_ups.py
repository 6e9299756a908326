"""Which rows a process wakes up for."""

from uuid import UUID

from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.embedded import WakeUps
from agentloom_worker.ids import DispatchId

SERVED, FOREIGN = DispatchId(UUID(int=1)), DispatchId(UUID(int=2))


def test_T13_a_wake_up_for_a_queue_that_is_not_served_is_left_to_others() -> None:
    wake_ups = WakeUps(("control",))
    wake_ups.publish([WakeUp(FOREIGN, "attempt_model", "model", 1), WakeUp(SERVED, "accept_model", "control", 1)])
    assert wake_ups.get(0.0) == SERVED
    assert wake_ups.get(0.0) is None


def test_a_row_that_is_published_again_stands_in_the_queue_once() -> None:
    wake_ups = WakeUps()
    for _ in range(2):
        wake_ups.publish([WakeUp(SERVED, "accept_model", "control", 1)])
    assert wake_ups.get(0.0) == SERVED
    assert wake_ups.get(0.0) is None
