"""Makes the objects that one `ralph loop` command works with: settings, secrets, event sinks, sandboxes and supervisors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.agents.home import AgentHome
from ralph.loop.agents.start import OpenAgent, agent_of, environment_of, rules_of
from ralph.loop.opening.plan import (
    STEP_SUMMARY,
    opening_state,
    reach_of,
    settings_of,
    with_claude_files,
    with_settings_files,
)
from ralph.loop.record import LoopStore
from ralph.loop.sinks import LoopLog, LoopNarration, LoopNotices, StepSummary
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.trees import LocalDisk
from ralph.machine.own_programs import search_around, without_unsafe_loads
from ralph.machine.process_start import why_too_few_descriptors
from ralph.machine.processes import protect_this_process
from ralph.machine.waiter import Heartbeats, InboxWaiter
from ralph.output.notifier import Notifier
from ralph.output.standard_streams import has_color, obeys_controls
from ralph.permissions.hook_answers import GUARDED
from ralph.permissions.rule import RuleError
from ralph.places.gather import gather_places
from ralph.places.own_commands import guarding_files
from ralph.prompt.judged_file import refuse_planted
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.disk_work import DiskWork, OwnDisks
from ralph.sandbox.planning import plan_box, refuse_owners_work, with_denied_reads
from ralph.sandbox.sandbox_limits import restricted
from ralph.sessions.store import refuse_open
from ralph.sessions.turn_lock import FileTurnLock, TurnLockError
from ralph.settings.claude_files import judged
from ralph.values.credentials import TURN_LOCK, child_environment, known_secrets
from ralph.values.events import EventStream, Notice
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import JournalError
from ralph.values.redaction import Redactor
from ralph.values.tool_choice import is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.loop.state import LoopState
    from ralph.loop.values import LoopOptions, LoopPlan
    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.waiter import Inbox
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.sandbox_settings import SandboxSettings
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock, Events


class LoopContext(Struct, frozen=True):
    options: LoopOptions
    environment: Mapping[str, str]
    settings: Settings
    settings_files: tuple[SettingsFile, ...]
    """The settings files with the content that they had when the loop began."""
    redactor: Redactor
    command_environment: Mapping[str, str]
    """The variables for the gate, the `--until` check and git: without credentials, but for those that `tools.pass_env` names."""
    search: ProgramSearch
    """Where the loop looks for ralph's own programs."""
    supervisor: CommandSupervisor
    """Starts the check and git."""
    box: CommandBox
    """The sandbox in which the supervisor runs the check and ripgrep. Git runs outside the sandbox."""
    agent: OpenAgent | None
    """The agent that does the iterations, or None if ralph does."""
    store: LoopStore
    events: Events
    waiter: InboxWaiter
    clock: Clock
    log: LoopLog
    guards: Mapping[str, str]
    """The files of hooks that commands could change, each with the digest of its content when this process began."""
    turn_lock: FileTurnLock | None
    """The lock that another program shares with the loop (RALPH_TURN_LOCK), or None."""

    @property
    def directory(self) -> Path:
        return Path(self.options.plan.directory)

    @property
    def check_environment(self) -> dict[str, str]:
        """As `command_environment`, with the variables that settings files for Claude Code give to commands."""
        settings, given = self.settings, self.settings.command_variables.plain
        kept = child_environment(given, settings.tools.pass_env, known_secrets(given, settings.secrets))
        return {**self.command_environment, **kept}

    def close(self) -> None:
        """Ends the supervisors and removes the sandboxes' temporary files."""
        self.supervisor.close()
        for one in (self.agent, self.turn_lock, self.box):
            if one is not None:
                one.close()

    def tell(self, text: str) -> None:
        self.events.emit(Notice(text))

    def warn(self, text: str) -> None:
        """Prints a warning, even with `--quiet`."""
        self.events.emit(Notice(text, is_vital=True))

    def waiter_until(self, run_ends_s: float | None) -> InboxWaiter:
        """A waiter that raises Interrupted at the time `run_ends_s` of the monotonic clock, or without a time limit."""
        return _waiter(self.waiter.inbox, self.clock, self.events, self.settings, run_ends_s)


def event_stream(
    plan: LoopPlan,
    environment: Mapping[str, str],
    redactor: Redactor,
    log: LoopLog,
    *,
    is_quiet: bool = False,
) -> Events:
    """The stream that prints a loop's events and passes them on to `log`. In GitHub Actions, it also adds a table to the
    summary page of the job when the loop has ended.
    """
    narration = LoopNarration(
        redact=redactor.redact_all,
        has_color=has_color(2, environment),
        is_quiet=is_quiet,
        clears_line=obeys_controls(2, environment),
    )
    told = EventStream(log, narration)
    path = environment.get(STEP_SUMMARY)
    if not path:
        return told
    summary = StepSummary(path, plan.directories, redact=redactor.redact_all, narration=told)
    return EventStream(summary, told)  # so a problem with the summary is told before the loop's end


