"""Where the store is, who may read it, how connections are made, and what a process does while the store is away."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import tempfile
import threading
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from ralph.fleet.database import (
    Database,
    StoreError,
    WaitOptions,
    WaitStoppedError,
    away_reason,
    connect,
    database_of,
    dbos_settings,
    make_engine,
    patiently,
    prepare,
    reading,
    refusal_of,
    refuse_pooler,
)
from ralph.sessions.places import temporary_name
from ralph.values.outcome import Outcome
from tests.rows import every_row
from tests.services.certificates import make_certificate
from tests.services.outside_programs import program_or_skip
from tests.services.postgres import LOCKED_PASSWORD, LOCKED_USER, free_port, ordinary_user, temporary
from tests.services.two_addresses import SIX, two_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

from tests.services.postgres import PostgresServer

CANARY = "p%40ss-canary"
PLAIN = "p@ss-canary"


def at(url: str, **environment: str) -> Database:
    return database_of(url, {"RALPH_STATE_DIR": "/state", **environment})


# --- Where it is


def test_the_default_is_a_file_in_the_state_directory() -> None:
    database = database_of(None, {"RALPH_STATE_DIR": "/state"})
    assert database.file == Path("/state/fleet/fleet.sqlite")
    assert (database.is_postgres, database.folder) == (False, Path("/state/fleet"))


def test_the_default_does_not_depend_on_what_earlier_runs_left(tmp_path: Path, monkeypatch) -> None:
    """Sessions are stored in the temporary directory where no state directory can be made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / temporary_name()).mkdir(mode=0o700)
    assert database_of(None, {"HOME": "/nobody"}).folder == Path("/nobody/.local/state/ralph/fleet")
    assert database_of(None, {}).folder == tmp_path / temporary_name() / "fleet"


def test_the_option_comes_before_the_variable() -> None:
    variables = {"RALPH_STATE_DIR": "/state", "RALPH_FLEET_DB": "postgresql://u@db.example/jobs"}
    assert database_of(None, variables).place == "db.example:5432"
    assert database_of("sqlite:////own/jobs.db", variables).file == Path("/own/jobs.db")


@every_row(
    ("url", "why"),
    [
        ("postgresql:///jobs", "no TCP host"),
        ("postgresql://u@/jobs?host=/run/postgresql", "no TCP host"),
        ("postgresql://u@%2Frun%2Fpostgresql/jobs", "no TCP host"),
        ("postgresql://u@localhost/jobs?host=/run/postgresql", "no TCP host"),
        ("postgresql://u@localhost/jobs?hostaddr=192.0.2.1", "before the ?"),
        ("postgresql://u@db.example/", "no database"),
        ("mysql://u@db.example/jobs", "not a store of the fleet"),
        ("sqlite://", "is a file"),
        ("sqlite:///:memory:", "is a file"),
        (f"postgresql://u:{CANARY}@host:port/jobs", "is not a database URL"),
    ],
)
def test_a_url_that_is_no_store_is_refused_with_its_reason(url: str, why: str) -> None:
    for named, variables, outcome in (
        (url, {}, Outcome.USAGE),
        (None, {"RALPH_FLEET_DB": url}, Outcome.CONFIG),
    ):
        with pytest.raises(StoreError, match=why) as refused:
            database_of(named, {"RALPH_STATE_DIR": "/state", **variables})
        assert refused.value.outcome is outcome
        assert "canary" not in str(refused.value)


@every_row(
    ("url", "sslmode"),
    [
        ("postgresql://u@db.example/jobs", "verify-full"),
        ("postgresql://u@192.0.2.1/jobs", "verify-full"),
        ("postgresql://u@localhost,db.example/jobs", "verify-full"),
        ("postgresql://u@db.example/jobs?sslmode=require", "require"),
        ("postgresql://u@127.0.0.1/jobs", None),
        ("postgresql://u@[::1]/jobs", None),
        ("postgresql://u@localhost/jobs", None),
    ],
)
def test_another_machine_must_prove_its_name_unless_the_url_says_otherwise(
    url: str, sslmode: str | None
) -> None:
    arguments = at(url).connect_args.plain
    assert arguments.get("sslmode") == sslmode
    if sslmode == "verify-full":
        assert Path(arguments["sslrootcert"]).is_file()


