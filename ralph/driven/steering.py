"""Answers the control requests of a driver, each with one response, in order. Works on the main thread, and affects a
run only through `RunControls` and the exceptions that it raises during a wait. `ControlChannel` reads the lines,
and `respond` writes the responses.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ralph.driven import control_lines as lines
from ralph.driven.control_channel import EndOfInput, Item, TooLong
from ralph.driven.control_lines import (
    ControlRequest,
    DriverSetup,
    Malformed,
    MissingGuard,
    Response,
    UserMessage,
    driver_setup,
    failure,
    success,
)
from ralph.driven.questions import Replies, answer_to_server
from ralph.values.controls import ModeFixedError, PermissionMode, RunControls
from ralph.values.events import (
    AnswerAccepted,
    AttemptEnded,
    ClockFired,
    Event,
    Notice,
    PermissionModeChanged,
    ResponseDiscarded,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
    StreamReceived,
)
from ralph.values.ports import TIMED_OUT, GuardRefused, InterruptRequested, RetryAborted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.values.ports import Clock, Mailbox, Waiter

# After the last task, ralph reads until no line has come for `_QUIET_S`, but at most for `_LAST_LOOK_S`.
_QUIET_S = 0.1
_LAST_LOOK_S = 0.5
# While a driver does not read its responses, this is the time between two looks whether it reads again.
_ROOM_LOOK_S = 0.05

_NEXT_MESSAGE = "the next message"


class Models(Protocol):
    """The facts about a run that a driver asks for, and its choice of the model; see `SessionFacts`."""

    def choose(self, requested: str | None) -> str: ...

    @property
    def serving(self) -> str: ...

    def introduction(self, mode: PermissionMode) -> Mapping[str, Any]: ...

    def context_usage(self) -> Mapping[str, Any]: ...

    def mcp_status(self) -> list[dict[str, Any]]: ...


MOST_QUEUED_MESSAGES = 100
# Images are included. A single message is accepted whatever its size.
MOST_QUEUED_BYTES = 64 * 1024 * 1024


# Each of these events shows that the announced retry has begun or ended, so ralph no longer waits for it.
_ATTEMPT_SIGNS = (StreamReceived, AttemptEnded, ResponseDiscarded, ClockFired, AnswerAccepted)


class Progress:
    """Keeps the number of the current turn and the pending retry, which `get_status` reports."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turn = 0
        """Answers accepted for the current message. Between two messages, those for the previous one."""
        self._retry: RetryScheduled | None = None
        """The pending retry, or None if no retry is pending."""
        self._retry_waits_until_s: float | None = None

    def begin(self) -> None:
        """Resets the state. It is called when work on a message begins."""
        self.turn = 0
        self.end()

    def end(self) -> None:
        self._retry, self._retry_waits_until_s = None, None

    def emit(self, event: Event) -> None:
        match event:
            case RetryScheduled():
                self._retry = event
                self._retry_waits_until_s = self._clock.now_s() + event.wait_s
            case RetryRecovered() | RetryExhausted():
                self.end()
            case _ if isinstance(event, _ATTEMPT_SIGNS):
                self._retry_waits_until_s = None
                self.turn += isinstance(event, AnswerAccepted)

    @property
    def is_retrying(self) -> bool:
        return self._retry is not None

    def retry_status(self) -> dict[str, Any] | None:
        """The pending retry as `get_status` reports it, or None if no retry is pending."""
        if self._retry is None:
            return None
        until_s, now_s = self._retry_waits_until_s, self._clock.now_s()
        left_s = 0.0 if until_s is None else max(0.0, until_s - now_s)
        return {
            "attempt": self._retry.attempt,
            "max_retries": self._retry.max_retries,
            "is_waiting": left_s > 0,
            "seconds_left": round(left_s, 3),
            "message": self._retry.message,
        }


