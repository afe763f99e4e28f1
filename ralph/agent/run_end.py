"""The end of a run: outcome, result, report and totals, and advice for the user after a failure. Also decides when a
task enters its final turn, and how a limit or a failed report ends it: with the model's report, or a synthetic one.
Sends no request and runs no tool.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.conversation.next_step import final_turn
from ralph.values.answer import describe_bug
from ralph.values.errors import (
    AgentError,
    Api,
    FailureKind,
    HttpError,
    NetworkCause,
    StreamParse,
    failure_kind,
    is_shortage,
    outcome_of,
)
from ralph.values.events import (
    AttemptEnded,
    DeadEnd,
    Event,
    FinalTurnEntered,
    Notice,
    ReportAccepted,
    RetryExhausted,
    RetryRecovered,
    RunEnded,
    TurnsCollapsed,
)
from ralph.values.outcome import ADVICE, Outcome, line_with_advice, shortage_of
from ralph.values.ports import BudgetSpent, Events, Interrupted
from ralph.values.report import synthetic_report
from ralph.values.screen_text import counted, dollar_limit, time_limit
from ralph.values.servers import API_NAMES, API_VERSION, URL_VARIABLES, requests_url
from ralph.values.usage import RunUsage, TokenUsage, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.conversation.next_step import End, NoUsableAnswer
    from ralph.conversation.target import Target
    from ralph.values.limits import Budget
    from ralph.values.report import Report, ReportForm, ReportReceiver


_OWES_AN_ANSWER = frozenset(
    {Outcome.LIMIT_REACHED, Outcome.TIMED_OUT, Outcome.NO_PROGRESS, Outcome.TASK_FAILED}
)
"""After these, the result has the model's answer or a synthetic report."""

_BY_THE_API = frozenset({Outcome.API_REJECTED, Outcome.API_UNAVAILABLE, Outcome.AUTH})
_FORCED = frozenset({Outcome.LIMIT_REACHED, Outcome.TIMED_OUT})
_REASONS = {Outcome.TIMED_OUT: "max_time", Outcome.TASK_FAILED: "no_report"}


LAST_WORDS = "{summary}\n\nThe model's last words were:\n\n{words}"
_WERE_ASKED = frozenset({None, "interrupted"})
"""The values of `AttemptEnded.kind` after which the turn is counted. None is that of an attempt with an answer."""


class Ending(Struct, frozen=True):
    """The end of the work on a task. `told` turns it into the event `RunEnded`."""

    outcome: Outcome
    result: str | None = None
    """The model's last text."""
    stop_reason: str | None = None
    error: str | None = None
    cause: AgentError | None = None
    """The last error of the API before the end, which may have ended the work."""
    signal_number: int = 0
    limit: str | None = None
    """The user's limit that ended the run: "max_turns", "max_budget_usd" or "context"."""
    report: Report | None = None
    dead_end: DeadEnd | None = None
    is_short: bool = False
    """Whether a shortage of this machine, outside a request, ended the work."""

    def lacks_answer(self, *, needs_report: bool) -> bool:
        """Whether a report must be added."""
        if self.report is not None:
            return False
        return needs_report or (self.result is None and self.outcome in _OWES_AN_ANSWER)

    @property
    def is_forced(self) -> bool:
        return self.outcome in _FORCED

    def stand_in(self, receiver: ReportReceiver | None, tally: Tally, last_stop_reason: str | None) -> Report:
        """The synthetic report. `receiver` has checked the model's reports. None if none was required."""
        error = self.error
        lacks_report = self.outcome is Outcome.TASK_FAILED or (self.limit in FORCES and self.cause is None)
        if receiver is not None and lacks_report:
            error = receiver.last_problem or error
        return synthetic_report(
            reason=self.reason,
            turns=tally.counted_turns,
            turns_completed=tally.turns,
            attempts=receiver.attempts if receiver is not None else 0,
            last_stop_reason=last_stop_reason,
            last_error=error,
        )

    @property
    def reason(self) -> str:
        """Why there is no answer, for the synthetic report."""
        return self.limit or _REASONS.get(self.outcome, self.outcome.value)

    @property
    def retry_after_s(self) -> float | None:
        is_for_later = self.outcome is Outcome.API_UNAVAILABLE
        return self.cause.retry_after if is_for_later and self.cause is not None else None

    def told(self, tally: Tally, duration_s: float, hints: tuple[str, ...]) -> RunEnded:
        """The event that reports this end."""
        is_by_the_api = self.outcome in _BY_THE_API or self.limit == "context"
        return RunEnded(
            outcome=self.outcome,
            exit_code=self.outcome.exit_code(self.signal_number),
            result=self._words,
            errors=(self.error,) if self.error else (),
            stop_reason=self.stop_reason,
            num_turns=tally.counted_turns,
            duration_s=duration_s,
            api_s=tally.api_s,
            usage=tally.usage,
            retries=tally.retries,
            waited_s=tally.waited_s,
            api_failure=failure_kind(self.cause).value if self.cause is not None and is_by_the_api else None,
            api_error_status=self.cause.status if isinstance(self.cause, HttpError) else None,
            retry_after_s=self.retry_after_s,
            is_short=self.is_short or (self.cause is not None and is_shortage(self.cause)),
            hints=hints,
            limit=self.limit,
            report=self.report,
            dead_end=self.dead_end,
        )

    @property
    def _words(self) -> str | None:
        if self.report is None:
            return self.result
        if self.report.source != "synthetic" or self.result is None:
            return self.report.summary
        return LAST_WORDS.format(summary=self.report.summary, words=self.result)


