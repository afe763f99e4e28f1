"""Prepares a `ralph loop` command: its new or recorded state, the settings files whose content from before the first iteration
counts to the loop's end, and the objects that it works with: settings, secrets, event sinks, sandboxes and supervisors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.git.look import own_output_files
from ralph.loop.agent_iterations import AgentHome
from ralph.loop.agents import OpenAgent, agent_of, environment_of, rules_of
from ralph.loop.check import LoopCommands
from ralph.loop.record import LoopStore
from ralph.loop.rules import with_new_limits
from ralph.loop.sinks import LoopLog, LoopNarration, LoopNotices, StepSummary
from ralph.loop.state import LoopState, moved_state
from ralph.loop.values import REPORT_PAGE, LoopLimits
from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.files.paths import repository_top
from ralph.machine.files.trees import LocalDisk
from ralph.machine.own_programs import search_around, without_unsafe_loads
from ralph.machine.process_start import why_too_few_descriptors
from ralph.machine.starting import protect_this_process
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
from ralph.sandbox.planning import plan_box, refuse_owners_work, restricted, with_denied_places
from ralph.sessions.journal import FileTurnLock
from ralph.sessions.store import SessionStore, refuse_open
from ralph.settings.files import ClaudeFileError, find_settings_files, judged, read_claude_files
from ralph.settings.handover import changed_since, recorded_files
from ralph.settings.merge import ClaudeOptions, SettingsError, load_with_claude
from ralph.values.credentials import TURN_LOCK, child_environment, known_secrets
from ralph.values.events import EventStream, Notice
from ralph.values.outcome import CannotError, Outcome
from ralph.values.ports import JournalError
from ralph.values.redaction import Redactor
from ralph.values.servers import URL_VARIABLES
from ralph.values.tool_choice import is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ralph.loop.values import LoopOptions, LoopPlan
    from ralph.machine.own_programs import ProgramSearch
    from ralph.machine.waiter import Inbox
    from ralph.permissions.rule import PermissionRule
    from ralph.sandbox.box_plan import BoxPlan
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock, Events

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def opening_state(
    options: LoopOptions, environment: Mapping[str, str], store: LoopStore, clock: Clock
) -> LoopState:
    """A new state, or with `--continue` the newest recorded one. Raises CannotError and RecordError."""
    now = clock.utc_now().isoformat()
    if not options.continues:
        plan = _with_own_paths(options.plan, environment)
        return LoopState(plan, started_at=now, pid=os.getpid(), updated_at=now)
    directory, record = options.plan.directory, store.newest()
    state, given = record.load(), options.limits_given
    if options.has_moved and state.plan.directory != directory:
        state = moved_state(state, directory, *_moved_roots(state.plan.directory, directory))
        if not Path(state.plan.launch_directory).is_dir():  # it was on the other machine
            state = replace(state, plan=replace(state.plan, launch_directory=directory))
    if state.plan.directory != directory:
        other = f"{record.path} belongs to the loop in {state.plan.directory}; `ralph loop` without --continue starts a new one here"
        raise CannotError(other)
    ended = state.ended
    if ended is not None and ended.outcome is Outcome.COMPLETED and given == LoopLimits():
        done = f"the loop of {directory} is done ({ended.reason})"
        raise CannotError(
            f"{done}: `ralph loop` without --continue starts a new one, a higher limit resumes this one",
            Outcome.USAGE,
        )
    _refuse_reached_limit(state, given)
    plan = _with_own_paths(state.plan, environment)
    if options.base_url_given is not None:
        # If an option is given twice, the last value is used.
        arguments = (*plan.run_arguments, "--base-url", options.base_url_given)
        flags = {**plan.server_flags, "model.base_url": options.base_url_given}
        plan = replace(plan, run_arguments=arguments, server_flags=flags, server=None)
    return with_new_limits(replace(state, plan=plan, pid=os.getpid(), ended=None, unpushed=0), given)


def _moved_roots(old: str, new: str) -> tuple[str, str]:
    """The roots below which paths have moved together with a directory: the top of its repository before and now, or the
    directory itself if it has another place in the repository than before.
    """
    top = repository_top(Path(new))
    inside = "" if top is None else new.removeprefix(str(top))
    return (old.removesuffix(inside), str(top)) if inside and old.endswith(inside) else (old, new)


def _refuse_reached_limit(state: LoopState, given: LoopLimits) -> None:
    """A loop without iterations left would end at once, and without a check as a success, even after a failure."""
    done, most = len(state.iterations), given.max_iterations
    has_failed = state.ended is not None and state.ended.outcome is not Outcome.COMPLETED
    # With unsaved work the loop continues, to commit and push it.
    if most is None and has_failed and not (state.plan.has_condition or state.has_unsaved_work):
        most = state.plan.limits.max_iterations
    if most is not None and most <= done:
        number = "1 iteration" if done == 1 else f"{done} iterations"
        raise CannotError(
            f"the loop has already run {number}: to continue it, give a higher --max-iterations",
            Outcome.USAGE,
        )


def _with_own_paths(plan: LoopPlan, environment: Mapping[str, str]) -> LoopPlan:
    """Adds all that ralph writes to, or that receives its output, to `own_paths`: changes there are not the agent's work."""
    directory = Path(plan.directory)
    named = _path_of(plan.session_directory)
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


