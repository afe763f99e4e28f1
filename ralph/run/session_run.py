"""Works on the tasks of an open session, one after another."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.agent.task import AgentLoop
from ralph.conversation.records import delivery_record, run_record
from ralph.machine.files.paths import may_have_moved
from ralph.machine.starting import end_idle_threads
from ralph.permissions.gate import Asker, CallGate, Hooks
from ralph.prompt.memory import Memory, shown_paths
from ralph.run.opening import SessionParts, prompt_of_resumed, resume_command_of
from ralph.run.parts import run_policy
from ralph.sandbox.box_plan import SANDBOX_WORDS
from ralph.sessions.places import title_from
from ralph.values.events import Event, EventStream, Notice, RunEnded, StreamReceived
from ralph.values.limits import LimitSettings
from ralph.values.outcome import Delivery, Outcome
from ralph.values.redaction import LookedCommit, redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.agent.task import Prompt
    from ralph.agent.tool_turn import PromptMaker
    from ralph.conversation.session import Session
    from ralph.run.telemetry import SessionNotes
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.answer import ToolCall

_NOT_DELIVERED = (Outcome.IO_ERROR, Outcome.API_UNAVAILABLE)
"""The outcomes that a run can get because its result was not delivered."""
_PLACES = {"Read": "file_path", "Write": "file_path", "Edit": "file_path", "Glob": "path", "Grep": "path"}
"""The argument of each tool that names the file or directory which a call touches."""
_RESUMABLE = frozenset(
    {
        Outcome.LIMIT_REACHED,
        Outcome.IO_ERROR,
        Outcome.API_UNAVAILABLE,
        Outcome.AUTH,
        Outcome.TIMED_OUT,
        Outcome.INTERRUPTED,
    }
)
"""The outcomes after which another run can resume the task. Their causes are a limit, the disk, the network, a refused key
or a signal."""
_RETOLD = "the work is complete: ralph delivers its result now, without asking a model"
_NO_LIMIT = "no limit is set: this run continues until it is done (--max-time 2h would end it)"


class SessionRun:
    def __init__(
        self, parts: SessionParts, notes: SessionNotes, hooks: Sequence[Hooks], asker: Asker | None
    ) -> None:
        """`hooks` and `asker` are those of a driver."""
        self.parts = parts
        self.session = parts.session
        self._context = context = parts.context
        self._notes = notes
        self._recorded: RunEnded | None = None
        """The end of the last task, as long as the journal does not record whether the result was delivered.
        Otherwise None."""
        self._is_change_told = False
        self._began_s = context.clock.utc_now().timestamp()
        self._looked: tuple[LookedCommit, ...] = ()
        self._total = parts.session.total
        added = tuple(one for one in parts.writable if one not in context.settings.directories)
        # A resume does not take the directories from the journal.
        self._again = {**context.options.needed_again, **({"--add-dir": ",".join(added)} if added else {})}
        """The options that a resume needs again."""
        gate = self._gate(hooks, asker)
        self.loop = AgentLoop(
            parts.roster,
            run_policy(context.settings.retry, context.options.speed),
            client=parts.clients,
            toolbox=parts.toolbox,
            waiter=context.waiter,
            clock=context.clock,
            journal=parts.session.journal,
            events=EventStream(context.events, _ExpectedCalls(parts.toolbox, gate), parts.nested),
            controls=context.controls,
            session=parts.session.old,
            limits=context.settings.limits,
            report_form=parts.report_form,
            gate=gate,
            turn_lock=parts.turn_lock,
        )

    def _gate(self, hooks: Sequence[Hooks], asker: Asker | None) -> CallGate:
        parts, context = self.parts, self._context
        return CallGate(
            context.controls,
            context.events,
            parts.rules,
            hooks=(*parts.command_hooks(), *hooks),
            asker=asker,
            facts={
                "session_id": parts.session.id,
                "transcript_path": str(getattr(parts.session.journal, "path", "")),
                "cwd": str(context.cwd),
            },
            refuses_unasked=context.options.permissions == "nobody",
            allowed=context.settings.tools.allowed or (),
            judge_by=parts.judge_by,
            aside=parts.toolbox.aside,
            about_place=self._about_place,
            background=lambda: parts.toolbox.background.running,
            redact=context.redactor.redact,
        )

    def _about_place(self, call: ToolCall) -> str:
        """The instructions for the place that a call has touched and for which the model has none yet."""
        context, nested = self._context, self.parts.nested
        path = call.arguments.get(_PLACES.get(call.name, ""))
        if not isinstance(path, str) or not nested.is_new(path):
            return ""
        found = self.parts.toolbox.aside("instruction files", partial(nested.about, path))
        if not isinstance(found, Memory):
            context.events.emit(Notice(f"instruction files for {path} were not looked for: {found.content}"))
            return ""
        read = ", ".join(shown_paths(found, context.cwd, context.home).values())
        for text in (*found.notices, *([f"read {read} for {path}"] if read else ())):
            context.events.emit(Notice(text))
        return context.redactor.redact("\n\n".join(file.section for file in found.files))

    def announce(self, notices: tuple[str, ...], *, has_prompt: bool) -> None:
        """Emits the event that the run has started, and then the notices for people: first `notices`, then those about
        this run.
        """
        context = self._context
        context.events.emit(self.parts.started)
        about_limits: tuple[str, ...] = ()
        if self._retells(has_prompt=has_prompt):
            about_limits = (_RETOLD,)
        elif context.options.of_loop is None and context.settings.limits == LimitSettings():
            about_limits = (_NO_LIMIT,)
        for text in (*notices, *self.parts.notices, *about_limits):
            context.events.emit(Notice(text))

    def first_prompt(self, prompt: str | None) -> str | None:
        """The first prompt for the model, or None if the run resumes unfinished work without a new prompt.

        Raises UsageError if the session is completed and there is no prompt.
        """
        if self.session.old is None:
            return prompt
        return prompt_of_resumed(self.session.old, prompt, self._resume_command)

    def work(self, prompt: Prompt | None, own: slice | None = None) -> RunEnded:
        """Works on one task until it ends, and returns the event that says how it ended.

        The prompt may call a command (`/name`) or name files (`@path`). `own` is the part of the prompt that the user
        wrote. Only this part can do so, and the text around it is kept. If `own` is None, the user wrote the whole
        prompt.
        """
        parts, context = self.parts, self._context
        self.loop.take_requested_model()
        title = context.options.title or self._title_of(prompt, own)
        now, first = context.clock.utc_now().isoformat(), parts.roster.first.name
        opening = replace(
            run_record(parts.roster.first_shape, now, os.getpid(), target=first, writable=parts.writable),
            again=self._again,
            title=title and context.redactor.redact(title),
            tool_patterns=dict(parts.tool_patterns),
        )
        parts.rules.begin_task()
        task = self._maker(prompt, own) or self._task(prompt)
        notes = self._notes.begin_task(self.loop.log)
        ended = self._recorded = self.loop.run(task, opening, *notes)
        self._notes.end_task()
        if ended.outcome is Outcome.CONFIG and not self.loop.has_messages:
            self.session.forget()  # a command was refused, and nothing was done
        is_retelling = self._retells(has_prompt=prompt is not None)
        self._total = self._total.plus(replace(ended, num_turns=0) if is_retelling else ended)
        ended = replace(
            ended,
            session_total=self._total,
            sandbox=parts.plan.level.name,
            protections=parts.plan.protections,
        )
        return self.with_resume_command(ended)

    def _retells(self, *, has_prompt: bool) -> bool:
        old = self.session.old
        return not has_prompt and old is not None and old.awaits_delivery

    def _title_of(self, prompt: Prompt | None, own: slice | None) -> str | None:
        """The title of a session that `ralph loop` started: it comes from the user's task, because the prompts of all
        iterations begin with the same text of the loop. None for any other session.
        """
        of_loop = self._context.options.of_loop
        if of_loop is None or of_loop.task_chars is None or prompt is None or own is None:
            return None
        return title_from(self._context.redactor.redact(_text_of(prompt)[own])) or None

    def _task(self, prompt: Prompt | None) -> Prompt | None:
        """The prompt without known credentials: a user who pastes one into a task does not mean to send it to the API.
        If the sandbox of this run differs from what the model knows, a note says so once.
        """
        redact = self._context.redactor.redact
        if isinstance(prompt, str):
            prompt = redact(prompt)
        elif prompt is not None:
            prompt = [redacted(block, redact) for block in prompt]
        old = self.session.old
        if old is None or self._is_change_told:
            return prompt
        told = str(self.parts.roster.first_shape.head().fields.get("system", ""))
        note = changed_sandbox_note(old, self.parts.about_sandbox, told, has_prompt=prompt is not None)
        if note is None:
            return prompt
        self._is_change_told = True
        return _with_note(prompt, note)

    def _maker(self, prompt: Prompt | None, own: slice | None) -> PromptMaker | None:
        """The function that makes the prompt from the command file that `prompt` calls, or adds the files that it
        names. None if `prompt` does neither. An unknown command on the command line was refused before.
        """
        whole = _text_of(prompt)
        begin, end = (0, len(whole)) if own is None else (own.start, own.stop)
        call = self.parts.library.called(whole[begin:end])
        if call is None and "@" not in whole[begin:end]:
            return None
        from ralph.run.command_prompt import CommandPrompt, with_files  # noqa: PLC0415 - few prompts call or name any

        context = self._context
        if call is None:
            add = partial(with_files, whole, whole[begin:end], cwd=context.cwd, events=context.events)
            return lambda calls: self._task(add(calls)) or ""
        command = CommandPrompt(
            call,
            above=whole[:begin],
            below=whole[end:],
            cwd=context.cwd,
            home=context.home,
            session_id=self.session.id,
            rules=self.parts.rules,
            events=context.events,
        )
        return lambda calls: self._task(command.make(calls)) or ""

    def with_resume_command(self, ended: RunEnded) -> RunEnded:
        """`ended` with one more hint, the command that resumes the session. `ended` itself if nothing is left to
        resume, if `ralph loop` resumes the session, or if it has this hint already.
        """
        is_resumable = ended.outcome in _RESUMABLE and self._context.options.of_loop is None
        command = self._resume_command() if is_resumable and self.loop.has_messages else None
        hint = f"continue with: {command}"
        return ended if command is None or hint in ended.hints else replace(ended, hints=(*ended.hints, hint))

    def _resume_command(self, prompt: str | None = None) -> str | None:
        """The command that resumes the session, with the options that must be given again. None if nothing can be
        resumed, or if the machine is too short of memory or descriptors to make it: this hint must not prevent the end
        of the run.
        """
        options, cwd = self._context.options, self._context.cwd
        try:
            return resume_command_of(
                self.session,
                options.session,
                cwd=cwd if options.directory is not None and cwd.is_dir() else None,
                again=self._again,
                prompt=prompt,
            )
        except (OSError, MemoryError, ImportError):
            return None

    def record_delivery(self, ended: RunEnded, delivery: Delivery) -> None:
        """Records in the journal whether the last result was delivered. Raises JournalError."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return  # no task was worked on, or its delivery was recorded before
        has_failed = ended.outcome in _NOT_DELIVERED and ended.outcome is not recorded.outcome
        record = delivery_record(Delivery.FAILED if has_failed else delivery, ended, self._looked)
        # No sync: if a power cut loses this record, the journal rightly leaves the delivery unknown.
        self.loop.log.record(record, sync=has_failed)

    def close_tools(self) -> str:
        """Closes the clients and the tools, and returns what `LocalToolbox.close` returns. The journal remains open,
        because the delivery is still to be recorded.
        """
        context, parts = self._context, self.parts
        parts.clients.close()
        undone = parts.toolbox.close()
        if may_have_moved(context.cwd, self._began_s):
            from ralph.git.commit_diffs import look_through_since  # noqa: PLC0415 - most runs end without a commit

            self._looked = look_through_since(
                context.cwd,
                self._began_s,
                context.tools_environment,
                context.redactor,
                waiter=context.waiter,
                clock=context.clock,
                writable=context.search().roots,
            )
        end_idle_threads()
        return undone

    def close(self) -> None:
        self.session.journal.close()
        if self.parts.turn_lock is not None:
            self.parts.turn_lock.close()


