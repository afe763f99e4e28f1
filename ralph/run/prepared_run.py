"""An open session with its tools, clients and targets. It works on one task or many, until its journal is closed.
Making it raises an error if the session, a tool or a client cannot be opened, so no request is sent without a session.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.agent.task import Run
from ralph.conversation.records import delivery_record, run_record
from ralph.output.event_stream import EventStream
from ralph.run.notices import no_limit_notice, tools_notice, withheld_notice
from ralph.run.session import OpenSession, open_new_session, prompt_of_resumed, resume_command_of
from ralph.run.wiring import (
    build_clients,
    build_report_form,
    build_roster,
    build_toolbox,
    redacted_prompt,
    refuse_uncountable_budget,
    run_policy,
)
from ralph.settings.claude_files import rules_not_honoured
from ralph.values.events import Notice, RunStarted, StreamReceived
from ralph.values.outcome import Delivery, Outcome
from ralph.values.permission_mode import mode_notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.agent.task import Prompt
    from ralph.conversation.session import Session
    from ralph.retry.roster import Roster
    from ralph.run.options import RunOptions
    from ralph.run.session_notes import SessionNotes
    from ralph.run.wiring import Surroundings
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.controls import RunControls
    from ralph.values.events import Event, RunEnded

_NOT_DELIVERED = (Outcome.IO_ERROR, Outcome.API_UNAVAILABLE)
"""Outcomes that a failed delivery of the result can give a run."""
_RESUMABLE = frozenset(
    {
        Outcome.LIMIT_REACHED,
        Outcome.IO_ERROR,
        Outcome.API_UNAVAILABLE,
        Outcome.TIMED_OUT,
        Outcome.INTERRUPTED,
    }
)
"""The outcomes that only time or the disk caused: another run can resume from there."""


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
    ) -> None:
        """Raises SettingsError, WorkingDirectoryGoneError, UsageError, CannotOpenError."""
        self._options = options
        self._around = around
        self._controls = controls
        self._notes = notes
        self._recorded: RunEnded | None = None
        """The end as the journal records it, without the delivery of its result."""
        self._clients = build_clients(around)
        self.session = _open_session(options, around, new_id, has_prompt=has_prompt)
        self._total = self.session.total
        try:
            self._toolbox = self._make_toolbox()
            self._report_form = build_report_form(around, options, self.session.old)
            self.roster, self._notices = self._make_roster()
        except BaseException:
            self._clients.close()
            self.session.journal.close()
            raise
        if self.session.old is not None:
            _take_over_cooldowns(self.roster, self.session.old, around)
            self._clients.know_answered(self.session.old.answered)
            old = self.session.old
            self._toolbox.resume_from(old.seen, (one.content for one in old.conversation.messages))
        self._run = self._make_run()

    def _make_toolbox(self) -> LocalToolbox:
        """Makes the tools of the run. A resumed session keeps its limits on tools, unless the command line lists tools
        again.
        """
        options, old = self._options, self.session.old
        self._writable = options.writable or (old.writable if old is not None else ())
        offered = old.offered_tools if old is not None and not options.names_tools else None
        keeps_list = old is not None and not options.shapes_requests
        return build_toolbox(
            self._around,
            options,
            writable=self._writable,
            offered=offered,
            controls=self._controls,
            keeps_list=keeps_list,
        )

    def _make_roster(self) -> tuple[Roster, tuple[str, ...]]:
        report = (self._report_form.tool,) if self._report_form is not None else ()
        tools = (*self._toolbox.definitions, *report)
        roster, notices = build_roster(self._around, tools, self._options, self.session.old)
        # An old session may be about another model than the settings are.
        refuse_uncountable_budget(roster.targets, self._around.settings)
        return roster, notices

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
        )

    def announce(self, notices: tuple[str, ...]) -> None:
        """Announces the run, its session, and the requested options that did not fit."""
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
            )
        )
        about_limits = () if self._options.is_iteration else no_limit_notice(settings)
        for text in (
            *notices,
            *self.session.notices,
            *self._notices,
            *self._about_rights(),
            *withheld_notice(self._around),
            *about_limits,
        ):
            emit(Notice(text))

    def _about_rights(self) -> Iterator[str]:
        """Notices about the tools of this run, and about guards of other programs, which have no effect here."""
        mode = self._controls.permission_mode
        said = mode_notice(mode)
        if said is not None:
            yield said
        yield from tools_notice(self._around, [tool.name for tool in self._toolbox.definitions], mode)
        not_honoured = rules_not_honoured(self._around.cwd, self._around.environment)
        if not_honoured:
            yield f"{not_honoured}; take tools away by --disallowed-tools, or use --permission-mode plan"

    def _tool_names(self) -> tuple[str, ...]:
        names = tuple(tool.name for tool in self._toolbox.definitions)
        return names if self._report_form is None else (*names, self._report_form.tool.name)

    def first_prompt(self, prompt: str | None) -> str | None:
        """The first prompt for the model; None: the run resumes the pending work."""
        if self.session.old is None:
            return prompt
        return prompt_of_resumed(self.session.old, prompt, self._resume_command)

    def work(self, prompt: Prompt | None) -> RunEnded:
        """Works on one task to its outcome."""
        self._run.take_requested_model()
        started_at = self._around.clock.utc_now().isoformat()
        shape, name = self.roster.first_shape, self.roster.first.name
        opening = run_record(
            shape,
            started_at,
            os.getpid(),
            target=name,
            writable=self._writable,
            again=self._options.needed_again,
        )
        task = redacted_prompt(prompt, self._around.redactor)
        notes = self._notes.begin_task(self._run.log)
        ended = self._recorded = self._run.run(task, opening, *notes)
        self._notes.end_task()
        is_retelling = prompt is None and self.session.old is not None and self.session.old.awaits_delivery
        self._total = self._total.plus(replace(ended, num_turns=0) if is_retelling else ended)
        return self.with_resume_command(replace(ended, session_total=self._total))

    def with_resume_command(self, ended: RunEnded) -> RunEnded:
        """The end, with the command that resumes the session as its last hint if anything can be resumed."""
        if ended.outcome not in _RESUMABLE or self._options.is_iteration or not self._run.has_messages:
            return ended
        command = self._resume_command()
        hint = f"go on with: {command}"
        return ended if command is None or hint in ended.hints else replace(ended, hints=(*ended.hints, hint))

    def record_delivery(self, ended: RunEnded, delivery: Delivery) -> None:
        """Records whether the last result was delivered, as the process reports it. Raises JournalError."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return  # no task was worked on, or that was noted before
        has_failed = ended.outcome in _NOT_DELIVERED and ended.outcome is not recorded.outcome
        record = delivery_record(Delivery.FAILED if has_failed else delivery, ended)
        # No sync: if a power cut loses this record, the journal rightly leaves the delivery unknown.
        self._run.log.record(record, sync=has_failed)

    def _resume_command(self, prompt: str | None = None) -> str | None:
        """The command that resumes the session, with the options of this command line that it must repeat. None:
        nothing can be resumed, or the machine lacks the memory or the descriptors to find out. Such a shortage raises
        nothing, because the result matters more than a hint.
        """
        options = self._options
        cwd = self._around.cwd if options.directory is not None and self._around.cwd.is_dir() else None
        try:
            return resume_command_of(
                self.session, options.session, cwd=cwd, again=options.needed_again, prompt=prompt
            )
        except (OSError, MemoryError, ImportError):
            return None

    def close_tools(self) -> None:
        """Closes clients and tools. The journal stays open for the record of the delivery."""
        self._clients.close()
        self._toolbox.close()

    def close(self) -> None:
        self.session.journal.close()


class _ExpectedCalls:
    """Tells the toolbox about a call that is still arriving, so that slow steps start early. An `Events` sink."""

    def __init__(self, toolbox: LocalToolbox) -> None:
        self._toolbox = toolbox

    def emit(self, event: Event) -> None:
        if isinstance(event, StreamReceived) and event.event.get("type") == "content_block_start":
            block = event.event.get("content_block")
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._toolbox.expect(str(block.get("name")))


def _open_session(options: RunOptions, around: Surroundings, new_id: str, *, has_prompt: bool) -> OpenSession:
    """Opens the requested session. If `--continue` finds none and there is a prompt, opens a new one."""
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


def _take_over_cooldowns(roster: Roster, old: Session, around: Surroundings) -> None:
    """Takes over the cooldowns of the last run, for the time that they still have."""
    now_s, now = around.clock.now_s(), around.clock.utc_now()
    ends_s = {
        name: now_s + (datetime.fromisoformat(end) - now).total_seconds() for name, end in old.cooling.items()
    }
    roster.cool(ends_s, serving=old.target)
