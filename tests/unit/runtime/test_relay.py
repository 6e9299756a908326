"""From a commit to the broker: what fails is only later, and no queue is flooded with repetitions."""

from uuid import UUID, uuid5

from agentloom_worker.domain.dispatch import WakeUp
from agentloom_worker.errors import PersistenceUnavailableError
from agentloom_worker.ids import DispatchId
from agentloom_worker.limits import BACKLOG_PER_SLOT, SLOTS_UNKNOWN
from agentloom_worker.runtime.relay import Relay

SPACE = UUID(int=1)


def row(number: int, queue: str = "control", *, force: bool = False) -> WakeUp:
    return WakeUp(DispatchId(uuid5(SPACE, str(number))), "prepare_context", queue, 1, force)


class Broker:
    """Takes the first `takes` messages, and says how many wait."""

    def __init__(self, takes: int = 10_000, waiting: int | None = 0) -> None:
        self.takes = takes
        self.waiting = waiting
        self.sent: list[WakeUp] = []

    def wake(self, due: list[WakeUp]) -> list[WakeUp]:
        self.sent += due[: self.takes]
        return due[self.takes :]

    def backlog(self, queue: str) -> int | None:
        return self.waiting


class Rows:
    """The store's side."""

    def __init__(self, *, away: bool = False) -> None:
        self.woken: list[DispatchId] = []
        self.away = away

    def wake(self, dispatch_ids: list[DispatchId]) -> None:
        if self.away:
            raise PersistenceUnavailableError("away")
        self.woken += dispatch_ids


def test_what_the_broker_did_not_take_is_made_due_again() -> None:
    rows, broker = Rows(), Broker(takes=1)
    Relay(rows, broker).publish([row(1), row(2), row(3)])
    assert broker.sent == [row(1)]
    assert rows.woken == [row(2).dispatch_id, row(3).dispatch_id]


def test_a_repetition_that_fails_is_left_to_its_own_next_look() -> None:
    rows = Rows()
    Relay(rows, Broker(takes=0)).publish([row(1, force=True)])
    assert rows.woken == []


def test_a_store_that_is_away_as_well_is_no_error() -> None:
    Relay(Rows(away=True), Broker(takes=0)).publish([row(1)])


def test_T11_no_more_repetitions_are_published_than_twice_the_slots_of_their_queue() -> None:
    repeated = [row(number, force=True) for number in range(100)]
    for slots, waiting, expected in (
        ({}, 0, BACKLOG_PER_SLOT * SLOTS_UNKNOWN),
        ({"control": 4}, 0, 8),
        ({"control": 4}, 5, 3),
        ({"control": 4}, 50, 0),
        ({"control": 4}, None, 8),
        ({"control": 80}, 0, 100),
    ):
        broker = Broker(waiting=waiting)
        relay = Relay(Rows(), broker)
        relay.note_slots(slots)
        relay.publish(repeated)
        assert len(broker.sent) == expected, (slots, waiting)


def test_a_full_queue_holds_back_neither_another_one_nor_new_rows() -> None:
    broker = Broker(waiting=1000)
    broker.backlog = lambda queue: 1000 if queue == "model" else 0  # type: ignore[method-assign]
    Relay(Rows(), broker).publish([row(1, "model", force=True), row(2, "control", force=True), row(3, "model")])
    assert broker.sent == [row(3, "model"), row(2, "control", force=True)]
