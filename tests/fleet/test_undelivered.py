"""Work that the git host does not take: whole workers, and a git host over HTTP that refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from msgspec.structs import replace

from ralph.fleet.job_process import JobProcess, exit_code_left
from ralph.fleet.jobs import Job, SetLimits, session_id
from ralph.fleet.undelivered import MOST_BYTES, Undelivered
from ralph.loop.record import FileRecord
from ralph.loop.state import LoopState
from ralph.loop.values import LoopEnd, LoopPlan
from ralph.values.outcome import Outcome
from tests.fleet.http_repository import HttpRepository
from tests.fleet.scripted import DONE, NEVER, SET, Asked, Place, bash
from tests.fleet.test_work import children_of, ends_after_another_signal
from tests.patience import PATIENCE_S, wait_until
from tests.sessions.session_journals import JournalBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.fleet.store.schema import JobRow
    from ralph.mock_api import Playable
    from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

BRANCH = "refs/heads/ralph/paid"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts and gives a host another name")


class Refused:
    """A place with one job, `paid`, whose repository is on the host `host`."""

    def __init__(self, place: Place, host: HttpRepository) -> None:
        self.place, self.host = place, host
        self.refuse: Callable[[], None] = lambda: None
        self.answers: Callable[[Asked], Playable] = self.paid
        self.command = "echo paid >> kept.txt"

    def model(self, asked: Asked) -> Playable:
        return self.answers(asked)

    def paid(self, asked: Asked) -> Playable:
        """One call of a tool, and then the end, when the host refuses."""
        if asked.said == 0:
            return bash(self.command)
        self.refuse()
        return DONE

    @property
    def row(self) -> JobRow:
        return self.place.row("paid")

    @property
    def requests(self) -> int:
        return len(self.place.api.requests)

    def hurry(self) -> None:
        """Lets the job's next attempt begin now."""
        with self.place.store._engine.begin() as c:
            c.exec_driver_sql("UPDATE jobs SET not_before = 0")

    def bundles(self, machine: str = "a") -> list[Path]:
        return list((self.place.state(machine) / "fleet/undelivered").glob("*/*/*/work.bundle"))


@contextmanager
def refusing(tmp_path: Path, url: str = "", until: str | None = None, **limits: Any) -> Iterator[Refused]:
    models: dict[str, Callable[[Asked], Playable]] = {}
    with Place(tmp_path, models, url) as place, HttpRepository(place.repository) as host:
        refused = Refused(place, host)
        models |= {"paid": refused.model, "beside": lambda _asked: DONE}
        place.submit(place.job("paid", repository=host.url, until=until), limits=SetLimits(**limits))
        yield refused


