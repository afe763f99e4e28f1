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
SESSIONS_WITH_AN_OUTAGE = (335, 280)
"""Both vendors think in them, and there is a kill of each kind. The second vendors speak different dialects."""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_p1_a_session_killed_at_any_moment_ends_as_if_nothing_had_been_exits_0_or_2() -> None:
    play(SESSIONS)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind")
def test_p1_a_session_killed_while_another_vendors_model_answers_ends_as_if_nothing_had_been_exits_0_or_2() -> (
    None
):
    play(SESSIONS_WITH_AN_OUTAGE, has_outage=True, least=1)  # a slow machine has ended a life before its kill


def play(numbers: Iterable[int], *, has_outage: bool = False, least: int = KILLS) -> None:
    said: list[str] = []
    campaign = Campaign(said.append, jobs=1, most_kills=100 if has_outage else KILLS)
    plans = ((number, plan_session(SEED, number, has_outage=has_outage)) for number in numbers)
    assert campaign.run(plans), "\n".join(said)
    assert campaign.kills >= least
