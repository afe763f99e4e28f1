"""Runs each iteration as a process of another agent, in ralph's sandbox and process control. When the process has ended, every
process that it started is ended too.
"""

from __future__ import annotations

import math
import signal
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.loop.agents.events import (
    AgentSession,
    EventLog,
    is_session_unknown,
    open_session,
    outcome_of_run,
    read_session,
)
from ralph.loop.rules import is_counted
from ralph.loop.values import IterationResult, IterationSession, Setback
from ralph.machine.launcher import NOT_STARTED, TRY_AGAIN
from ralph.machine.running_command import STILL_RUNS, EndCause, KeptErrors, readable_text
from ralph.values.outcome import Outcome
from ralph.values.ports import Interrupted
from ralph.values.shortage import ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.loop.agents.events import AgentRun
    from ralph.loop.agents.table import OpenAgent
    from ralph.loop.values import IterationOrder
    from ralph.machine.running_command import CommandEnding
    from ralph.values.redaction import Redactor

_GRACE_S = 3.0  # a stop takes six seconds at most
_CONTINUE = "The last run of this session was cut off before its end. See what is done already, and go on with the task."
_MOST_REASON_CHARS = 300


class AgentIterations:
    """Implements the `Iterations` port with processes of another agent. Works on the main thread only."""

    def __init__(self, agent: OpenAgent, folder: Path, redactor: Redactor) -> None:
        """`folder` is the loop's folder, with the files of the agent's sessions."""
        self._agent, self._row, self._commands = agent, agent.line.row, agent.commands
        self._folder, self._redactor = folder, redactor
        self._clock, self._tell = agent.commands.clock, agent.commands.tell

    def run(self, order: IterationOrder) -> IterationResult:
        """Runs one process of the agent to its end. If this machine lacks a resource, the result has a setback. Raises OSError
        if the process cannot be started for another reason. Never raises Interrupted.
        """
        began_s = self._clock.now_s()
        name, row = _name_of(order.session_id), self._row
        is_new = order.prompt is not None
        before = AgentSession() if is_new else read_session(self._folder / name, row)
        log = EventLog(
            open_session(self._folder, name, is_new=is_new),
            row,
            redact=self._redactor.redact,
            is_over_budget=lambda run: _is_over(order.budget_usd, run),
            before_usd=before.cost_usd or 0.0,
        )
        result = self._with_login(lambda: self._ran(order, before.id, log))
        after = before.with_run(log.run, tells_cost=row.tells_cost)
        result = replace(
            result,
            turns=after.turns,
            cost_usd=after.cost_usd,
            last_words=log.run.answer or log.words,
            reason=result.reason[:_MOST_REASON_CHARS].rstrip("."),
            duration_s=round(self._clock.now_s() - began_s, 3),
        )
        with suppress(OSError):
            log.end(result)
        if before.id and is_session_unknown(log.run, result.reason):
            (self._folder / name).unlink(missing_ok=True)  # so the iteration begins anew
            result = replace(result, outcome=Outcome.API_UNAVAILABLE, setback=Setback.KILL)
        if result.reason and result.setback is None and result.stopped_by is None:
            self._tell(result.reason)
        return result

    def seen(self, session_id: str) -> IterationSession | None:
        """The state of a session, from its file. None if the agent has named no session that it can resume. Raises OSError."""
        row = self._row
        try:
            found = read_session(self._folder / _name_of(session_id), row)
        except FileNotFoundError:
            return None
        is_over = found.ended is not None and is_counted(found.ended.outcome)
        if not ((found.id and row.resume) or is_over):
            return None
        written_at = datetime.fromtimestamp(found.written_s, UTC)
        return IterationSession(found.turns, found.cost_usd, found.ended, written_at)

    def _with_login(self, run: Callable[[], IterationResult]) -> IterationResult:
        home, is_confined = self._agent.home, self._commands.box.is_confined
        try:
            if is_confined:
                home.take_login()
            self._redactor.learn(home.secrets())
        except OSError as error:
            shortage = shortage_of(error)
            if shortage is None:
                raise
            return _setback(Setback.SHORTAGE, f"its login could not be copied: {shortage}")
        try:
            return run()
        finally:
            try:
                if is_confined:
                    home.take_login_back()
                self._redactor.learn(home.secrets())
            except OSError as error:
                self._tell(f"{self._row.name}: its refreshed login could not be saved: {error}")

    def _ran(self, order: IterationOrder, session: str, log: EventLog) -> IterationResult:
        with tempfile.TemporaryFile() as given, KeptErrors() as errors:
            given.write((_CONTINUE if order.prompt is None else order.prompt).encode("utf-8", "replace"))
            given.seek(0)
            try:
                ending, _ = self._commands.run(
                    self._agent.line.command(session, is_confined=self._commands.box.is_confined),
                    log,
                    self._agent.environment,
                    name=self._row.name,
                    waiting_for=f"{self._row.name}, {order.waiting_for}",
                    limit_s=math.inf if order.time_s is None else order.time_s,
                    grace_s=_GRACE_S,
                    streams=(given.fileno(), errors.fileno),
                    search=log.search,
                )
            except Interrupted as stop:
                number = stop.signal_number or signal.SIGTERM
                code = Outcome.INTERRUPTED.exit_code(number)
                return IterationResult(code, Outcome.INTERRUPTED, stopped_by=number)
            except OSError as error:
                shortage = shortage_of(error)
                if shortage is None:
                    raise
                return _setback(Setback.SHORTAGE, f"it could not be started: {shortage}")
            said = self._redactor.redact(readable_text(errors.read())[0]).strip() or log.words
        return self._judged(ending, log.run, said, order)

    def _judged(
        self, ending: CommandEnding, run: AgentRun, said: str, order: IterationOrder
    ) -> IterationResult:
        name = self._row.name
        last = said.rpartition("\n")[2]
        match ending.how:
            case EndCause.BY_ITSELF if ending.status == TRY_AGAIN and said.startswith(NOT_STARTED):
                return _setback(Setback.SHORTAGE, f"it could not be started: {ShortageError('process')}")
            case EndCause.BY_ITSELF if said.startswith(NOT_STARTED) and not run.has_events:
                result = _result(Outcome.CONFIG, f"{name}: {last}")
            case EndCause.BY_ITSELF if ending.status - 128 in signal.valid_signals():
                result = _setback(Setback.KILL, f"was killed by {signal.Signals(ending.status - 128).name}")
            case EndCause.BY_ITSELF:
                result = self._by_itself(ending.status, run, last)
            case EndCause.TIMED_OUT if ending.blocked_by:
                self._tell(f"{name}: {ending.blocked_by}")
                result = self._by_itself(0, run, last)
            case EndCause.TIMED_OUT:
                result = _result(Outcome.TIMED_OUT, f"{name} was stopped at its time limit")
            case EndCause.TOO_MUCH_OUTPUT:
                why = f"{name} was stopped: the budget of ${order.budget_usd:g} is spent"
                result = replace(_result(Outcome.LIMIT_REACHED, why), limit="max_budget_usd")
            case EndCause.WITHOUT_SUPERVISOR | EndCause.NEVER_STARTED | EndCause.ELSEWHERE:
                result = _setback(Setback.KILL, "ended together with the process that starts commands")
            case _:
                stopped = self._commands.limits.why_stopped(ending.how)
                result = _result(Outcome.TASK_FAILED, f"{name} was stopped: {stopped or ending.how.name}")
        if not ending.is_all_gone:
            result = replace(result, reason="; ".join(filter(None, (result.reason, STILL_RUNS))))
        return result

    def _by_itself(self, status: int, run: AgentRun, last: str) -> IterationResult:
        if self._row.read is None:
            done = Outcome.COMPLETED if status == 0 else Outcome.TASK_FAILED
            why = "" if status == 0 else f"{self._row.name} ended with exit {status}"
            return _result(done, f"{why}: {last}" if why and last else why)
        outcome, why = outcome_of_run(run, status, last)
        return _result(outcome, f"{self._row.name}: {why}" if why else "")


def _name_of(session_id: str) -> str:
    return f"agent-{session_id}.jsonl"


def _is_over(budget_usd: float | None, run: AgentRun) -> bool:
    return budget_usd is not None and run.cost_usd is not None and run.cost_usd > budget_usd


def _result(outcome: Outcome, reason: str) -> IterationResult:
    return IterationResult(outcome.exit_code(), outcome, reason=reason)


def _setback(setback: Setback, reason: str) -> IterationResult:
    return replace(_result(Outcome.API_UNAVAILABLE, reason), setback=setback)
