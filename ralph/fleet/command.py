"""Submits jobs to a store, shows them, waits for them, cancels and retries them. The commands that only read make
nothing on the disk.
"""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ralph.fleet import listing
from ralph.fleet.claims import SEEN_WITHIN_S, Claims
from ralph.fleet.database import (
    WaitOptions,
    database_of,
    patiently,
    prepare,
    refuse_open_store,
    refuse_others_file,
    refuse_pooler,
)
from ralph.fleet.job_file import read_jobs
from ralph.fleet.jobs import JobState, SetLimits, faults_of_limits, rate_from, worst_exit_code
from ralph.output.standard_streams import ErrorLines, print_bytes, print_lines
from ralph.values.credentials import known_secrets
from ralph.values.outcome import Outcome, UsageError
from ralph.values.redaction import Redactor, redacted
from ralph.values.screen_text import counted, json_for_terminal, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ralph.fleet.schema import AttemptRow, JobRow, SetRow
    from ralph.machine.waiter import StopEvent

T = TypeVar("T")

CANCEL_WITHIN_S = 10.0
_LOOK_EVERY_S = 1.0
_LOOK_OFTEN_S = 0.2
_TELLS_OF_NO_WORKER_AFTER_S = 5.0


class Console:
    """Prints what a command says, without the credentials of an environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._redact = Redactor(known_secrets(environment)).redact_all
        lines = ErrorLines("[fleet]", redact=self._redact, has_color=False, clears_line=False)
        self.tell: Callable[[str], None] = lines.write
        """Prints one line on standard error."""

    def write(self, lines: Iterable[str]) -> None:
        text = self._redact("\n".join(lines))  # together, because a private key takes several lines
        if text:
            print_lines([json_for_terminal(text)])

    def write_value(self, value: object) -> None:
        print_lines([json_for_terminal(json.dumps(redacted(value, self._redact), indent=2))])

    def write_text(self, text: str) -> None:
        """Prints a text without a further line break."""
        print_bytes(self._redact(text).encode("utf-8", "replace"))


class Fleet:
    """One store, as users see it. All methods wait while the store is away, at most `most_wait_s`, and return exit codes."""

    def __init__(
        self,
        named: str | None,
        environment: Mapping[str, str],
        stop: StopEvent,
        *,
        most_wait_s: float | None = None,
    ) -> None:
        """`named` is the value of `--db`. Connects only when the store is first needed. Raises StoreError, also if
        the store is a file of another user.
        """
        self.database = database_of(named, environment)
        refuse_others_file(self.database)
        refuse_open_store(self.database, environment)
        self.console = Console(environment)
        self._environment = environment
        self._store = Claims(self.database)
        self._stop = stop
        self._waiting = WaitOptions(
            self.database,
            self.console.tell,
            stop,
            outlasts_full_disk=lambda: most_wait_s is None,
            most_s=most_wait_s,
        )

    def close(self) -> None:
        self._store.close()

    def _ask(self, call: Callable[..., T], *arguments: object, **named: object) -> T:
        return patiently(functools.partial(call, *arguments, **named), waiting=self._waiting)

    # --- submit

    def submit(
        self,
        path: str,
        set_name: str | None,
        wanted: Mapping[str, object],
        check_options: Callable[[Sequence[str], bool], None],
    ) -> int:
        """Adds the jobs of a file to a set. `path` is as in `read_jobs`, and so is `check_options`. `wanted` are the limits of the
        command line, by the names of `SetLimits`, and win over those of the file. Nothing is made on the disk if a job is wrong.
        """
        chosen = {name: value for name, value in wanted.items() if value is not None}
        if isinstance(rate := chosen.get("rate"), str):
            try:
                chosen["rate"] = rate_from(rate)
            except ValueError as error:
                raise UsageError(f"--rate {error}") from None
        known: dict[str, SetLimits] = {}

        def earlier(name: str) -> Collection[str]:
            known.update((row.name, row.limits) for row in self._known_sets())
            return self._ask(self._store.job_ids, name) if name in known else ()

        file = read_jobs(
            path, set_name, environment=self._environment, check_options=check_options, earlier=earlier
        )
        name = file.name
        written = known.get(name, file.limits) if file.limits == SetLimits() else file.limits
        limits = msgspec.structs.replace(written, **chosen)
        for fault in faults_of_limits(limits):
            raise UsageError(f"--{fault.field.replace('_', '-')} {fault.problem}")
        self._ask(prepare, self.database)
        self._ask(refuse_pooler, self.database)
        self._ask(self._store.create)
        done = self._ask(self._store.submit, name, limits, file.jobs)
        parts = [counted(done.new, "new job"), *([f"{done.known} known"] if done.known else [])]
        self.console.write([f"set {name}: {', '.join(parts)}"])
        if done.has_new_limits:
            text = listing.limits_text(limits, has_budget=True)
            self.console.tell(f"the limits of {name} are now: {text or 'none'}")
        self.console.tell(
            f"next: `ralph fleet work -j 2` runs them; `ralph fleet wait {name}` waits for them"
        )
        return 0

    def _known_sets(self) -> list[SetRow]:
        """All sets. Empty too if the store has not been made yet."""
        file = self.database.file
        is_missing = (file is not None and not file.exists()) or not self._ask(self._store.exists)
        return [] if is_missing else self._ask(self._store.set_rows)

    # --- look

    def list_(self, set_name: str | None, *, is_json: bool) -> int:
        """Prints the sets. The jobs are printed for a set that is named, or that is the only one; in JSON, always."""
        sets = self._sets(() if set_name is None else (set_name,))
        workers = self._workers()
        jobs = self._rows(sets) if is_json or len(sets) == 1 else []
        if is_json:
            self.console.write_value(
                {
                    "sets": [listing.set_object(row, workers.get(row.name, _NOBODY)) for row in sets],
                    "jobs": [listing.job_object(row) for row in jobs],
                }
            )
            return 0
        lines = [line for row in sets for line in listing.set_lines(row, workers.get(row.name, _NOBODY))]
        table = listing.job_lines(jobs, now=time.time()) if jobs else ()
        self.console.write([*lines, *table, *listing.kept_lines(jobs)])
        return 0

    def show(self, name: str, in_set: str | None) -> int:
        """Prints all that is known about a job, which is named as ID or SET/ID."""
        set_name, job = self._found(name, in_set)
        row = self._row(set_name, job)
        attempts = self._ask(self._store.attempt_rows, set_name, job)
        self.console.write(listing.story_lines(row, attempts, time.time()))
        return 0

    def logs(self, name: str, in_set: str | None, *, is_followed: bool) -> int:
        """Prints the log of a job, and what comes until the job has ended if `is_followed`."""
        set_name, job = self._found(name, in_set)
        number, is_told, rest = 0, False, ""
        while True:
            row = self._row(set_name, job)
            lines = self._ask(self._store.log_lines, set_name, job, number)
            is_last = not is_followed or row.state.is_final
            # A piece may end within a line, and so within a credential.
            text = "".join([rest, *(piece for _, piece in lines)])
            end = len(text) if is_last else text.rfind("\n") + 1
            rest = text[end:]
            if end:
                self.console.write_text(visible(text[:end]))
            number = lines[-1][0] if lines else number
            if not number and not is_told:
                is_told = True
                self.console.tell(
                    f"{set_name}/{job} has no log{'' if is_last else ' yet'}: it is {listing.state_text(row)}"
                )
            if is_last:
                return 0
            if self._stop.wait(_LOOK_EVERY_S):
                raise KeyboardInterrupt

    # --- work, wait, cancel, retry

    def look_before_work(self, *, until_done: bool) -> None:
        """Raises UsageError if the worker is to end when all is done, and nothing is there: a wrong store would look like success."""
        if until_done:
            self._sets(())
        elif not self._known_sets():
            self.console.tell("there are no jobs yet: waiting for ralph fleet submit")

    def wait(self, set_names: Sequence[str], *, is_json: bool) -> int:
        """Waits until all jobs of the sets have ended. Returns the worst exit code."""
        begun = time.monotonic()
        is_told = False
        while True:
            sets = self._sets(set_names)
            open_sets = [row for row in sets if row.open_jobs]
            if not open_sets:
                break
            if not is_told and time.monotonic() >= begun + _TELLS_OF_NO_WORKER_AFTER_S:
                workers = self._workers()
                idle = [row.name for row in open_sets if row.name not in workers]
                if idle:
                    is_told = True
                    self.console.tell(f"no worker is running for {', '.join(idle)}: ralph fleet work -j 2")
            if self._stop.wait(_LOOK_EVERY_S):
                raise KeyboardInterrupt
        rows = self._rows(sets)
        code = worst_exit_code(row.exit_code for row in rows if row.exit_code is not None)
        if is_json:
            self.console.write_value(listing.wait_object(sets, rows, code))
        else:
            self.console.write(listing.end_lines(sets, rows))
        return code

    def cancel(self, names: Sequence[str] | None, in_set: str | None) -> int:
        """Cancels jobs, and waits until the workers have stopped those that run. None stands for all jobs."""
        idle = 0
        running: list[tuple[str, str]] = []
        for set_name, ids in self._chosen(names, in_set).items():
            rows = self._ask(self._store.job_rows, set_name)
            running += [
                (set_name, row.id)
                for row in rows
                if row.state is JobState.RUNNING and (ids is None or row.id in ids)
            ]
            idle += self._ask(self._store.cancel, set_name, ids)
        until = time.monotonic() + CANCEL_WITHIN_S
        count = len(running)
        left = self._still_running(running)
        while left and time.monotonic() < until:
            if self._stop.wait(_LOOK_OFTEN_S):
                raise KeyboardInterrupt
            left = self._still_running([(row.set_name, row.id) for row in left])
        self.console.write(
            [f"cancelled: {counted(idle, 'job')} that had not started, {count - len(left)} that ran"]
        )
        if names is not None and idle + count < len(names):
            self.console.tell(f"{len(names) - idle - count} had ended already")
        for row in left:
            self.console.tell(
                f"{row.set_name}/{row.id} is cancelled, but its worker {row.holder} does not answer: the job ends when "
                "that worker is back or another one takes over"
            )
        return Outcome.API_UNAVAILABLE.exit_code() if left else 0

    def _still_running(self, jobs: Sequence[tuple[str, str]]) -> list[JobRow]:
        rows = [self._row(set_name, job) for set_name, job in jobs]
        return [row for row in rows if row.state is JobState.RUNNING]

    def retry(self, names: Sequence[str] | None, in_set: str | None, *, discards: bool) -> int:
        """Lets ended jobs begin another attempt. What a machine keeps of them is delivered first, or given up with `discards`. None
        stands for all jobs that did not end with 0.
        """
        count = 0
        for set_name, ids in self._chosen(names, in_set).items():
            count += self._ask(self._store.retry, set_name, ids, discards=discards)
        self.console.write([f"{counted(count, 'job')} will run again"])
        if names is not None and count < len(names):
            self.console.tell(f"{len(names) - count} had not ended: only ended jobs are retried")
        return 0

    # --- report

    def rows_for_report(self, names: Sequence[str]) -> tuple[list[SetRow], list[JobRow], list[AttemptRow]]:
        """The sets with these names, or all, with their jobs and the attempts of those. Raises UsageError."""
        sets = self._sets(names)
        jobs = self._rows(sets)
        attempts: list[AttemptRow] = []
        for one in sets:
            attempts += self._ask(self._store.attempt_rows, one.name)
        return sets, jobs, attempts

    # --- finding

    def _sets(self, names: Sequence[str]) -> list[SetRow]:
        """The sets with these names, or all. Raises UsageError if there is none."""
        rows = self._known_sets()
        if not rows:
            raise UsageError(f"there is no fleet store yet at {self.database.place}: ralph fleet submit FILE")
        known = [row.name for row in rows]
        for name in names:
            if name not in known:
                raise UsageError(f"there is no set {name}")
        return [row for row in rows if not names or row.name in names]

    def _rows(self, sets: Sequence[SetRow]) -> list[JobRow]:
        rows: list[JobRow] = []
        for one in sets:
            rows += self._ask(self._store.job_rows, one.name)
        return rows

    def _row(self, set_name: str, job: str) -> JobRow:
        row = self._ask(self._store.job_row, set_name, job)
        if row is None:
            raise UsageError(f"there is no job {set_name}/{job}")
        return row

    def _found(self, name: str, set_name: str | None) -> tuple[str, str]:
        """The set and the id of a job. Raises UsageError if no job, or more than one, has the name."""
        before, slash, job = name.rpartition("/")
        wanted = before if slash else set_name
        sets = self._sets(() if wanted is None else (wanted,))
        found = [row.name for row in sets if self._ask(self._store.job_row, row.name, job) is not None]
        if len(found) > 1:
            choices = " or ".join(f"{one}/{job}" for one in found)
            raise UsageError(f"several sets have a job {job}: write {choices}")
        if not found:
            raise UsageError(f"there is no job {name}")
        return found[0], job

    def _chosen(self, names: Sequence[str] | None, in_set: str | None) -> dict[str, list[str] | None]:
        """The ids for each set, or None for all of the set."""
        if names is None:
            return {row.name: None for row in self._sets(() if in_set is None else (in_set,))}
        found: dict[str, list[str]] = {}
        for name in names:
            set_name, job = self._found(name, in_set)
            found.setdefault(set_name, []).append(job)
        return {**found}

    def _workers(self) -> dict[str, listing.Workers]:
        machines: dict[str, list[str]] = {}
        for _, machine, set_name, seen_s in self._ask(self._store.executor_rows):
            if seen_s < SEEN_WITHIN_S:
                machines.setdefault(set_name, []).append(machine)
        return {name: listing.Workers(len(found), len(set(found))) for name, found in machines.items()}


_NOBODY = listing.Workers(0, 0)
