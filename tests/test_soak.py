"""A short part of the soak (`python -m tests.soak`), always the same: twenty randomly broken turns."""

from __future__ import annotations

import sys

import pytest

from tests.soak.campaign import Campaign
from tests.soak.plan import plan_run

SEED = 6
RUNS = (26,)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_randomly_broken_turns_keep_every_invariant() -> None:
    said: list[str] = []
    campaign = Campaign(said.append)
    assert campaign.run((number, plan_run(SEED, number)) for number in RUNS), "\n".join(said)
    assert campaign.turns >= 20
