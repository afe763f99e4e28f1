"""One kill of a whole worker (`python -m tests.nemesis.fleet` has many, and stops, outages and cancels)."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.nemesis.fleet_facts import delivered
from tests.nemesis.fleet_jobs import Answers, jobs_for
from tests.nemesis.fleet_room import FleetRoom

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = 2


@pytest.fixture
def room(postgres_url: str) -> Iterator[FleetRoom]:
    with FleetRoom(postgres_url, Answers(pause_s=0.3), threading.Event()) as room:
        yield room
    room.remove()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_jobs_of_a_killed_worker_are_resumed_by_another_and_each_is_delivered_once(room: FleetRoom) -> None:
    room.submit("killed", jobs_for(room.repository, "killed", JOBS))
    [worker] = room.add_workers(1, 1, "--until-done")
    # The store is asked only when there can be a checkpoint: each question is a connection of its own.
    room.wait(
        lambda: len(room.api.requests) > 1 and room.rows("SELECT job FROM ralph_fleet.checkpoints"),
        "no job has a checkpoint",
    )
    worker.signal(signal.SIGKILL, [worker.pid, *worker.slot_pids])
    room.wait(lambda: worker.has_ended() and not room.processes(), "the killed worker's runs have not ended")
    worker.start("--until-done")
    assert room.wait_for_workers() == []
    assert [*delivered(room, "killed", JOBS)] == []
    takeups = sum(generation for (generation,) in room.rows("SELECT generation FROM ralph_fleet.jobs"))
    assert takeups == JOBS + 1
