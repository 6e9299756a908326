"""The platform's side of commands, for one that shares the broker and nothing else (RULINGS R6, U4).

    sender = CommandSender(BrokerAddress("redis://…", "agentloom:"))
    command = SubmitInput(key="ticket-17", session_id=session_id, text="…", reply_to="my-replies")
    while (reply := sender.ask(command, timeout_s=5)) is None:
        ...  # keep the command, repeat it: the key makes the repetition harmless

A message is no acknowledgement: only a reply with `ok` is.
"""

import threading
from uuid import UUID

from kombu import Queue
from pydantic import ValidationError

from agentloom_worker import limits
from agentloom_worker.broker.address import DEFAULT_EXCHANGE, BrokerAddress
from agentloom_worker.broker.publisher import Message, Publisher
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.domain.dispatch import Queue as QueueName
from agentloom_worker.ids import SystemIds
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

_NAMES = {model: name for name, model in COMMANDS.items()}
_REPLIES_EXPIRE_S = 3600
_LOOK_EVERY_S = 0.02
_NEVER = threading.Event()


class CommandSender:
    """Sends commands and reads receipts. Safe for use by many threads, each with a reply queue of its own."""

    def __init__(
        self, address: BrokerAddress, *, timeout_s: float = limits.PUBLISH_TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._publisher = Publisher(address, self._clock, SystemIds(self._clock), timeout_s=timeout_s)

    def send(self, command: Command) -> bool:
        """Hand a command to the broker; False: it did not take it. True is no receipt."""
        document = command.model_dump(mode="json", exclude_none=True)
        message = Message(f"agentloom.{_NAMES[type(command)]}", QueueName.COMMANDS.value, {"command": document})
        return not self._publisher.send([message])

    def ask(self, command: Command, *, timeout_s: float) -> Reply | None:
        """Send and wait for the receipt of this key on the command's `reply_to`; None: repeat it later."""
        assert command.reply_to is not None, "a command that is asked needs a reply queue"
        if not self.send(command):
            return None
        until_s = self._clock.monotonic_s() + timeout_s
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            reply = self.receive(command.reply_to, timeout_s=left_s)
            if reply is not None and reply.key == command.key:
                return reply
        return None

    def receive(self, reply_to: str, *, timeout_s: float) -> Reply | None:
        """The next reply of a queue, taken from it; None after the timeout or where the broker fails."""
        queue = self.reply_queue(reply_to)
        with self._address.publish_connection(self._timeout_s) as connection:
            try:
                bound = queue(connection.default_channel)
                bound.declare()
                until_s = self._clock.monotonic_s() + timeout_s
                while (message := bound.get(no_ack=True, accept=["json"])) is None:
                    if self._clock.monotonic_s() >= until_s:
                        return None
                    self._clock.wait(_NEVER, _LOOK_EVERY_S)
                return Reply.model_validate(message.payload)
            except (OSError, ValidationError, *connection.connection_errors, *connection.channel_errors):
                return None

    def reply_queue(self, name: str) -> Queue:
        """A reply queue as its reader declares it; RabbitMQ forgets one that nobody has used for an hour."""
        arguments = None if self._address.is_redis else {"x-expires": _REPLIES_EXPIRE_S * 1000}
        return Queue(name, exchange=DEFAULT_EXCHANGE, routing_key=name, durable=True, queue_arguments=arguments)

    def close(self) -> None:
        """Close the connections."""
        self._publisher.close()

    # The commands by name, for a caller that wants no model.

    def open_session(self, agent_id: str, session_id: UUID, key: str, reply_to: str | None = None) -> bool:
        """Open a session under an id that the caller has made."""
        return self.send(OpenSession(key=key, reply_to=reply_to, agent_id=agent_id, session_id=session_id))

    def submit_input(self, session_id: UUID, text: str, key: str, reply_to: str | None = None) -> bool:
        """Submit a question; a supplement is a SubmitInput of that kind."""
        return self.send(SubmitInput(key=key, reply_to=reply_to, session_id=session_id, text=text))

    def withdraw_input(self, session_id: UUID, input_id: UUID, key: str, reply_to: str | None = None) -> bool:
        """Take a queued question back."""
        return self.send(WithdrawInput(key=key, reply_to=reply_to, session_id=session_id, input_id=input_id))

    def stop_run(self, run_id: UUID, key: str, reply_to: str | None = None) -> bool:
        """Stop a run."""
        return self.send(StopRun(key=key, reply_to=reply_to, run_id=run_id))

    def publish_release(self, document: dict[str, object], key: str, reply_to: str | None = None) -> bool:
        """Publish a release."""
        return self.send(PublishRelease(key=key, reply_to=reply_to, document=document))