def test_a_store_on_this_machine_is_asked_at_one_address_of_its_name(monkeypatch) -> None:
    """Commands of a job could listen at the other one."""
    with two_addresses(monkeypatch) as at:
        url = f"postgresql://u:word@localhost:{at.port}/jobs"
        assert "hostaddr" not in database_of(url, {}).connect_args.plain
        at.listen(SIX)
        for named in (url, url.replace("localhost", "127.0.0.1"), url.replace("localhost", "[::1]")):
            found = database_of(named, {}).connect_args.plain
            assert found.get("hostaddr") == (SIX if named == url else None)
            assert dbos_settings(database_of(url, {}))["db_engine_kwargs"]["connect_args"]["hostaddr"] == SIX


def test_no_text_about_a_store_contains_its_password() -> None:
    for url in (
        f"postgresql://u:{CANARY}@db.example/jobs?sslpassword=canary",
        f"postgresql://u@db.example/jobs?password={CANARY}",
    ):
        database = at(url)
        assert sa.make_url(database.url.plain).password == PLAIN
        texts = [repr(database), database.safe_text, database.place, repr(make_engine(database))]
        texts += [database.without_password(f"said {PLAIN}")]
        assert "canary" not in "\n".join(texts)
        # The engine writes its URL to its log, with the parameters.
        assert "canary" not in repr(sa.make_url(dbos_settings(database)["system_database_url"]))


# --- SQLite


def test_the_files_and_their_folder_are_the_users_alone(tmp_path) -> None:
    database = database_of(None, {"RALPH_STATE_DIR": str(tmp_path)})
    before = os.umask(0)
    try:
        prepare(database)
        engine = make_engine(database)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE job (id int)")
            files = {path.name: path.stat().st_mode & 0o777 for path in database.folder.iterdir()}
        engine.dispose()
    finally:
        os.umask(before)
    assert files == {"fleet.sqlite": 0o600, "fleet.sqlite-wal": 0o600, "fleet.sqlite-shm": 0o600}
    assert database.folder.stat().st_mode & 0o777 == 0o700


def test_a_link_or_a_folder_of_others_is_no_place_for_the_store(tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "fleet").symlink_to("elsewhere")
    with pytest.raises(StoreError, match="not a folder"):
        prepare(database_of(None, {"RALPH_STATE_DIR": str(tmp_path)}))
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(StoreError, match="other users may write"):
        prepare(database_of(f"sqlite:///{shared}/jobs", {"RALPH_STATE_DIR": str(tmp_path / "state")}))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "jobs").symlink_to(tmp_path / "target")
    linked = database_of(f"sqlite:///{tmp_path}/own/jobs", {"RALPH_STATE_DIR": str(tmp_path / "state")})
    with pytest.raises(StoreError, match="cannot be used"):
        patiently(lambda: prepare(linked), waiting=WaitOptions(linked, pytest.fail, threading.Event()))
    assert not (tmp_path / "target").exists()


def test_a_transaction_that_reads_before_it_writes_keeps_other_writers_out_and_readers_in(tmp_path) -> None:
    database = database_of(None, {"RALPH_STATE_DIR": str(tmp_path)})
    prepare(database)
    engine = make_engine(database)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE job (id int)")
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM job").scalar() == 0
        other = sqlite3.connect(str(database.file), timeout=0)
        with closing(other), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO job VALUES (1)")
        with reading(engine) as reader:
            assert reader.exec_driver_sql("SELECT count(*) FROM job").scalar() == 0
        connection.exec_driver_sql("INSERT INTO job VALUES (2)")
    engine.dispose()


# --- Postgres


def test_each_connection_has_what_finds_a_dead_peer(postgres_url) -> None:
    database = at(postgres_url)
    names = ("tcp_keepalives_idle", "tcp_user_timeout", "application_name", "statement_timeout")
    engine = make_engine(database)
    with engine.connect() as pooled, closing(connect(database, statement_timeout_s=7)) as own:
        of_pool = [pooled.exec_driver_sql(f"SHOW {name}").scalar() for name in names]
        of_own = own.execute("SHOW statement_timeout").fetchone()
    engine.dispose()
    assert (of_pool, of_own) == (["10", "25000", "ralph-fleet", "30s"], ("7s",))
    refuse_pooler(database)


