"""The fast path in Redis or Valkey, for processes on many machines. Raises what redis-py raises: see guard.py.

Keys, under the prefix: `lease:dispatch:ID` holds the claim's token; `cancel:RUN` says that a run has ended, and
is published on the channel `cancel`; `slots:NAME` is a sorted set of owners by the instant of their expiry, by
the server's clock; `window:NAME` is one of requests, see _ENTER. Every key expires. A script touches one key
only, so that a cluster takes it too.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from agentloom_worker import limits, telemetry
from agentloom_worker.clock import Clock
from agentloom_worker.ids import ClaimToken, DispatchId, RunId
from agentloom_worker.leases.fast_path import CancelListener, ClaimPair, Rate, Subscription, Waiter, WatchedRuns

ERRORS: Final = (redis.RedisError, OSError)
SENTINEL: Final = "sentinel://"
_SENTINEL_PORT: Final = 26379

_DROP: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# Where the server's clock was set back, or an earlier one took over, entries stand further ahead of it than any may
# (rule T10): each is brought to where the last legal one ends. It is not dropped, since what it stands for may go on.
_RECALL: Final = """
local function recall(key, last)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', last), '+inf')) do
    redis.call('ZADD', key, string.format('%.0f', last), member)
  end
end
"""

# The set lives as long as its longest slot: an owner with a short time to live must not end another's.
_TAKE: Final = (
    _RECALL
    + """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
recall(KEYS[1], now + math.max(ttl, tonumber(ARGV[4])))
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return 1
"""
)

# A sliding window: a sorted set of `OWNER:TOKENS` by the instant at which each leaves. The member `=` has the sum of
# their tokens, below zero, as its score: it is changed together with them, by whoever adds or trims them, so it is
# what a walk over all of them would find; an empty window begins again at nought. With 0 as their score stand those
# who wait, `!SINCE:WAITER:TOKENS:UNTIL` (SINCE in microseconds), the first of whom others are held back for.
_STAND: Final = """
local function stand(key, since, waiter, tokens, now, stays, most)
  redis.call('ZADD', key, 0, string.format('!%018.0f:%s:%s:%.0f', math.max(since, 0), waiter, tokens, now + stays))
  if redis.call('PTTL', key) < stays then redis.call('PEXPIRE', key, string.format('%.0f', stays)) end
  local line = redis.call('ZRANGEBYSCORE', key, 0, 0)
  if line[#line] == '=' then table.remove(line) end
  if #line > most then redis.call('ZREM', key, line[#line]) end
end
"""

_ENTER: Final = (
    _RECALL
    + _STAND
    + """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local key, window, tokens = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local requests, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local used = -tonumber(redis.call('ZSCORE', key, '=') or '0')
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', key, 1, now)) do
  used = used - tonumber(string.match(gone, ':(%d+)$'))
end
redis.call('ZREMRANGEBYSCORE', key, 1, now)
recall(key, now + window)
local waiter, late = ARGV[7], tonumber(ARGV[8])
local now_us = time[1] * 1000000 + time[2]
local began = now_us - 1000 * tonumber(ARGV[11])
local waiting, since, held, first_until = 0, false, 0, false
for _, one in ipairs(redis.call('ZRANGEBYSCORE', key, 0, 0)) do
  local from, who, many, until_ms = string.match(one, '^!(%d+):(.*):(%d+):(%d+)$')
  if who and who == waiter then
    since = tonumber(from)
    redis.call('ZREM', key, one)
  elseif who and (tonumber(until_ms) <= now or tonumber(until_ms) > now + window + tonumber(ARGV[9])) then
    redis.call('ZREM', key, one)
  elseif who then
    waiting = waiting + 1
    if waiting == 1 and not since and tonumber(from) <= began then
      held, first_until = tonumber(many), tonumber(until_ms)
    end
  end
end
local entries = redis.call('ZCOUNT', key, 1, '+inf')
if entries == 0 then used = 0 end
local free = now
local member = ARGV[1] .. ':' .. ARGV[3]
if not redis.call('ZSCORE', key, member) then
  if requests >= 0 and entries >= requests then
    local leaving = redis.call('ZRANGEBYSCORE', key, 1, '+inf', 'WITHSCORES', 'LIMIT', entries - requests, 1)
    free = tonumber(leaving[2])
  end
  local short = false
  if budget >= 0 and used + held + tokens > budget then
    local over, fits = used + held + tokens - budget, now
    local oldest = redis.call('ZRANGEBYSCORE', key, 1, '+inf', 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[6]))
    for i = 1, #oldest, 2 do
      if over <= 0 then break end
      over = over - tonumber(string.match(oldest[i], ':(%d+)$'))
      fits = tonumber(oldest[i + 1])
    end
    if first_until and over > 0 and #oldest == 2 * entries then
      fits = math.max(fits, math.min(first_until, now + window))
    end
    short = fits > now
    free = math.max(free, fits)
  end
  if free > now and waiter ~= '' and (since or short) then
    stand(key, math.min(since or now_us, began), waiter, ARGV[3], now, free + late - now, tonumber(ARGV[10]))
  end
  if free <= now then
    used = used + tokens
    redis.call('ZADD', key, string.format('%.0f', now + window), member)
    if redis.call('PTTL', key) < window then redis.call('PEXPIRE', key, window) end
  end
