"""Workers whose SQLite file is removed or replaced, or whose disk is full."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.fleet.refusing_host import BRANCH, ends_after_another_signal, fill, refusing, small_disk
from tests.fleet.scripted import DONE, NEVER, SET, Place, bash
from tests.patience import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.mock_api import Playable
    from tests.fleet.scripted import Asked
    from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.mark.parametrize(
    "replace",
    [
        *(lambda _file: None, lambda file: file.touch(), lambda file: file.write_bytes(b"x" * 5000)),
        *(os.mkfifo, os.mkdir),
    ],
)
def test_a_store_that_is_gone_is_one_line_and_exit_74(
    tmp_path: Path, replace: Callable[[Path], object]
) -> None:
    with Place(tmp_path, {"one": lambda _asked: NEVER}) as place:
        place.submit(place.job("one"))
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: place.asked("one", 0))
        place.store.close()
        file = place.state("a") / "fleet/fleet.db"
        for one in file.parent.glob("fleet.db*"):
            one.unlink()
        replace(file)
        assert worker.wait(PATIENCE_S) == 74
        told = place.log("a")
        assert "Traceback" not in told
        assert [line for line in told.splitlines() if line.startswith("ralph: ")] == [told.splitlines()[-1]]
        assert f"ralph: the store at {file} " in told
        wait_until(lambda: not place.processes())


@pytest.mark.parametrize("is_delivering", [False, True])
def test_a_store_that_refuses_costs_nothing_that_was_paid(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str, is_delivering: bool
) -> None:
    role = f"user_{uuid.uuid4().hex}"
    postgres.administer(f"CREATE ROLE {role} SUPERUSER LOGIN")
    database = urlsplit(postgres_url).path[1:]
    with refusing(tmp_path, postgres.url(database, user=role)) as refused:
        place, host = refused.place, refused.host

        def model(asked: Asked) -> Playable:
            if asked.said < 2:
                return bash(f"echo {asked.said} >> kept.txt")
            host.is_silent = is_delivering
            return DONE if is_delivering or asked.times > 1 else NEVER

        refused.models["paid"] = model
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: refused.requests == 3 and (not is_delivering or "receive-pack" in host.asked[-1]))
        postgres.administer(f"ALTER ROLE {role} NOLOGIN")
        wait_until(lambda: "stopping: running jobs have" in place.log("a"))
        if is_delivering:  # the host has two minutes, unless a user cannot wait
            wait_until(lambda: ends_after_another_signal(worker))
        assert worker.wait(PATIENCE_S) == 77, place.log("a")
        assert "Traceback" not in place.log("a")
        postgres.administer(f"ALTER ROLE {role} LOGIN")
        host.is_silent = False
        assert place.worst("a") == 0, place.log("a")
        assert (refused.row.state.value, refused.bundles()) == ("done", [])
        assert refused.requests == (3 if is_delivering else 4), "a turn was paid again"
        assert place.git("show", f"{BRANCH}:kept.txt") == "kept\n0\n1"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("is_last", [False, True])
def test_a_full_disk_keeps_no_worker_from_ending_and_what_its_job_did_is_kept(
    tmp_path: Path, is_last: bool
) -> None:
    def model(asked: Asked) -> Playable:
        if asked.times > 1:
            return DONE
        fill(disk)
        return DONE if is_last else NEVER

    with (
        small_disk(tmp_path / "disk") as disk,
        Place(tmp_path, {"one": model}, f"sqlite:///{disk}/fleet.db") as place,
    ):
        place.submit(place.job("one"))
        worker = place.work("a", "--drain", "0.1s")
        wait_until(lambda: "disk is full" in place.log("a"))
        worker.send_signal(signal.SIGTERM)
        assert (worker.wait(PATIENCE_S), place.row("one").state.value) == (0, "running")
        shutil.rmtree(disk / "filler")
        place.finish("a")
        assert (place.row("one").exit_code, len(place.api.requests)) == (0, 1 if is_last else 2)
        assert not (place.state("a") / "fleet/undelivered" / SET).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize(
    ("has_worked", "is_open", "most_files", "reason"),
    [
        pytest.param(False, False, 10_000, "unable to open database file", id="opening"),
        pytest.param(False, True, 10_000, "No space left on device: '.*/executors'", id="taking-the-lock"),
        pytest.param(False, True, 0, "database or disk is full", id="making-the-engine's-tables"),
        pytest.param(True, True, 0, "database or disk is full", id="registering-the-queue"),
    ],
)
def test_a_worker_that_begins_on_a_full_disk_waits_for_room_and_says_so(
    tmp_path: Path, has_worked: bool, is_open: bool, most_files: int, reason: str
) -> None:
    models = dict.fromkeys(("one", "two"), lambda _asked: DONE)
    with (
        small_disk(tmp_path / "disk") as disk,
        Place(tmp_path, models, f"sqlite:///{disk}/fleet.db") as place,
    ):
        place.submit(place.job("one"))
        if has_worked:
            place.finish("a")
        place.submit(place.job("two"))
        if not is_open:
            place.store.close()
        full = fill(disk, most_files)
        waits = re.compile(f"waiting for the store at {disk}/fleet.db: .*{reason}")
        for times in (1, 2):
            worker = place.work("a", "--until-done")
            wait_until(lambda: len(waits.findall(place.log("a"))) >= times)  # noqa: B023
            if times == 1:
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(PATIENCE_S) in {0, 128 + signal.SIGTERM}
        shutil.rmtree(full)
        assert worker.wait(PATIENCE_S) == 0, place.log("a")
        assert (place.row("one").exit_code, place.row("two").exit_code) == (0, 0)
        assert not re.search("a slot ended|Traceback|sqlalche", place.log("a")), place.log("a")