def test_without_a_word_only_a_server_with_a_trusted_name_gets_the_jobs(
    postgres: PostgresServer, tmp_path
) -> None:
    """0.0.0.0 leads to this machine, but it is no loopback address."""
    url = postgres.url().replace("127.0.0.1", "0.0.0.0")

    def asked(parameters: str) -> object:
        database = at(url + parameters)

        def ask() -> object:
            with closing(connect(database)) as connection:
                return connection.execute(
                    "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
                ).fetchone()

        return patiently(ask, waiting=WaitOptions(database, pytest.fail, threading.Event()))

    with pytest.raises(StoreError, match=r"cannot be trusted.*does not support SSL"):
        asked("")
    assert asked("?sslmode=disable") == (False,)
    both = make_certificate(tmp_path, names="DNS:db.example")
    own = f"?sslrootcert={both.with_name('cert.pem')}"
    with postgres.certified(both.with_name("cert.pem"), both.with_name("key.pem")):
        for unknown in ("", own):  # its authority, and its name
            with pytest.raises(StoreError, match=r"cannot be trusted.*certificate"):
                asked(unknown)
        assert asked(own + "&sslmode=verify-ca") == (True,)


@pytest.fixture
def pooler(postgres: PostgresServer) -> Iterator[Callable[[str, str], int]]:
    """Starts PgBouncer in front of the server. Returns its port."""
    program = program_or_skip("pgbouncer")
    with ExitStack() as started:

        def start(mode: str, more: str) -> int:
            folder = Path(started.enter_context(tempfile.TemporaryDirectory(dir=temporary())))
            folder.chmod(0o755)
            port = free_port()
            (folder / "ini").write_text(
                f"[databases]\n* = host=127.0.0.1 port={postgres.port} user=ralph\n"
                f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
                f"auth_type = any\npool_mode = {mode}\n{more}\n"
            )
            command = [program, "-q", str(folder / "ini")]
            process = started.enter_context(
                subprocess.Popen(command, stderr=subprocess.DEVNULL, **ordinary_user())
            )
            started.callback(process.kill)
            return port

        yield start


@pytest.mark.outside
@every_row(
    ("mode", "more", "why"),
    [
        ("transaction", "", "refuses what the fleet needs.*options"),
        ("transaction", "ignore_startup_parameters = options", "is a transaction pooler"),
        (
            "statement",
            "ignore_startup_parameters = options",
            "refuses what the fleet needs.*statement pooling",
        ),
        ("session", "ignore_startup_parameters = options", None),
    ],
)
def test_a_pooler_that_gives_each_transaction_another_session_is_refused(
    postgres: PostgresServer, pooler, mode: str, more: str, why: str | None
) -> None:
    database = at(postgres.url().replace(str(postgres.port), str(pooler(mode, more))))
    waiting = WaitOptions(database, lambda line: None, threading.Event())  # until the pooler is there
    with nullcontext() if why is None else pytest.raises(StoreError, match=why):
        patiently(lambda: refuse_pooler(database), waiting=waiting)


def test_who_waits_for_the_store_says_so_once_and_continues(postgres: PostgresServer, postgres_url) -> None:
    engine, told = make_engine(at(postgres_url)), list[str]()

    def tell(line: str) -> None:
        told.append(line)
        postgres.start()

    def ask() -> object:
        with engine.connect() as connection:
            return connection.exec_driver_sql("SELECT 1").scalar()

    assert ask() == 1  # and the pool has a connection, which breaks
    postgres.stop(signal.SIGQUIT)
    assert patiently(ask, waiting=WaitOptions(at(postgres_url), tell, threading.Event())) == 1
    engine.dispose()
    place = f"127.0.0.1:{postgres.port}"
    assert told[0].startswith(f"waiting for the store at {place}: ")
    assert told[1:] == [f"the store at {place} is back"]


def test_who_is_stopped_waits_no_longer() -> None:
    stop = threading.Event()
    database = at(f"postgresql://u:{CANARY}@does-not-exist.invalid/jobs")
    with pytest.raises(WaitStoppedError):
        patiently(lambda: connect(database), waiting=WaitOptions(database, lambda line: stop.set(), stop))