end
if used > 0 or entries > 0 or free <= now then redis.call('ZADD', key, string.format('%.0f', -used), '=') end
return free - now
"""
)

# Replace one entry by another that leaves at the same instant, or by none but a place among those who wait.
_CORRECT: Final = (
    _STAND
    + """
local key, before, after = KEYS[1], ARGV[1], ARGV[2]
local leaves = redis.call('ZSCORE', key, before)
if not leaves then return 0 end
local used = -tonumber(redis.call('ZSCORE', key, '=') or '0') - tonumber(string.match(before, ':(%d+)$'))
redis.call('ZREM', key, before)
if after ~= '' then
  redis.call('ZADD', key, leaves, after)
  used = used + tonumber(string.match(after, ':(%d+)$'))
end
redis.call('ZADD', key, string.format('%.0f', -used), '=')
local waiter = ARGV[3]
if waiter then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local tokens, stays, most = string.match(before, ':(%d+)$'), tonumber(ARGV[5]), tonumber(ARGV[6])
  stand(key, time[1] * 1000000 + time[2] - 1000 * tonumber(ARGV[4]), waiter, tokens, now, stays, most)
end
return 1
"""
)


def connect(url: str, *, retries: int, sentinel_master: str = "mymaster") -> "redis.Redis":
    """A client for short questions: RESP2, which every server and proxy speaks, and bounded waits.

    `url` is one that redis-py reads (redis, rediss, unix), or `sentinel://host:26379;sentinel://host:26379`,
    whose sentinels know where `sentinel_master` stands now; user, password and database of such a URL are the
    master's, as kombu reads it. Raises ValueError for a URL that is none. Opens no connection yet; end it with
    `disconnect`.
    """
    asking: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": limits.REDIS_TIMEOUT_S,
        "socket_connect_timeout": limits.REDIS_CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), retries),
    }
    options = asking | {
        "decode_responses": True,
        "max_connections": limits.REDIS_CONNECTIONS_MAX,
        "client_name": "agentloom-leases",
    }
    if not url.startswith(SENTINEL):
        return redis.Redis.from_url(url, **options)
    hosts, login = _parse_sentinel(url)
    # A sentinel that is away must not be asked twice before the next one is.
    made: Any = Sentinel  # redis-py leaves it untyped
    sentinels = made(hosts, sentinel_kwargs=asking | {"retry": Retry(NoBackoff(), 0)}, **(options | login))
    client: redis.Redis = sentinels.master_for(sentinel_master)
    return client


def disconnect(client: "redis.Redis") -> None:
    """Close a client of `connect`, and what it asked where the master stands."""
    client.close()
    if isinstance(client.connection_pool, SentinelConnectionPool):
        for asked in client.connection_pool.sentinel_manager.sentinels:
            asked.close()


def _parse_sentinel(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """The sentinels' addresses, and the login and database of the master, from the first address that names them."""
    addresses = [urlsplit(part) for part in url.split(";")]
    hosts: list[tuple[str, int]] = []
    for address in addresses:
        if address.scheme != "sentinel" or not address.hostname:
            raise ValueError("name sentinels by sentinel://host:port, separated by semicolons")
        hosts.append((address.hostname, address.port or _SENTINEL_PORT))
    first = addresses[0]
    login: dict[str, Any] = {
        name: unquote(value) for name, value in (("username", first.username), ("password", first.password)) if value
    }
    database = next((name for address in addresses if (name := address.path.strip("/"))), "0")
    if not database.isdecimal():
        raise ValueError("the database of a Redis is a number")
    return hosts, login | {"db": int(database)}


