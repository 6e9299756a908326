"""What of a session's earlier runs a later one shows: read in pages, a fixed number of queries a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from agentloom_worker.domain.operation import Payload
from agentloom_worker.domain.session import DeliveryState, InputKind
from agentloom_worker.ids import BlobId, InputId, RunId
from agentloom_worker.storage.run import run
from agentloom_worker.storage.session import user_input, user_input_delivery
from agentloom_worker.storage.tree import node_task

_DELIVERY = user_input_delivery.c


@dataclass(frozen=True, slots=True)
class GivenInput:
    """An input beside one run that it was given to."""

    run_id: RunId
    input_id: InputId
    input_seq: int
    kind: InputKind
    state: DeliveryState
    origin_run_id: RunId | None
    origin_run_no: int | None
    body: Payload


@dataclass(frozen=True, slots=True)
class InputPlace:
    """One delivery of an input: the run that it was given to, and how far it came there."""

    input_id: InputId
    run_no: int
    state: DeliveryState


def list_given_inputs(conn: sa.Connection, run_ids: Sequence[UUID]) -> list[GivenInput]:
    """What was given to these runs, by input_seq."""
    origin = run.alias("origin")
    columns = (
        _DELIVERY.target_run_id,
        user_input.c.input_id,
        user_input.c.input_seq,
        user_input.c.kind,
        _DELIVERY.state,
        user_input.c.origin_run_id,
        origin.c.run_no,
        user_input.c.body,
        user_input.c.blob_id,
    )
    query = (
        sa.select(*columns)
        .select_from(user_input_delivery)
        .join(user_input, user_input.c.input_id == _DELIVERY.input_id)
        .outerjoin(origin, origin.c.run_id == user_input.c.origin_run_id)
        .where(_DELIVERY.target_run_id.in_(run_ids))
        .order_by(user_input.c.input_seq, _DELIVERY.delivery_id)
    )
    return [
        GivenInput(
            RunId(row.target_run_id),
            InputId(row.input_id),
            row.input_seq,
            InputKind(row.kind),
            DeliveryState(row.state),
            RunId(row.origin_run_id) if row.origin_run_id else None,
            row.run_no,
            Payload(
                bytes(row.body) if row.body is not None else None,
                BlobId(row.blob_id) if row.blob_id else None,
            ),
        )
        for row in conn.execute(query)
    ]


def list_places(conn: sa.Connection, run_ids: Sequence[UUID]) -> dict[InputId, list[InputPlace]]:
    """Every delivery, to whichever run, of what was given to these runs, by input and run_no."""
    given = sa.select(_DELIVERY.input_id).where(_DELIVERY.target_run_id.in_(run_ids))
    query = (
        sa.select(_DELIVERY.input_id, run.c.run_no, _DELIVERY.state)
        .select_from(user_input_delivery)
        .join(run, run.c.run_id == _DELIVERY.target_run_id)
        .where(_DELIVERY.input_id.in_(given))
        .order_by(_DELIVERY.input_id, run.c.run_no)
    )
    found: dict[InputId, list[InputPlace]] = {}
    for row in conn.execute(query):
        place = InputPlace(InputId(row.input_id), row.run_no, DeliveryState(row.state))
        found.setdefault(place.input_id, []).append(place)
    return found


def has_root_role(conn: sa.Connection, session_id: UUID, role_key: str) -> bool:
    """Whether a run of the session has this role at its root."""
    query = (
        sa.select(node_task.c.node_id)
        .join(run, run.c.run_id == node_task.c.run_id)
        .where(run.c.session_id == session_id, node_task.c.role_key == role_key)
        .limit(1)
    )
    return conn.execute(query).first() is not None


def list_root_roles(conn: sa.Connection, run_ids: Sequence[UUID]) -> dict[RunId, str]:
    """The role of the root of each of some runs."""
    query = sa.select(node_task.c.run_id, node_task.c.role_key).where(node_task.c.run_id.in_(run_ids))
    return {RunId(row.run_id): row.role_key for row in conn.execute(query)}
