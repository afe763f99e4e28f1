"""Answers a driver's control lines on the main thread, each request exactly once and in order.

It changes a run only through `RunControls` and by what it raises out of a wait. It reads no input and writes none:
the channel does the one, `respond` the other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ralph.run.control_channel import EndOfInput, TooLong
from ralph.run.control_lines import (
    ControlRequest,
    Malformed,
    UserMessage,
    failure,
    in_short,
    parse_control_line,
    success,
)
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
from ralph.values.permission_mode import PermissionMode, mode_notice, permission_mode
from ralph.values.ports import TIMED_OUT, GuardRefused, InterruptRequested, RetryAborted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.run.control_channel import Item
    from ralph.values.controls import RunControls
    from ralph.values.ports import Clock, Mailbox, Waiter

MOST_QUEUED_MESSAGES = 100
# Images included. One message is taken whatever its size.
MOST_QUEUED_BYTES = 64 * 1024 * 1024
LONGEST_MODEL_NAME = 200
# Once a run is stopped: after such a silence nothing more was sent before it. A flood does not keep us here.
_QUIET_S = 0.1
_LAST_LOOK_S = 0.5
_ROOM_LOOK_S = 0.05

_NEXT_MESSAGE = "the next message"
_REQUESTS = (
    "initialize",
    "interrupt",
    "set_model",
    "set_permission_mode",
    "set_auto_retry",
    "abort_retry",
    "get_status",
)
# Of `initialize`: what is to stop calls, and what a driver would only miss. After the first nothing runs: a hook that
# is never called may be all that was to stop a command. Names are compared without case and underscores.
_GUARDS = frozenset(
    [
        "hooks",
        "canusetool",
        "permissionprompttool",
        "permissionprompttoolname",
        "permissionprompts",
        "permissions",
        "permissionmode",
        "allowedtools",
        "disallowedtools",
        "tools",
        "sandbox",
        "settings",
        "managedsettings",
    ]
)
_NOT_OFFERED = (
    "agents",
    "skills",
    "sdkMcpServers",
    "jsonSchema",
    "systemPrompt",
    "appendSystemPrompt",
)
# After one of these the announced retry is no longer waited for: its attempt is under way, or over.
_ATTEMPT_SIGNS = (StreamReceived, AttemptEnded, ResponseDiscarded, ClockFired, AnswerAccepted)


class Steering:
    def __init__(
        self,
        mailbox: Mailbox,
        controls: RunControls,
        clock: Clock,
        respond: Callable[[dict[str, Any]], None],
        choose_model: Callable[[str | None], str],
        *,
        serving: Callable[[], str | None] = lambda: None,
        introduction: Callable[[], Mapping[str, Any]] = dict,
        has_room: Callable[[], bool] = lambda: True,
        acknowledge: Callable[[Item], None] | None = None,
        emit: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        """`respond` writes one object; `choose_model` gives a requested model's full name, for None the first
        model's.

        `choose_model` raises ValueError with what to say about a model that cannot be had. `serving` tells
        who is asked at present, `introduction` what there is to choose from, `has_room` whether answers are
        read. `acknowledge` is told of every item that was taken, `emit` of what people and readers should
        know.
        """
        self.mailbox = mailbox
        self._controls = controls
        self._clock = clock
        self._respond = respond
        self._choose_model = choose_model
        self._serving = serving
        self._introduction = introduction
        self._has_room = has_room
        self._acknowledge = acknowledge
        self._emit = emit
        self._missing_guard: str | None = None
        """The guard that `initialize` asked for and did not get, for as long as the process lives."""
        self._missing_mode: str | None = None
        """The reason why the requested mode is missing, until a mode is set that can be kept."""
        self._queue: deque[tuple[UserMessage, int]] = deque()
        self._queued_bytes = 0
        self._has_input_ended = False
        self._is_working = False
        self._has_stopped = False
        self._turn = 0
        self._retry: RetryScheduled | None = None
        """The pending retry of the open chain."""
        self._retry_waits_until_s: float | None = None

    @property
    def refused_guard(self) -> str | None:
        """Why no message may be worked on; None: all may."""
        return self._missing_guard or self._missing_mode

    @property
    def is_working(self) -> bool:
        """Set by the caller around each message: nothing is ever raised outside."""
        return self._is_working

    @is_working.setter
    def is_working(self, is_working: bool) -> None:
        if is_working and not self._is_working:
            self._turn = 0
        self._is_working = is_working
        self._has_stopped = False
        self._retry, self._retry_waits_until_s = None, None

    def can_take(self) -> bool:
        """A driver that does not read its answers is not asked for more."""
        return self._has_room()

    @property
    def has_message(self) -> bool:
        """One is waiting to be worked on."""
        return bool(self._queue)

    def emit(self, event: Event) -> None:
        match event:
            case RetryScheduled():
                self._retry = event
                self._retry_waits_until_s = self._clock.now_s() + event.wait_s
            case RetryRecovered() | RetryExhausted():
                self._retry, self._retry_waits_until_s = None, None
            case _ if isinstance(event, _ATTEMPT_SIGNS):
                self._retry_waits_until_s = None
                self._turn += isinstance(event, AnswerAccepted)

    def next_message(self, waiter: Waiter) -> UserMessage | None:
        """The next one in the order they came; None: the input has ended. Raises what the waiter raises."""
        while not self._queue:
            if self._has_input_ended:
                return None
            while not self.can_take():
                waiter.sleep(_ROOM_LOOK_S, waiting_for="a reader of the answers")
            item = waiter.wait(self.mailbox, until_s=None, waiting_for=_NEXT_MESSAGE)
            self.handle(item, waiting_for=_NEXT_MESSAGE)
        message, size_bytes = self._queue.popleft()
        self._queued_bytes -= size_bytes
        return message

    def take_last_lines(self, waiter: Waiter) -> None:
        """Takes the lines that have come by now, including those still in the pipe. Raises what the waiter
        raises.
        """
        started_s = self._clock.now_s()
        while not self._has_input_ended and self._clock.now_s() - started_s < _LAST_LOOK_S:
            until_s = self._clock.now_s() + _QUIET_S
            item = waiter.wait(self.mailbox, until_s=until_s, waiting_for=_NEXT_MESSAGE)
            if item is TIMED_OUT:
                return
            self.handle(item)

    def handle(self, item: Item, *, waiting_for: str | None = None) -> None:
        """One item of the channel. `waiting_for`: what the run waits for meanwhile, None: not known.

        Raises `InterruptRequested`, `RetryAborted` or `GuardRefused` where that follows, after the answer was given: only
        while a message is being worked on, and once for each message, so that cleaning up is left in peace.
        """
        if self._acknowledge is not None:
            self._acknowledge(item)
        match item:
            case EndOfInput():
                self._has_input_ended = True
                if item.error is not None:
                    self._respond(failure(None, f"cannot read standard input: {item.error}"))
            case TooLong():
                most_mib = item.most_bytes / 2**20
                self._respond(failure(None, f"the line is longer than {most_mib:g} MiB and was dropped"))
            case bytes():
                self._take_line(item, waiting_for)

    def _take_line(self, data: bytes, waiting_for: str | None) -> None:
        line = parse_control_line(data)
        match line:
            case Malformed():
                self._respond(failure(line.request_id, line.reason))
                self._miss_what_was_asked(line)
            case UserMessage():
                self._take_message(line, len(data))
            case ControlRequest():
                self._take_request(line, waiting_for)

    def _take_message(self, message: UserMessage, size_bytes: int) -> None:
        if len(self._queue) >= MOST_QUEUED_MESSAGES:
            refusal = f"{len(self._queue)} messages are waiting already"
        elif self._queue and self._queued_bytes + size_bytes > MOST_QUEUED_BYTES:
            refusal = f"{self._queued_bytes:,} bytes of messages are waiting already"
        else:
            self._queue.append((message, size_bytes))
            self._queued_bytes += size_bytes
            return
        self._respond(failure(None, f"the message was dropped: {refusal}; send it again after a result"))

    def _take_request(self, request: ControlRequest, waiting_for: str | None) -> None:
        try:
            response = self._answer(request, waiting_for)
        except ValueError as refusal:
            self._respond(failure(request.request_id, str(refusal)))
            self._stop_without_guard(request.subtype)
            return
        self._respond(success(request.request_id, response))
        if request.subtype == "set_permission_mode":
            self._tell_mode()
        if response.get("interrupted"):
            self._stop(InterruptRequested())
        if response.get("aborted"):
            self._stop(RetryAborted())

    def _answer(self, request: ControlRequest, waiting_for: str | None) -> dict[str, Any]:
        """Raises ValueError for what cannot be done, and why."""
        match request.subtype:
            case "initialize":
                return self._initialize(request.fields)
            case "set_permission_mode":
                return {"mode": self._set_permission_mode(request.fields.get("mode"))}
            case "interrupt":
                return {"interrupted": self._is_working}
            case "set_model":
                return {"model": self._set_model(request.fields.get("model"))}
            case "set_auto_retry":
                return {"enabled": self._set_auto_retry(request.fields.get("enabled"))}
            case "abort_retry":
                return {"aborted": self._is_working and self._retry is not None}
            case "get_status":
                return self._status(waiting_for)
        raise ValueError(
            f"unknown control request {in_short(request.subtype)}; known are {', '.join(_REQUESTS)}"
        )

    def _initialize(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Answers `initialize`. Fields that only inform are ignored; a request for something that ralph does
        not offer is refused, as the driver counts on it. A guard that was refused once stays missing: nothing runs, whatever is requested
        later.
        """
        self._miss_guards(fields)
        if self._missing_guard is not None:
            raise ValueError(self._missing_guard)
        wished = [name for name in _NOT_OFFERED if fields.get(name)]
        if wished:
            raise ValueError(f"initialize: ralph does not offer {', '.join(wished)}; leave that out")
        return dict(self._introduction())

    def _miss_guards(self, fields: Mapping[str, Any]) -> None:
        guards = [name for name, value in fields.items() if _is_guard(name) and _asks_for_something(value)]
        if guards and self._missing_guard is None:
            names = ", ".join(sorted(map(in_short, guards)))
            self._missing_guard = (
                f"initialize asked for {names}, which ralph cannot honour: nothing runs without a guard that was asked "
                "for. Start ralph again without it, and limit tools by its options"
            )

    def _miss_mode(self, reason: str) -> None:
        """Notes a refused mode: whoever asked for it must not get work in a looser one. None is tighter than
        `plan`.
        """
        if self._controls.permission_mode is not PermissionMode.PLAN:
            self._missing_mode = (
                f"set_permission_mode was refused: {reason}. Nothing runs without a mode that was asked for: set one "
                "that ralph has"
            )

    def _miss_what_was_asked(self, line: Malformed) -> None:
        """A guard is one, whatever is wrong with the line: a driver may not read an answer that has no id."""
        subtype = line.fields.get("subtype")
        if subtype == "initialize":
            self._miss_guards(line.fields)
        elif subtype == "set_permission_mode":
            self._miss_mode(line.reason)
        self._stop_without_guard(subtype)

    def _stop_without_guard(self, subtype: object) -> None:
        if subtype in ("initialize", "set_permission_mode") and self.refused_guard is not None:
            self._stop(GuardRefused(self.refused_guard))

    def _set_model(self, wish: Any) -> str:
        """An absent key is a null: JavaScript drops a key whose value is undefined."""
        if wish is not None and not _is_name(wish):
            raise ValueError(
                f'"model" must be a model\'s name of at most {LONGEST_MODEL_NAME} characters, "default" or null, '
                f"not {in_short(wish)}"
            )
        chosen = self._choose_model(None if wish == "default" else wish)
        self._controls.model = chosen
        return chosen

    def _set_permission_mode(self, wish: object) -> str:
        try:
            mode = _mode_of(wish)
        except ValueError as refusal:
            self._miss_mode(str(refusal))
            raise
        if self._controls.stays_in_plan and mode is not PermissionMode.PLAN:
            raise ValueError(
                "the run was started with --permission-mode plan and stays in it; start another one for the work"
            )
        self._controls.permission_mode = mode
        self._missing_mode = None
        return mode.value

    def _tell_mode(self) -> None:
        mode = self._controls.permission_mode
        self._emit(PermissionModeChanged(mode))
        said = mode_notice(mode)
        if said is not None:
            self._emit(Notice(said))

    def _set_auto_retry(self, wish: object) -> bool:
        if not isinstance(wish, bool):
            raise ValueError(f'"enabled" must be true or false, not {in_short(wish)}')  # noqa: TRY004 - see _answer
        self._controls.auto_retry = wish
        return wish

    def _stop(self, stop: BaseException) -> None:
        if self._is_working and not self._has_stopped:
            self._has_stopped = True
            raise stop

    def _status(self, waiting_for: str | None) -> dict[str, Any]:
        return {
            "state": "working" if self._is_working else "idle",
            "turn": self._turn,
            "queued_messages": len(self._queue),
            "auto_retry": self._controls.auto_retry,
            "retry": self._retry_status(),
            "model": self._controls.model or self._serving(),
            "waiting_for": waiting_for,
        }

    def _retry_status(self) -> dict[str, Any] | None:
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


def _mode_of(wish: object) -> PermissionMode:
    """Raises ValueError with what to say."""
    if not isinstance(wish, str):
        raise ValueError(f'"mode" must be the name of a permission mode, not {in_short(wish)}')  # noqa: TRY004
    try:
        return permission_mode(wish)
    except ValueError as error:
        raise ValueError(f'"mode" {error}') from None


def _is_guard(name: str) -> bool:
    return name.lower().replace("_", "") in _GUARDS


def _asks_for_something(value: object) -> bool:
    """`{"PreToolUse": []}` registers nothing."""
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= LONGEST_MODEL_NAME
        and value.isprintable()
        and bool(value.strip())
    )