def with_settings_files(
    plan: LoopPlan, environment: Mapping[str, str], warn: Callable[[str], None]
) -> tuple[LoopPlan, tuple[SettingsFile, ...]]:
    """Reads the settings files, and records in the plan those that an iteration could change. A recorded file counts as it
    was, with a warning if it has changed since.
    """
    recorded = plan.settings_files or ()
    directory, reach = Path(plan.directory), _reach_of(plan)
    search = search_around(environment, (directory, *reach))
    mcp_files = map(Path, plan.mcp_files)
    files = find_settings_files(
        environment, directory, _path_of(plan.config_file), search, recorded=recorded, mcp_files=mcp_files
    )
    for path in changed_since(recorded):
        warn(_changed(path))
    if plan.settings_files is None:
        plan = replace(plan, settings_files=recorded_files(files, search))
    return plan, files


def with_claude_files(
    plan: LoopPlan, environment: Mapping[str, str], warn: Callable[[str], None]
) -> LoopPlan:
    """As `with_settings_files`, for the files made for Claude Code. The user's own file is read again. Raises CannotError."""
    try:
        now = read_claude_files(Path(plan.directory), environment, plan.claude_settings, _reach_of(plan))
    except ClaudeFileError:
        if plan.claude_files is None:
            raise
        now = ()
    if plan.claude_files is None:
        return replace(plan, claude_files=now)
    kept = tuple(file for file in plan.claude_files if file.kind != "user" or not now)
    for file in kept:
        if file.kind != "user" and file not in now:
            warn(_changed(file.name))
    return replace(plan, claude_files=(*kept, *(file for file in now if file.kind == "user")))


def _changed(name: str) -> str:
    return f"{name} has changed since the loop began: the loop keeps using the earlier content"


def with_server(plan: LoopPlan, settings: Settings) -> LoopPlan:
    """Records the server that the iterations ask. Raises CannotError if it differs from the recorded one: a variable
    that is no longer set must not send the work and the key to a server that the user did not choose for this loop.
    """
    if plan.agent is not None or settings.origins.get("targets", "default") != "default":
        return replace(plan, server=None)
    first = settings.targets[0]
    now = (first.api, first.base_url)
    if plan.server is None or plan.server == now:
        return replace(plan, server=now)
    api, base_url = plan.server
    named_api = "" if api == first.api else f"RALPH_API={api} and "
    raise CannotError(
        f"the loop asked {base_url} until now, and would ask {first.base_url}: set {named_api}{URL_VARIABLES[api]}={base_url} "
        f"as when it began, or confirm the new server with --continue --base-url {first.base_url}"
    )


