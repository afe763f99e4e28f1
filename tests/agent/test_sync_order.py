"""Nothing is told or run before its record is on the disk, one sync serves an answer and its command, and a lock that
another program shares with ralph is held while calls run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ralph.values.answer import ToolDefinition
from ralph.values.events import AnswerAccepted, RequestSent, ToolFinished, ToolStarted
from ralph.values.limits import LimitSettings
from ralph.values.ports import JournalError
from tests.fakes import (
    ECHO,
    TOUCH,
    FakeJournal,
    FakeToolbox,
    FakeWaiter,
    RecordingEvents,
    ScriptedClient,
    answer,
    call,
    text,
)
from tests.fakes.played import DONE, PLAIN_FORM, Played, roster_for

BASH = ToolDefinition("Bash", "Runs a command.", {"type": "object", "properties": {}})
TOLD: dict[type, str] = {
    RequestSent: "sent",
    AnswerAccepted: "accepted",
    ToolStarted: "started",
    ToolFinished: "finished",
}
ONE, TWO = answer(call("b", "Bash")), answer(call("b", "Bash"), call("c", "Bash"))


class InOrder(Played):
    """A run whose calls take a second each. `order` has its requests, records, syncs, events, calls and waits, from the
    first request on.
    """

    def __init__(
        self,
        *script: Any,
        fails_at: str | None = None,
        has_lock: bool = False,
        run_ends_s: float = math.inf,
        **options: Any,
    ) -> None:
        """From the first record of the kind `fails_at`, each call of the journal fails. "sync of" before the kind means
        from the first sync that begins with such a record.
        """
        self.order = order = list[str]()

        class Journal(FakeJournal):
            has_failed = False

            def append(self, *records: Any, sync: bool = True) -> None:
                kinds = [record.kind for record in records]
                unsynced = [*(record.kind for record in self.records[self.synced :]), *kinds]
                self.has_failed |= fails_at in kinds or (sync and fails_at == f"sync of {unsynced[0]}")
                if self.has_failed:
                    raise JournalError(Path("/journal"), OSError(28, "No space left on device"))
                super().append(*records, sync=sync)
                order.extend([*kinds, "sync"] if sync else kinds)

        class Events(RecordingEvents):
            def emit(self, event: Any) -> None:
                super().emit(event)
                order.extend([TOLD[type(event)]] if type(event) in TOLD else [])

        class Client(ScriptedClient):
            def send_message(self, *where: Any, **how: Any) -> Any:
                order.append("request")
                return super().send_message(*where, **how)

            def describe_model(self, *where: Any) -> Any:
                order.append("describe")
                return super().describe_model(*where)

        class Waiter(FakeWaiter):
            def sleep(self, seconds: float, *, waiting_for: str) -> None:
                order.append("sleep")
                super().sleep(seconds, waiting_for=waiting_for)

        class Lock:
            def take(self) -> None:
                order.append("lock")

            def release(self) -> None:
                order.append("unlock")

        def runs(calls: Any) -> None:
            order.extend(f"run {one.id}" for one in calls)
            waiter.clock.seconds += 1

        def check(_report: object) -> list[str]:
            order.append("check")
            return []

        waiter, toolbox = Waiter(run_ends_s=run_ends_s), FakeToolbox(runs)
        toolbox.definitions = (ECHO, TOUCH, BASH)
        form = options.pop("form", None)
        super().__init__(
            client=Client(script),
            journal=Journal.of_run(roster_for((), (), toolbox, form, "fallback").first_shape),
            toolbox=toolbox,
            events=Events(),
            waiter=waiter,
            turn_lock=Lock() if has_lock else None,
            form=form and replace(form, validator=check),
            **options,
        )
        del order[: order.index("request")]

    def task(self, prompt: str | None) -> Any:
        self.ended = self.run.run(prompt)  # the journal may be incomplete
        return self.ended


def test_one_sync_serves_an_answer_and_its_command_and_nothing_is_told_or_run_before_it() -> None:
    assert InOrder(TWO, DONE).order == [
        *("request", "sent", "assistant", "tool_intent", "sync", "accepted", "started", "run b"),
        *("tool_result", "sync", "finished", "started", "tool_intent", "sync", "run c", "tool_result"),
        # The last result is synced while the next request is on its way.
        *("request", "sync", "finished", "sent", "assistant", "sync", "accepted", "ended", "sync"),
    ]


def test_a_lock_is_held_from_the_intent_of_a_call_to_its_result_and_not_for_requests() -> None:
    assert InOrder(answer(call("e"), call("t", "Touch")), DONE, has_lock=True).order == [
        *("request", "sent", "assistant", "sync", "accepted", "lock"),
        *("started", "tool_intent", "run e", "tool_result", "sync", "finished"),
        *("started", "tool_intent", "sync", "run t", "tool_result", "sync", "finished"),
        # The last result is synced first: another program may look at the files.
        *("unlock", "request", "sent", "assistant", "sync", "accepted", "ended", "sync", "unlock"),
    ]


def test_the_last_result_is_synced_before_anything_else_is_waited_for() -> None:
    synced = ["run b", "tool_result", "sync", "finished"]
    many_tokens = answer(call("b", "Bash"), usage={"input_tokens": 500_000, "output_tokens": 10})
    described = InOrder(many_tokens, DONE).order
    assert described[7:12] == [*synced, "describe"]
    too_long = InOrder(ONE, run_ends_s=0.5).order
    assert too_long[7:12] == [*synced, "sleep"], "which raises TimeIsUp"


def test_an_answer_is_synced_before_the_report_in_it_is_checked() -> None:
    """The check of a report may have a process of its own, and take seconds."""
    report = text('{"status": "success", "summary": "Did it."}')
    script = [answer(call("b")), answer(report, call("c", "Bash")), *[DONE] * 3]
    order = InOrder(*script, form=PLAIN_FORM, limits=LimitSettings(max_turns=1)).order
    place = order.index("check")
    assert order[place - 3 : place] == ["assistant", "sync", "accepted"]


def test_if_the_disk_fails_at_the_late_sync_the_run_ends_and_tells_what_ran() -> None:
    failed = InOrder(ONE, DONE, fails_at="sync of tool_result")
    assert failed.ended.exit_code == 74
    assert failed.order[5:] == ["accepted", "started", "run b", "tool_result", "request", "finished"]
    assert [attempt.kind for attempt in failed.attempts] == [None, "interrupted"], "it may be billed"


def test_if_the_disk_fails_at_the_intent_nothing_runs_and_the_answer_is_told_all_the_same() -> None:
    """It came, it was paid, and the end of the run says that the journal could not be written."""
    failed = InOrder(ONE, fails_at="tool_intent")
    assert failed.ended.exit_code == 74
    assert failed.order == ["request", "sent", "assistant", "accepted", "started"]
