"""Turns events into lines for people on standard error: the model's text, its tool calls, retries, and the outcome.

The model's text is printed line by line while it arrives. If a request is retried, the text of its answer is printed
only when the answer is complete, below the lines about the retries. Colour is used only on a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ralph.output.standard_streams import Color, colored
from ralph.values import events as ev
from ralph.values.answer import FINAL_REPORT, ToolCall
from ralph.values.limits import MOST_REFUSALS
from ralph.values.screen_text import (
    counted,
    dollars,
    duration,
    foreign_lines,
    in_one_line,
    plain_number,
    time_limit,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


LONGEST_SUMMARY = 160
LONGEST_ERROR = 1000
LONGEST_STREAMED_LINE = 4000
"""In characters. A longer line is printed in parts while it arrives, so that ralph keeps no very long line in
memory."""
# For each tool, the argument that says most about a call.
_TELLING_ARGUMENT = {
    "Read": "file_path",
    "Write": "file_path",
    "Edit": "file_path",
    "Bash": "command",
    "BashOutput": "bash_id",
    "KillBash": "shell_id",
    "Glob": "pattern",
    "Grep": "pattern",
}

_NO_USE = {
    "empty": "the answer was empty",
    "thinking_only": "the answer held thinking only",
    "no_call": "the answer stopped for a tool and called none",
    "no_report": "the answer was not a final report",
    "invalid_report": "the final report was not accepted",
    "report_failed": "the final report was not accepted",
    "refused_calls": "all calls of the answer were refused",
    "damaged": "the answer came damaged",
}
_WHY_FINAL = {
    "max_turns": "the turn limit is reached",
    "context": "the context is full",
    "report": "no valid final report came",
}
_CLOCKS = {
    "connect": "no connection within {} (clocks.connect_s)",
    "first byte": "no byte of an answer within {} (clocks.first_byte_s)",
    "bytes idle": "not a byte of the answer for {} (clocks.bytes_idle_s)",
    "progress idle": "nothing but pings for {} (clocks.progress_idle_s)",
    "response": "the answer was not complete within {} (clocks.response_s)",
    "error body": "the text of the error did not come within {}",
    "run total": "the time limit (--max-time) is reached after {}",
}
_WORDS = (ev.StreamReceived, ev.AnswerAccepted)
"""The events that contain the model's text."""
_REPORT_SOURCES = {
    "tool_call": "by tool call",
    "text": "found in the text of an answer",
    "synthetic": "written by ralph, because the model gave none",
}