def _reach_of(plan: LoopPlan) -> tuple[Path, ...]:
    """The directories besides the working directory that an iteration may write."""
    return tuple(map(Path, plan.added_directories))


def _path_of(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def settings_of(plan: LoopPlan, environment: Mapping[str, str], files: tuple[SettingsFile, ...]) -> Settings:
    """Loads the loop's settings. A missing API key is not an error here, because the options in `plan.run_arguments`
    may name a key. Each iteration checks for itself whether it has a key. Raises CannotError.
    """
    flags = {
        "tools.pass_env": plan.pass_env,
        "notify.command": plan.notify,
        **plan.sandbox,
        **plan.server_flags,
    }
    claude = ClaudeOptions(plan.claude_settings, frozenset(plan.setting_sources), plan.claude_files)
    directory, config_file, reach = Path(plan.directory), _path_of(plan.config_file), _reach_of(plan)
    try:
        return load_with_claude(flags, environment, directory, config_file, files, reach=reach, claude=claude)
    except SettingsError as error:
        if error.so_far is None:
            raise
        return error.so_far


# --- The objects of a loop


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
    commands: LoopCommands
    """Runs the check. Its supervisor also starts git, outside the sandbox, and its sandbox is that of ripgrep."""
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
        self.commands.close()
        if self.agent is not None:
            self.agent.commands.close()
        if self.turn_lock is not None:
            self.turn_lock.close()

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
    plan, files, settings = _with_settings(state.plan, environment, early)
    environment = {**environment, **settings.variables.plain}
    if not options.continues:
        named = (plan.config_file, plan.claude_settings, *plan.mcp_files)
        refuse_planted((one for one in named if one and one.startswith("/")), plan.directories)
    # The settings have nothing of the options that only the iterations read, such as MCP servers in JSON.
    secrets = known_secrets(environment, (*settings.secrets, *plan.secrets()))
    redactor = Redactor(secrets)
    spans = ((at, span) for at, text in enumerate(plan.option_texts) for span in redactor.spans(text))
    plan = replace(plan, secret_places=tuple((at, begin, end - begin) for at, (begin, end) in spans))
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
    lock = environment.get(TURN_LOCK)
    turn_lock = FileTurnLock(lock, waiter) if lock else None
    guards = _guarding_files(plan, environment, search)
    boxes = _Boxes(plan, settings, environment, ours, search, guards, waiter, clock, events)
    context = LoopContext(
        *(options, environment, settings, files, redactor, ours, search),
        commands=boxes.commands(boxes.box()),
        agent=_open_agent(boxes, store),
        store=store,
        events=events,
        waiter=waiter,
        clock=clock,
        log=log,
        guards=guards,
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


def _with_settings(
    plan: LoopPlan, environment: Mapping[str, str], early: Events
) -> tuple[LoopPlan, tuple[SettingsFile, ...], Settings]:
    """The settings, the files that they come from, and the plan with what these say."""

    def warn(text: str) -> None:
        early.emit(Notice(text, is_vital=True))

    plan, found = with_settings_files(plan, environment, warn)
    plan = with_claude_files(plan, environment, warn)
    settings = settings_of(plan, environment, found)
    environment = {**environment, **settings.variables.plain}
    search = _search(plan, settings, environment)
    directories = tuple(dict.fromkeys((*plan.added_directories, *settings.directories)))
    files = judged(plan.claude_files or (), search, environment)
    written = settings.sandbox.written(environment)
    return replace(plan, added_directories=directories, written=written, claude_files=files), found, settings


def _search(plan: LoopPlan, settings: Settings, environment: Mapping[str, str]) -> ProgramSearch:
    written = settings.sandbox.written(environment)
    return search_around(environment, (plan.directory, *plan.added_directories), written)


def _waiter(
    inbox: Inbox, clock: Clock, events: Events, settings: Settings, run_ends_s: float | None = None
) -> InboxWaiter:
    heartbeats = Heartbeats(clock, settings.clocks.heartbeat_s)
    return InboxWaiter(clock, inbox, events=events, heartbeats=heartbeats, run_ends_s=run_ends_s)


def _open_agent(boxes: _Boxes, store: LoopStore) -> OpenAgent | None:
    plan = boxes.plan
    if plan.agent is None:
        return None
    line = agent_of(plan.agent, plan, boxes.settings, boxes.search)
    home = AgentHome(str(store.place / "agent"), line.row, boxes.environment, boxes.roots)
    box = boxes.box(home)
    variables = environment_of(home, boxes.command_environment, is_confined=box.is_confined)
    return OpenAgent(line, boxes.commands(box), variables, home)


def _guarding_files(
    plan: LoopPlan, environment: Mapping[str, str], search: ProgramSearch
) -> Mapping[str, str]:
    read = rules_of(plan.claude_files or (), plan)
    guards = [hook.command for _, one in read for hook in one.hooks if hook.event in GUARDED]
    known = {**environment, "CLAUDE_PROJECT_DIR": plan.directory}
    return guarding_files(guards, plan.directory, known, search)


class _Boxes(Struct, frozen=True):
    """Makes the sandbox of the check and of ripgrep, and that of another agent. Both have the restrictions that files for
    Claude Code name, as an iteration has: the check runs what iterations have written, and the model reads its output.
    """

    plan: LoopPlan
    settings: Settings
    environment: Mapping[str, str]
    command_environment: Mapping[str, str]
    search: ProgramSearch
    guards: Mapping[str, str]
    waiter: InboxWaiter
    clock: Clock
    events: Events

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(map(os.path.realpath, (self.plan.directory, *self.plan.added_directories)))

    def box(self, home: AgentHome | None = None) -> CommandBox:
        """The sandbox of the check, or of the agent with these directories. Raises CannotError if it lacks what was required."""
        plan, roots, environment = self.plan, self.roots, self.environment
        read = rules_of(plan.claude_files or ())
        try:
            limits = [(name, one.sandbox) for name, one in read if one.sandbox.keys]
            wanted = restricted(self.settings.sandbox, limits)
            wanted = wanted if home is None else home.sandbox(wanted)
            box_plan = plan_box(wanted, environment, (Path(plan.directory), *_reach_of(plan)))
            refuse_owners_work(box_plan, Path(plan.directory))
            box_plan = self._without_denied(box_plan, [rule for _, one in read for rule in one.rules])
        except CannotConfineError as error:
            raise CannotError(str(error)) from None
        configuration = () if plan.config_file is None else (Path(plan.config_file),)
        named = _path_of(plan.session_directory)
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
            disk=DiskWork(self.waiter, self.clock, OwnDisks()),
        )

    def commands(self, box: CommandBox) -> LoopCommands:
        limits = self.settings.sandbox
        supervisor = CommandSupervisor(
            without_unsafe_loads(self.command_environment, self.search),
            most_processes=limits.max_processes,
            most_memory_bytes=limits.most_memory_bytes,
            makes_group=False,  # the group would be that of the iterations
            confinement=box.confine(),
        )
        directory = Path(self.plan.directory)
        return LoopCommands(
            *(supervisor, box, directory, self.waiter, self.clock),
            tell=lambda text: self.events.emit(Notice(text)),
            limits=limits,
        )

    def _without_denied(self, box_plan: BoxPlan, rules: list[PermissionRule]) -> BoxPlan:
        disallowed = self.settings.tools.disallowed
        if not (box_plan.is_confined and (rules or any(map(is_pattern, disallowed)))):
            return box_plan
        from ralph.permissions.judge import RulePlaces, denied_places  # noqa: PLC0415 - few loops have rules

        home = self.environment.get("HOME", "")
        home = home if home.startswith("/") else ""
        places = RulePlaces(self.plan.directory, home, LocalDisk(), self.roots[1:])
        try:
            denied = denied_places(rules, disallowed, places, self.roots)
        except RuleError as error:
            raise CannotError(str(error)) from error
        # The gate and the check are the user's own, and may write what an agent may not.
        return with_denied_places(box_plan, denied.read, [*map(Path, self.roots)], denied.unsearched)
