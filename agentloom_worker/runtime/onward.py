"""What goes on after a run: supplements that no output has delivered, and the question that waits in the queue.

Every end of a run makes these rows in its own commit (RULINGS A5, A10), whole or salvaged. Nothing here may keep a
run from ending: a question whose run cannot be made has failed, and the next one is taken.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from agentloom_worker import telemetry
from agentloom_worker.domain.commit import Event, Part, Put, RunAccept
from agentloom_worker.domain.damage import DAMAGED, describe
from agentloom_worker.domain.run import Run
from agentloom_worker.domain.session import DeliveryState, InputKind, QueuedQuestion, QueueState, UserInputDelivery
from agentloom_worker.errors import Code
from agentloom_worker.frozen import replace
from agentloom_worker.ids import DeliveryId
from agentloom_worker.runtime.opening import open_run
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.result import hash_command


@dataclass(frozen=True, slots=True)
class Onward:
    """What the end of a run writes besides: rows, the keys of what they stand for, and perhaps a run."""

    puts: tuple[Put, ...] = ()
    parts: tuple[Part, ...] = ()
    events: tuple[Event, ...] = ()
    opens: RunAccept | None = None


def go_on(
    ports: Ports, run: Run, deliveries: Iterable[tuple[UserInputDelivery, InputKind]], queue: Iterable[QueuedQuestion]
) -> Onward:
    """Carry what the run's deliveries leave open, and make the next run of the first question that can have one.

    `queue` is in the order of the places. The commit that writes it has to assert that no input came since both were
    read (`saw_inputs`), and to lock the session.
    """
    steps = [_carry(ports, delivery) for delivery, kind in deliveries if _is_carried(delivery, kind)]
    for question in queue:
        steps.append(_open(ports, run, question))
        if steps[-1].opens is not None:
            break
    return Onward(
        tuple(put for step in steps for put in step.puts),
        tuple(part for step in steps for part in step.parts),
        tuple(event for step in steps for event in step.events),
        steps[-1].opens if steps else None,
    )


def _is_carried(delivery: UserInputDelivery, kind: InputKind) -> bool:
    """The run's own question is answered by its end, whatever that is (RULINGS R3)."""
    return kind is InputKind.SUPPLEMENT and delivery.state in (DeliveryState.PENDING, DeliveryState.CLAIMED)


def _carry(ports: Ports, old: UserInputDelivery) -> Onward:
    """The old delivery ends, and a new one that names it waits for the next run (seed 004, 3.2)."""
    carried = replace(old, state=DeliveryState.CARRIED, revision=old.revision + 1)
    new = UserInputDelivery(
        DeliveryId(ports.ids.new()),
        old.input_id,
        old.session_id,
        None,
        DeliveryState.PENDING,
        1,
        previous_delivery_id=old.delivery_id,
    )
    key = f"carry:{old.target_run_id}:{old.input_id}:{old.delivery_id}"
    return Onward((Put(old, carried), Put(None, new)), (Part(key, hash_command(key)),))


def _open(ports: Ports, run: Run, question: QueuedQuestion) -> Onward:
    """The question becomes a run of the release that was frozen with it, or it has failed."""
    key = f"accept:{question.input_id}"
    try:
        opened = open_run(ports, run.session_id, question.release_id, question.input_id, run.run_no + 1)
    except DAMAGED as error:
        telemetry.count("questions_failed")
        telemetry.log(
            logging.ERROR,
            "question_failed",
            session_id=run.session_id,
            input_id=question.input_id,
            release_id=question.release_id,
            error=describe(error),
        )
        fields = (("code", Code.RELEASE_UNREADABLE.value), ("input", str(question.input_id)))
        return Onward(
            (Put(question, replace(question, state=QueueState.FAILED)),), events=(Event("question.failed", fields),)
        )
    started = replace(question, state=QueueState.STARTED, run_id=opened.run_id)
    return Onward((Put(question, started),), (Part(key, hash_command(key)),), opens=opened)
