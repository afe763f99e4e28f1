"""Deliberate mistakes in ralph, one or more for each row of `specs/seeds.md` that names a test. `python -m
benchmarks.mutants --seeds` tries them.

A row is proven if each of its mistakes makes one of its own tests fail.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutants.mutants import MUTANTS

PAGE = Path(__file__).parents[2] / "specs" / "seeds.md"
TEST = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def seed_rows() -> list[tuple[str, str, str]]:
    """The rows of the page: the id, the requirement, and what keeps it or why ralph differs."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]
    return [(identity, requirement, kept) for identity, requirement, kept in cells]


def named_tests() -> dict[str, list[str]]:
    """The tests that each row names, by the row's id. Rows without a test are left out."""
    return {identity: tests for identity, _, kept in seed_rows() if (tests := TEST.findall(kept))}


class Break(NamedTuple):
    """A mistake. Like that of a `Mutant`, its old text occurs exactly once in the package."""

    name: str
    """The ids of the rows that it breaks, with spaces in between."""
    old: str
    new: str

    @property
    def rows(self) -> list[str]:
        return self.name.split()


def _known(rows: str, name: str) -> Break:
    """A mutant of `MUTANTS` that breaks these rows too."""
    (mutant,) = [one for one in MUTANTS if one.name == name]
    return Break(rows, mutant.old, mutant.new)


