"""Works on the tasks of an open session, one after another. `RunParts` are what it works with."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.agent.task import Run
from ralph.conversation.records import delivery_record, run_record
from ralph.machine.repository import may_have_moved, up_to_repository_root
from ralph.machine.starting import end_idle_threads
from ralph.permissions.gate import CallGate
from ralph.prompt.memory import Memory, shown_paths
from ralph.run.permission_rules import verdict_by
from ralph.run.session import prompt_of_resumed, resume_command_of
from ralph.run.wiring import (
    no_limit_notice,
    redacted_prompt,
    run_policy,
    search_for_programs,
    text_of_prompt,
    tools_notice,
    withheld_notice,
)
from ralph.values.events import EventStream, Notice, RunStarted, StreamReceived
from ralph.values.outcome import Delivery, Outcome
from ralph.values.tool_choice import MCP_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.agent.task import Prompt
    from ralph.agent.tool_turn import PromptMaker
    from ralph.permissions.gate import Hooks
    from ralph.run.driven.context_usage import ContextSizes
    from ralph.run.driven.driver_asking import DriverAsking
    from ralph.run.run_parts import RunParts
    from ralph.run.telemetry import SessionNotes
    from ralph.run.wiring import Surroundings
    from ralph.tools.hook_command import HookEnding
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.events import Event, RunEnded
    from ralph.values.redaction import LookedCommit
    from ralph.values.tool_calls import ToolCall

_NOT_DELIVERED = (Outcome.IO_ERROR, Outcome.API_UNAVAILABLE)
"""The outcomes that a run can get because its result was not delivered."""
_PLACES = {"Read": "file_path", "Write": "file_path", "Edit": "file_path", "Glob": "path", "Grep": "path"}
"""The argument of each tool that names the file or directory which a call touches."""
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
    """Works on one or more tasks, until the journal of the session is closed."""

    def __init__(
        self,
        parts: RunParts,
        notes: SessionNotes,
        driver: DriverAsking | None = None,
    ) -> None:
        self.parts = parts
        self._notes = notes
        self._recorded: RunEnded | None = None
        """The end of the last task, as long as the journal does not record whether the result was delivered.
        Otherwise None."""
        self._is_change_told = False
        self._began_s = parts.around.clock.utc_now().timestamp()
        self._looked: tuple[LookedCommit, ...] = ()
        self._total = parts.session.total
        self._run = self._make_run(self._make_gate(driver))

    def _make_run(self, gate: CallGate) -> Run:
        parts, around = self.parts, self.parts.around
        return Run(
            parts.targets.roster,
            run_policy(around.settings.retry, parts.options.speed),
            client=parts.clients,
            toolbox=parts.tools.toolbox,
            waiter=around.waiter,
            clock=around.clock,
            journal=parts.session.journal,
            events=EventStream(
                around.events, _ExpectedCalls(parts.tools.toolbox, gate), parts.targets.nested
            ),
            controls=parts.controls,
            session=parts.session.old,
            limits=around.settings.limits,
            report_form=parts.tools.report_form,
            gate=gate,
            turn_lock=parts.turn_lock,
        )

    def _make_gate(self, driver: DriverAsking | None) -> CallGate:
        parts = self.parts
        hooks: list[Hooks] = [] if driver is None else [driver]
        if parts.rules.guards.hooks:
            from ralph.run.command_hooks import CommandHooks  # noqa: PLC0415 - few runs have hooks

            of_files = parts.rules.guards.hooks
            run_hook: Callable[[str, bytes, float, str], HookEnding] = parts.tools.toolbox.run_hook
            if parts.around.settings.hooks.gives_more and parts.tools.plan.is_confined:
                from ralph.run.hook_rights import only_unchanged  # noqa: PLC0415 - few runs have hooks

                search = search_for_programs(parts.around, parts.tools.writable)
                run_hook = only_unchanged(run_hook, parts.around.cwd, parts.around.environment, search)
            if parts.tools.guards:
                from ralph.run.hook_rights import only_as_it_was  # noqa: PLC0415 - few hooks are in the work

                run_hook = only_as_it_was(run_hook, parts.tools.guards)
            is_told = parts.options.includes_hook_events
            hooks.insert(0, CommandHooks(of_files, run_hook, parts.around.events, is_told=is_told))
        session, asks = parts.session, parts.options.permissions
        return CallGate(
            parts.controls,
            parts.around.events,
            parts.rules.in_force,
            hooks=hooks,
            asker=driver if asks == "driver" else None,
            facts={
                "session_id": session.id,
                "transcript_path": session.journal_path,
                "cwd": str(parts.around.cwd),
            },
            refuses_unasked=asks == "nobody",
            allowed=parts.around.settings.tools.allowed or (),
            judge_by=lambda rule, call: verdict_by(rule, call, parts.around),
            aside=parts.tools.toolbox.aside,
            about_place=self._about_place,
            background=lambda: parts.tools.toolbox.background.running,
        )

    def _about_place(self, call: ToolCall) -> str:
        """The instructions for the place that a call has touched and for which the model has none yet."""
        parts, around = self.parts, self.parts.around
        path = call.arguments.get(_PLACES.get(call.name, ""))
        nested = parts.targets.nested
        if not isinstance(path, str) or not nested.is_new(path):
            return ""
        found = parts.tools.toolbox.aside("instruction files", partial(nested.about, path))
        if not isinstance(found, Memory):
            around.events.emit(Notice(f"instruction files for {path} were not looked for: {found.content}"))
            return ""
        read = ", ".join(shown_paths(found, around.cwd, around.environment.get("HOME", "")).values())
        for text in (*found.notices, *([f"read {read} for {path}"] if read else ())):
            around.events.emit(Notice(text))
        return around.redactor.redact("\n\n".join(file.section for file in found.files))

    def announce(self, notices: tuple[str, ...], *, has_prompt: bool) -> None:
        """Emits the event that the run has started. Then emits the notices for people: first `notices`, then the
        notices about this run.
        """
        parts = self.parts
        settings, emit = parts.around.settings, parts.around.events.emit
        names, first = parts.targets.roster.names, parts.targets.roster.first
        source = first.credentials[0].source if first.credentials else "none"
        emit(
            RunStarted(
                cwd=str(parts.around.cwd),
                model=first.model,
                tools=self._tool_names(),
                api_key_source=source,
                targets=names if len(names) > 1 else (),
                permission_mode=parts.controls.permission_mode,
                sandbox=parts.tools.plan.level.name,
                protections=parts.tools.plan.protections,
                gpus=parts.tools.plan.gpus,
                memory=parts.targets.memory,
                commands=parts.rules.library.names,
                skills=parts.targets.skills,
                mcp_servers=() if parts.tools.mcp is None else parts.tools.mcp.server_names,
            )
        )
        about_limits = () if parts.options.of_loop is not None else no_limit_notice(settings)
        if self._retells(has_prompt=has_prompt):
            about_limits = ("the work is completed: its result is delivered now, and no model is asked",)
        for text in (
            *notices,
            *parts.session.notices,
            *parts.targets.notices,
            *self._about_rights(),
            *(notice.line for notice in parts.tools.plan.notices),
            *filter(None, [parts.after_kill]),
            *withheld_notice(parts.around),
            *about_limits,
        ):
            emit(Notice(text))

    def _about_rights(self) -> Iterator[str]:
        """Notices about the permission mode, the tools and the permission rules."""
        parts = self.parts
        mode = parts.controls.permission_mode
        said = parts.controls.mode_notice
        if said is not None:
            yield said
        offered = frozenset() if parts.session.old is None else parts.session.old.offered_tools
        if _may_have_servers(parts.around, offered):
            from ralph.run.servers import mcp_notices  # noqa: PLC0415 - few runs have servers

            yield from mcp_notices(parts.around, parts.tools.mcp, offered)
        tools = [tool.name for tool in parts.tools.toolbox.definitions]
        yield from tools_notice(parts.around, tools, mode, parts.rules.kept_patterns)
        yield from parts.rules.guards.notices
        yield from parts.tools.about_hooks

    def _tool_names(self) -> tuple[str, ...]:
        parts = self.parts
        names = tuple(tool.name for tool in parts.tools.toolbox.definitions)
        return names if parts.tools.report_form is None else (*names, parts.tools.report_form.tool.name)

    def first_prompt(self, prompt: str | None) -> str | None:
        """The first prompt for the model, or None if the run resumes unfinished work without a new prompt.

        Raises UsageError if the session is completed and there is no prompt.
        """
        if self.parts.session.old is None:
            return prompt
        return prompt_of_resumed(self.parts.session.old, prompt, self._resume_command)

    def mcp_status(self) -> list[dict[str, Any]]:
        """Describes the MCP servers of the run in the form that drivers expect."""
        if self.parts.tools.mcp is None:
            return []
        from ralph.run.servers import server_status  # noqa: PLC0415 - few runs have servers

        return server_status(self.parts.tools.mcp)

    def context_sizes(self) -> ContextSizes:
        """The sizes of the parts of the next request."""
        parts = self.parts
        from ralph.run.driven.context_usage import sizes_of_next  # noqa: PLC0415 - few runs are driven

        redact = parts.around.redactor.redact
        return sizes_of_next(
            parts.targets.roster,
            self._run.conversation,
            self._run.log.session.meter,
            memory=[(file, redact(file.section)) for file in parts.targets.memory_files],
            servers={} if parts.tools.mcp is None else parts.tools.mcp.server_of_each(),
        )

    def work(self, prompt: Prompt | None, own: slice | None = None) -> RunEnded:
        """Works on one task until it ends, and returns the event that says how it ended.

        The prompt may call a command (`/name`) or name files (`@path`). `own` is the part of the prompt that the user
        wrote. Only this part can do so, and the text around it is kept. If `own` is None, the user wrote the whole
        prompt.
        """
        parts = self.parts
        self._run.take_requested_model()
        started_at = parts.around.clock.utc_now().isoformat()
        title = parts.options.title or self._title_of(prompt, own)
        shape, name = parts.targets.roster.first_shape, parts.targets.roster.first.name
        opening = run_record(
            shape,
            started_at,
            os.getpid(),
            target=name,
            writable=parts.tools.writable,
            again=parts.options.needed_again,
            title=title and parts.around.redactor.redact(title),
            tool_patterns=parts.rules.kept_patterns,
        )
        parts.rules.in_force.begin_task()
        task = self._maker(prompt, own) or self._task(prompt)
        notes = self._notes.begin_task(self._run.log)
        ended = self._recorded = self._run.run(task, opening, *notes)
        self._notes.end_task()
        if ended.outcome is Outcome.CONFIG and not self._run.has_messages:
            parts.session.forget()  # a command was refused, and nothing was done
        is_retelling = self._retells(has_prompt=prompt is not None)
        self._total = self._total.plus(replace(ended, num_turns=0) if is_retelling else ended)
        ended = replace(
            ended,
            session_total=self._total,
            sandbox=parts.tools.plan.level.name,
            protections=parts.tools.plan.protections,
        )
        return self.with_resume_command(ended)

    def _retells(self, *, has_prompt: bool) -> bool:
        """Whether nothing is left to do but to deliver the old session's result."""
        old = self.parts.session.old
        return not has_prompt and old is not None and old.awaits_delivery

    def _title_of(self, prompt: Prompt | None, own: slice | None) -> str | None:
        """The title of a session that `ralph loop` started. The title comes from the user's task, because
        the prompts of all iterations begin with the same text of the loop. None for any other session.
        """
        of_loop = self.parts.options.of_loop
        if of_loop is None or of_loop.task_chars is None or prompt is None or own is None:
            return None
        from ralph.sessions.naming import title_from  # noqa: PLC0415 - for iterations of a loop alone

        return title_from(self.parts.around.redactor.redact(text_of_prompt(prompt)[own])) or None

    def _task(self, prompt: Prompt | None) -> Prompt | None:
        return self._with_changed_sandbox(redacted_prompt(prompt, self.parts.around.redactor))

    def _maker(self, prompt: Prompt | None, own: slice | None) -> PromptMaker | None:
        """The function that makes the prompt from the command file that `prompt` calls, or adds the files that it
        names. None if `prompt` does neither. If the command line calls an unknown command, ralph refuses the run
        before this method is called.
        """
        parts, around = self.parts, self.parts.around
        whole = text_of_prompt(prompt)
        begin, end = (0, len(whole)) if own is None else (own.start, own.stop)
        call = parts.rules.library.called(whole[begin:end])
        if call is None and "@" in whole[begin:end]:
            from ralph.run.prompt_files import with_files  # noqa: PLC0415 - few prompts name files

            add = partial(with_files, whole, whole[begin:end], cwd=around.cwd, events=around.events)
            return lambda calls: self._task(add(calls)) or ""
        if call is None:
            return None
        from ralph.run.command_prompt import CommandPrompt  # noqa: PLC0415 - few prompts call a command

        command = CommandPrompt(
            call,
            above=whole[:begin],
            below=whole[end:],
            cwd=around.cwd,
            home=around.environment.get("HOME", ""),
            session_id=parts.session.id,
            rules=parts.rules.in_force,
            events=around.events,
        )
        return lambda calls: self._task(command.make(calls)) or ""

    def _with_changed_sandbox(self, prompt: Prompt | None) -> Prompt | None:
        """Adds a note to the prompt if the sandbox of this run differs from the last description that the model got.

        The model gets the description in the system prompt, which a resumed session keeps, or in an earlier note. If
        `prompt` is None, the note alone is the prompt. There is no note if the run only delivers the result of the
        last task.
        """
        parts = self.parts
        old = parts.session.old
        if old is None or self._is_change_told:
            return prompt
        from ralph.run.sandbox_note import changed_sandbox_note, with_note  # noqa: PLC0415 - a new session needs none

        told = str(parts.targets.roster.first_shape.head().fields.get("system", ""))
        note = changed_sandbox_note(old, parts.tools.about_sandbox, told, has_prompt=prompt is not None)
        if note is None:
            return prompt
        self._is_change_told = True
        return with_note(prompt, note)

    def with_resume_command(self, ended: RunEnded) -> RunEnded:
        """Returns `ended` with one more hint, the command that resumes the session.

        Returns `ended` itself if nothing is left to resume, if there is no journal or no message, if `ralph loop`
        resumes the session, or if `ended` has this hint already.
        """
        if (
            ended.outcome not in _RESUMABLE
            or self.parts.options.of_loop is not None
            or not self._run.has_messages
        ):
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
        record = delivery_record(Delivery.FAILED if has_failed else delivery, ended, self._looked)
        # No sync: if a power cut loses this record, the journal rightly leaves the delivery unknown.
        self._run.log.record(record, sync=has_failed)

    def _resume_command(self, prompt: str | None = None) -> str | None:
        """The command that resumes the session, with the options that must be given again. None if nothing can be
        resumed.

        The result is also None if the machine is too short of memory or descriptors to make the command. Otherwise
        this hint could prevent the end of the run.
        """
        parts = self.parts
        options = parts.options
        cwd = parts.around.cwd if options.directory is not None and parts.around.cwd.is_dir() else None
        try:
            return resume_command_of(
                parts.session, options.session, cwd=cwd, again=options.needed_again, prompt=prompt
            )
        except (OSError, MemoryError, ImportError):
            return None

    def close_tools(self) -> str:
        """Closes the clients and the tools. Returns what `LocalToolbox.close` returns.

        The journal remains open, because the delivery is still to be recorded.
        """
        self.parts.clients.close()
        undone = self.parts.tools.toolbox.close()
        self._looked = self._look_through_commits()
        end_idle_threads()
        return undone

    def _look_through_commits(self) -> tuple[LookedCommit, ...]:
        around = self.parts.around
        if not may_have_moved(around.cwd, self._began_s):
            return ()
        from ralph.run.commit_look import commits_of_run  # noqa: PLC0415 - most runs end without a commit

        return commits_of_run(
            around.cwd,
            self._began_s,
            around.tools_environment,
            around.redactor,
            waiter=around.waiter,
            clock=around.clock,
            writable=search_for_programs(around, self.parts.tools.writable).roots,
        )

    def close(self) -> None:
        parts = self.parts
        parts.session.journal.close()
        if parts.turn_lock is not None:
            parts.turn_lock.close()


def _may_have_servers(around: Surroundings, offered: frozenset[str]) -> bool:
    """Whether MCP servers are possible in this run: the settings or `offered` contain some, or the repository
    contains a `.mcp.json`. `offered` holds the tools that the session has offered to the model.
    """
    had = any(name.startswith(MCP_PREFIX) for name in offered)
    files = (directory / ".mcp.json" for directory in up_to_repository_root(around.cwd))
    return bool(around.settings.mcp_servers) or had or any(map(os.path.lexists, files))


class _ExpectedCalls:
    """An `Events` sink that tells the toolbox about a tool call whose arguments are still arriving.

    The toolbox can then start slow preparations early.
    """

    def __init__(self, toolbox: LocalToolbox, gate: CallGate) -> None:
        self._toolbox = toolbox
        self._gate = gate

    def emit(self, event: Event) -> None:
        if isinstance(event, StreamReceived) and event.event.get("type") == "content_block_start":
            block = event.event.get("content_block")
            if isinstance(block, dict) and block.get("type") == "tool_use":
                name = str(block.get("name"))
                if self._gate.why_refused(name) is None:
                    self._toolbox.expect(name)
