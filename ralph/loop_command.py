"""`ralph loop` from its options to its exit code: everything that must be right is looked at before anything is spent.

What a loop does is `outer_loop.py`'s; here its world is built.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.core.bug_report import describe_bug
from ralph.core.credentials import child_environment, known_secrets
from ralph.core.loop_rules import with_new_limits
from ralph.core.loop_state import LoopState
from ralph.core.loop_values import LoopEnd, LoopPlan
from ralph.core.outcome import Outcome, UsageError
from ralph.core.redaction import Redactor
from ralph.effects.checkout.git import GitSeams
from ralph.effects.checkout.lock import CheckoutLock, is_held
from ralph.effects.checkout.preflight import check_checkout, open_checkout
from ralph.effects.clock import SystemClock
from ralph.effects.loop import words
from ralph.effects.loop.iterations import RalphIterations
from ralph.effects.loop.prompt_source import PromptReader
from ralph.effects.loop.record import FileRecord, RecordError
from ralph.effects.loop.stop_file import StopFileBelow
from ralph.effects.loop.until_check import UntilCheck
from ralph.effects.loop.voice import StandardErrorVoice
from ralph.effects.processes import protect_this_process
from ralph.effects.waiter import Heartbeats, InboxWaiter, catch_stop_signals
from ralph.loop_ports import CheckoutError, LoopWorld
from ralph.outer_loop import OuterLoop
from ralph.ports import Interrupted
from ralph.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.effects.checkout.git_checkout import GitCheckout
    from ralph.effects.checkout.plain_directory import PlainDirectory
    from ralph.loop_options import LoopOptions

_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class CannotBeginError(Exception):
    """One line, and how the command ends by it."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def loop_command(options: LoopOptions) -> int:
    """Run a loop to its end; the process's exit code. Raises UsageError, and nothing else."""
    return LoopCommand(options, dict(os.environ)).execute()


def loop_status(directory: Path) -> int:
    """Say how the loop of a directory is doing, on standard output. Raises UsageError where there is none."""
    try:
        state = FileRecord(directory).load()
    except RecordError as error:
        if error.outcome is Outcome.USAGE:
            raise UsageError(str(error)) from None
        with suppress(BrokenPipeError):
            sys.stderr.write(f"ralph: {error}\n")
        return error.outcome.exit_code()
    redactor = Redactor(known_secrets(os.environ))
    with suppress(BrokenPipeError):  # a reader that left
        for line in words.status_lines(state, is_running=is_held(directory), now=SystemClock().utc_now()):
            sys.stdout.write(redactor.redact_all(line) + "\n")
        sys.stdout.flush()
    return 0


