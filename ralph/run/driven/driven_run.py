"""A run that another program, the driver, steers over standard input. Each user message that the driver sends is a
task with its own result.

`process.py` contains the steps that all runs share. `steering.py` handles the driver's control requests.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.machine.starting import patiently
from ralph.run.driven.control_channel import ControlChannel, why_unusable
from ralph.run.driven.driver_asking import DriverAsking
from ralph.run.driven.model_choice import AboutSession, ModelChoice, described_commands
from ralph.run.driven.questions import Questions, Replies
from ralph.run.driven.steering import Steering
from ralph.run.wiring import build_roster
from ralph.values.events import MessageTaken, RunEnded, SessionStateChanged
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from ralph.machine.inbox import Inbox
    from ralph.output.writer import Writer
    from ralph.run.context import RunContext
    from ralph.run.driven.control_lines import UserMessage
    from ralph.run.driven.driver_servers import DriverServers
    from ralph.run.driven.driver_setup import DriverSetup
    from ralph.run.driven.progress import Progress
    from ralph.run.options import RunOptions
    from ralph.run.prepared_run import PreparedRun
    from ralph.run.process import RunProcess
    from ralph.run.wiring import Surroundings
    from ralph.values.controls import RunControls
    from ralph.values.ports import Clock, Events

# After one of these outcomes, the next task would end in the same way.
_BROKEN = frozenset({Outcome.IO_ERROR, Outcome.INTERNAL_ERROR})

# The Agent SDKs set it. Without the states, they close standard input after the first result.
# The part of a prompt in which a command may be called, if there is none.
_NO_PART = slice(0, 0)
_WANTS_STATES = "CLAUDE_CODE_SDK_READS_SESSION_STATE"


class Driver(Struct, frozen=True):
    """The connection to a driver. A channel reads the driver's lines, and a `Steering` answers the driver's requests.
    `replies` gets the driver's responses to ralph's requests.
    """

    channel: ControlChannel
    steering: Steering
    replies: Replies


def make_driver(
    inbox: Inbox,
    controls: RunControls,
    clock: Clock,
    *,
    progress: Progress,
    writer: Writer,
    events: Events,
) -> Driver:
    mailbox = inbox.mailbox()
    channel, replies = ControlChannel(mailbox), Replies()
    steering = Steering(
        mailbox,
        controls,
        clock,
        progress,
        writer.respond,
        replies=replies,
        events=events,
        has_room=lambda: writer.has_room,
        acknowledge=channel.acknowledge,
    )
    return Driver(channel, steering, replies)


def refuse_unusable_input(options: RunOptions) -> None:
    """Raises UsageError if a driver cannot steer the run, because the options contain a prompt or standard input is
    unusable.
    """
    if options.prompt is not None or options.prompt_file is not None:
        raise UsageError("--input-format stream-json takes the tasks from standard input: give no prompt")
    problem = why_unusable(0)
    if problem is not None:
        raise UsageError(f"--input-format stream-json: {problem}")


def run_messages(process: RunProcess, driver: Driver) -> int:
    """Works on a driver's messages, and returns the exit code of the last result.

    If the run is stopped between two tasks, returns the exit code for that stop instead. Raises UsageError if the
    command line is wrong or if the driver sent no message. The caller writes the message of this error to standard
    error.
    """
    try:
        opened = process.attempt(lambda: _open(process, driver))
    except UsageError as error:
        return process.deliver_misuse(error)
    if isinstance(opened, RunEnded):
        return process.deliver(_tell(process, opened), is_told=True).exit_code
    return _DrivenRun(process, driver.steering, opened).work()


def _open(process: RunProcess, driver: Driver) -> PreparedRun:
    """Starts the thread that reads control lines, waits for the first line, and then opens the session.

    The first line may be an `initialize` request, which shapes all requests of the session. If the machine has no
    thread left, the start fails before the session exists, and no line is lost.
    """
    context, around, steering = process.context, process.begin(), driver.steering
    patiently(driver.channel.start, context.waiter, context.clock)
    questions = Questions(context.writer.respond, driver.replies, context.waiter, context.clock)
    setup = steering.wait_for_setup(context.waiter)
    servers = _driver_servers(around, setup, questions)
    if servers is not None:
        # A driver may answer its servers' messages only after ralph has answered `initialize`.
        steering.open(_early_choice(context, around))
    asking = DriverAsking(
        lambda: steering.setup.hooks,
        questions,
        lambda state: _tell_state(context, state),
        around.settings.clocks.driver_s or math.inf,
    )
    prepared = process.open(
        around,
        has_prompt=True,
        options=setup.applied_to(context.options),
        driver=asking,
        of_driver=servers,
    )
    prepared.announce(around.settings.warnings, has_prompt=True)
    about = AboutSession(
        prepared.context_sizes, prepared.mcp_status, described_commands(prepared.parts.rules.library)
    )
    steering.open(ModelChoice(prepared.parts.targets.roster, around.settings, context.redactor, about))
    return prepared


def _driver_servers(around: Surroundings, setup: DriverSetup, questions: Questions) -> DriverServers | None:
    """The MCP servers in the driver's own process, as `initialize` or --mcp-config names them. None if there are
    none.
    """
    configured = [server.name for server in around.settings.mcp_servers if server.transport == "sdk"]
    names = tuple(dict.fromkeys((*configured, *setup.servers)))
    if not names:
        return None
    from ralph.run.driven.driver_servers import DriverServers  # noqa: PLC0415 - few drivers have servers

    mcp = around.settings.mcp
    return DriverServers(names, questions, start_s=mcp.start_s, call_s=mcp.call_s)


def _early_choice(context: RunContext, around: Surroundings) -> ModelChoice:
    """The models from which a driver can choose before the session is open."""
    roster, _ = build_roster(around, (), context.options, None)
    return ModelChoice(roster, around.settings, context.redactor, AboutSession())


def _tell_state(context: RunContext, state: str) -> None:
    if context.environment.get(_WANTS_STATES) == "1":
        context.events.emit(SessionStateChanged(state))


def _tell(process: RunProcess, ended: RunEnded) -> RunEnded:
    ended = process.tell(ended)
    process.context.writer.tell_end(ended)
    return ended


class _DrivenRun:
    """Works on the messages that a driver sends to one open session, one after another."""

    def __init__(self, process: RunProcess, steering: Steering, prepared: PreparedRun) -> None:
        self._process = process
        self._context: RunContext = process.context
        self._steering = steering
        self._prepared = prepared
        self._has_worked = False

    def work(self) -> int:
        """Works on all messages and returns the exit code. Raises UsageError if there was no message."""
        last: RunEnded | None = None
        while last is None or not self._is_over(last):
            try:
                message = self._steering.next_message(self._context.waiter)
            except Interrupted as stop:
                return self._stopped_between(stop, last)
            if message is None:
                break
            last = self._work_on(message)
        if last is None:
            self._prepared.parts.session.forget()
            self._process.close_without_result()
            raise UsageError("standard input held no user message")
        self._refuse_the_rest(last)
        if not self._has_worked:
            self._prepared.parts.session.forget()
        return self._process.deliver(last, is_told=True).exit_code

    def _work_on(self, message: UserMessage) -> RunEnded:
        missing = self._steering.missing_guard
        if missing is not None:
            told = _tell(self._process, self._process.ended_early(Outcome.CONFIG, missing))
            _tell_state(self._context, "idle")
            return told
        self._has_worked = True
        self._steering.begin_work()
        _tell_state(self._context, "running")
        if self._context.options.replays_messages:
            self._context.events.emit(MessageTaken(message.content, message.uuid))
        own = _NO_PART if message.is_verbatim else None
        try:
            ended = self._process.attempt(lambda: self._prepared.work(message.content, own))
        finally:
            self._steering.end_work()
        told = _tell(self._process, ended)
        if not self._steering.has_message:
            _tell_state(self._context, "idle")
        return told

    def _is_over(self, ended: RunEnded) -> bool:
        return ended.outcome in _BROKEN or self._context.waiter.was_stopped

    def _stopped_between(self, stop: Interrupted, last: RunEnded | None) -> int:
        """Ends a run that was stopped between two messages, and returns the exit code. `last` is the result of the
        previous message, or None if no message came before.
        """
        stopped = self._process.ended_early(stop.outcome, str(stop), stop.signal_number)
        has_refused = self._refuse_the_rest(stopped)
        is_told = has_refused or last is None
        if last is None:
            self._prepared.parts.session.forget()
            if not has_refused:
                _tell(self._process, stopped)
        return self._process.deliver(stopped, is_told=is_told).exit_code

    def _refuse_the_rest(self, end: RunEnded) -> bool:
        """Refuses the remaining messages. Each message gets a result, because the driver waits for it. Returns
        whether there were any messages.
        """
        waiter = self._context.waiter
        with suppress(Interrupted):  # after a second signal, the lines read so far must suffice
            self._steering.take_last_lines(waiter)
        why = end.errors[-1] if end.errors else end.outcome.value
        early = self._process.ended_early(end.outcome, f"not begun: {why}")
        refused = replace(early, exit_code=end.exit_code, duration_s=0.0)
        has_refused = self._steering.has_message
        while self._steering.has_message:
            self._steering.next_message(waiter)
            _tell(self._process, refused)
        return has_refused