class Narration:
    """Turns events into lines without line breaks that are safe to print on a terminal (`screen_text`)."""

    def __init__(
        self, *, is_quiet: bool, has_color: bool, shows_text: bool = True, redact: Callable[[str], str] = str
    ) -> None:
        """If `shows_text` is False, the model's text is left out because standard output shows it. `redact` removes
        secrets from texts before they are shortened, because it does not recognise a part of one. The caller removes
        them from the lines.
        """
        self._redact = redact
        self._is_quiet = is_quiet
        self._shows_text = shows_text
        self._has_color = has_color
        self._unfinished: list[str] = []  # fragments of the line that arrives; joined when it is complete
        self._unfinished_chars = 0
        self._streamed = False
        self._names_targets = False  # with a single target, its name is not worth showing
        self._was_refusal_told = False  # whether the next result belongs to a call that was refused
        self._held: list[str] | None = None
        """The lines of the answer to a retried request, which are printed when it is complete. None if no retry is
        in progress."""

    def lines(self, event: ev.Event) -> Iterator[str]:
        if isinstance(event, ev.StreamReceived):  # first, because these come by the thousand
            if not self._is_hidden(event):
                yield from self._stream_text(event.event)
            return
        if isinstance(event, ev.RunStarted):
            self._names_targets = bool(event.targets)
        if isinstance(event, ev.AttemptEnded):
            yield from self._attempt(event)
        elif isinstance(event, ev.RunEnded):
            yield from self._rest_of_text()
            for hint in event.hints:
                yield self.color("yellow", f"[hint] {hint}")
            yield self.color("red" if event.outcome.is_error else "green", f"[ralph] {outcome_line(event)}")
        elif self._is_hidden(event):
            return
        elif isinstance(event, ev.AnswerAccepted):
            yield from self._accepted(event.message)
        elif isinstance(event, ev.ResponseDiscarded):
            yield from self._discarded()
        else:
            yield from self._rest_of_text()
            yield from self._one_liners(event)

    def _is_hidden(self, event: ev.Event) -> bool:
        if self._is_quiet:
            return not (isinstance(event, ev.Notice) and event.is_vital)
        return isinstance(event, _WORDS) and not self._shows_text

    def _attempt(self, event: ev.AttemptEnded) -> Iterator[str]:
        """Yields the error line of a failed attempt. An interrupted attempt has none, because the outcome reports
        the interruption.
        """
        if event.error is not None and event.kind != "interrupted":
            yield from self._rest_of_text()
            who = f"{event.target}: " if self._names_targets else ""
            yield self.color("red", f"[error] {who}{one_line(event.error)}")

    def color(self, name: Color, text: str) -> str:
        """Makes the text of a line safe for a terminal, and colours it if `has_color` is True. Ralph itself must
        have written the line.
        """
        shown = in_one_line(text)
        return colored(name, shown) if self._has_color else shown

    def _one_liners(self, event: ev.Event) -> Iterator[str]:
        match event:
            case ev.RunStarted():
                yield from self._started(event)
            case ev.ToolStarted():
                # The summary of a final report is printed when the report is accepted.
                call = event.call
                status = call.arguments.get("status") if call.name == FINAL_REPORT else None
                shown = describe_call(call, self._redact)
                if status is not None:
                    shown = f"{call.name}: {one_line(self._redact(str(status)))}"
                yield self.color("blue", f"[tool] {shown}")
            case ev.ToolFinished():
                yield from self._finished(event)
            case ev.BackgroundStarted():
                started = f"[background] {event.id} started: {one_line(self._redact(event.command))}"
                yield self.color("blue", started)
            case ev.BackgroundEnded():
                ended = f"[background] {event.id} {_how_ended(event)} after {duration(event.took_s)}"
                yield self.color("dim" if event.exit_code == 0 or event.stopped_by else "yellow", ended)
            case ev.ClockFired():
                fired = _CLOCKS.get(event.clock, f"{event.clock}: " + "{}").format(time_limit(event.after_s))
                yield self.color("yellow", f"[clock] {fired}")
            case ev.Heartbeat():
                yield self.color(
                    "dim", f"[wait] waiting for {event.waiting_for}, {duration(event.since_s)} so far"
                )
            case ev.PromptCalled() | ev.PromptCallEnded():
                yield from self._for_prompt(event)
            case ev.Notice():
                yield self.color("yellow", f"[notice] {one_line(event.text)}")
            case _:
                yield from self._of_a_turn(event)
                yield from self._of_a_chain(event)

    def _started(self, event: ev.RunStarted) -> Iterator[str]:
        gpus = f", GPU: {' '.join(path.rpartition('/')[2] for path in event.gpus)}" if event.gpus else ""
        has_all_sockets = event.sandbox != "none" and event.protections.get(ev.SOCKETS_IN_FILES) is False
        sockets = ", all Unix sockets open" if has_all_sockets else ""
        lines = [f"[ralph] {event.model} in {event.cwd} (sandbox: {event.sandbox}{sockets}{gpus})"]
        if event.memory:
            lines.append(f"[ralph] read {', '.join(event.memory.values())}")
        if event.skills:
            lines.append(f"[ralph] skills: {', '.join(event.skills)}")
        if event.targets:
            lines.append(f"[target] in this order: {', '.join(event.targets)}")
        yield from (self.color("dim", line) for line in lines)

    def _for_prompt(self, event: ev.PromptCalled | ev.PromptCallEnded) -> Iterator[str]:
        caller = f"[command] {event.command}:" if event.command else "[prompt]"
        called = f"{caller} {event.tool} {one_line(self._redact(event.argument))}"
        if isinstance(event, ev.PromptCalled):
            yield self.color("blue", called)
        elif event.is_error:
            yield self.color("yellow", f"{called} failed")

    def _finished(self, event: ev.ToolFinished) -> Iterator[str]:
        was_told, self._was_refusal_told = self._was_refusal_told, False
        if event.result.output.is_error:
            if not was_told:
                yield self.color("yellow", f"[tool] {event.call.name} failed: {_gist(event, self._redact)}")
        elif event.call.name == FINAL_REPORT and self._shows_text:
            yield from foreign_lines(str(event.call.arguments["summary"]))

    def _of_a_turn(self, event: ev.Event) -> Iterator[str]:
        match event:
            case ev.SyntheticRetry():
                reason = _in_words(_NO_USE, event.reason)
                yield self.color("yellow", f"[turn] Synthetic retry {event.number}/3: {reason}")
            case ev.MalformedCallRefused():
                self._was_refusal_told = True
                yield self.color("yellow", f"[turn] Malformed call of {event.tool}: {one_line(event.why)}")
            case ev.GuardTripped():
                self._was_refusal_told = True
                guard = f"{event.guard.replace('_', ' ')}, {event.refusals} of {MOST_REFUSALS} refusals"
                yield self.color(
                    "yellow", f"[guard] Not run ({guard}): {describe_call(event.call, self._redact)}"
                )
            case ev.FinalTurnEntered():
                yield self.color("yellow", f"[turn] Final turn: {_in_words(_WHY_FINAL, event.reason)}")
            case ev.TurnsCollapsed():
                old = event.old_max_turns
                limit = "there was no limit" if old is None else f"the limit was {counted(old, 'turn')}"
                why = _in_words(_NO_USE, event.reason)
                yield self.color("yellow", f"[turn] At most one more turn follows ({limit}): {why}")
            case ev.ReportAccepted():
                color: Color = "green" if event.status == "success" else "yellow"
                yield self.color(
                    color, f"[report] {event.status}, {_in_words(_REPORT_SOURCES, event.source)}"
                )
            case ev.ContextCompacted():
                self._streamed = False  # the streamed text was the summary, which was used
                how = event.trigger.replace("_", " ") + (", no summary" if event.source == "cut" else "")
                sizes = f"about {event.pre_tokens:,} tokens became {event.post_tokens:,}"
                yield self.color("yellow", f"[context] compacted ({how}): {sizes}")

    def _of_a_chain(self, event: ev.Event) -> Iterator[str]:
        match event:
            case ev.RetryScheduled():
                yield from self._retry(event)
            case ev.ResponseRestarted():
                yield self.color("yellow", "[retry] Retrying from beginning of response...")
            case ev.RetryRecovered():
                yield self.color("green", f"[retry] Recovered after {event.retries} retries")
                held, self._held = self._held or [], None
                yield from held
            case ev.RetryExhausted():
                self._held = None
                failed = f"[retry] Failed after {event.retries} retries: {one_line(event.error)}"
                yield self.color("red", failed)
            case ev.ModelFallback():
                words = {"cooldown": f"{event.from_target} is still cooling down"}
                why = _in_words(words, event.reason)
                moved = f"[target] {event.from_target} -> {event.to_target} ({why})"
                yield self.color("yellow", moved)
            case ev.ModelFallbackSucceeded():
                yield self.color("green", f"[target] {event.target} answers")
            case ev.ModelFallbackRecovered():
                yield self.color("green", f"[target] back on {event.target}")

    def _retry(self, event: ev.RetryScheduled) -> Iterator[str]:
        status = event.status if event.status is not None else event.error_class
        attempt = f"[retry] Attempt {event.attempt}/{event.max_retries}: {status} — waiting {plain_number(event.wait_s, 3)}s"
        yield self.color("yellow", attempt)
        if event.requested_wait_s is not None:
            yield self.color(
                "yellow", f"[retry] Using retry-after: {plain_number(event.requested_wait_s, 3)}s"
            )
        self._held = []

    def _stream_text(self, event: dict[str, Any]) -> Iterator[str]:
        delta = event.get("delta")
        if event.get("type") == "content_block_stop":
            yield from self._rest_of_text()
        elif event.get("type") != "content_block_delta" or not isinstance(delta, dict):
            return
        elif delta.get("type") == "text_delta":
            self._streamed = True
            *ends_of_lines, rest = str(delta.get("text") or "").split("\n")
            for end in ends_of_lines:
                # Only complete lines are made safe, because a control sequence may arrive in several pieces.
                yield from self._said("".join(self._unfinished) + end)
                self._unfinished.clear()
            self._unfinished.append(rest)
            self._unfinished_chars = len(rest) + (0 if ends_of_lines else self._unfinished_chars)
            if self._unfinished_chars > LONGEST_STREAMED_LINE:
                yield from self._rest_of_text()

    def _accepted(self, message: dict[str, Any]) -> Iterator[str]:
        """Yields the text of an answer that came as one JSON message. Yields nothing for a streamed answer, whose
        text has already been printed.
        """
        yield from self._rest_of_text()
        if not self._streamed:
            for block in message["content"]:
                if block.get("type") == "text":
                    yield from foreign_lines(str(block["text"]))
        self._streamed = False

    def _discarded(self) -> Iterator[str]:
        """Handles a discarded answer. If its text was not printed yet, drops it. Otherwise yields a line that says
        that the answer above does not count.
        """
        yield from self._rest_of_text()
        if self._held is not None:
            self._held.clear()
        elif self._streamed:
            yield self.color("yellow", "[discarded] the answer above does not count")
        self._streamed = False

    def _rest_of_text(self) -> Iterator[str]:
        rest = "".join(self._unfinished)
        self._unfinished.clear()
        self._unfinished_chars = 0
        if rest:
            yield from self._said(rest)

    def _said(self, text: str) -> Iterator[str]:
        lines = foreign_lines(text)
        if self._held is None:
            yield from lines
        else:
            self._held.extend(lines)