def _secret_places(plan: LoopPlan, redactor: Redactor) -> tuple[tuple[int, int, int], ...]:
    spans = ((at, span) for at, text in enumerate(plan.option_texts) for span in redactor.spans(text))
    return tuple((at, begin, end - begin) for at, (begin, end) in spans)


def open_context(
    options: LoopOptions,
    environment: Mapping[str, str],
    inbox: Inbox,
    clock: Clock,
    *,
    early: Events,
    log: LoopLog,
) -> tuple[LoopContext, LoopState]:
    """Changes to the loop's directory; makes its context and state, without the prompt of the command line. `early` gets
    the events before all credentials are known. Raises CannotError and RecordError.
    """
    store = _entered_store(options, environment)
    state = opening_state(options, environment, store, clock)

    def warn(text: str) -> None:
        early.emit(Notice(text, is_vital=True))

    plan, files = with_settings_files(state.plan, environment, warn)
    plan = with_claude_files(plan, environment, warn)
    settings = settings_of(plan, environment, files)
    environment = {**environment, **settings.variables.plain}
    plan = _with_wishes(plan, environment, settings)
    if not options.continues:
        named = (plan.config_file, plan.claude_settings, *plan.mcp_files)
        refuse_planted((one for one in named if one and one.startswith("/")), plan.directories)
    # The settings have nothing of the options that only the iterations read, such as MCP servers in JSON.
    secrets = known_secrets(environment, (*settings.secrets, *plan.secrets()))
    redactor = Redactor(secrets)
    plan = replace(plan, secret_places=_secret_places(plan, redactor))
    events = event_stream(plan, environment, redactor, log, is_quiet=plan.is_quiet)
    ours = child_environment(environment, settings.tools.pass_env, secrets, settings.key_variables)
    waiter = _waiter(inbox, clock, events, settings)
    search = _search(plan, settings, ours)
    refuse_open(store.place, search.roots, is_old=options.continues)
    if settings.notify.command is not None:
        notifier = Notifier(
            settings.notify.command,
            directory=plan.directory,
            environment=ours,
            search=search,
            waiter=waiter,
            clock=clock,
            redact=redactor.redact_all,
            events=events,
        )
        events = EventStream(events, LoopNotices(notifier, plan.directory, events))
    turn_lock = _open_turn_lock(environment, waiter)
    boxes = _Boxes(plan, settings, environment, search, lambda: DiskWork(waiter, clock, OwnDisks()))
    box = boxes.box()
    context = LoopContext(
        *(options, environment, settings, files, redactor, ours, search),
        supervisor=_supervisor(settings, ours, box, search),
        box=box,
        agent=_open_agent(boxes, store, ours),
        store=store,
        events=events,
        waiter=waiter,
        clock=clock,
        log=log,
        guards=boxes.guards,
        turn_lock=turn_lock,
    )
    return context, replace(state, plan=plan)


def _entered_store(options: LoopOptions, environment: Mapping[str, str]) -> LoopStore:
    too_few = why_too_few_descriptors()
    if too_few is not None:
        raise CannotError(too_few)
    protect_this_process()
    directory = Path(options.plan.directory)
    try:
        os.chdir(directory)
    except OSError as error:
        raise CannotError(f"cannot work in {directory}: {error.strerror}", Outcome.USAGE) from None
    try:
        store = LoopStore.for_user(environment, directory, options.plan.reach, is_old=options.continues)
        if options.has_moved:
            store.take_over()
    except JournalError as error:
        problem = f"the loop's record cannot be saved: {error}"
        raise CannotError(problem, Outcome.IO_ERROR) from None
    except OSError as error:
        problem = f"the loop's record cannot be moved: {error.filename}: {error.strerror}"
        raise CannotError(problem, Outcome.IO_ERROR) from None
    return store


def _with_wishes(plan: LoopPlan, environment: Mapping[str, str], settings: Settings) -> LoopPlan:
    search = _search(plan, settings, environment)
    directories = tuple(dict.fromkeys((*plan.added_directories, *settings.directories)))
    files = judged(plan.claude_files or (), search, environment)
    written = settings.sandbox.written(environment)
    return replace(plan, added_directories=directories, written=written, claude_files=files)


def _search(plan: LoopPlan, settings: Settings, environment: Mapping[str, str]) -> ProgramSearch:
    written = settings.sandbox.written(environment)
    return search_around(environment, (plan.directory, *plan.added_directories), written)


def _waiter(
    inbox: Inbox, clock: Clock, events: Events, settings: Settings, run_ends_s: float | None = None
) -> InboxWaiter:
    heartbeats = Heartbeats(clock, settings.clocks.heartbeat_s)
    return InboxWaiter(clock, inbox, events=events, heartbeats=heartbeats, run_ends_s=run_ends_s)


