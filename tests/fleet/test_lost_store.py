"""Workers whose SQLite file is removed or replaced, or whose disk is full."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fleet.scripted import DONE, NEVER, SET, Place
from tests.fleet.test_undelivered import fill, small_disk
from tests.patience import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.mock_api import Playable
    from tests.fleet.scripted import Asked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.mark.parametrize(
    "replace", [lambda _file: None, lambda file: file.touch(), lambda file: file.write_bytes(b"x" * 5000)]
)
def test_a_store_that_is_gone_is_one_line_and_exit_74(
    tmp_path: Path, replace: Callable[[Path], object]
) -> None:
    with Place(tmp_path, {"one": lambda _asked: NEVER}) as place:
        place.submit(place.job("one"))
        worker = place.work("a")
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
        assert worker.wait(PATIENCE_S) == 0
        assert place.row("one").state.value == "running"
        (disk / "filler").unlink()
        place.finish("a")
        assert (place.row("one").exit_code, len(place.api.requests)) == (0, 1 if is_last else 2)
        assert SET not in os.listdir(place.state("a") / "fleet/undelivered")  # noqa: PTH208 - names
