"""The dev-model: an OpenAI-compatible server that answers from a script, in a thread of its own.

    with DevModel(load_script(path)) as model:
        ...  # model.base_url, model.requests, model.wait_until(...), model.open_gate("name")

asyncio lives in this package's thread alone; everything that other threads call is synchronous.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from agentloom_worker.canonical import sha256_hex
from agentloom_worker.clock import Clock, SystemClock
from agentloom_worker.devmodel.answer import plan_answer, plan_error
from agentloom_worker.devmodel.chat import ChatRequest, ChatRequestError, parse_chat_request, protocol_problem
from agentloom_worker.devmodel.completion import CREATED
from agentloom_worker.devmodel.connection import Connection, HttpRequest, Response
from agentloom_worker.devmodel.dialect import dialect_problem, is_authorized
from agentloom_worker.devmodel.framing import JSON_TYPE, encode, whole_response
from agentloom_worker.devmodel.matching import Arrival, choose_turn
from agentloom_worker.devmodel.plan import Layout, Piece, Plan
from agentloom_worker.devmodel.request_log import BODIES_BYTES_MAX, Outcome, RequestLog, RequestRecord
from agentloom_worker.devmodel.responses import parse_responses_request
from agentloom_worker.devmodel.script import HttpError, Script, load_script

HOST = "127.0.0.1"
BACKLOG = 1024
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
LOG_ENTRIES_DEFAULT = 1_000


_PARSERS: dict[str, Callable[[bytes], ChatRequest]] = {
    "/v1/chat/completions": parse_chat_request,
    "/v1/responses": parse_responses_request,
}


class DevModel:
    """A server on the loopback interface. Port 0 takes a free one.

    `bodies_bytes_max` bounds the request bodies kept in memory and written to the log; 0 keeps hashes only.
    The log file is written when a response ends.
    """

    def __init__(
        self,
        script: Script,
        port: int = 0,
        log_path: Path | None = None,
        *,
        clock: Clock | None = None,
        bodies_bytes_max: int = BODIES_BYTES_MAX,
    ) -> None:
        self._port = port
        self._log = RequestLog(clock or SystemClock(), log_path, bodies_bytes_max=bodies_bytes_max)
        self._desk = _Desk(script, self._log)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._quit: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: OSError | None = None

    def start(self) -> Self:
        """Listen. Raises OSError if the port is taken."""
        assert self._thread is None, "a dev-model is started once"
        self._thread = threading.Thread(target=self._run, name="dev-model", daemon=True)
        self._thread.start()
        started = self._started.wait(START_TIMEOUT_S)
        if self._failure is not None:
            self._log.close()
            raise self._failure
        assert started, "the loop of the dev-model did not start"
        return self

    def stop(self) -> None:
        """Close every connection and the log; harmless when called again."""
        loop, quit_event, thread = self._loop, self._quit, self._thread
        if loop is None or quit_event is None or thread is None:
            return
        self._loop = None
        loop.call_soon_threadsafe(quit_event.set)
        thread.join(STOP_TIMEOUT_S)
        self._log.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def base_url(self) -> str:
        """What a release names as `base_url`."""
        return f"http://{HOST}:{self._port}/v1"

    @property
    def requests(self) -> tuple[RequestRecord, ...]:
        """The requests for completions so far (the newest 20,000), in order of arrival."""
        return self._log.records()

    def wait_until(self, holds: Callable[[tuple[RequestRecord, ...]], bool], timeout_s: float = 10.0) -> bool:
        """Wait until the requests satisfy a condition, at most so long; whether they do."""
        return self._log.wait_until(holds, timeout_s)

    def open_gate(self, gate: str) -> None:
        """Let the answers go on that `hold` at this gate, now and later."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._desk.open_gate, gate)

    def clear(self) -> None:
        """Forget ended requests, arrival counts and opened gates, so that the next case starts afresh."""
        self._log.clear()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._desk.close_gates)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: Connection(loop, self._desk), HOST, self._port, backlog=BACKLOG)
        except OSError as error:
            self._failure = error
            self._started.set()
            return
        self._port = server.sockets[0].getsockname()[1]
        self._quit = asyncio.Event()
        self._loop = loop
        self._started.set()
        await self._quit.wait()
        server.close()
        self._desk.hang_up_all()
        await asyncio.sleep(0)  # one turn of the loop, in which the connections learn that they are lost


