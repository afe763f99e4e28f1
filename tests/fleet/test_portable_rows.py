"""A row of the store runs no code in a worker: rows in another form than the engine's portable one are refused by the
database, by a worker that begins and by one that works, and nothing in a slot unpickles a function.
"""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from ralph.fleet.database import (
    StoreError,
    database_of,
    make_engine,
    prepare,
    refuse_open_store,
    refuse_others_file,
)
from ralph.fleet.engine import _attempt_named
from ralph.fleet.schema import PortableRows, refuse_other_forms
from ralph.machine.own_process import SHARED_MEMORY
from tests.fleet.scripted import DONE, SET, Place
from tests.patience import PATIENCE_S, wait_until
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.fleet.database import Database

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


class Marker:
    """Makes a directory when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._place),)


def pickled(place: Path) -> str:
    return base64.b64encode(pickle.dumps({"args": (Marker(place),), "kwargs": {}})).decode()


class Writer:
    """Somebody who may write to the store."""

    def __init__(self, database: Database) -> None:
        self.engine = make_engine(database)
        self._is_postgres = database.is_postgres
        self._tables = 'dbos."workflow_status"' if database.is_postgres else '"workflow_status"'

    def runs(self, statement: str, **values: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(statement), values)

    def plants(self, place: Path, form: str = "py_pickle") -> None:
        """Puts an ended workflow back into the queue, with other arguments."""
        self.runs(
            f"UPDATE {self._tables} SET status = 'ENQUEUED', output = NULL, executor_id = NULL, "
            "started_at_epoch_ms = NULL, serialization = :form, inputs = :inputs",
            form=form,
            inputs=pickled(place),
        )
        inputs = self._tables.replace("workflow_status", "workflow_input")
        self.runs(f"UPDATE {inputs} SET inputs = :inputs", inputs=pickled(place))

    def removes_the_guard(self) -> None:
        if self._is_postgres:
            self.runs(f"ALTER TABLE {self._tables} DROP CONSTRAINT ralph_portable")
        else:
            for when in ("insert", "update"):
                self.runs(f'DROP TRIGGER "ralph_portable_workflow_status_{when}"')

    def deletes_all(self) -> None:
        self.runs(f"DELETE FROM {self._tables}")

    def close(self) -> None:
        self.engine.dispose()


@contextmanager
def a_night(folder: Path, url: str) -> Iterator[tuple[Place, Database, Writer]]:
    """A store in which a worker has ended one job."""
    with Place(folder, {"one": lambda _asked: DONE, "two": lambda _asked: DONE}, url) as place:
        place.submit(place.job("one"))
        place.finish("a")
        assert place.row("one").exit_code == 0
        database = database_of(None, place.environment("a"))
        writer = Writer(database)
        try:
            yield place, database, writer
        finally:
            writer.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


def test_a_row_in_another_form_runs_nothing_wherever_it_comes_in(tmp_path: Path, url: str) -> None:
    mark = tmp_path / "code-has-run"
    assert isinstance(pickle.loads(base64.b64decode(pickled(tmp_path / "it-works"))), dict)
    assert (tmp_path / "it-works").is_dir()
    with a_night(tmp_path, url) as (place, database, writer):
        refuse_other_forms(database)
        with pytest.raises(sa.exc.DBAPIError, match="ralph"):
            writer.plants(mark)
        writer.removes_the_guard()
        writer.plants(mark)
        with pytest.raises(StoreError, match=rf"workflow_status.*: {SET}/one/1 \(py_pickle\)") as refused:
            refuse_other_forms(database)
        assert "delete them" in str(refused.value)
        beginner = place.work("b", "--until-done")
        assert beginner.wait(PATIENCE_S) == 78
        assert "rows that ralph did not write" in place.log("b")
        writer.deletes_all()
        place.submit(place.job("two"))
        place.finish("c")
        worker = place.work("d")
        wait_until(lambda: "working on" in place.log("d"))
        place.submit(place.job("never"), limits=None)
        wait_until(lambda: place.store.executor_rows() != [])
        writer.removes_the_guard()
        writer.plants(mark)
        wait_until(lambda: "rows that ralph did not write" in place.log("d"))
        worker.kill()
        assert worker.wait(PATIENCE_S) != 0
    assert not mark.exists()


@every_row(
    ("set_name", "job", "path"),
    [
        ("$HERE", "victim", "/x/1.executor"),
        (SET, "../../../../victim", "/x/1.executor"),
        (SET, "one", "$HERE/victim"),
        (SET, "one", "/x/1.executor/.."),
    ],
)
def test_a_row_about_kept_work_leads_to_no_other_directory(tmp_path_factory, set_name, job, path) -> None:
    folder = tmp_path_factory.mktemp("place")
    with a_night(folder, "") as (place, _database, writer):
        for kept in (folder / "victim/1.executor", place.state("a") / "fleet/undelivered/kept/1.executor"):
            kept.mkdir(parents=True)
        tables = {"set_name": set_name, "job": job, "path": path}
        values = {name: text.replace("$HERE", str(folder)) for name, text in tables.items()}
        before = sorted(folder.rglob("*/1.executor"))
        copied = [column["name"] for column in sa.inspect(writer.engine).get_columns("jobs")]
        chosen = ", ".join({"set_name": ":set_name", "id": ":job"}.get(one, f'"{one}"') for one in copied)
        if (values["set_name"], values["job"]) != (SET, "one"):
            writer.runs(
                f"INSERT INTO jobs SELECT {chosen} FROM jobs LIMIT 1",
                set_name=values["set_name"],
                job=values["job"],
            )
        writer.runs(
            "INSERT INTO undelivered VALUES (:set_name, :job, 1, :place, 'm', :path, 0, FALSE, TRUE)",
            place=(place.state("a") / "fleet/undelivered/machine").read_text(),
            **values,
        )
        place.submit(place.job("two"))
        assert place.worst("a") == 78
        assert "ralph did not write this; find out who can write to the store" in place.log("a")
        assert sorted(folder.rglob("*/1.executor")) == before


@every_row(
    ("statement", "says"),
    [
        ("UPDATE jobs SET state = 'x'", "the state of a job in the store: 'x' is not a valid"),
        ("UPDATE jobs SET id = '../x'", "has the name ../x, which must"),
        ("UPDATE sets SET limits = 'x'", "limits of a set in the store cannot be read"),
        (
            "INSERT INTO sets SELECT 'x\n[fleet] next', limits, created_at FROM sets",
            "has the name x.*next, which must",
        ),
    ],
)
def test_a_row_that_ralph_did_not_write_is_named_and_forges_no_line(
    tmp_path_factory, statement, says
) -> None:
    with a_night(tmp_path_factory.mktemp("place"), "") as (place, _database, writer):
        writer.runs(statement)
        with pytest.raises(StoreError, match=says) as refused:
            _ = place.store.set_rows(), place.store.job_rows(SET)
        assert "\n" not in str(refused.value)


def test_a_slot_unpickles_no_function() -> None:
    code = """
