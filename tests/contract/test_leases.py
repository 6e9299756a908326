"""What every lease store promises: in process, in a simulated Redis, in a real one, and behind the guard."""

import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import fakeredis
import pytest
from redis.connection import SSLConnection
from redis.sentinel import SentinelConnectionPool

from agentloom_worker import limits
from agentloom_worker.clock import ManualClock, SystemClock
from agentloom_worker.ids import ClaimToken, DispatchId, RunId, SystemIds
from agentloom_worker.leases import LEASE_STORES, Waiter, open_fast_path, redis
from agentloom_worker.leases.fast_path import FastPath, Rate
from agentloom_worker.runtime.lane import Lane

WAIT_S = 10.0
LOOKS_MAX = 2000
LONG_MS = 60_000
SHORT_MS = 20
IDS = SystemIds(SystemClock())


@dataclass
class Inside:
    """The sorted sets of a Redis, in milliseconds ahead of its clock: one that was set back leaves them far ahead."""

    client: Any  # redis-py types every answer for its async client as well
    prefix: str

    def put(self, key: str, members: dict[str, int]) -> None:
        now_ms = self._now_ms()
        self.client.zadd(self.prefix + key, {member: now_ms + ahead for member, ahead in members.items()})

    def weigh(self, key: str, tokens: int) -> None:
        """Note the sum of a window's tokens, as whoever entered them has."""
        self.client.zadd(self.prefix + key, {"=": -tokens})

    def ahead(self, key: str) -> dict[str, int]:
        now_ms = self._now_ms()
        found = self.client.zrange(self.prefix + key, 0, -1, withscores=True)
        return {member: int(score) - now_ms for member, score in found if member != "="}

    def _now_ms(self) -> int:
        seconds, micros = self.client.time()
        return 1000 * int(seconds) + int(micros) // 1000


