"""Makes the objects that one `ralph loop` command works with: settings, secrets and event sinks. This starts no
process and calls no API. If an object cannot be made, the command ends with a one-line error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.git.own_paths import own_output_files
from ralph.loop.agents.home import AgentHome
from ralph.loop.agents.start import OpenAgent, agent_of, environment_of, is_asked
from ralph.loop.rules import with_new_limits
from ralph.loop.sinks import LoopLog, LoopNarration, LoopNotices, StepSummary
from ralph.loop.state import LoopState, moved_state
from ralph.loop.store import LoopStore
from ralph.loop.values import REPORT_PAGE, LoopLimits
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.own_process import why_too_few_descriptors
from ralph.machine.own_programs import search_around, without_unsafe_loads
from ralph.machine.processes import protect_this_process
from ralph.machine.repository import repository_top
from ralph.machine.trees import LocalDisk
from ralph.machine.waiter import Heartbeats, InboxWaiter
from ralph.output.notifier import Notifier
from ralph.output.standard_streams import has_color, obeys_controls
from ralph.places.gather import gather_places
from ralph.sandbox.box_plan import CannotConfineError, plan_box, refuse_owners_work, with_denied_reads
from ralph.sandbox.command_box import CommandBox
from ralph.sandbox.disk_work import DiskWork, OwnDisks
from ralph.sessions.store import SessionStore
from ralph.settings.claude_files import (
    ClaudeFileError,
    document_of,
    guards_in_short,
    judged,
    read_claude_files,
)
from ralph.settings.handover import changed_since, files_of_loop, recorded_files
from ralph.settings.merge import ClaudeOptions, SettingsError, load_with_claude
from ralph.values.credentials import TURN_LOCK, argument_secrets, child_environment, known_secrets
from ralph.values.events import EventStream, Notice
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import JournalError
from ralph.values.redaction import Redactor
from ralph.values.tool_choice import is_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ralph.loop.options import LoopOptions
    from ralph.loop.values import LoopPlan
    from ralph.machine.inbox import Inbox
    from ralph.machine.own_programs import ProgramSearch
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.sandbox.sandbox_settings import SandboxSettings
    from ralph.sessions.turn_lock import FileTurnLock
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock, Events

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class LoopContext(Struct, frozen=True):
    options: LoopOptions
    environment: Mapping[str, str]
    settings: Settings
    settings_files: tuple[SettingsFile, ...]
    """The settings files with the content that they had when the loop began. Later changes to the files have no
    effect."""
    redactor: Redactor
    command_environment: Mapping[str, str]
    """The environment variables for the gate, the `--until` check and git. Credentials are removed, as they are for the
    agent's commands. The user can exempt variables by naming them in `tools.pass_env`."""
    supervisor: CommandSupervisor
    """Starts the check and git."""
    box: CommandBox
    """The sandbox in which the supervisor runs the check and ripgrep. Git runs outside of the sandbox."""
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
        """Ends the supervisor and removes the sandbox's temporary files. Must be called when the loop has ended."""
        self.supervisor.close()
        if self.agent is not None:
            self.agent.close()
        if self.turn_lock is not None:
            self.turn_lock.close()
        self.box.close()

    def tell(self, text: str) -> None:
        self.events.emit(Notice(text))

    def waiter_until(self, run_ends_s: float | None) -> InboxWaiter:
        """Makes a waiter that raises Interrupted at the time `run_ends_s` of the monotonic clock. None means no time
        limit.
        """
        return _make_waiter(self.waiter.inbox, self.clock, self.events, self.settings, run_ends_s)

    def warn(self, text: str) -> None:
        """Prints a warning, even with `--quiet`."""
        self.events.emit(Notice(text, is_vital=True))


def event_stream(
    options: LoopOptions,
    environment: Mapping[str, str],
    redactor: Redactor,
    log: LoopLog,
    *,
    is_quiet: bool = False,
) -> Events:
    """Makes the object that receives a loop's events, prints them and passes them on to `log`. In GitHub Actions, the
    object also writes to the summary page of the job: it adds a table when the loop has ended.
    """
    narration = LoopNarration(
        redact=redactor.redact_all,
        has_color=has_color(2, environment),
        is_quiet=is_quiet,
        clears_line=obeys_controls(2, environment),
    )
    path = environment.get(STEP_SUMMARY)
    if not path:
        return EventStream(log, narration)
    told = EventStream(log, narration)
    directories = (options.plan.launch_directory, options.plan.directory)
    summary = StepSummary(path, directories, redact=redactor.redact_all, narration=told)
    return EventStream(
        summary, told
    )  # in this order, a problem with the summary is told before the loop's end


