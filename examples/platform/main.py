"""A platform that shares nothing but the broker with a fleet: no database, no network path to a worker.

    python -m examples.platform.main --broker redis://127.0.0.1:6379/0 ask release.yaml "What broke checkout?"
    python -m examples.platform.main --broker redis://127.0.0.1:6379/0 add SESSION "Only the last hour matters."
    python -m examples.platform.main --broker redis://127.0.0.1:6379/0 stop RUN

A message is no acknowledgement. So each command is written to a folder before it is sent, sent again and again
under its own key until its receipt has been read, and forgotten only then. Whatever is lost between here and the
fleet's database, and however often this program is killed, the question is asked once.
"""

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import yaml

from agentloom_worker.broker.address import BrokerAddress
from agentloom_worker.broker.commands import CommandSender
from agentloom_worker.errors import RequestError
from agentloom_worker.settings import load_settings
from agentloom_worker.wire.command import COMMANDS, Command, OpenSession, PublishRelease, Reply, StopRun, SubmitInput

NAMES = {model: name for name, model in COMMANDS.items()}


class Platform:
    """Sends commands and keeps those that have no receipt yet."""

    def __init__(self, sender: CommandSender, folder: Path, *, every_s: float, give_up_s: float) -> None:
        self._sender = sender
        self._folder = folder
        self._every_s = every_s
        self._tries = max(1, int(give_up_s / every_s))
        folder.mkdir(parents=True, exist_ok=True)

    def finish_what_is_left(self) -> None:
        """Send again what an earlier process of this platform could not finish."""
        for path in sorted(self._folder.glob("*.json")):
            kept = json.loads(path.read_text())
            self._send(COMMANDS[kept["name"]].model_validate(kept["command"]), path)

    def do(self, command: Command) -> dict[str, Any]:
        """Keep a command, then send it until its receipt is there. Exits where the fleet refuses it."""
        path = self._folder / f"{uuid4()}.json"
        document = {"name": NAMES[type(command)], "command": command.model_dump(mode="json", exclude_none=True)}
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(document))
        unfinished.rename(path)
        return self._send(command, path)

    def _send(self, command: Command, path: Path) -> dict[str, Any]:
        for _ in range(self._tries):
            reply = self._sender.ask(command, timeout_s=self._every_s)
            if reply is not None:
                path.unlink()
                return self._receipt(reply)
            # A broker that is away is not asked at all for a moment: do not spin meanwhile.
            threading.Event().wait(0.1)
        sys.exit(f"no receipt of {path.stem} yet: it is kept in {self._folder} and sent again at the next start")

    @staticmethod
    def _receipt(reply: Reply) -> dict[str, Any]:
        print(reply.model_dump_json(exclude_none=True), flush=True)
        if not reply.ok:
            sys.exit(f"{reply.command} was refused: {reply.code} {reply.message}")
        return reply.receipt or {}


def ask(platform: Platform, release: dict[str, Any], text: str, replies: str) -> UUID:
    """Publish a release, open a session of its agent, ask; the run's id. The answer is the fleet's to deliver."""
    published = platform.do(PublishRelease(key=str(uuid4()), reply_to=replies, document=release))
    # The platform makes the session's id, so that a repetition opens no second one.
    session_id = uuid4()
    agent_id = published["agent_id"]
    platform.do(OpenSession(key=str(uuid4()), reply_to=replies, agent_id=agent_id, session_id=session_id))
    receipt = platform.do(SubmitInput(key=str(uuid4()), reply_to=replies, session_id=session_id, text=text))
    return UUID(receipt["run_id"])


def add(platform: Platform, session_id: UUID, text: str, replies: str) -> None:
    """Add words to what the session's run does; without one they wait for the next question. The receipt says which."""
    platform.do(SubmitInput(key=str(uuid4()), reply_to=replies, session_id=session_id, text=text, kind="supplement"))


def read_release(path: Path) -> dict[str, Any]:
    """The document as it stands; whether it is a release is the fleet's to say. Exits where it cannot be read."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        sys.exit(f"cannot read {path}: {error}")
    if not isinstance(found, dict):
        sys.exit(f"cannot read {path}: a release is a mapping")
    return found


def address(broker: str, key_prefix: str, queue_prefix: str) -> BrokerAddress:
    """Where the broker stands. Exits where no fleet could stand there."""
    try:
        settings = load_settings({"broker": broker, "key_prefix": key_prefix, "queue_prefix": queue_prefix})
    except RequestError as error:
        sys.exit(error.message)
    return BrokerAddress(settings.broker.get_secret_value(), settings.key_prefix, settings.queue_prefix)


def main(arguments: list[str] | None = None) -> None:
    """Ask a question, add to what runs, or stop a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--broker", required=True, metavar="URL")
    parser.add_argument("--key-prefix", default="agentloom:", help="as the fleet's AGENTLOOM_KEY_PREFIX")
    parser.add_argument("--queue-prefix", default="", help="as the fleet's AGENTLOOM_QUEUE_PREFIX")
    parser.add_argument("--outbox", type=Path, default=Path("outbox"), metavar="DIR", help="commands without a receipt")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="send again after so long")
    parser.add_argument("--give-up", type=float, default=120.0, metavar="SECONDS")
    verbs = parser.add_subparsers(dest="verb", required=True)
    asking = verbs.add_parser("ask")
    asking.add_argument("release", type=Path)
    asking.add_argument("text")
    adding = verbs.add_parser("add")
    adding.add_argument("session", type=UUID)
    adding.add_argument("text")
    stopping = verbs.add_parser("stop")
    stopping.add_argument("run", type=UUID)
    given = parser.parse_args(arguments)

    release = read_release(given.release) if given.verb == "ask" else {}
    sender = CommandSender(address(given.broker, given.key_prefix, given.queue_prefix))
    platform = Platform(sender, given.outbox, every_s=given.every, give_up_s=given.give_up)
    # One reader has one queue for its receipts.
    replies = f"platform-{uuid4()}"
    try:
        platform.finish_what_is_left()
        if given.verb == "stop":
            platform.do(StopRun(key=str(uuid4()), reply_to=replies, run_id=given.run))
        elif given.verb == "add":
            add(platform, given.session, given.text, replies)
        else:
            print(f"run {ask(platform, release, given.text, replies)}")
    finally:
        sender.close()


if __name__ == "__main__":
    main()