class RedisFastPath:
    """As FastPath says, without its guard. `listening` is the client of subscriptions, which retries nothing.

    A forked child may go on to use it, but hears nothing: subscriptions are threads.
    """

    def __init__(self, client: "redis.Redis", listening: "redis.Redis", clock: Clock, prefix: str) -> None:
        self._client: Any = client  # redis-py types every answer for its async client as well
        self._listening: Any = listening
        self._clock = clock
        self._prefix = prefix
        self._drop = client.register_script(_DROP)
        self._take = client.register_script(_TAKE)
        self._enter = client.register_script(_ENTER)
        self._correct = client.register_script(_CORRECT)

    def note_claim(self, dispatch_id: DispatchId, token: ClaimToken, ttl_ms: int) -> None:
        """As FastPath says."""
        self._client.set(self._lease(dispatch_id), token.hex, px=ttl_ms)

    def renew_claims(self, claims: Sequence[ClaimPair], ttl_ms: int) -> None:
        """As FastPath says: the database knows better, so whatever token stands there is overwritten (XX)."""
        for start in range(0, len(claims), limits.REDIS_BATCH):
            pipeline = self._client.pipeline(transaction=False)
            for dispatch_id, token in claims[start : start + limits.REDIS_BATCH]:
                pipeline.set(self._lease(dispatch_id), token.hex, px=ttl_ms, xx=True)
            pipeline.execute()

    def is_held(self, dispatch_id: DispatchId) -> bool:
        """As FastPath says."""
        return bool(self._client.exists(self._lease(dispatch_id)))

    def drop_claim(self, dispatch_id: DispatchId, token: ClaimToken) -> None:
        """As FastPath says."""
        self._drop(keys=[self._lease(dispatch_id)], args=[token.hex])

    def push_cancel(self, run_id: RunId) -> None:
        """As FastPath says. The key comes first, so that whoever misses the message finds it."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(self._cancel(run_id), "1", px=int(1000 * limits.CANCEL_KEPT_S))
        pipeline.publish(self._prefix + "cancel", run_id.hex)
        pipeline.execute()

    def pushed(self, run_ids: Sequence[RunId]) -> frozenset[RunId]:
        """As FastPath says."""
        found: set[RunId] = set()
        for start in range(0, len(run_ids), limits.REDIS_BATCH):
            batch = run_ids[start : start + limits.REDIS_BATCH]
            values = self._client.mget([self._cancel(run_id) for run_id in batch])
            found |= {run_id for run_id, value in zip(batch, values, strict=True) if value is not None}
        return frozenset(found)

    def subscribe(self, listener: CancelListener, watched: WatchedRuns) -> Subscription:
        """As FastPath says. Returns at once; a server that is away is tried again and again."""
        return _Listening(self, self._listening, self._prefix + "cancel", self._clock, listener, watched)

    def take_slot(self, name: str, limit: int, owner: str, ttl_ms: int) -> bool:
        """As FastPath says."""
        return bool(
            self._take(keys=[self._slots(name)], args=[owner, ttl_ms, limit, int(1000 * limits.SLOT_AHEAD_MAX_S)])
        )

    def give_slot(self, name: str, owner: str) -> None:
        """As FastPath says."""
        self._client.zrem(self._slots(name), owner)

    def enter_window(
        self, name: str, rate: Rate, owner: str, tokens: int, window_ms: int, waiter: Waiter | None = None
    ) -> int:
        """As FastPath says. The wait for tokens looks at the oldest entries only, so it may be too short."""
        requests, budget = (-1 if bound is None else bound for bound in (rate.requests, rate.tokens))
        args: list[str | int] = [owner, window_ms, tokens, requests, budget, limits.WINDOW_WALK_MAX]
        args += ["", 0] if waiter is None else [waiter.name, waiter.late_ms]
        args += [int(1000 * limits.WAITER_LATE_MAX_S), limits.WAITERS_MAX, 0 if waiter is None else waiter.waited_ms]
        return int(self._enter(keys=[self._window(name)], args=args))

    def correct_window(self, name: str, owner: str, before: int, tokens: int) -> None:
        """As FastPath says."""
        self._correct(keys=[self._window(name)], args=[f"{owner}:{before}", f"{owner}:{tokens}"])

    def leave_window(self, name: str, owner: str, before: int, waiter: Waiter | None = None, wait_ms: int = 0) -> None:
        """As FastPath says."""
        args: list[str | int] = [f"{owner}:{before}", ""]
        if waiter is not None:
            args += [waiter.name, waiter.waited_ms, wait_ms + waiter.late_ms, limits.WAITERS_MAX]
        self._correct(keys=[self._window(name)], args=args)

    def close(self) -> None:
        """As FastPath says."""
        disconnect(self._client)
        disconnect(self._listening)

    def _lease(self, dispatch_id: DispatchId) -> str:
        return f"{self._prefix}lease:dispatch:{dispatch_id.hex}"

    def _cancel(self, run_id: RunId) -> str:
        return f"{self._prefix}cancel:{run_id.hex}"

    def _slots(self, name: str) -> str:
        return f"{self._prefix}slots:{name}"

    def _window(self, name: str) -> str:
        return f"{self._prefix}window:{name}"


class _Listening:
    """One subscription: a thread that connects, listens, and connects again."""

    def __init__(
        self,
        store: RedisFastPath,
        client: Any,
        channel: str,
        clock: Clock,
        listener: CancelListener,
        watched: WatchedRuns,
    ) -> None:
        self._store = store
        self._client = client
        self._channel = channel
        self._clock = clock
        self._listener = listener
        self._watched = watched
        self._failures = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentloom-cancel-push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """As Subscription says. From inside the listener it does not wait."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                # Made anew each time: redis-py's own reconnection would not tell us to look up the keys.
                with self._client.pubsub() as pubsub:
                    pubsub.subscribe(self._channel)
                    self._listen(pubsub)
            except ERRORS as error:
                self._lost(error)

    def _listen(self, pubsub: Any) -> None:
        """Until it is closed, or raises: a peer that vanished without a word shows by its missing pong."""
        heard_s = pinged_s = self._clock.monotonic_s()
        while not self._closed.is_set():
            message = pubsub.get_message(timeout=limits.REDIS_LISTEN_SLICE_S)
            now_s = self._clock.monotonic_s()
            if message is not None:
                heard_s = now_s
                self._take_in(message)
            elif now_s - heard_s > limits.REDIS_SILENCE_MAX_S:
                raise redis.ConnectionError("the server is silent")
            elif now_s - pinged_s > limits.REDIS_PING_S:
                pinged_s = now_s
                pubsub.ping()

    def _take_in(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._failures = 0
            for run_id in self._store.pushed(tuple(self._watched())):
                self._listener(run_id)
        elif message["type"] == "message":
            try:
                run_id = RunId(UUID(message["data"]))
            except ValueError:
                telemetry.count("cancel_push_unreadable")  # somebody else's message on our channel
                return
            self._listener(run_id)

    def _lost(self, error: Exception) -> None:
        telemetry.count("cancel_push_lost")
        if self._failures == 0:
            telemetry.log(logging.WARNING, "cancel_push_lost", error=type(error).__name__)
        pause_s = min(limits.FAST_PATH_PAUSE_S * 2.0**self._failures, limits.FAST_PATH_PAUSE_MAX_S)
        self._failures = min(self._failures + 1, limits.FAST_PATH_DOUBLINGS_MAX)
        self._clock.wait(self._closed, pause_s)
