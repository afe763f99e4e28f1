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
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.fleet.job_process import JobProcess, exit_code_left
from ralph.fleet.jobs import Job, SetLimits, session_id
from ralph.fleet.undelivered import MOST_BYTES, Undelivered
from ralph.loop.record import FileRecord
from ralph.loop.state import LoopState
from ralph.loop.values import LoopEnd, LoopPlan
from ralph.values.outcome import Outcome
from tests.fleet.refusing_host import (
    BRANCH,
    TAKES_BRANCHES_ONLY,
    Refused,
    Unanswering,
    children_of,
    ends_after_another_signal,
    fill,
    kill_all,
    refusing,
    small_disk,
    stop,
)
from tests.fleet.scripted import DONE, NEVER, SET, Asked, Place, bash
from tests.patience import PATIENCE_S, wait_until
from tests.processes.scripts import before_git
from tests.sessions.session_journals import JournalBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.mock_api import Playable
    from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts and gives a host another name")
ASIDE = "git switch -qc aside; echo paid > aside.txt; git add .; git commit -qm aside; git switch -q -"


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Refused]:
    with refusing(tmp_path) as made:
        yield made


# --- A host that refuses


@pytest.mark.parametrize(("how", "code"), [("403", 77), ("gone", 78)])
def test_work_that_the_host_refuses_is_kept_and_a_retry_delivers_it_without_asking_the_model(
    refused: Refused, tmp_path: Path, how: str, code: int
) -> None:
    place = refused.place
    if how == "gone":
        refused.at_the_end = lambda: place.repository.rename(tmp_path / "elsewhere")
    else:
        refused.refuses()
    assert place.worst("a") == code, place.log("a")
    row, (bundle,) = refused.row, refused.bundles()
    assert (row.state.value, row.exit_code, str(bundle) in refused.reason) == ("undelivered", code, True)
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    assert {stat.S_IMODE(above.stat().st_mode) for above in list(bundle.parents)[:4]} == {0o700}
    if how == "gone":
        (tmp_path / "elsewhere").rename(place.repository)
    assert BRANCH not in place.refs()
    shutil.rmtree(place.state("a") / "fleet/repositories")
    refused.is_delivered()
    assert (refused.row.exit_code, refused.row.kept, refused.bundles()) == (0, None, [])
    assert place.git("show", f"{BRANCH}:kept.txt") == "kept\npaid"
    assert set(place.refs()) == {"refs/heads/main", BRANCH}, "no checkpoint is left"


def test_a_retry_delivers_first_and_continues_only_where_the_job_had_not_ended_with_0(
    refused: Refused,
) -> None:
    place, host = refused.place, refused.host
    place.submit(place.job("long", repository=host.url, max_turns=1))

    def model(asked: Asked) -> Playable:
        host.status = 403
        return bash(f"echo {asked.said} >> kept.txt")

    refused.models["long"] = model
    place.store.cancel(SET, ["paid"])
    assert place.worst("a") == 77, place.log("a")
    assert place.row("long").state.value == "undelivered"
    host.status = 200
    place.store.retry(SET, ["long"])
    refused.models["long"] = lambda _asked: DONE
    assert place.worst("a") == 143, place.log("a")
    assert (place.row("long").exit_code, place.asked("long", 0), place.asked("long", 1)) == (0, 1, 1)
    assert place.git("show", "ralph/long:kept.txt") == "kept\n0"


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_host_that_is_away_until_the_worker_is_told_to_stop_costs_nothing_again(
    refused: Refused, is_silent: bool
) -> None:
    place, host = refused.place, refused.host
    before: list[str] = []

    def refuse() -> None:
        host.status, host.is_silent = 503, is_silent
        before[:] = host.asked

    refused.at_the_end = refuse
    worker = place.work("a", "--drain", "0.1s")
    wait_until(lambda: refused.requests == 2)
    wait_until(lambda: any("receive-pack" in one for one in host.asked[len(before) :]))
    if not is_silent:
        wait_until(lambda: refused.state == "queued")
        assert "503" in refused.reason
    wait_until(lambda: ends_after_another_signal(worker))
    (bundle,) = refused.bundles()
    assert (refused.state, refused.row.exit_code, str(bundle) in refused.reason) == ("queued", None, True)
    assert refused.row.kept is not None
    host.status, host.is_silent = 200, False
    refused.hurry()
    place.finish("a")
    assert (refused.state, refused.requests, refused.bundles()) == ("done", 2, [])
    assert place.refs()[BRANCH] == refused.row.commit