def open_context(
    options: LoopOptions,
    environment: Mapping[str, str],
    inbox: Inbox,
    clock: Clock,
    *,
    early: Events,
    log: LoopLog,
) -> tuple[LoopContext, LoopState]:
    """Makes the context and the state of a new or resumed loop. Changes to the working directory of the loop.

    If the command line gives a prompt, `with_prompt` adds it to the state later. `early` receives the events that are
    emitted before all credentials are known. `log` gets a folder later. Raises CannotError and RecordError.
    """
    too_few = why_too_few_descriptors()
    if too_few is not None:
        raise CannotError(too_few)
    protect_this_process()
    directory = Path(options.plan.directory)
    _enter(directory)
    store = _opened_store(environment, directory)
    if options.has_moved:
        _take_over(store)
    state = opening_state(options, environment, store, clock)
    files = _settings_files(state.plan, environment, early)
    state = replace(state, plan=_with_recorded_files(state.plan, files, environment))
    state = replace(state, plan=_with_claude_files(state.plan, environment, early))
    settings = _settings(state.plan, environment, files)
    environment = {**environment, **settings.variables.plain}
    state = replace(state, plan=_with_wishes(state.plan, environment, settings))
    # The settings have nothing of the options that only the iterations read, such as MCP servers in JSON.
    secrets = known_secrets(environment, (*settings.secrets, *argument_secrets(state.plan.run_arguments)))
    redactor = Redactor(secrets)
    events = event_stream(options, environment, redactor, log, is_quiet=state.plan.is_quiet)
    command_environment = child_environment(
        environment,
        settings.tools.pass_env,
        secrets,
        settings.key_variables,
    )
    waiter = _make_waiter(inbox, clock, events, settings)
    search = search_of(state.plan, settings, command_environment)
    if settings.notify.command is not None:
        notifier = Notifier(
            settings.notify.command,
            directory=state.plan.directory,
            environment=without_unsafe_loads(command_environment, search),
            search=search,
            waiter=waiter,
            clock=clock,
            redact=redactor.redact_all,
            events=events,
        )
        events = EventStream(events, LoopNotices(notifier, state.plan.directory, events))
    turn_lock = _open_turn_lock(environment, waiter)
    guards = _guarding_files(state.plan, environment, search)
    box = _box(state.plan, settings, environment, DiskWork(waiter, clock, OwnDisks()), guards=guards)
    agent = None
    if state.plan.agent is not None:
        line = agent_of(state.plan.agent, state.plan, settings, search)
        roots = tuple(map(os.path.realpath, (directory, *_reach(state.plan))))
        home = AgentHome(str(store.agent_folder), line.row, environment, roots)
        own = _box(
            state.plan, settings, environment, DiskWork(waiter, clock, OwnDisks()), guards=guards, home=home
        )
        variables = environment_of(home, command_environment, is_confined=own.is_confined)
        own_supervisor = _make_supervisor(settings, command_environment, own, search)
        agent = OpenAgent(line, own_supervisor, own, variables, home)
    context = LoopContext(
        options,
        environment,
        settings,
        files,
        redactor,
        command_environment,
        _make_supervisor(settings, command_environment, box, search),
        box,
        agent,
        store,
        events,
        waiter,
        clock,
        log,
        guards,
        turn_lock,
    )
    return context, state


def search_of(plan: LoopPlan, settings: Settings, command_environment: Mapping[str, str]) -> ProgramSearch:
    """Where the loop looks for ralph's own programs."""
    written = settings.sandbox.written(command_environment)
    return search_around(command_environment, (plan.directory, *plan.added_directories), written)


def _make_supervisor(
    settings: Settings, command_environment: Mapping[str, str], box: CommandBox, search: ProgramSearch
) -> CommandSupervisor:
    return CommandSupervisor(
        without_unsafe_loads(command_environment, search),
        most_processes=settings.sandbox.max_processes,
        most_memory_bytes=settings.sandbox.most_memory_bytes,
        makes_group=False,  # the group would be that of the iterations
        confinement=box.confine(),
    )


