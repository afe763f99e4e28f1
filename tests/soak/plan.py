"""Draws what happens in one run, turn by turn, from a seed and the number of the run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from ralph.mock_api import Scenario
from tests.soak.accepted_answers import SHAPES
from tests.soak.answers import final_answer, working_answer
from tests.soak.attempt import Fate
from tests.soak.permanent_faults import DAMAGED, FINAL, LIMIT_REACHED
from tests.soak.stalls import STALLS
from tests.soak.transient_faults import QUICK, at_accept

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.soak.answers import ModelAnswer
    from tests.soak.attempt import Attempt

    Maker = Callable[[Random, ModelAnswer], Attempt]

MAX_RETRIES = 4
MOST_DAMAGED = 3
"""The damaged answer of a turn that ends the run."""
_BEFORE = 10
"""The first number of the attempts up to a damaged answer. Further attempts of the same turn follow it."""
DISCARDED = "discarded-"
"""A part of every text and effect of an answer that must not count."""

# How often a turn has 0, 1, ... faults before its whole answer.
_FAULTS_PER_TURN = (42, 28, 15, 9, 6)
# How likely a turn has one damaged answer besides.
_DAMAGED_SHARE = 0.08
_LAST_SHORT_TURN = 8
"""The context has about 4,500 tokens then, of which a compaction would keep 3,900: more than three quarters."""


@dataclass(frozen=True)
class PlannedTurn:
    attempts: tuple[Attempt, ...]
    """The attempts of the turn. All but the last one are transient failures, and one may be damaged. The last one
    is accepted or ends the run.
    """
    answer: ModelAnswer | None
    """The accepted answer, or None if the run ends here without one."""


@dataclass(frozen=True)
class RunPlan:
    name: str
    repeat_by: str
    """The arguments of `python -m tests.soak` that play this run again."""
    turns: tuple[PlannedTurn, ...]
    base_delay_s: float = 0.0
    has_stalls: bool = False
    """Whether there are stalls. The clocks are then short, so that a stall takes little time."""

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for turn in self.turns for attempt in turn.attempts]

    def scenario(self) -> Scenario:
        return Scenario([attempt.step for attempt in self.attempts])

    def describe(self) -> str:
        """The plan as text, with one line per turn."""
        lines = []
        for number, turn in enumerate(self.turns):
            attempts = (f"{attempt.fault} {attempt.detail}".strip() for attempt in turn.attempts)
            lines.append(f"  turn {number}: {', '.join(attempts)}")
        return "\n".join(lines)


def plan_run(seed: int, number: int) -> RunPlan:
    draw = Random(f"{seed}:{number}")
    chains = _Chains(draw, f"r{number}", has_stalls=draw.random() < 0.3)
    length = draw.randint(20, 40)
    turns = [chains.turn(index) for index in range(length - 1)]
    turns.append(
        chains.failing_turn(length - 1) if draw.random() < 0.5 else chains.turn(length - 1, is_last=True)
    )
    return RunPlan(
        f"run {number} of seed {seed}",
        f"--seed {seed} --only {number}",
        tuple(turns),
        base_delay_s=draw.choice((0.0, 0.0, 0.001)),
        has_stalls=chains.has_stalls,
    )


class _Chains:
    """Draws the attempts of one turn after the other. Remembers whether the connection is still open."""

    def __init__(self, draw: Random, run_label: str, *, has_stalls: bool) -> None:
        self.has_stalls = has_stalls
        self._draw = draw
        self._run_label = run_label
        self._needs_connection = True

    def turn(self, index: int, *, is_last: bool = False) -> PlannedTurn:
        count = self._draw.choices(range(len(_FAULTS_PER_TURN)), weights=_FAULTS_PER_TURN)[0]
        label = f"{self._run_label}-t{index}"
        answer = final_answer(self._draw, label) if is_last else working_answer(self._draw, label)
        is_damaged = self._draw.random() < _DAMAGED_SHARE
        before = self._faults_to_damage(index, MAX_RETRIES - count) if is_damaged else []
        faults = [*before, *(self._fault(index, attempt) for attempt in range(count))]
        return PlannedTurn((*faults, self._attempt(SHAPES, answer)), answer)

    def failing_turn(self, index: int) -> PlannedTurn:
        """The last turn of a run that fails: either one transient failure more than there are retries, or a
        permanent failure after some retries.
        """
        if self._draw.random() < 0.5:
            count = MAX_RETRIES + 1
            return PlannedTurn(tuple(self._fault(index, attempt) for attempt in range(count)), None)
        if self._draw.random() < 0.4:
            # The last answer is not a stream, so it is damaged in another way.
            twice = (
                *self._faults_to_damage(index, 2),
                *self._faults_to_damage(index, MAX_RETRIES - 2, first=2 * _BEFORE),
            )
            return PlannedTurn((*twice, self._attempt(DAMAGED[:1], self._never_whole(index, 0))), None)
        faults = [self._fault(index, attempt) for attempt in range(self._draw.randint(0, MAX_RETRIES))]
        last = self._attempt(FINAL, self._never_whole(index, len(faults)))
        # A long context is made smaller after a refusal of its size, and then the run continues.
        while index > _LAST_SHORT_TURN and last.exit_code == LIMIT_REACHED:
            last = self._attempt(FINAL, self._never_whole(index, len(faults)))
        return PlannedTurn((*faults, last), None)

    def _faults_to_damage(self, index: int, most: int, first: int = _BEFORE) -> list[Attempt]:
        """At most this many transient failures, then one damaged answer."""
        count = self._draw.randint(0, most)
        faults = [self._fault(index, first + attempt) for attempt in range(count)]
        return [*faults, self._attempt(DAMAGED, self._never_whole(index, first + count))]

    def _fault(self, index: int, attempt: int) -> Attempt:
        slow = self.has_stalls and self._draw.random() < 0.08
        return self._attempt(STALLS if slow else QUICK, self._never_whole(index, attempt))

    def _never_whole(self, index: int, attempt: int) -> ModelAnswer:
        return working_answer(self._draw, f"{DISCARDED}{self._run_label}-t{index}-a{attempt}")

    def _attempt(self, makers: Sequence[tuple[int, Maker]], answer: ModelAnswer) -> Attempt:
        possible = [row for row in makers if self._needs_connection or row[1] is not at_accept]
        make = self._draw.choices(
            [maker for _, maker in possible], weights=[weight for weight, _ in possible]
        )[0]
        made = make(self._draw, answer)
        self._needs_connection = made.ends_connection
        return made


def committed(plan: RunPlan) -> list[PlannedTurn]:
    return [turn for turn in plan.turns if turn.attempts[-1].fate is Fate.ACCEPTED]