class _Desk:
    """Decides what each request gets. Lives in the loop's thread."""

    def __init__(self, script: Script, log: RequestLog) -> None:
        self._script = script
        self._log = log
        self._connections: set[Connection] = set()
        self._open_gates: set[str] = set()
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def hang_up_all(self) -> None:
        for connection in tuple(self._connections):
            connection.stop()

    def when_open(self, gate: str, resume: Callable[[], None]) -> bool:
        if gate in self._open_gates:
            return True
        self._waiting.setdefault(gate, []).append(resume)
        return False

    def open_gate(self, gate: str) -> None:
        self._open_gates.add(gate)
        for resume in self._waiting.pop(gate, []):
            resume()

    def close_gates(self) -> None:
        self._open_gates.clear()

    def respond(self, request: HttpRequest) -> Response:
        """Ask for the key where the script does, then route."""
        if request.target.startswith("/v1/") and not is_authorized(self._script.dialect, request):
            return _json(401, {"error": {"message": "no valid key", "type": "authentication_error", "code": None}})
        return self._route(request)

    def _route(self, request: HttpRequest) -> Response:
        target = urlsplit(request.target)
        match request.method, target.path.rstrip("/"):
            case "POST", path if path in _PARSERS:
                return self._complete(request, _PARSERS[path])
            case "GET", "/v1/models":
                return _json(200, self._models())
            case "GET", "/props" if self._script.props is not None:
                return _json(200, self._script.props)
            case "GET", "/__log":
                query = parse_qs(target.query)
                after, limit = query.get("after", ["0"])[0], query.get("limit", [str(LOG_ENTRIES_DEFAULT)])[0]
                if not (after.isdecimal() and limit.isdecimal()):
                    return _json(400, {"error": {"message": "`after` and `limit` are numbers"}})
                return _json(200, self._log.document(int(after), int(limit)))
            case "DELETE", "/__log":
                self._log.clear()
                self.close_gates()
                return _json(200, {"cleared": True})
            case "POST", path if path.startswith("/__gates/"):
                self.open_gate(path.removeprefix("/__gates/"))
                return _json(200, {"open": sorted(self._open_gates)})
            case _:
                return _json(404, {"error": {"message": f"no {request.method} {target.path} here"}})

    def _models(self) -> dict[str, object]:
        named = [{"id": one} if isinstance(one, str) else one.model_dump() for one in self._script.models]
        entries = [{"object": "model", "created": CREATED, "owned_by": "dev-model", **entry} for entry in named]
        return {"object": "list", "data": entries}

    def _complete(self, request: HttpRequest, parse: Callable[[bytes], ChatRequest]) -> Response:
        digest = sha256_hex(request.body)
        arrival = self._log.count(digest)
        plan = self._plan(request.body, digest, arrival, parse)
        number = self._log.begin(digest, arrival, request.headers, request.body, plan)

        def ended(outcome: Outcome) -> None:
            self._log.end(number, outcome)

        return Response(plan.pieces, plan.ending, ended)

    def _plan(self, body: bytes, digest: str, arrival_count: int, parse: Callable[[bytes], ChatRequest]) -> Plan:
        try:
            chat = parse(body)
        except ChatRequestError as error:
            return _refusal(str(error), "malformed", error.code)
        problem = dialect_problem(self._script.dialect, chat)
        if problem is None and self._script.check_requests:
            problem = protocol_problem(chat)
        if problem is not None:
            return _refusal(problem, "refused")
        arrival = Arrival(chat, digest, arrival_count)
        chosen = choose_turn(self._script, arrival)
        if chosen is None:
            return _refusal(
                f"no turn of the script fits: {chat.assistant_turns} assistant turns, "
                f"{chat.tool_results} tool results, last role {chat.last_role!r}, arrival {arrival_count}",
                "no_turn",
            )
        return plan_answer(self._script, *chosen, arrival)


def _refusal(message: str, kind: str, code: str | None = None) -> Plan:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return plan_error(Layout(), HttpError(status=400, body=body), "", kind)


def _json(status: int, document: dict[str, object]) -> Response:
    return Response((Piece(whole_response(status, JSON_TYPE, encode(document))),))


def serve(
    script_path: Path, port: int, log_path: Path | None = None, *, bodies_bytes_max: int = BODIES_BYTES_MAX
) -> None:
    """Serve a script until SIGINT or SIGTERM; prints where it listens. For the main thread of a process.

    Raises ScriptInvalidError, OSError.
    """
    model = DevModel(load_script(script_path), port, log_path, bodies_bytes_max=bodies_bytes_max)
    done = threading.Event()
    previous = {number: signal.signal(number, lambda *_: done.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with model:
            sys.stdout.write(f"listening on {model.base_url}\n")
            sys.stdout.flush()
            done.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