def test_an_outage_of_the_host_is_tried_again_as_often_as_one_of_the_api(tmp_path: Path) -> None:
    with refusing(tmp_path, max_attempts=3) as refused:
        refused.refuses(502)
        worker = refused.place.work("a", "--until-done")
        for tries in (1, 2):
            wait_until(lambda: refused.row.kept is not None and refused.row.kept.tries == tries)  # noqa: B023
            wait_until(lambda: refused.state == "queued")
            assert refused.row.not_before > refused.row.created_at + 50
            refused.hurry()
        assert worker.wait(PATIENCE_S) == 75, refused.place.log("a")
        assert (refused.state, refused.row.tries) == ("undelivered", 1), "only the job's own attempts count"
        assert refused.reason.startswith("gave up after 3 attempts: ")
        refused.is_delivered()


def fleet(place: Place, machine: str, *words: str) -> str:
    """The output of a command of `ralph fleet`."""
    return subprocess.run(
        [sys.executable, "-m", "ralph", "fleet", *words],
        cwd=place.folder / machine,
        env=place.environment(machine),
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_only_the_machine_that_keeps_the_work_takes_up_its_job_until_a_user_discards_it(
    tmp_path: Path, postgres_url: str
) -> None:
    with refusing(tmp_path, postgres_url) as refused:
        place, host = refused.place, refused.host
        bundle = refused.keeps()
        listed = json.loads(fleet(place, "a", "ls", "--json"))
        (told,) = listed["jobs"]
        assert (told["state"], told["undelivered"]["path"]) == ("undelivered", str(bundle))
        assert listed["sets"][0]["states"]["undelivered"] == 1
        machine = told["undelivered"]["machine"]
        for_people = fleet(place, "a", "ls")
        assert re.search(rf"paid +undelivered .*{re.escape(str(bundle))}", for_people)
        assert f"not delivered: {SET}/paid: {bundle} on {machine}" in for_people.splitlines()
        assert f"kept        {bundle} on {machine}, not delivered\n" in fleet(place, "a", "show", "paid")
        host.status = 200
        fleet(place, "b", "retry", "--failed")
        assert (place.store.open_sets()[0].due_jobs, place.store.due_jobs(SET)) == (0, [])
        other = place.work("b")
        place.submit(place.job("beside"))
        wait_until(lambda: place.row("beside").state.value == "done")
        assert (refused.state, refused.row.generation) == ("queued", 2)
        worker = place.work("a")
        wait_until(lambda: refused.state == "done")
        stop(worker)
        assert refused.requests == 3
        refused.refuses(404)
        fleet(place, "b", "retry", "paid")
        wait_until(lambda: refused.state == "undelivered")
        host.status = 200
        refused.at_the_end = lambda: None
        fleet(place, "a", "retry", "--discard", "paid")
        wait_until(lambda: refused.state == "done")
        assert refused.requests == 3 + 2 + 2, "it began anew"
        wait_until(lambda: not refused.bundles("b"))
        stop(other)


def test_another_store_does_not_take_the_kept_work_of_a_job_of_the_same_name(tmp_path: Path) -> None:
    with refusing(tmp_path, f"sqlite:///{tmp_path}/one/fleet.db") as refused:
        place, first = refused.place, refused.keeps()
        place.store.close()
        shutil.rmtree(tmp_path / "one")
        del place.store  # it is made anew
        refused.host.status = 200
        place.submit(place.job("paid", "Another task.", repository=refused.host.url))
        assert place.worst("a") == 77, place.log("a")
        assert len(refused.bundles()) == 2
        assert f"{first.parent} belongs to no job of this store" in place.log("a")
        refused.is_delivered()
        assert refused.bundles() == [first]


def test_a_job_whose_checkout_a_command_has_removed_ends_and_says_so(refused: Refused) -> None:
    refused.command = 'rm -rf "$PWD"'
    assert refused.place.worst("a") == 74
    row = refused.row
    assert (row.state.value, row.exit_code, row.tries) == ("done", 74, 1), refused.place.log("a")
    assert row.reason == "its checkout is gone: a command of the job has removed or moved it"
    assert refused.requests == 2, "the job was paid again"


# --- Work beside the branch


@pytest.mark.parametrize("status", [200, 403])
def test_work_beside_the_branch_is_delivered_too_and_what_is_in_neither_is_named(
    refused: Refused, status: int
) -> None:
    place = refused.place
    refused.command = f'{ASIDE}; own=$\'own\\n[fleet] \\xff\'; git init -q "$own"; touch "$own/x"'
    refused.refuses(status)
    place.worst("a")
    if status != 200:
        assert refused.state == "undelivered", place.log("a")
        refused.host.status = 200
        assert place.store.retry(SET, ["paid"]) == 1
        place.worst("a")
    row = refused.row
    assert (row.state.value, row.exit_code, row.commit) == ("done", 0, None), place.log("a")
    (ref,) = (ref for ref in place.refs() if ref.endswith("-rest"))
    assert row.reason == (
        "not in the branch, and gone: 'own\\n[fleet] \\udcff/ (a repository of its own)'; "
        f"what it left on other branches, in tags or in a stash is at {ref}: {place.refs()[ref]}"
    )
    assert (place.git("show", f"{ref}^2:aside.txt"), refused.bundles()) == ("paid", [])
    logs = fleet(place, "a", "logs", "paid")
    assert logs.count("[fleet] not in the branch: own [fleet] ") == logs.count("not in the branch") > 0


@pytest.mark.parametrize("how", ["drained", "kept", "cancelled"])
def test_work_beside_the_branch_of_an_attempt_that_has_not_ended_the_job_is_delivered_and_named(
    refused: Refused, how: str
) -> None:
    place, host = refused.place, refused.host

    def model(asked: Asked) -> Playable:
        if asked.said == 0:
            return bash(f"{ASIDE}; echo paid >> kept.txt")
        host.is_silent = how == "kept" and asked.times == 1
        return NEVER if asked.times == 1 else DONE

    refused.models["paid"] = model
    worker = place.work("a", "--drain", "0.1s")
    wait_until(lambda: place.asked("paid", 1) == 1)
    if how == "cancelled":
        place.store.cancel(SET, ["paid"])
        wait_until(lambda: refused.state == "cancelled")
    else:
        worker.send_signal(signal.SIGTERM)
    if how == "kept":
        wait_until(refused.has_ended)
        wait_until(lambda: ends_after_another_signal(worker))
        host.is_silent = False
        refused.hurry()
        place.finish("a")
        assert place.asked("paid", 0) == 1, "the first turn was paid again"
    else:
        at_host, on_machine = f"at refs/ralph/{SET}/paid/1-rest: ", "its work is kept on "
        wait_until(lambda: at_host in refused.reason or on_machine in refused.reason)
        if on_machine in refused.reason:  # a busy machine has not pushed it within the three seconds
            assert how == "cancelled"
            (bundle,) = refused.bundles()
            place.git("fetch", "-q", str(bundle), "+refs/ralph/*:refs/ralph/*")
    (ref,) = (ref for ref in place.refs() if ref.endswith("-rest"))
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


def test_a_host_that_takes_branches_only_loses_neither_a_checkpoint_nor_work_beside_the_branch(
    refused: Refused,
) -> None:
    place = refused.place
    refused.hook(TAKES_BRANCHES_ONLY)
    refused.command = f"{ASIDE}; echo paid >> kept.txt"
    refused.models["paid"] = lambda asked: bash(refused.command) if asked.said == 0 else NEVER
    worker = place.work("a", "--drain", "0.1s")
    wait_until(lambda: place.asked("paid", 1) == 1)
    stop(worker)
    (bundle,) = refused.bundles()
    assert (refused.state, refused.row.exit_code) == ("undelivered", 78), refused.reason
    place.git("fetch", "-q", str(bundle), "+refs/ralph/*:refs/ralph/*")
    assert place.git("show", f"refs/ralph/{SET}/paid/1:kept.txt") == "kept\npaid"
    assert place.git("show", f"refs/ralph/{SET}/paid/1-rest^2:aside.txt") == "paid"


# --- Where the work is kept


@pytest.mark.parametrize("name", ["work.bundle", "checkout/file"])
def test_what_is_kept_counts_up_to_the_bound(tmp_path: Path, name: str) -> None:
    kept = Undelivered(tmp_path)
    large = kept.place_of("other", "large", 1, "executor") / name
    large.parent.mkdir(parents=True)
    for size in (MOST_BYTES - 1, MOST_BYTES):
        with large.open("wb") as file:
            file.truncate(size)
        assert Undelivered(tmp_path).is_full() is (size == MOST_BYTES)


def test_at_its_bound_a_machine_begins_no_job_drops_nothing_and_still_delivers(refused: Refused) -> None:
    place = refused.place
    refused.keeps()
    large = place.state("a") / "fleet/undelivered/other/large/1.executor/work.bundle"
    large.parent.mkdir(parents=True)
    large.touch()
    os.truncate(large, MOST_BYTES)
    place.submit(place.job("beside"))
    refused.host.status = 200
    place.store.retry(SET, ["paid"])
    worker = place.work("a", "--until-done")
    wait_until(lambda: "no job begins here until it is delivered or discarded" in place.log("a"))
    wait_until(lambda: refused.state == "done")
    beside = place.row("beside")
    assert (beside.state.value, beside.generation, refused.requests) == ("queued", 0, 2)
    assert large.exists()
    shutil.rmtree(large.parents[2])
    assert (worker.wait(PATIENCE_S), place.row("beside").state.value) == (0, "done")


@AS_ROOT
def test_on_a_full_disk_the_checkout_is_kept_as_it_is_even_without_its_mirror(tmp_path: Path) -> None:
    with refusing(tmp_path, f"sqlite:///{tmp_path}/store/fleet.db") as refused:
        place, host = refused.place, refused.host
        with small_disk(place.state("b")) as disk:
            fillers: list[Path] = []

            def refuse() -> None:
                host.status = 403
                fillers.append(fill(disk))

            refused.at_the_end = refuse
            worker = place.work("b", "--until-done")
            wait_until(lambda: "cannot be bundled" in place.log("b") and refused.state == "queued")
            stop(worker)
            kept = refused.row.kept
            assert kept is not None
            assert (kept.path in refused.reason, refused.bundles("b")) == (True, [])
            shutil.rmtree(fillers[0])
            shutil.rmtree(disk / "fleet/repositories")  # which a user may do, to make room
            host.status = 200
            refused.hurry()
            place.finish("b")
            assert (refused.state, refused.requests) == ("done", 2)
            assert place.git("show", f"{BRANCH}:kept.txt") == "kept\npaid"


def test_work_that_cannot_be_kept_elsewhere_stays_where_it_is(refused: Refused) -> None:
    place, folder = refused.place, refused.place.state("a") / "fleet"

    def refuse() -> None:
        refused.host.status = 403
        (folder / "undelivered/night/paid").rmdir()
        (folder / "undelivered/night/paid").touch()

    refused.at_the_end = refuse
    worker = place.work("a", "--drain", "0.1s")
    wait_until(lambda: "its files stay here" in refused.reason)
    stop(worker)
    (left,) = (folder / "work").glob("*/night/paid.*.left")
    assert str(left) in refused.reason
    refused.host.status = 200
    (folder / "undelivered/night/paid").unlink()
    refused.at_the_end = lambda: None
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
def test_no_worker_begins_where_work_could_not_be_kept_by_a_rename(refused: Refused) -> None:
    with small_disk(refused.place.state("a") / "fleet/undelivered"):
        assert refused.place.worst("a") == 78
        assert "must be on one file system" in refused.place.log("a")
        assert refused.requests == 0


def test_work_is_kept_although_its_empty_folder_was_removed(refused: Refused) -> None:
    """A cleaner removes it, or the process that delivers the kept work of an earlier claim of the job."""

    def refuse() -> None:
        refused.host.status = 403
        shutil.rmtree(refused.place.state("a") / "fleet/undelivered/night")

    refused.at_the_end = refuse
    assert refused.place.worst("a") == 77, refused.place.log("a")
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


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def test_what_is_damaged_among_the_kept_work_is_named_and_stays_and_hinders_no_other_job(
    refused: Refused,
) -> None:
    place = refused.place
    damages = {
        f"{how}-{name.partition('.')[0]}": (damage, name)
        for how, damage in (("cut", cut), ("piped", replaced_by_pipe), ("removed", os.unlink))
        for name in ("record.json", "work.bundle")
    }
    refused.models |= dict.fromkeys(damages, refused.paid)
    place.submit(*(place.job(job, repository=refused.host.url) for job in damages))
    hook = refused.hook("exit 1")
    assert place.worst("a", "-j", "4") == 78, place.log("a")
    bundles = {bundle.parents[1].name: bundle for bundle in refused.bundles()}
    assert bundles.keys() == {"paid", *damages}
    for job, (damage, name) in damages.items():
        damage(bundles[job].with_name(name))
    kept = bundles["paid"].parents[3]
    unknown = kept / "other/job/1.executor/record.json"
    unknown.parent.mkdir(parents=True)
    unknown.write_text('{"set_name": ')
    (kept / "other/job/²").mkdir()
    (bundles["paid"].parents[1] / "a person's notes").touch()
    hook.unlink()
    place.store.retry(SET, ["paid", *damages])
    assert place.worst("a") == 74, place.log("a")
    assert refused.state == "done"
    for job, (_, name) in damages.items():
        row = place.row(job)
        assert (row.state.value, row.exit_code) == ("undelivered", 74), job
        assert str(bundles[job].with_name(name)) in (row.reason or "")
        assert bundles[job].parent.exists()
    assert f"{unknown} cannot be used" in place.log("a")
    assert "Traceback" not in place.log("a")


# --- Workers that are stopped or killed


def test_a_job_that_is_handed_back_while_the_host_is_away_is_resumed_where_it_was(refused: Refused) -> None:
    place, host = refused.place, refused.host

    def model(asked: Asked) -> Playable:
        if asked.said == 0:
            host.status = 503
            return bash("echo paid >> kept.txt")
        return NEVER if asked.said == 1 and asked.times == 1 else DONE

    refused.models["paid"] = model
    worker = place.work("a", "--drain", "0.1s")
    wait_until(lambda: place.asked("paid", 1) == 1)
    stop(worker)
    assert ((refused.state, place.checkpoint("paid")), len(refused.bundles())) == (("queued", None), 1)
    host.status = 200
    refused.hurry()
    place.finish("a")
    assert (place.asked("paid", 0), place.asked("paid", 1)) == (1, 2), "the first turn was not paid again"
    assert place.git("show", f"{BRANCH}:kept.txt") == "kept\npaid"


def test_a_worker_that_ends_while_it_bundles_has_the_checkout_kept(refused: Refused, tmp_path: Path) -> None:
    place, environment = refused.place, {"PATH": os.environ["PATH"]}
    before_git(environment, tmp_path / "programs", 'case "$*" in *"bundle create"*) sleep 60;; esac')
    worker = refused.hangs("--drain", "0.1s", **environment)
    wait_until(lambda: ends_after_another_signal(worker))
    (kept,) = (place.state("a") / "fleet/undelivered").glob("night/paid/1.*")
    assert (kept / "checkout/kept.txt").read_text() == "kept\npaid\n"
    refused.host.is_silent = False
    place.finish("a")
    assert (refused.row.exit_code, refused.requests) == (0, 2)
    assert BRANCH in place.refs()


def test_a_worker_that_is_killed_while_it_keeps_work_loses_none(refused: Refused) -> None:
    place = refused.place
    refused.refuses()
    worker = place.work("a")
    wait_until(lambda: refused.requests)
    (slot,) = children_of(worker.pid)
    kept, until = place.state("a") / "fleet/undelivered/night/paid", time.monotonic() + PATIENCE_S
    while not list(kept.glob("1.*")) and time.monotonic() < until:
        time.sleep(0.0002)
    os.kill(slot, signal.SIGKILL)
    refused.host.status = 200
    refused.at_the_end = lambda: None
    wait_until(lambda: refused.row.state.is_final)
    if refused.state == "undelivered":  # it was faster than the kill
        place.store.retry(SET, ["paid"])
        wait_until(lambda: refused.state == "done")
    stop(worker)
    assert (place.refs()[BRANCH], (refused.requests, refused.bundles())) == (refused.row.commit, (2, []))


def test_a_job_that_is_cancelled_while_the_host_hangs_is_delivered_by_a_retry(refused: Refused) -> None:
    place, worker = refused.place, refused.hangs()
    place.store.cancel(SET, ["paid"])
    wait_until(lambda: refused.state == "cancelled", 10)
    refused.host.is_silent = False
    place.store.retry(SET, ["paid"])
    wait_until(lambda: refused.state == "done")
    stop(worker)
    assert (refused.row.exit_code, refused.requests) == (0, 2)
    assert BRANCH in place.refs()


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_cancelled_job_keeps_its_turns(refused: Refused, is_silent: bool) -> None:
    """The second turn changes files too soon after the checkpoint of the first one for another."""
    place, host = refused.place, refused.host

    def model(asked: Asked) -> Playable:
        if asked.said < 2:
            return bash(f"echo {asked.said} >> kept.txt")
        host.is_silent = is_silent and asked.times == 1
        return NEVER if asked.times == 1 else DONE

    refused.models["paid"] = model
    worker = place.work("a")
    wait_until(lambda: refused.requests == 3)
    place.store.cancel(SET, ["paid"])
    wait_until(lambda: refused.state == "cancelled")
    host.is_silent = False
    place.store.retry(SET, ["paid"])
    wait_until(lambda: refused.state == "done")
    stop(worker)
    assert refused.requests == 4, "a turn was paid again"
    assert place.git("show", f"{BRANCH}:kept.txt") == "kept\n0\n1"


def hanging_at_a_checkpoint(refused: Refused, *words: str) -> subprocess.Popen[bytes]:
    """Starts a worker whose host is silent before the first turn ends, so that its checkpoint hangs while the job ends."""

    def model(asked: Asked) -> Playable:
        if asked.said == 0:
            refused.host.is_silent = True
            return bash("echo paid >> kept.txt")
        wait_until(refused.is_pushing)
        return DONE

    refused.models["paid"] = model
    worker = refused.place.work("a", *words)
    wait_until(refused.has_ended)
    return worker


def test_what_was_spent_before_the_process_ended_in_a_hanging_checkpoint_is_told(refused: Refused) -> None:
    place, worker = refused.place, hanging_at_a_checkpoint(refused, "--drain", "0.1s")
    wait_until(lambda: ends_after_another_signal(worker))
    assert len(refused.bundles()) == 1
    refused.host.is_silent = False
    refused.hurry()
    place.finish("a")
    row = refused.row
    assert (row.state.value, row.turns, refused.requests) == ("done", 2, 2)
    refused.models["beside"] = refused.paid
    place.submit(place.job("beside"))
    place.finish("a")
    assert row.cost_usd == pytest.approx(place.row("beside").cost_usd)


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
        ("worker", "at the end"),
        ("worker", "at a checkpoint"),
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
        place = refused.place
        worker = hanging_at_a_checkpoint(refused) if when == "at a checkpoint" else refused.hangs()
        wait_until(refused.has_ended)
        if "clock" in when:
            (record,) = (place.state("a") / "fleet/work").glob("*/night/paid.1/state/loops/*/*/loop.json")
            os.utime(record, (time.time() - 3600,) * 2)
        slots = children_of(worker.pid)
        if killed != "slot":
            worker.kill()
            worker.wait(PATIENCE_S)
        kill_all(slots)
        refused.host.is_silent = False
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
        open_ones = "SELECT workflow_uuid FROM workflow_status WHERE status NOT IN ('SUCCESS', 'CANCELLED')"
        assert refused.sql(open_ones) == []


def test_a_claim_that_has_told_its_end_leaves_nothing_although_it_is_killed(refused: Refused) -> None:
    place = refused.place
    place.finish("a")
    [(executor,)] = refused.sql("SELECT executor FROM attempts")
    folder = place.state("a") / "fleet/work" / executor / "night/paid.1"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"exit_code": 0}')
    place.submit(place.job("beside"))
    place.finish("a")
    assert not folder.exists()
    assert not list((place.state("a") / "fleet/undelivered").glob("night/*/*"))
    assert "look at it" not in place.log("a")


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_what_a_lost_worker_had_done_is_kept_and_named_although_another_machine_has_done_the_job(
    tmp_path: Path, postgres_url: str, how: str
) -> None:
    with refusing(tmp_path, postgres_url) as refused:
        place, worker = refused.place, refused.hangs()
        wait_until(refused.has_ended)
        first = place.store.attempt_rows(SET, "paid")[0]
        if how == "killed":
            kill_all(place.processes())
            worker.wait(PATIENCE_S)
        else:  # as after a time without the network
            refused.sql("UPDATE ralph_fleet.attempts SET ended_at = 1, reason = 'its worker was lost'")
            queued = "state = 'queued', is_queued = false, attempt = 2, generation = 2, holder = NULL"
            refused.sql(f"UPDATE ralph_fleet.jobs SET {queued}, not_before = 9e9")
            wait_until(lambda: "another worker has taken over this job" in place.log("a"))
            stop(worker)
        refused.host.is_silent = False
        refused.at_the_end = lambda: None
        refused.hurry()
        place.finish("b")
        assert (refused.state, refused.requests) == ("done", 4)
        place.finish("a")
        kept = place.state("a") / f"fleet/undelivered/night/paid/1.{first.executor}"
        assert (kept / "checkout/kept.txt").read_text() == "kept\npaid\n"
        assert f"{kept} has work of a job that another worker took over: check it" in place.log("a")
        shown = fleet(place, "b", "show", "paid")
        assert f"its worker was lost; what it had made is kept on {first.machine}: {kept}" in shown
        assert (refused.row.kept, place.git("show", f"{BRANCH}:kept.txt")) == (None, "kept\npaid")


