"""The use of time in a session's runs: stretches of time and marks. No I/O happens here.

The journal records moments. An attempt is recorded at its end with its duration, a call when it begins and when it
ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.pages.content import Mark, Point, Stretch, StretchKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ralph.pages.content import MarkKind

IDLE_FROM_S = 5.0
"""A shorter gap between two records is ralph's own work and is not shown."""


class RunTimeline:
    """The time of one run, as its records tell it. The reader sets `now_s` to the time of each record, which never runs
    backwards.
    """

    def __init__(self, now_s: float) -> None:
        self.began_s = self.now_s = now_s
        self.marks: list[Mark] = []
        self.costs: list[Point] = []
        """The cost of each attempt in US dollars, if it is known."""
        self.contexts: list[Point] = []
        """The size of the context in tokens, as often as the journal tells it."""
        self._told = [Stretch(StretchKind.IDLE, now_s, now_s, "")]
        self._calls: dict[str, Stretch] = {}
        """The calls without a result, by their ids."""

    def attempt(
        self, label: str, *, took_s: float = 0.0, wait_s: float = 0.0, entry: str | None = None
    ) -> int:
        """Adds a request that took `took_s` seconds and has ended now, and the wait of `wait_s` seconds after it.
        Returns the index of its stretch, which `name` takes.
        """
        self._told.append(Stretch(StretchKind.MODEL, self.now_s - took_s, self.now_s, label, entry))
        self._told.append(
            Stretch(StretchKind.WAITING, self.now_s, self.now_s + wait_s, "waiting before a retry")
        )
        return len(self._told) - 2

    def name(self, place: int, entry: str | None) -> None:
        """Links an attempt's stretch to its entry in the transcript, which is known only later."""
        self._told[place] = replace(self._told[place], entry=entry)

    def call(self, identifier: str, label: str, entry: str | None) -> None:
        self._calls[identifier] = Stretch(StretchKind.TOOL, self.now_s, self.now_s, label, entry)

    def result(self, identifier: str) -> None:
        if identifier in self._calls:
            self._told.append(replace(self._calls.pop(identifier), ended_s=self.now_s))

    def mark(self, kind: MarkKind, label: str, entry: str | None) -> None:
        self.marks.append(Mark(kind, self.now_s, label, entry))

    def told(self, until_s: float | None) -> list[Stretch]:
        """The stretches in the order of their ends, which may overlap. `until_s` is the end of calls without a result, or None
        if such calls have no known end.
        """
        ended_s = self.now_s if until_s is None else until_s
        return [*self._told, *(replace(one, ended_s=ended_s) for one in self._calls.values())]


def stretches_of(runs: Sequence[RunTimeline], until_s: float | None = None) -> list[Stretch]:
    """The stretches of the runs, in order and without overlap. Calls of one answer may run at the same time; each of their
    stretches then begins where the one before ends. `until_s` is as in `RunTimeline.told`, for the last run.
    """
    made = _Stretches()
    for run in runs:
        for one in run.told(until_s if run is runs[-1] else None):
            match one.kind:
                case StretchKind.IDLE:
                    made.reach(one.began_s)
                case StretchKind.WAITING:
                    made.waits_until_s = one.ended_s
                case _:
                    made.add(one)
    return made.done


class _Stretches:
    """Collects stretches in order of time, and fills the gaps between them."""

    def __init__(self) -> None:
        self.done: list[Stretch] = []
        self.waits_until_s = 0.0
        """The end of the wait that the last attempt announced."""
        self._end_s: float | None = None

    def add(self, one: Stretch) -> None:
        began_s = one.began_s if self._end_s is None else max(one.began_s, self._end_s)
        if one.ended_s > began_s:
            self.reach(began_s)
            self.done.append(replace(one, began_s=began_s))
            self._end_s = one.ended_s

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
