"""A run that a driver steers over standard input: each user message is a task, and each has its result.

What a task is and how it ends is `command.py`'s; what a control request does is `steering.py`'s.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from ralph.machine.starting import patiently
from ralph.run.control_channel import ControlChannel, why_unusable
from ralph.run.steering import Steering
from ralph.values.events import RunEnded
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Interrupted

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from ralph.machine.waiter import InboxWaiter
    from ralph.output.writer import Writer
    from ralph.run.control_lines import UserMessage
    from ralph.run.options import RunOptions
    from ralph.run.prepared_run import PreparedRun
    from ralph.values.controls import RunControls
    from ralph.values.events import Event
    from ralph.values.ports import Clock

    class Host(Protocol):
        """The parts of the command that a driven run calls."""

        @property
        def options(self) -> RunOptions: ...
        @property
        def waiter(self) -> InboxWaiter: ...
        @property
        def clock(self) -> Clock: ...
        @property
        def controls(self) -> RunControls: ...

        def emit(self, event: Event) -> None: ...
        def open(self) -> PreparedRun: ...
        def ended_by(self, work: Callable[[], T]) -> T | RunEnded: ...
        def ended_early(self, outcome: Outcome, error: str, signal_number: int = 0) -> RunEnded: ...
        def told(self, ended: RunEnded) -> RunEnded: ...
        def delivered(self, ended: RunEnded, *, is_told: bool) -> RunEnded: ...


# The next task would end the same way.
_BROKEN = frozenset({Outcome.IO_ERROR, Outcome.INTERNAL_ERROR})


class DrivenRun:
    def __init__(self, host: Host, writer: Writer) -> None:
        """Raises UsageError where standard input cannot drive a run."""
        if host.options.prompt is not None or host.options.prompt_file is not None:
            raise UsageError("--input-format stream-json takes the tasks from standard input: give no prompt")
        problem = why_unusable(0)
        if problem is not None:
            raise UsageError(f"--input-format stream-json: {problem}")
        self._host = host
        self._writer = writer
        self._prepared: PreparedRun | None = None
        self._has_worked = False
        mailbox = host.waiter.mailbox()
        self._channel = channel = ControlChannel(mailbox)
        self._steering = Steering(
            mailbox,
            host.controls,
            host.clock,
            writer.respond,
            self._choose_model,
            serving=lambda: self._prepared.roster.target.name if self._prepared else None,
            introduction=self._introduction,
            has_room=lambda: writer.has_room,
            acknowledge=channel.acknowledge,
            emit=host.emit,
        )
        host.waiter.steering = self._steering

    def emit(self, event: Event) -> None:
        self._steering.emit(event)

    def work(self) -> int:
        """The exit code: the last result's, or of what stopped the process between two tasks.

        Raises UsageError when there was no message at all.
        """
        opened = self._host.ended_by(self._open)
        if isinstance(opened, RunEnded):
            return self._host.delivered(self._told(opened), is_told=True).exit_code
        self._prepared = opened
        last: RunEnded | None = None
        while last is None or not self._is_over(last):
            try:
                message = self._steering.next_message(self._host.waiter)
            except Interrupted as stop:
                return self._stopped_between(stop, last)
            if message is None:
                break
            last = self._work_on(message)
        if last is None:
            opened.session.forget()
            # What was asked meanwhile has its answer in the output still.
            self._writer.deliver(self._host.waiter, self._host.clock)
            self._writer.conclude(self._host.waiter, self._host.clock)
            raise UsageError("standard input held no user message")
        self._refuse_the_rest(last)
        if not self._has_worked:
            opened.session.forget()
        return self._host.delivered(last, is_told=True).exit_code

    def _open(self) -> PreparedRun:
        """Opens the session after the reader of lines has started: not even the first line is lost for want
        of a thread.
        """
        patiently(self._channel.start, self._host.waiter, self._host.clock)
        return self._host.open()

    def _work_on(self, message: UserMessage) -> RunEnded:
        prepared = self._prepared
        assert prepared is not None  # noqa: S101 - without it no message is taken
        if self._steering.refused_guard is not None:
            return self._told(self._host.ended_early(Outcome.CONFIG, self._steering.refused_guard))
        self._has_worked = True

        def work() -> RunEnded:
            return prepared.work(message.content)

        self._steering.is_working = True
        try:
            ended = self._host.ended_by(work)
        finally:
            self._steering.is_working = False
        return self._told(ended)

    def _is_over(self, ended: RunEnded) -> bool:
        return ended.outcome in _BROKEN or self._host.waiter.was_stopped

    def _stopped_between(self, stop: Interrupted, last: RunEnded | None) -> int:
        """The exit code. `last`: the result of the message before; None: there was none."""
        stopped = self._host.ended_early(stop.outcome, str(stop), stop.signal_number)
        has_refused = self._refuse_the_rest(stopped)
        is_told = has_refused or last is None
        if last is None:
            if self._prepared is not None:
                self._prepared.session.forget()
            if not has_refused:
                self._told(stopped)
        return self._host.delivered(stopped, is_told=is_told).exit_code

    def _refuse_the_rest(self, end: RunEnded) -> bool:
        """Refuses the messages that are left, as each sender waits for a result. Returns whether there were
        any.
        """
        with suppress(Interrupted):  # a second signal: what is known has to do
            self._steering.take_last_lines(self._host.waiter)
        why = end.errors[-1] if end.errors else end.outcome.value
        early = self._host.ended_early(end.outcome, f"not begun: {why}")
        refused = replace(early, exit_code=end.exit_code, duration_s=0.0)
        has_refused = self._steering.has_message
        while self._steering.has_message:
            self._steering.next_message(self._host.waiter)
            self._told(refused)
        return has_refused

    def _told(self, ended: RunEnded) -> RunEnded:
        ended = self._host.told(ended)
        self._writer.tell_end(ended)
        return ended

    def _introduction(self) -> Mapping[str, Any]:
        """Nothing while the session is being opened: nothing can be chosen yet."""
        from ralph.run.introduction import introduction  # noqa: PLC0415 - a driver asks once, most runs never

        if self._prepared is None:
            return {}
        return introduction(self._prepared.roster, self._host.controls.permission_mode.value)

    def _choose_model(self, wish: str | None) -> str:
        """A target's name, else the model's. Raises ValueError for one that cannot be had."""
        if self._prepared is None:
            raise ValueError("the session is not open yet")
        if wish is not None and self._writer.redact(wish) != wish:
            # It would stand in the journal, and in every result as the name of what was paid for.
            raise ValueError('"model" holds a credential, not a model\'s name')
        target = self._prepared.find_target(wish)
        return target.name if target in self._prepared.roster.targets else target.model