def _box(
    plan: LoopPlan,
    settings: Settings,
    environment: Mapping[str, str],
    disk: DiskWork,
    *,
    guards: Iterable[str],
    home: AgentHome | None = None,
) -> CommandBox:
    """The sandbox of the check and of ripgrep, or of the agent with these directories. `guards` are files of hooks. Raises CannotError if a protection that the user
    requires is impossible.
    """
    roots = tuple(map(os.path.realpath, (plan.directory, *plan.added_directories)))
    try:
        wanted = _restricted_sandbox(plan, settings)
        wanted = wanted if home is None else home.sandbox(wanted)
        box_plan = plan_box(wanted, environment, (Path(plan.directory), *_reach(plan)))
        refuse_owners_work(box_plan, Path(plan.directory))
        box_plan = _without_denied(box_plan, plan, settings, environment, roots)
    except CannotConfineError as error:
        raise CannotError(str(error)) from None
    configuration = () if plan.config_file is None else (Path(plan.config_file),)
    named = None if plan.session_directory is None else Path(plan.session_directory)
    of_agents = (*plan.mcp_files, plan.claude_settings or "")
    of_home = () if home is None else home.protected
    agents = tuple(Path(one) for one in (*of_agents, *of_home, *guards) if one.startswith("/"))
    return CommandBox(
        box_plan,
        roots,
        environment,
        lambda: gather_places(roots, environment, configuration, named, agents=agents, given=box_plan.given),
        disk=disk,
    )


def _guarding_files(
    plan: LoopPlan, environment: Mapping[str, str], search: ProgramSearch
) -> Mapping[str, str]:
    files = [file for file in plan.claude_files or () if is_asked(file, plan)]
    if not guards_in_short(files):
        return {}
    from ralph.permissions.claude_settings import read_settings  # noqa: PLC0415 - few loops have such files
    from ralph.permissions.hook_answers import GUARDED  # noqa: PLC0415 - few loops have such files
    from ralph.places.own_commands import guarding_files  # noqa: PLC0415 - few loops have such files

    hooks = [hook for file in files for hook in read_settings(document_of(file), file).hooks]
    guards = [hook.command for hook in hooks if hook.event in GUARDED]
    known = {**environment, "CLAUDE_PROJECT_DIR": plan.directory}
    return guarding_files(guards, plan.directory, known, search)


def _restricted_sandbox(plan: LoopPlan, settings: Settings) -> SandboxSettings:
    """The settings of the sandbox with the restrictions of the files for Claude Code, as an iteration applies them:
    the check runs what the iterations have written. Raises CannotError and CannotConfineError.
    """
    files = plan.claude_files or ()
    if not guards_in_short(files):
        return settings.sandbox
    from ralph.permissions.claude_settings import read_settings  # noqa: PLC0415 - few loops have such files
    from ralph.sandbox.sandbox_limits import restricted  # noqa: PLC0415 - few loops have such files

    limits = [(file.name, read_settings(document_of(file), file).sandbox) for file in files]
    return restricted(settings.sandbox, [(name, one) for name, one in limits if one.keys])


def _without_denied(
    box_plan: BoxPlan,
    plan: LoopPlan,
    settings: Settings,
    environment: Mapping[str, str],
    roots: Sequence[str],
) -> BoxPlan:
    """The sandbox without what permission rules deny to read, as that of an iteration: the output of a check is read by the model.
    Raises CannotError.
    """
    files, disallowed = plan.claude_files or (), settings.tools.disallowed
    if not (box_plan.is_confined and (guards_in_short(files) or any(map(is_pattern, disallowed)))):
        return box_plan
    from ralph.permissions.claude_settings import read_settings  # noqa: PLC0415 - few loops have rules
    from ralph.permissions.judge import RulePlaces, places_not_read  # noqa: PLC0415 - few loops have rules
    from ralph.permissions.rule import RuleError  # noqa: PLC0415 - few loops have rules

    rules = [rule for file in files for rule in read_settings(document_of(file), file).rules]
    home = environment.get("HOME", "")
    places = RulePlaces(plan.directory, home if home.startswith("/") else "", LocalDisk(), roots[1:])
    try:
        denied = places_not_read(rules, disallowed, places, roots)
    except RuleError as error:
        raise CannotError(str(error)) from error
    return with_denied_reads(box_plan, denied.paths, [*map(Path, roots)], denied.unsearched)