@pytest.mark.parametrize(("killed", "status"), [("slot", 403), ("worker", 503)])
def test_what_a_slot_has_kept_outlives_its_death_in_a_later_job(
    refused: Refused, killed: str, status: int
) -> None:
    place = refused.place
    refused.refuses(status)
    refused.models["beside"] = lambda asked: NEVER if asked.times == 1 else DONE
    place.submit(place.job("beside"))
    worker = place.work("a", "-j", "1")
    wait_until(lambda: place.asked("beside", 0) == 1)
    row, (bundle,) = refused.row, refused.bundles()
    assert row.kept is not None
    slots = children_of(worker.pid)
    if killed == "worker":
        worker.kill()
        worker.wait(PATIENCE_S)
    kill_all(slots)
    if killed == "worker":
        worker = place.work("a", "-j", "1")
    wait_until(lambda: place.row("beside").state.value == "done")
    assert "taken over from" in place.log("a")
    assert (bundle.exists(), refused.row.kept) == (True, row.kept)
    assert "look at it" not in place.log("a")
    refused.host.status = 200
    if status == 403:
        place.store.retry(SET, ["paid"])
    refused.hurry()
    wait_until(lambda: refused.state == "done")
    stop(worker)
    assert (place.asked("paid", 0), place.asked("paid", 1)) == (1, 1), "its turns were paid again"


