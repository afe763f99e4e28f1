"""Plays thousands of randomly broken turns with the real program, and checks each against its plan: `python -m
tests.soak`.

pytest does not run this program, because it takes minutes. It needs Linux, because it looks for remaining processes
in /proc.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import TYPE_CHECKING

from tests.soak.campaign import Campaign
from tests.soak.cuts import cut_plans
from tests.soak.plan import plan_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.soak.plan import RunPlan


def main() -> int:
    options = _options()
    stage = "--cuts" if options.cuts else f"--seed {options.seed} --turns {options.turns}"
    _say(f"python -m tests.soak {stage}")
    campaign = Campaign(_say, options.jobs)
    all_held = campaign.run(_wanted(options))
    _say(campaign.summary())
    if campaign.continue_from is not None:
        _say(f"stopped; continue with: python -m tests.soak {stage} --from {campaign.continue_from}")
        return 130
    return 0 if all_held else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--turns", type=int, default=3000, help="how many turns at least (3000)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what is drawn (random)")
    parser.add_argument(
        "--from", type=int, default=1, dest="first", metavar="N", help="continue from this run"
    )
    parser.add_argument("--only", type=int, metavar="N", help="play this run alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--cuts", action="store_true", help="cut one stream after every byte instead")
    return parser.parse_args()


def _wanted(options: argparse.Namespace) -> Iterator[tuple[int, RunPlan]]:
    if options.only and not options.cuts:
        return iter([(options.only, plan_run(options.seed, options.only))])
    plans = cut_plans() if options.cuts else _drawn(options)
    first, last = (options.only, options.only) if options.only else (options.first, sys.maxsize)
    return ((number, plan) for number, plan in plans if first <= number <= last)


def _drawn(options: argparse.Namespace) -> Iterator[tuple[int, RunPlan]]:
    turns = 0
    number = 0
    while turns < options.turns:
        number += 1
        plan = plan_run(options.seed, number)
        turns += len(plan.turns)
        yield number, plan


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
