"""Reads the jobs of a set from a file. `jobs.py` judges them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import Struct

from ralph.fleet.jobs import (
    CommonFields,
    Job,
    SecretFinder,
    SetLimits,
    faults_of,
    faults_of_limits,
    faults_of_set,
    is_relative_path,
    rate_from,
    why_no_name,
)
from ralph.prompt.judged_file import prompt_text, read_named_file
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

MOST_FILE_BYTES = 256 * 1024 * 1024
"""The maximum size of a jobs file: 100,000 jobs of 2.5 KB each."""


class JobsFile(Struct, frozen=True):
    """The contents of a jobs file."""

    name: str
    """The name of the set."""
    jobs: tuple[Job, ...]
    limits: SetLimits


class _WrittenJob(CommonFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job as it is written."""

    id: str
    repository: str
    prompt: str | None = None
    prompt_file: str | None = None
    after: tuple[str, ...] = ()


class _WrittenLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[set]`."""

    concurrency: int | None = None
    per_host: int | None = None
    rate: str | None = None
    max_budget_usd: float | None = None
    max_attempts: int = SetLimits().max_attempts


class _Tables(Struct, frozen=True, forbid_unknown_fields=True):
    """A file in TOML."""

    jobs: list[Any] = []
    set: _WrittenLimits = _WrittenLimits()


def _refuse(where: str, problem: str, field: str = "") -> NoReturn:
    raise UsageError(f"{where}:{f' $.{field}:' if field else ''} {problem}")


def read_jobs(
    path: str,
    set_name: str | None,
    *,
    environment: Mapping[str, str],
    check_options: Callable[[Sequence[str], bool], None],
    earlier: Callable[[str], Collection[str]] = lambda _name: (),
) -> JobsFile:
    """Reads and checks the jobs in a file. `path` may be relative. `set_name` is the name that the user has given the set. If None,
    it has the file's name without suffix.

    `environment` has the credentials that no job may contain. `check_options` takes the words in a job's `options`, and
    whether the job is a loop; it raises UsageError if a worker could not use these words. `earlier` returns the ids of jobs
    that a set has already. Raises UsageError for the first problem.
    """
    if set_name is not None and (why := why_no_name(set_name)):
        raise UsageError(f"--set {why}")
    whole = Path(path).absolute()
    name = set_name or (whole.stem if why_no_name(whole.stem) is None else "jobs")
    try:
        text = prompt_text(read_named_file(str(whole), (str(Path.cwd()),), MOST_FILE_BYTES))
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}")
    except ValueError as error:
        _refuse(path, str(error))
    limits, raws = SetLimits(), list[tuple[str, Any]]()
    if path.endswith(".toml"):
        limits, tables = _toml(text, path)
        raws = [(f"{path}: job {number}", table) for number, table in enumerate(tables, start=1)]
    else:
        raws += _lines(text, path)
    if not raws:
        _refuse(path, "has no jobs")
    reading = _Reading(whole.parent, check_options, SecretFinder(environment))
    jobs = tuple(reading.job(where, value) for where, value in raws)
    for index, fault in faults_of_set(jobs, earlier(name)):
        _refuse(raws[index][0], fault.problem, fault.field)
    return JobsFile(name, jobs, limits)


def _lines(text: str, source: str) -> Iterator[tuple[str, Any]]:
    """The values in the lines, with their places."""
    # Not `splitlines`: a prompt may contain U+2028, which does not end a line in JSON.
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{source}:{number}"
        if line.strip():
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                _refuse(where, f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}")
            except RecursionError:
                _refuse(where, "is nested too deep")
            yield where, value


def _toml(text: str, source: str) -> tuple[SetLimits, list[Any]]:
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        says = str(error) if isinstance(error, tomllib.TOMLDecodeError) else type(error).__name__
        _refuse(source, f"is not TOML: {says}")
    found = _decoded(tables, _Tables, source)
    try:
        rate = None if found.set.rate is None else rate_from(found.set.rate)
    except ValueError as error:
        _refuse(source, str(error), "set.rate")
    limits = SetLimits(**{**msgspec.structs.asdict(found.set), "rate": rate})
    for fault in faults_of_limits(limits):
        _refuse(source, fault.problem, f"set.{fault.field}")
    return limits, found.jobs


def _decoded(value: object, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).replace("`", "").partition(" - at ")
        _refuse(where, f"{problem[:1].lower()}{problem[1:]}", path.removeprefix("$").removeprefix("."))


class _Reading:
    """Reads the jobs of one file. Many of them may share a prompt's file and options."""

    def __init__(
        self, folder: Path, check_options: Callable[[Sequence[str], bool], None], secrets: SecretFinder
    ) -> None:
        self._folder = folder
        self._check_options = check_options
        self._secrets = secrets
        self._prompts: dict[str, str] = {}
        """The prompts of files that were read, by the paths as written."""
        self._judged_options: set[tuple[tuple[str, ...], bool]] = set()

    def job(self, where: str, value: object) -> Job:
        """Decodes a job. Raises UsageError, as all methods do."""
        written: _WrittenJob = _decoded(value, _WrittenJob, where)
        repository = written.repository
        if is_relative_path(repository):
            repository = os.path.normpath(self._folder / repository)
        fields = {name: getattr(written, name) for name in Job.__struct_fields__}
        job = Job(**{**fields, "prompt": self._prompt(where, written), "repository": repository})
        for fault in (*faults_of(job), *self._secrets.faults_of(job)):
            _refuse(where, fault.problem, fault.field)
        options = (job.options, job.until is not None)
        if job.options and options not in self._judged_options:
            try:
                self._check_options(*options)
            except UsageError as error:
                _refuse(where, f"cannot be used: {error}", "options")
            self._judged_options.add(options)
        return job

    def _prompt(self, where: str, written: _WrittenJob) -> str:
        if written.prompt is not None and written.prompt_file is None:
            return written.prompt
        if (name := written.prompt_file) is None or written.prompt is not None:
            _refuse(where, "give either prompt or prompt_file", "prompt")
        if name not in self._prompts:
            try:
                if not name.strip() or "\0" in name:
                    raise ValueError("is not a file name")  # noqa: TRY301 - told with the others
                path = str(self._folder / name)
                data = read_named_file(path, (str(self._folder),), MOST_PROMPT_BYTES, takes_pipe=False)
                self._prompts[name] = prompt_text(data)
            except OSError as error:
                _refuse(where, f"cannot be read: {name}: {error.strerror}", "prompt_file")
            except ValueError as error:
                _refuse(where, f"cannot be used: {name} {error}", "prompt_file")
        return self._prompts[name]