def _make_waiter(
    inbox: Inbox, clock: Clock, events: Events, settings: Settings, run_ends_s: float | None = None
) -> InboxWaiter:
    heartbeats = Heartbeats(clock, settings.clocks.heartbeat_s)
    return InboxWaiter(clock, inbox, events=events, heartbeats=heartbeats, run_ends_s=run_ends_s)


def _open_turn_lock(environment: Mapping[str, str], waiter: InboxWaiter) -> FileTurnLock | None:
    """The lock that another program shares with the loop, or None. Raises CannotError if it is unusable."""
    path = environment.get(TURN_LOCK)
    if not path:
        return None
    from ralph.sessions.turn_lock import FileTurnLock, TurnLockError  # noqa: PLC0415 - few loops share a lock

    try:
        return FileTurnLock(path, waiter)
    except TurnLockError as error:
        raise CannotError(str(error)) from error


def opening_state(
    options: LoopOptions, environment: Mapping[str, str], store: LoopStore, clock: Clock
) -> LoopState:
    """The state with which the loop starts. With `--continue`, this is the newest recorded state, otherwise a new
    one. Raises CannotError and RecordError.
    """
    now = clock.utc_now().isoformat()
    if not options.continues:
        plan = _with_own_paths(options.plan, environment)
        return LoopState(plan, started_at=now, pid=os.getpid(), updated_at=now)
    directory, record = options.plan.directory, store.newest()
    state, given = record.load(), options.limits_given
    if options.has_moved and state.plan.directory != directory:
        state = moved_state(state, directory, *_roots(state.plan.directory, directory))
        if not Path(state.plan.launch_directory).is_dir():  # it was on the other machine
            state = replace(state, plan=replace(state.plan, launch_directory=directory))
    if state.plan.directory != directory:
        other = f"{record.path} is of the loop in {state.plan.directory}; ralph loop begins a new one here"
        raise CannotError(other)
    ended = state.ended
    if ended is not None and ended.outcome is Outcome.COMPLETED and given == LoopLimits():
        done = f"the loop of {directory} is done ({ended.reason})"
        raise CannotError(f"{done}; ralph loop begins a new one, higher limits go on with it", Outcome.USAGE)
    _refuse_reached_limit(state, given)
    plan = _with_own_paths(state.plan, environment)
    if options.base_url_given is not None:
        # If an option is given twice, the last value is used.
        plan = replace(plan, run_arguments=(*plan.run_arguments, "--base-url", options.base_url_given))
    return with_new_limits(replace(state, plan=plan, pid=os.getpid(), ended=None, unpushed=0), given)


def _roots(old: str, new: str) -> tuple[str, str]:
    """The roots below which paths have moved together with a directory: the top of its repository before and now. If
    the directory has another place in the repository than before, it is the root itself.
    """
    top = repository_top(Path(new))
    inside = "" if top is None else new.removeprefix(str(top))
    return (old.removesuffix(inside), str(top)) if inside and old.endswith(inside) else (old, new)


def _take_over(store: LoopStore) -> None:
    try:
        store.take_over()
    except OSError as error:
        problem = f"the loop's record cannot be moved: {error.filename}: {error.strerror}"
        raise CannotError(problem, Outcome.IO_ERROR) from None


def _refuse_reached_limit(state: LoopState, given: LoopLimits) -> None:
    """Raises CannotError if the loop has already done as many iterations as it may do. It would end at once, and
    without a check the end would be a success, even after a failure.
    """
    done, recorded = len(state.iterations), state.plan.limits.max_iterations
    has_failed = state.ended is not None and state.ended.outcome is not Outcome.COMPLETED
    has_failed = has_failed and not state.has_unsaved_work  # else the loop continues, to commit and push it
    most = given.max_iterations
    if most is None and not state.plan.has_condition and has_failed:
        most = recorded
    if most is not None and most <= done:
        number = "1 iteration is" if done == 1 else f"{done} iterations are"
        raise CannotError(
            f"{number} done already: --max-iterations must be more than that to go on", Outcome.USAGE
        )


def _enter(directory: Path) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise CannotError(f"cannot work in {directory}: {error.strerror}", Outcome.USAGE) from None


def _opened_store(environment: Mapping[str, str], directory: Path) -> LoopStore:
    try:
        return LoopStore.for_user(environment, directory)
    except JournalError as error:
        problem = f"there is no place for the loop's record: {error}"
        raise CannotError(problem, Outcome.IO_ERROR) from None