def _text_of(prompt: Prompt | None) -> str:
    """The text of a prompt that is a text or a single text block. Empty for any other prompt."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    is_text = len(prompt) == 1 and prompt[0].get("type") == "text"
    return str(prompt[0].get("text", "")) if is_text else ""


class _ExpectedCalls:
    """An `Events` sink that tells the toolbox about a tool call whose arguments are still arriving, so that it can
    start slow preparations early.
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


_CHANGED = "(Changed since then: "
"""The beginning of the note."""


def changed_sandbox_note(
    old: Session, about_sandbox: str, system_prompt: str, *, has_prompt: bool
) -> str | None:
    """The note about the sandbox that a resumed session needs, or None. `about_sandbox` is the sentence about the
    sandbox of this run; it is empty if commands have no sandbox.

    A note is needed if `about_sandbox` differs from the last sentence that the model got, in the system prompt or in
    an earlier note. No note is needed if the run only delivers an old result.
    """
    if not has_prompt and (old.awaits_delivery or (old.report is not None and old.pending is None)):
        return None  # an answer or an accepted report is delivered
    note = f"{_CHANGED}{about_sandbox or 'commands run without a sandbox.'})"
    is_true = about_sandbox in system_prompt if about_sandbox else SANDBOX_WORDS not in system_prompt
    last = _last_note(old)
    return None if last == note or (is_true and not last) else note


def _with_note(prompt: Prompt | None, note: str) -> Prompt:
    """Returns the prompt with the note at its end. If there is no prompt, returns the note alone."""
    if prompt is None:
        return note
    return f"{prompt}\n\n{note}" if isinstance(prompt, str) else [*prompt, {"type": "text", "text": note}]


def _last_note(old: Session) -> str:
    for message in reversed(old.conversation.messages):
        for block in reversed(message.content):
            text = str(block.get("text", "")) if message.role == "user" else ""
            if _CHANGED in text and text.endswith(")"):
                return text[text.rindex(_CHANGED) :]
    return ""
