"""Runs `ralph loop` from its options to its exit code: reads the prompt, locks the checkout, begins or loads the record, and
makes what implements the ports of `iterate.py`.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ralph.git.answer import CheckoutError
from ralph.git.checkout import GitCheckout
from ralph.git.runner import GitSeams, given_token
from ralph.git.settings import BrokenPinsError
from ralph.loop.agent_iterations import AgentIterations
from ralph.loop.check import PromptReader, ShellCheck, StopFileBelow, find_prompt, read_open_tasks
from ralph.loop.checkout import CheckoutLock, PlainDirectory, check_checkout, open_checkout
from ralph.loop.events import LoopEnded, resume_hint
from ralph.loop.iterate import iterate
from ralph.loop.iteration import LoopWorld
from ralph.loop.opening import event_stream, open_context, opening_state, with_server
from ralph.loop.processes import LoopPage, RalphIterations
from ralph.loop.record import PINS_FILE, RecordError
from ralph.loop.sinks import LoopLog
from ralph.loop.starter import placeholders_left
from ralph.loop.values import LoopEnd, loop_end
from ralph.machine.own_programs import with_set_aside, without_unsafe_loads
from ralph.machine.waiter import ONE_SIGNAL_S, Inbox, SystemClock, catch_stop_signals
from ralph.output.standard_streams import obeys_controls
from ralph.output.status_line import erase_before_suspension
from ralph.places.nested_repositories import last_look
from ralph.prompt.prompt_input import InputWait, PromptError
from ralph.settings.key_programs import ProgramKeys
from ralph.settings.merge import SettingsError
from ralph.values.answer import describe_bug
from ralph.values.credentials import known_secrets
from ralph.values.outcome import CannotError, Outcome, UsageError, line_with_advice, shortage_of
from ralph.values.ports import Interrupted, JournalError, NoTurnLock
from ralph.values.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ralph.loop.agents import OpenAgent
    from ralph.loop.iteration import Iterations
    from ralph.loop.opening import LoopContext
    from ralph.loop.record import FileRecord
    from ralph.loop.state import LoopState
    from ralph.loop.values import LoopOptions, LoopPlan
    from ralph.prompt.prompt_input import SilentPipe
    from ralph.values.ports import Waiter

    Workplace = GitCheckout | PlainDirectory

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


# --- Its prompt, checkout, record and ports


def with_prompt(context: LoopContext, state: LoopState) -> tuple[LoopState, SilentPipe | None]:
    """Reads the prompt from the place that the command line names, and adds it to the state. Also returns standard
    input if it is a pipe from which no data has come yet, otherwise None. Data may never come, so the wait for it is
    part of the loop's time limit. Raises CannotError and Interrupted.
    """
    named, max_time_s = context.options.requested_prompt, state.plan.limits.max_time_s
    if named is None:
        return without_credentials(context, state), None
    clock = context.clock
    started_s = clock.now_s()
    waiter = context.waiter_until(None if max_time_s is None else started_s + max_time_s)
    wait = InputWait(waiter, clock, context.settings.clocks.input_s, context.tell)
    try:
        found = find_prompt(named.argument, named.file, directories=state.plan.directories, wait=wait)
    except PromptError as error:
        raise CannotError(str(error), Outcome.USAGE) from None
    for notice in found.notices:
        context.tell(notice)
    if found.silent is not None:
        context.warn(found.silent.notice)
    plan = replace(state.plan, prompt=found.text, prompt_file=found.file)
    state = replace(state, plan=plan, elapsed_s=clock.now_s() - started_s)
    return without_credentials(context, state), found.silent


def ask_for_keys(context: LoopContext) -> None:
    """Runs the programs that print keys, so that the loop knows the keys before its first check can print one. If a
    program fails, this function reports nothing: the first iteration runs it again and reports the failure. Raises
    Interrupted.
    """
    if not context.settings.key_programs:
        return
    programs = ProgramKeys(
        context.environment,
        context.command_environment,
        context.search,
        waiter=context.waiter,
        clock=context.clock,
        events=context.events,
        redactor=context.redactor,
    )
    with suppress(SettingsError):
        programs.begin(context.settings)


def without_credentials(context: LoopContext, state: LoopState) -> LoopState:
    """Removes credentials from the prompt in the state, because the prompt is recorded and sent to every iteration."""
    if state.plan.prompt is None:
        return state
    prompt = context.redactor.redact(state.plan.prompt)
    return replace(state, plan=replace(state.plan, prompt=prompt))


@contextmanager
def locked_checkout(context: LoopContext, plan: LoopPlan) -> Iterator[tuple[Workplace, CheckoutLock]]:
    """Locks the checkout during the block, so that no other loop works on it. Raises CannotError, CheckoutError and Interrupted."""
    box, store = context.commands.box, context.store

    def may_read(path: str) -> bool:
        try:
            return not box.is_confined or box.parts.may_read(path)
        except OSError as error:
            raise CheckoutError(f"the sandbox cannot be made: {error}", Outcome.IO_ERROR) from None

    checkout = open_checkout(
        context.directory,
        plan.plan_file,
        GitSeams(
            *(context.command_environment, context.commands.supervisor, context.waiter, context.clock),
            writable=context.search.roots,
            filters=context.settings.loop.git_filters,
            may_read=may_read,
            token=given_token(context.environment),
        ),
        own_paths=tuple(map(Path, plan.own_paths)),
        writable=tuple(map(Path, plan.added_directories)),
        search=context.search,
        warn=context.warn,
        start=box.start,
        redactor=context.redactor,
        unpublished_in=box.unpublished_in,
    )
    lock = CheckoutLock(checkout, context.directory, context.clock.utc_now(), place=store.place)
    try:
        for notice in filter(None, (lock.notice, store.notice)):
            context.warn(notice)
        yield checkout, lock
    finally:
        lock.close()


def resumed(context: LoopContext, plan: LoopPlan, checkout: Workplace) -> tuple[LoopState, FileRecord]:
    """Reads the newest record and its state again after this process has locked the checkout. Another loop may have
    changed them since they were first read. `plan` comes from the first reading. Raises CannotError,
    RecordError, CheckoutError and Interrupted.
    """
    state = opening_state(context.options, context.environment, context.store, context.clock)
    state = without_credentials(context, state)
    read = {"settings_files": plan.settings_files, "claude_files": plan.claude_files}
    plan = replace(state.plan, **read)
    record = context.store.newest()
    _refuse_foreign_record(context, record, plan, checkout)
    waiter = _waiter_of(context, state)
    check_checkout(checkout, commits=plan.commits, pushes=plan.pushes, waiter=waiter)
    return replace(state, plan=plan), record


def _refuse_foreign_record(
    context: LoopContext, record: FileRecord, plan: LoopPlan, checkout: Workplace
) -> None:
    """Raises CannotError if git tracks the record, which then came with the repository. Restores the git settings for pushes."""
    if checkout.tracks(record.folder):
        why = f"{record.path} came with the repository, so ralph does not use it; `ralph loop` starts a new loop"
        raise CannotError(why)
    pins = record.pins()
    if not plan.pushes or pins is None or isinstance(checkout, PlainDirectory):
        return
    try:
        for notice in checkout.restore_pins(pins):
            context.warn(notice)
    except BrokenPinsError as error:
        raise CannotError(f"{record.folder / PINS_FILE} {error}", Outcome.IO_ERROR) from None


def _waiter_of(context: LoopContext, state: LoopState) -> Waiter:
    """A waiter that ends with the loop's time, because the push is tried before the first iteration, and a remote may
    never answer. If that time is already over, the waiter has no limit, and the loop ends in the usual way, with a
    record.
    """
    left_s = (state.plan.limits.max_time_s or 0.0) - state.elapsed_s
    return context.waiter_until(context.clock.now_s() + left_s if left_s > 0 else None)


def new_record(context: LoopContext, state: LoopState, checkout: Workplace) -> FileRecord:
    """Begins the record of a new loop. Removes an old stop file, because it would end the new loop. Warns if the
    previous loop in this directory is unfinished. Raises CannotError, CheckoutError and Interrupted.
    """
    # A resumed loop does not repeat these notices, because they apply to the whole loop.
    if left := placeholders_left(context.directory):
        context.warn(left)
    plan, waiter = state.plan, _waiter_of(context, state)
    for notice in check_checkout(checkout, commits=plan.commits, pushes=plan.pushes, waiter=waiter):
        context.tell(notice)
    try:
        if not plan.has_only_until:
            StopFileBelow(context.directory).remove()
        _warn_of_unfinished(context)
        record = context.store.begin()
        if plan.pushes and isinstance(checkout, GitCheckout):
            record.save_pins(checkout.pins_text())
    except (OSError, JournalError) as error:
        shortage = shortage_of(error)
        if shortage is not None:
            raise CannotError(line_with_advice(shortage), Outcome.API_UNAVAILABLE) from None
        said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise CannotError(f"cannot start a loop: {said}", Outcome.IO_ERROR) from None
    return record


def _warn_of_unfinished(context: LoopContext) -> None:
    try:
        before = context.store.newest().load()
    except RecordError:
        return  # no loop here can be resumed
    if before.ended is None or before.current is not None:
        context.warn(
            f"the last loop here stopped in iteration {len(before.iterations) + 1}; this is a new loop "
            "(`ralph loop --continue` would have resumed the last one)"
        )


def loop_world(
    context: LoopContext,
    plan: LoopPlan,
    record: FileRecord,
    checkout: Workplace,
    lock: CheckoutLock,
    *,
    silent_input: SilentPipe | None,
) -> LoopWorld:
    """Makes an implementation of each port that the loop uses. Raises CannotError."""
    if plan.limits == type(plan.limits)():
        context.tell("no limit is set: see --max-iterations, --max-budget-usd and --max-time")
    iterations: Iterations
    if context.agent is not None:
        iterations = _agent_iterations(context, context.agent, record)
    else:
        iterations = RalphIterations(
            plan,
            folder=record.folder,
            environment=with_set_aside(context.environment, context.search),
            waiter=context.waiter,
            clock=context.clock,
            lock=lock.descriptor,
            settings=context.settings_files,
            redactor=context.redactor,
            guards=context.guards,
        )

    def late_input() -> str | None:
        return silent_input.refusal if silent_input is not None and silent_input.unread_bytes() else None

    page = None
    if plan.report_file is not None:
        environment = without_unsafe_loads(context.environment, context.search)
        page = LoopPage(plan.report_file, record.folder.name, environment, context.commands)
    schedule = context.settings.loop
    return LoopWorld(
        checkout=checkout,
        iterations=iterations,
        check=_check("check", plan.until, context, record),
        gate=_check("gate", plan.gate, context, record),
        open_tasks=None
        if plan.plan is None
        else partial(read_open_tasks, Path(plan.directory, plan.plan), plan.directories),
        stop_file=StopFileBelow(context.directory),
        record=record,
        events=context.events,
        waiter=context.waiter,
        clock=context.clock,
        redact=context.redactor.redact_all,
        late_input=late_input,
        read_prompt=PromptReader(plan, warn=context.warn, redact=context.redactor.redact).read,
        own_limits=context.settings.limits,
        schedule=schedule if plan.waits_in_outages else replace(schedule, outage_budget_s=0.0),
        turn_lock=context.turn_lock or NoTurnLock(),
        page=page,
    )


def _agent_iterations(context: LoopContext, agent: OpenAgent, record: FileRecord) -> Iterations:
    if agent.commands.box.is_confined:
        try:
            agent.home.begin(is_new=not context.options.continues)
        except OSError as error:
            problem = (
                f"--agent {agent.line.row.name} needs {agent.home.folder}: {error.filename}: {error.strerror}"
            )
            raise CannotError(problem, Outcome.IO_ERROR) from None
    for notice in agent.commands.box.notices:
        context.tell(notice.line)
    return AgentIterations(agent, record.folder, context.redactor)


def _check(name: str, command: str | None, context: LoopContext, record: FileRecord) -> ShellCheck | None:
    if command is None:
        return None
    return ShellCheck(
        *(name, command, record.folder, context.check_environment, context.redactor),
        commands=context.commands,
        search=context.search,
    )