@dataclass
class Subject:
    """A store, another process's view of it, how its time passes, and where it is a Redis, a look inside."""

    store: FastPath
    other: FastPath
    clock: ManualClock | None = None
    inside: Inside | None = None

    def passes(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; where time is ours, by moving it."""
        never = threading.Event()
        for _ in range(LOOKS_MAX):
            if holds():
                return
            if self.clock is not None:
                self.clock.advance(s=SHORT_MS / 1000)
            else:
                never.wait(WAIT_S / LOOKS_MAX)
        raise AssertionError("it did not come to pass")


@pytest.fixture(params=["local", "fakeredis", "redis"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "local":
        clock = ManualClock()
        store = open_fast_path("local:", clock)
        yield Subject(store, store, clock)
        store.close()
        return
    if request.param == "fakeredis":
        server = fakeredis.FakeServer()

        def make() -> FastPath:
            one, two = (fakeredis.FakeRedis(server=server, decode_responses=True, protocol=2) for _ in range(2))
            return redis.RedisFastPath(one, two, SystemClock(), "test:")

        store, other = make(), make()
        inside = Inside(fakeredis.FakeRedis(server=server, decode_responses=True, protocol=2), "test:")
    else:
        url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
        store, other = (open_fast_path(url, SystemClock(), prefix=prefix) for _ in range(2))
        inside = Inside(redis.connect(url, retries=0), prefix)
    yield Subject(store, other, inside=inside)
    store.close()
    other.close()
    inside.client.close()


@pytest.fixture
def inside(subject: Subject) -> Inside:
    """For tests over a Redis alone: the clock of one process never goes back."""
    assert subject.inside is not None
    return subject.inside


def a_claim() -> tuple[DispatchId, ClaimToken]:
    return DispatchId(IDS.new()), ClaimToken(IDS.token())


def a_run() -> RunId:
    return RunId(IDS.new())


def test_noted_claim_is_held_for_everybody_until_it_is_dropped(subject: Subject) -> None:
    dispatch_id, token = a_claim()
    assert not subject.other.is_held(dispatch_id)
    subject.store.note_claim(dispatch_id, token, LONG_MS)
    assert subject.other.is_held(dispatch_id)
    assert subject.store.is_held(dispatch_id)
    subject.store.drop_claim(dispatch_id, token)
    assert not subject.other.is_held(dispatch_id)


def test_claim_of_another_token_is_not_dropped(subject: Subject) -> None:
    dispatch_id, token = a_claim()
    subject.store.note_claim(dispatch_id, token, LONG_MS)
    subject.other.drop_claim(dispatch_id, ClaimToken(IDS.token()))
    assert subject.store.is_held(dispatch_id)


def test_newer_claim_of_a_row_takes_the_place_of_the_older_one(subject: Subject) -> None:
    dispatch_id, old = a_claim()
    new = ClaimToken(IDS.token())
    subject.store.note_claim(dispatch_id, old, LONG_MS)
    subject.other.note_claim(dispatch_id, new, LONG_MS)
    subject.store.drop_claim(dispatch_id, old)
    assert subject.store.is_held(dispatch_id)
    subject.other.drop_claim(dispatch_id, new)
    assert not subject.store.is_held(dispatch_id)


def test_claim_that_nobody_renews_is_forgotten(subject: Subject) -> None:
    dispatch_id, token = a_claim()
    subject.store.note_claim(dispatch_id, token, SHORT_MS)
    subject.passes(lambda: not subject.other.is_held(dispatch_id))


def test_renewal_extends_many_claims_at_once(subject: Subject) -> None:
    claims = [a_claim() for _ in range(limits.REDIS_BATCH + 3)]
    for dispatch_id, token in claims:
        subject.store.note_claim(dispatch_id, token, 5_000)
    subject.store.renew_claims(claims, LONG_MS)
    short, token = a_claim()
    subject.store.note_claim(short, token, SHORT_MS)
    subject.passes(lambda: not subject.other.is_held(short))
    if subject.clock is not None:
        subject.clock.advance(s=6)
    assert all(subject.other.is_held(dispatch_id) for dispatch_id, _ in claims)


def test_renewal_brings_no_dropped_claim_back(subject: Subject) -> None:
    dispatch_id, token = a_claim()
    subject.store.note_claim(dispatch_id, token, LONG_MS)
    subject.store.drop_claim(dispatch_id, token)
    subject.store.renew_claims([(dispatch_id, token)], LONG_MS)
    assert not subject.other.is_held(dispatch_id)


def test_renewal_of_nothing_is_nothing(subject: Subject) -> None:
    subject.store.renew_claims([], LONG_MS)
    assert subject.store.pushed([]) == frozenset()


def test_pushed_cancellation_is_heard_by_every_subscriber(subject: Subject) -> None:
    run_id, ready = a_run(), a_run()
    heard: list[threading.Event] = [threading.Event(), threading.Event()]
    listening = [threading.Event(), threading.Event()]

    def listen(number: int) -> Callable[[RunId], None]:
        events = {run_id: heard[number], ready: listening[number]}
        return lambda found: events[found].set()

    subject.store.push_cancel(ready)
    opened = [
        store.subscribe(listen(number), lambda: [ready]) for number, store in enumerate((subject.store, subject.other))
    ]
    assert all(event.wait(WAIT_S) for event in listening)
    subject.store.push_cancel(run_id)
    assert all(event.wait(WAIT_S) for event in heard)
    for subscription in opened:
        subscription.close()


def test_late_subscriber_finds_what_was_pushed_for_its_own_runs_only(subject: Subject) -> None:
    mine, others = a_run(), a_run()
    heard: list[RunId] = []
    found = threading.Event()

    def hear(run_id: RunId) -> None:
        heard.append(run_id)
        found.set()

    subject.store.push_cancel(others)
    subject.store.push_cancel(mine)
    subscription = subject.other.subscribe(hear, lambda: [mine])
    assert found.wait(WAIT_S)
    subscription.close()
    assert heard == [mine]


def test_closed_subscription_hears_nothing_more(subject: Subject) -> None:
    run_id, ready = a_run(), a_run()
    listening, heard = threading.Event(), []
    subject.store.push_cancel(ready)
    subscription = subject.store.subscribe(
        lambda found: listening.set() if found == ready else heard.append(found), lambda: [ready]
    )
    assert listening.wait(WAIT_S)
    subscription.close()
    subscription.close()
    subject.store.push_cancel(run_id)
    assert heard == []


def test_pushed_runs_are_found_by_their_keys(subject: Subject) -> None:
    ended, living = a_run(), a_run()
    subject.store.push_cancel(ended)
    assert subject.other.pushed([living, ended]) == {ended}
    assert subject.other.pushed([living]) == frozenset()


def test_slots_are_taken_up_to_their_limit_and_given_back(subject: Subject) -> None:
    assert subject.store.take_slot("model", 2, "a", LONG_MS)
    assert subject.other.take_slot("model", 2, "b", LONG_MS)
    assert not subject.store.take_slot("model", 2, "c", LONG_MS)
    assert subject.store.take_slot("another", 1, "c", LONG_MS)
    subject.other.give_slot("model", "b")
    assert subject.store.take_slot("model", 2, "c", LONG_MS)


def test_owner_takes_its_slot_again_even_where_all_are_taken(subject: Subject) -> None:
    assert subject.store.take_slot("model", 1, "a", LONG_MS)
    assert subject.store.take_slot("model", 1, "a", LONG_MS)
    assert not subject.other.take_slot("model", 1, "b", LONG_MS)


def test_limit_that_was_lowered_lets_nobody_in_until_enough_have_left(subject: Subject) -> None:
    """Whoever is in stays in: the limit is what the newest process says, and counts for those who come."""
    for owner in "abc":
        assert subject.store.take_slot("model", 3, owner, LONG_MS)
    assert not subject.other.take_slot("model", 1, "new", LONG_MS)
    assert subject.store.take_slot("model", 1, "a", LONG_MS), "a renewal is no entry"
    for owner in "abc":
        assert not subject.other.take_slot("model", 1, "new", LONG_MS)
        subject.store.give_slot("model", owner)
    assert subject.other.take_slot("model", 1, "new", LONG_MS)


def test_limit_that_was_raised_lets_others_in_at_once(subject: Subject) -> None:
    assert subject.store.take_slot("model", 1, "a", LONG_MS)
    assert not subject.store.take_slot("model", 1, "b", LONG_MS)
    assert subject.other.take_slot("model", 2, "b", LONG_MS)
    # A process that has not heard of it yet counts all who are in.
    assert not subject.store.take_slot("model", 1, "c", LONG_MS)


def test_window_counts_what_is_in_it_whatever_its_limit_was_then(subject: Subject) -> None:
    for owner in "abc":
        assert subject.store.enter_window("model", Rate(3, None), owner, 1, LONG_MS) == 0
    assert subject.other.enter_window("model", Rate(2, None), "d", 1, LONG_MS) > 0
    assert subject.other.enter_window("model", Rate(4, None), "d", 1, LONG_MS) == 0
    assert subject.other.enter_window("model", Rate(None, 4), "e", 1, LONG_MS) > 0
    assert subject.other.enter_window("model", Rate(None, 5), "e", 1, LONG_MS) == 0


def test_slot_of_an_owner_that_vanished_falls_free(subject: Subject) -> None:
    assert subject.store.take_slot("model", 1, "dead", SHORT_MS)
    subject.passes(lambda: subject.other.take_slot("model", 1, "next", LONG_MS))
    assert not subject.store.take_slot("model", 1, "dead", LONG_MS)


def test_slot_that_is_taken_again_outlives_its_first_time(subject: Subject) -> None:
    assert subject.store.take_slot("model", 2, "a", 5_000)
    assert subject.store.take_slot("model", 2, "a", LONG_MS)
    assert subject.store.take_slot("model", 2, "short", SHORT_MS)
    subject.passes(lambda: subject.other.take_slot("model", 2, "third", LONG_MS))
    if subject.clock is not None:
        subject.clock.advance(s=6)
    assert not subject.other.take_slot("model", 2, "fourth", LONG_MS)


def test_slot_with_a_short_time_does_not_end_a_longer_one(subject: Subject) -> None:
    assert subject.store.take_slot("model", 2, "long", LONG_MS)
    assert subject.store.take_slot("model", 2, "short", SHORT_MS)
    timer, token = a_claim()
    subject.store.note_claim(timer, token, 2 * SHORT_MS)
    subject.passes(lambda: not subject.other.is_held(timer))
    assert subject.other.take_slot("model", 2, "another", LONG_MS)
    assert not subject.other.take_slot("model", 2, "third", LONG_MS), "the long one is still there"


def test_slot_that_is_given_back_twice_or_unknown_is_no_matter(subject: Subject) -> None:
    subject.store.give_slot("model", "nobody")
    assert subject.store.take_slot("model", 1, "a", LONG_MS)
    subject.store.give_slot("model", "a")
    subject.store.give_slot("model", "a")
    assert subject.store.take_slot("model", 1, "b", LONG_MS)


def test_many_threads_never_take_more_slots_than_there_are(subject: Subject) -> None:
    start, taken = threading.Barrier(8), []

    def take(owner: str) -> None:
        start.wait(WAIT_S)
        if subject.store.take_slot("model", 3, owner, LONG_MS):
            taken.append(owner)

    threads = [threading.Thread(target=take, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(taken) == 3


def test_lane_is_kept_by_renewal_and_returned_by_the_end_of_its_attempt(subject: Subject) -> None:
    def lane(store: FastPath, owner: str, ttl_ms: int = LONG_MS) -> Lane:
        return Lane(store, "api.example.com", 1, owner, ttl_ms)

    mine, others = lane(subject.store, "a"), lane(subject.other, "b")
    assert mine.take() and not others.take()
    others.renew()
    others.give()
    assert not others.take(), "one that was not taken takes nothing and gives nothing back"
    mine.renew()
    mine.give()
    mine.renew()
    assert others.take(), "a renewal that comes after the return holds nothing"
    others.give()
    dead = lane(subject.store, "dead", SHORT_MS)
    assert dead.take()
    subject.passes(others.take)


def entered(store: FastPath, rate: Rate, owner: str, tokens: int = 1, window_ms: int = LONG_MS) -> int:
    return store.enter_window("model", rate, owner, tokens, window_ms)


def test_window_lets_so_many_requests_through_and_says_when_the_next_one_fits(subject: Subject) -> None:
    rate = Rate(2, None)
    assert (entered(subject.store, rate, "a"), entered(subject.other, rate, "b")) == (0, 0)
    assert 0 < entered(subject.store, rate, "c") <= LONG_MS
    assert subject.store.enter_window("another", rate, "c", 1, LONG_MS) == 0
    assert entered(subject.other, rate, "a") == 0, "one that is in it is not entered twice"
    assert entered(subject.store, rate, "c") > 0, "and what was refused has taken nothing"


def test_window_lets_so_many_tokens_through(subject: Subject) -> None:
    rate = Rate(None, 100)
    assert entered(subject.store, rate, "a", 60) == 0
    assert entered(subject.other, rate, "b", 41) > 0
    assert entered(subject.other, rate, "c", 40) == 0
    assert entered(subject.store, rate, "d", 1) > 0


def test_entries_leave_the_window_by_themselves_and_take_their_tokens_along(subject: Subject) -> None:
    rate = Rate(2, 100)
    assert entered(subject.store, rate, "dead", 90, SHORT_MS) == 0
    assert entered(subject.store, rate, "long", 10) == 0
    subject.passes(lambda: entered(subject.other, rate, "next", 90) == 0)
    wait_ms = entered(subject.store, rate, "third", 1)
    assert LONG_MS / 2 < wait_ms <= LONG_MS, "it fits when the oldest of those leaves"


def test_wait_is_until_the_entry_leaves_that_makes_room(subject: Subject) -> None:
    assert entered(subject.store, Rate(None, 100), "a", 10, 10_000) == 0
    assert entered(subject.store, Rate(None, 100), "b", 80, LONG_MS) == 0
    assert 5_000 < entered(subject.other, Rate(None, 100), "c", 20, LONG_MS) <= 10_000
    assert 50_000 < entered(subject.other, Rate(None, 100), "c", 21, LONG_MS) <= LONG_MS
    assert 5_000 < entered(subject.other, Rate(2, None), "c", 99, LONG_MS) <= 10_000
    assert 50_000 < entered(subject.other, Rate(1, None), "c", 99, LONG_MS) <= LONG_MS
    assert 50_000 < entered(subject.other, Rate(2, 100), "c", 99, LONG_MS) <= LONG_MS, "the later of the two"


def test_corrected_entry_counts_what_was_used_and_leaves_when_it_would_have(subject: Subject) -> None:
    rate = Rate(None, 100)
    assert entered(subject.store, rate, "a", 90, 10_000) == 0
    subject.other.correct_window("model", "a", 90, 20)
    assert entered(subject.store, rate, "b", 80) == 0
    assert 0 < entered(subject.store, rate, "c", 20) <= 10_000, "a correction does not make it stay longer"
    subject.store.correct_window("model", "a", 20, 500)
    assert entered(subject.other, rate, "c", 1) > 0, "more than was estimated counts as well"
    subject.store.correct_window("model", "unknown", 1, 0)
    subject.store.correct_window("model", "a", 90, 0)
    assert entered(subject.other, rate, "c", 1) > 0, "what is not there, or not with so many, changes nothing"


def test_request_that_was_never_sent_leaves_the_window_at_once(subject: Subject) -> None:
    rate = Rate(1, 100)
    assert entered(subject.store, rate, "a", 100) == 0
    assert entered(subject.other, rate, "b", 100) > 0
    subject.other.leave_window("model", "a", 100)
    subject.other.leave_window("model", "a", 100)
    assert entered(subject.other, rate, "b", 100) == 0


def test_request_above_the_limit_is_let_through_by_an_empty_window_only(subject: Subject) -> None:
    rate = Rate(None, 100)
    assert entered(subject.store, rate, "huge", 5000) == 0
    assert entered(subject.other, rate, "small", 1) > 0
    subject.store.leave_window("model", "huge", 5000)
    assert entered(subject.store, rate, "small", 1) == 0
    assert entered(subject.store, rate, "huge", 5000) > 0


def test_many_threads_never_enter_more_than_the_window_lets_through(subject: Subject) -> None:
    start, through = threading.Barrier(8), []

    def enter(owner: str) -> None:
        start.wait(WAIT_S)
        if entered(subject.store, Rate(3, 1000), owner, 100) == 0:
            through.append(owner)

    threads = [threading.Thread(target=enter, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(through) == 3


def test_window_agrees_with_a_plain_sum_over_what_is_in_it(subject: Subject) -> None:
    """The sum that a store keeps beside the entries is what a walk over them would find, whatever happens to them."""
    rate = Rate(12, 300)
    there: dict[str, int] = {}
    for number in range(400):
        # Numbers that come in no order, and the same each time.
        one, two, three = (number * factor % prime for factor, prime in ((7919, 61), (104729, 97), (1299709, 89)))
        owner, tokens = str(number), one
        fits = len(there) < 12 and (sum(there.values()) + tokens <= 300 or not there)
        assert (entered(subject.store, rate, owner, tokens) == 0) == fits
        if fits:
            there[owner] = tokens
        if there and two % 5 < 3:
            chosen = sorted(there)[two % len(there)]
            if three % 2:
                subject.other.leave_window("model", chosen, there.pop(chosen))
            else:
                subject.other.correct_window("model", chosen, there[chosen], three)
                there[chosen] = three


def waits(store: FastPath, waiter: str, tokens: int, window_ms: int = LONG_MS, budget: int = 100) -> int:
    """A waiter asks, each time as somebody else: its claims come and go."""
    owner = str(IDS.new())
    return store.enter_window("model", Rate(None, budget), owner, tokens, window_ms, Waiter(waiter, SHORT_MS))


def test_tokens_that_the_first_waiter_needs_are_left_to_it(subject: Subject) -> None:
    """A large request would never find room among small ones that come one after another."""
    assert entered(subject.store, Rate(None, 100), "a", 30, 10_000) == 0
    assert entered(subject.store, Rate(None, 100), "b", 40) == 0
    assert 5_000 < waits(subject.other, "large", 60) <= 10_000, "it fits beside b when a has left"
    assert waits(subject.store, "small", 10) > 0, "30 are free, but with these the large one would wait for b too"
    subject.store.leave_window("model", "a", 30)
    assert waits(subject.store, "small", 1) > 0
    assert waits(subject.other, "large", 60) == 0
    assert waits(subject.store, "small", 1) > 0, "it is full now"
    subject.store.leave_window("model", "b", 40)
    assert waits(subject.store, "small", 40) == 0


def test_what_leaves_room_for_the_first_waiter_is_let_through(subject: Subject) -> None:
    assert entered(subject.store, Rate(None, 100), "a", 60) == 0
    assert waits(subject.store, "large", 50) > 0
    subject.other.leave_window("model", "a", 60)
    assert waits(subject.other, "small", 50) == 0
    assert waits(subject.store, "another", 1) > 0
    assert waits(subject.store, "large", 50) == 0


def test_a_first_waiter_that_does_not_come_back_holds_nothing_for_long(subject: Subject) -> None:
    assert entered(subject.store, Rate(None, 100), "a", 100, SHORT_MS) == 0
    assert 0 < waits(subject.store, "gone", 100, SHORT_MS) <= SHORT_MS
    subject.passes(lambda: waits(subject.other, "next", 1, SHORT_MS) == 0)


def test_only_the_first_of_those_who_wait_is_waited_for_and_then_the_second(subject: Subject) -> None:
    assert entered(subject.store, Rate(None, 100), "a", 90) == 0
    assert waits(subject.store, "first", 20) > 0
    assert waits(subject.store, "second", 90) > 0
    assert waits(subject.store, "third", 80) > 0
    subject.other.leave_window("model", "a", 90)
    assert waits(subject.other, "third", 80) == 0, "beside the first there is room for it"
    assert waits(subject.store, "second", 90) > 0
    assert waits(subject.other, "first", 20) == 0
    assert waits(subject.store, "fourth", 11, LONG_MS, 200) > 0, "100 are free, and the second is the first now"
    assert waits(subject.store, "fifth", 10, LONG_MS, 200) == 0, "beside the second there is room for it"
    assert waits(subject.other, "second", 90, LONG_MS, 200) == 0


def test_nobody_who_names_no_waiter_is_waited_for(subject: Subject) -> None:
    assert entered(subject.store, Rate(None, 100), "a", 90) == 0
    assert entered(subject.store, Rate(None, 100), "large", 100) > 0
    assert waits(subject.other, "small", 10) == 0


def test_no_answer_is_longer_than_the_window_where_another_is_waited_for(subject: Subject) -> None:
    assert entered(subject.store, Rate(None, 100), "a", 100) == 0
    assert waits(subject.store, "large", 100) > 0
    subject.other.leave_window("model", "a", 100)
    assert LONG_MS - 5_000 < waits(subject.other, "small", 1) <= LONG_MS


def test_place_in_the_line_is_kept_by_a_waiter_that_another_window_holds_up(subject: Subject) -> None:
    waiter = Waiter("large", SHORT_MS)
    assert subject.store.enter_window("model", Rate(None, 100), "a", 60, LONG_MS, waiter) == 0
    subject.other.leave_window("model", "a", 60, waiter, LONG_MS)
    assert waits(subject.store, "small", 41) > 0
    assert waits(subject.other, "small", 40) == 0, "beside the first there is room for it"
    assert waits(subject.store, "large", 60) == 0
    subject.other.leave_window("model", "a", 60, Waiter("gone", SHORT_MS), LONG_MS)
    assert waits(subject.store, "next", 1) > 0, "it is full"


def test_who_waits_longest_is_the_first_of_the_line_whenever_it_came_to_it(subject: Subject) -> None:
    def asks(waiter: str, tokens: int, waited_ms: int) -> int:
        owner = str(IDS.new())
        return subject.store.enter_window(
            "model", Rate(None, 100), owner, tokens, LONG_MS, Waiter(waiter, SHORT_MS, waited_ms)
        )

    assert entered(subject.store, Rate(None, 100), "a", 100) == 0
    assert asks("younger", 60, 30_000) > 0
    assert asks("older", 70, 300_000) > 0
    assert asks("youngest", 100, 10_000) > 0
    subject.other.leave_window("model", "a", 100)
    assert asks("younger", 60, 30_000) > 0, "70 are kept for the older one"
    assert asks("oldest", 30, 600_000) == 0, "nothing is kept from who waits longer still"
    assert asks("older", 70, 300_000) == 0


def test_who_waits_longest_finds_a_place_in_a_line_that_is_full(subject: Subject) -> None:
    def asks(waiter: str, tokens: int, waited_ms: int) -> int:
        owner = str(IDS.new())
        return subject.store.enter_window(
            "model", Rate(None, 100), owner, tokens, LONG_MS, Waiter(waiter, SHORT_MS, waited_ms)
        )

    assert entered(subject.store, Rate(None, 100), "a", 100) == 0
    for number in range(limits.WAITERS_MAX):
        assert asks(f"small {number}", 1, 60_000) > 0
    assert asks("younger", 100, 0) > 0
    assert asks("older", 90, 600_000) > 0
    subject.other.leave_window("model", "a", 100)
    assert asks("another", 11, 30_000) > 0, "90 are kept for the older one"
    assert asks("another", 10, 30_000) == 0, "and none for the younger one, who found no place"
    assert asks("older", 90, 600_000) == 0


AN_HOUR_MS = 3_600_000
over_redis = pytest.mark.parametrize("subject", ["fakeredis", "redis"], indirect=True)


@over_redis
def test_slots_of_a_clock_that_was_set_back_hold_no_longer_than_a_slot_may(subject: Subject, inside: Inside) -> None:
    """Rule T10: what stands further ahead than any slot may is brought to where the longest of them ends."""
    bound_ms = int(1000 * limits.SLOT_AHEAD_MAX_S)
    inside.put("slots:model", {"dead": AN_HOUR_MS, "living": 2 * AN_HOUR_MS, "recent": bound_ms // 2})
    assert not subject.store.take_slot("model", 3, "new", SHORT_MS), "all of them may be under way"
    ahead = inside.ahead("slots:model")
    assert set(ahead) == {"dead", "living", "recent"}
    assert all(bound_ms / 2 < ahead[owner] <= bound_ms for owner in ("dead", "living"))
    assert ahead["recent"] <= bound_ms // 2, "what may stand there is left alone"
    assert subject.other.take_slot("model", 3, "living", SHORT_MS)
    subject.passes(lambda: subject.store.take_slot("model", 3, "new", LONG_MS))


@over_redis
def test_slots_that_live_longer_than_others_are_no_sign_of_a_clock_that_was_set_back(
    subject: Subject, inside: Inside
) -> None:
    long_ms = int(2000 * limits.SLOT_AHEAD_MAX_S)
    assert subject.store.take_slot("model", 2, "long", long_ms)
    assert subject.other.take_slot("model", 2, "as long", long_ms)
    assert all(long_ms / 2 < ahead <= long_ms for ahead in inside.ahead("slots:model").values())


@over_redis
def test_windows_of_a_clock_that_was_set_back_let_others_in_after_a_window(subject: Subject, inside: Inside) -> None:
    """Rule T10: no entry leaves later than a window from now, so no row is told to wait for longer."""
    inside.put("window:model", {"a:60": AN_HOUR_MS, "b:30": 2 * AN_HOUR_MS, "c:10": 10_000})
    inside.weigh("window:model", 100)
    assert 50_000 < entered(subject.store, Rate(2, None), "new") <= LONG_MS
    assert 5_000 < entered(subject.other, Rate(3, None), "new") <= 10_000, "what may stand there is left alone"
    assert 50_000 < entered(subject.other, Rate(None, 100), "new", 11) <= LONG_MS
    ahead = inside.ahead("window:model")
    assert set(ahead) == {"a:60", "b:30", "c:10"}
    assert all(50_000 < ahead[entry] <= LONG_MS for entry in ("a:60", "b:30")) and ahead["c:10"] <= 10_000
    subject.other.correct_window("model", "a", 60, 1)
    assert entered(subject.store, Rate(None, 100), "new", 59) == 0, "tokens are counted as before"
    assert entered(subject.other, Rate(None, 100), "newer", 1) > 0


def test_window_says_no_pause_longer_than_itself(subject: Subject) -> None:
    assert entered(subject.store, Rate(1, 1), "a", 1, LONG_MS) == 0
    assert 0 < entered(subject.other, Rate(1, None), "b", 1, SHORT_MS) <= SHORT_MS
    assert 0 < entered(subject.store, Rate(None, 1), "b", 1, SHORT_MS) <= SHORT_MS


def test_keys_in_redis_begin_with_the_prefix_and_all_expire(redis_url: str, redis_prefix: str) -> None:
    store = open_fast_path(redis_url, SystemClock(), prefix=redis_prefix)
    client = redis.connect(redis_url, retries=0)
    dispatch_id, token = a_claim()
    run_id = RunId(UUID(int=7))
    store.note_claim(dispatch_id, token, LONG_MS)
    store.push_cancel(run_id)
    store.take_slot("model", 1, "a", LONG_MS)
    store.enter_window("model", Rate(1, 1), "a", 1, LONG_MS)
    store.enter_window("model", Rate(1, 1), "b", 1, LONG_MS)
    store.enter_window("model", Rate(1, 1), "c", 1, LONG_MS // 2, Waiter("c", SHORT_MS))
    store.correct_window("model", "a", 1, 2)
    keys = {
        f"{redis_prefix}lease:dispatch:{dispatch_id.hex}",
        f"{redis_prefix}cancel:{run_id.hex}",
        f"{redis_prefix}slots:model",
        f"{redis_prefix}window:model",
    }
    assert set(client.keys(f"{redis_prefix}*")) == keys
    assert all(0 < client.pttl(key) <= LONG_MS for key in keys)
    client.close()
    store.close()


def test_table_opens_stores_by_scheme_and_refuses_others() -> None:
    assert set(LEASE_STORES) == {"local", "redis", "rediss", "sentinel", "unix"}
    for url in ("memcached://127.0.0.1", "127.0.0.1:6379", ""):
        with pytest.raises(ValueError, match="a lease store is one of"):
            open_fast_path(url, ManualClock())


def test_sentinel_address_names_every_sentinel_the_master_and_its_login() -> None:
    url = "sentinel://me:p%40ss@a:1;sentinel://b;sentinel://[::1]:3/4"
    client = redis.connect(url, retries=1, sentinel_master="main")
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "main"
    asked = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("a", 1), ("b", 26379), ("::1", 3)]
    for each in asked:
        assert (each["socket_timeout"], each["socket_connect_timeout"]) == (
            limits.REDIS_TIMEOUT_S,
            limits.REDIS_CONNECT_TIMEOUT_S,
        )
        assert each["retry"]._retries == 0 and each.get("password") is None
    given = pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("me", "p@ss", 4)
    assert (given["socket_timeout"], given["retry"]._retries) == (limits.REDIS_TIMEOUT_S, 1)
    redis.disconnect(client)


@pytest.mark.parametrize("url", ["sentinel://", "sentinel://a;redis://b", "sentinel://a:x", "sentinel://a/name"])
def test_sentinel_address_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        redis.connect(url, retries=0)


def test_tls_address_verifies_its_server_unless_it_says_otherwise() -> None:
    verified = redis.connect("rediss://cache:6380/1", retries=0)
    assert verified.connection_pool.connection_class is SSLConnection
    made = verified.connection_pool.make_connection()
    assert isinstance(made, SSLConnection) and made.cert_reqs is ssl.CERT_REQUIRED
    trusting = redis.connect("rediss://cache/1?ssl_cert_reqs=none&ssl_ca_certs=/ca.pem", retries=0)
    made = trusting.connection_pool.make_connection()
    assert isinstance(made, SSLConnection) and made.cert_reqs is ssl.CERT_NONE
    assert trusting.connection_pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"