import pickle, os
from ralph.fleet.schema import refuse_pickles
class Marker:
    def __reduce__(self):
        return print, ("code has run",)
data = pickle.dumps([1, {"a": "b"}]), pickle.dumps(Marker()), pickle.dumps(Marker(), 0)
refuse_pickles()
assert pickle.loads(data[0]) == [1, {"a": "b"}]
for one in data[1:]:
    for load in (pickle.loads, pickle._loads):
        try:
            load(one)
        except pickle.UnpicklingError as error:
            print("refused")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["refused"] * 4 + [""], ran.stderr


@every_row(
    ("form", "is_refused"),
    [
        ("'portable_json'", False),
        ("NULL", False),
        ("'py_pickle'", True),
        ("''", True),
        ("'PORTABLE_JSON'", True),
        ("'portable_json '", True),
        ("x'70795f7069636b6c65'", True),
    ],
)
def test_only_the_portable_form_is_read(tmp_path_factory, form: str, is_refused: bool) -> None:
    database = database_of(None, {"RALPH_STATE_DIR": str(tmp_path_factory.mktemp("state"))})
    prepare(database)
    writer = Writer(database)
    writer.runs("CREATE TABLE other (id TEXT)")
    for table in ("workflow_status", "a_table_of_tomorrow"):
        writer.runs(f"CREATE TABLE {table} (x INT, workflow_uuid TEXT, serialization TEXT)")
    rows = PortableRows(database)
    for table in ("workflow_status", "a_table_of_tomorrow"):
        writer.runs(f"INSERT INTO {table} VALUES (1, 's/\x1b[2Ja/1', {form})")
        if is_refused:
            with pytest.raises(StoreError, match=rf"{table}.*: s/a/1 "):
                rows.refuse_others()
        else:
            rows.refuse_others()
        writer.runs(f"DELETE FROM {table}")
    rows.keep_others_out()
    rows.keep_others_out()
    for statement in (
        f"INSERT INTO workflow_status VALUES (1, 's/a/2', {form})",
        f"UPDATE workflow_status SET serialization = {form} WHERE workflow_uuid = 's/a/3'",
    ):
        writer.runs("INSERT INTO workflow_status VALUES (1, 's/a/3', NULL)")
        if is_refused:
            with pytest.raises(sa.exc.DBAPIError, match="portable form only"):
                writer.runs(statement)
        else:
            writer.runs(statement)
    rows.close()
    writer.close()


