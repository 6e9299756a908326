"""Lanes: an endpoint's attempts are limited, and whoever finds no place waits in the table and not in a slot."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from agentloom_worker import telemetry
from agentloom_worker.clock import ManualClock
from agentloom_worker.domain.dispatch import Claim, DispatchRow
from agentloom_worker.domain.model import (
    Cancelled,
    Category,
    Completed,
    Executed,
    Failed,
    Failure,
    ModelOutcome,
    ModelResponse,
    Partial,
    Usage,
)
from agentloom_worker.domain.policy import RetryClass
from agentloom_worker.domain.release import ModelBinding, load_release
from agentloom_worker.ids import ClaimToken, DispatchId, RunId
from agentloom_worker.leases import FastPath, Rate
from agentloom_worker.leases.guard import GuardedFastPath
from agentloom_worker.leases.local import LocalFastPath
from agentloom_worker.llm.adapters.scripted import ScriptedRequest, TextTurn
from agentloom_worker.llm.chat_assembly import ChatAssembly
from agentloom_worker.llm.profiles import PROFILES
from agentloom_worker.runtime.connection import endpoint_of
from agentloom_worker.runtime.lane import Share, open_lanes, open_shares, pause_us, window_pause_us
from agentloom_worker.runtime.operations import _first_full
from agentloom_worker.runtime.ports import Settings
from agentloom_worker.runtime.publish import resolve_release
from agentloom_worker.runtime.request import rebuild_request
from agentloom_worker.storage.schema import migrate
from tests.acceptance.harness import answer, ask, attempts, events, rows, run_of
from tests.factories import release_document
from tests.simulator import Worker, make_worker
from tests.unit.leases.recording import AwayError, RecordingFastPath

LONG_MS = 3_600_000
LANE = "model:script:main"
ONE = {"script:main": 1}
A_CLAIM = Claim(
    dispatch_id=DispatchId(UUID(int=1)),
    token=ClaimToken(UUID(int=1)),
    scope_id=UUID(int=2),
    run_id=None,
    step="attempt_model",
    step_version=1,
    subject_id=UUID(int=3),
    key="attempt:1",
    epoch=1,
    attempts=1,
    failures=0,
    now_us=0,
)


class Model:
    """A scripted model that lets a test look at the moment of the attempt."""

    def __init__(self) -> None:
        self.during: Callable[[], None] = lambda: None
        self.asked = 0
        self.usage: Usage | None = None

    def __call__(self, _request: ScriptedRequest) -> TextTurn:
        self.asked += 1
        self.during()
        return TextTurn("done", usage=self.usage)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fast(clock: ManualClock) -> LocalFastPath:
    return LocalFastPath(clock)


def binding(base_url: str) -> ModelBinding:
    return load_release(resolve_release(release_document(base_url=base_url)).body).model


def worker_on(folder: Path, clock: ManualClock, model: Model, fast: FastPath, lanes: dict[str, int]) -> Worker:
    url = f"sqlite:///{folder}/test.sqlite"
    migrate(url)
    settings = Settings(model_lanes=lanes)
    return make_worker(url, clock=clock, scripts={"main": model}, settings=settings, fast=fast, solitary=False)


@pytest.fixture
def worker(tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath) -> Iterator[Worker]:
    opened = worker_on(tmp_path, clock, model, fast, ONE)
    yield opened
    opened.close()


def waiting_row(worker: Worker, run: RunId) -> DispatchRow:
    (row,) = rows(worker.ports, run, "attempt_model")
    return row


def first_try(worker: Worker) -> RunId:
    """A run that has come to its model attempt once."""
    run = ask(worker.ports, release_document())
    (row,) = worker.ports.store.list_due(("control",), 10)
    assert worker.runner.run(row)
    return run


def test_full_lane_hands_the_row_back_uncounted_and_sends_nothing(
    worker: Worker, model: Model, fast: LocalFastPath
) -> None:
    assert fast.take_slot(LANE, 1, "another", LONG_MS)
    full = telemetry.counters().get("lanes_full", 0)
    run = first_try(worker)
    for tries in range(1, 12):
        row = waiting_row(worker, run)
        assert (row.attempts, row.failures, row.losses, row.parked_at) == (0, 0, 0, None)
        assert row.claimed_by is None and row.last_error == "the lane of script:main is full"
        now = worker.ports.store.now_us()
        assert now < row.not_before <= now + 5_000_000
        assert worker.ports.store.list_due(("model",), 10) == []
        assert telemetry.counters()["lanes_full"] == full + tries
        worker.clock.advance_to(row.not_before)
        assert worker.runner.run(row.dispatch_id)
    assert model.asked == 0
    fast.give_slot(LANE, "another")
    worker.drive()
    assert (run_of(worker.ports, run).status, answer(worker.ports, run), model.asked) == ("succeeded", "done", 1)
    (attempt,) = attempts(worker.ports, run)
    assert attempt.state == "complete" and not attempt.maybe_sent
    assert "attempt.retrying" not in events(worker.ports, run)


def test_place_is_held_during_the_attempt_and_free_after_it(worker: Worker, model: Model, fast: LocalFastPath) -> None:
    seen = []
    model.during = lambda: seen.append(fast.take_slot(LANE, 1, "another", LONG_MS))
    run = ask(worker.ports, release_document())
    worker.drive()
    assert run_of(worker.ports, run).status == "succeeded"
    assert seen == [False]
    assert fast.take_slot(LANE, 1, "another", LONG_MS)


def test_place_is_free_after_an_attempt_that_raised(worker: Worker, model: Model, fast: LocalFastPath) -> None:
    def fail() -> None:
        raise RuntimeError("our own bug")

    model.during = fail
    run = first_try(worker)
    assert waiting_row(worker, run).parked_at is not None
    assert fast.take_slot(LANE, 1, "another", LONG_MS)


def test_keeper_keeps_the_place_of_a_long_attempt(worker: Worker, model: Model, fast: LocalFastPath) -> None:
    seen = []

    def long_answer() -> None:
        for _ in range(5):
            worker.clock.advance(s=worker.ports.settings.claim_ttl_s / 2)
            worker.keeper.renew_lanes()
        seen.append(fast.take_slot(LANE, 1, "another", LONG_MS))

    model.during = long_answer
    first_try(worker)
    assert seen == [False]


def test_place_of_a_worker_that_died_falls_free_by_itself(worker: Worker, model: Model, fast: LocalFastPath) -> None:
    assert fast.take_slot(LANE, 1, "dead", worker.ports.settings.claim_ttl_ms)
    run = ask(worker.ports, release_document())
    worker.drive()
    assert (run_of(worker.ports, run).status, model.asked) == ("succeeded", 1)


def test_deadline_ends_a_run_that_waits_for_a_place(worker: Worker, model: Model, fast: LocalFastPath) -> None:
    assert fast.take_slot(LANE, 1, "another", 2 * LONG_MS)
    run = ask(worker.ports, release_document(agent={"limits": {"deadline_s": 60}}))
    worker.drive()
    assert (run_of(worker.ports, run).status, model.asked) == ("timed_out", 0)


@pytest.mark.parametrize(
    ("lanes", "limited"),
    [({}, False), ({"api.example.com": 1}, False), ({"*": 1}, True), ({"*": 1, "script:main": 2}, False)],
)
def test_only_a_lane_that_was_set_limits_an_endpoint(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath, lanes: dict[str, int], limited: bool
) -> None:
    assert fast.take_slot(LANE, 1, "another", LONG_MS)
    worker = worker_on(tmp_path, clock, model, fast, lanes)
    first_try(worker)
    assert model.asked == (0 if limited else 1)
    worker.close()


def test_store_that_is_away_limits_nothing(tmp_path: Path, clock: ManualClock, model: Model) -> None:
    store = RecordingFastPath(clock)
    assert store.take_slot(LANE, 1, "another", LONG_MS)
    store.away = True
    worker = worker_on(tmp_path, clock, model, GuardedFastPath(store, (AwayError,), clock), ONE)
    run = ask(worker.ports, release_document())
    worker.drive()
    assert (run_of(worker.ports, run).status, model.asked) == ("succeeded", 1)
    worker.close()


def test_the_longer_a_row_has_waited_the_later_it_asks_again() -> None:
    class Most:
        def random(self) -> float:
            return 1.0

    found = [pause_us(Most(), waited_s * 1_000_000) for waited_s in (0, 1, 4, 600)]
    assert found == [500_000, 500_000, 2_000_000, 5_000_000]


@pytest.mark.parametrize(
    ("base_url", "endpoint"),
    [
        ("https://API.example.com/v1", "api.example.com"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://[::1]:9/v1", "[::1]:9"),
        ("script:main", "script:main"),
        ("https://api.example.com:443/v1", "api.example.com"),
        ("HTTPS://api.example.com.:443/v1", "api.example.com"),
        ("https://api.example.com:/v1", "api.example.com"),
        ("http://api.example.com:80/v1", "api.example.com"),
        ("http://api.example.com:443/v1", "api.example.com:443"),
        ("https://api.example.com:8443/v1", "api.example.com:8443"),
        ("https://[2001:db8::443]:443/v1", "[2001:db8::443]"),
        ("https://user:word@api.example.com/v1", "api.example.com"),
        ("https://other.example.com/v1", "other.example.com"),
    ],
)
def test_endpoint_is_host_and_port(base_url: str, endpoint: str) -> None:
    assert endpoint_of(base_url) == endpoint


@pytest.mark.parametrize("setting", ["api.example.com", "api.example.com:443", "*"])
@pytest.mark.parametrize("spelling", ["https://api.example.com", "https://API.example.com:443/v1"])
def test_spellings_of_one_address_share_a_lane_however_its_limit_is_spelt(
    worker: Worker, fast: LocalFastPath, setting: str, spelling: str
) -> None:
    ports = replace(
        worker.ports,
        settings=Settings(model_lanes={setting: 1}, model_requests={setting: 1}, model_tokens={setting: 9}),
    )
    claims = [replace(A_CLAIM, token=ClaimToken(UUID(int=number))) for number in range(3)]
    (first,) = open_lanes(ports, binding("https://api.example.com/v2"), claims[0])
    (second,) = open_lanes(ports, binding(spelling), claims[1])
    others = open_lanes(ports, binding("https://api.example.com:8443/v1"), claims[2])
    assert len(others) == (setting == "*")
    assert first.take() and not second.take()
    assert all(other.take() for other in others), "another port is another endpoint"
    addresses = (spelling, "https://api.example.com/")
    shares = [
        share
        for address, claim in zip(addresses, claims, strict=False)
        for share in open_shares(ports, binding(address), claim, 3)
    ]
    assert [share.take() > 0 for share in shares] == [False, True]


def test_places_that_were_forgotten_are_taken_again_by_those_who_hold_them(
    worker: Worker, model: Model, fast: LocalFastPath
) -> None:
    """The store lost everything while an attempt was under way, which goes on; others then find its place taken."""
    seen = []

    def lose_all() -> None:
        for owner in [*fast._slots[LANE]]:
            fast.give_slot(LANE, owner)
        worker.keeper.renew_lanes()
        seen.append(fast.take_slot(LANE, 1, "another", LONG_MS))

    model.during = lose_all
    first_try(worker)
    assert (seen, model.asked) == ([False], 1)


# -- so many requests and tokens in a minute ----------------------------------------------------------

WINDOW_MS = 60_000


def limited(
    folder: Path,
    clock: ManualClock,
    model: Model,
    fast: FastPath,
    *,
    requests: int = 0,
    tokens: int = 0,
    **options: object,
) -> Worker:
    """A worker whose endpoint takes so many in a minute; 0: any number."""
    url = f"sqlite:///{folder}/test.sqlite"
    migrate(url)
    of = {"script:main": requests} if requests else {}
    settings = Settings(model_requests=of, model_tokens={"*": tokens} if tokens else {}, **options)
    return make_worker(url, clock=clock, scripts={"main": model}, settings=settings, fast=fast, solitary=False)


def test_full_window_hands_the_row_back_uncounted_until_it_lets_one_more_through(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath
) -> None:
    with closing(limited(tmp_path, clock, model, fast, requests=1)) as worker:
        assert fast.enter_window(LANE, Rate(1, None), "another", 1, WINDOW_MS) == 0
        full = telemetry.counters().get("windows_full", 0)
        run = first_try(worker)
        row = waiting_row(worker, run)
        assert (row.attempts, row.failures, row.losses, row.parked_at, row.claimed_by) == (0, 0, 0, None, None)
        assert row.last_error == "the window of script:main is full"
        now = worker.ports.store.now_us()
        assert now + 59_000_000 < row.not_before <= now + 65_000_000
        assert (telemetry.counters()["windows_full"], model.asked) == (full + 1, 0)
        assert worker.keeper.held() == []
        worker.drive()
        assert (run_of(worker.ports, run).status, model.asked) == ("succeeded", 1)
        (attempt,) = attempts(worker.ports, run)
        assert attempt.state == "complete" and not attempt.maybe_sent
        assert "attempt.retrying" not in events(worker.ports, run)


def test_full_window_gives_the_place_in_the_lane_back(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath
) -> None:
    with closing(limited(tmp_path, clock, model, fast, requests=1, model_lanes=ONE)) as worker:
        assert fast.enter_window(LANE, Rate(1, None), "another", 1, WINDOW_MS) == 0
        run = first_try(worker)
        assert waiting_row(worker, run).last_error == "the window of script:main is full"
        assert fast.take_slot(LANE, 1, "another", LONG_MS)


def test_estimate_is_reserved_before_the_send_and_corrected_by_the_usage(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath
) -> None:
    budget, seen = 100_000, []
    with closing(limited(tmp_path, clock, model, fast, tokens=budget)) as worker:
        # An entry that fills what the estimate leaves; the smallest that does not fit says how much was reserved.
        model.during = lambda: seen.append(reserved(fast, budget))
        model.usage = Usage(70_000, 20_000)
        run = ask(worker.ports, release_document())
        worker.drive()
        operation = worker.ports.store.list_operations(run)[0]
        body = rebuild_request(worker.ports, operation)
        assert seen == [-(-len(body) // 3)]
        assert reserved(fast, budget) == 90_000


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": None, "completion_tokens": None}, {"prompt_tokens": 3}, {"completion_tokens": "2"}],
)
def test_estimate_stands_where_the_provider_does_not_tell_what_it_took(fast: LocalFastPath, usage: object) -> None:
    assembly = ChatAssembly(PROFILES["generic"])
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    assembly.apply_frame({"choices": [choice], "usage": usage})
    share = Share(fast, "script:main", Rate(None, 100), "me", 40, WINDOW_MS, "row")
    assert share.take() == 0
    share.settle(Completed(assembly.response(request_id=None, transport_sha256="", transport_bytes=0)))
    assert reserved(fast, 100) == 40


def reserved(fast: FastPath, budget: int) -> int:
    """How many tokens are in the window: found by asking for ever fewer, and leaving it again."""
    low, high = 0, budget
    while low < high:
        middle = (low + high + 1) // 2
        if fast.enter_window(LANE, Rate(None, budget), "probe", middle, WINDOW_MS) == 0:
            fast.leave_window(LANE, "probe", middle)
            low = middle
        else:
            high = middle - 1
    return budget - low


REFUSED_BEFORE = Failure(
    "MODEL_TRANSPORT_FAILED", Category.TRANSPORT, "no connection", Executed.NOT_EXECUTED, RetryClass.TRANSPORT
)


@pytest.mark.parametrize(
    ("outcome", "left"),
    [
        (Failed(REFUSED_BEFORE, Partial()), 0),
        (Failed(replace(REFUSED_BEFORE, http_status=429), Partial()), 40),
        (Failed(replace(REFUSED_BEFORE, external_outcome=Executed.UNKNOWN), Partial()), 40),
        (Cancelled(Partial(), sent=False), 0),
        (Cancelled(Partial(), sent=True), 40),
        (Completed(ModelResponse("x", (), "stop")), 40),
        (Completed(ModelResponse("x", (), "stop", usage=Usage(5, 7))), 12),
    ],
)
def test_what_was_sent_stays_in_the_window_and_what_was_not_leaves_it(
    fast: LocalFastPath, outcome: ModelOutcome, left: int
) -> None:
    share = Share(fast, "script:main", Rate(None, 100), "me", 40, WINDOW_MS, "row")
    assert share.take() == 0
    share.settle(outcome)
    assert reserved(fast, 100) == left


def test_a_request_larger_than_the_limit_reserves_the_limit(fast: LocalFastPath) -> None:
    share = Share(fast, "script:main", Rate(None, 100), "me", 4000, WINDOW_MS, "row")
    assert share.take() == 0 and reserved(fast, 100) == 100
    share.settle(Completed(ModelResponse("x", (), "stop", usage=Usage(60, 0))))
    assert reserved(fast, 100) == 60


def test_window_that_cannot_be_asked_limits_nobody(tmp_path: Path, clock: ManualClock, model: Model) -> None:
    store = RecordingFastPath(clock)
    guarded = GuardedFastPath(store, (AwayError,), clock)
    with closing(limited(tmp_path, clock, model, guarded, requests=1, tokens=1)) as worker:
        store.away = True
        runs = [ask(worker.ports, release_document()) for _ in range(3)]
        worker.drive()
        assert [run_of(worker.ports, run).status for run in runs] == ["succeeded"] * 3
        assert clock.monotonic_s() < 60


@pytest.mark.parametrize(
    ("thrown", "waited_us", "expected"), [(0.0, 0, 1_500_000), (0.5, 0, 1_750_000), (0.5, 60_000_000, 4_000_000)]
)
def test_waits_for_a_window_end_apart(thrown: float, waited_us: int, expected: int) -> None:
    class Dice:
        def random(self) -> float:
            return thrown

    assert window_pause_us(Dice(), 1500, waited_us) == expected


# -- limits of a model or a credential at an endpoint -------------------------------------------------

ITS_MODEL = "script:main/dev-model"
ITS_LANE = f"model:{ITS_MODEL}"


def test_attempt_needs_a_place_in_every_lane_that_names_it_and_holds_none_while_it_waits(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath
) -> None:
    seen = []
    model.during = lambda: seen.append([fast.take_slot(name, 1, "another", LONG_MS) for name in (ITS_LANE, LANE)])
    with closing(worker_on(tmp_path, clock, model, fast, {"script:main": 1, ITS_MODEL: 1})) as worker:
        assert fast.take_slot(LANE, 1, "another", LONG_MS)
        run = first_try(worker)
        assert waiting_row(worker, run).last_error == "the lane of script:main is full"
        assert fast.take_slot(ITS_LANE, 1, "another", LONG_MS), "what it had taken is free again"
        fast.give_slot(LANE, "another")
        clock.advance_to(waiting_row(worker, run).not_before)
        assert worker.runner.run(waiting_row(worker, run).dispatch_id)
        assert waiting_row(worker, run).last_error == f"the lane of {ITS_MODEL} is full"
        assert fast.take_slot(LANE, 1, "another", LONG_MS) and model.asked == 0
        fast.give_slot(LANE, "another")
        fast.give_slot(ITS_LANE, "another")
        worker.drive()
        assert (run_of(worker.ports, run).status, model.asked, seen) == ("succeeded", 1, [[False, False]])
        assert all(fast.take_slot(name, 1, "another", LONG_MS) for name in (ITS_LANE, LANE))


def test_keeper_keeps_the_places_in_every_lane(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath
) -> None:
    seen: list[bool] = []
    with closing(worker_on(tmp_path, clock, model, fast, {"*": 1, ITS_MODEL: 1})) as worker:

        def long_answer() -> None:
            for _ in range(5):
                clock.advance(s=worker.ports.settings.claim_ttl_s / 2)
                worker.keeper.renew_lanes()
            seen.extend(fast.take_slot(name, 1, "another", LONG_MS) for name in (ITS_LANE, LANE))

        model.during = long_answer
        first_try(worker)
    assert seen == [False, False]


def test_full_window_of_an_endpoint_leaves_that_of_its_model(
    tmp_path: Path, clock: ManualClock, model: Model, fast: LocalFastPath
) -> None:
    settings = Settings(model_requests={"script:main": 1, ITS_MODEL: 2}, model_tokens={ITS_MODEL: 100_000})
    with closing(settled(tmp_path, clock, model, fast, settings)) as worker:
        assert fast.enter_window(LANE, Rate(1, None), "another", 1, WINDOW_MS) == 0
        run = first_try(worker)
        assert waiting_row(worker, run).last_error == "the window of script:main is full"
        assert fast.enter_window(ITS_LANE, Rate(1, None), "probe", 1, WINDOW_MS) == 0, "it is empty"
        fast.leave_window(ITS_LANE, "probe", 1)
        assert fast.enter_window(ITS_LANE, Rate(1, 1), "probe", 1, WINDOW_MS) > 0, "and kept for the row"
        model.usage = Usage(70, 20)
        worker.drive()
        assert (run_of(worker.ports, run).status, model.asked) == ("succeeded", 1)
        assert fast.enter_window(ITS_LANE, Rate(None, 100), "probe", 11, WINDOW_MS) > 0, "90 tokens are in it"
        assert fast.enter_window(ITS_LANE, Rate(None, 100), "probe", 10, WINDOW_MS) == 0


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        (Settings(), []),
        (Settings(model_lanes={"script:main": 1}), ["take_slot", "give_slot"]),
        (Settings(model_lanes={ITS_MODEL: 1}), ["take_slot", "give_slot"]),
        (
            Settings(model_requests={ITS_MODEL: 1}, model_tokens={ITS_MODEL: 100_000}),
            ["enter_window", "correct_window"],
        ),
        (
            Settings(model_lanes={ITS_MODEL: 1, "*": 1}),
            ["take_slot", "take_slot", "give_slot", "give_slot"],
        ),
    ],
)
def test_an_attempt_asks_the_store_as_often_as_there_are_limits_that_name_it(
    tmp_path: Path, clock: ManualClock, model: Model, settings: Settings, asked: list[str]
) -> None:
    store = RecordingFastPath(clock)
    model.usage = Usage(70, 20)
    with closing(settled(tmp_path, clock, model, store, settings)) as worker:
        run = ask(worker.ports, release_document())
        worker.drive()
        assert run_of(worker.ports, run).status == "succeeded"
    assert [what for what in store.asked if what.endswith(("_slot", "_window"))] == asked


def settled(folder: Path, clock: ManualClock, model: Model, fast: FastPath, settings: Settings) -> Worker:
    url = f"sqlite:///{folder}/test.sqlite"
    migrate(url)
    return make_worker(url, clock=clock, scripts={"main": model}, settings=settings, fast=fast, solitary=False)


def test_a_large_request_has_its_turn_in_two_windows_at_once(
    worker: Worker, clock: ManualClock, fast: LocalFastPath
) -> None:
    """That of its model and that of the endpoint, each kept full by small ones: it must find room in both together."""
    settings = Settings(model_tokens={ITS_MODEL: 100, "script:main": 200})
    ports = replace(worker.ports, settings=settings)
    tokens = {"large": 90, "ours": 3, "theirs": 3}
    models = {kind: replace(binding("script:main"), model="dev-model") for kind in tokens}
    models["theirs"] = replace(models["theirs"], model="another")
    let_in_at: dict[tuple[int, str], int] = {}
    due = {(200, "large"): 200}
    for second in range(1000):
        due |= {(second, "theirs"): second} | ({(second, "ours"): second} if second % 2 else {})
        for row in sorted(row for row, at in due.items() if at <= second):
            born, kind = row
            row_id = UUID(int=10 * born + list(tokens).index(kind))
            claim = replace(
                A_CLAIM, token=ClaimToken(UUID(int=row_id.int << 32 | second)), dispatch_id=DispatchId(row_id)
            )
            waited_us = 1_000_000 * (second - born)
            shares = open_shares(ports, models[kind], claim, 3 * tokens[kind], waited_us)
            full = _first_full(ports, (), shares, waited_us)
            if full is None:
                let_in_at[row] = second
                del due[row]
            else:
                due[row] = second + -(-full.pause_us // 1_000_000)
        clock.advance(s=1)
    assert let_in_at[200, "large"] <= 200 + 4 * 60
    for kind in ("ours", "theirs"):
        assert len([row for row in let_in_at if row[1] == kind]) > 100, "and the small ones went on"
