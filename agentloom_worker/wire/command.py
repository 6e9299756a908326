"""Commands for a platform that shares the broker alone, and what answers them (RULINGS R6, U4).

A message is no acknowledgement: the sender keeps the command and repeats it under the same key until it has
read a receipt.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from agentloom_worker.wire.release import Slug

REPLY_QUEUE = r"^[A-Za-z0-9._:-]{1,200}$"


class Command(BaseModel):
    """What every command carries. `reply_to` names a queue that the sender reads its receipt from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    v: Literal[1] = 1
    key: str = Field(min_length=1, max_length=200)
    reply_to: Annotated[str, Field(pattern=REPLY_QUEUE)] | None = None


class OpenSession(Command):
    """`agentloom.open_session`: a session of an agent. The sender makes its id, so that a repetition is the same.

    `on_busy` says what becomes of a question while a run of the session lives.
    """

    agent_id: Slug
    session_id: UUID
    on_busy: Literal["reject", "supplement", "enqueue", "interrupt"] = "reject"


class SubmitInput(Command):
    """`agentloom.submit_input`: a user's words. A question becomes a run; without a release, the agent's newest.

    A supplement goes to the live run or waits for the next one; `send` is that where a run can take it, else a
    question.
    """

    session_id: UUID
    text: str
    kind: Literal["question", "supplement", "send"] = "question"
    release_id: UUID | None = None


class WithdrawInput(Command):
    """`agentloom.withdraw_input`: take a question back that waits in its session's queue; again changes nothing."""

    session_id: UUID
    input_id: UUID


class StopRun(Command):
    """`agentloom.stop_run`: stop a run now; one that is over keeps what ended it."""

    run_id: UUID


class PublishRelease(Command):
    """`agentloom.publish_release`: store a release document; the same one again gives the same release."""

    document: dict[str, Any]


COMMANDS: dict[str, type[Command]] = {
    "open_session": OpenSession,
    "submit_input": SubmitInput,
    "withdraw_input": WithdrawInput,
    "stop_run": StopRun,
    "publish_release": PublishRelease,
}


class Reply(BaseModel):
    """A receipt, or why there is none. With a transient code the sender repeats the command."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    v: Literal[1] = 1
    command: str
    key: str
    ok: bool
    receipt: dict[str, Any] | None = None
    code: str | None = None
    message: str | None = None
