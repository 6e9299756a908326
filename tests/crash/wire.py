"""The scripted model behind real HTTP: a server in a thread of each life, on a socket that outlives them all.

The runner's parent listens and never accepts; each child inherits the socket, so that the address which is frozen in
a release stays true, and dies with the connections that it accepted. A stream stands still behind its first piece
until the life has saved its first output: who is killed there is killed in the middle of a stream.
"""

import functools
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, assert_never

from agentloom_worker.canonical import sha256_hex
from agentloom_worker.devmodel.answer import plan_answer
from agentloom_worker.devmodel.chat import ChatRequest, parse_chat_request
from agentloom_worker.devmodel.matching import Arrival
from agentloom_worker.devmodel.plan import Ending, Plan
from agentloom_worker.devmodel.responses import parse_responses_request
from agentloom_worker.devmodel.script import parse_script
from agentloom_worker.llm.adapters.scripted import CallsTurn, FailureTurn, ScriptedTurn, StallTurn, TextTurn

WAIT_S = 30.0
# How the words of one turn are cut into pieces.
CHUNK_CHARS = 4

Answering = Callable[[Sequence[dict[str, Any]], bytes], ScriptedTurn]


@functools.cache
def listener() -> socket.socket:
    """The socket of this process and of its children."""
    return socket.create_server(("127.0.0.1", 0))


def base_url() -> str:
    """What a release names."""
    return f"http://127.0.0.1:{listener().getsockname()[1]}/v1"


def read_request(body: bytes) -> ChatRequest:
    """A request of either protocol."""
    return parse_responses_request(body) if b'"input":' in body[:64] else parse_chat_request(body)


class Endpoint:
    """Serves one life. `answer` is asked for each request: its messages and its bytes."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._read_on = threading.Event()

    def start(self) -> None:
        """Accept from now on."""
        threading.Thread(target=self._accept, name="endpoint", daemon=True).start()

    def first_output_saved(self) -> None:
        """Let the stream go on."""
        self._read_on.set()

    def _accept(self) -> None:
        while True:
            connection, _ = listener().accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while head := lines.readline():
                size = 0
                while (line := lines.readline()) not in (b"\r\n", b""):
                    name, _, value = line.partition(b":")
                    size = int(value) if name.lower() == b"content-length" else size
                body = lines.read(size)
                if not head.startswith(b"POST") or len(body) < size:
                    return  # a life that died before it had sent the whole
                try:
                    if self._play(connection, self._plan(body)) is not Ending.KEEP:
                        lines.read()  # until the client goes away
                        return
                except OSError:
                    return  # the client went away: that is what some scenarios are about

    def _plan(self, body: bytes) -> Plan:
        self._read_on.clear()
        request = read_request(body)
        turn = self._answer(request.messages, body)
        script = parse_script({"schema_version": 1, "turns": [{"answer": _answer(turn)}]})
        return plan_answer(script, 0, script.turns[0], Arrival(request, sha256_hex(body), 1))

    def _play(self, connection: socket.socket, plan: Plan) -> Ending:
        for piece in plan.pieces:
            if piece.gate is not None:
                assert self._read_on.wait(WAIT_S), "no first output was saved"
            connection.sendall(piece.payload)
        return plan.ending


def _answer(turn: ScriptedTurn) -> dict[str, Any]:
    """A turn in the words of a dev-model's script."""
    told: dict[str, Any] = {"usage": "none", "chunk_chars": CHUNK_CHARS}
    match turn:
        case TextTurn():
            told["text"] = turn.text
        case CallsTurn():
            told["text"] = turn.text
            told["tool_calls"] = [
                {"name": call.name, "id": call.provider_call_id, "arguments_text": call.arguments_text}
                for call in turn.calls
            ]
        case StallTurn():
            told |= {"text": turn.text, "cut": {"then": "stall"}}
        case FailureTurn():
            seconds = str((turn.failure.retry_after_ms or 0) // 1000)
            status = turn.failure.http_status or 400  # of a refusal
            return {"http_error": {"status": status, "headers": {"Retry-After": seconds}}}
        case _:
            assert_never(turn)
    if told["text"] or told.get("tool_calls"):
        told["hold"] = {"gate": "first_output", "after_chunks": 1}
    return told