class Tally:
    """Adds up the counts and times of a run from its events."""

    def __init__(self) -> None:
        self.usage = RunUsage()
        self.retries = 0
        self.waited_s = 0.0
        self.api_s = 0.0
        """Spent in `send_message()`."""
        self.turns = 0
        """Turns whose answer was accepted and whose calls have results. The task counts them."""
        self._asked_turns = 0
        """The number of the last turn in which an attempt was answered or interrupted."""

    @property
    def counted_turns(self) -> int:
        """The turns in the result, including those with useless answers, but not a last turn whose requests all failed,
        which a resumed session repeats.
        """
        return max(self.turns, self._asked_turns)

    def emit(self, event: Event) -> None:
        match event:
            case AttemptEnded():
                if event.kind in _WERE_ASKED:
                    self._asked_turns = event.turn
                # The server bills an answer that broke off too.
                if event.tokens != TokenUsage():
                    self.usage = self.usage.plus(event.model, event.tokens, event.facts)
                self.api_s = plain(self.api_s + event.latency_s)
            case RetryRecovered() | RetryExhausted():
                # Each of these events comes once for a request with retries, and has the time of the completed waits.
                self.retries += event.retries
                self.waited_s = plain(self.waited_s + event.total_wait_s)


# Python's dates end in the year 9999, and a header may contain any number of seconds.
_LONGEST_AHEAD_S = 10 * 365 * 86400.0

_PROXY_HINT = "Requests go through {proxy}: is it running, and is the variable right? NO_PROXY names the hosts that need none."
_BEFORE_THE_PROXY = frozenset(
    {
        *(NetworkCause.REFUSED, NetworkCause.RESET, NetworkCause.TIMEOUT, NetworkCause.UNREACHABLE),
        *(NetworkCause.DNS_UNKNOWN_HOST, NetworkCause.DNS_TEMPORARY, NetworkCause.NOT_PERMITTED),
    }
)
"""Failures of a connection, which is the one to the proxy if there is one."""

