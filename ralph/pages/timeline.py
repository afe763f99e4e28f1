"""Makes the timeline of a session's journal: stretches of time and marks. No I/O happens here.

The journal records moments. An attempt is recorded at its end with its duration, a call when it begins and when it
ends.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.pages.content import Mark, MarkKind, Stretch, StretchKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

IDLE_FROM_S = 5.0
"""A shorter gap between two records is ralph's own work and is not shown."""


class StepKind(enum.Enum):
    RUN = "run"
    ATTEMPT = "attempt"
    """A request has ended."""
    INTENT = "intent"
    """A call is about to run."""
    RESULT = "result"
    ENDED = "ended"
    OTHER = "other"


class JournalStep(Struct, frozen=True):
    """A record of a journal, as the timeline needs it."""

    what: StepKind
    at_s: float
    """The time at which the record was written, which is never before that of an earlier step."""
    label: str = ""
    entry: str | None = None
    """The id of the entry in the transcript, or None."""
    took_s: float = 0.0
    """The duration of an attempt, or of a run that has ended."""
    wait_s: float = 0.0
    """After an attempt: the time that ralph waits before the next attempt."""
    call_id: str = ""
    mark: MarkKind | None = None
    cost_usd: float | None = None
    """The cost of an attempt. None for other steps, and if it is unknown."""
    context_tokens: int | None = None
    """The size of the context after this step, or None if this step does not tell it."""


def stretches_of(steps: Iterable[JournalStep], until_s: float | None = None) -> list[Stretch]:
    """The stretches between the steps, in order and without overlap. Calls of one answer may run at the same time;
    each of their stretches then begins where the one before ends. `until_s` is the end of calls without a result, or
    None if such calls have no known end.
    """
    made = _Stretches()
    begun: dict[str, JournalStep] = {}
    last_s = 0.0
    for step in steps:
        last_s = step.at_s
        match step.what:
            case StepKind.RUN:
                begun.clear()
                made.reach(step.at_s)
            case StepKind.ATTEMPT:
                made.add(StretchKind.MODEL, step.at_s - step.took_s, step.at_s, step)
                made.waits_until_s = step.at_s + step.wait_s
            case StepKind.INTENT:
                begun[step.call_id] = step
            case StepKind.RESULT if step.call_id in begun:
                start = begun.pop(step.call_id)
                made.add(StretchKind.TOOL, start.at_s, step.at_s, start)
    for start in begun.values():
        made.add(StretchKind.TOOL, start.at_s, last_s if until_s is None else until_s, start)
    return made.done


class _Stretches:
    """Collects stretches in order of time, and fills the gaps between them."""

    def __init__(self) -> None:
        self.done: list[Stretch] = []
        self.waits_until_s = 0.0
        """The end of the wait that the last attempt announced."""
        self._end_s: float | None = None

    def add(self, kind: StretchKind, began_s: float, ended_s: float, step: JournalStep) -> None:
        if self._end_s is not None:
            began_s = max(began_s, self._end_s)
        if ended_s <= began_s:
            return
        self.reach(began_s)
        self.done.append(Stretch(kind, began_s, ended_s, step.label, step.entry))
        self._end_s = ended_s

    def reach(self, at_s: float) -> None:
        """Fills the gap up to `at_s`."""
        begin_s = at_s if self._end_s is None else self._end_s
        waited_s = min(self.waits_until_s, at_s)
        if waited_s > begin_s:
            self.done.append(Stretch(StretchKind.WAITING, begin_s, waited_s, "waiting before a retry"))
            begin_s = waited_s
        if at_s - begin_s >= IDLE_FROM_S:
            self.done.append(Stretch(StretchKind.IDLE, begin_s, at_s, "nothing is recorded"))
            begin_s = at_s
        self._end_s = max(begin_s, self._end_s or begin_s)


def marks_of(steps: Iterable[JournalStep]) -> list[Mark]:
    return [Mark(one.mark, one.at_s, one.label, one.entry) for one in steps if one.mark is not None]


def with_known(stretches: Sequence[Stretch], known: Iterable[Stretch]) -> list[Stretch]:
    """The stretches together with stretches that another record tells, such as a loop's waits. A known stretch takes
    the place of idle time and of gaps. Elsewhere the journal is believed.
    """
    made = sorted(stretches, key=lambda one: one.began_s)
    for one in known:
        free = [one]
        kept: list[Stretch] = []
        for stretch in made:
            if stretch.ended_s <= one.began_s or stretch.began_s >= one.ended_s:
                kept.append(stretch)
            elif stretch.kind is StretchKind.IDLE:
                kept += _without(stretch, one)
            else:
                kept.append(stretch)
                free = [piece for rest in free for piece in _without(rest, stretch)]
        made = sorted([*kept, *free], key=lambda piece: piece.began_s)
    return made


def _without(whole: Stretch, taken: Stretch) -> Iterator[Stretch]:
    """Yields the parts of `whole` that `taken` does not cover."""
    if whole.began_s < taken.began_s:
        yield replace(whole, ended_s=min(whole.ended_s, taken.began_s))
    if whole.ended_s > taken.ended_s:
        yield replace(whole, began_s=max(whole.began_s, taken.ended_s))
