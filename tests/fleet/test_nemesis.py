"""One kill of a whole worker (`python -m tests.nemesis.fleet` has many, and stops, outages and cancels)."""

from __future__ import annotations

import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.nemesis.fleet_cluster import FleetCluster
from tests.nemesis.fleet_facts import delivered
from tests.nemesis.fleet_jobs import Answers, jobs_for

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = 2


@pytest.fixture
def cluster(postgres_url: str) -> Iterator[FleetCluster]:
    with FleetCluster(postgres_url, Answers(pause_s=0.3), threading.Event()) as cluster:
        yield cluster
    cluster.remove()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_jobs_of_a_killed_worker_are_resumed_by_another_and_each_is_delivered_once(
    cluster: FleetCluster,
) -> None:
    cluster.submit("killed", jobs_for(cluster.repository, "killed", JOBS))
    [worker] = cluster.add_workers(1, 1, "--until-done")
    # The store is asked only when there can be a checkpoint: each question is a connection of its own.
    cluster.wait(
        lambda: len(cluster.api.requests) > 1 and cluster.rows("SELECT job FROM ralph_fleet.checkpoints"),
        "no job has a checkpoint",
    )
    worker.signal(signal.SIGKILL, [worker.pid, *worker.slot_pids])
    cluster.wait(
        lambda: worker.has_ended() and not cluster.processes(), "the killed worker's runs have not ended"
    )
    worker.start("--until-done")
    assert (cluster.wait_for_workers(), [*delivered(cluster, "killed", JOBS)]) == ([], [])
    claims = sum(generation for (generation,) in cluster.rows("SELECT generation FROM ralph_fleet.jobs"))
    assert claims == JOBS + 1
