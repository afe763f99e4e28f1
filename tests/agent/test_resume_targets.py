"""A session that several targets have answered must be resumed with the last target, as long as the others cool
down.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ralph.conversation.records import run_record, session_record
from ralph.conversation.session import replay
from ralph.conversation.target import Target
from ralph.retry.backoff import off
from ralph.retry.targets import Roster
from ralph.run.opening import take_over_cooldowns
from ralph.values.errors import HttpError
from ralph.values.events import ModelFallbackRecovered, ModelFallbackSucceeded
from ralph.values.outcome import Outcome
from tests.fakes import (
    ECHO,
    EPOCH,
    TOUCH,
    FakeClock,
    FakeJournal,
    FakeWaiter,
    RecordingEvents,
    ScriptedClient,
    answer,
    call,
)
from tests.fakes.played import DONE, agent_loop
from tests.journals.reading import forked_record
from tests.rows import every_row

if TYPE_CHECKING:
    from ralph.conversation.session import Session
    from ralph.values.answer import Answer

A = Target("a", "claude-sonnet-5-5", "http://127.0.0.1:1")
B = Target("b", "claude-opus-5-5", "http://127.0.0.1:2")
DOWN_FOR_100_S = HttpError(529, 100, "")
THOUGHT: dict[str, Any] = {"type": "thinking", "thinking": "hm", "signature": "s"}


class LaterClock(FakeClock):
    """The clock of a later process. It begins at 0, while the wall clock has gone on for `after_s` seconds."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self._after_s = after_s

    def utc_now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._after_s + self.seconds)


class Life:
    """One process of a session, set up like a `PreparedRun`."""

    def __init__(
        self,
        *script: Answer | BaseException,
        journal: FakeJournal | None = None,
        after_s: float = 0,
        prompt: str | None = None,
        system: str = "system",
    ) -> None:
        self.journal = journal or FakeJournal()
        self.client = ScriptedClient(script)
        self.events = RecordingEvents()
        clock = LaterClock(after_s)
        old: Session | None = replay(journal.records) if journal else None
        self.roster = Roster(
            (A, B),
            system=system,
            tools=(ECHO, TOUCH),
            recorded=old.shapes if old else {},
        )
        if old is None:
            self.journal.append(session_record("s1", "/work", "now", "0"))
        else:
            take_over_cooldowns(self.roster, old, clock)
        run = agent_loop(
            *(self.roster, self.client, self.journal),
            policy=off(),
            waiter=FakeWaiter(clock),
            events=self.events,
            session=old,
        )
        self.ended = run.run(prompt, run_record(self.roster.first_shape, "now", 1, target="a"))

    @property
    def names(self) -> str:
        return "".join(name for name, _ in self.client.asked)


def killed_after(life: Life, kind: str, number: int = 1) -> FakeJournal:
    """The journal up to and including the given record."""
    places = [place for place, found in enumerate(life.journal.kinds) if found == kind]
    return FakeJournal.of(life.journal.records[: places[number - 1] + 1])


def switched(*script: Answer | BaseException) -> Life:
    """A run that asks target a, which must then be left alone for 100 s, and continues with target b."""
    life = Life(answer(THOUGHT, call("c1")), DOWN_FOR_100_S, *script, prompt="the task")
    assert life.names.startswith("aab")
    return life


def forked(records: list[Any]) -> list[Any]:
    opening = session_record("s2", "/work", "later", "0")
    return [forked_record(opening, records), *records[1:]]


def test_another_target_is_recorded_before_its_first_answer_and_once() -> None:
    life = switched(answer(call("c2")), DONE)
    kinds = [kind for kind in life.journal.kinds if kind in {"run", "target", "assistant"}]
    assert kinds == ["run", "assistant", "target", "assistant", "assistant"]
    [record] = [record for record in life.journal.records if record.kind == "target"]
    assert (record.target, record.model, record.endpoint) == (
        *("b", "claude-opus-5-5"),
        "http://127.0.0.1:2",
    )
    assert record.cooling == {"a": (EPOCH + timedelta(seconds=100)).isoformat()}


@every_row(("after_s", "asked"), [(0, "b"), (99, "b"), (100, "a"), (10**9, "a")])
@every_row("kind", ["target", "assistant", "tool_intent", "tool_result"])
def test_after_a_kill_it_continues_with_that_target_while_the_cooldown_lasts(after_s, asked, kind) -> None:
    whole = switched(answer(call("c2")), DONE)
    journal = killed_after(whole, kind, 1 if kind == "target" else 2)
    again = Life(DONE, journal=journal, after_s=after_s)
    assert again.names == asked
    assert again.ended.outcome is Outcome.COMPLETED
    told = [type(event) for event in again.events.events]
    assert (ModelFallbackRecovered in told) == (asked == "a")
    assert (ModelFallbackSucceeded in told) == (asked != "a"), "a run says itself who answers it"


def test_a_fork_takes_the_target_and_its_cooldowns_along() -> None:
    whole = switched(DONE)
    fork = FakeJournal()
    fork.append(*forked(whole.journal.records))
    assert fork.kinds == whole.journal.kinds
    again = Life(DONE, journal=fork, after_s=50, prompt="and now?")
    assert again.names == "b"
    session = replay(fork.records)
    assert session.id == "s2"
    assert session.shapes.keys() == {"a", "b"}