_NETWORK_HINTS = {
    NetworkCause.REFUSED: "Nothing listens at {endpoint}. Is the server running, and is the port right?",
    NetworkCause.DNS_UNKNOWN_HOST: (
        "Check the host name in {endpoint} (--base-url, {variable}), and whether this machine is online."
    ),
    NetworkCause.DNS_TEMPORARY: "No name server answers: is this machine online?",
    NetworkCause.CERTIFICATE: (
        "The certificate of {endpoint} is not trusted. Add a private CA to this machine's store or name its PEM file by "
        "NODE_EXTRA_CA_CERTS; SSL_CERT_FILE, or `ca_file` in your own config file, names the only file that counts."
    ),
    NetworkCause.BAD_URL: "Check --base-url and {variable}: {endpoint} cannot be used.",
    NetworkCause.TLS: "If {endpoint} speaks plain HTTP, its URL must begin with http://.",
    NetworkCause.NOT_PERMITTED: (
        "This machine does not allow ralph to connect to {endpoint}: a firewall, a container's rules or a sandbox may be "
        "the reason."
    ),
    NetworkCause.SHORTAGE: f"This machine lacks resources just now: {ADVICE}.",
}
_OF_OTHERS = frozenset({FailureKind.CONTEXT_OVERFLOW, FailureKind.RATE_LIMIT})


_LIMIT = r"(?:\[\s*\d+\s*,\s*|> |at most |maximum (?:value )?(?:of|is) )(\d+)"
_HINTS_IN_WORDS = (
    # Anthropic (claude-code#11302), DeepSeek (openclaude#35), OpenAI: "supports at most 4096 completion tokens"
    (
        r"max_(?:completion_)?tokens\b.{0,60}(?:valid range|too large|supports at most|maximum|> \d)",
        "The server allows only a shorter answer: --max-tokens{limit}, or `max_tokens` of the target.",
    ),
    (
        r"anthropic-version",
        (
            "ralph sends anthropic-version {version}. For a server that knows an older one: "
            'ANTHROPIC_CUSTOM_HEADERS="anthropic-version: 2023-06-01".'
        ),
    ),
    # llama.cpp (LLMKube#126)
    (r"--jinja", "The server was started without tools: start llama-server with --jinja."),
    # Ollama says "does not support tools", and OpenRouter "no endpoints found that support tool use".
    (
        r"(?:does not|doesn't) support tool|support tool use|unsupported param: tools|tools? (?:is|are) not supported",
        "A run needs tools: choose a model that supports them, or enable them in the server.",
    ),
    # Kimi Code (openclaw#42499, cline#10307). A copied name of another client got accounts closed (openclacky#192).
    (
        r"only available for coding agents|client[^.]{0,40}(?:whitelist|allowlist|not allowed|not permitted)",
        (
            "This server accepts only certain clients, and ralph sends `User-Agent: ralph/{ralph}`. Ask its operator to "
            "accept ralph, or use a key that is not limited to certain clients."
        ),
    ),
)
"""Patterns of a server's message, each with its advice."""


def hint_in_words(text: str) -> str | None:
    """None if no pattern fits."""
    for pattern, hint in _HINTS_IN_WORDS:
        found = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if found is not None:
            limit = re.search(_LIMIT, text[found.start() :], re.IGNORECASE)
            shown = f" {limit[1]}" if limit is not None else ""
            return hint.format(limit=shown, version=API_VERSION, ralph=__version__)
    return None