def _supervisor(
    settings: Settings, environment: Mapping[str, str], box: CommandBox, search: ProgramSearch
) -> CommandSupervisor:
    return CommandSupervisor(
        without_unsafe_loads(environment, search),
        most_processes=settings.sandbox.max_processes,
        most_memory_bytes=settings.sandbox.most_memory_bytes,
        makes_group=False,  # the group would be that of the iterations
        confinement=box.confine(),
    )


def _open_agent(boxes: _Boxes, store: LoopStore, command_environment: Mapping[str, str]) -> OpenAgent | None:
    plan, settings, search = boxes.plan, boxes.settings, boxes.search
    if plan.agent is None:
        return None
    line = agent_of(plan.agent, plan, settings, search)
    home = AgentHome(str(store.agent_folder), line.row, boxes.environment, boxes.roots)
    box = boxes.box(home)
    variables = environment_of(home, command_environment, is_confined=box.is_confined)
    return OpenAgent(line, _supervisor(settings, command_environment, box, search), box, variables, home)


def _open_turn_lock(environment: Mapping[str, str], waiter: InboxWaiter) -> FileTurnLock | None:
    path = environment.get(TURN_LOCK)
    if not path:
        return None
    try:
        return FileTurnLock(path, waiter)
    except TurnLockError as error:
        raise CannotError(str(error)) from error


class _Boxes:
    """Makes the sandbox of the check and of ripgrep, and that of another agent. Both have the restrictions that files for
    Claude Code name, as an iteration has: the check runs what iterations have written, and the model reads its output.
    """

    def __init__(
        self,
        plan: LoopPlan,
        settings: Settings,
        environment: Mapping[str, str],
        search: ProgramSearch,
        new_disk: Callable[[], DiskWork],
    ) -> None:
        self.plan, self.settings, self.environment, self.search = plan, settings, environment, search
        self.roots = tuple(map(os.path.realpath, (plan.directory, *plan.added_directories)))
        self._new_disk = new_disk
        self._read = rules_of(plan.claude_files or ())
        """The rules, hooks and limits of the files for Claude Code, with the name of each. Empty if none has any."""
        self.guards = self._guarding_files()

    def box(self, home: AgentHome | None = None) -> CommandBox:
        """The sandbox of the check, or of the agent with these directories. Raises CannotError if it lacks what was required."""
        plan, roots, environment = self.plan, self.roots, self.environment
        try:
            wanted = self._restricted()
            wanted = wanted if home is None else home.sandbox(wanted)
            box_plan = plan_box(wanted, environment, (Path(plan.directory), *reach_of(plan)))
            refuse_owners_work(box_plan, Path(plan.directory))
            box_plan = self._without_denied(box_plan)
        except CannotConfineError as error:
            raise CannotError(str(error)) from None
        configuration = () if plan.config_file is None else (Path(plan.config_file),)
        named = None if plan.session_directory is None else Path(plan.session_directory)
        of_home = () if home is None else home.protected
        words = (*plan.mcp_files, plan.claude_settings or "", *of_home, *self.guards)
        agents = tuple(Path(one) for one in words if one.startswith("/"))
        return CommandBox(
            box_plan,
            roots,
            environment,
            lambda: gather_places(
                roots, environment, configuration, named, agents=agents, given=box_plan.given
            ),
            disk=self._new_disk(),
        )

    def _guarding_files(self) -> Mapping[str, str]:
        plan = self.plan
        read = rules_of(plan.claude_files or (), plan)
        if not read:
            return {}
        guards = [hook.command for _, one in read for hook in one.hooks if hook.event in GUARDED]
        known = {**self.environment, "CLAUDE_PROJECT_DIR": plan.directory}
        return guarding_files(guards, plan.directory, known, self.search)

    def _restricted(self) -> SandboxSettings:
        if not self._read:
            return self.settings.sandbox
        limits = [(name, one.sandbox) for name, one in self._read if one.sandbox.keys]
        return restricted(self.settings.sandbox, limits)

    def _without_denied(self, box_plan: BoxPlan) -> BoxPlan:
        disallowed = self.settings.tools.disallowed
        if not (box_plan.is_confined and (self._read or any(map(is_pattern, disallowed)))):
            return box_plan
        from ralph.permissions.judge import RulePlaces, places_not_read  # noqa: PLC0415 - few loops have rules

        rules = [rule for _, one in self._read for rule in one.rules]
        home = self.environment.get("HOME", "")
        home = home if home.startswith("/") else ""
        places = RulePlaces(self.plan.directory, home, LocalDisk(), self.roots[1:])
        try:
            denied = places_not_read(rules, disallowed, places, self.roots)
        except RuleError as error:
            raise CannotError(str(error)) from error
        return with_denied_reads(box_plan, denied.paths, [*map(Path, self.roots)], denied.unsearched)