SEEDS = (
    # --- F. forgeflare: retry for transient failures
    Break("F1 P7", "429: FailureKind.RATE_LIMIT,", "429: FailureKind.INVALID_REQUEST,"),
    Break("F2", "503: FailureKind.OVERLOADED,", "503: FailureKind.INVALID_REQUEST,"),
    Break("F3 P6", "529: FailureKind.OVERLOADED,", "529: FailureKind.INVALID_REQUEST,"),
    Break(
        "F4",
        "if status >= 500:\n        return FailureKind.SERVER",
        "if status in (500, 502):\n        return FailureKind.SERVER",
    ),
    Break(
        "D1",
        "if status >= 500:\n        return FailureKind.SERVER",
        "if status >= 500 and status != 502:\n        return FailureKind.SERVER",
    ),
    Break("P9", "504: FailureKind.TIMEOUT,", "504: FailureKind.INVALID_REQUEST,"),
    Break(
        "F5 F45",
        "return FailureKind.INVALID_REQUEST if status >= 400 else",
        "return FailureKind.SERVER if status == 400 else FailureKind.INVALID_REQUEST if status > 400 else",
    ),
    Break("F6 A16", "401: FailureKind.AUTH,", "401: FailureKind.SERVER,"),
    Break("F7", "403: FailureKind.AUTH,", "403: FailureKind.SERVER,"),
    Break(
        "F8",
        "return FailureKind.INVALID_REQUEST if status >= 400 else",
        "return FailureKind.SERVER if status >= 400 else",
    ),
    _known("F8", "408-is-permanent"),
    Break(
        "F9",
        '        case _:\n            raise TypeError(f"not one of the five errors: {error!r}")',
        "        case _:\n            transient = True",
    ),
    Break(
        "F10",
        "case StreamTransient():\n            transient = True",
        "case StreamTransient():\n            transient = False",
    ),
    Break(
        "F11",
        'raise StreamTransient("the answer ended before message_stop")',
        'raise StreamParse("the answer ended before message_stop")',
    ),
    Break(
        "F12",
        "case StreamParse() | Json():\n            transient = False",
        "case StreamParse() | Json():\n            transient = isinstance(error, StreamParse)",
    ),
    Break(
        "F18",
        "case StreamParse() | Json():\n            transient = False",
        "case StreamParse() | Json():\n            transient = isinstance(error, Json)",
    ),
    Break(
        "F13",
        "raise Json(str(error), self._excerpt(data)) from error",
        "raise StreamTransient(str(error)) from error",
    ),
    Break("F14", '"invalid_request_error": 400,', '"invalid_request_error": 500,'),
    Break(
        "F19",
        "fields: dict[str, Any] = error if isinstance(error, dict) else {}",
        "fields: dict[str, Any] = value if isinstance(error, dict) else {}",
    ),
    Break(
        "F15",
        "transient = cause not in PERMANENT_CAUSES",
        "transient = cause not in {*PERMANENT_CAUSES, NetworkCause.TIMEOUT}",
    ),
    Break(
        "F16",
        "transient = cause not in PERMANENT_CAUSES",
        "transient = cause not in {*PERMANENT_CAUSES, NetworkCause.REFUSED, NetworkCause.RESET}",
    ),
    _known("F17", "certificate-is-weather"),
    Break("F20", '"api_error": 500,', '"api_error": 400,'),
    Break(
        "F21 P12 Q2",
        "return FailureKind.STREAM if status is None else _kind_of_status(status)",
        "return FailureKind.PROTOCOL if status is None else _kind_of_status(status)",
    ),
    Break(
        "F22 P25",
        "                state, decision, events = step(state, error,",
        "                if state.attempt > 1:\n                    raise\n                state, decision, events = step(state, error,",
    ),
    Break(
        "F23 D10 P35",
        "STANDARD_SCHEDULE_S = (2.0, 4.0, 8.0, 16.0)",
        "STANDARD_SCHEDULE_S = (2.0, 4.0, 6.0, 16.0)",
    ),
    Break(
        "F24 A90",
        "return Wait(min(requested_s, LONGEST_STANDARD_WAIT_S), from_server=True)",
        "return Wait(STANDARD_SCHEDULE_S[attempt - 1])",
    ),
    _known("F25", "no-cap-on-a-requested-wait"),
    Break(
        "F26",
        "        error.retry_after,\n        kind in",
        "        error.retry_after or 1.0,\n        kind in",
    ),
    Break(
        "F27",
        "return _used_up(attempt, len(STANDARD_SCHEDULE_S))",
        "return _used_up(attempt, len(STANDARD_SCHEDULE_S) - 1)",
    ),
    Break(
        "F28 F48",
        "            self._recover()\n        except JournalError as error:\n            ending = replace(",
        "        except JournalError as error:\n            ending = replace(",
    ),
    Break("F48", "                site.state.recover_conversation()\n", ""),
    Break(
        "F29 D26",
        "        error_class is ErrorClass.TRANSIENT,",
        "        True,",
    ),
    Break(
        "F51",
        "    if not failure.is_transient:\n        state = replace(state, chain=replace(chain, barred=",
        "    if not failure.is_transient and failure.kind is not FailureKind.PROTOCOL:\n        state = replace(state, chain=replace(chain, barred=",
    ),
    Break(
        "F30",
        "if kind in (FailureKind.AUTH, FailureKind.USAGE_LIMIT, FailureKind.BILLING):",
        "if kind in (FailureKind.USAGE_LIMIT, FailureKind.BILLING):",
    ),
    Break(
        "A18",
        "if kind in (FailureKind.AUTH, FailureKind.USAGE_LIMIT, FailureKind.BILLING):",
        "if kind in (FailureKind.AUTH, FailureKind.BILLING):",
    ),
    Break(
        "F31 A88",
        'if event.error is not None and event.kind != "interrupted":',
        'if event.error is not None and event.kind != "interrupted" and not self._is_quiet:',
    ),
    Break(
        "F32",
        "{status} — waiting {plain_number(event.wait_s, 3)}s",
        "{status} - waiting {_seconds(event.wait_s)}s",
    ),
    Break("F34", "[retry] Using retry-after: ", "[retry] Using Retry-After: "),
    Break("F46", "{status} — waiting {plain_number(event.wait_s, 3)}s", "{status} — waiting"),
    Break(
        "F56",
        "status = event.status if event.status is not None else event.error_class",
        "status = event.status if event.status is not None else event.kind",
    ),
    Break(
        "F59",
        "            case ev.ResponseRestarted():\n                yield self.color",
        "            case ev.ResponseRestarted() if False:\n                yield self.color",
    ),
    Break("P55", "retries: {one_line(event.error)}", "retries"),
    Break(
        "D23",
        "            case ev.RetryScheduled():\n                yield from self._retry(event)",
        "            case ev.RetryScheduled():\n                yield from ()",
    ),
    Break("F35", "return colored(name, shown) if self._has_color else shown", "return shown"),
    Break("F36", "        self.retry_after = retry_after\n", "        self.retry_after = None\n"),
    Break("F37", "error = (StreamParse if is_permanent else StreamTransient)(", "error = (StreamParse)("),
    Break(
        "F38",
        '            message["stop_reason"] = "tool_use" if any(b.is_client_call for b in self._blocks) else "end_turn"\n',
        '            raise StreamTransient("no stop reason")\n',
    ),
    Break(
        "F39 F55 P5",
        "        return error.should_retry\n    return kind not in PERMANENT_KINDS",
        '        return error.should_retry\n    return kind not in PERMANENT_KINDS or "529" in error.body',
    ),
    Break(
        "F40",
        "            return self._receive(request, events, is_whole=is_whole)\n",
        "            try:\n                return self._receive(request, events, is_whole=is_whole)\n            except Exception:\n                return self._receive(request, events, is_whole=is_whole)\n",
    ),
    Break(
        "F41",
        "                answer = site.client.send_message(\n",
        "                answer = (lambda *args, **how: site.client.send_message(*args, **how))(\n",
    ),
    Break(
        "F42",
        '(("retry-after-ms", 0.001), ("retry-after", 1.0))',
        '(("retry-after-ms", 0.001),)',
    ),
    Break(
        "F47 P4",
        "    if state.retries:\n        events.append(RetryRecovered",
        "    if True:\n        events.append(RetryRecovered",
    ),
    Break(
        "F50",
        "return Wait(STANDARD_SCHEDULE_S[attempt - 1])",
        'return Wait(STANDARD_SCHEDULE_S[attempt - 1] + __import__("random").random())',
    ),
    Break(
        "F53",
        'if name in layer and "custom" not in own:',
        'if name in layer and "custom" not in own and not own:',
    ),
    Break(
        "F57",
        "if number_s > _LONGEST_DELAY_S else number_s)",
        "if number_s > _LONGEST_DELAY_S else float(int(number_s)))",
    ),
    Break(
        "F58",
        "        if requested_s is None or (requested_s == 0 and attempt > 1):",
        "        if not requested_s:",
    ),
    Break(
        "F60",
        "                self._events.emit(ResponseDiscarded(assembler.message_id))",
        "                pass",
    ),
    Break(
        "F61",
        "exit_code=self.outcome.exit_code(self.signal_number),",
        "exit_code=self.outcome.exit_code(self.signal_number) or min(tally.retries, 1),",
    ),
    Break(
        "F33 D12 P17",
        "        attempt=state.choice.chain.retries + 1,\n        max_retries",
        "        attempt=state.choice.chain.retries,\n        max_retries",
    ),
    # --- D. dispatch: stepped backoff on provider errors
    Break(
        "D3",
        "        elif self._streamed:\n            yield self.color",
        "        elif False:\n            yield self.color",
    ),
    Break("D5", "PATIENT_SCHEDULE_S = (5.0, 10.0,", "PATIENT_SCHEDULE_S = (5.0, 15.0,"),
    Break("D6", "PATIENT_TAIL_S = 1800.0", "PATIENT_TAIL_S = 900.0"),
    Break("D7", "PATIENT_BUDGET_S = 8 * 3600.0", "PATIENT_BUDGET_S = 9 * 3600.0"),
    Break("D9", "PATIENT_BUDGET_S = 8 * 3600.0", "PATIENT_BUDGET_S = 6 * 3600.0"),
    Break(
        "D13 P21",
        "        events.append(_scheduled(state, decision, situation.policy.max_retries))",
        "        events += 2 * [_scheduled(state, decision, situation.policy.max_retries)]",
    ),
    Break(
        "D14 A44",
        """            chain.publish(state, *events)
            if isinstance(decision, GiveUp):  # the final failure
                site.state.recover_conversation()
                raise raised_at_end(state, decision)
            if can_shrink and state.target != checked and site.is_crowded(conversation):
                raise WindowTooSmallError(state.target.name) from state.last_error
            # The request is made before the wait, because waiting is useless if the budget does not cover it.
            request = affordable_request(conversation, site, state, most_tokens)
            if isinstance(decision, Wait):
                retry = f"retry {state.choice.chain.retries} of {site.policy.max_retries}"
                site.waiter.sleep(decision.seconds, waiting_for=retry)
                state = waited(state, decision)
""",
        """            if isinstance(decision, GiveUp):
                chain.publish(state, *events)
                raise raised_at_end(state, decision)
            request = affordable_request(conversation, site, state, most_tokens)
            if isinstance(decision, Wait):
                retry = f"retry {state.choice.chain.retries} of {site.policy.max_retries}"
                site.waiter.sleep(decision.seconds, waiting_for=retry)
                state = waited(state, decision)
            chain.publish(state, *events)
""",
    ),
    Break(
        "D15 A93",
        "            self.log.record(*self._target_records())\n        self.log.emit(event)",
        "            self._asking.tell(type(event).__name__)\n        self.log.emit(event)",
    ),
    Break(
        "D16",
        '        "turn": event.turn,\n        "attempt": event.attempt,\n        "max_retries"',
        '        "attempt": event.attempt,\n        "max_retries"',
    ),
    Break(
        "D17 P33",
        '        "attempt": event.attempt,\n        "max_retries": event.max_retries,',
        '        "attempt": event.attempt - 1,\n        "max_retries": event.max_retries,',
    ),
    Break(
        "P50",
        '        "attempt": event.attempt,\n        "max_retries": event.max_retries,',
        '        "attempt": event.attempt,',
    ),
    Break("D18", '"retry_delay_ms": round(event.wait_s * 1000),', '"retry_delay_ms": round(event.wait_s),'),
    Break("D19", '        "message": event.message,\n    }', '        "message": event.kind,\n    }'),
    Break("D20", '"error_status": event.status,', '"error_status": None,'),
    Break("D21 P56", "            self._site.events.emit(exhausted(self._state, end))", "            pass"),
    Break(
        "D22",
        "api_error_status=self.cause.status if isinstance(self.cause, HttpError) else None,",
        "api_error_status=None,",
    ),
    Break(
        "D25",
        'return StreamTransient(f"the connection broke inside the answer: {detail}")',
        'return StreamParse(f"the connection broke inside the answer: {detail}")',
    ),
    Break(
        "D27",
        "import math\nfrom typing import TYPE_CHECKING, Protocol, Self\n",
        "import math\nimport time\nfrom typing import TYPE_CHECKING, Protocol, Self\n",
    ),
    Break(
        "D28 D33",
        "site.waiter.sleep(decision.seconds, waiting_for=retry)",
        '__import__("time").sleep(decision.seconds / 1e6)',
    ),
    _known("A45 P24 D29", "chain-not-closed-by-a-signal"),
    Break(
        "D30",
        '"off", 0, lambda _attempt, _requested_s, _slept_s: none,',
        '"off", 0, lambda attempt, _requested_s, _slept_s: none if attempt > 1 else Wait(1.0),',
    ),
    Break(
        "D34 P54",
        'return [{"type": "system", **fields}] if fields else []',
        'return [{"type": "ralph", **fields}] if fields else []',
    ),
    # --- A. ai-agent: retry strategy
    Break("A1", "        state = replace(state, route=Route(rules.first))\n", ""),
    Break("A2", "        return MoveOn(), _moved(state, route)", "        return CANNOT_HELP, state"),
    Break(
        "A22",
        "    if route is not None:\n        return MoveOn()",
        "    if route is not None and failure.kind is not FailureKind.TIMEOUT:\n        return MoveOn()",
    ),
    Break(
        "A25",
        "    {FailureKind.AUTH, FailureKind.BILLING, FailureKind.USAGE_LIMIT, FailureKind.NOT_FOUND}",
        "    {FailureKind.AUTH, FailureKind.BILLING, FailureKind.USAGE_LIMIT}",
    ),
    Break(
        "P20 Q8",
        "_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT, FailureKind.USAGE_LIMIT})",
        "_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT})",
    ),
    _known("A17 P8 Q22", "x-should-retry-over-spend-limit"),
    Break(
        "A3",
        "        error.retry_after,\n        kind in",
        "        None,\n        kind in",
    ),
    Break("A4", "    events += _changes(state, choice, error)\n", ""),
    Break("Q28", "        events.append(ModelFallbackSucceeded(", "        print(ModelFallbackSucceeded("),
    Break("Q30", "        events.append(ModelFallbackRecovered(", "        print(ModelFallbackRecovered("),
    Break(
        "A5",
        "return Wait(bounded_s, from_server=is_named and wait_s >= bounded_s)",
        "return Wait(bounded_s, from_server=is_named)",
    ),
    Break(
        "A36",
        "waits.insert(0, (max(named, default=float(retry)), bool(named)))",
        "waits.insert(0, (min(named, default=float(retry)), bool(named)))",
    ),
    Break("A40", "LEAST_ROUND_WAIT_S = 1.0", "LEAST_ROUND_WAIT_S = 0.0"),
    Break("A41", "ROUND_WAIT_CAP_S = 60.0", "ROUND_WAIT_CAP_S = 90.0"),
    Break("A6", "        self.emit(TurnStarted(turn))", "        self.emit(TurnStarted(turn - 1))"),
    Break("A7", "MOST_SYNTHETIC_RETRIES = 3", "MOST_SYNTHETIC_RETRIES = 4"),
    Break("A8", "        self.has_use = self.has_report = False\n", "        self.has_use = False\n"),
    Break(
        "A9 A33",
        "turns = [order[(starts_at + step) % len(order)] for step in range(len(order))]",
        "turns = [*order[starts_at:], *reversed(order[:starts_at])]",
    ),
    Break("A10", "starts_at = place if is_new or key_was_refused else place + 1", "starts_at = place"),
    Break(
        "A11",
        '            return fresh, RunTools(_odd_stop(stop, "tool_use"))',
        "            return fresh, Continue()",
    ),
    Break("A12", '        case _ if needs_report:\n            return asked_again(state, "no_report")\n', ""),
    Break(
        "A13", "        problems = self.validator(call.arguments)\n", "        problems: Sequence[str] = ()\n"
    ),
    Break("A14", 'lines = "\\n".join(f"- {problem}" for problem in problems)', 'lines = ""'),
    Break(
        "A15",
        "        self._tally.turns += rules.has_use\n",
        "        self._tally.turns += rules.has_use or rules.has_report\n",
    ),
    Break("A19 A38 A39", "max(named, default=float(retry))", "max(named, default=1.0)"),
    Break(
        "A20 A21 A43 Q12",
        "        return MoveOn(), _moved(state, route)",
        "        return Wait(1.0), _moved(state, route)",
    ),
    Break(
        "A24",
        "    if not failure.is_transient:\n        state = replace(state, chain=replace(chain, barred=",
        "    if not failure.is_transient and failure.kind is not FailureKind.PROTOCOL:\n        state = replace(state, chain=replace(chain, barred=",
    ),
    Break(
        "A26 Q11",
        "    if route is not None:\n        return MoveOn()",
        "    if route is not None and not failure.is_transient:\n        return MoveOn()",
    ),
    Break(
        "A27", "[turn] Synthetic retry {event.number}/3: {reason}", "[turn] Retry {event.number}/3: {reason}"
    ),
    Break("A49", "[turn] Final turn: {_in_words(_WHY_FINAL, event.reason)}", "[turn] Final turn"),
    Break(
        "A28",
        "            if isinstance(step, MakeRoom | AskAgain | NoUsableAnswer):",
        "            if isinstance(step, MakeRoom | NoUsableAnswer):",
    ),
    Break(
        "A79",
        "        notices, self._notices = self._notices, []\n",
        "        notices, self._notices = [], []\n",
    ),
    Break(
        "A29",
        '"no_report": "plain text does not end this task and was dropped.",',
        '"no_report": "plain text was dropped.",',
    ),
    Break("A53", '"max_turns": "The limit of {turns} is reached.",', '"max_turns": "The limit is reached.",'),
    Break("A74", '    "thinking_only": "your last answer held thinking only and was dropped.",\n', ""),
    Break(
        "A30",
        "        if self.malformed is not None:\n            return MalformedCall(",
        '        if self.malformed is not None and self.malformed == "":\n            return MalformedCall(',
    ),
    Break(
        "A31",
        "[turn] Malformed call of {event.tool}: {one_line(event.why)}",
        "[turn] Malformed call of {event.tool}",
    ),
    Break(
        "A32",
        'return refused(f"This call was not run. {fault}.")',
        'return refused("This call was not run.")',
    ),
    Break(
        "A35 A97",
        "chain=ChainState(retry, chain.slept_s + wait.seconds, chain.barred))",
        "chain=replace(chain, retries=retry, tried=frozenset()))",
    ),
    Break(
        "A42 A96",
        "or any(failure.kind is not FailureKind.RATE_LIMIT for failure in failed)",
        "or all(failure.kind is not FailureKind.RATE_LIMIT for failure in failed)",
    ),
    Break(
        "A48",
        "        if self._finishing.is_final:\n            return refused(",
        "        if self._finishing.is_final and False:\n            return refused(",
    ),
    Break(
        "A50",
        'step = asked_again(state, "invalid_report" if rules.has_report else "refused_calls")',
        'step = NoUsableAnswer("no_report", "no report"), state',
    ),
    Break(
        "A51",
        "is_last = self.max_turns is not None and turn >= self.max_turns",
        "is_last = self.max_turns is not None and turn > self.max_turns",
    ),
    Break(
        "A52",
        "if self.is_final or not is_last or not (follows_tools or needs_report):",
        "if self.is_final or not is_last:",
    ),
    Break(
        "A54",
        "        self.attempts += 1\n        self.cached = None\n",
        "        self.attempts += not isinstance(call, MalformedCall)\n        self.cached = None\n",
    ),
    Break("A55", "        new = turn + 1\n", "        new = turn + 2\n"),
    Break("A56", "        if old is not None and old <= new:\n            return None\n", ""),
    Break(
        "A57",
        "return TurnsCollapsed(turn, reason, old, new)",
        "return TurnsCollapsed(turn, reason, new, new)",
    ),
    Break(
        "A58 A73",
        '                self.add("ralph_retry_collapse_total", reason=event.reason)',
        "                pass",
    ),
    Break(
        "A69 A70",
        '"ralph_final_report_total", source=event.source, status=event.status, forced_final_reason=forced',
        '"ralph_final_report_total", source=event.source, status=event.status, forced_final_reason="none"',
    ),
    Break(
        "A59",
        "return self.receiver.accept_cached() if self.is_final else self.receiver.accepted",
        "return self.receiver.accept_cached()",
    ),
    Break(
        "A60",
        'self.cached = self._report(arguments, "text")',
        'self.cached = self._report(arguments, "tool_call")',
    ),
    Break(
        "A61",
        "return self.receiver.accept_cached() if self.is_final else self.receiver.accepted",
        "return self.receiver.accepted",
    ),
    Break(
        "A63",
        "        if text.strip():\n            self.cached = None\n        for found",
        "        for found",
    ),
    Break("A63", "            self.receiver.forget_text()", "            pass"),
    Break(
        "A64",
        "[report] {event.status}, {_in_words(_REPORT_SOURCES, event.source)}",
        "[report] {event.status}",
    ),
    Break(
        "A65",
        "        report = self.reported or ending.stand_in(self.receiver, self._tally, self.last_stop_reason)\n",
        "        report = self.reported\n        if report is None:\n            return ending\n",
    ),
    Break("A67", 'None, "synthetic", details)', 'None, "text", details)'),
    Break("A66", '        "final_report_attempts": attempts,\n        "last_stop', '        "last_stop'),
    Break(
        "A68",
        "{Outcome.LIMIT_REACHED, Outcome.TIMED_OUT, Outcome.NO_PROGRESS, Outcome.TASK_FAILED}",
        "{Outcome.LIMIT_REACHED, Outcome.TIMED_OUT, Outcome.TASK_FAILED}",
    ),
    Break("A71", "        self._attempts_of_this_run += new_attempts\n", ""),
    Break("A72", "sum(turn <= most for turn in turns)", "sum(turn < most for turn in turns)"),
    Break(
        "A76",
        "        if notice not in self._notices:\n            self._notices.append(notice)",
        "        self._notices.append(notice)",
    ),
    Break(
        "A77",
        "        message = user_message([*self._unanswered(), *_texts(notices)])\n        return self.conversation.amended(message) if self._is_unanswered else",
        "        message = user_message(_texts(notices))\n        return self.conversation.plus(message) if self._is_unanswered else",
    ),
    Break(
        "A78",
        "        self._sent = self._log.with_notices(self._notices)\n",
        "        self._sent = self._log.with_notices(self._notices)\n        for notice in self._notices:\n            self._log.say(notice)\n",
    ),
    Break("A80", 'FAILURES = ("empty", "thinking_only", "no_call",', 'FAILURES = ("empty", "no_call",'),
    Break(
        "A81",
        "            if isinstance(decision, Wait):\n                retry = f",
        "            if isinstance(decision, Wait) and requests.attempts < 3:\n                retry = f",
    ),
    Break("A82", "self._closing = Closing(self._limits.max_turns,", "self._closing = Closing(None,"),
    Break("A83", '    "max_tokens": at_least(1),\n    "context_window"', '    "context_window"'),
    Break(
        "A84",
        "SECONDS = Kind(Annotated[float, Meta(ge=0, le=MAX_SECONDS)]",
        "SECONDS = Kind(Annotated[float, Meta(ge=1, le=MAX_SECONDS)]",
    ),
    Break(
        "A86",
        '                "cost_usd": cost_usd(event.facts, event.tokens),\n',
        '                "cost_usd": None,\n',
    ),
    Break(
        "A87",
        '"attempts": event.attempts, "took_s": took_s}',
        '"attempts": event.attempts, "s": took_s}',
    ),
    _known("A92", "skips-all-keys"),
    Break(
        "A94",
        "        case _ if not said.strip():\n            return asked_again(state, _emptiness(answer))\n",
        "",
    ),
    Break(
        "A95",
        "        if receiver is not None and lacks_report:\n            error = receiver.last_problem or error\n",
        "        if receiver is not None:\n            error = receiver.last_problem or error\n",
    ),
    _known("A98", "skips-all-keys"),
    # --- P. oh-my-pi: auto-retry policy, first version
    Break("P1", "413: FailureKind.CONTEXT_OVERFLOW,", "413: FailureKind.SERVER,"),
    Break(
        "P2",
        'return asking.fits_with_less(error) or self._make_room("overflow")',
        "return False",
    ),
    Break(
        "P10",
        "if status >= 500:\n        return FailureKind.SERVER",
        "if status == 500:\n        return FailureKind.SERVER",
    ),
    Break(
        "P13",
        "        if self._retry is None:\n            return None\n",
        '        if self._retry is None:\n            return {"attempt": 1}\n',
    ),
    Break(
        "P14 P29 Q15", "            self._site.events.emit(exhausted(self._state, end))", "            pass"
    ),
    Break(
        "P16",
        'settings.retry.enabled and settings.retry.policy != "off"',
        'settings.retry.policy != "off"',
    ),
    Break(
        "P18 P34",
        "return RetryExhausted(state.retries, state.waited_s, why, state.turn, state.attempt)",
        "return RetryExhausted(state.retries + 1, state.waited_s, why, state.turn, state.attempt)",
    ),
    Break("P19", "base_delay_s * 2.0 ** min(", "base_delay_s * 1.5 ** min("),
    Break(
        "P22",
        "            ending = ended_by_error(error)\n",
        "            ending = ended_by_error(error)\n            self._transcript.say(str(error))\n",
    ),
    Break(
        "P23",
        "        case ev.AttemptEnded():\n            return {\n",
        "        case ev.AttemptEnded() if event.kind is None:\n            return {\n",
    ),
    Break("P30", '"`false`: no retries")] = True', '"`false`: no retries")] = False'),
    Break(
        "P31",
        'number of retries after the first request; 0: none")\n    ] = 4',
        'number of retries after the first request; 0: none")\n    ] = 3',
    ),
    Break("P32", 'doubled for each further one")\n    ] = 2', 'doubled for each further one")\n    ] = 3'),
    Break("Q16", '0 or less: no maximum")\n    ] = 300', '0 or less: no maximum")\n    ] = 200'),
    Break("P36 Q9", "extended = requested_s is not None and requested_s > scheduled_s", "extended = False"),
    Break(
        "Q20",
        "extended = requested_s is not None and requested_s > scheduled_s",
        "extended = requested_s is not None",
    ),
    Break("P38", 'super().__init__("Retry cancelled")', 'super().__init__("Retry aborted")'),
    Break(
        "D24 P41",
        "on_tick=writer.count_down if obeys_controls(2, environment) and not options.output.is_quiet else None,",
        "on_tick=None,",
    ),
    Break("P42", '{math.ceil(left_s)}s" if left_s > 0 else ""', '{math.ceil(left_s)}s"'),
    Break(
        "P43",
        "                self._has_input_ended = True\n",
        "                self._has_input_ended = True\n                self._stop(InterruptRequested())\n",
    ),
    _known("P44", "auto-retry-is-ignored"),
    Break(
        "P45 Q33", '"auto_retry": self._controls.auto_retry,', '"auto_retry": not self._controls.auto_retry,'
    ),
    Break("P46", '"retry": self._progress.retry_status(),', '"retry": None,'),
    Break(
        "P47",
        'return {"aborted": self._is_working and self._progress.is_retrying}',
        'return {"aborted": False}',
    ),
    Break(
        "P49",
        "        self._respond(success(line.request_id, response))\n",
        "        if self._progress.is_retrying:\n            return\n        self._respond(success(line.request_id, response))\n",
    ),
    Break("P51", "turn attempt retries total_wait_s error", "turn attempt retries total_wait_s"),
    Break(
        "P52",
        "        for sink in self._sinks:\n            sink.emit(event)",
        "        for sink in self._sinks[:1]:\n            sink.emit(event)",
    ),
    Break("P53", 'return [{"type": "system", **fields}] if fields else []', "return []"),
    # --- Q. oh-my-pi: auto-retry policy, second version
    Break(
        "Q1",
        "raise StreamTransient(f\"{event['type']} came before message_start\")",
        "raise StreamParse(f\"{event['type']} came before message_start\")",
    ),
    Break(
        "Q3 F1 F2 F3 F4 F5", "    if error.should_retry is not None:\n        return error.should_retry\n", ""
    ),
    Break(
        "Q4 Q5",
        "transient = cause not in PERMANENT_CAUSES",
        "transient = cause not in {*PERMANENT_CAUSES, NetworkCause.REFUSED, NetworkCause.RESET, NetworkCause.PROTOCOL_GARBAGE}",
    ),
    Break(
        "Q6",
        "transient = cause not in PERMANENT_CAUSES",
        "transient = cause not in {*PERMANENT_CAUSES, NetworkCause.TIMEOUT}",
    ),
    Break(
        "Q7",
        'return StreamTransient(f"the connection broke inside the answer: {detail}")',
        'return StreamParse(f"the connection broke inside the answer: {detail}")',
    ),
    Break(
        "Q10",
        "end_s = now_s + cooldown_s(failure.requested_s, policy, chain.retries + 1)",
        "end_s = now_s + (failure.requested_s or 0.0)",
    ),
    _known("Q13", "custom-ignores-maximum"),
    Break("Q31", '        events.append(Notice(f"giving up: {decision.reason}"))', "        pass"),
    Break("Q17", "if max_delay_s > 0 and wait_s > max_delay_s", "if wait_s > max_delay_s"),
    Break("Q18", '("retry-after-ms", 0.001)', '("retry-after-ms", 1.0)'),
    Break(
        "Q19",
        "moment = _http_date(text) or _iso_date(text)",
        "moment = _iso_date(text)",
    ),
    Break(
        "Q21",
        'unit_s=0.001 if found["unit"] else 1.0',
        "unit_s=1.0",
    ),
    Break(
        "Q23",
        "return implicit_targets(model, first_model, fallbacks, servers)",
        "return implicit_targets(model, first_model, (), servers)",
    ),
    Break(
        "Q24", "return state.releases_s.get(route, -math.inf) <= at_s", "return route not in state.releases_s"
    ),
    Break("Q25", "    if not rules.returns:\n        usable.sort", "    if False:\n        usable.sort"),
    Break("Q26", "turn attempt from=from_target to=", "turn attempt from=to_target to="),
    Break(
        "Q27",
        'from=from_target to=to_target reason")),\n    ev.ModelFallbackSucceeded: ("model_fallback_succeeded", named',
        'from=from_target to=to_target")),\n    ev.ModelFallbackSucceeded: ("model_fallback_succeeded", named',
    ),
    Break(
        "P11",
        "transient = cause not in PERMANENT_CAUSES",
        "transient = cause not in {*PERMANENT_CAUSES, NetworkCause.REFUSED}",
    ),
    Break(
        "F54 D32",
        "body = roster.body_for(conversation, granted, is_whole=state.is_whole)",
        "body = roster.body_for(conversation, granted - state.retries, is_whole=state.is_whole)",
    ),
    Break(
        "D2",
        "case StreamTransient():\n            transient = True",
        "case StreamTransient():\n            transient = False",
    ),
    Break(
        "D4",
        "        if not self.is_complete:\n            raise StreamTransient(",
        "        if not self._blocks:\n            raise StreamTransient(",
    ),
    Break(
        "D8",
        "        state.choice, failure, rules=state.rules,",
        "        replace(state.choice, chain=replace(state.choice.chain, slept_s=state.choice.chain.slept_s + situation.latency_s)), failure, rules=state.rules,",
    ),
    Break(
        "D29 P15 P37 P48",
        'response["aborted"]:\n                self._stop(RetryAborted())',
        'response["aborted"]:\n                self._stop(InterruptRequested())',
    ),
    Break(
        "D31 P39",
        'response["interrupted"]:\n                self._stop(InterruptRequested())',
        'response["interrupted"]:\n                self._stop(RetryAborted())',
    ),
    Break("F43", "STANDARD_SCHEDULE_S = (2.0, 4.0, 8.0, 16.0)", "STANDARD_SCHEDULE_S = (2.0, 2.0, 2.0, 2.0)"),
    Break(
        "F52 A1 P26 P27 P28 P57 Q14 A37",
        "    state = replace(state, chain=chain)\n    if rules",
        "    if rules",
    ),
    Break(
        "F49",
        "    if not failure.is_transient and failure.kind in _FOR_THE_RUN:",
        "    if failure.kind in (*_FOR_THE_RUN, FailureKind.OVERLOADED):",
    ),
    Break(
        "A75",
        "_OF_THE_REQUEST = frozenset({FailureKind.INVALID_REQUEST, FailureKind.CONTEXT_OVERFLOW})",
        "_OF_THE_REQUEST = frozenset({FailureKind.CONTEXT_OVERFLOW})",
    ),
    Break(
        "P8",
        "_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT, FailureKind.USAGE_LIMIT})",
        "_OF_THE_KEY = frozenset({FailureKind.RATE_LIMIT})",
    ),
    Break(
        "A23",
        "    return wait, _begin_round(state, rules, now_s + wait.seconds)",
        "    return MoveOn(), _begin_round(state, rules, now_s + wait.seconds)",
    ),
    Break(
        "A34 A89",
        "return _used_up(attempt, len(STANDARD_SCHEDULE_S))",
        "return _used_up(attempt, len(STANDARD_SCHEDULE_S) + 1)",
    ),
    Break(
        "A47",
        "The context window is full, and nothing more can be taken out of it.",
        "The context window is full.",
    ),
    Break("A46", '        self._enter_final_turn("context")\n        return True', "        return True"),
    Break(
        "A62",
        "return self.receiver.accept_cached() if self.is_final else self.receiver.accepted",
        "return self.receiver.accept_cached()",
    ),
    Break("A91", "401: FailureKind.AUTH,", "401: FailureKind.SERVER,"),
    Break(
        "P3",
        "if kind in (FailureKind.USAGE_LIMIT, FailureKind.CONTEXT_OVERFLOW):\n        return False",
        "if kind in (FailureKind.USAGE_LIMIT, FailureKind.CONTEXT_OVERFLOW):\n        return kind is FailureKind.CONTEXT_OVERFLOW",
    ),
    Break(
        "P40",
        "            self._stop(SignalReceived(signal_number))",
        '            self._stop(TimeIsUp("a signal came"))',
    ),
    Break(
        "D11",
        "        wait = Wait(scheduled_s)\n        if requested_s",
        "        wait = Wait(scheduled_s + slept_s / 100)\n        if requested_s",
    ),
    Break(
        "A85",
        "        latency_s=latency_s,\n        tokens=tokens,",
        "        latency_s=0.0,\n        tokens=tokens,",
    ),
    Break(
        "Q29",
        "        return [target_record(target.name, shape, cooling, roster.first.name)]",
        "        return []",
    ),
    Break(
        "Q32",
        "            case lines.Interrupt():\n                return",
        "            case lines.Interrupt():\n                self._queue = MessageQueue()\n                return",
    ),
    Break("F44", 'raise StreamTransient(f"the answer stalled: ', 'raise StreamParse(f"the answer stalled: '),
)
