"""Kills sessions hundreds of times with SIGKILL at random moments, resumes each to its end, and checks it: `python
-m tests.nemesis`.

pytest does not run this program, because it takes minutes. It needs Linux, because it looks for remaining processes
in /proc.
"""

from __future__ import annotations

import argparse
import secrets
from itertools import count

from tests.nemesis.campaign import Campaign
from tests.nemesis.plan import plan_session


def main() -> int:
    options = _options()
    stage = f"--seed {options.seed} --kills {options.kills}{' --vendors' if options.vendors else ''}"
    _say(f"python -m tests.nemesis {stage}")
    numbers = [options.only] if options.only else count(options.first)
    campaign = Campaign(_say, options.jobs, most_kills=options.kills)
    plans = ((number, plan_session(options.seed, number, has_outage=options.vendors)) for number in numbers)
    all_held = campaign.run(plans)
    _say(campaign.summary())
    if campaign.continue_from is not None:
        _say(f"stopped; continue with: python -m tests.nemesis {stage} --from {campaign.continue_from}")
        return 130
    return 0 if all_held else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.nemesis", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how many kills at least (500)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what is drawn (random)")
    parser.add_argument(
        "--from", type=int, default=1, dest="first", metavar="N", help="continue from this session"
    )
    parser.add_argument("--only", type=int, metavar="N", help="play this session alone")
    parser.add_argument("--jobs", type=int, default=2, help="sessions at a time (2)")
    parser.add_argument(
        "--vendors", action="store_true", help="an outage that another vendor's model bridges"
    )
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
