"""Plays what happens to a fleet on many machines, with real workers, a real Postgres and a scripted model: `python -m
tests.nemesis.fleet`.

pytest does not run this program, because it takes a quarter of an hour. It needs Linux, because it looks into /proc, and
the programs of Postgres (`tests/services/postgres.py`).
"""

from __future__ import annotations

import argparse
import secrets
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tests.campaigns.engine import Engine
from tests.nemesis.fleet_cluster import FleetCluster, StuckError
from tests.nemesis.fleet_scenarios import SCENARIOS, Scenario, Size, Stage
from tests.services.postgres import PostgresServer

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

"""After this many sentences about one scenario, the rest says the same."""


@dataclass(frozen=True)
class FleetPlan:
    name: str
    scenario: Scenario
    draw: Random


@dataclass
class FleetCampaign(Engine[FleetPlan, FleetCluster]):
    size: Size = field(default_factory=Size)
    postgres: PostgresServer | None = None
    cluster: FleetCluster | None = None
    """The cluster of the scenario that is played."""
    scenarios: int = 0

    def play(self, plan: FleetPlan, stopping: threading.Event) -> tuple[FleetCluster, list[str]]:
        assert self.postgres is not None
        found: list[str] = []
        with (
            self.postgres.database() as url,
            FleetCluster(url, plan.scenario.answers, stopping) as self.cluster,
        ):
            try:
                found += plan.scenario.play(Stage(self.cluster, self.postgres, self.size, plan.draw))
            except StuckError as error:
                found.append(str(error))
        return self.cluster, found

    def count(self, plan: FleetPlan, seen: FleetCluster, found: list[str]) -> None:
        self.scenarios += 1
        self.say(f"{plan.name}: {seen.status or 'nothing was seen'}")
        if not found:
            seen.remove()

    def report(self, plan: FleetPlan, seen: FleetCluster) -> Iterator[str]:
        yield f"  the repository and the workers' directories are kept in {seen.folder}"

    @property
    def progress(self) -> str:
        return self.cluster.status if self.cluster else ""


def main() -> int:
    options = _options()
    names = options.only.split(",") if options.only else [scenario.name for scenario in SCENARIOS]
    _say(f"python -m tests.nemesis.fleet --seed {options.seed}")
    size = Size(options.jobs, options.every, options.stopped)
    with PostgresServer() as postgres:
        campaign = FleetCampaign(_say, jobs=1, size=size, postgres=postgres)
        plans = [
            FleetPlan(scenario.name, scenario, Random(f"{options.seed}:{scenario.name}"))
            for scenario in SCENARIOS
            if scenario.name in names
        ]
        all_held = campaign.run(enumerate(plans, 1))
        _say(f"{campaign.scenarios} scenarios, {campaign.took()}")
    if campaign.continue_from is not None:
        return 130
    return 0 if all_held else 1


def _options() -> argparse.Namespace:
    size = Size()
    parser = argparse.ArgumentParser("python -m tests.nemesis.fleet", description=__doc__)
    parser.add_argument("--jobs", type=int, default=size.jobs, help=f"jobs under kills ({size.jobs})")
    parser.add_argument(
        "--every",
        type=float,
        default=size.every_s,
        metavar="S",
        help=f"seconds between kills ({size.every_s})",
    )
    parser.add_argument(
        "--stopped",
        type=float,
        default=size.stopped_s,
        metavar="S",
        help=f"seconds of a stop ({size.stopped_s})",
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what is drawn (random)")
    parser.add_argument("--only", metavar="NAMES", help="play these scenarios alone, separated by commas")
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
