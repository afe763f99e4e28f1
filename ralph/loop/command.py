"""Runs `ralph loop` from its options to its exit code. `opening/` prepares what `iterate.py` needs."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ralph.loop.events import LoopEnded
from ralph.loop.iterate import iterate
from ralph.loop.opening.context import event_stream, open_context
from ralph.loop.opening.plan import with_server
from ralph.loop.opening.world import (
    ask_for_keys,
    locked_checkout,
    loop_world,
    new_record,
    resumed,
    with_prompt,
)
from ralph.loop.sinks import LoopLog
from ralph.loop.values import LoopEnd, loop_end
from ralph.loop.words import resume_hint
from ralph.machine.waiter import ONE_SIGNAL_S, Inbox, SystemClock, catch_stop_signals
from ralph.output.standard_streams import obeys_controls
from ralph.output.status_line import erase_before_suspension
from ralph.places.nested_repositories import last_look
from ralph.values.answer import describe_bug
from ralph.values.credentials import known_secrets
from ralph.values.outcome import CannotError, Outcome, UsageError
from ralph.values.ports import Interrupted
from ralph.values.redaction import Redactor
from ralph.values.shortage import line_with_advice, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.loop.opening.context import LoopContext
    from ralph.loop.state import LoopState
    from ralph.loop.values import LoopOptions

T = TypeVar("T")
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Error numbers that come from a disk and not from a bug in ralph. For example, git's temporary files need space."""


def loop_command(options: LoopOptions, environment: Mapping[str, str] = os.environ) -> int:
    """Runs a loop to its end and returns the exit code of the process. Raises only UsageError."""
    environment, clock = dict(environment), SystemClock()
    inbox = Inbox(clock, one_signal_for_s=ONE_SIGNAL_S)
    restore_signals = catch_stop_signals(inbox)
    try:
        if obeys_controls(2, environment):
            erase_before_suspension(inbox.wake)  # an iteration draws the line
        log = LoopLog(clock)
        events = event_stream(options.plan, environment, Redactor(known_secrets(environment)), log)
        opened = _ended_by(lambda: open_context(options, environment, inbox, clock, early=events, log=log))
        if isinstance(opened, LoopEnded):
            ended = opened
        else:
            context, state = opened
            events = context.events
            try:
                ended = _ended_by(lambda: _work(context, state))
            finally:
                context.close()
        events.emit(ended)
    finally:
        restore_signals()
    return ended.end.exit_code


def _ended_by(work: Callable[[], T]) -> T | LoopEnded:
    try:
        return work()
    except CannotError as error:
        if error.outcome is Outcome.USAGE:
            raise UsageError(str(error)) from None
        end = loop_end(error.outcome, str(error))
    except Interrupted as stop:
        end = LoopEnd(stop.outcome, stop.outcome.exit_code(stop.signal_number), str(stop))
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is: one line, no traceback
        shortage = shortage_of(error)
        if shortage is not None:
            end = loop_end(Outcome.API_UNAVAILABLE, line_with_advice(shortage))
        elif isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            end = loop_end(Outcome.IO_ERROR, str(error))
        else:
            end = loop_end(Outcome.INTERNAL_ERROR, describe_bug(error))
    return LoopEnded(end)


def _work(context: LoopContext, state: LoopState) -> LoopEnded:
    """Opens the loop and runs all iterations. Returns the loop's last event, which the caller must emit."""
    began_s = context.clock.utc_now().timestamp()
    ask_for_keys(context)
    state, silent_input = with_prompt(context, state)
    plan = state.plan
    with locked_checkout(context, plan) as (checkout, lock):
        if context.options.continues:
            state, record = resumed(context, plan, checkout)
        else:
            record = new_record(context, state, checkout)
        plan = with_server(state.plan, context.settings)
        state = replace(state, plan=plan)
        context.log.open(record.folder, context.redactor.redact_all, context.warn)
        world = loop_world(context, plan, record, checkout, lock, silent_input=silent_input)
        end, last = iterate(state, world)
    about_input = silent_input.in_the_end if silent_input is not None else ()
    planted = ""
    if (plan.until or plan.gate or plan.agent) and end.outcome is not Outcome.INTERRUPTED:
        # The last iteration looked before the last check, which runs what an agent may have written.
        directories = (plan.directory, *plan.added_directories)
        planted = last_look(tuple(map(os.path.realpath, directories)), began_s, context.environment)
    for text in filter(None, (*about_input, planted, resume_hint(last, end))):
        context.warn(text)
    return LoopEnded(end, last)