@pytest.mark.parametrize("how", ["stopped", "frozen", "locked before it has ended"])
def test_work_is_kept_although_the_store_answers_nothing_when_the_worker_is_told_to_stop(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, how: str
) -> None:
    with refusing(tmp_path, postgres_url) as refused, Unanswering(postgres, postgres_url, how) as store:
        place = refused.place
        is_running = how == "locked before it has ended"

        def model(asked: Asked) -> Playable:
            if asked.said == 0:
                return bash("echo paid >> kept.txt")
            if asked.times == 1:
                store.begin()
            return NEVER if is_running and asked.times == 1 else DONE

        refused.models["paid"] = model
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: refused.requests == 2 if is_running else refused.has_ended())
        if is_running:
            worker.send_signal(signal.SIGTERM)
            wait_until(refused.has_ended)
        wait_until(lambda: ends_after_another_signal(worker))
        (kept,) = (place.state("a") / "fleet/undelivered").glob("night/paid/1.*")
        # A store that refuses to be asked leaves time for the bundle.
        assert (kept / ("work.bundle" if how == "stopped" else "checkout/kept.txt")).exists()
        store.close()
        place.finish("a")
        assert (refused.state, refused.row.turns) == ("done", refused.requests)
        assert refused.requests == 2 + is_running
        assert place.asked("paid", 0) == 1, "the first turn was paid again"
        assert BRANCH in place.refs()