def come_back_hint(retry_after_s: float, now: datetime) -> str:
    """Says when to try again, in the time zone of `now`."""
    moment = now + timedelta(seconds=min(retry_after_s, _LONGEST_AHEAD_S))
    return f"The server asks ralph to wait for {_duration(retry_after_s)}: try again after {moment:%Y-%m-%d %H:%M %Z}."


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest_s, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def hints_for(error: AgentError, target: Target, credential: str) -> Iterator[str]:
    """Yields advice about an error of the target. `credential` says where its key comes from, or that there is none."""
    kind = failure_kind(error)
    api, variable = f"{API_NAMES[target.api]} API", URL_VARIABLES[target.api]
    checked = f"Check --base-url, {variable} and --api."
    asked = f"Requests go to: POST {requests_url(target.base_url, target.api, target.model)}"
    if isinstance(error, Api) and error.proxy and error.cause in _BEFORE_THE_PROXY:
        yield _PROXY_HINT.format(proxy=error.proxy)
    elif isinstance(error, Api) and error.cause in _NETWORK_HINTS:
        yield _NETWORK_HINTS[error.cause].format(endpoint=target.base_url, variable=variable)
    elif kind in (FailureKind.BILLING, FailureKind.USAGE_LIMIT):
        yield (
            "The account has no credit or quota left: see billing and limits in the provider's console, or wait until the "
            "quota is renewed."
        )
    elif isinstance(error, HttpError) and error.status == 407:
        proxy = error.proxy or "the proxy"
        yield f"Credentials are missing for {proxy}: give its URL as http://user:password@host:port."
    elif kind not in _OF_OTHERS and (in_words := hint_in_words(str(error))) is not None:
        yield in_words
    elif isinstance(error, HttpError) and error.status == 403:
        yield f"The server knows the key ({credential}) but does not allow this request: check its permissions and the model."
    elif kind is FailureKind.AUTH:
        yield f"Check the key: {credential}."
    elif kind is FailureKind.NOT_FOUND:
        yield (
            f"Either the model {target.model!r} does not exist there (--model, ANTHROPIC_MODEL), or there is no {api} at this "
            f"address (--base-url, --api). {asked}"
        )
    elif isinstance(error, HttpError) and error.status in (405, 501):
        yield f"Is that a {api}? {checked} {asked}"
    elif kind is FailureKind.CONTEXT_OVERFLOW:
        yield "The conversation is larger than the model's window. Start a new session with a smaller task."
    elif isinstance(error, StreamParse) and kind is FailureKind.PROTOCOL:
        yield f"Is that a {api}? {checked} {asked}"


FORCES = ("max_turns", "context", "report")
"""The reasons for a final turn. "context" is a full context that cannot be compacted."""

NEAR = 0.9
"""The used share of a limit at which the model is told once to save its work."""
FEWEST_TURNS_TO_WARN = 3
"""The smallest turn limit for which the model is told that it is near."""


class Finishing:
    """The turn limit of one task, and whether its final turn has begun."""

    def __init__(self, max_turns: int | None = None, *, reason: str | None = None) -> None:
        self.max_turns = max_turns
        self.reason = reason
        """Why the current turn is the final one, one of `FORCES`. None if it is not."""
        self._given_max_turns = max_turns
        self._is_collapsed = False
        self._was_warned = False

    @property
    def is_final(self) -> bool:
        return self.reason is not None

    def is_over(self, turn: int) -> bool:
        return self.max_turns is not None and turn > self.max_turns

    def makes_final(self, turn: int, *, follows_tools: bool, needs_report: bool = False) -> str | None:
        """Why turn `turn`, which begins now, must be the final one, or None. `follows_tools`: the last message has
        results of calls. If it has none and no report is required, the last turn's answer may complete the task.
        """
        is_last = self.max_turns is not None and turn >= self.max_turns
        if self.is_final or not is_last or not (follows_tools or needs_report):
            return None
        return "report" if self._is_collapsed else "max_turns"

    def collapse(self, turn: int, reason: str) -> TurnsCollapsed | None:
        """Leaves one more turn after a failed or missing report, and returns the event. None if no more were left
        anyway.
        """
        new = turn + 1
        old = self.max_turns
        if old is not None and old <= new:
            return None
        self.max_turns, self._is_collapsed = new, True
        return TurnsCollapsed(turn, reason, old, new)

    def forced_end(self, reason: str | None = None) -> Ending:
        """The end by a limit, or by a failed or missing report. `reason` is one of `FORCES`. It may be None in the
        final turn and for the turn limit.
        """
        reason = self.reason or reason
        if reason == "context":
            return Ending(Outcome.LIMIT_REACHED, limit="context", error="the model's context window is full")
        if reason == "report" or self._is_collapsed:
            return Ending(Outcome.TASK_FAILED, error="the model gave no final report that fits")
        reached = f"the limit of {counted(self._given_max_turns or 0, 'turn')} (--max-turns) is reached"
        return Ending(Outcome.LIMIT_REACHED, limit="max_turns", error=reached)

    def newly_near(
        self, turn: int, budget: Budget, time_left_s: float, max_time_s: float | None, least_usd: float = 0.0
    ) -> str | None:
        """The name of a limit that is nearly used up when turn `turn` begins. None if there is none, or if one was
        named before. `least_usd` is as in `Budget.least_usd`.
        """
        if self._was_warned or self.is_final:
            return None
        most, near = self.max_turns or 0, None
        # This notice must come before the final turn, which has its own notice.
        if most >= FEWEST_TURNS_TO_WARN and turn >= min(math.ceil(NEAR * most), most - 1):
            near = f"the limit of {counted(most, 'turn')}"
        elif budget.is_nearly_spent(NEAR, least_usd):
            near = f"the budget of {dollar_limit(budget.max_usd or 0.0)}"
        elif max_time_s is not None and max_time_s - time_left_s >= NEAR * max_time_s:
            near = f"the time limit of {time_limit(max_time_s)}"
        self._was_warned = near is not None
        return near


