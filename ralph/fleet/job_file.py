"""Reads the jobs of a set from a file or from standard input. `job_rules.py` judges them.

All wrong lines are reported together, because a file may have thousands of lines, and whoever wrote it wants to correct
it once.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct

from ralph.fleet.jobs import (
    CommonFields,
    Job,
    JobFault,
    SecretFinder,
    SetLimits,
    faults_of,
    faults_of_limits,
    faults_of_set,
    is_relative_path,
    rate_from,
    why_no_name,
)
from ralph.prompt.named_file import read_named_file
from ralph.prompt.prompt_input import MOST_PROMPT_BYTES, prompt_text
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

MOST_FILE_BYTES = 256 * 1024 * 1024
"""The maximum size of a jobs file: 100,000 jobs of 2.5 KB each."""
_MOST_TOLD = 10
_STDIN = "-"


class JobsFileError(UsageError):
    """A jobs file cannot be used. `problems` has one line for each problem that is told, ten at most."""

    def __init__(self, problems: Sequence[str], count: int) -> None:
        self.problems = tuple(problems)
        self.count = count
        more = f"; and {count - len(problems):,} more" if count > len(problems) else ""
        super().__init__("; ".join(problems) + more)


class JobsFile(Struct, frozen=True):
    """The contents of a jobs file."""

    name: str
    """The name of the set, unless the command line names another: the file's name without suffix, or `jobs` for standard input."""
    jobs: tuple[Job, ...]
    limits: SetLimits