@pytest.mark.parametrize(("how", "code"), [("403", 77), ("gone", 78), ("refs", 78)])
def test_work_that_the_host_refuses_is_kept_and_a_retry_delivers_it_without_asking_the_model(
    tmp_path: Path, how: str, code: int
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        hook = place.repository / "hooks/pre-receive"

        def refuse() -> None:
            if how == "gone":
                place.repository.rename(tmp_path / "elsewhere")
            elif how == "refs":
                hook.parent.mkdir(exist_ok=True)
                hook.write_text("#!/bin/sh\nexit 1\n")
                hook.chmod(0o755)
            else:
                host.status = int(how)

        refused.refuse = refuse
        assert place.worst("a") == code, place.log("a")
        row, (bundle,) = refused.row, refused.bundles()
        assert (row.state.value, row.exit_code) == ("undelivered", code)
        assert str(bundle) in (row.reason or "")
        assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
        assert {stat.S_IMODE(above.stat().st_mode) for above in list(bundle.parents)[:4]} == {0o700}
        asked = refused.requests

        host.status = 200
        hook.unlink(missing_ok=True)
        if how == "gone":
            (tmp_path / "elsewhere").rename(place.repository)
        assert BRANCH not in place.refs()
        shutil.rmtree(place.state("a") / "fleet/repositories")
        assert place.store.retry(SET, ["paid"]) == 1
        assert place.worst("a") == 0, place.log("a")
        row = refused.row
        assert (row.state.value, row.exit_code, row.kept) == ("done", 0, None)
        assert place.refs()[BRANCH] == row.commit
        assert place.git("show", f"{BRANCH}:kept.txt") == "kept\npaid"
        assert set(place.refs()) == {"refs/heads/main", BRANCH}, "no checkpoint is left"
        assert refused.requests == asked, "the model was asked again"
        assert refused.bundles() == []


@pytest.mark.parametrize("status", [200, 403])
def test_work_beside_the_branch_is_delivered_too_and_what_is_in_neither_is_named(
    tmp_path: Path, status: int
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        aside = (
            "git switch -qc aside; echo paid > aside.txt; git add .; git commit -qm aside; git switch -q -"
        )
        refused.command = f'{aside}; own=$\'own\\n[fleet] \\xff\'; git init -q "$own"; touch "$own/x"'
        refused.refuse = lambda: setattr(host, "status", status)
        place.worst("a")
        if status != 200:
            assert refused.row.state.value == "undelivered", place.log("a")
            host.status = 200
            assert place.store.retry(SET, ["paid"]) == 1
            place.worst("a")
        row = refused.row
        assert (row.state.value, row.exit_code, row.commit) == ("done", 0, None), place.log("a")
        (ref,) = (ref for ref in place.refs() if ref.endswith("-rest"))
        assert row.reason == (
            "not in the branch, and gone: 'own\\n[fleet] \\udcff/ (a repository of its own)'; "
            f"what it left on other branches, in tags or in a stash is at {ref}: {place.refs()[ref]}"
        )
        assert place.git("show", f"{ref}^2:aside.txt") == "paid"
        assert refused.bundles() == []
        logs = fleet(place, "a", "logs", "paid")
        assert logs.count("[fleet] not in the branch: own [fleet] ") == logs.count("not in the branch") > 0


ASIDE = "git switch -qc aside; echo paid > aside.txt; git add .; git commit -qm aside; git switch -q -"


@pytest.mark.parametrize("how", ["drained", "kept", "cancelled"])
def test_work_beside_the_branch_of_an_attempt_that_has_not_ended_the_job_is_delivered_and_named(
    tmp_path: Path, how: str
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host

        def model(asked: Asked) -> Playable:
            if asked.said == 0:
                return bash(f"{ASIDE}; echo paid >> kept.txt")
            host.is_silent = how == "kept" and asked.times == 1
            return NEVER if asked.times == 1 else DONE

        refused.answers = model
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: place.asked("paid", 1) == 1)
        if how == "cancelled":
            place.store.cancel(SET, ["paid"])
            wait_until(lambda: refused.row.state.value == "cancelled")
        else:
            worker.send_signal(signal.SIGTERM)
        if how == "kept":
            wait_until(lambda: has_ended(place))
            wait_until(lambda: ends_after_another_signal(worker))
            host.is_silent = False
            refused.hurry()
            place.finish("a")
            assert place.asked("paid", 0) == 1, "the first turn was paid again"
        else:
            at_host, on_machine = f"at refs/ralph/{SET}/paid/1-rest: ", "its work is kept on "
            wait_until(lambda: at_host in (reason := refused.row.reason or "") or on_machine in reason)
            if on_machine in (
                refused.row.reason or ""
            ):  # a busy machine has not pushed it within the three seconds
                assert how == "cancelled"
                (bundle,) = refused.bundles()
                place.git("fetch", "-q", str(bundle), "+refs/ralph/*:refs/ralph/*")
        (ref,) = (ref for ref in place.refs() if ref.endswith("-rest"))
        assert place.git("show", f"{ref}^2:aside.txt") == "paid"


def test_work_beside_the_branch_is_delivered_to_a_host_that_takes_branches_only(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place = refused.place
        place.store.cancel(SET, ["paid"])
        hook = place.repository / "hooks/pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(TAKES_BRANCHES_ONLY)
        hook.chmod(0o755)
        place._models["short"] = refused.paid  # type: ignore[index] # a dictionary
        refused.command = f"{ASIDE}; echo paid >> kept.txt"
        place.submit(place.job("short", repository=refused.host.url, max_turns=1))
        place.worst("a")
        row = place.row("short")
        (ref,) = (ref for ref in place.refs() if ref.startswith("refs/heads/ralph/short-1-rest-"))
        assert (row.state.value, row.exit_code, ref in (row.reason or "")) == ("done", 3, True), row.reason
        assert place.git("show", f"{ref}^2:aside.txt") == "paid"


def test_a_later_set_with_a_job_of_the_same_id_takes_nothing_from_the_earlier_one(tmp_path: Path) -> None:
    def model(asked: Asked) -> Playable:
        if asked.said == 0:
            return bash(f"{ASIDE}; echo {asked.times} > mine.txt")
        if asked.times == 1:
            place.commit_first("ralph/again", {"theirs.txt": "theirs\n"})
        return DONE

    with Place(tmp_path, {"again": model}) as place:
        place.store.submit("first", SetLimits(), [place.job("again")])
        assert place.worst("a") == 74
        kept = {ref: one for ref, one in place.refs().items() if ref.startswith("refs/ralph/")}
        assert {ref.rpartition("/")[2] for ref in kept} == {"1", "1-rest", "1-work"}
        place.git("branch", "-D", "ralph/again")
        place.store.submit("second", SetLimits(), [place.job("again")])
        place.worst("a")
        row = place.store.job_row("second", "again")
        assert row is not None
        assert row.exit_code == 0
        assert kept.items() <= place.refs().items()


def stop(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_host_that_is_away_until_the_worker_is_told_to_stop_costs_nothing_again(
    tmp_path: Path, is_silent: bool
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host

        before: list[str] = []

        def refuse() -> None:
            host.status, host.is_silent = 503, is_silent
            before[:] = host.asked

        refused.refuse = refuse
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: refused.requests == 2)
        wait_until(lambda: any("receive-pack" in one for one in host.asked[len(before) :]))
        if not is_silent:
            wait_until(lambda: refused.row.state.value == "queued")
            assert "503" in (refused.row.reason or "")
        wait_until(lambda: ends_after_another_signal(worker))
        row, (bundle,) = refused.row, refused.bundles()
        assert (row.state.value, row.exit_code, str(bundle) in (row.reason or "")) == ("queued", None, True)
        assert row.kept is not None
        host.status, host.is_silent = 200, False
        refused.hurry()
        assert place.worst("a") == 0, place.log("a")
        assert (refused.row.state.value, refused.requests, refused.bundles()) == ("done", 2, [])
        assert place.refs()[BRANCH] == refused.row.commit


def test_an_outage_of_the_host_is_tried_again_as_often_as_one_of_the_api(tmp_path: Path) -> None:
    with refusing(tmp_path, max_attempts=3) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", 502)
        worker = place.work("a", "--until-done")
        for tries in (1, 2):
            wait_until(lambda: refused.row.kept is not None and refused.row.kept.tries == tries)  # noqa: B023
            wait_until(lambda: refused.row.state.value == "queued")
            assert refused.row.not_before > refused.row.created_at + 50
            refused.hurry()
        assert worker.wait(PATIENCE_S) == 75, place.log("a")
        row = refused.row
        assert (row.state.value, row.tries) == ("undelivered", 1), "only the job's own attempts count"
        assert (row.reason or "").startswith("gave up after 3 attempts: ")
        host.status = 200
        place.store.retry(SET, ["paid"])
        assert place.worst("a") == 0, place.log("a")
        assert (refused.row.state.value, refused.requests) == ("done", 2)


def fleet(place: Place, machine: str, *words: str) -> str:
    """The output of a command of `ralph fleet`."""
    ran = subprocess.run(
        [sys.executable, "-m", "ralph", "fleet", *words],
        cwd=place.folder / machine,
        env=place.environment(machine),
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout


@pytest.mark.parametrize("is_postgres", [False, True])
def test_only_the_machine_that_keeps_the_work_takes_up_its_job_until_a_user_discards_it(
    tmp_path: Path, request: pytest.FixtureRequest, is_postgres: bool
) -> None:
    url = request.getfixturevalue("postgres_url") if is_postgres else ""
    with refusing(tmp_path, url) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", 403)
        assert place.worst("a") == 77, place.log("a")
        (bundle,) = refused.bundles("a")
        listed = json.loads(fleet(place, "a", "ls", "--json"))
        (told,) = listed["jobs"]
        assert (told["state"], told["undelivered"]["path"]) == ("undelivered", str(bundle))
        assert listed["sets"][0]["states"]["undelivered"] == 1
        machine = told["undelivered"]["machine"]
        line = f"not delivered: {SET}/paid: {bundle} on {machine}"
        assert re.search(rf"paid +undelivered .*{re.escape(str(bundle))}", fleet(place, "a", "ls"))
        assert line in fleet(place, "a", "ls").splitlines()
        assert f"kept        {bundle} on {machine}, not delivered\n" in fleet(place, "a", "show", "paid")

        host.status = 200
        fleet(place, "b", "retry", "--failed")
        other = place.work("b")
        place.submit(place.job("beside"))
        wait_until(lambda: place.row("beside").state.value == "done")
        assert (refused.row.state.value, refused.row.generation) == ("queued", 2)
        worker = place.work("a")
        wait_until(lambda: refused.row.state.value == "done")
        stop(worker)
        assert refused.requests == 3

        refused.refuse = lambda: setattr(host, "status", 404)
        fleet(place, "b", "retry", "paid")
        wait_until(lambda: refused.row.state.value == "undelivered")
        host.status = 200
        refused.refuse = lambda: None
        fleet(place, "a", "retry", "--discard", "paid")
        wait_until(lambda: refused.row.state.value == "done")
        assert refused.requests == 3 + 2 + 2, "it began anew"
        wait_until(lambda: not refused.bundles("b"))
        stop(other)


def test_a_job_that_is_handed_back_while_the_host_is_away_is_resumed_where_it_was(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host

        def model(asked: Asked) -> Playable:
            if asked.said == 0:
                host.status = 503
                return bash("echo paid >> kept.txt")
            return NEVER if asked.said == 1 and asked.times == 1 else DONE

        refused.answers = model
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: place.asked("paid", 1) == 1)
        stop(worker)
        assert (refused.row.state.value, place.checkpoint("paid")) == ("queued", None)
        assert len(refused.bundles()) == 1
        host.status = 200
        refused.hurry()
        courier = place.work("a", "--until-done")
        assert courier.wait(PATIENCE_S) == 0, place.log("a")
        assert (place.asked("paid", 0), place.asked("paid", 1)) == (1, 2), "the first turn was not paid again"
        assert place.git("show", f"{BRANCH}:kept.txt") == "kept\npaid"


def test_a_retry_delivers_first_and_goes_on_only_where_the_job_had_not_ended_with_0(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        place.submit(place.job("long", repository=host.url, max_turns=1))

        def model(asked: Asked) -> Playable:
            host.status = 403
            return bash(f"echo {asked.said} >> kept.txt")

        place._models["long"] = model  # type: ignore[index] # a dictionary
        place.store.cancel(SET, ["paid"])
        assert place.worst("a") == 77, place.log("a")
        assert place.row("long").state.value == "undelivered"
        host.status = 200
        place.store.retry(SET, ["long"])
        place._models["long"] = lambda _asked: DONE  # type: ignore[index] # a dictionary
        assert place.worst("a") == 143, place.log("a")
        row = place.row("long")
        assert (row.exit_code, place.asked("long", 0), place.asked("long", 1)) == (0, 1, 1)
        assert place.git("show", "ralph/long:kept.txt") == "kept\n0"


@pytest.mark.parametrize("name", ["work.bundle", "session", "checkout/file"])
def test_at_its_bound_a_machine_begins_no_job_drops_nothing_and_still_delivers(
    tmp_path: Path, name: str
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", 403)
        assert place.worst("a") == 77
        large = place.state("a") / "fleet/undelivered/other/large/1.executor" / name
        large.parent.mkdir(parents=True)
        with large.open("wb") as file:
            os.ftruncate(file.fileno(), MOST_BYTES)
        place.submit(place.job("beside"))
        host.status = 200
        place.store.retry(SET, ["paid"])
        worker = place.work("a", "--until-done")
        wait_until(lambda: "no job begins here until it is delivered or discarded" in place.log("a"))
        wait_until(lambda: refused.row.state.value == "done")
        beside = place.row("beside")
        assert (beside.state.value, beside.generation, refused.requests) == ("queued", 0, 2)
        assert large.exists()
        shutil.rmtree(large.parents[large.parts[::-1].index("other") - 1])
        assert worker.wait(PATIENCE_S) == 0
        assert place.row("beside").state.value == "done"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of two megabytes and few files at `folder`."""
    folder.mkdir(parents=True)
    options = "size=2m,nr_inodes=2000,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, most_files: int = 10_000) -> Path:
    """Fills the disk of a folder, so that not even a folder can be made, and returns the folder that fills it."""
    filler = folder / "filler"
    filler.mkdir()
    with (filler / "file").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 9):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    with suppress(OSError):
        for number in range(most_files):
            (filler / str(number)).touch()
    return filler


@AS_ROOT
@pytest.mark.parametrize("mirror_is_gone", [False, True])
def test_on_a_full_disk_the_checkout_is_kept_as_it_is(tmp_path: Path, mirror_is_gone: bool) -> None:
    with refusing(tmp_path, f"sqlite:///{tmp_path}/store/fleet.db") as refused:
        place, host = refused.place, refused.host
        with small_disk(place.state("b")) as disk:
            fillers: list[Path] = []

            def refuse() -> None:
                host.status = 403
                fillers.append(fill(disk))

            refused.refuse = refuse
            worker = place.work("b", "--until-done")
            wait_until(lambda: "cannot be bundled" in place.log("b") and refused.row.state.value == "queued")
            stop(worker)
            row = refused.row
            assert row.kept is not None
            assert (row.kept.path in (row.reason or ""), refused.bundles("b")) == (True, [])
            shutil.rmtree(fillers[0])
            if mirror_is_gone:  # which a user may do, to make room
                shutil.rmtree(disk / "fleet/repositories")
            host.status = 200
            refused.hurry()
            assert place.worst("b") == 0, place.log("b")
            assert (refused.row.state.value, refused.requests) == ("done", 2)
            assert place.git("show", f"{BRANCH}:kept.txt") == "kept\npaid"


def test_another_store_does_not_take_the_kept_work_of_a_job_of_the_same_name(tmp_path: Path) -> None:
    with refusing(tmp_path, f"sqlite:///{tmp_path}/one/fleet.db") as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", 403)
        assert place.worst("a") == 77
        (first,) = refused.bundles()
        place.store.close()
        shutil.rmtree(tmp_path / "one")
        del place.store  # it is made anew
        host.status = 200
        place.submit(place.job("paid", "Another task.", repository=host.url))
        assert place.worst("a") == 77, place.log("a")
        assert len(refused.bundles()) == 2
        assert f"{first.parent} is of no job of this store" in place.log("a")
        host.status = 200
        place.store.retry(SET, ["paid"])
        assert place.worst("a") == 0, place.log("a")
        assert (refused.row.state.value, refused.bundles()) == ("done", [first])


def test_a_worker_that_ends_while_it_bundles_has_the_checkout_kept(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    git = programs / "git"
    git.write_text(
        f'#!/bin/sh\ncase "$*" in *"bundle create"*) sleep 60;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    git.chmod(0o755)
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "is_silent", True)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        worker = place.work("a", "--drain", "0.1s", PATH=path)
        wait_until(lambda: refused.requests == 2 and "receive-pack" in host.asked[-1])
        wait_until(lambda: ends_after_another_signal(worker))
        (kept,) = (place.state("a") / "fleet/undelivered").glob("night/paid/1.*")
        assert (kept / "checkout/kept.txt").read_text() == "kept\npaid\n"
        host.is_silent = False
        place.finish("a")
        assert (refused.row.exit_code, refused.requests) == (0, 2)
        assert BRANCH in place.refs()


def test_work_that_cannot_be_kept_elsewhere_stays_where_it_is(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        folder = place.state("a") / "fleet"

        def refuse() -> None:
            host.status = 403
            (folder / "undelivered/night/paid").rmdir()
            (folder / "undelivered/night/paid").touch()

        refused.refuse = refuse
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: "its files stay here" in (refused.row.reason or ""))
        stop(worker)
        (left,) = (folder / "work").glob("*/night/paid.*.left")
        assert str(left) in (refused.row.reason or "")
        host.status = 200
        (folder / "undelivered/night/paid").unlink()
        refused.refuse = lambda: None
        refused.hurry()
        place.finish("a")
        assert (left / "checkout/kept.txt").read_text() == "kept\npaid\n"
        assert f"its files stay here: '{left}'" in fleet(place, "a", "show", "paid")
        assert f"{left} has work that could not be kept elsewhere" in place.log("a")

        (left / "checkout/large").touch()
        os.truncate(left / "checkout/large", MOST_BYTES)
        place.submit(place.job("beside"))
        worker = place.work("a")
        wait_until(lambda: "no job begins here" in place.log("a"))
        shutil.rmtree(left / "checkout")  # as a user does who has looked at it
        wait_until(lambda: place.row("beside").state.value == "done")
        stop(worker)
        place.finish("a")
        assert not list((folder / "work").iterdir())


@AS_ROOT
def test_no_worker_begins_where_work_could_not_be_kept_by_a_rename(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused, small_disk(refused.place.state("a") / "fleet/undelivered"):
        assert refused.place.worst("a") == 78
        assert "must be on one file system" in refused.place.log("a")
        assert refused.requests == 0


def test_work_is_kept_although_its_empty_room_was_removed(tmp_path: Path) -> None:
    """A cleaner removes it, or the courier with the kept work of an earlier takeup of the job."""
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host

        def refuse() -> None:
            host.status = 403
            shutil.rmtree(place.state("a") / "fleet/undelivered/night")

        refused.refuse = refuse
        assert place.worst("a") == 77, place.log("a")
        assert len(refused.bundles()) == 1


def test_what_disappears_while_its_size_is_asked_counts_as_nothing(tmp_path: Path) -> None:
    """A bundle takes the place of a checkout while the supervisor asks."""
    kept = Undelivered(tmp_path)
    checkout = kept.place_of("night", "paid", 1, "executor") / "checkout"
    checkout.mkdir(parents=True)
    for number in range(3000):
        (checkout / str(number)).touch()
    gone = threading.Thread(target=shutil.rmtree, args=(checkout,))
    gone.start()
    assert not any(Undelivered(tmp_path).is_full() for _ in range(20))
    gone.join()


def test_folders_that_slots_remove_while_all_that_is_left_is_looked_for_are_left_out(tmp_path: Path) -> None:
    work, kept = tmp_path / "work", Undelivered(tmp_path)
    left = work / "vm-1-0000000a/night/paid.1.left"
    (left / "checkout").mkdir(parents=True)
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            for number in range(20):
                (work / f"vm-{number}-0000000b/night/other.1").mkdir(parents=True)
            for number in range(20):
                shutil.rmtree(work / f"vm-{number}-0000000b")

    slots = threading.Thread(target=come_and_go)
    slots.start()
    try:
        assert {tuple(kept.left()) for _ in range(1500)} == {(left,)}
    finally:
        is_over.set()
        slots.join()


def killed_when(slot: int, is_time: Callable[[], object]) -> None:
    """Kills a process as soon as it is time."""
    until = time.monotonic() + PATIENCE_S
    while not is_time() and time.monotonic() < until:
        time.sleep(0.0002)
    os.kill(slot, signal.SIGKILL)


@pytest.mark.parametrize("stage", ["folder", "bundle"])
def test_a_worker_that_is_killed_while_it_keeps_work_loses_none(tmp_path: Path, stage: str) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", 403)
        worker = place.work("a")
        wait_until(lambda: refused.requests)
        (slot,) = children_of(worker.pid)
        kept = place.state("a") / "fleet/undelivered/night/paid"
        killed_when(slot, lambda: list(kept.glob("1.*" if stage == "folder" else "1.*/work.bundle")))
        host.status = 200
        refused.refuse = lambda: None
        wait_until(lambda: refused.row.state.is_final)
        if refused.row.state.value == "undelivered":  # it was faster than the kill
            place.store.retry(SET, ["paid"])
            wait_until(lambda: refused.row.state.value == "done")
        stop(worker)
        assert place.refs()[BRANCH] == refused.row.commit
        assert refused.requests == 2
        assert refused.bundles() == []


def test_a_job_that_is_cancelled_while_the_host_hangs_is_delivered_by_a_retry(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "is_silent", True)
        worker = place.work("a")
        wait_until(lambda: refused.requests == 2 and "receive-pack" in host.asked[-1])
        place.store.cancel(SET, ["paid"])
        wait_until(lambda: refused.row.state.value == "cancelled", 10)
        host.is_silent = False
        place.store.retry(SET, ["paid"])
        wait_until(lambda: refused.row.state.value == "done")
        stop(worker)
        assert (refused.row.exit_code, refused.requests) == (0, 2)
        assert BRANCH in place.refs()


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_cancelled_job_keeps_its_turns(tmp_path: Path, is_silent: bool) -> None:
    """The second turn changes files too soon after the checkpoint of the first one for another."""
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host

        def model(asked: Asked) -> Playable:
            if asked.said < 2:
                return bash(f"echo {asked.said} >> kept.txt")
            host.is_silent = is_silent and asked.times == 1
            return NEVER if asked.times == 1 else DONE

        refused.answers = model
        worker = place.work("a")
        wait_until(lambda: refused.requests == 3)
        place.store.cancel(SET, ["paid"])
        wait_until(lambda: refused.row.state.value == "cancelled")
        host.is_silent = False
        place.store.retry(SET, ["paid"])
        wait_until(lambda: refused.row.state.value == "done")
        stop(worker)
        assert refused.requests == 4, "a turn was paid again"
        assert place.git("show", f"{BRANCH}:kept.txt") == "kept\n0\n1"


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["record.json", "work.bundle"])
@pytest.mark.parametrize("damage", [cut, replaced_by_pipe, os.unlink])
def test_what_is_damaged_among_the_kept_work_is_named_and_stays(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", 403)
        assert place.worst("a") == 77
        (bundle,) = refused.bundles()
        damaged = bundle.with_name(name)
        damage(damaged)
        unknown = bundle.parents[3] / "other/job/1.executor/record.json"
        unknown.parent.mkdir(parents=True)
        unknown.write_text('{"set_name": ')
        bundle.parents[3].joinpath("other/job/²").mkdir()
        bundle.parents[1].joinpath("a person's notes").touch()
        host.status = 200
        place.submit(place.job("beside"))
        place.store.retry(SET, ["paid"])
        assert place.worst("a") == 74, place.log("a")
        row, log = refused.row, place.log("a")
        assert (row.state.value, row.exit_code) == ("undelivered", 74)
        assert str(damaged) in (row.reason or "")
        assert bundle.parent.exists()
        assert place.row("beside").state.value == "done"
        assert f"{unknown} cannot be used" in log
        assert "Traceback" not in log


def test_a_job_whose_checkout_a_command_has_removed_ends_and_says_so(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place = refused.place
        refused.command = 'rm -rf "$PWD"'
        assert place.worst("a") == 74
        row = refused.row
        assert (row.state.value, row.exit_code, row.tries) == ("done", 74, 1), place.log("a")
        assert row.reason == "its checkout is gone: a command of the job has removed or moved it"
        assert refused.requests == 2, "the job was paid again"


def silent_at_a_checkpoint(refused: Refused) -> None:
    """Makes the host silent before the first turn ends, so that its checkpoint hangs while the job ends."""
    host = refused.host

    def model(asked: Asked) -> Playable:
        if asked.said == 0:
            host.is_silent = True
            return bash("echo paid >> kept.txt")
        wait_until(lambda: "receive-pack" in host.asked[-1])
        return DONE

    refused.answers = model


def has_ended(place: Place) -> bool:
    """Whether the process of the job `paid` has ended in its first takeup."""
    work = place.state("a") / "fleet/work"
    names = ("result.json", "state/loops/*/*/loop.json")
    texts = [path.read_text() for name in names for path in list(work.glob(f"*/night/paid.1/{name}"))]
    return any('"exit_code"' in text and '"ended": null' not in text for text in texts)


def work_in_container(place: Place, machine: str) -> subprocess.Popen[bytes]:
    """Starts a worker in a container with the machine's state directory, which has a host name of its own."""
    rename = 'hostname a-new-name; exec "$@"'
    with (place.folder / machine / "log").open("ab") as log:
        return subprocess.Popen(
            ["unshare", "--uts", "sh", "-c", rename, "sh", sys.executable, "-m", "ralph", "fleet", "work"],
            cwd=place.folder / machine,
            env=place.environment(machine),
            stdout=log,
            stderr=log,
        )


@pytest.mark.parametrize(
    ("killed", "when"),
    [
        ("slot", "at the end"),
        ("slot", "at a checkpoint"),
        ("worker", "at the end"),
        ("worker", "at a checkpoint"),
        ("worker", "at the end of a loop"),
        ("worker", "at the end of a loop after the clock was set back"),
        ("worker of a full machine", "at the end"),
        pytest.param("worker of another host name", "at the end", marks=AS_ROOT),
    ],
)
def test_what_a_killed_slot_or_worker_had_done_is_delivered_and_not_paid_again(
    tmp_path: Path, killed: str, when: str
) -> None:
    until = "grep paid kept.txt" if "loop" in when else None
    with refusing(tmp_path, until=until) as refused:
        place, host = refused.place, refused.host
        if when == "at a checkpoint":
            silent_at_a_checkpoint(refused)
        else:
            refused.refuse = lambda: setattr(host, "is_silent", True)
        worker = place.work("a")
        wait_until(lambda: refused.requests == 2 and "receive-pack" in host.asked[-1])
        wait_until(lambda: has_ended(place))
        if "clock" in when:
            (record,) = (place.state("a") / "fleet/work").glob("*/night/paid.1/state/loops/*/*/loop.json")
            os.utime(record, (time.time() - 3600,) * 2)
        slots = children_of(worker.pid)
        if killed != "slot":
            worker.kill()
            worker.wait(PATIENCE_S)
        for slot in slots:
            with suppress(ProcessLookupError):  # it has ended with its supervisor
                os.kill(slot, signal.SIGKILL)
        host.is_silent = False
        if killed == "worker of a full machine":  # only the process beside the slots comes
            large = place.state("a") / "fleet/undelivered/other/large/1.executor/session"
            large.parent.mkdir(parents=True)
            large.touch()
            os.truncate(large, MOST_BYTES)
        if killed == "worker of another host name":
            worker = work_in_container(place, "a")
        elif killed != "slot":
            worker = place.work("a")
        wait_until(lambda: refused.row.state.is_final)
        stop(worker)
        row = refused.row
        assert (row.state.value, row.exit_code, refused.requests) == ("done", 0, 2)
        assert (row.turns, row.result, row.cost_usd > 0) == (2, "Done.", True)
        assert BRANCH in place.refs()
        assert not list((place.state("a") / "fleet/work").iterdir())
        assert "another worker has taken over" not in place.log("a")
        with place.store._engine.begin() as c:
            left = c.exec_driver_sql(
                "SELECT workflow_uuid FROM workflow_status WHERE status NOT IN ('SUCCESS', 'CANCELLED')"
            )
            assert left.all() == []


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_what_a_lost_worker_had_done_is_kept_and_named_although_another_machine_has_done_the_job(
    tmp_path: Path, postgres_url: str, how: str
) -> None:
    with refusing(tmp_path, postgres_url) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "is_silent", True)
        worker = place.work("a")
        wait_until(lambda: refused.requests == 2 and has_ended(place) and "receive-pack" in host.asked[-1])
        first = place.store.attempt_rows(SET, "paid")[0]
        if how == "killed":
            for process in place.processes():
                with suppress(ProcessLookupError):  # it has ended with its supervisor
                    os.kill(process, signal.SIGKILL)
            worker.wait(PATIENCE_S)
        else:  # as after a time without the network
            with place.store._engine.begin() as c:
                c.exec_driver_sql(
                    "UPDATE ralph_fleet.attempts SET ended_at = 1, reason = 'its worker was lost'"
                )
                queued = "state = 'queued', is_queued = false, attempt = 2, generation = 2, holder = NULL"
                c.exec_driver_sql(f"UPDATE ralph_fleet.jobs SET {queued}, not_before = 9e9")
            wait_until(lambda: "another worker has taken over this job" in place.log("a"))
            stop(worker)
        host.is_silent = False
        refused.refuse = lambda: None
        with place.store._engine.begin() as c:
            c.exec_driver_sql("UPDATE ralph_fleet.jobs SET not_before = 0")
        place.finish("b")
        assert (refused.row.state.value, refused.requests) == ("done", 4)
        assert place.worst("a") == 0, place.log("a")
        kept = place.state("a") / f"fleet/undelivered/night/paid/1.{first.executor}"
        assert (kept / "checkout/kept.txt").read_text() == "kept\npaid\n"
        assert f"{kept} has work of a job that another worker took over: look at it" in place.log("a")
        assert f"its worker was lost; what it had made is kept on {first.machine}: {kept}" in fleet(
            place, "b", "show", "paid"
        )
        assert (refused.row.kept, place.git("show", f"{BRANCH}:kept.txt")) == (None, "kept\npaid")


@pytest.mark.parametrize("killed", ["slot", "worker"])
@pytest.mark.parametrize("status", [403, 503])
def test_what_a_slot_has_kept_outlives_its_death_in_a_later_job(
    tmp_path: Path, killed: str, status: int
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        refused.refuse = lambda: setattr(host, "status", status)
        place._models["beside"] = lambda asked: NEVER if asked.times == 1 else DONE  # type: ignore[index] # a dictionary
        place.submit(place.job("beside"))
        worker = place.work("a", "-j", "1")
        wait_until(lambda: place.asked("beside", 0) == 1)
        row, (bundle,) = refused.row, refused.bundles()
        assert row.kept is not None
        slots = children_of(worker.pid)
        if killed == "worker":
            worker.kill()
            worker.wait(PATIENCE_S)
        for slot in slots:
            with suppress(ProcessLookupError):  # it has ended with its supervisor
                os.kill(slot, signal.SIGKILL)
        if killed == "worker":
            worker = place.work("a", "-j", "1")
        wait_until(lambda: place.row("beside").state.value == "done")
        assert "taken over from" in place.log("a")
        assert (bundle.exists(), refused.row.kept) == (True, row.kept)
        assert "look at it" not in place.log("a")
        host.status = 200
        if status == 403:
            place.store.retry(SET, ["paid"])
        refused.hurry()
        wait_until(lambda: refused.row.state.value == "done")
        stop(worker)
        assert (place.asked("paid", 0), place.asked("paid", 1)) == (1, 1), "its turns were paid again"


@pytest.mark.parametrize("how", ["stopped", "frozen", "locked", "locked before it has ended"])
def test_work_is_kept_although_the_store_answers_nothing_when_the_worker_is_told_to_stop(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, how: str
) -> None:
    with refusing(tmp_path, postgres_url) as refused, unanswering(postgres, postgres_url, how) as store:
        place = refused.place
        is_running = how == "locked before it has ended"

        def model(asked: Asked) -> Playable:
            if asked.said == 0:
                return bash("echo paid >> kept.txt")
            if asked.times == 1:
                store.begin()
            return NEVER if is_running and asked.times == 1 else DONE

        refused.answers = model
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: refused.requests == 2 if is_running else has_ended(place))
        if is_running:
            worker.send_signal(signal.SIGTERM)
            wait_until(lambda: has_ended(place))
        wait_until(lambda: ends_after_another_signal(worker))
        (kept,) = (place.state("a") / "fleet/undelivered").glob("night/paid/1.*")
        # A store that refuses to be asked leaves time for the bundle.
        assert (kept / ("work.bundle" if how == "stopped" else "checkout/kept.txt")).exists()
        store.end()
        place.finish("a")
        row = refused.row
        assert (row.state.value, row.turns) == ("done", refused.requests)
        assert refused.requests == 2 + is_running
        assert place.asked("paid", 0) == 1, "the first turn was paid again"
        assert BRANCH in place.refs()


def test_the_end_in_a_restored_record_of_a_loop_is_not_that_of_the_next_process(tmp_path: Path) -> None:
    plan = LoopPlan(str(tmp_path), str(tmp_path))
    state = LoopState(
        plan, "2026-11-28T20:00:00+00:00", 1, ended=LoopEnd(Outcome.LIMIT_REACHED, 3, "2 iterations are done")
    )
    record = FileRecord(tmp_path / "state/loops/work/1")
    record.folder.mkdir(parents=True)
    record.save(state)
    assert exit_code_left(tmp_path) is None
    (tmp_path / "checkout").mkdir()
    job = Job(id="looped", repository=str(tmp_path), prompt="Do it.", until="false")
    process = JobProcess(SET, job, tmp_path, {"PATH": os.environ["PATH"]}, hidden=(), told=lambda _text: None)
    process.start(None, tmp_path)
    assert process.end(process.wait(PATIENCE_S) or 0).exit_code == 2, "it found no loop to continue"
    assert exit_code_left(tmp_path) is None
    record.save(state)
    assert exit_code_left(tmp_path) == 3


def test_a_secret_that_only_the_run_knew_is_not_in_the_end_of_a_restored_session(tmp_path: Path) -> None:
    job = Job(id="done", repository=str(tmp_path), prompt="Do it.")
    process = JobProcess(SET, job, tmp_path, {"PATH": os.environ["PATH"]}, hidden=(), told=lambda _text: None)
    told = JournalBuilder(session_id(SET, job.id)).run().prompt("go").ends()
    ended = told.kinds.index("ended")
    told.records[ended] = replace(told.records[ended], result="It is corp-key-of-yesterday.")
    journal = tmp_path / "state/sessions/work" / f"{session_id(SET, job.id)}.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(told.marking("corp-key-of-yesterday"))
    end = process.end_before()
    assert end is not None
    assert end.result == "It is [redacted]."


class Unanswering:
    """A store that answers nothing about the jobs, from `begin` to `end`."""

    def __init__(self, postgres: PostgresServer, url: str, how: str) -> None:
        self._postgres, self._url, self._how = postgres, url, how
        self._frozen: list[int] = []
        self._held: psycopg.Connection[Any] | None = None

    def begin(self) -> None:
        if self._how == "stopped":
            self._postgres.stop()
        elif self._how != "frozen":
            self._held = psycopg.connect(self._url)
            self._held.execute("SELECT 1 FROM ralph_fleet.jobs FOR UPDATE")
        else:
            server = int((self._postgres.data / "postmaster.pid").read_text().split()[0])
            self._frozen = [server, *children_of(server)]
            for pid in self._frozen:
                os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        if self._held is not None:
            self._held.close()
        if self._how == "stopped":
            self._postgres.start()
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def unanswering(postgres: PostgresServer, url: str, how: str) -> Iterator[Unanswering]:
    store = Unanswering(postgres, url, how)
    try:
        yield store
    finally:
        store.end()


def test_a_takeup_that_has_told_its_end_leaves_nothing_although_it_is_killed(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place = refused.place
        place.finish("a")
        with place.store._engine.begin() as c:
            executor = c.exec_driver_sql("SELECT executor FROM attempts").scalar_one()
        folder = place.state("a") / "fleet/work" / executor / "night/paid.1"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text('{"exit_code": 0}')
        place.submit(place.job("beside"))
        place.finish("a")
        assert not folder.exists()
        assert not list((place.state("a") / "fleet/undelivered").glob("night/*/*"))
        assert "look at it" not in place.log("a")


def test_what_was_spent_before_the_process_ended_in_a_hanging_checkpoint_is_told(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        silent_at_a_checkpoint(refused)
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: has_ended(place))
        wait_until(lambda: ends_after_another_signal(worker))
        assert len(refused.bundles()) == 1
        host.is_silent = False
        refused.hurry()
        place.finish("a")
        row = refused.row
        assert (row.state.value, row.turns, refused.requests) == ("done", 2, 2)
        place._models["beside"] = refused.paid  # type: ignore[index] # a dictionary
        place.submit(place.job("beside"))
        place.finish("a")
        assert row.cost_usd == pytest.approx(place.row("beside").cost_usd)


TAKES_BRANCHES_ONLY = "#!/bin/sh\nwhile read o n ref; do case $ref in refs/ralph/*) exit 1;; esac; done\n"


def test_a_host_that_takes_branches_only_and_a_branch_of_somebody_else_are_both_named(tmp_path: Path) -> None:
    with refusing(tmp_path) as refused:
        place = refused.place
        hook = place.repository / "hooks/pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(TAKES_BRANCHES_ONLY)
        hook.chmod(0o755)

        def model(asked: Asked) -> Playable:
            if asked.said == 0:
                return bash("echo paid >> kept.txt")
            place.commit_first("ralph/paid", {"theirs.txt": "theirs\n"})
            return NEVER

        refused.answers = model
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: BRANCH in place.refs())
        stop(worker)
        assert len(refused.bundles()) == 1
        assert "the branch ralph/paid was changed by somebody else meanwhile" in (refused.row.reason or "")


@pytest.mark.parametrize("how", ["drained", "kept", "limit"])
def test_on_a_host_that_takes_branches_only_a_job_goes_on_from_its_branch_on_any_machine(
    tmp_path: Path, how: str
) -> None:
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host

        def model(asked: Asked) -> Playable:
            if asked.said == 0:
                return bash("echo paid >> kept.txt; echo new > new.txt")
            host.status = 503 if how == "kept" and asked.times == 1 else 200
            return NEVER if asked.times == 1 and how != "limit" else DONE

        place._models |= {"paid": model, "short": model}  # type: ignore[operator] # a dictionary
        hook = place.repository / "hooks/pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(TAKES_BRANCHES_ONLY)
        hook.chmod(0o755)
        if how == "limit":
            place.store.cancel(SET, ["paid"])
            place.submit(place.job("short", repository=host.url, max_turns=1))
            place.work("a", "--until-done").wait(PATIENCE_S)
            assert (place.row("short").state.value, place.row("short").exit_code) == ("done", 3)
            assert place.git("show", "ralph/short:kept.txt") == "kept\npaid"
            place.store.retry(SET, ["short"])
        else:
            worker = place.work("a", "--drain", "0.1s")
            wait_until(lambda: place.asked("paid", 1) == 1)
            stop(worker)
            host.status = 200
            assert (refused.row.state.value, len(refused.bundles())) == ("queued", how == "kept")
            refused.hurry()
        name = "short" if how == "limit" else "paid"
        assert place.worst("a" if how == "kept" else "b") == (143 if how == "limit" else 0)
        row = place.row(name)
        assert (row.state.value, row.exit_code, place.asked(name, 0)) == ("done", 0, 1)
        assert place.refs()[f"refs/heads/ralph/{name}"] == row.commit
        assert place.git("show", f"ralph/{name}:kept.txt") == "kept\npaid"
        assert place.git("log", "--format=%s", f"main..ralph/{name}").startswith(f"{name}: ")
        assert set(place.refs()) == {"refs/heads/main", f"refs/heads/ralph/{name}"}