def _settings_files(
    plan: LoopPlan, environment: Mapping[str, str], events: Events
) -> tuple[SettingsFile, ...]:
    """Reads the settings files. If the plan has recorded the content of a file, uses the recorded content, so that an
    iteration cannot change the loop's settings. Warns about recorded files that have changed since.
    """
    recorded = plan.settings_files or ()
    config_file = None if plan.config_file is None else Path(plan.config_file)
    mcp_files = map(Path, plan.mcp_files)
    files = files_of_loop(
        environment, Path(plan.directory), config_file, recorded, mcp_files, reach=_reach(plan)
    )
    for path in changed_since(recorded):
        problem = f"{path} was changed since the loop began: what it said then counts to its end"
        events.emit(Notice(problem, is_vital=True))
    return files


def _with_recorded_files(
    plan: LoopPlan, files: tuple[SettingsFile, ...], environment: Mapping[str, str]
) -> LoopPlan:
    if plan.settings_files is not None:
        return plan
    reach = (Path(plan.directory), *_reach(plan))
    return replace(plan, settings_files=recorded_files(files, reach, environment))


def _reach(plan: LoopPlan) -> tuple[Path, ...]:
    """The directories besides the working directory that an iteration may write."""
    return tuple(map(Path, plan.added_directories))


def _with_claude_files(plan: LoopPlan, environment: Mapping[str, str], events: Events) -> LoopPlan:
    """Adds the settings files made for Claude Code to the plan. For a file that an iteration could have changed, uses
    the content from the beginning of the loop. Reads the user's own file again. Raises CannotError.
    """
    try:
        now = read_claude_files(Path(plan.directory), environment, plan.claude_settings, _reach(plan))
    except ClaudeFileError:
        if plan.claude_files is None:
            raise
        now = ()
    if plan.claude_files is None:
        return replace(plan, claude_files=now)
    kept = tuple(file for file in plan.claude_files if file.kind != "user" or not now)
    for file in kept:
        if file.kind != "user" and file not in now:
            problem = f"{file.name} was changed since the loop began: what it said then counts to its end"
            events.emit(Notice(problem, is_vital=True))
    return replace(plan, claude_files=(*kept, *(file for file in now if file.kind == "user")))


def _settings(plan: LoopPlan, environment: Mapping[str, str], files: tuple[SettingsFile, ...]) -> Settings:
    """Loads the loop's settings. A missing API key is not an error here, because the options in `plan.run_arguments`
    may name a key. Each iteration checks for itself whether it has a key. Raises CannotError.
    """
    config_file = None if plan.config_file is None else Path(plan.config_file)
    flags = {"tools.pass_env": plan.pass_env, "notify.command": plan.notify, **plan.sandbox}
    claude = ClaudeOptions(plan.claude_settings, frozenset(plan.setting_sources), plan.claude_files)
    directory = Path(plan.directory)
    try:
        return load_with_claude(
            flags, environment, directory, config_file, files, reach=_reach(plan), claude=claude
        )
    except SettingsError as error:
        if error.so_far is None:
            raise
        return error.so_far


def _with_wishes(plan: LoopPlan, environment: Mapping[str, str], settings: Settings) -> LoopPlan:
    """The plan with the directories that settings files for Claude Code add, and with these files as they are judged with all
    that commands may write.
    """
    search = search_of(plan, settings, environment)
    directories = tuple(dict.fromkeys((*plan.added_directories, *settings.directories)))
    files = judged(plan.claude_files or (), search, environment)
    return replace(plan, added_directories=directories, claude_files=files)


def _with_own_paths(plan: LoopPlan, environment: Mapping[str, str]) -> LoopPlan:
    """Adds to the plan's `own_paths` all paths that ralph writes to, and all files that receive ralph's output.
    Changes to these files are not the agent's work.
    """
    directory = Path(plan.directory)
    named = None if plan.session_directory is None else Path(plan.session_directory)
    stores = [SessionStore.to_read(environment, place) for place in (None, named)]
    files = [plan.metrics_file, plan.report_file, environment.get(STEP_SUMMARY)]
    places = (
        *own_output_files(),
        *(store.root for store in stores),
        *(store.place_of(directory) for store in stores),
        *LoopStore.to_read(environment, directory).roots,
        directory / REPORT_PAGE,
        *(Path(plan.launch_directory, path) for path in files if path),
    )
    return replace(plan, own_paths=tuple(dict.fromkeys((*plan.own_paths, *map(str, places)))))
