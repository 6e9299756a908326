"""Server programs that the tests start themselves: a temporary directory, an unprivileged account, an end."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOK_EVERY_S: Final = 0.02
LOOKS_MAX: Final = 1500
RUN_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 10


class NoServerError(Exception):
    """No server by this way; the message says why."""


@dataclass(frozen=True, slots=True)
class Account:
    """The account that own servers run under when root starts them (PostgreSQL refuses root)."""

    uid: int
    gid: int


class OwnProcess:
    """A server process in a temporary directory; both go away with `close` or with this process."""

    def __init__(self, directory: Path, account: Account | None) -> None:
        self.directory = directory
        self.account = account
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self._process is not None
        return self._process.pid

    def run(self, command: list[str]) -> None:
        """Run a program to its end under the server's account. Raises NoServerError if it fails."""
        try:
            with self._log.open("ab") as log:
                process = self._spawn(command, log.fileno())
                status = process.wait(timeout=RUN_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoServerError(f"{command[0]}: {error}") from error
        if status != 0:
            raise NoServerError(f"{command[0]} exited with {status}: {self._log_tail()}")

    def launch(self, command: list[str], is_ready: Callable[[], bool]) -> None:
        """Start the server and wait, at most 30 s, until it answers. Raises NoServerError.

        Call it from the main thread: the kernel ends the server with the *thread* that started it.
        """
        setpriv = shutil.which("setpriv")
        if setpriv:
            command = [setpriv, "--pdeathsig", "INT", "--", *command]
        try:
            with self._log.open("ab") as log:
                self._process = self._spawn(command, log.fileno())
        except OSError as error:
            raise NoServerError(f"{command[0]}: {error}") from error
        for _ in range(LOOKS_MAX):
            try:
                status = self._process.wait(timeout=LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if is_ready():
                    return
            else:
                self._process = None
                raise NoServerError(f"{command[-1]} exited with {status}: {self._log_tail()}")
        self.stop(signal.SIGKILL)
        raise NoServerError(f"no answer within {LOOKS_MAX * LOOK_EVERY_S:.0f} s: {self._log_tail()}")

    def stop(self, gently: signal.Signals) -> None:
        """End the server: the given signal first, SIGKILL when it does not help."""
        process, self._process = self._process, None
        if process is None:
            return
        for each in (gently, signal.SIGKILL):
            process.send_signal(each)
            try:
                process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
            return

    def close(self, gently: signal.Signals) -> None:
        """Stop and remove the directory."""
        self.stop(gently)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _spawn(self, command: list[str], log: int) -> subprocess.Popen[bytes]:
        # A session of its own, so that Ctrl-C at the terminal reaches the tests and not the server first.
        return subprocess.Popen(
            command,
            cwd=self.directory,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=self.account.uid if self.account else None,
            group=self.account.gid if self.account else None,
            extra_groups=[] if self.account else None,
        )

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return " | ".join(lines[-5:])


def temporary_directory(account: Account | None) -> Path:
    """A fresh directory that belongs to the account."""
    directory = Path(tempfile.mkdtemp(prefix="agentloom-test-"))
    if account:
        os.chown(directory, account.uid, account.gid)
    return directory


def unprivileged_account() -> Account | None:
    """Whom servers run as: None means the current user, which is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise NoServerError("root starts no server, and there is no account postgres or nobody")


def give_to(account: Account, tree: Path) -> None:
    """Make the account the owner of everything below (and of) a directory."""
    for folder, _, files in os.walk(tree):
        os.chown(folder, account.uid, account.gid)
        for file in files:
            os.chown(Path(folder, file), account.uid, account.gid, follow_symlinks=False)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; another may take it before its user does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
