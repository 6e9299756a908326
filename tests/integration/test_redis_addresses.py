"""The Redis of the leases behind Sentinel and behind TLS, on servers of our own."""

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentloom_worker.clock import SystemClock
from agentloom_worker.domain.health import RedisFacts, Unreachable
from agentloom_worker.ids import ClaimToken, DispatchId, RunId, SystemIds
from agentloom_worker.leases import open_fast_path, redis
from agentloom_worker.leases.fast_path import FastPath
from agentloom_worker.leases.probe import probe_redis
from tests.acceptance.harness import wait_for
from tests.server_process import OwnProcess, free_port, give_to, temporary_directory, unprivileged_account
from tests.servers import OWN, RedisServer, open_redis

IDS = SystemIds(SystemClock())
WAIT_S = 30.0
LONG_MS = 60_000
MASTER = "leases"
CERTIFICATES = Path(__file__).resolve().parents[1] / "unit" / "llm" / "certificates"


def program() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        pytest.skip("no redis-server that can be a sentinel")
    return found


def port_of(server: RedisServer) -> int:
    return int(server.url.rsplit(":", 1)[1].split("/")[0])


@dataclass
class Group:
    """A master, a replica, and the one sentinel that watches them."""

    url: str
    servers: tuple[RedisServer, RedisServer]
    sentinel_port: int

    def master_port(self) -> int:
        with closing(redis.connect(f"redis://127.0.0.1:{self.sentinel_port}", retries=0)) as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])

    def fail_over(self) -> None:
        """Ask for it until the sentinel knows of the replica and has promoted it."""
        before = self.master_port()
        with closing(redis.connect(f"redis://127.0.0.1:{self.sentinel_port}", retries=0)) as client:

            def asked() -> bool:
                try:
                    client.execute_command("SENTINEL", "FAILOVER", MASTER)
                except redis.ERRORS as error:
                    return "INPROG" in str(error)
                return True

            wait_for(asked, "the sentinel fails over")
        wait_for(lambda: self.master_port() != before, "another master is named")


@pytest.fixture
def group() -> Iterator[Group]:
    home = OwnProcess(temporary_directory(unprivileged_account()), unprivileged_account())
    with closing(open_redis(OWN)) as master, closing(open_redis(OWN)) as replica:
        with closing(redis.connect(replica.url, retries=0)) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", port_of(master))
        port = free_port()
        configuration = home.directory / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {home.directory}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {port_of(master)} 1\n"
            f"sentinel down-after-milliseconds {MASTER} 1000\n"
        )
        if home.account:
            give_to(home.account, home.directory)

        def answers() -> bool:
            try:
                with closing(redis.connect(f"redis://127.0.0.1:{port}", retries=0)) as client:
                    return bool(client.ping())
            except redis.ERRORS:
                return False

        home.launch([program(), str(configuration), "--sentinel"], answers)
        try:
            # The first sentinel is away: the next one is asked.
            url = f"sentinel://127.0.0.1:1;sentinel://127.0.0.1:{port}"
            yield Group(url, (master, replica), port)
        finally:
            home.close(signal.SIGTERM)


@pytest.fixture
def store(group: Group) -> Iterator[FastPath]:
    opened = open_fast_path(group.url, SystemClock(), sentinel_master=MASTER)
    yield opened
    opened.close()


def test_leases_stand_on_the_master_that_the_sentinels_name_and_follow_it(group: Group, store: FastPath) -> None:
    dispatch_id, token, run_id = DispatchId(IDS.new()), ClaimToken(IDS.token()), RunId(IDS.new())
    heard = threading.Event()
    subscription = store.subscribe(lambda found: heard.set() if found == run_id else None, list)
    store.note_claim(dispatch_id, token, LONG_MS)
    assert store.is_held(dispatch_id)
    with closing(redis.connect(group.servers[0].url, retries=0)) as client:
        assert client.get(f"agentloom:lease:dispatch:{dispatch_id.hex}") == token.hex

    group.fail_over()

    later = DispatchId(IDS.new())

    with closing(redis.connect(group.servers[1].url, retries=0)) as client:

        def noted() -> bool:
            # The old master takes writes until it is told what it is now; they are lost, as any hint may be.
            store.note_claim(later, token, LONG_MS)
            return client.get(f"agentloom:lease:dispatch:{later.hex}") == token.hex

        wait_for(noted, "the leases are on the new master")
    wait_for(lambda: store.is_held(later), "the store reads what it wrote")

    def pushed() -> bool:
        store.push_cancel(run_id)
        return heard.wait(0.1)

    wait_for(pushed, "stops are heard from the new master")
    subscription.close()


def test_the_doctor_asks_the_master_and_says_when_the_sentinels_know_none(group: Group) -> None:
    facts = probe_redis(group.url, SystemClock(), MASTER)
    assert isinstance(facts, RedisFacts) and facts.role == "master"
    unknown = probe_redis(group.url, SystemClock(), "another")
    assert isinstance(unknown, Unreachable) and unknown.reason == "MasterNotFoundError"


@pytest.fixture
def secured() -> Iterator[str]:
    """The address of a Redis that speaks TLS only, with the authority to trust."""
    account = unprivileged_account()
    home = OwnProcess(temporary_directory(account), account)
    for name in ("loopback.pem", "loopback.key"):
        shutil.copy(CERTIFICATES / name, home.directory)
    if account:
        give_to(account, home.directory)
    port = free_port()
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={CERTIFICATES / 'loopback.pem'}&ssl_cert_reqs=required"

    def answers() -> bool:
        try:
            with closing(redis.connect(url, retries=0)) as client:
                return bool(client.ping())
        except redis.ERRORS:
            return False

    certificate, key = (str(home.directory / name) for name in ("loopback.pem", "loopback.key"))
    tls = ["--tls-port", str(port), "--tls-cert-file", certificate, "--tls-key-file", key]
    options = ["--tls-ca-cert-file", certificate, "--tls-auth-clients", "no", "--bind", "127.0.0.1", "--save", ""]
    home.launch([program(), "--port", "0", *tls, *options], answers)
    try:
        yield url
    finally:
        home.close(signal.SIGTERM)


def test_leases_stand_behind_tls_and_an_unknown_authority_is_refused(secured: str) -> None:
    dispatch_id, token = DispatchId(IDS.new()), ClaimToken(IDS.token())
    with closing(open_fast_path(secured, SystemClock())) as store:
        store.note_claim(dispatch_id, token, LONG_MS)
        assert store.is_held(dispatch_id)
    with closing(open_fast_path(secured.split("?")[0], SystemClock())) as stranger:
        assert not stranger.is_held(dispatch_id), "an authority that nobody vouches for is no server of ours"
    found = probe_redis(secured.split("?")[0], SystemClock())
    assert isinstance(found, Unreachable)
