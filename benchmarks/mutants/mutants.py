"""Deliberate mistakes in ralph. Each breaks one promise. `python -m benchmarks.mutants` tries them.

The old text of a mutant occurs exactly once in the package; its module does not matter. If the code is changed and
the text is gone, the mutant is written again for the new code, so that its promise is still tested.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    promise: str
    """The promise that the mutant breaks."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Names of test files that are likely to fail, in any directory. `*` matches any characters."""


RETRY = (
    "test_step.py",
    "test_loop.py",
    "test_loop_targets.py",
    "test_targets.py",
    "test_classify.py",
    "test_backoff.py",
)
TARGETS = ("test_step.py", "test_targets.py", "test_loop_targets.py", "test_roster.py", "test_target_*.py")
STREAMS = ("test_stream.py", "test_structure_faults.py")
RESUME = ("test_resume*.py", "test_journals.py", "test_session*.py", "test_target_resume.py")
JOURNAL = ("test_journal*.py", "test_resume.py", "test_disk.py", "test_damaged_sessions.py")
REPORTS = ("test_report*.py", "test_resume.py")
# The lines that record the intents of a group of calls, and run the group.
_ANNOUNCED = """                self._announce(ruling.call)
                runnable.append(ruling)
            else:
                self._finish([(shown, ruling, 0.0)])
        if runnable:
"""
FLEET_GIT = ("test_checkouts.py", "test_planted_in_checkout.py")
FLEET = (
    "test_work.py",
    "test_worker.py",
    "test_decisions.py",
    "test_nemesis.py",
    "test_undelivered.py",
    "fleet/test_store.py",
)
LOOP = ("test_iterate.py", "test_loop_*.py", "test_results.py")
PATHS = (
    "test_path_guard.py",
    "test_protected_paths.py",
    "test_places.py",
    "test_write*.py",
    "test_beneath.py",
)
PLACES = (
    "test_one_table.py",
    "test_places.py",
    "test_git_places.py",
    "test_protected_files.py",
    "test_landlock_rules.py",
)
ROOTS = ("test_protected_roots.py", "test_nested_repositories.py", "test_configuration_behind_links.py")
COMMANDS = (
    "test_kill_below.py",
    "test_launcher.py",
    "test_processes.py",
    "test_bash.py",
    "test_process_storm.py",
)
GIT = ("git/test_pins.py", "test_push*.py", "test_loop_planted_git.py", "test_planted_programs.py")
PROGRAMS = ("test_trusted_programs.py", "test_detection.py")
SETTINGS = ("test_tightening.py", "test_merge.py", "test_repository_settings.py", "test_trusted_files.py")
LINE = ("test_words.py", "test_settings_command.py", "test_loop_options.py", "test_tool_options.py")
TURNS = (
    "test_next_step.py",
    "test_stop_reasons.py",
    "test_synthetic_retries.py",
    "test_malformed_answers.py",
)
THINKING = ("foreign/test_thinking.py", "test_reading.py", "test_switching.py")
OVERFLOW = ("test_refusals.py", "foreign/test_overflow.py", "test_context_size.py", "test_step.py")
SIZE = ("test_compaction.py", "test_context_size.py", "test_resume_compaction.py", "test_window.py")

