"""What one use of the call site tells: its attempts, its retries, its changes of target, as events.

It has no effects; what it is told of moves its own counters and the roster's state on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.retry.backoff import Wait
from ralph.retry.targets import CANNOT_HELP, REFUSED_BY_ALL, after_answer, failure_of
from ralph.values.classify import failure_kind, is_damaged, outcome_of
from ralph.values.errors import AgentError, HttpError, StreamTransient
from ralph.values.events import (
    AttemptEnded,
    ModelFallback,
    ModelFallbackRecovered,
    ModelFallbackSucceeded,
    Notice,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
)
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.conversation.target import Target
    from ralph.retry.backoff import GiveUp
    from ralph.retry.roster import Roster
    from ralph.retry.targets import Decision, Route, TargetsState
    from ralph.values.events import Event
    from ralph.values.usage import TokenUsage


COOLDOWN = "cooldown"
"""Why another target is asked than the first, where no error of this turn has made it so."""


class TurnRequests:
    """What one turn has asked so far, by every use of the call site."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.attempts = 0
        self.took_s = 0.0
        """Waits included, tools not."""


class Chain:
    """How far it has got."""

    def __init__(self, requests: TurnRequests, most_tokens: int | None = None) -> None:
        self.requests = requests
        """Of its turn; `attempts` is that of the request at work, or of the last one."""
        self.most_tokens = most_tokens
        """Of the answer; None: what each target is set to."""
        self.is_open = False
        """A retry was announced: one event more must close the chain."""
        self.retries = 0
        self.waited_s = 0.0
        self.last_error: AgentError | None = None
        self.prompt_tokens = 0
        """Of the last request, at most."""
        self.answer_tokens: dict[str, int] = {}
        """How long each target's answer may get, fixed by its first request: retries send identical bytes."""
        self.round_errors: list[tuple[Route, AgentError]] = []
        """Of this round, in order."""
        self.damaged: tuple[Route, AgentError] | None = None
        """The last answer that made no sense: the one failure that may be asked about once more when nothing else helps."""

    @property
    def turn(self) -> int:
        return self.requests.turn

    @property
    def attempt(self) -> int:
        return self.requests.attempts

    def saw(self, route: Route, error: AgentError) -> None:
        self.last_error = error
        self.round_errors.append((route, error))
        if is_damaged(error):
            self.damaged = (route, error)

    def waited(self, wait: Wait) -> None:
        """A round begins."""
        self.retries += 1
        self.waited_s += wait.seconds
        self.round_errors.clear()

    def attempt_ended(
        self,
        target: Target,
        latency_s: float,
        tokens: TokenUsage,
        error: BaseException | None = None,
        decision: Decision | None = None,
    ) -> AttemptEnded:
        kind = None if error is None else "interrupted"
        if isinstance(error, AgentError):
            kind = failure_kind(error).value
        return AttemptEnded(
            turn=self.turn,
            attempt=self.attempt,
            target=target.name,
            model=target.model,
            latency_s=latency_s,
            tokens=tokens,
            facts=target.facts,
            status=error.status if isinstance(error, HttpError) else None,
            kind=kind,
            error=None if error is None else str(error),
            wait_s=decision.seconds if isinstance(decision, Wait) else 0.0,
        )

    def scheduled(self, wait: Wait, roster: Roster, max_retries: int) -> RetryScheduled:
        """It names the error of whoever may answer first."""
        route, error = self._telling(self.round_errors)
        target = roster.targets[route.target]
        return RetryScheduled(
            attempt=self.retries + 1,
            max_retries=max_retries,
            wait_s=wait.seconds,
            status=error.status if isinstance(error, HttpError) else None,
            error_class=type(error).__name__,
            kind=failure_kind(error).value,
            message=str(error),
            server_wish_s=wait.seconds if wait.from_server else None,
            restarts_response=isinstance(error, StreamTransient),
            turn=self.turn,
            target=target.name,
        )

    def starts(self, roster: Roster) -> Iterator[Event]:
        """The preferred target is not the one that is asked, and nobody has said so yet."""
        state = roster.state
        if state.route.target not in {roster.rules.first, state.announced}:
            roster.state = replace(state, is_away=True)
            yield ModelFallback(roster.first.name, roster.target.name, COOLDOWN, self.turn, attempt=0)

    def changes(self, before: TargetsState, roster: Roster, error: AgentError) -> Iterator[Event]:
        """Who is out, and who is asked instead."""
        state, old = roster.state, roster.targets[before.route.target]
        keys = set(roster.rules.keys_of(before.route.target))
        if roster.rules.is_rotation and keys <= state.skipped and not keys <= before.skipped:
            yield Notice(f"{old.name} is left out for the rest of this task ({failure_kind(error).value})")
        if state.route.target != before.route.target:
            reason = failure_kind(error).value
            yield ModelFallback(old.name, roster.target.name, reason, self.turn, self.attempt)
        elif state.route.key != before.route.key:
            now, was = (old.credentials[route.key].source for route in (state.route, before.route))
            reason = failure_kind(error).value
            yield Notice(f"{old.name}: on with the key of {now}, not {was} ({reason})")

    def telling_error(self, decision: GiveUp, roster: Roster) -> AgentError:
        """What the run ends with: of those who may answer later, the error of whoever may do so first.

        The roster's route is then the one that it came from.
        """
        if decision in (CANNOT_HELP, REFUSED_BY_ALL) and self.damaged is not None:
            route, error = self.damaged
        else:
            errors = self.round_errors[-1:] if decision is REFUSED_BY_ALL else self.round_errors
            route, error = self._telling(errors)
        roster.state = replace(roster.state, route=route)
        return error

    def _telling(self, errors: list[tuple[Route, AgentError]]) -> tuple[Route, AgentError]:
        passing = [one for one in errors if failure_of(one[1]).is_transient]
        later = [one for one in errors if outcome_of(one[1]) is Outcome.API_UNAVAILABLE]
        hopeful = passing or later or errors[-1:]
        return min(reversed(hopeful), key=lambda one: failure_of(one[1]).wish_s or 0.0)

    def answered(self, roster: Roster) -> Iterator[Event]:
        """The chain is closed, and a change of targets confirmed."""
        if self.is_open:
            yield RetryRecovered(self.retries, self.waited_s, self.turn, self.attempt)
        roster.state, told = after_answer(roster.state, roster.rules)
        name = roster.target.name
        if told == "succeeded":
            yield ModelFallbackSucceeded(name, self.turn, self.attempt)
        elif told == "recovered":
            yield ModelFallbackRecovered(name, self.turn, self.attempt)

    def failed(self, why: str) -> Iterator[Event]:
        if self.is_open:
            yield RetryExhausted(self.retries, self.waited_s, why, self.turn, self.attempt)
