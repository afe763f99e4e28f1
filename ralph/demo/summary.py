"""The summary of the run in the demo. It is computed from the events of the run. This module does not check the
project's tests. The caller says whether they pass.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ralph.values.events import (
    AttemptEnded,
    Event,
    ModelFallback,
    ModelFallbackRecovered,
    RetryScheduled,
    RunEnded,
    RunStarted,
    ToolFinished,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Summary:
    def __init__(self) -> None:
        self._has_targets = False
        self._failures: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()
        self._tools: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._changes: list[str] = []
        self._key_changes: Counter[str] = Counter()
        self._failed: AttemptEnded | None = None
        self.ended: RunEnded | None = None

    def emit(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._has_targets = bool(event.targets)
            case AttemptEnded():
                self._attempt(event)
            case RetryScheduled():
                self._retried[str(event.status or event.kind)] += 1
                self._failed = None
            case ToolFinished():
                self._tools[event.call.name] += 1
            case ModelFallback():
                self._changes.append(f"{event.from_target} -> {event.to_target} ({event.reason})")
            case ModelFallbackRecovered():
                self._changes.append(f"back on {event.target}")
            case RunEnded():
                self.ended = event

    def _attempt(self, event: AttemptEnded) -> None:
        before, self._failed = self._failed, event if event.kind else None
        # If an attempt at the same target follows a failed one without a retry between them, it used another key.
        if before is not None and before.target == event.target:
            self._key_changes[event.target] += 1
        if event.kind is None:
            self._turns[f"{event.target} ({event.model})"] += 1
        else:
            self._failures[f"{event.target} {event.status or event.kind}"] += 1

    def text(
        self, ended: RunEnded, requests: int, *, tests_pass: bool, unsped_wait_s: float | None = None
    ) -> str:
        """The summary as a text for the user. `unsped_wait_s` is the number of seconds that the waits would take
        without `speed`. If it is None, the text does not contain this number.
        """
        tokens = ended.usage.tokens
        longer = f"  ({unsped_wait_s:.0f} in a night)" if unsped_wait_s is not None else ""
        return "\n".join(
            [
                "",
                f"  turns              {ended.num_turns}",
                f"  requests           {requests}",
                *self._of_targets(),
                f"  retries survived   {ended.retries}{_in_brackets(self._retried)}",
                f"  seconds waited     {ended.waited_s:.1f}{longer}",
                f"  tool calls         {sum(self._tools.values())}{_in_brackets(self._tools)}",
                f"  tokens             {tokens.prompt:,} in, {tokens.output:,} out (scripted)",
                f"  time               {ended.duration_s:.1f} s",
                f"  tests              {'pass' if tests_pass else 'FAIL'} (run once more, by the demo itself)",
                "",
                'Now your own task: set ANTHROPIC_API_KEY, then  ralph "..."',
                '(not installed? in the clone:  python3 quickstart.py run "...")',
            ]
        )

    def _of_targets(self) -> Iterator[str]:
        if not self._has_targets:
            return
        yield f"  turns answered by  {_counted(self._turns)}"
        yield f"  failures survived  {sum(self._failures.values())}{_in_brackets(self._failures)}"
        yield f"  changes of target  {len(self._changes)}  ({', '.join(self._changes)})"
        yield f"  changes of key     {sum(self._key_changes.values())}{_in_brackets(self._key_changes)}"


def _in_brackets(counter: Counter[str]) -> str:
    return f"  ({_counted(counter)})" if counter else ""


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} x{number}" if number > 1 else name for name, number in counter.items())
