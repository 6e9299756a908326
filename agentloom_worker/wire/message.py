"""What travels through the broker: a wake-up is the hint for a row, nothing else (RUNTIME 5)."""

from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field


class WakeUpMessage(BaseModel):
    """The arguments of an `agentloom.<step>` message. `v` is the step's version as its row has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dispatch_id: UUID
    v: int = Field(ge=1)
    force: bool = False
