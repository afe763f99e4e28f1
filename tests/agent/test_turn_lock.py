"""A lock that another program shares with ralph is held from the record that a call is about to run until the record
of its result, and free while the model is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.retry.backoff import off
from ralph.values.outcome import Outcome
from ralph.values.ports import GuardRefused, SignalReceived
from tests.fakes import FakeJournal, FakeToolbox, answer, call, roster_of
from tests.fakes.played import DONE, Played

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.values.tool_calls import ToolCall

TWO_CALLS = answer(call("e"), call("t", "Touch"))


class RecordedLock:
    """Remembers for each record of the journal whether the lock was held when the record was written."""

    def __init__(self, refusal: BaseException | None = None) -> None:
        self.journal = FakeJournal.of_run(roster_of().first_shape)
        self.is_held = False
        self._refusal = refusal
        self._held: list[bool] = []

    def take(self) -> None:
        self._look()
        if self._refusal is not None:
            raise self._refusal
        self.is_held = True

    def release(self) -> None:
        self._look()
        self.is_held = False

    def _look(self) -> None:
        self._held += [self.is_held] * (len(self.journal.records) - len(self._held))

    @property
    def held(self) -> list[tuple[str, bool]]:
        """The kind of each record of the task, and whether the lock was held when it was written."""
        self._look()
        return list(zip(self.journal.kinds, self._held, strict=True))[2:]


def test_the_lock_is_held_from_the_intent_of_a_call_to_its_result_and_not_for_requests() -> None:
    lock = RecordedLock()
    during: list[bool] = []
    played = Played(
        *(TWO_CALLS, DONE), turn_lock=lock, journal=lock.journal, on_run=lambda _: during.append(lock.is_held)
    )
    assert played.ended.outcome is Outcome.COMPLETED
    assert during == [True, True]
    assert lock.held == [
        ("user", False),
        ("assistant", False),
        *[("tool_intent", True), ("tool_result", True)] * 2,
        ("assistant", False),
        ("ended", False),
    ]
    assert not lock.is_held


def test_a_stopped_call_keeps_the_lock_until_its_result_is_recorded() -> None:
    lock = RecordedLock()

    def stop(_calls: Sequence[ToolCall]) -> None:
        raise SignalReceived(15)

    played = Played(TWO_CALLS, turn_lock=lock, journal=lock.journal, policy=off(), toolbox=FakeToolbox(stop))
    assert played.ended.outcome is Outcome.INTERRUPTED
    of_calls = [(kind, is_held) for kind, is_held in lock.held if kind.startswith("tool_")]
    assert of_calls == [("tool_intent", True), ("tool_result", True), ("tool_result", True)]
    assert not lock.is_held


def test_no_call_runs_without_the_lock() -> None:
    lock = RecordedLock(GuardRefused("cannot lock it"))
    played = Played(TWO_CALLS, turn_lock=lock, journal=lock.journal)
    assert (played.ended.outcome, played.ran) == (Outcome.CONFIG, [])
    assert played.ended.errors == ("cannot lock it",)