class Steering:
    def __init__(
        self,
        mailbox: Mailbox,
        controls: RunControls,
        clock: Clock,
        progress: Progress,
        respond: Callable[[dict[str, Any]], None],
        *,
        replies: Replies,
        emit: Callable[[Event], None],
        has_room: Callable[[], bool] = lambda: True,
        acknowledge: Callable[[Item], None] = lambda _item: None,
    ) -> None:
        """`respond` writes one response. `replies` gets the driver's. `has_room`: the driver still reads responses.
        `acknowledge` gets each item taken from the mailbox. `emit` gets notices and changes of the mode.
        """
        self.mailbox = mailbox
        self._controls = controls
        self._clock = clock
        self._progress = progress
        self._respond = respond
        self._replies = replies
        self._emit = emit
        self._has_room = has_room
        self._acknowledge = acknowledge
        self._models: Models | None = None
        self.setup = DriverSetup()
        """The driver's settings for the session, from the last valid `initialize` request."""
        self._first: Item | None = None
        """The first line, until it is handled."""
        self._queue: deque[tuple[UserMessage, int]] = deque()
        """The messages on which ralph has not begun to work, each with the size of its line in bytes."""
        self._missing = MissingGuard()
        self._has_input_ended = False
        controls.may_continue = lambda: self.has_message or not self._has_input_ended
        self._is_working = False
        self._has_stopped = False
        """True if a request to stop the current message was already handled. A message must not be stopped twice."""

    def open(self, models: Models) -> None:
        """Sets the models, and handles the first line. From then on, all lines are handled. Called when the session is
        open, and perhaps before, with the models known then.
        """
        self._models = models
        if self._first is not None:
            first, self._first = self._first, None
            self.handle(first, waiting_for=_NEXT_MESSAGE)

    def wait_for_setup(self, waiter: Waiter) -> DriverSetup:
        """Waits for the first line before the session is open, and returns the settings in it if it is `initialize`.
        `open` answers it later. Raises as the waiter.
        """
        item = waiter.wait(self.mailbox, until_s=None, waiting_for="the first line of the driver")
        self._first = item
        line = lines.parse_control_line(item) if isinstance(item, bytes) else None
        if isinstance(line, ControlRequest) and isinstance(line.request, lines.Initialize):
            with suppress(ValueError):  # the request is refused when it is handled
                self.setup = driver_setup(line.fields)
        return self.setup

    def begin_work(self) -> None:
        """From here to `end_work`, `handle` may raise exceptions that stop the work."""
        self._is_working, self._has_stopped = True, False
        self._progress.begin()

    def end_work(self) -> None:
        self._is_working, self._has_stopped = False, False
        self._progress.end()

    @property
    def missing_guard(self) -> str | None:
        """The reason why ralph must not work on any message, or None if no safeguard is missing."""
        return self._missing.reason

    @property
    def has_message(self) -> bool:
        return len(self._queue) > 0

    def can_take(self) -> bool:
        """Whether a line may be handled now. That requires an open session, and a driver that reads its responses."""
        return self._models is not None and self._has_room()

    def next_message(self, waiter: Waiter) -> UserMessage | None:
        """Waits for the next user message. None if the input has ended. Raises as the waiter."""
        while not self._queue:
            if self._has_input_ended:
                return None
            while not self.can_take():
                waiter.sleep(_ROOM_LOOK_S, waiting_for="a reader of the answers")
            item = waiter.wait(self.mailbox, until_s=None, waiting_for=_NEXT_MESSAGE)
            self.handle(item, waiting_for=_NEXT_MESSAGE)
        return self._queue.popleft()[0]

    def take_last_lines(self, waiter: Waiter) -> None:
        """Handles the lines that have arrived, those in the pipe included. Raises as the waiter."""
        started_s = self._clock.now_s()
        while not self._has_input_ended and self._clock.now_s() - started_s < _LAST_LOOK_S:
            until_s = self._clock.now_s() + _QUIET_S
            item = waiter.wait(self.mailbox, until_s=until_s, waiting_for=_NEXT_MESSAGE)
            if item is TIMED_OUT:
                return
            self.handle(item)

    def handle(self, item: Item, *, waiting_for: str | None = None) -> None:
        """Handles a line, a line that was too long, or the end. `waiting_for` is what the run waits for, if that is
        known. A line that stops the current message raises `InterruptRequested`, `RetryAborted` or `GuardRefused`
        after the response, once per message, so that nothing interrupts the clean-up.
        """
        self._acknowledge(item)
        match item:
            case EndOfInput():
                self._has_input_ended = True
                self._replies.close()
                if item.error is not None:
                    self._respond(failure(None, f"cannot read standard input: {item.error}"))
            case TooLong():
                most_mib = item.most_bytes / 2**20
                self._respond(failure(None, f"the line is longer than {most_mib:g} MiB and was dropped"))
            case bytes():
                self._take_line(item, waiting_for)

    def _take_line(self, data: bytes, waiting_for: str | None) -> None:
        line = lines.parse_control_line(data)
        match line:
            case Malformed():
                self._respond(failure(line.request_id, line.reason))
                self._judge_malformed(line)
            case UserMessage():
                waiting_bytes = sum(size_bytes for _, size_bytes in self._queue)
                if len(self._queue) >= MOST_QUEUED_MESSAGES:
                    self._drop(f"{len(self._queue)} messages")
                elif self._queue and waiting_bytes + len(data) > MOST_QUEUED_BYTES:
                    self._drop(f"{waiting_bytes:,} bytes of messages")
                else:
                    self._queue.append((line, len(data)))
            case ControlRequest():
                self._take_request(line, waiting_for)
            case Response():
                self._replies.take(line)

    def _drop(self, waiting: str) -> None:
        why = f"the message was dropped: {waiting} are waiting already; send it again after a result"
        self._respond(failure(None, why))

    def _judge_malformed(self, line: Malformed) -> None:
        """Marks a safeguard as missing if an invalid line asked for one."""
        subtype = line.fields.get("subtype")
        if subtype == lines.Initialize.__struct_config__.tag:
            self._missing.fail(line.fields, line.reason)
        elif subtype == lines.SetPermissionMode.__struct_config__.tag:
            self._missing.refuse_mode(line.reason, self._controls.permission_mode)
        else:
            return
        self._stop_without_guard()

    def _take_request(self, line: ControlRequest, waiting_for: str | None) -> None:
        try:
            response = self._answer(line, waiting_for)
        except ValueError as refusal:
            self._respond(failure(line.request_id, str(refusal)))
            if isinstance(line.request, lines.Initialize | lines.SetPermissionMode):
                self._stop_without_guard()
            return
        self._respond(success(line.request_id, response))
        match line.request:
            case lines.SetPermissionMode():
                self._emit(PermissionModeChanged(self._controls.permission_mode))
                notice = self._controls.mode_notice
                if notice is not None:
                    self._emit(Notice(notice))
            case lines.Interrupt() if response["interrupted"]:
                self._stop(InterruptRequested())
            case lines.AbortRetry() if response["aborted"]:
                self._stop(RetryAborted())

    def _answer(self, line: ControlRequest, waiting_for: str | None) -> dict[str, Any]:
        """Raises ValueError with the reason if ralph cannot do what is requested."""
        assert self._models is not None  # noqa: S101 - no line is taken before
        match line.request:
            case lines.Initialize():
                return self._initialize(line.fields, self._models)
            case lines.SetPermissionMode(mode=name):
                return {"mode": self._set_permission_mode(name).value}
            case lines.Interrupt():
                return {"interrupted": self._is_working, "still_queued": []}
            case lines.SetModel(model=name):
                self._controls.model = self._models.choose(None if name == "default" else name)
                return {"model": self._controls.model}
            case lines.SetAutoRetry(enabled=enabled):
                self._controls.auto_retry = enabled
                return {"enabled": enabled}
            case lines.AbortRetry():
                return {"aborted": self._is_working and self._progress.is_retrying}
            case lines.SetMaxThinkingTokens():
                self._emit(Notice("max_thinking_tokens has no effect: the model decides how long it thinks"))
                return {}
            case lines.GetContextUsage():
                return dict(self._models.context_usage())
            case lines.McpStatus():
                return {"mcpServers": self._models.mcp_status()}
            case lines.McpMessage(message=message):
                return answer_to_server(message)
            case lines.GetStatus():
                return self._status(self._models, waiting_for)

    def _initialize(self, fields: Mapping[str, Any], models: Models) -> dict[str, Any]:
        self._missing.refuse(fields)
        try:
            self.setup = self._new_setup(fields)
        except ValueError as error:
            self._missing.fail(fields, str(error))
            raise
        never = self.setup.hooks.never_called
        if never:
            self._emit(
                Notice(f"hooks that ralph never calls, because it has no such event: {', '.join(never)}")
            )
        applied = {"hooks_applied": True} if self.setup.hooks.by_event else {}
        return {**models.introduction(self._controls.permission_mode), **applied}

    def _new_setup(self, fields: Mapping[str, Any]) -> DriverSetup:
        setup = driver_setup(fields)
        if setup.shapes_requests and setup != self.setup:
            raise ValueError(
                "initialize: systemPrompt, appendSystemPrompt, jsonSchema and sdkMcpServers must be in the first line "
                "that the driver sends: they are part of every request"
            )
        return setup

    def _set_permission_mode(self, name: str) -> PermissionMode:
        try:
            mode = self._controls.choose_mode(name)
        except ModeFixedError:
            raise
        except ValueError as error:
            refusal = f'"request.mode" {error}'
            self._missing.refuse_mode(refusal, self._controls.permission_mode)
            raise ValueError(refusal) from None
        self._missing.set_mode()
        return mode

    def _stop_without_guard(self) -> None:
        if self._missing.reason is not None:
            self._stop(GuardRefused(self._missing.reason))

    def _stop(self, stop: BaseException) -> None:
        if self._is_working and not self._has_stopped:
            self._has_stopped = True
            raise stop

    def _status(self, models: Models, waiting_for: str | None) -> dict[str, Any]:
        return {
            "state": "working" if self._is_working else "idle",
            "turn": self._progress.turn,
            "queued_messages": len(self._queue),
            "auto_retry": self._controls.auto_retry,
            "retry": self._progress.retry_status(),
            "model": self._controls.model or models.serving,
            "waiting_for": waiting_for,
        }