def outcome_line(event: ev.RunEnded) -> str:
    """The last line of a run. It contains the outcome, the exit code if it is not 0, and the last error. If a request
    was sent, it also contains the run's turns, time, retries, tokens and cost.
    """
    tokens, cost = event.usage.tokens, event.usage.cost_usd
    code = f" (exit {event.exit_code})" if event.exit_code else ""
    why = f": {one_line(event.errors[-1])}" if event.errors else ""
    ending = f"{event.outcome.value}{code}{why}"
    if not event.api_s:
        return ending  # no request was sent, so there are no numbers
    parts = [counted(event.num_turns, "turn"), duration(event.duration_s)]
    if event.retries:
        parts.append(f"{counted(event.retries, 'retry', 'retries')}, {duration(event.waited_s)} waited")
    if event.usage.by_model:
        parts.append(f"{tokens.prompt:,} tokens in, {tokens.output:,} out")
        parts.append("cost unknown" if cost is None else dollars(cost))
    return f"{ending} [{', '.join(parts)}]"


def _how_ended(event: ev.BackgroundEnded) -> str:
    by = {
        "model": "was stopped",
        "run": "was stopped at the end of the run",
        "limit": "was stopped at a limit",
    }
    if event.stopped_by:
        return _in_words(by, event.stopped_by)
    return "ended" if event.exit_code is None else f"ended with exit code {event.exit_code}"