# --- What a restored state tells


@pytest.fixture
def process_of(tmp_path: Path) -> Callable[[Job], JobProcess]:
    environment = {"PATH": os.environ["PATH"]}
    return lambda job: JobProcess(SET, job, tmp_path, environment, hidden=(), told=lambda _text: None)


def test_the_end_in_a_restored_record_of_a_loop_is_not_that_of_the_next_process(
    tmp_path: Path, process_of
) -> None:
    plan = LoopPlan(str(tmp_path), str(tmp_path))
    ended = LoopEnd(Outcome.LIMIT_REACHED, 3, "2 iterations are done")
    state = LoopState(plan, "2026-11-28T20:00:00+00:00", 1, ended=ended)
    record = FileRecord(tmp_path / "state/loops/work/1")
    record.folder.mkdir(parents=True)
    record.save(state)
    assert exit_code_left(tmp_path) is None
    (tmp_path / "checkout").mkdir()
    process = process_of(Job(id="looped", repository=str(tmp_path), prompt="Do it.", until="false"))
    process.start(None, tmp_path)
    assert process.end(process.wait(PATIENCE_S) or 0).exit_code == 2, "it found no loop to continue"
    assert exit_code_left(tmp_path) is None
    record.save(state)
    assert exit_code_left(tmp_path) == 3


def test_a_secret_that_only_the_run_knew_is_not_in_the_end_of_a_restored_session(
    tmp_path: Path, process_of
) -> None:
    session = session_id(SET, "done")
    told = JournalBuilder(session).run().prompt("go").ends()
    ended = told.kinds.index("ended")
    told.records[ended] = replace(told.records[ended], result="It is corp-key-of-yesterday.")
    journal = tmp_path / f"state/sessions/work/{session}.jsonl"
    journal.parent.mkdir(parents=True)
    journal.write_bytes(told.marking("corp-key-of-yesterday"))
    end = process_of(Job(id="done", repository=str(tmp_path), prompt="Do it.")).end_before()
    assert end is not None
    assert (end.result, end.turns, end.cost_usd) == ("It is [redacted].", 2, 0.003)