class LoopCommand:
    """One invocation: what lives as long as it does."""

    def __init__(self, options: LoopOptions, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._clock = SystemClock()
        self._waiter = InboxWaiter(self._clock)
        redactor = Redactor(known_secrets(environment))
        self._voice = StandardErrorVoice(
            redact=redactor.redact_all, has_color="NO_COLOR" not in environment and os.isatty(2)
        )
        self._record = FileRecord(Path(options.plan.directory))

    def execute(self) -> int:
        restore_signals = catch_stop_signals(self._waiter)
        try:
            return self._work().exit_code
        except (CannotBeginError, RecordError) as error:
            if error.outcome is Outcome.USAGE:
                raise UsageError(str(error)) from None
            end = LoopEnd(error.outcome, error.outcome.exit_code(), str(error))
        except CheckoutError as error:
            end = LoopEnd(Outcome.CONFIG, Outcome.CONFIG.exit_code(), str(error))
        except Interrupted as stop:
            end = LoopEnd(stop.outcome, stop.outcome.exit_code(stop.signal_number), str(stop))
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is: one line, no traceback
            end = LoopEnd(Outcome.INTERNAL_ERROR, Outcome.INTERNAL_ERROR.exit_code(), describe_bug(error))
        finally:
            restore_signals()
        self._voice.tell_end(words.end_text(end), is_error=end.outcome.is_error)
        return end.exit_code

    def _work(self) -> LoopEnd:
        """Tells its end itself."""
        protect_this_process()
        state = self._state()
        self._voice.is_quiet = state.plan.is_quiet
        directory = self._entered(state.plan)
        settings = self._settings(state.plan, directory)
        with self._locked(state, settings, directory) as (checkout, lock):
            if not self._options.goes_on:
                self._clear_the_way(directory)
            world = self._world(state, settings, checkout, lock)
            loop = OuterLoop(state, world)
            end = loop.run()
        self._tell_end(loop.state, end)
        return end

    def _state(self) -> LoopState:
        now = self._clock.utc_now().isoformat()
        if not self._options.goes_on:
            return LoopState(self._options.plan, started_at=now, pid=os.getpid(), updated_at=now)
        state = with_new_limits(self._record.load(), self._options.limits_given)
        if state.ended is not None and state.ended.outcome is Outcome.COMPLETED and state.current is None:
            done = f"the loop of {state.plan.directory} is done ({state.ended.reason}); ralph loop begins a new one"
            raise CannotBeginError(Outcome.USAGE, done)
        return replace(state, pid=os.getpid(), ended=None)

    def _entered(self, plan: LoopPlan) -> Path:
        try:
            os.chdir(plan.directory)
            return Path.cwd()
        except OSError as error:
            problem = f"cannot work in {plan.directory}: {error.strerror}"
            raise CannotBeginError(Outcome.USAGE, problem) from None

    def _settings(self, plan: LoopPlan, directory: Path) -> Settings:
        """Those that count for the loop itself. Whether a key is there the first iteration says: its flags may tell."""
        config_file = None if plan.config_file is None else Path(plan.config_file)
        try:
            settings = load_settings(
                {"tools.pass_env": plan.pass_env}, self._environment, directory, config_file
            )
        except SettingsError as error:
            if error.so_far is None:
                raise CannotBeginError(Outcome.CONFIG, str(error)) from None
            settings = error.so_far
        self._voice.schedule = settings.loop
        self._voice.redact = self._redactor(settings).redact_all
        self._waiter.heartbeats = Heartbeats(self._voice, self._clock, settings.clocks.heartbeat_s)
        return settings

    def _redactor(self, settings: Settings) -> Redactor:
        return Redactor(known_secrets(self._environment, settings.secrets))

    def _scrubbed(self, settings: Settings) -> dict[str, str]:
        """What the check and git may see: no more than a command of the agent."""
        secrets = known_secrets(self._environment, settings.secrets)
        return child_environment(self._environment, settings.tools.pass_env, secrets, settings.key_variables)

    @contextmanager
    def _locked(
        self, state: LoopState, settings: Settings, directory: Path
    ) -> Iterator[tuple[GitCheckout | PlainDirectory, CheckoutLock]]:
        """The checkout, which nobody else loops in and in which commits and pushes will work."""
        seams = GitSeams(self._scrubbed(settings), self._waiter, self._clock)
        checkout = open_checkout(directory, state.plan.plan_file, seams)
        lock = CheckoutLock(checkout, directory, self._clock.utc_now())
        try:
            if lock.notice is not None:
                self._voice.warn(lock.notice)
            for notice in check_checkout(checkout, commits=state.plan.commits, pushes=state.plan.pushes):
                self._voice.tell(notice)
            yield checkout, lock
        finally:
            lock.close()

    def _clear_the_way(self, directory: Path) -> None:
        """For a new loop: what the last one left must not end this one, and is named where it was not over."""
        try:
            StopFileBelow(directory).remove()
        except OSError as error:
            raise CannotBeginError(
                Outcome.IO_ERROR, f"cannot remove {error.filename}: {error.strerror}"
            ) from None
        try:
            before = self._record.load()
        except RecordError:
            return  # there is none, or none that could be gone on with
        if before.ended is None or before.current is not None:
            self._voice.warn(
                f"the last loop here stopped in iteration {len(before.iterations) + 1}; this is a new one, and "
                "`ralph loop --continue` would have gone on with it"
            )

    def _world(
        self,
        state: LoopState,
        settings: Settings,
        checkout: GitCheckout | PlainDirectory,
        lock: CheckoutLock,
    ) -> LoopWorld:
        plan, directory = state.plan, Path(state.plan.directory)
        if plan.limits == type(plan.limits)():
            self._voice.tell("no limit is set: see --max-iterations, --max-budget-usd and --max-time")
        return LoopWorld(
            checkout=checkout,
            iterations=RalphIterations(
                plan,
                environment=self._environment,
                waiter=self._waiter,
                clock=self._clock,
                lock=lock.descriptor,
            ),
            check=self._check(plan, settings),
            stop_file=StopFileBelow(directory),
            record=self._record,
            people=self._voice,
            waiter=self._waiter,
            clock=self._clock,
            read_prompt=PromptReader(plan, warn=self._voice.warn).read,
            own_limits=settings.limits,
            schedule=settings.loop,
        )

    def _check(self, plan: LoopPlan, settings: Settings) -> UntilCheck | None:
        if plan.until is None:
            return None
        redactor = self._redactor(settings)
        return UntilCheck(
            plan.until,
            directory=Path(plan.directory),
            environment=self._scrubbed(settings),
            redact=redactor.redact,
            longest_bytes=redactor.longest_bytes,
            waiter=self._waiter,
            clock=self._clock,
        )

    def _tell_end(self, state: LoopState, end: LoopEnd) -> None:
        for note in state.notes:
            self._voice.warn(note)
        if end.exit_code:
            self._voice.warn(f"go on with: {words.continue_command(state)}")
        self._write_step_summary(state, end)
        self._voice.tell_end(words.ending_line(state, end), is_error=end.outcome.is_error)

    def _write_step_summary(self, state: LoopState, end: LoopEnd) -> None:
        """GitHub Actions shows what is appended there."""
        path = self._environment.get(_STEP_SUMMARY)
        if not path:
            return
        try:
            with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - appended to
                file.write(self._voice.redact(words.step_summary(state, end)))
        except OSError as error:
            self._voice.warn(f"cannot write the summary {path}: {error.strerror}")
