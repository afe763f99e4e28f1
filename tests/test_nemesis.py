"""A short campaign of kills (`python -m tests.nemesis`), always drawn from the same seed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.nemesis.campaign import Campaign
from tests.nemesis.plan import plan_session

if TYPE_CHECKING:
    from collections.abc import Iterable

SEED = 6
KILLS = 3
SESSIONS = (52, *range(1, 30))
"""The first one has a kill of each kind."""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_p1_a_session_killed_at_any_moment_ends_as_if_nothing_had_been_exits_0_or_2() -> None:
    play(SESSIONS)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_p1_a_session_killed_while_another_vendors_model_answers_ends_as_if_nothing_had_been_exits_0_or_2() -> (
    None
):
    play(range(1, 30), has_outage=True)


def play(numbers: Iterable[int], *, has_outage: bool = False) -> None:
    said: list[str] = []
    campaign = Campaign(said.append, jobs=1, most_kills=KILLS)
    plans = ((number, plan_session(SEED, number, has_outage=has_outage)) for number in numbers)
    assert campaign.run(plans), "\n".join(said)
    assert campaign.kills >= KILLS