@every_row(
    ("user", "password", "name", "query", "outcome", "why"),
    [
        (LOCKED_USER, "wrong-canary", "postgres", "", Outcome.AUTH, "refuses this user.*RALPH_FLEET_DB"),
        ("absent", None, "postgres", "", Outcome.AUTH, "refuses this user"),
        (LOCKED_USER, LOCKED_PASSWORD, "missing", "", Outcome.CONFIG, "no such database.*create it"),
        (LOCKED_USER, LOCKED_PASSWORD, "postgres", "", Outcome.AUTH, "does not permit this.*grant"),
        ("absent", None, "postgres", "?sslmode=verify-full", Outcome.CONFIG, "cannot be trusted.*sslmode"),
        ("absent", None, "postgres", "?foo=bar", Outcome.CONFIG, 'URL .* is wrong.*"foo"'),
        ("absent", None, "postgres", "?sslmode=full", Outcome.CONFIG, 'URL .* is wrong.*"full"'),
        ("absent", None, "postgres", "?connect_timeout=soon", Outcome.CONFIG, "URL .* is wrong.*soon"),
    ],
)
def test_nobody_waits_for_a_store_that_refuses(
    postgres: PostgresServer, user, password, name, query, outcome, why
) -> None:
    database = at(postgres.url(name, user=user, password=password) + query)

    def write() -> None:
        with closing(connect(database)) as connection:
            connection.execute("CREATE DATABASE forbidden")

    with pytest.raises(StoreError, match=why) as refused:
        patiently(write, waiting=WaitOptions(database, pytest.fail, threading.Event()))
    assert refused.value.outcome is outcome
    assert "canary" not in str(refused.value)
    assert "\n" not in str(refused.value)


@every_row(
    ("state", "is_away"),
    [
        *((state, True) for state in ("57P01", "57P03", "53300", "08006", "25006", "40001")),
        *((state, False) for state in ("08P01", "22P02", "23505", "57P04", "28P01", "58030")),
    ],
)
def test_a_state_of_postgres_says_whether_waiting_helps(state: str, is_away: bool) -> None:
    error = psycopg.errors.lookup(state)("why")
    assert (away_reason(sa.exc.OperationalError("SELECT", {}, error)) == "why") is is_away
    assert (away_reason(error) == "why") is is_away


def test_a_refusal_that_quotes_the_password_is_told_without_it() -> None:
    error = psycopg.OperationalError(f"password authentication failed: {PLAIN}\nno more")
    refusal = refusal_of(at(f"postgresql://u:{CANARY}@db.example/jobs"), error)
    assert "failed: *** no more;" in str(refusal)


def test_a_worker_outlasts_a_full_disk_and_a_command_does_not(tmp_path) -> None:
    database = at(f"sqlite:///{tmp_path}/x.sqlite")
    told: list[str] = []
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as store:
        store.execute("PRAGMA max_page_count = 2")

        def write() -> int:
            return store.execute("CREATE TABLE t AS SELECT zeroblob(9999) AS c").rowcount

        def tell(line: str) -> None:
            told.append(line)
            store.execute("PRAGMA max_page_count = 1000")

        why = "x.sqlite cannot be used: database or disk is full; see whether the disk is full"
        with pytest.raises(StoreError, match=why) as full:
            patiently(write, waiting=WaitOptions(database, pytest.fail, threading.Event()))
        patiently(
            write, waiting=WaitOptions(database, tell, threading.Event(), outlasts_full_disk=lambda: True)
        )
    assert full.value.outcome is Outcome.IO_ERROR
    assert told == [
        f"waiting for the store at {database.place}: database or disk is full",
        f"the store at {database.place} is back",
    ]


def test_a_table_that_is_gone_is_a_broken_store_and_a_wrong_statement_is_a_bug(postgres_url) -> None:
    database = at(postgres_url)
    waiting = WaitOptions(database, pytest.fail, threading.Event())
    with closing(connect(database)) as connection:
        with pytest.raises(StoreError, match="removed or replaced") as refused:
            patiently(lambda: connection.execute("SELECT * FROM ralph_fleet.jobs"), waiting=waiting)
        with pytest.raises(psycopg.errors.UndefinedColumn):
            patiently(lambda: connection.execute("SELECT nothing"), waiting=waiting)
    assert refused.value.outcome is Outcome.IO_ERROR
