"""An open session with its tools, clients and targets. A `PreparedRun` works on one or more tasks, until the journal
of the session is closed.

The constructor of `PreparedRun` raises an error if the session, a tool or a client cannot be opened. So no request is
sent without an open session.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.agent.task import Run
from ralph.conversation.records import delivery_record, run_record
from ralph.machine.repository import up_to_repository_root
from ralph.machine.starting import end_idle_threads
from ralph.prompt.judged_file import user_folder
from ralph.prompt.memory import read_memory, shown_paths
from ralph.run.permission_rules import build_guards, patterns_of_tools
from ralph.run.session import OpenSession, open_new_session, prompt_of_resumed, resume_command_of
from ralph.run.wiring import (
    begin_sandbox_trial,
    build_clients,
    build_report_form,
    build_roster,
    build_toolbox,
    close_denied_places,
    find_library,
    no_limit_notice,
    open_turn_lock,
    plan_sandbox,
    redacted_prompt,
    refuse_uncountable_budget,
    run_policy,
    text_of_prompt,
    tools_notice,
    with_sandbox_limits,
    withheld_notice,
)
from ralph.values.events import EventStream, Notice, RunStarted, StreamReceived
from ralph.values.outcome import Delivery, Outcome
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ralph.agent.ports import Gate
    from ralph.agent.task import Prompt
    from ralph.agent.tool_turn import PromptMaker
    from ralph.mcp.ports import ServerGroup
    from ralph.mcp.toolset import McpToolset
    from ralph.prompt.commands import Library
    from ralph.prompt.skills import SkillList
    from ralph.retry.roster import Roster
    from ralph.run.command_rules import TaskJudge
    from ralph.run.driven.context_usage import ContextSizes
    from ralph.run.options import RunOptions
    from ralph.run.telemetry import SessionNotes
    from ralph.run.wiring import Surroundings
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.controls import RunControls
    from ralph.values.events import Event, RunEnded
    from ralph.values.ports import CallJudge
    from ralph.values.tool_calls import ToolDefinition

_NOT_DELIVERED = (Outcome.IO_ERROR, Outcome.API_UNAVAILABLE)
"""The outcomes that a run can get because its result was not delivered."""
_RESUMABLE = frozenset(
    {
        Outcome.LIMIT_REACHED,
        Outcome.IO_ERROR,
        Outcome.API_UNAVAILABLE,
        Outcome.TIMED_OUT,
        Outcome.INTERRUPTED,
    }
)
"""The outcomes after which another run can resume the task. Their causes are a limit, the disk, the network or a
signal."""


class PreparedRun:
    def __init__(
        self,
        options: RunOptions,
        around: Surroundings,
        controls: RunControls,
        notes: SessionNotes,
        new_id: str,
        *,
        has_prompt: bool,
        make_gate: Callable[[OpenSession, CallJudge | None], Gate] | None = None,
        of_driver: ServerGroup | None = None,
    ) -> None:
        """`make_gate` makes the gate that decides about the session's calls. None means that the permission mode
        alone decides. `of_driver` are the MCP servers in a driver's own process.

        Raises SettingsError, WorkingDirectoryGoneError, UsageError or CannotOpenError.
        """
        self._make_gate = make_gate
        self._options = options
        self._around = around
        self._controls = controls
        self._notes = notes
        self._recorded: RunEnded | None = None
        """The end of the last task, as long as the journal does not record whether the result was delivered.
        Otherwise None."""
        self._guards = build_guards(around, options, controls)
        if self._guards.mode is not None:
            self._controls.permission_mode = self._guards.mode
        self._turn_lock = open_turn_lock(around)
        if self._guards.sandbox:
            around = self._around = with_sandbox_limits(around, self._guards.sandbox)
        # Both take long, so that they begin first.
        has_servers = bool(around.settings.mcp_servers) or of_driver is not None
        self._mcp = _build_mcp(around, controls, of_driver) if has_servers else None
        try:
            begin_sandbox_trial(around)
            self._prepare(new_id, has_prompt=has_prompt)
        except BaseException:
            if self._mcp is not None:
                self._mcp.close()
            raise

    def _prepare(self, new_id: str, *, has_prompt: bool) -> None:
        options, around = self._options, self._around
        self._clients = build_clients(around)
        self._plan = plan_sandbox(around, options.writable)
        self._about_sandbox = ""
        """The sentence about the sandbox for the model. Empty if there is nothing to say."""
        self._is_change_told = False
        self._memory: dict[str, str] = {}
        """The files whose instructions are in the system prompt, as in RunStarted. Empty for a resumed session, which
        keeps its system prompt and reads no such files."""
        self._skills: tuple[str, ...] = ()
        """The names of the skills in the system prompt."""
        self.session = _open_session(options, around, new_id, has_prompt=has_prompt)
        self._total = self.session.total
        try:
            self._kept_patterns = self._keep_patterns()
            rules = self._guards.judge
            self._library = find_library(around, options, self._plan, rules)
            self._task_judge = _task_judge(rules) if self._library.files else None
            """Applies the permission rules of the run and of the current command. None if there are no commands."""
            self._judge: CallJudge | None = self._task_judge or rules
            """Applies the permission rules. None if there are none."""
            self._toolbox = self._make_toolbox()
            self._after_kill = self._toolbox.about_killed_run()
            """A notice about protected files that have changed since an earlier run was killed, or an empty string."""
            self._report_form = build_report_form(around, options, self.session.old)
            self.roster, self._notices = self._make_roster()
        except BaseException:
            self._clients.close()
            self.session.journal.close()
            raise
        if self.session.old is not None:
            from ralph.run.old_session import take_over_cooldowns  # noqa: PLC0415 - a new one needs none of it

            take_over_cooldowns(self.roster, self.session.old, around.clock)
            self._clients.know_answered(self.session.old.answered)
            old = self.session.old
            self._toolbox.resume_from(old.seen, (one.content for one in old.conversation.messages))
        self._run = self._make_run()

    def _keep_patterns(self) -> Mapping[str, tuple[str, ...]]:
        """The tool lists with patterns that the journal records for this run. The lists of the resumed session are
        included, unless the command line selects tools again.
        """
        old, own = self.session.old, patterns_of_tools(self._around)
        if old is None or self._options.names_tools or not old.tool_patterns:
            return own
        kept = old.tool_patterns
        self._guards = build_guards(self._around, self._options, self._controls, kept)
        disallowed = dict.fromkeys((*own.get("disallowed", ()), *kept.get("disallowed", ())))
        return {**own, **kept, **({"disallowed": tuple(disallowed)} if disallowed else {})}

    def _make_toolbox(self) -> LocalToolbox:
        """Makes the tools of the run.

        A resumed session keeps its selection of tools, unless the command line selects tools again.
        """
        options, old = self._options, self.session.old
        self._writable = options.writable or (old.writable if old is not None else ())
        if self._writable != options.writable:
            self._plan = plan_sandbox(self._around, self._writable)
        if self._guards.judge is not None:
            self._plan = close_denied_places(self._plan, self._guards.judge, self._around.cwd, self._writable)
        offered = old.offered_tools if old is not None and not options.names_tools else None
        keeps_list = old is not None and not options.shapes_requests
        toolbox = build_toolbox(
            self._around,
            options,
            writable=self._writable,
            plan=self._plan,
            offered=offered,
            controls=self._controls,
            keeps_list=keeps_list,
            judge=self._judge,
            mcp=self._mcp,
        )
        if self._mcp is not None:
            from ralph.run.servers import connect_servers  # noqa: PLC0415 - few runs have servers

            try:
                connect_servers(toolbox)
            except BaseException:
                toolbox.close()
                raise
        return toolbox

    def _make_roster(self) -> tuple[Roster, tuple[str, ...]]:
        report = (self._report_form.tool,) if self._report_form is not None else ()
        tools = (*self._toolbox.definitions, *report)
        has_commands = any(tool.name == "Bash" for tool in self._toolbox.definitions)
        self._about_sandbox = self._plan.sentence_for_model(len(self._writable)) if has_commands else ""
        around, options, old = self._around, self._options, self.session.old
        names = [tool.name for tool in self._toolbox.definitions]
        adds = old is not None and self._mcp is not None and not old.offered_tools.issuperset(names)
        user = user_folder(around.environment, around.cwd)
        why_not = None if self._guards.judge is None else self._guards.judge.why_not_read
        memory = read_memory(around.cwd, user, options.setting_sources, self._plan.read_deny, why_not)
        self._memory_files = memory.files
        skills = self._list_skills(tools)
        if old is None or adds or options.shapes_requests:
            self._memory = shown_paths(memory, around.cwd, around.environment.get("HOME", ""))
            self._skills = () if skills is None else skills.names
        roster, notices = build_roster(
            *(around, tools, options, old),
            about_sandbox=self._about_sandbox,
            memory=memory,
            skills="" if skills is None else skills.text,
            keeps=not adds,
        )
        # The settings may name another model than the old session.
        refuse_uncountable_budget(roster.targets, around.settings)
        return roster, (*notices, *(() if skills is None else skills.notices))

    def _list_skills(self, tools: Sequence[ToolDefinition]) -> SkillList | None:
        """The skills to list in the system prompt. None if there are none, or if the model cannot read their files."""
        files = self._library.skills
        if not files or not any(tool.name == "Read" for tool in tools):
            return None
        from ralph.prompt.skills import list_skills  # noqa: PLC0415 - few projects have skills

        return list_skills(files)

    def _make_run(self) -> Run:
        around = self._around
        return Run(
            self.roster,
            run_policy(around.settings.retry, self._options.speed),
            client=self._clients,
            toolbox=self._toolbox,
            waiter=around.waiter,
            clock=around.clock,
            journal=self.session.journal,
            events=EventStream(around.events, _ExpectedCalls(self._toolbox)),
            controls=self._controls,
            session=self.session.old,
            limits=around.settings.limits,
            report_form=self._report_form,
            gate=self._gate(),
            turn_lock=self._turn_lock,
        )

    def _gate(self) -> Gate | None:
        """The gate of the run. None means that only the permission mode and the rules decide about calls."""
        guards, controls, session = self._guards, self._controls, self.session
        gate = None if self._make_gate is None else self._make_gate(session, self._judge)
        if not guards.hooks:
            return gate
        from ralph.agent.call_rules import ModeGate  # noqa: PLC0415 - few runs have hooks
        from ralph.run.command_hooks import CommandHookGate  # noqa: PLC0415 - few runs have hooks
        from ralph.run.driven.hooks import HookFacts  # noqa: PLC0415 - few runs have hooks

        facts = HookFacts(session.id, session.journal_path, str(self._around.cwd))
        return CommandHookGate(
            gate or ModeGate(controls.why_refused),
            guards.hooks,
            self._toolbox.run_hook,
            facts=facts,
            controls=controls,
            events=self._around.events,
            judge=self._judge,
            is_told=self._options.includes_hook_events,
        )

    def announce(self, notices: tuple[str, ...]) -> None:
        """Emits the event that the run has started. Then emits the notices for people: first `notices`, then the
        notices about this run.
        """
        settings, emit = self._around.settings, self._around.events.emit
        names, first = self.roster.names, self.roster.first
        source = first.credentials[0].source if first.credentials else "none"
        emit(
            RunStarted(
                cwd=str(self._around.cwd),
                model=first.model,
                tools=self._tool_names(),
                api_key_source=source,
                targets=names if len(names) > 1 else (),
                permission_mode=self._controls.permission_mode,
                sandbox=self._plan.level.name,
                protections=self._plan.protections,
                memory=self._memory,
                commands=self._library.names,
                skills=self._skills,
                mcp_servers=() if self._mcp is None else self._mcp.server_names,
            )
        )
        about_limits = () if self._options.is_iteration else no_limit_notice(settings)
        for text in (
            *notices,
            *self.session.notices,
            *self._notices,
            *self._about_rights(),
            *(notice.line for notice in self._plan.notices),
            *filter(None, [self._after_kill]),
            *withheld_notice(self._around),
            *about_limits,
        ):
            emit(Notice(text))

    def _about_rights(self) -> Iterator[str]:
        """Notices about the permission mode, the tools and the permission rules."""
        mode = self._controls.permission_mode
        said = self._controls.mode_notice
        if said is not None:
            yield said
        offered = frozenset() if self.session.old is None else self.session.old.offered_tools
        if _may_have_servers(self._around, offered):
            from ralph.run.servers import mcp_notices  # noqa: PLC0415 - few runs have servers

            yield from mcp_notices(self._around, self._mcp, offered)
        tools = [tool.name for tool in self._toolbox.definitions]
        yield from tools_notice(self._around, tools, mode, self._kept_patterns)
        yield from self._guards.notices

    def _tool_names(self) -> tuple[str, ...]:
        names = tuple(tool.name for tool in self._toolbox.definitions)
        return names if self._report_form is None else (*names, self._report_form.tool.name)

    def first_prompt(self, prompt: str | None) -> str | None:
        """The first prompt for the model, or None if the run resumes unfinished work without a new prompt.

        Raises UsageError if the session is completed and there is no prompt.
        """
        if self.session.old is None:
            return prompt
        return prompt_of_resumed(self.session.old, prompt, self._resume_command)

    @property
    def library(self) -> Library:
        return self._library

    def mcp_status(self) -> list[dict[str, Any]]:
        """Describes the MCP servers of the run in the form that drivers expect."""
        if self._mcp is None:
            return []
        from ralph.run.servers import server_status  # noqa: PLC0415 - few runs have servers

        return server_status(self._mcp)

    def context_sizes(self) -> ContextSizes:
        """The sizes of the parts of the next request."""
        from ralph.run.driven.context_usage import sizes_of_next  # noqa: PLC0415 - few runs are driven

        redact = self._around.redactor.redact
        return sizes_of_next(
            self.roster,
            self._run.conversation,
            self._run.log.session.meter,
            memory=[(file, redact(file.section)) for file in self._memory_files],
            servers={} if self._mcp is None else self._mcp.server_of_each(),
        )

    def work(self, prompt: Prompt | None, own: slice | None = None) -> RunEnded:
        """Works on one task until it ends, and returns the event that says how it ended.

        The prompt may call a command (`/name`). `own` is the part of the prompt that the user wrote. Only this part
        can call a command, and the text around it is kept. If `own` is None, the whole prompt can call a command.
        """
        self._run.take_requested_model()
        started_at = self._around.clock.utc_now().isoformat()
        title = self._options.title or self._title_of(prompt, own)
        shape, name = self.roster.first_shape, self.roster.first.name
        opening = run_record(
            shape,
            started_at,
            os.getpid(),
            target=name,
            writable=self._writable,
            again=self._options.needed_again,
            title=title and self._around.redactor.redact(title),
            tool_patterns=self._kept_patterns,
        )
        self._controls.narrowed = None
        if self._task_judge is not None:
            self._task_judge.begin_task(None)
        task = self._of_command(prompt, own) or self._task(prompt)
        notes = self._notes.begin_task(self._run.log)
        ended = self._recorded = self._run.run(task, opening, *notes)
        self._notes.end_task()
        if ended.outcome is Outcome.CONFIG and not self._run.has_messages:
            self.session.forget()  # a command was refused, and nothing was done
        is_retelling = prompt is None and self.session.old is not None and self.session.old.awaits_delivery
        self._total = self._total.plus(replace(ended, num_turns=0) if is_retelling else ended)
        ended = replace(
            ended,
            session_total=self._total,
            sandbox=self._plan.level.name,
            protections=self._plan.protections,
        )
        return self.with_resume_command(ended)

    def _title_of(self, prompt: Prompt | None, own: slice | None) -> str | None:
        """The title of a session that `ralph loop` started. The title comes from the user's task, because
        the prompts of all iterations begin with the same text of the loop. None for any other session.
        """
        if self._options.task_chars is None or prompt is None or own is None:
            return None
        from ralph.sessions.naming import title_from  # noqa: PLC0415 - for iterations of a loop alone

        return title_from(self._around.redactor.redact(text_of_prompt(prompt)[own])) or None

    def _task(self, prompt: Prompt | None) -> Prompt | None:
        return self._with_changed_sandbox(redacted_prompt(prompt, self._around.redactor))

    def _of_command(self, prompt: Prompt | None, own: slice | None) -> PromptMaker | None:
        """The function that makes the prompt from the command file that `prompt` calls. None if `prompt` calls no
        known command. If the command line calls an unknown command, ralph refuses the run before this method is
        called.
        """
        whole = text_of_prompt(prompt)
        begin, end = (0, len(whole)) if own is None else (own.start, own.stop)
        call = self._library.called(whole[begin:end])
        if call is None or self._task_judge is None:
            return None
        from ralph.run.command_prompt import CommandPrompt  # noqa: PLC0415 - few prompts call a command

        command = CommandPrompt(
            call,
            above=whole[:begin],
            below=whole[end:],
            cwd=self._around.cwd,
            home=self._around.environment.get("HOME", ""),
            session_id=self.session.id,
            controls=self._controls,
            judge=self._task_judge,
            events=self._around.events,
        )
        return lambda calls: self._task(command.make(calls)) or ""

    def _with_changed_sandbox(self, prompt: Prompt | None) -> Prompt | None:
        """Adds a note to the prompt if the sandbox of this run differs from the last description that the model got.

        The model gets the description in the system prompt, which a resumed session keeps, or in an earlier note. If
        `prompt` is None, the note alone is the prompt. There is no note if the run only delivers the result of the
        last task.
        """
        old = self.session.old
        if old is None or self._is_change_told:
            return prompt
        from ralph.run.sandbox_note import changed_sandbox_note, with_note  # noqa: PLC0415 - a new session needs none

        told = str(self.roster.first_shape.head().fields.get("system", ""))
        note = changed_sandbox_note(old, self._about_sandbox, told, has_prompt=prompt is not None)
        if note is None:
            return prompt
        self._is_change_told = True
        return with_note(prompt, note)

    def with_resume_command(self, ended: RunEnded) -> RunEnded:
        """Returns `ended` with one more hint, the command that resumes the session.

        Returns `ended` itself if nothing is left to resume, if there is no journal or no message, if `ralph loop`
        resumes the session, or if `ended` has this hint already.
        """
        if ended.outcome not in _RESUMABLE or self._options.is_iteration or not self._run.has_messages:
            return ended
        command = self._resume_command()
        hint = f"go on with: {command}"
        return ended if command is None or hint in ended.hints else replace(ended, hints=(*ended.hints, hint))

    def record_delivery(self, ended: RunEnded, delivery: Delivery) -> None:
        """Records in the journal whether the last result was delivered. Raises JournalError."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return  # no task was worked on, or its delivery was recorded before
        has_failed = ended.outcome in _NOT_DELIVERED and ended.outcome is not recorded.outcome
        record = delivery_record(Delivery.FAILED if has_failed else delivery, ended)
        # No sync: if a power cut loses this record, the journal rightly leaves the delivery unknown.
        self._run.log.record(record, sync=has_failed)

    def _resume_command(self, prompt: str | None = None) -> str | None:
        """The command that resumes the session, with the options that must be given again. None if nothing can be
        resumed.

        The result is also None if the machine is too short of memory or descriptors to make the command. Otherwise
        this hint could prevent the end of the run.
        """
        options = self._options
        cwd = self._around.cwd if options.directory is not None and self._around.cwd.is_dir() else None
        try:
            return resume_command_of(
                self.session, options.session, cwd=cwd, again=options.needed_again, prompt=prompt
            )
        except (OSError, MemoryError, ImportError):
            return None

    def close_tools(self) -> str:
        """Closes the clients and the tools. Returns what `LocalToolbox.close` returns.

        The journal remains open, because the delivery is still to be recorded.
        """
        self._clients.close()
        undone = self._toolbox.close()
        end_idle_threads()
        return undone

    def close(self) -> None:
        self.session.journal.close()
        if self._turn_lock is not None:
            self._turn_lock.close()


