"""Commands that came through the broker: parse, run, answer with a receipt (RULINGS R6).

What is wrong with a command becomes its reply; only the store's failures leave, and then the sender repeats.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from agentloom_worker.domain.session import OnBusy, Session
from agentloom_worker.errors import AgentloomError, Code, RequestError
from agentloom_worker.ids import InputId, ReleaseId, RunId, SessionId
from agentloom_worker.runtime.accept import Sending, accept_input, stop_run
from agentloom_worker.runtime.inputs import withdraw_input
from agentloom_worker.runtime.ports import Ports
from agentloom_worker.runtime.publish import publish_release
from agentloom_worker.wire.command import (
    COMMANDS,
    Command,
    OpenSession,
    PublishRelease,
    Reply,
    StopRun,
    SubmitInput,
    WithdrawInput,
)

Receipt = dict[str, Any]


def run_command(ports: Ports, name: str, document: object) -> tuple[Reply, str | None]:
    """Run one command; the reply, and the queue that it is to be sent to.

    Running it again under the same key gives the same receipt. Raises TransientError where the store does not
    answer, and RequestError where the document says neither its key nor where to reply.
    """
    command = _parse(name, document)
    if isinstance(command, Reply):
        return command, _reply_to(document)
    try:
        receipt = _RUN[name](ports, command)
    except RequestError as error:
        return _refusal(name, command.key, error), command.reply_to
    return Reply(command=name, key=command.key, ok=True, receipt=receipt), command.reply_to


def _parse(name: str, document: object) -> Command | Reply:
    try:
        return COMMANDS[name].model_validate(document)
    except ValidationError as error:
        problems = "; ".join(
            f"/{'/'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)[:20]
        )
        refused = RequestError(Code.INPUT_INVALID, f"{name}: {problems}")
        key = document.get("key") if isinstance(document, dict) else None
        if not isinstance(key, str) or not key:
            raise refused from None
        return _refusal(name, key[:200], refused)


def _reply_to(document: object) -> str | None:
    """Where a refused document wants its reply, if that field of it is sound."""
    try:
        return Command.model_validate({"key": "-", "reply_to": document.get("reply_to")}).reply_to  # type: ignore[attr-defined]
    except ValidationError:
        return None


def _refusal(name: str, key: str, error: AgentloomError) -> Reply:
    return Reply(command=name, key=key, ok=False, code=error.code.value, message=error.message)


def _open_session(ports: Ports, command: Command) -> Receipt:
    assert isinstance(command, OpenSession)
    owner_id = ports.store.find_owner(command.agent_id)
    if owner_id is None:
        raise RequestError(Code.AGENT_NOT_FOUND, f"there is no agent {command.agent_id!r}: publish a release first")
    session_id = SessionId(command.session_id)
    found = ports.store.load_session(session_id)
    if found is None:
        try:
            ports.store.open_session(session_id, owner_id, OnBusy(command.on_busy))
        except AgentloomError as error:
            if error.code is not Code.REVISION_CONFLICT:
                raise
        found = ports.store.load_session(session_id)
    if found is None or found.owner_id != owner_id:
        raise RequestError(Code.IDEMPOTENCY_CONFLICT, f"session {session_id} belongs to another agent")
    if found.on_busy != command.on_busy:
        raise RequestError(
            Code.IDEMPOTENCY_CONFLICT, f"session {session_id} is there already, with on_busy {found.on_busy}"
        )
    return {"session_id": str(session_id), "agent_id": command.agent_id, "on_busy": command.on_busy}


def _submit_input(ports: Ports, command: Command) -> Receipt:
    assert isinstance(command, SubmitInput)
    session = _session(ports, command.session_id)
    release_id = ReleaseId(command.release_id) if command.release_id is not None else None
    return _document(accept_input(ports, session, Sending(command.kind), command.text, release_id, command.key))


def _withdraw_input(ports: Ports, command: Command) -> Receipt:
    assert isinstance(command, WithdrawInput)
    return _document(withdraw_input(ports, _session(ports, command.session_id), InputId(command.input_id)))


def _session(ports: Ports, session_id: UUID) -> Session:
    session = ports.store.load_session(session_id)
    if session is None:
        raise RequestError(Code.SESSION_NOT_FOUND, f"there is no session {session_id}")
    return session


def _stop_run(ports: Ports, command: Command) -> Receipt:
    assert isinstance(command, StopRun)
    return _document(stop_run(ports, RunId(command.run_id)))


def _publish_release(ports: Ports, command: Command) -> Receipt:
    assert isinstance(command, PublishRelease)
    return _document(publish_release(ports, command.document))


def _document(receipt: Any) -> Receipt:
    """A receipt's fields as JSON."""
    fields = asdict(receipt)
    return {name: str(value) if isinstance(value, UUID) else value for name, value in fields.items()}


_RUN: dict[str, Callable[[Ports, Command], Receipt]] = {
    "open_session": _open_session,
    "submit_input": _submit_input,
    "withdraw_input": _withdraw_input,
    "stop_run": _stop_run,
    "publish_release": _publish_release,
}