class Closing:
    def __init__(self, max_turns: int | None, form: ReportForm | None, tally: Tally, events: Events) -> None:
        """`form` is the form of the final report, or None if no report is required."""
        self._max_turns = max_turns
        self._form = form
        self._tally = tally
        self._events = events
        self.finishing = Finishing(max_turns)
        self.receiver = None if form is None else form.receiver()
        """None if no report is required."""
        self.last_stop_reason: str | None = None
        """The last answer's. None before the first one."""
        self._last_words: str | None = None
        """The model's last text that was no accepted answer: it was discarded, or it came with calls in the final
        turn."""
        self._is_text_dropped = False
        """Whether the answer with `_last_words` was discarded, which the next request tells the model."""

    def forget_reports(self) -> None:
        """Must be called when another task begins."""
        self.receiver = None if self._form is None else self._form.receiver()

    @property
    def needs_report(self) -> bool:
        return self._form is not None

    @property
    def is_final(self) -> bool:
        return self.finishing.is_final

    def enter_final_turn(self, reason: str) -> str:
        """Begins the final turn for one of `FORCES`, and returns the notice for the model."""
        self.finishing.reason = reason
        self._events.emit(FinalTurnEntered(self._tally.turns + 1, reason))
        return self._final_notice(reason)

    def final_notice(self) -> str | None:
        """The notice for the model that this is the final turn. None in any other turn."""
        reason = self.finishing.reason
        return None if reason is None else self._final_notice(reason)

    def _final_notice(self, reason: str) -> str:
        return final_turn(reason, needs_report=self.needs_report, turns=counted(self._max_turns or 0, "turn"))

    def collapse(self, reason: str) -> None:
        """Lowers the turn limit after a failed or missing report. `reason` is as in `TurnsCollapsed`."""
        collapsed = self.finishing.collapse(self._tally.turns + 1, reason)
        if collapsed is not None:
            self._events.emit(collapsed)

    # --- Reports

    def take_text(self, text: str) -> bool:
        """Caches the report in the text of a discarded answer. Returns whether there is one."""
        self._last_words = text.strip() or self._last_words
        if text.strip():
            self._is_text_dropped = True
        return self.receiver is not None and self.receiver.take_text(text)

    def take_final_words(self, text: str) -> None:
        """Keeps the text of an answer with tool calls in the final turn: it becomes the result if no closing answer
        follows. Caches a report in it.
        """
        self._last_words = text.strip() or self._last_words
        if text.strip():
            self._is_text_dropped = False
        if self.receiver is not None:
            self.receiver.look_at_text(text)

    def forget_text(self) -> None:
        """Drops the report in the text of a discarded answer. Must be called after each request, because a request
        tells the model that its answer was discarded.
        """
        if self.receiver is not None and self._is_text_dropped:
            self.receiver.forget_text()

    def forget_words(self) -> None:
        """Must be called when tools have run after the model's last text."""
        self._last_words = None

    def was_reported(self, arguments: Mapping[str, Any]) -> Report | None:
        """Restores and returns a report that an earlier process accepted. None if no report is required."""
        return self.receiver.restored(arguments) if self.receiver is not None else None

    @property
    def reported(self) -> Report | None:
        """The accepted report, not one that is only cached. None if there is none."""
        return self.receiver.accepted if self.receiver is not None else None

    def report(self) -> Report | None:
        """The accepted report, or None. In the final turn, accepts a cached one."""
        if self.receiver is None:
            return None
        return self.receiver.accept_cached() if self.is_final else self.receiver.accepted

    def accepted(self, report: Report) -> Ending:
        self._tally.turns += 1
        return self._reported(report)

    def _reported(self, report: Report) -> Ending:
        self._tell(report)
        if report.status == "success":
            return Ending(Outcome.COMPLETED, stop_reason=self.last_stop_reason, report=report)
        error = "the model reports that the task failed"
        return Ending(Outcome.TASK_FAILED, stop_reason=self.last_stop_reason, error=error, report=report)

    def _tell(self, report: Report) -> None:
        turn = max(self._tally.counted_turns, 1)
        attempts = self.receiver.attempts if self.receiver is not None else 0
        reason = self.finishing.reason
        self._events.emit(ReportAccepted(report.source, report.status, turn, attempts, reason))

    # --- Ends

    def ended_by(self, step: End, stop_reason: str) -> Ending:
        """The end of a task by an answer that completes it, closes the final turn, or lets nothing follow, such as a
        refusal.
        """
        self._tally.turns += 1
        if step.notice is not None:
            self._events.emit(Notice(step.notice))
        if step.outcome in {Outcome.COMPLETED, Outcome.LIMIT_REACHED} and self.is_final:
            return replace(self.forced(), result=step.result)
        return Ending(step.outcome, step.result, stop_reason, step.error)

    def forced(self, reason: str | None = None) -> Ending:
        """The end by a limit, or by a failed or missing report. `reason` is one of `FORCES`. It may be None in
        the final turn and for the turn limit.
        """
        words = None if self.needs_report else self._last_words
        end = self.finishing.forced_end(reason)
        return replace(end, result=words, stop_reason=self.last_stop_reason)

    def gave_up(self, step: NoUsableAnswer) -> Ending | None:
        """The end after too many useless answers in one turn. None if a final turn follows, in which the model can
        still report.
        """
        if self.is_final:
            known = self.report()
            return self.forced() if known is None else self.accepted(known)
        if not self.needs_report or step.reason in {"empty", "thinking_only"}:
            return Ending(Outcome.NO_PROGRESS, stop_reason=self.last_stop_reason, error=step.error)
        self.collapse(step.reason)
        return None

    def stuck(self, dead_end: DeadEnd) -> Ending:
        stop = self.last_stop_reason
        return Ending(Outcome.NO_PROGRESS, stop_reason=stop, error=dead_end.error, dead_end=dead_end)

    def with_report(self, ending: Ending) -> Ending:
        """The ending with a report if one is required or an answer is missing: the model's, or else a synthetic one."""
        if not ending.lacks_answer(needs_report=self.needs_report):
            return ending
        # A limit may have ended the run after a report was accepted, or when one was cached in the final turn.
        if ending.is_forced and (known := self.report()) is not None:
            return self._reported(known)
        report = self.reported or ending.stand_in(self.receiver, self._tally, self.last_stop_reason)
        self._tell(report)
        return replace(ending, report=report, result=ending.result or self._last_words)


def ended_by_error(error: AgentError) -> Ending:
    is_full = failure_kind(error) is FailureKind.CONTEXT_OVERFLOW
    return Ending(outcome_of(error), error=str(error), cause=error, limit="context" if is_full else None)


def ended_by_exception(error: Exception) -> Ending:
    """An unexpected exception is a bug in ralph, unless the machine is short of a resource such as memory."""
    shortage = shortage_of(error)
    if shortage is not None:
        return Ending(Outcome.API_UNAVAILABLE, error=line_with_advice(shortage), is_short=True)
    return Ending(Outcome.INTERNAL_ERROR, error=describe_bug(error))


def ended_by_stop(stop: Interrupted) -> Ending:
    failure = stop.__cause__ if isinstance(stop.__cause__, AgentError) else None
    text = f"{stop}, after: {failure}" if failure is not None else str(stop)
    limit = "max_budget_usd" if isinstance(stop, BudgetSpent) else None
    return Ending(stop.outcome, error=text, cause=failure, signal_number=stop.signal_number, limit=limit)