@every_row(
    ("workflow_id", "named"),
    [
        ("night/a/1", ("night", "a", 1)),
        ("night/a", None),
        ("night/a/b/1", None),
        ("night/a/-1", None),
        ("night/a/\u0661", None),
        ("", None),
    ],
)
def test_the_id_of_a_workflow_alone_names_its_job(
    workflow_id: str, named: tuple[str, str, int] | None
) -> None:
    assert _attempt_named(workflow_id) == named


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_no_command_reads_the_file_of_another_user(tmp_path: Path) -> None:
    database = database_of(None, {"RALPH_STATE_DIR": str(tmp_path)})
    refuse_others_file(database)
    prepare(database)
    refuse_others_file(database)
    assert database.file is not None
    os.chown(database.file, 65534, 65534)
    with pytest.raises(StoreError, match="not a file of this user"):
        refuse_others_file(database)
    os.chown(database.file, 0, 0)
    os.chown(database.folder, 65534, 65534)
    with pytest.raises(StoreError, match="another user"):
        refuse_others_file(database)


def test_no_command_reads_a_store_that_an_agent_may_have_written(tmp_path: Path, monkeypatch) -> None:
    home, work, checkout = (tmp_path / name for name in ("home", "work", "checkout"))
    for place in (home, work, checkout / ".git"):
        place.mkdir(parents=True)
    monkeypatch.chdir(work)
    variables = {"HOME": str(home)}
    refuse_open_store(database_of(None, variables), variables)
    caches = home / ".cache/ralph/packages"
    for place in (work, checkout, Path(SHARED_MEMORY), caches):
        state = {**variables, "RALPH_STATE_DIR": str(place / "state")}
        for named, environment in ((None, state), (f"sqlite:///{place}/jobs", variables)):
            with pytest.raises(StoreError, match="where commands of an agent may write"):
                refuse_open_store(database_of(named, environment), environment)
    for place in (home, tmp_path):
        monkeypatch.chdir(place)
        refuse_open_store(database_of(None, variables), variables)


def test_a_store_that_others_may_replace_is_not_read(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "jobs").touch()
    database = database_of(f"sqlite:///{shared}/jobs", {"RALPH_STATE_DIR": str(tmp_path / "state")})
    refuse_others_file(database)
    shared.chmod(0o777)
    with pytest.raises(StoreError, match="other users may write"):
        refuse_others_file(database)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "jobs").symlink_to(shared / "jobs")
    linked = database_of(f"sqlite:///{tmp_path}/own/jobs", {"RALPH_STATE_DIR": str(tmp_path / "state")})
    with pytest.raises(StoreError, match="not a file of this user"):
        refuse_others_file(linked)