def one_line(text: str) -> str:
    """Makes one line from the text of a server or a program. The line is cut after `LONGEST_ERROR` characters.
    Without line breaks, the text cannot imitate one of ralph's own lines.
    """
    line = " ".join(in_one_line(text).split())
    return line if len(line) <= LONGEST_ERROR else line[:LONGEST_ERROR] + " …"


def _in_words(words: Mapping[str, str], name: str) -> str:
    """The words for `name`, from the table `words`. A name that the table lacks may come from a journal of a newer
    ralph: its underscores become spaces.
    """
    return words.get(name, name.replace("_", " "))


def describe_call(call: ToolCall, redact: Callable[[str], str] = str) -> str:
    """Describes a tool call in one line: the name of the tool and its most important argument, which may be
    shortened. `redact` removes secrets before that.
    """
    telling = call.arguments.get(_TELLING_ARGUMENT.get(call.name, ""))
    if telling is None:
        telling = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    text = " ".join(redact(str(telling)).split())
    return f"{call.name}: {text if len(text) <= LONGEST_SUMMARY else text[:LONGEST_SUMMARY] + ' …'}"


def _gist(event: ev.ToolFinished, redact: Callable[[str], str]) -> str:
    """The most informative line of a tool's error.

    For Bash, this is the last line, which contains the exit code, with the line before it. For a final report, it
    is the list of problems. For other tools, it is the first line.
    """
    content = redact(str(event.result.output.content))
    lines = [line for line in content.splitlines() if line.strip()] or [""]
    if event.call.name == FINAL_REPORT:
        problems = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        return one_line("; ".join(problems or lines[:1]))
    if event.call.name != "Bash":
        return lines[0][:LONGEST_SUMMARY]
    # The last line is the exit code, and the line above is the command's own message.
    said = f": {lines[-2].strip()}" if len(lines) > 1 else ""
    return f"{lines[-1]}{said}"[:LONGEST_SUMMARY]