MUTANTS = (
    # --- thinking that a server refuses
    Mutant(
        "refused-thinking-ends",
        "refused thinking is left out and asked once more",
        "if asking.leaves_out_thinking(error):",
        "if False:",
        THINKING,
    ),
    Mutant(
        "refused-thinking-for-ever",
        "a refusal without thinking in the request is not asked again",
        "is_news = refuses_thinking(error) and has_thinking",
        "is_news = refuses_thinking(error)",
        THINKING,
    ),
    Mutant(
        "refused-thinking-unrecorded",
        "a resumed session leaves refused thinking out",
        "    kinds.ThinkingRecord: _leave_out_thinking,\n",
        "",
        THINKING,
    ),
    Mutant(
        "all-thinking-left-out",
        "only the thinking up to the refusal is left out",
        "is_left_out=index < left.messages",
        "is_left_out=left.messages > 0",
        THINKING,
    ),
    Mutant(
        "off-for-ever",
        "a model may think again after the next prompt",
        "conversation = conversation.thinking_again()",
        "pass",
        THINKING,
    ),
    Mutant(
        "signatures-elsewhere",
        "another endpoint never gets signatures",
        "return author.model == reader.model and is_one_place",
        "return author.model == reader.model",
        THINKING,
    ),
    # --- a full context in unknown words
    Mutant(
        "guess-on-any-size",
        "an unknown refusal leads to a compaction only if the request grew much",
        "if answered is None or size <= GROWTH * answered:",
        "if answered is None:",
        OVERFLOW,
    ),
    Mutant(
        "guess-without-window",
        "without a window, only a request of more than 100,000 tokens may be too large",
        "return size > GUESSED_TOKENS if window is None",
        "return True if window is None",
        OVERFLOW,
    ),
    Mutant(
        "guess-again",
        "a run guesses once that a request was too large",
        "        self._has_guessed = True\n",
        "",
        OVERFLOW,
    ),
    Mutant(
        "guess-waits",
        "the same text twice ends the chain of a request that may be too large",
        "    if is_said_twice:\n",
        "    if False:\n",
        OVERFLOW,
    ),
    Mutant(
        "guess-then-give-up",
        "after a summary that failed, a failure of the server gets all its retries",
        "return error.may_be_about_size  # its",
        "return False  # its",
        OVERFLOW,
    ),
    Mutant(
        "guess-with-half",
        "the request for the summary is no larger than the last one that was answered",
        'return Attempt("digest", max(_CUT.share, min(_HALF.share, (answered - head) / size)))',
        'return Attempt("digest", _HALF.share)',
        OVERFLOW,
    ),
    Mutant(
        "false-count",
        "a count far below what the bytes allow is no count",
        "if prompt_tokens * MOST_BYTES_PER_TOKEN < size_then * BYTES_PER_TOKEN or prompt_tokens <= 0:",
        "if prompt_tokens <= 0:",
        OVERFLOW,
    ),
    Mutant(
        "text-with-any-status",
        "a known text counts only with the statuses of its row",
        "return status in self.statuses and self.search(text) is not None",
        "return self.search(text) is not None",
        OVERFLOW,
    ),
    # --- which error is asked about again
    Mutant(
        "idle-connection-waits",
        "a lost idle connection is retried at once",
        "decision: Decision = Wait(0.0)",
        "decision: Decision = Wait(2.0)",
        ("test_step.py",),
    ),
    Mutant(
        "idle-connection-twice",
        "a lost idle connection is retried at once only once in a chain",
        "if error.was_idle and not state.has_lost_idle:",
        "if error.was_idle:",
        ("test_step.py",),
    ),
    Mutant(
        "byte-of-answer-counts-as-none",
        "only a connection without a byte of the answer was idle",
        "self.has_received = self.has_received or bool(arrived)",
        "self.has_received = False",
        ("test_idle_connections.py",),
    ),
    Mutant(
        "first-address-alone",
        "a silent address does not hide the next one",
        "ATTEMPT_DELAY_S = 0.25",
        "ATTEMPT_DELAY_S = 250",
        ("test_connecting.py",),
    ),
    Mutant(
        "no-proxy-knows-no-networks",
        "NO_PROXY may name a network",
        "return _without_mapping(host) in ip_network(name, strict=False)",
        "return str(_without_mapping(host)) == name",
        ("test_proxies.py",),
    ),
    Mutant(
        "strict-about-authorities",
        "a company's authority needs no key identifiers",
        "context.verify_flags &= ~ssl.VERIFY_X509_STRICT",
        "context.verify_flags |= ssl.VERIFY_X509_STRICT",
        ("test_trust.py",),
    ),
    Mutant(
        "x-should-retry-over-400",
        "x-should-retry: true makes a 400 transient, the choice of targets included",
        "if failure.kind in _OF_THE_REQUEST and not failure.is_transient:",
        "if failure.kind in _OF_THE_REQUEST:",
        RETRY,
    ),
    Mutant(
        "x-should-retry-over-spend-limit",
        "a spend limit is permanent whatever x-should-retry says",
        "if kind in (FailureKind.USAGE_LIMIT, FailureKind.CONTEXT_OVERFLOW):",
        "if kind is FailureKind.CONTEXT_OVERFLOW:",
        RETRY,
    ),
    Mutant(
        "for-later-ends-in-69",
        "a 429 or 5xx that must not be retried ends in 75, so that a loop waits",
        "if not isinstance(error, HttpError) or error.should_retry is not False:",
        "if not isinstance(error, HttpError) or error.should_retry is False:",
        RETRY,
    ),
    Mutant(
        "408-is-permanent",
        "408 and 409 pass with time",
        "408: FailureKind.TIMEOUT,",
        "408: FailureKind.INVALID_REQUEST,",
        RETRY,
    ),
    Mutant(
        "certificate-is-weather",
        "a bad certificate is permanent",
        "        NetworkCause.CERTIFICATE,\n        NetworkCause.BAD_URL,",
        "        NetworkCause.BAD_URL,",
        RETRY,
    ),
    Mutant(
        "error-event-is-damage",
        "a StreamParse that is an error event keeps its own outcome and is no damaged answer",
        "return not error.is_reported",
        "return True",
        (*RETRY, "test_malformed_answers.py", "test_answer_faults.py"),
    ),
    Mutant(
        "empty-account-with-a-time",
        "an account that only a person fills is never waited for, whatever time a server names",
        "is_timed = account.is_refilled and retry_after is not None",
        "is_timed = retry_after is not None",
        (*RETRY, "test_accounts.py"),
    ),
    Mutant(
        "a-gateways-header-before-the-account",
        "the longest time counts for an exhausted account",
        "    return max(named_s, default=window_s(account, message))",
        "    return min(named_s, default=window_s(account, message))",
        ("test_accounts.py", "test_retry_after.py"),
    ),
    Mutant(
        "a-key-renewed-again-and-again",
        "a program's key is renewed once in a chain",
        "if is_bad_key(error) and route not in state.renewed and keys",
        "if is_bad_key(error) and keys",
        ("test_key_programs.py",),
    ),
    Mutant(
        "a-wait-that-cannot-help",
        "standard ends at once if the requested wait is longer than all that are left",
        "if 0 < left_s < wait_s:",
        "if 0 < left_s < wait_s / 60:",
        (*RETRY, "test_accounts.py"),
    ),
    # --- how long, and whether at all
    Mutant(
        "no-cap-on-a-requested-wait",
        "standard caps retry-after at 60 s",
        "return Wait(min(requested_s, LONGEST_STANDARD_WAIT_S), from_server=True)",
        "return Wait(requested_s, from_server=True)",
        RETRY,
    ),
    Mutant(
        "patient-takes-a-shorter-request",
        "patient: only a longer retry-after wins over the schedule",
        "        if requested_s is not None and requested_s > scheduled_s:\n            wait = Wait(requested_s, from_server=True)\n        refused",
        "        if requested_s is not None:\n            wait = Wait(requested_s, from_server=True)\n        refused",
        RETRY,
    ),
    Mutant(
        "custom-ignores-maximum",
        "custom: a wait over max_delay_s ends the chain",
        "if max_delay_s > 0 and wait_s > max_delay_s and attempt <= max_retries:",
        "if 0 > max_delay_s and wait_s > max_delay_s and attempt <= max_retries:",
        RETRY,
    ),
    Mutant(
        "waits-past-max-time",
        "a wait that the run's time does not hold is not begun",
        "if isinstance(decision, Wait) and decision.seconds >= moment.time_left_s:",
        "if isinstance(decision, Wait) and decision.seconds >= 2 * moment.time_left_s:",
        (*RETRY, "test_time_limit.py", "test_limits.py"),
    ),
    Mutant(
        "max-tokens-anew",
        "max_tokens is fixed for a chain: retries to one target send identical bytes",
        "fixed = state.answer_tokens.get(target.name)",
        "fixed = None",
        (*RETRY, "test_limits.py"),
    ),
    Mutant(
        "a-night-before-the-budget",
        "a retry that the budget no longer buys ends with 3, before its wait",
        "            request = affordable_request(conversation, site, state, most_tokens)\n"
        "            if isinstance(decision, Wait):\n"
        '                retry = f"retry {state.retries + 1} of {site.policy.max_retries}"\n'
        "                site.waiter.sleep(decision.seconds, waiting_for=retry)\n"
        "                state = waited(state, decision)\n",
        "            if isinstance(decision, Wait):\n"
        '                retry = f"retry {state.retries + 1} of {site.policy.max_retries}"\n'
        "                site.waiter.sleep(decision.seconds, waiting_for=retry)\n"
        "                state = waited(state, decision)\n"
        "            request = affordable_request(conversation, site, state, most_tokens)\n",
        (*RETRY, "test_limits.py"),
    ),
    Mutant(
        "auto-retry-is-ignored",
        "set_auto_retry false stops retries",
        "policy = self.policy if self.controls.auto_retry else backoff.off()",
        "policy = self.policy",
        (*RETRY, "test_steering*.py", "test_driven_control.py"),
    ),
    Mutant(
        "chain-not-closed-by-a-signal",
        "a chain of retries is closed by exactly one event, also when a signal ends it",
        "        if self._is_open:\n            self._site",
        "        if self._is_open and not isinstance(end, Interrupted):\n            self._site",
        (*RETRY, "test_signals.py"),
    ),
    # --- targets
    Mutant(
        "cooldown-not-renewed",
        "a target's own cooldown is renewed by each failure of its own",
        "return replace(state, releases_s={**state.releases_s, **cooled, state.route: end_s})",
        "return replace(state, releases_s={**cooled, state.route: end_s, **state.releases_s})",
        TARGETS,
    ),
    Mutant(
        "cooldown-not-cleared",
        "an answer ends the cooldown of whoever gave it",
        "releases_s = {route: end_s for route, end_s in state.releases_s.items() if route != state.route}",
        "releases_s = dict(state.releases_s)",
        TARGETS,
    ),
    Mutant(
        "cooldown-not-recorded",
        "the journal says whose cooldown ends when, so that a resumed run knows",
        "told = _Told(target.name, roster.first.name, tuple(sorted(ends_s.items())))",
        "told = _Told(target.name, roster.first.name)",
        (*TARGETS, *RESUME),
    ),
    Mutant(
        "skips-all-keys",
        "a key that is refused gives way to the next key of its target",
        "hit = [state.route] if failure.is_of_key else rules.keys_of(state.route.target)",
        "hit = rules.keys_of(state.route.target)",
        TARGETS,
    ),
    Mutant(
        "replaced-first-target-is-asked",
        "after set_model the target that was replaced is asked no more",
        "others = listed if self.first in listed else listed[1:]",
        "others = listed",
        (*TARGETS, "test_steering_model.py", "test_switching.py"),
    ),
    Mutant(
        "shortage-cools-down",
        "a shortage of this machine cools nobody down",
        "if failure.is_of_machine:",
        "if failure.is_of_machine and not rules.is_rotation:",
        (*TARGETS, "test_shortage.py"),
    ),
    Mutant(
        "rate-limited-rotation-is-hot",
        "a rotation in which everybody was rate-limited is never a hot loop",
        "LEAST_ROUND_WAIT_S = 1.0",
        "LEAST_ROUND_WAIT_S = 0.0",
        TARGETS,
    ),
    # --- journal and resume
    Mutant(
        "intent-not-synced",
        "an intent with effects is on the disk before its tool runs",
        "self.log.record(intent_record(call, self.changes[call.id]), sync=has_effects)",
        "self.log.record(intent_record(call, self.changes[call.id]), sync=False)",
        (*JOURNAL, "test_loop.py"),
    ),
    Mutant(
        "nothing-synced",
        "a record is synced before it is announced",
        "            if sync:\n                _sync(self._descriptor)",
        "            if not sync:\n                _sync(self._descriptor)",
        JOURNAL,
    ),
    Mutant(
        "directory-not-synced",
        "a new journal's directory entry is synced",
        "            _sync_directory(path.parent)\n        except OSError as error:\n            raise JournalError(path, error) from error\n        except SessionLockedError:",
        "        except OSError as error:\n            raise JournalError(path, error) from error\n        except SessionLockedError:",
        JOURNAL,
    ),
    Mutant(
        "short-write-is-kept",
        "a write that the disk cuts short is taken back",
        "if written != len(lines):",
        "if not written:",
        JOURNAL,
    ),
    Mutant(
        "effect-before-intent",
        "answer, intent, effect, result: in this order",
        _ANNOUNCED,
        """                runnable.append(ruling)
                self._run_all([ruling])
                self._announce(runnable.pop().call)
            else:
                self._finish([(shown, ruling, 0.0)])
        if runnable:
""",
        (*JOURNAL, "test_loop.py", "test_nemesis.py"),
    ),
    Mutant(
        "group-judged-before-its-intents",
        "each call is judged immediately before its own intent is recorded",
        _ANNOUNCED,
        """                runnable.append(ruling)
            else:
                self._finish([(shown, ruling, 0.0)])
        for each in runnable:
            self._announce(each.call)
        if runnable:
""",
        RESUME,
    ),
    Mutant(
        "forbidden-call-has-an-intent",
        "a call is judged before its intent is recorded",
        "            ruling = self._settled(shown) or self.rules.ruling(call)\n",
        "            self._announce([shown])\n            ruling = self._settled(shown) or self.rules.ruling(call)\n",
        RESUME,
    ),
    Mutant(
        "changed-input-not-judged",
        "rules and the mode judge what somebody who was asked has changed",
        "        self._by_rules_and_mode(checked.call)\n        return checked\n",
        "        return checked\n",
        ("test_gate.py", "test_driver_hooks.py"),
    ),
    Mutant(
        "changed-input-not-checked",
        "what somebody changes is checked and converted before anybody else judges it",
        "    changed = check(replace(checked.call, arguments=arguments))",
        "    changed = replace(checked, call=replace(checked.call, arguments=arguments))",
        ("test_gate.py", "test_driver_hooks.py"),
    ),
    Mutant(
        "failed-hook-permits",
        "a hook that fails denies",
        '                raise _RefusedError(f"{failed}: {error}. The call was not run") from error',
        "                continue",
        ("test_gate.py", "test_driver_hooks.py", "test_command_hooks.py"),
    ),
    Mutant(
        "unclear-answer-permits",
        "output with a brace and no single answer denies where a hook can refuse",
        "    if not brace or (before and event not in GUARDED):\n",
        "    if not brace or before:\n",
        ("test_command_hooks.py",),
    ),
    Mutant(
        "mcp-call-runs-twice",
        "a call of an MCP server is sent again only if it did not reach the server",
        "            if link.was_unreached:\n",
        "            if link.tools is None:\n",
        ("test_mcp_faults.py",),
    ),
    Mutant(
        "command-runs-twice",
        "an interrupted command is not run again: its effects are unknown",
        "            return ToolOutput(INTERRUPTED, is_error=True)\n        change = ",
        "            return None\n        change = ",
        RESUME,
    ),
    Mutant(
        "nul-tail-is-torn",
        "a tail of NUL bytes is damage, never a torn line",
        "        if _NUL in chunk:\n            return _Tail(offset, fault=_HOLDS_NULS)\n",
        "",
        JOURNAL,
    ),
    Mutant(
        "report-forgotten-by-a-result",
        "an accepted report stands, on resume, though another call's result follows it",
        "report = session.report if keeps_report else None",
        "report = None",
        (*RESUME, *REPORTS),
    ),
    Mutant(
        "failed-edit-counts-as-change",
        "the list of changed files holds what was changed, no failed edit",
        "is_real = change is not None and change.is_real and not record.is_error",
        "is_real = change is not None and change.is_real",
        (*RESUME, *SIZE),
    ),
    Mutant(
        "thinking-none-is-forgotten",
        'thinking = "none" holds on resume',
        '        if thinking == "none":\n            del requested["thinking"]',
        '        if thinking == "none":\n            requested.pop("effort", None)',
        (*RESUME, "test_messages.py", "test_targets.py"),
    ),
    Mutant(
        "undelivered-is-completed",
        "a result that reached nobody is told once more on resume",
        "return self.has_ended_as(Outcome.COMPLETED) and self.is_delivered and not self.queued",
        "return self.has_ended_as(Outcome.COMPLETED) and not self.queued",
        (*RESUME, "test_undelivered.py"),
    ),
    Mutant(
        "limits-not-lifted",
        "after a forced end the resumed model is told that earlier limits are lifted",
        "return LIMIT_LIFTED if was_limited and not _was_told(old, LIMIT_LIFTED) else None",
        "return None",
        (*RESUME, "test_time_limit.py", "test_limits.py"),
    ),
    # --- turns, guards, limits
    Mutant(
        "refusal-is-completed",
        "a refusal ends the run with no_progress",
        "return end(Outcome.NO_PROGRESS, _refusal(answer))",
        "return end(Outcome.COMPLETED, _refusal(answer))",
        TURNS,
    ),
    Mutant(
        "one-continuation-too-many",
        "max_tokens is continued 3 times at most",
        "MOST_CONTINUATIONS = 3",
        "MOST_CONTINUATIONS = 4",
        TURNS,
    ),
    Mutant(
        "damaged-twice",
        "a damaged answer is asked about once a turn",
        "return self.may_fail and not self.was_damaged",
        "return self.may_fail",
        TURNS,
    ),
    Mutant(
        "repeated-call-runs-twice",
        "a call that begins again is refused",
        'if before.is_client_call and before.block.get("id") == block.block.get("id"):',
        "if False:",
        STREAMS,
    ),
    Mutant(
        "equal-calls-run-twice",
        "two equal calls with one id are refused",
        'if (own, call["name"], call["input"]) in told:',
        "if False:",
        STREAMS,
    ),
    Mutant(
        "unstopped-call-runs-empty",
        "a call that is not stopped runs only if its input is whole",
        "if block.takes_input and (block.malformed is not None or not block.raw_input.strip()):",
        "if block.takes_input and block.malformed is not None:",
        STREAMS,
    ),
    Mutant(
        "two-answers-mixed",
        "a message_start with another id is an outage",
        "if len(ids) > 1:",
        "if False:",
        STREAMS,
    ),
    Mutant(
        "malformed-never-ends",
        "the third answer in a row of malformed calls ends the run",
        "if count >= MOST_MALFORMED_ANSWERS",
        "if count > MOST_MALFORMED_ANSWERS",
        (*TURNS, "test_loop_guards.py", "test_guards.py"),
    ),
    Mutant(
        "doom-loop-goes-on",
        "three equal results, then the call is refused",
        "MOST_EQUAL = 3",
        "MOST_EQUAL = 4",
        ("test_guards.py", "test_loop_guards.py", "test_refused_guards.py"),
    ),
    Mutant(
        "edit-does-not-reset",
        "an edit that changed a file resets the guards: edit-test-edit never trips them",
        "            self._steps.clear()\n            return\n        step = next(",
        "            return\n        step = next(",
        ("test_guards.py", "test_loop_guards.py"),
    ),
    Mutant(
        "time-makes-progress",
        "results are compared without times",
        'text = re.sub(_TIME, "~", " ".join(text.split()))',
        'text = " ".join(text.split())',
        ("test_guards.py", "test_loop_guards.py"),
    ),
    Mutant(
        "budget-at-the-cheapest-price",
        "the budget counts with the dearest input price",
        "return max(price.input, price.cache_write, price.cache_read)",
        "return min(price.input, price.cache_write, price.cache_read)",
        ("test_limits.py",),
    ),
    Mutant(
        "unknown-price-is-free",
        "what cannot be counted cannot be kept within a budget",
        "return 0  # without a price",
        "return requested  # without a price",
        ("test_limits.py", "test_model_rows.py"),
    ),
    Mutant(
        "final-turn-runs-tools",
        "in the final turn other tools are refused",
        "        if self._finishing.is_final:\n            return refused(",
        "        if self._finishing.is_final and self._desk is not None:\n            return refused(",
        ("test_limits.py", "test_finishing.py", "test_reports.py"),
    ),
    # --- reports, compaction
    Mutant(
        "old-text-is-accepted",
        "a payload in text is forgotten when the model says something else",
        "        if text.strip():\n            self.cached = None\n        for found",
        "        for found",
        REPORTS,
    ),
    Mutant(
        "failure-passes-for-payload",
        "a failure report with a mistake never passes for a payload",
        'return "payload" in value or value["status"] == "failure"',
        'return "payload" in value',
        REPORTS,
    ),
    Mutant(
        "second-report-counts",
        "the first accepted report stands",
        "        if self.accepted is not None:\n            return ToolOutput(",
        "        if self.accepted is not None and not self.has_payload:\n            return ToolOutput(",
        REPORTS,
    ),
    Mutant(
        "compaction-need-not-shrink",
        "a compacted context must shrink",
        "return 4 * new_tokens <= 3 * old_tokens and not is_over(new_tokens, window)",
        "return not is_over(new_tokens, window)",
        SIZE,
    ),
    Mutant(
        "no-cut-without-a-model",
        "after two attempts that do not shrink, the history is cut without a model call",
        "_WHOLE, _QUARTER, _CUT)\n        return ways",
        "_WHOLE, _QUARTER)\n        return ways",
        SIZE,
    ),
    Mutant(
        "files-left-out-of-fresh-context",
        "a fresh context holds the list of changed files",
        "        *_section(FILES_HEADING, files),\n",
        "",
        SIZE,
    ),
    # --- files, secrets, commands
    Mutant(
        "magic-links-are-followed",
        "no magic link of the kernel leads out of a root",
        "(HELD_DIRECTORY, 0, _BENEATH | _NO_MAGICLINKS)",
        "(HELD_DIRECTORY, 0, _BENEATH)",
        PATHS,
    ),
    Mutant(
        "opened-file-not-judged",
        "what was opened is judged, not only the path",
        "        if real != judged:\n            self._refuse(real, shown, self._why_not_read(real))\n",
        "",
        PATHS,
    ),
    Mutant(
        "capitals-get-past",
        "a protected name is protected in any case of letters",
        "path.translate(IGNORED_CHARACTERS), re.IGNORECASE)",
        "path.translate(IGNORED_CHARACTERS))",
        PATHS,
    ),
    Mutant(
        "commands-see-secrets",
        "what tools must not read, commands must not read either",
        "(*self.places.closed_homes, *self.places.unread)",
        "self.places.closed_homes",
        PLACES,
    ),
    Mutant(
        "a-root-in-a-protected-folder-is-writable",
        "a root that is or lies in a protected folder is closed to commands",
        "return tuple(root for root in roots if self._place_of(root, UNWRITTEN) is None)",
        "return tuple(roots)",
        ROOTS,
    ),
    Mutant(
        "a-keyring's-git-directory-is-readable",
        "no git directory that must not be read is opened to commands",
        "tuple(one for one in found if places.why_not_read(one) is None)",
        "tuple(found)",
        ROOTS,
    ),
    Mutant(
        "names-are-guarded-below-the-root-only",
        "a root may itself be the folder of a protected name",
        "for count in range(len(parts)):",
        "for count in range(1):",
        ROOTS,
    ),
    Mutant(
        "an-old-folder-gets-a-protected-name",
        "a folder that was renamed makes its files new",
        "has_new_name = is_telling and is_new(above, since_s or 0.0)",
        "has_new_name = False",
        ROOTS,
    ),
    Mutant(
        "files-at-the-top-are-left-out-too",
        "protected files at the top of a root are committed",
        'all(obeyed.search("".join(rest.partition("/")[1:])) for rest in inside)',
        'any(obeyed.search(f"/{rest}") for rest in inside)',
        ROOTS,
    ),
    Mutant(
        "the-home-is-open",
        "commands, searches and Read see of the home only what the table shows",
        "for home in map(resolved, homes) if _may_be_closed",
        "for home in () if _may_be_closed",
        PLACES,
    ),
    Mutant(
        "an-environment-in-a-root-is-believed",
        "what a command may have written shows nothing of the home",
        'return "" if real is None else os.fsdecode(beginning_of(real))',
        "return os.fsdecode(beginning_of(file))",
        ("test_home_needs.py",),
    ),
    Mutant(
        "a-link-in-the-work-is-followed",
        "what a command may have written shows nothing of the home",
        "if is_within_any(place, self.unfollowed):",
        "if False:",
        ("test_home_needs.py",),
    ),
    Mutant(
        "a-given-place-opens-the-secrets-in-it",
        "a secret place inside of what the user allows stays closed",
        "and not any(map(place.has, given))",
        "and not given",
        ("test_home_needs.py",),
    ),
    Mutant(
        "a-known-secret-is-read-outside-the-roots",
        "Read, Edit and Grep refuse a file outside the roots that holds a secret that ralph knows",
        "if self._redact(text) != text:",
        "if not text:",
        ("test_path_guard.py",),
    ),
    Mutant(
        "a-guard-that-cannot-be-kept-is-dropped",
        "a row with a guard that could not be kept is an error",
        "if kind not in GUARDS[guard].takes:",
        "if not GUARDS[guard].takes:",
        ("test_places.py",),
    ),
    Mutant(
        "the-sandbox-has-the-paths-of-its-own-places-only",
        "rows with paths of the home directory hold for commands too",
        "(*self.by_guard.get(guard, ()), *table.paths_with(guard, sandbox))",
        "(*table.paths_with(guard, sandbox),)",
        ("test_one_table.py",),
    ),
    Mutant(
        "only-the-directory-around-a-read-only-file-is-pinned",
        "no directory between a root and a read-only file can be replaced",
        "while (path := os.path.dirname(path)) not in tops and",
        "while (path := os.path.dirname(path)) not in tops and path.count('/') > 99 and",
        ("test_one_table.py",),
    ),
    Mutant(
        "a-writable-place-that-is-missing-is-mounted",
        "commands run although a writable place of the table does not exist",
        "if one in self._plan.write or os.path.exists(one)]",
        "if one]",
        ("test_one_table.py",),
    ),
    Mutant(
        "mounts-leave-protected-files-out",
        "with namespaces, protected files are read-only",
        "READ_ONLY, open_roots, guarded, parts.read_only, writable=parts.writable",
        "READ_ONLY, (), (), ()",
        PLACES,
    ),
    Mutant(
        "a-closed-root-leaves-the-rest-open",
        "where the root of the file system is hidden, commands read nothing of it",
        'pending += [] if "/" in closed else ["/"]',
        'pending += ["/"]',
        ("test_landlock_rules.py",),
    ),
    Mutant(
        "comparison-leaves-names-out",
        "protected names at the top of a root are compared after a command",
        "for root in roots for name in names_at(root, guard)",
        "for root in () for name in names_at(root, guard)",
        PLACES,
    ),
    Mutant(
        "a-claimed-git-directory-is-granted",
        "a git directory that does not know the checkout is not writable",
        'why = "" if is_known else f"it does not name',
        'why = "" if is_known or directory else f"it does not name',
        PLACES,
    ),
    Mutant(
        "pages-show-secrets",
        "a page leaves out the diff of a file that must not be read",
        'and places.why_not_read(f"{top}/{path}") is None\n',
        "\n",
        PLACES,
    ),
    Mutant(
        "base64-shows-a-secret",
        "known secrets are redacted in Base64 too",
        "    yield from _base64_forms_of(secret)\n\n\ndef _json_forms",
        "\n\ndef _json_forms",
        ("test_redaction.py", "test_proxy_credentials.py"),
    ),
    Mutant(
        "no-session-of-its-own",
        "a command has a session of its own: no terminal of the user's reaches it",
        "given, setsid=True, setsigmask=()",
        "given, setpgroup=0, setsigmask=()",
        COMMANDS,
    ),
    Mutant(
        "orphans-survive",
        "no tool outlives its call, a daemon included",
        "is_adopter = prctl(PR_SET_CHILD_SUBREAPER, 1)",
        "is_adopter = True",
        COMMANDS,
    ),
    Mutant(
        "woken-processes-act",
        "nothing moves when the first process of a tree is killed",
        "    while tree.has_stopped_any:\n",
        "    for _ in range(1):\n",
        COMMANDS,
    ),
    Mutant(
        "gone-is-still",
        "nothing moves when the first process of a tree is killed, also after pids have wrapped around",
        "        if state == _GONE:\n            return True\n",
        "        if state == _GONE:\n            return False\n",
        COMMANDS,
    ),
    Mutant(
        "latecomers-are-not-asked",
        "a command that is stopped ends when all its processes have been asked to",
        "            if self._asked_to_end:\n",
        "            if False:\n",
        COMMANDS,
    ),
    # --- loop, git, trust
    Mutant(
        "auth-is-another-iteration",
        "a run that ends with 77 ends the loop",
        "        Outcome.AUTH,\n        Outcome.CONFIG,\n        Outcome.INTERRUPTED,\n    }",
        "        Outcome.CONFIG,\n        Outcome.INTERRUPTED,\n    }",
        LOOP,
    ),
    Mutant(
        "helper-is-pinned",
        "a push uses no program that a repository names",
        r'|credential\.(?:.+\.)?(?:username|usehttppath)"',
        r'|credential\.(?:.+\.)?(?:username|usehttppath|helper)"',
        GIT,
    ),
    Mutant(
        "repository-loosens",
        "a repository's file only tightens",
        "if requested <= 0 or (trusted and requested > trusted):",
        "if requested <= 0:",
        SETTINGS,
    ),
    Mutant(
        "repository-aims-the-key",
        "a ralph.toml in the working directory cannot set base_url",
        "    if not file.is_trusted:\n        _refuse_untrusted(document, path, user_place, search)\n",
        "",
        SETTINGS,
    ),
    # --- fleet
    Mutant(
        "fleet-pushes-without-lease",
        "a commit of somebody else is not overwritten",
        """lease = f"--force-with-lease={ref}:{expected or ''}\"""",
        'lease = "--force"',
        FLEET_GIT,
    ),
    Mutant(
        "fleet-trusts-the-jobs-programs",
        "programs on PATH in the folder of the job are not run",
        "environment_for_git(calls.seams, directory.parent)",
        "environment_for_git(calls.seams, directory)",
        FLEET_GIT,
    ),
    Mutant(
        "fleet-lets-go-of-the-mirror",
        "the lock of a mirror is held until the last process of a fetch has ended",
        "2: errors_to, _HELD: held}",
        "2: errors_to, _HELD: None}",
        FLEET_GIT,
    ),
    Mutant(
        "git-runs-what-an-agent-can-write",
        "a program of the user's configuration does not run if commands may write it",
        "whose = _OF_AGENTS if names_writable(value) else _LOCAL if known[origin] else scope",
        "whose = _LOCAL if known[origin] else scope",
        GIT,
    ),
    Mutant(
        "ssh-reads-what-an-agent-can-write",
        "a push by ssh is refused if commands may write ssh's configuration",
        "last, is_open = place, is_open or is_agents(place)",
        "last, is_open = place, False",
        GIT,
    ),
    Mutant(
        "push-publishes-borrowed-objects",
        "objects that commands may not read are not published",
        "if not self._may_read(path):",
        "if False:",
        GIT,
    ),
    Mutant(
        "remote-names-a-program",
        "a repository on this machine runs no program that it names",
        "return [*settings.arguments, *ours]",
        "return ours",
        (*GIT, *FLEET_GIT),
    ),
    Mutant(
        "fleet-copies-what-links-lead-to",
        "objects to which a link leads are not copied",
        "                _refuse_links(objects)\n",
        "                pass\n",
        FLEET_GIT,
    ),
    Mutant(
        "fleet-cancel-drops-the-checkpoint",
        "a cancelled job goes on at its checkpoint",
        "            self._tell_end(end, decision, None, keeps_checkpoint=True)\n            return\n",
        "            self._tell_end(end, decision, None)\n            return\n",
        FLEET,
    ),
    Mutant(
        "fleet-a-retry-asks-the-model",
        "a retry of which only the delivery had failed asks the model nothing",
        "goes_on = decision is None or (kept.is_retried and decision.exit_code != 0)",
        "goes_on = decision is None or kept.is_retried",
        FLEET,
    ),
    Mutant(
        "fleet-any-machine-takes-what-one-keeps",
        "only the machine that keeps the work takes up its job",
        "return sa.exists().where(*this, undelivered.c.is_over.is_(False)).correlate(jobs)",
        "return sa.exists().where(*this, undelivered.c.is_over.is_(True)).correlate(jobs)",
        FLEET,
    ),
    Mutant(
        "fleet-has-no-bound",
        "at its bound a machine begins no job",
        "        return size >= MOST_BYTES\n",
        "        return False\n",
        FLEET,
    ),
    Mutant(
        "fleet-a-second-signal-drops-what-is-done",
        "work that was to be delivered is kept also after the second signal",
        "                    running.stop(Stop.AT_ONCE)\n",
        "                    running.stop(Stop.LOST)\n",
        FLEET,
    ),
    Mutant(
        "fleet-rounding-is-money",
        "what sums leave by rounding is nothing",
        "if left_usd >= NOTHING_USD else 0.0",
        "if left_usd > 0 else 0.0",
        FLEET,
    ),
    Mutant(
        "fleet-stale-holder-changes-a-job",
        "a worker that lost a job changes nothing of it",
        "    return (*of_job(taken.set_name, taken.id), jobs.c.generation == taken.generation)",
        "    return of_job(taken.set_name, taken.id)",
        FLEET,
    ),
    Mutant(
        "fleet-takes-over-without-the-lock",
        "jobs are taken over only under the lock of their executor",
        "                if is_held:\n",
        "                if True:\n",
        FLEET,
    ),
    Mutant(
        "fleet-forgets-a-rate-limit",
        "a rate limit holds all jobs of its key",
        "holds.c.until > now)",
        "holds.c.until > now + 1e9)",
        FLEET,
    ),
    Mutant(
        "fleet-budget-forgets-reservations",
        "running jobs together stay within the budget",
        "left = limits.max_budget_usd - spent - self._reserved_by_others(c, set_name, job)",
        "left = limits.max_budget_usd - spent",
        FLEET,
    ),
    Mutant(
        "fleet-tries-are-not-counted",
        "a job ends after --max-attempts",
        "executor, machine, tries=row.tries + 1,",
        "executor, machine, tries=row.tries,",
        FLEET,
    ),
    Mutant(
        "fleet-jobs-see-the-store",
        "a job's process has no variable that leads to the store",
        """        if name != VARIABLE and not name.startswith(("PG", "RALPH_TURN_"))
""",
        "        if name\n",
        FLEET,
    ),
    Mutant(
        "fleet-log-keeps-credentials",
        "known keys are not in the log",
        "store.add_log(self._taken, self._worker.redact(text))",
        "store.add_log(self._taken, text)",
        FLEET,
    ),
    Mutant(
        "fleet-drain-counts-as-a-try",
        "a drain is no try",
        "is_try = decision.is_try and self._stop is not Stop.DRAINED",
        "is_try = decision.is_try or self._stop is Stop.DRAINED",
        FLEET,
    ),
    Mutant(
        "fleet-a-refused-key-ends-the-jobs",
        "a worker whose key is refused ends no job",
        "if is_refused and not has_worked:",
        "if is_refused and has_worked:",
        FLEET,
    ),
    Mutant(
        "loop-continues-into-a-dying-iteration",
        "a loop waits for the iteration that a kill left",
        "                if holder is None or _is_there(holder.pid) or time.monotonic() > until_s:\n",
        "                if holder is None or holder.pid:\n",
        ("test_lock.py",),
    ),
    Mutant(
        "line-list-takes-options",
        "a list option ends at the next option",
        '            while coming and not coming[-1].startswith("-"):\n                listed',
        "            while coming:\n                listed",
        LINE,
    ),
    Mutant(
        "line-optional-value-becomes-the-prompt",
        "in `--debug api TASK`, the task is the prompt",
        "        if others > 1:\n            del read[at]",
        "        if others > 2:\n            del read[at]",
        LINE,
    ),
    Mutant(
        "line-lone-word-starts-an-agent",
        "a lone word is exit 2 unless something says that it is a prompt",
        "if prompt is not None and _LONE_WORD.fullmatch(prompt)",
        "if prompt is not None and not _LONE_WORD.fullmatch(prompt)",
        ("test_mistyped_commands.py",),
    ),
    Mutant(
        "search-named-directory-stays-ignored",
        "a directory that path names is searched however it is ignored",
        '(("--no-ignore",) if place.is_ignored else ())',
        '(("--no-ignore",) if place.is_ignored and not place.real else ())',
        ("test_search.py",),
    ),
    Mutant(
        "search-brackets-are-classes-alone",
        "a name with brackets matches itself",
        "for has in (True, False))",
        "for has in (True, True))",
        ("test_glob_pattern.py",),
    ),
    Mutant(
        "session-in-use-is-removed",
        "a session that a run has open is not removed",
        "        (lock_patiently if age_s is None else lock_file)(descriptor)\n",
        "",
        ("test_sessions.py", "test_retention.py"),
    ),
    Mutant(
        "command-leftovers-are-not-counted",
        "a result says how many processes were stopped",
        "            say(launcher.stopped(tree))\n",
        "",
        ("test_namespaces.py",),
    ),
    Mutant(
        "line-prompt-is-lost-in-a-list",
        "a list that reaches the end of the line is exit 2 where nothing gives a prompt",
        "    if not is_piped():\n        raise UsageError",
        "    if is_piped():\n        raise UsageError",
        LINE,
    ),
    Mutant(
        "line-loop-hands-one-word-on",
        "an iteration has the options that the loop was given for it",
        "if one.name not in _OWN for word in one.words)",
        "if one.name not in _OWN for word in one.words[:1])",
        LINE,
    ),
    # --- rules about commands, and what the sandbox masks for them
    Mutant(
        "an-unknown-option-of-a-runner-is-a-flag",
        "an option that the table of commands does not have is not understood",
        "        if found is None or (text is None",
        '        found = found or (("flag",), None)\n        if (text is None',
        ("test_commands.py",),
    ),
    Mutant(
        "a-file-that-uniq-writes-is-harmless",
        "a harmless command writes no file",
        '1 if "one" in meanings else len(operands)',
        "len(operands)",
        ("test_harmless.py",),
    ),
    Mutant(
        "a-printed-format-sets-path",
        "a command that sets a variable is no harmless one, and takes this from the others of its line",
        "sdiouxXeEfFgGcbq",
        "sdiouxXeEfFgGcbqn",
        ("test_harmless.py",),
    ),
    Mutant(
        "two-lines-are-read-as-one",
        "what the parser reads as one line, and bash as two, is not understood",
        "            if ends_line or is_one_word",
        "            if is_one_word",
        ("test_commands.py",),
    ),
    Mutant(
        "a-glob-is-allowed-beside-a-denied-path",
        "beside a rule that denies to read, a file name pattern matches no allowed pattern",
        "if unread and line.has_glob:",
        "if unread and line.has_glob and not rules:",
        ("test_paths.py",),
    ),
    Mutant(
        "git-takes-masked-files-for-removed-ones",
        "a masked directory cannot be searched, so that git does not take its files for removed ones",
        "os.chmod(self._closed.path, 0o400)",
        "os.chmod(self._closed.path, 0o500)",
        ("program/sandbox/test_sandbox.py",),
    ),
    Mutant(
        "a-note-follows-links-of-ralphs-own-process",
        "a printed path that leads through /proc is not looked at",
        "or is_within_any(real, KERNEL_PLACES):",
        "or not real:",
        ("test_denials.py",),
    ),
    Mutant(
        "program-of-anybody",
        "a bwrap that somebody besides root owns is not run",
        "        if status.st_uid != 0:",
        "        if status.st_uid < 0:",
        PROGRAMS,
    ),
    Mutant(
        "program-above-is-not-looked-at",
        "a bwrap in a directory that others can write is not run",
        "        if status.st_mode & _WRITABLE_BY_OTHERS and not is_sticky:",
        "        if status.st_mode & _WRITABLE_BY_OTHERS and not is_sticky and not depth:",
        PROGRAMS,
    ),
    Mutant(
        "program-beside-others",
        "a bwrap in a directory that all may add to is not run",
        "is_sticky = depth > 1 and",
        "is_sticky = depth > 0 and",
        PROGRAMS,
    ),
    Mutant(
        "program-of-a-root",
        "a bwrap that commands may write is not run",
        "why = _why_in_a_root(real, search) or why_not_roots(real)",
        "why = why_not_roots(real)",
        PROGRAMS,
    ),
    Mutant(
        "program-of-any-hash",
        "a packaged program is run only if its hash is known",
        '        if build is None:\n            return f"ralph does',
        '        if build is None:\n            return package.builds[0]\n            return f"ralph does',
        PROGRAMS,
    ),
    Mutant(
        "program-with-any-library",
        "a library beside the packaged bwrap is known too",
        "        if found != known:",
        "        if not found:",
        PROGRAMS,
    ),
    Mutant(
        "program-older-first",
        "the package's program comes before an older one of the system",
        "                if version >= needed:",
        "                if version >= ():",
        PROGRAMS,
    ),
    Mutant(
        "program-changed-later",
        "a ripgrep that was changed after the first search is not run",
        "    if not candidate.is_unchanged:",
        "    if candidate.is_unchanged is None:",
        PROGRAMS,
    ),
)
