"""`ralph loop` from its options to its exit code: everything that must be right is looked at before anything is spent.

What a loop does is `iterate.py`'s; here its world is built.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.loop import words
from ralph.loop.git.checkout import GitCheckout
from ralph.loop.git.git import GitSeams
from ralph.loop.git.lock import CheckoutLock
from ralph.loop.git.own_paths import own_output_files
from ralph.loop.git.pins import BrokenPinsError
from ralph.loop.git.plain_directory import PlainDirectory
from ralph.loop.git.preflight import check_checkout, open_checkout
from ralph.loop.iterate import OuterLoop
from ralph.loop.ports import CheckoutError, LoopWorld
from ralph.loop.process.iterations import RalphIterations
from ralph.loop.prompt_source import PromptReader, find_prompt
from ralph.loop.record import PINS_FILE, FileRecord, RecordError
from ralph.loop.rules import with_new_limits
from ralph.loop.state import LoopState
from ralph.loop.step_summary import append_text
from ralph.loop.stop_file import StopFileBelow
from ralph.loop.store import LoopStore
from ralph.loop.until_check import UntilCheck
from ralph.loop.values import LoopEnd, LoopLimits, LoopPlan
from ralph.loop.voice import StandardErrorVoice
from ralph.machine.clock import SystemClock
from ralph.machine.processes import protect_this_process
from ralph.machine.waiter import ONE_SIGNAL_S, Heartbeats, InboxWaiter, catch_stop_signals
from ralph.prompt.prompt_input import InputWait, PromptError
from ralph.sessions.store import SessionStore
from ralph.settings.files import SettingsFileError
from ralph.settings.handover import changed_since, files_of_loop, recorded_files
from ralph.settings.merge import SettingsError, load_settings
from ralph.values.credentials import child_environment, known_secrets
from ralph.values.error_text import describe_bug
from ralph.values.outcome import Outcome, UsageError
from ralph.values.ports import Interrupted, JournalError
from ralph.values.redaction import Redactor
from ralph.values.shortage import shortage_of, told_with_advice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ralph.loop.options import LoopOptions
    from ralph.prompt.piped_input import SilentPipe
    from ralph.settings.files import SettingsFile
    from ralph.settings.tables import Settings

_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class CannotBeginError(Exception):
    """One line, and how the command ends by it."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def loop_command(options: LoopOptions) -> int:
    """Run a loop to its end; the process's exit code. Raises UsageError, and nothing else."""
    return LoopCommand(options, dict(os.environ)).execute()


def _unforeseen(error: Exception) -> LoopEnd:
    shortage = shortage_of(error)
    outcome = Outcome.INTERNAL_ERROR if shortage is None else Outcome.API_UNAVAILABLE
    reason = describe_bug(error) if shortage is None else told_with_advice(shortage)
    return LoopEnd(outcome, outcome.exit_code(), reason)


