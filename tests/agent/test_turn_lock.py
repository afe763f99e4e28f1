"""A lock that another program shares with ralph is held from the record that a call is about to run until the record
of its result, and free while the model is asked.
"""

from __future__ import annotations

from ralph.values.outcome import Outcome
from tests.fakes import FakeJournal, answer, call, roster_of
from tests.fakes.played import DONE, Played

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
