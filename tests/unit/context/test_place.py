"""Where an input's words stand: in one place, whoever looks (seed 004, 3.1)."""

from uuid import UUID

import pytest

from agentloom_worker.context.protocol import Place, SessionInput
from agentloom_worker.context.protocols.rounds import place_of
from agentloom_worker.ids import InputId


def _input(origin: int | None, *places: tuple[int, bool]) -> SessionInput:
    return SessionInput(InputId(UUID(int=1)), 1, "", None, origin, tuple(Place(*place) for place in places))


@pytest.mark.parametrize(
    ("one", "current", "place"),
    [
        (_input(1, (1, True)), 5, 1),
        (_input(1, (1, False), (2, False), (3, True)), 5, 3),
        (_input(1, (1, False), (2, False), (3, True)), 3, 3),
        (_input(1, (1, False), (2, False), (3, True)), 2, 2),
        (_input(1, (1, False)), 5, 1),
        (_input(None, (2, False), (4, False)), 5, 2),
        (_input(2, (2, False), (4, False)), 5, 2),
        (_input(None, (3, False), (6, True)), 5, 3),
    ],
)
def test_C01_words_stand_where_protected_else_last_delivered_else_first_given(
    one: SessionInput, current: int, place: int
) -> None:
    assert place_of(one, current) == place