class LoopCommand:
    """One invocation: what lives as long as it does."""

    def __init__(self, options: LoopOptions, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._clock = SystemClock()
        self._waiter = InboxWaiter(self._clock)
        self._waiter.one_signal_for_s = ONE_SIGNAL_S
        redactor = Redactor(known_secrets(environment))
        self._voice = StandardErrorVoice(
            redact=redactor.redact_all, has_color="NO_COLOR" not in environment and os.isatty(2)
        )
        self._directory = Path(options.plan.directory)
        self._files: tuple[SettingsFile, ...] = ()
        """Settings files as this loop goes by them."""
        self._silent_input: SilentPipe | None = None

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
            end = _unforeseen(error)
        finally:
            restore_signals()
        self._tell_end(None, end)
        return end.exit_code

    def _work(self) -> LoopEnd:
        """Tells its end itself."""
        protect_this_process()
        self._enter()
        store = self._store()
        state = self._state(store)
        self._voice.is_quiet = state.plan.is_quiet
        plan, settings = self._settings(state.plan)
        state = self._with_prompt(replace(state, plan=plan), settings)
        state = self._without_credentials(state, settings)
        with self._locked(state.plan, settings, store.place) as (checkout, lock):
            self._warn_of_place(store, checkout)
            if self._options.goes_on:
                # Whoever had the lock until now may have gone on with it.
                state = self._without_credentials(self._state(store), settings)
                state = replace(state, plan=replace(state.plan, settings_files=plan.settings_files))
                record = store.newest()
                self._refuse_what_is_not_as_it_was(record, state.plan, checkout)
                self._check_checkout(state.plan, checkout)
            else:
                # Told once: they are true of all that follows.
                for notice in self._check_checkout(state.plan, checkout):
                    self._voice.tell(notice)
                record = self._new_record(store, state.plan, checkout)
            loop = OuterLoop(state, self._world(state, settings, record, checkout, lock))
            end = loop.run()
        self._tell_end(loop.state, end)
        return end

    def _enter(self) -> None:
        try:
            os.chdir(self._directory)
        except OSError as error:
            raise CannotBeginError(
                Outcome.USAGE, f"cannot work in {self._directory}: {error.strerror}"
            ) from None

    def _store(self) -> LoopStore:
        try:
            return LoopStore.for_user(self._environment, self._directory)
        except JournalError as error:
            problem = f"there is no place for the loop's record: {error}"
            raise CannotBeginError(Outcome.IO_ERROR, problem) from None

    def _state(self, store: LoopStore) -> LoopState:
        now = self._clock.utc_now().isoformat()
        if not self._options.goes_on:
            plan = self._with_own_paths(self._options.plan)
            return LoopState(plan, started_at=now, pid=os.getpid(), updated_at=now)
        record = store.newest()
        state, given = record.load(), self._options.limits_given
        if state.plan.directory != str(self._directory):
            other = (
                f"{record.path} is of the loop in {state.plan.directory}; ralph loop begins a new one here"
            )
            raise CannotBeginError(Outcome.CONFIG, other)
        ended = state.ended
        if ended is not None and ended.outcome is Outcome.COMPLETED and given == LoopLimits():
            done = f"the loop of {self._directory} is done ({ended.reason})"
            raise CannotBeginError(
                Outcome.USAGE, f"{done}; ralph loop begins a new one, higher limits go on with it"
            )
        plan = self._with_own_paths(state.plan)
        return with_new_limits(replace(state, plan=plan, pid=os.getpid(), ended=None, unpushed=0), given)

    def _settings(self, plan: LoopPlan) -> tuple[LoopPlan, Settings]:
        """Those that count for the loop itself, and the plan with what it has to record of them.

        Whether a key is there the first iteration says: its flags may tell.
        """
        config_file = None if plan.config_file is None else Path(plan.config_file)
        flags = {"tools.pass_env": plan.pass_env}
        try:
            plan = self._with_settings_files(plan, config_file)
            settings = load_settings(flags, self._environment, self._directory, config_file, self._files)
        except SettingsFileError as error:
            raise CannotBeginError(Outcome.CONFIG, str(error)) from None
        except SettingsError as error:
            if error.so_far is None:
                raise CannotBeginError(Outcome.CONFIG, str(error)) from None
            settings = error.so_far
        self._voice.schedule = settings.loop
        self._voice.redact = self._redactor(settings).redact_all
        self._waiter.heartbeats = Heartbeats(self._voice, self._clock, settings.clocks.heartbeat_s)
        return plan, settings

    def _with_settings_files(self, plan: LoopPlan, config_file: Path | None) -> LoopPlan:
        """They are read here, and not again: what an iteration could write to counts as it was when the loop began."""
        recorded = plan.settings_files or ()
        self._files = files_of_loop(self._environment, self._directory, config_file, recorded)
        for path in changed_since(recorded):
            self._voice.warn(f"{path} was changed since the loop began: what it said then counts to its end")
        if plan.settings_files is not None:
            return plan
        reach = [self._directory, *map(Path, plan.added_directories)]
        return replace(plan, settings_files=recorded_files(self._files, reach))

    def _without_credentials(self, state: LoopState, settings: Settings) -> LoopState:
        """The prompt stands in the record, and goes to every iteration."""
        if state.plan.prompt is None:
            return state
        prompt = self._redactor(settings).redact(state.plan.prompt)
        return replace(state, plan=replace(state.plan, prompt=prompt))

    def _with_prompt(self, state: LoopState, settings: Settings) -> LoopState:
        """Adds the prompt. A pipe may take for ever: the loop's time limit counts from here on."""
        wish, max_time_s = self._options.prompt_wish, state.plan.limits.max_time_s
        if wish is None:
            return state
        started_s = self._clock.now_s()
        wait = InputWait(self._waiter, self._clock, settings.clocks.input_s, self._voice.tell)
        self._waiter.run_ends_s = None if max_time_s is None else started_s + max_time_s
        directories = (state.plan.launch_directory, state.plan.directory)
        try:
            found = find_prompt(wish.argument, wish.file, directories=directories, wait=wait)
        except PromptError as error:
            raise CannotBeginError(Outcome.USAGE, str(error)) from None
        self._waiter.run_ends_s = None  # from here on the loop shares its time out itself
        for notice in found.notices:
            self._voice.tell(notice)
        self._silent_input = found.silent
        if found.silent is not None:
            self._voice.warn(found.silent.notice)
        plan = replace(state.plan, prompt=found.text, prompt_file=found.file)
        return replace(state, plan=plan, elapsed_s=self._clock.now_s() - started_s)

    def _late_input(self) -> str | None:
        silent = self._silent_input
        return silent.refusal if silent is not None and silent.unread_bytes() else None

    def _redactor(self, settings: Settings) -> Redactor:
        return Redactor(known_secrets(self._environment, settings.secrets))

    def _scrubbed(self, settings: Settings) -> dict[str, str]:
        """The environment of the check and of git: no more than a command of the agent gets."""
        secrets = known_secrets(self._environment, settings.secrets)
        return child_environment(self._environment, settings.tools.pass_env, secrets, settings.key_variables)

    @contextmanager
    def _locked(
        self, plan: LoopPlan, settings: Settings, place: Path
    ) -> Iterator[tuple[GitCheckout | PlainDirectory, CheckoutLock]]:
        """The checkout, which nobody else loops in."""
        seams = GitSeams(self._scrubbed(settings), self._waiter, self._clock)
        own_paths, writable = (tuple(map(Path, paths)) for paths in (plan.own_paths, plan.added_directories))
        checkout = open_checkout(
            self._directory,
            plan.plan_file,
            seams,
            own_paths=own_paths,
            writable=writable,
            warn=self._voice.warn,
        )
        lock = CheckoutLock(checkout, self._directory, self._clock.utc_now(), place=place)
        try:
            if lock.notice is not None:
                self._voice.warn(lock.notice)
            yield checkout, lock
        finally:
            lock.close()

    def _with_own_paths(self, plan: LoopPlan) -> LoopPlan:
        """Where ralph itself, or who started it, writes: where that is inside the checkout it is nobody's work."""
        named = None if plan.session_directory is None else Path(plan.session_directory)
        stores = [SessionStore.to_read(self._environment, place) for place in (None, named)]
        files = [plan.metrics_file, self._environment.get(_STEP_SUMMARY)]
        places = (
            *own_output_files(),
            *(store.root for store in stores),
            *(store.place_of(self._directory) for store in stores),
            *LoopStore.to_read(self._environment, self._directory).roots,
            *(Path(plan.launch_directory, path) for path in files if path),
        )
        return replace(plan, own_paths=tuple(dict.fromkeys((*plan.own_paths, *map(str, places)))))

    def _warn_of_place(self, store: LoopStore, checkout: GitCheckout | PlainDirectory) -> None:
        if store.notice is not None:
            self._voice.warn(store.notice)
        if store.place.resolve().is_relative_to(checkout.top):
            self._voice.warn(
                f"the loop's record lies in {store.place}, where a command of the agent may write it: what "
                "--continue runs stands there; name another place (RALPH_STATE_DIR)"
            )

    def _check_checkout(self, plan: LoopPlan, checkout: GitCheckout | PlainDirectory) -> list[str]:
        """Notices for people. Raises CheckoutError where commits and pushes will not work."""
        return check_checkout(checkout, commits=plan.commits, pushes=plan.pushes)

    def _refuse_what_is_not_as_it_was(
        self, record: FileRecord, plan: LoopPlan, checkout: GitCheckout | PlainDirectory
    ) -> None:
        """Refuses to continue a loop whose record or git settings have changed: a record is run with the
        user's key, and pushes follow the settings of the loop's beginning.
        """
        if checkout.tracks(record.path):
            why = f"{record.path} came with the repository, and is not followed; ralph loop begins a new loop"
            raise CannotBeginError(Outcome.CONFIG, why)
        pins = record.pins()
        if not plan.pushes or pins is None or isinstance(checkout, PlainDirectory):
            return
        try:
            for notice in checkout.restore_pins(pins):
                self._voice.warn(notice)
        except BrokenPinsError as error:
            raise CannotBeginError(Outcome.IO_ERROR, f"{record.folder / PINS_FILE} {error}") from None

    def _new_record(
        self, store: LoopStore, plan: LoopPlan, checkout: GitCheckout | PlainDirectory
    ) -> FileRecord:
        """Begins a new record. Leftovers of the last loop must not end this one; an unfinished loop is named."""
        try:
            if plan.until is None:
                StopFileBelow(self._directory).remove()
            self._warn_of_unfinished(store)
            record = store.begin()
            if plan.pushes and isinstance(checkout, GitCheckout):
                record.save_pins(checkout.pins_text())
        except (OSError, JournalError) as error:
            shortage = shortage_of(error)
            if shortage is not None:
                raise CannotBeginError(Outcome.API_UNAVAILABLE, told_with_advice(shortage)) from None
            said = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise CannotBeginError(Outcome.IO_ERROR, f"cannot begin a loop: {said}") from None
        return record

    def _warn_of_unfinished(self, store: LoopStore) -> None:
        try:
            before = store.newest().load()
        except RecordError:
            return  # there is none, or none that could be resumed
        if before.ended is None or before.current is not None:
            self._voice.warn(
                f"the last loop here stopped in iteration {len(before.iterations) + 1}; this is a new one, and "
                "`ralph loop --continue` would have gone on with it"
            )

    def _world(
        self,
        state: LoopState,
        settings: Settings,
        record: FileRecord,
        checkout: GitCheckout | PlainDirectory,
        lock: CheckoutLock,
    ) -> LoopWorld:
        plan = state.plan
        if plan.limits == type(plan.limits)():
            self._voice.tell("no limit is set: see --max-iterations, --max-budget-usd and --max-time")
        return LoopWorld(
            checkout=checkout,
            iterations=RalphIterations(
                plan,
                folder=record.folder,
                environment=self._environment,
                waiter=self._waiter,
                clock=self._clock,
                lock=lock.descriptor,
                settings=self._files,
            ),
            check=self._check(plan, settings, record.folder),
            stop_file=StopFileBelow(self._directory),
            record=record,
            people=self._voice,
            waiter=self._waiter,
            clock=self._clock,
            late_input=self._late_input,
            read_prompt=PromptReader(
                plan, warn=self._voice.warn, redact=self._redactor(settings).redact
            ).read,
            own_limits=settings.limits,
            schedule=settings.loop,
        )

    def _check(self, plan: LoopPlan, settings: Settings, folder: Path) -> UntilCheck | None:
        if plan.until is None:
            return None
        redactor = self._redactor(settings)
        return UntilCheck(
            plan.until,
            directory=self._directory,
            folder=folder,
            environment=self._scrubbed(settings),
            redact=redactor.redact,
            longest_bytes=redactor.longest_bytes,
            waiter=self._waiter,
            clock=self._clock,
        )

    def _tell_end(self, state: LoopState | None, end: LoopEnd) -> None:
        """Tells how the loop ended. `state`: None if nothing was begun."""
        if state is not None:
            way_on = words.way_on(state, end)
            about_input = self._silent_input.in_the_end if self._silent_input is not None else ()
            for line in (*about_input, *state.warnings, *([way_on] if way_on else [])):
                self._voice.warn(line)
        path = self._environment.get(_STEP_SUMMARY)
        if path:
            try:
                plan = self._options.plan
                directories = (plan.launch_directory, plan.directory)
                append_text(path, self._voice.redact(words.step_summary(state, end)), directories)
            except OSError as error:
                self._voice.warn(f"cannot write the summary {path}: {error.strerror}")
        self._voice.tell_end(words.ending_line(state, end), is_error=end.outcome.is_error)