def _may_have_servers(around: Surroundings, offered: frozenset[str]) -> bool:
    """Whether MCP servers are possible in this run: the settings or `offered` contain some, or the repository
    contains a `.mcp.json`. `offered` holds the tools that the session has offered to the model.
    """
    had = any(name.startswith(MCP_PREFIX) for name in offered)
    files = (directory / ".mcp.json" for directory in up_to_repository_root(around.cwd))
    return bool(around.settings.mcp_servers) or had or any(map(os.path.lexists, files))


def _build_mcp(
    around: Surroundings, controls: RunControls, of_driver: ServerGroup | None
) -> McpToolset | None:
    from ralph.run.servers import build_mcp  # noqa: PLC0415 - few runs have servers

    return build_mcp(around, controls, of_driver)


def _task_judge(rules: CallJudge | None) -> TaskJudge:
    from ralph.run.command_rules import TaskJudge  # noqa: PLC0415 - few projects have commands

    return TaskJudge(rules)


class _ExpectedCalls:
    """An `Events` sink that tells the toolbox about a tool call whose arguments are still arriving.

    The toolbox can then start slow preparations early.
    """

    def __init__(self, toolbox: LocalToolbox) -> None:
        self._toolbox = toolbox

    def emit(self, event: Event) -> None:
        if isinstance(event, StreamReceived) and event.event.get("type") == "content_block_start":
            block = event.event.get("content_block")
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._toolbox.expect(str(block.get("name")))


def _open_session(options: RunOptions, around: Surroundings, new_id: str, *, has_prompt: bool) -> OpenSession:
    """Opens the requested session. If `--continue` finds no session and there is a prompt, opens a new session."""
    wanted, now = options.session, around.clock.utc_now()
    if not wanted.is_old:
        return open_new_session(wanted, new_id, around.cwd, around.environment, now)
    from ralph.run.old_session import NoSessionError, open_old_session  # noqa: PLC0415 - a new one needs none of it

    try:
        return open_old_session(wanted, new_id, around.cwd, around.environment, now, settings=around.settings)
    except NoSessionError as error:
        if not has_prompt:
            raise
        fresh = open_new_session(wanted, new_id, around.cwd, around.environment, now)
        return replace(fresh, notices=(*fresh.notices, f"{error}: a new one begins"))
