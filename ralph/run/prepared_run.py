"""Everything that a session's tasks are worked with, from known settings to a closed journal.

It is opened once, works one task or many, and refuses what cannot be opened: with no session there is no request.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.agent.task import Run
from ralph.conversation.records import delivery_entry, run_entry
from ralph.run.session import OpenSession, open_new_session, prompt_of_resumed, way_back
from ralph.run.wiring import (
    build_clients,
    build_report_form,
    build_roster,
    build_toolbox,
    no_limit_notice,
    redacted_prompt,
    refuse_uncountable_budget,
    run_policy,
    tools_notice,
    why_uncountable,
    withheld_notice,
)
from ralph.settings.claude_files import rules_not_honoured
from ralph.values.events import Notice, RunStarted, StreamReceived
from ralph.values.outcome import Delivery, Outcome
from ralph.values.permission_mode import mode_notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.agent.task import Prompt
    from ralph.conversation.records import Entry
    from ralph.conversation.session import Session
    from ralph.conversation.target import Target
    from ralph.retry.roster import Roster
    from ralph.run.options import RunOptions
    from ralph.run.wiring import Surroundings
    from ralph.tools.toolbox import LocalToolbox
    from ralph.values.controls import RunControls
    from ralph.values.events import Event, RunEnded
    from ralph.values.redaction import Redactor

_NOT_DELIVERED = (Outcome.IO_ERROR, Outcome.API_UNAVAILABLE)
"""The outcomes of an end whose result cannot be written."""
_RESUMABLE = frozenset(
    {
        Outcome.LIMIT_REACHED,
        Outcome.IO_ERROR,
        Outcome.API_UNAVAILABLE,
        Outcome.TIMED_OUT,
        Outcome.INTERRUPTED,
    }
)
"""Ends for which only the time or the disk is to blame: another run can resume from there."""


class PreparedRun:
    def __init__(
        self,
        options: RunOptions,
        around: Surroundings,
        redactor: Redactor,
        controls: RunControls,
        new_id: str,
        *,
        has_prompt: bool,
    ) -> None:
        """Raises SettingsError, WorkingDirectoryGoneError, UsageError, CannotOpenError."""
        self._options = options
        self._around = around
        self._controls = controls
        self._redactor = redactor
        self._early_notes: list[Entry] = []
        """Entries that precede the next task."""
        self._is_working = False
        self._recorded: RunEnded | None = None
        """The end that the journal tells of, without what became of it."""
        self._clients = build_clients(around, redactor)
        self.session = self._opened(new_id, has_prompt=has_prompt)
        self._total = self.session.total
        try:
            self._toolbox = self._tools(redactor)
            self._report_form = build_report_form(around, redactor, options, self.session.old)
            tools = (*self._toolbox.definitions, *((self._report_form.tool,) if self._report_form else ()))
            self.roster, self._notices = build_roster(around, redactor, tools, options, self.session.old)
            # An old session may be about another model than the settings are.
            refuse_uncountable_budget(self.roster.targets, around.settings)
        except BaseException:
            self._clients.close()
            self.session.journal.close()
            raise
        if self.session.old is not None:
            _go_on_from(self.roster, self.session.old, around)
            self._clients.know_answered(self.session.old.answered)
            self._toolbox.resume_from(self.session.old)
        self._run = Run(
            self.roster,
            run_policy(around.settings.retry, options.speed),
            client=self._clients,
            toolbox=self._toolbox,
            waiter=around.waiter,
            clock=around.clock,
            journal=self.session.journal,
            events=around.events,
            controls=controls,
            session=self.session.old,
            limits=around.settings.limits,
            report_form=self._report_form,
        )

    def _opened(self, new_id: str, *, has_prompt: bool) -> OpenSession:
        options, around = self._options.session, self._around
        now = around.clock.utc_now()
        if not options.is_old:
            return open_new_session(options, new_id, around.cwd, around.environment, now)
        from ralph.run.old_session import NoSessionError, open_old_session  # noqa: PLC0415 - a new one needs none of it

        try:
            return open_old_session(
                options, new_id, around.cwd, around.environment, now, settings=around.settings
            )
        except NoSessionError as error:
            if not has_prompt:
                raise
            fresh = open_new_session(options, new_id, around.cwd, around.environment, now)
            return replace(fresh, notices=(*fresh.notices, f"{error}: a new one begins"))

    def _tools(self, redactor: Redactor) -> LocalToolbox:
        """The tools of the run. A session keeps its limits of tools, unless the command line lists tools
        anew.
        """
        options, old = self._options, self.session.old
        self._writable = options.writable or (old.writable if old is not None else ())
        offered = old.offered_tools if old is not None and not options.names_tools else None
        keeps_list = old is not None and not options.shapes_requests
        return build_toolbox(
            self._around,
            redactor,
            options,
            writable=self._writable,
            offered=offered,
            controls=self._controls,
            keeps_list=keeps_list,
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
        """Which tools there are, and which guards of others do not count here."""
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

    def hear(self, event: Event) -> None:
        """Each event of the run, for what a tool can prepare while its call still arrives."""
        if isinstance(event, StreamReceived) and event.event.get("type") == "content_block_start":
            block = event.event.get("content_block")
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._toolbox.expect(str(block.get("name")))

    def first_prompt(self, prompt: str | None) -> str | None:
        """The first prompt for the model; None: the pending work is resumed."""
        if self.session.old is None:
            return prompt
        return prompt_of_resumed(self.session.old, prompt, self._way_back)

    def find_target(self, wish: str | None) -> Target:
        """The target that a driver's request names. Raises ValueError for one that cannot be had, or not
        within the budget.
        """
        target = self.roster.find(wish)
        problem = why_uncountable(target, self._around.settings)
        if problem is not None:
            raise ValueError(problem)
        return target

    def work(self, prompt: Prompt | None) -> RunEnded:
        """One task, to its outcome."""
        self._run.take_requested_model()
        started_at = self._around.clock.utc_now().isoformat()
        shape, name = self.roster.first_shape, self.roster.first.name
        opening = run_entry(
            shape,
            started_at,
            os.getpid(),
            target=name,
            writable=self._writable,
            again=self._options.needed_again,
        )
        notes, self._early_notes = self._early_notes, []
        self._is_working = True
        task = redacted_prompt(prompt, self._redactor)
        ended = self._recorded = self._run.run(task, opening, *notes)
        self._is_working = False
        is_retelling = prompt is None and self.session.old is not None and self.session.old.awaits_delivery
        self._total = self._total.plus(replace(ended, num_turns=0) if is_retelling else ended)
        return self.with_way_back(replace(ended, session_total=self._total))

    def with_way_back(self, ended: RunEnded) -> RunEnded:
        """The end with the command that resumes the session as the last hint, if anything can be resumed."""
        if ended.outcome not in _RESUMABLE or self._options.is_iteration or not self._run.has_messages:
            return ended
        command = self._way_back()
        hint = f"go on with: {command}"
        return ended if command is None or hint in ended.hints else replace(ended, hints=(*ended.hints, hint))

    def note_delivery(self, ended: RunEnded, delivery: Delivery) -> None:
        """Records the delivery of the last result, as the process reports it. Raises JournalError."""
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return  # no task was worked on, or that was noted before
        has_failed = ended.outcome in _NOT_DELIVERED and ended.outcome is not recorded.outcome
        entry = delivery_entry(Delivery.FAILED if has_failed else delivery, ended)
        # Lost in a power cut, nobody knows whether it was delivered: that is the truth, and costs no sync.
        self._run.log.record(entry, sync=has_failed)

    def note(self, entry: Entry) -> None:
        """Records an entry of the story, in the task at work, else in the next one. Raises JournalError."""
        if self._is_working:
            self._run.log.record(entry, sync=False)
        else:
            self._early_notes.append(entry)

    def _way_back(self, prompt: str | None = None) -> str | None:
        """The command that resumes, with those options of this command line that the next one must repeat.
        None: nothing can be resumed, or a machine that is short of everything leaves no way to tell. The end
        of the run is worth more than a hint.
        """
        options = self._options
        cwd = self._around.cwd if options.directory is not None and self._around.cwd.is_dir() else None
        try:
            return way_back(self.session, options.session, cwd=cwd, again=options.needed_again, prompt=prompt)
        except (OSError, MemoryError, ImportError):
            return None

    def close_tools(self) -> None:
        """Nothing is asked or run any more; the journal still takes what becomes of the result."""
        self._clients.close()
        self._toolbox.close()

    def close(self) -> None:
        self.session.journal.close()


def _go_on_from(roster: Roster, old: Session, around: Surroundings) -> None:
    """Takes over the cooldowns of the last run for the rest of their time."""
    now_s, now = around.clock.now_s(), around.clock.utc_now()
    ends_s = {
        name: now_s + (datetime.fromisoformat(end) - now).total_seconds() for name, end in old.cooling.items()
    }
    roster.cool(ends_s, serving=old.target)