class _SharedFields(CommonFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all jobs of a file may share, as they are written."""

    repository: str | None = None
    prompt: str | None = None
    prompt_file: str | None = None


class _WrittenJob(_SharedFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One job as it is written."""

    id: str
    after: tuple[str, ...] = ()


class _WrittenLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[set]`."""

    concurrency: int | None = None
    per_host: int | None = None
    rate: str | None = None
    max_budget_usd: float | None = None
    max_attempts: int = SetLimits().max_attempts


class _RawJob(Struct, frozen=True):
    """One job before it is decoded."""

    where: str
    """The file and the line, as errors name them."""
    value: object = None
    problem: str | None = None
    """Why there is no value, or None."""


class _JobsDocument(Struct, frozen=True):
    jobs: list[_RawJob]
    defaults: dict[str, Any] = {}
    limits: object = None


def jobs_file_bytes(path: str) -> bytes:
    """The content of a jobs file. `path` is `-` for standard input. Raises JobsFileError."""
    try:
        if path != _STDIN:
            return read_named_file(str(Path(path).absolute()), (str(Path.cwd()),), MOST_FILE_BYTES)
        data = sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise _hopeless(path, f"cannot be read: {error.strerror}") from None
    if len(data) > MOST_FILE_BYTES:
        raise _hopeless(path, f"has more than {MOST_FILE_BYTES:,} bytes")
    return data


def _hopeless(path: str, problem: str) -> JobsFileError:
    return JobsFileError([f"{_source(path)}: {problem}"], 1)


def _source(path: str) -> str:
    return "standard input" if path == _STDIN else path


def read_jobs(
    path: str,
    content: bytes,
    *,
    environment: Mapping[str, str],
    check_options: Callable[[Sequence[str], bool], None],
    earlier: Collection[str] = (),
) -> JobsFile:
    """Reads and checks the jobs in the content of a file. `path` is `-` for standard input, and may be relative.

    `environment` has the credentials that no job may contain. `check_options` takes the words in a job's `options`, and
    whether the job is a loop; it raises UsageError if a worker could not use these words. `earlier` are ids of jobs
    that the set has already. Raises JobsFileError.
    """
    folder = Path.cwd() if path == _STDIN else Path(path).absolute().parent
    return _Reading(path, folder, check_options, SecretFinder(environment)).read(content, earlier)


def read_named_set(
    path: str,
    set_name: str | None,
    environment: Mapping[str, str],
    check_options: Callable[[Sequence[str], bool], None],
) -> tuple[str, tuple[Job, ...], SetLimits]:
    """The name of the set, and the jobs and the limits in a file. Raises UsageError."""
    if set_name is not None and (why := why_no_name(set_name)):
        raise UsageError(f"--set {why}")
    read = read_jobs(path, jobs_file_bytes(path), environment=environment, check_options=check_options)
    return set_name or read.name, read.jobs, read.limits


class _Reading:
    """One reading of one file. It collects the problems."""

    def __init__(
        self,
        path: str,
        folder: Path,
        check_options: Callable[[Sequence[str], bool], None],
        secrets: SecretFinder,
    ) -> None:
        self._path = path
        self._source = _source(path)
        self._folder = folder
        self._check_options = check_options
        self._secrets = secrets
        self._prompts: dict[str, str] = {}
        """The prompts of files that were read, by the paths as written. Many jobs may share one prompt."""
        self._judged_options: dict[tuple[tuple[str, ...], bool], str | None] = {}
        """The problem of options that were judged, or None if there is none. Most jobs of a file have the same ones."""
        self._problems: list[str] = []
        self._count = 0

    def read(self, content: bytes, earlier: Collection[str]) -> JobsFile:
        name = "jobs" if self._path == _STDIN else Path(self._path).stem
        document = self._document(content)
        limits = self._limits(document.limits)
        self._refuse_wrong_defaults(document.defaults)
        jobs: list[Job] = []
        places: list[str] = []
        for raw in document.jobs:
            job = self._job(raw, document.defaults)
            if job is not None:
                jobs.append(job)
                places.append(raw.where)
        if not self._count:  # a job that is missing would be missed by others
            for index, fault in faults_of_set(jobs, earlier):
                self._tell(places[index], fault)
        if not document.jobs:
            self._tell(self._source, JobFault("", "has no jobs"))
        if self._count:
            raise JobsFileError(self._problems, self._count)
        return JobsFile(name if why_no_name(name) is None else "jobs", tuple(jobs), limits)

    def _document(self, content: bytes) -> _JobsDocument:
        try:
            text = prompt_text(content)
        except ValueError as error:
            raise _hopeless(self._path, str(error)) from None
        return self._toml(text) if self._path.endswith(".toml") else self._lines(text)

    def _lines(self, text: str) -> _JobsDocument:
        jobs = []
        # Not `splitlines`: a prompt may contain U+2028, which does not end a line in JSON.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                jobs.append(_decoded_line(line, f"{self._source}:{number}"))
        return _JobsDocument(jobs)

    def _toml(self, text: str) -> _JobsDocument:
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            where = re.search(r" \(at line (\d+), column \d+\)$", str(error))
            place = f"{self._source}:{where[1]}" if where else self._source
            raise JobsFileError([f"{place}: is not TOML: {str(error).partition(' (at ')[0]}"], 1) from None
        except (ValueError, RecursionError) as error:  # 5,000 digits, lists 1,000 deep
            raise _hopeless(self._path, f"is not TOML: {type(error).__name__}") from None
        for key in tables.keys() - {"jobs", "set", "defaults"}:
            self._tell(
                self._source, JobFault(key, "is unknown: a jobs file has [[jobs]], [set] and [defaults]")
            )
        jobs, defaults = tables.get("jobs", []), tables.get("defaults", {})
        if not isinstance(jobs, list) or not isinstance(defaults, dict):
            raise _hopeless(self._path, "must have jobs as [[jobs]], and defaults as the table [defaults]")
        # Where a text contains such a line too, the numbers of the jobs take the place of the lines.
        heads = [
            at for at, line in enumerate(text.split("\n"), 1) if re.match(r"\s*\[\[\s*jobs\s*\]\]", line)
        ]
        places = (
            [f"{self._source}:{line}" for line in heads]
            if len(heads) == len(jobs)
            else [f"{self._source}: job {number}" for number in range(1, len(jobs) + 1)]
        )
        raws = [_RawJob(place, value) for place, value in zip(places, jobs, strict=True)]
        return _JobsDocument(raws, defaults, tables.get("set"))

    def _limits(self, raw: object) -> SetLimits:
        place = f"{self._source}: [set]"
        if raw is None:
            return SetLimits()
        try:
            limits = msgspec.convert(raw, _WrittenLimits)
        except msgspec.ValidationError as error:
            for fault in _faults_from(error, raw, _WrittenLimits):
                self._tell(place, fault)
            return SetLimits()
        rate = None
        try:
            rate = None if limits.rate is None else rate_from(limits.rate)
        except ValueError as error:
            self._tell(place, JobFault("rate", str(error)))
        found = SetLimits(**{**msgspec.structs.asdict(limits), "rate": rate})
        for fault in faults_of_limits(found):
            self._tell(place, fault)
        return found

    def _refuse_wrong_defaults(self, defaults: Mapping[str, object]) -> None:
        try:
            msgspec.convert(defaults, _SharedFields)
        except msgspec.ValidationError as error:
            for fault in _faults_from(error, defaults, _SharedFields):
                self._tell(f"{self._source}: [defaults]", fault)
            raise JobsFileError(
                self._problems, self._count
            ) from None  # the jobs would lack what they should have

    def _job(self, raw: _RawJob, shared: Mapping[str, object]) -> Job | None:
        """Decodes a job. Returns None and tells the problems if there are any."""
        if raw.problem is not None:
            self._tell(raw.where, JobFault("", raw.problem))
            return None
        value = _merged(shared, raw.value) if isinstance(raw.value, dict) else raw.value
        try:
            line = msgspec.convert(value, _WrittenJob)
        except msgspec.ValidationError as error:
            for fault in _faults_from(error, value, _WrittenJob):
                self._tell(raw.where, fault)
            return None
        prompt, repository = self._prompt(raw.where, line), line.repository
        if repository is None:
            self._tell(raw.where, JobFault("", "object missing required field repository"))
        if prompt is None or repository is None:
            return None
        if is_relative_path(repository):
            repository = os.path.normpath(self._folder / repository)
        fields = {name: getattr(line, name) for name in Job.__struct_fields__}
        job = Job(**{**fields, "prompt": prompt, "repository": repository})
        faults = [*faults_of(job), *self._faults_of_options(job), *self._secrets.faults_of(job)]
        for fault in faults:
            self._tell(raw.where, fault)
        return None if faults else job

    def _faults_of_options(self, job: Job) -> list[JobFault]:
        key = (job.options, job.until is not None)
        if job.options and key not in self._judged_options:
            try:
                self._check_options(*key)
                self._judged_options[key] = None
            except UsageError as error:
                self._judged_options[key] = f"cannot be used: {error}"
        problem = self._judged_options.get(key)
        return [] if problem is None else [JobFault("options", problem)]

    def _prompt(self, where: str, line: _WrittenJob) -> str | None:
        if (line.prompt is None) == (line.prompt_file is None):
            self._tell(where, JobFault("prompt", "give either prompt or prompt_file"))
            return None
        if line.prompt_file is None:
            return line.prompt
        name = line.prompt_file
        if name not in self._prompts:
            try:
                if not name.strip() or "\0" in name:
                    raise ValueError("is not a file name")  # noqa: TRY301 - told with the others
                path = str(self._folder / name)
                data = read_named_file(path, (str(self._folder),), MOST_PROMPT_BYTES, takes_pipe=False)
                self._prompts[name] = prompt_text(data)
            except OSError as error:
                self._tell(where, JobFault("prompt_file", f"cannot be read: {name}: {error.strerror}"))
                return None
            except ValueError as error:
                self._tell(where, JobFault("prompt_file", f"cannot be used: {name} {error}"))
                return None
        return self._prompts[name]

    def _tell(self, where: str, fault: JobFault) -> None:
        self._count += 1
        if len(self._problems) < _MOST_TOLD:
            field = f" $.{fault.field}:" if fault.field else ""
            self._problems.append(f"{where}:{field} {fault.problem}")


def _decoded_line(line: str, where: str) -> _RawJob:
    try:
        return _RawJob(where, msgspec.json.decode(line))
    except msgspec.DecodeError as error:
        return _RawJob(where, problem=f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}")
    except RecursionError:
        return _RawJob(where, problem="is nested too deep")


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Both tables together. A prompt above takes the place of each prompt below, whether it is a text or a file."""
    kept = dict(below)
    if not {"prompt", "prompt_file"}.isdisjoint(above):
        kept.pop("prompt", None)
        kept.pop("prompt_file", None)
    return kept | dict(above)


def _faults_from(error: msgspec.ValidationError, table: object, kind: type[Struct]) -> list[JobFault]:
    """The fault of each field of a table that is no `kind`: `error` names the first one only."""
    if not isinstance(table, dict):
        return [_fault_from(error)]
    faults: list[JobFault] = []
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in table.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            faults.append(JobFault(name, f"is unknown{f'; did you mean {near[0]}?' if near else ''}"))
            continue
        try:
            msgspec.convert(value, fields[name].type)
        except msgspec.ValidationError as wrong:
            fault = _fault_from(wrong)
            choices = [choice for one in get_args(fields[name].type) for choice in get_args(one)]
            advice = f"; write {' or '.join(choices)}" if isinstance(value, str) and choices else ""
            faults.append(JobFault(f"{name}{fault.field}", f"{fault.problem}{advice}"))
    missing = [name for name, field in fields.items() if field.required and name not in table]
    faults += [JobFault("", f"object missing required field {name}") for name in missing]
    return faults or [_fault_from(error)]


def _fault_from(error: msgspec.ValidationError) -> JobFault:
    problem, _, path = str(error).replace("`", "").partition(" - at ")
    field = path.removeprefix("$").removeprefix(".")
    return JobFault(field, f"{problem[:1].lower()}{problem[1:]}")
