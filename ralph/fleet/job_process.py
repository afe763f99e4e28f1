"""The process of a job: `ralph run`, or `ralph loop` for a job with `until`, in a state directory of its own. Begins it,
or resumes it from its session; follows it; and reads how it ended.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import signal
import subprocess
import tarfile
import threading
import time
import zlib
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.fleet.jobs import VARIABLE, ProcessEnd, session_id, words_of
from ralph.loop.processes import NoResultError, read_result, result_written
from ralph.loop.record import LOOPS, RECORD_FILE, FileRecord, RecordError
from ralph.machine.files.opened_file import open_regular_file
from ralph.machine.own_programs import own_python, search_outside, with_set_aside
from ralph.machine.process_start import core_limit_at_start
from ralph.sessions.looking import look_to_list
from ralph.settings.merge import SettingsError, load_with_claude
from ralph.values.credentials import SANDBOX_HIDE, SANDBOX_READ, TURN_LOCK
from ralph.values.limits import budget_word
from ralph.values.servers import vendor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence
    from pathlib import Path

    from ralph.fleet.jobs import Job
    from ralph.loop.state import LoopState
    from ralph.sessions.story import SessionStory

STOPS_WITHIN_S = 6.0
"""A process that was asked to stop is killed after this time: a cancelled job leaves nothing after 10 seconds."""
_RESULT, _TURN_LOCK, _TOLD_TO_STOP = "result.json", "turn.lock", "told to stop"
_RESTORED = 0
"""The time of a loop's record that the process has not written yet. The clock may be set back meanwhile."""
_TASK_FROM_INPUT = ["--", "-"]
"""The last words of a command line whose task is on standard input."""
_LIMIT_REACHED = 3
_LAST_OF_NO_SIGNAL = 128
_RATE_LIMITS = {"rate_limit", "usage_limit"}


class _StreamLine(Struct, frozen=True):
    """The fields of a line of stream-json that tell of a rate limit."""

    type: str = ""
    subtype: str = ""
    kind: str | None = None
    retry_delay_ms: float | None = None


class JobProcess:
    """A job's process of one claim. `folder` has the checkout and the state directory. One thread uses it, but
    `stop` and `kill` may be called from any thread.
    """

    def __init__(
        self,
        set_name: str,
        job: Job,
        folder: Path,
        environment: Mapping[str, str],
        *,
        hidden: Sequence[Path],
        told: Callable[[str], None],
        rate_limited: Callable[[float], None] = lambda _seconds: None,
        waits_in_outages: bool = False,
    ) -> None:
        """Commands may not read `hidden`, but for the checkout. `told` gets the narration, in pieces of whole lines. `rate_limited` gets the seconds that a server asked to
        wait. Both are called from threads. If `waits_in_outages` is True, a loop itself waits until an outage is over.
        """
        self._job = job
        self._session = session_id(set_name, job.id)
        self._folder = folder
        self.checkout = folder / "checkout"
        self.state = folder / "state"
        self.turn_lock = folder / _TURN_LOCK
        self._result = folder / _RESULT
        self._task = folder / "task"
        self._environment = environment
        self._hidden = hidden
        self._waits_in_outages = waits_in_outages
        self._told = told
        self._rate_limited = rate_limited
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        self._is_told_to_stop = threading.Event()

    def start(self, may_spend_usd: float | None, objects: Path) -> None:
        """Begins the job, or resumes it if the state directory has its session. This process may spend `may_spend_usd`.
        None means no limit. Commands may read `objects`, the objects that the checkout borrows. Raises OSError.
        """
        budget_usd = may_spend_usd
        if self._job.until is not None and may_spend_usd is not None:
            budget_usd = self.so_far().cost_usd + may_spend_usd  # a loop counts all its processes
        self.state.mkdir(mode=0o700, exist_ok=True)
        for record in self._records():
            os.utime(record.path, (_RESTORED, _RESTORED))
        self.turn_lock.touch(mode=0o600)
        self._result.unlink(missing_ok=True)
        call = f"from ralph.__main__ import main; main({core_limit_at_start()}, {os.getpid()})"
        words = list(self._words(budget_usd))
        # The task is not a word of a command: Linux takes 128 KiB as one word, and other users see all words.
        has_task = words[-2:] == _TASK_FROM_INPUT
        self._task.write_bytes(self._job.prompt.encode())
        with self._task.open("rb") as task:
            environment = child_environment(
                self._environment, self.state, self.turn_lock, objects=objects, hidden=self._hidden
            )
            self._process = subprocess.Popen(
                own_python(call, *words),
                cwd=self.checkout,
                env=with_set_aside(environment, search_outside(environment, (self._folder,))),
                stdin=task if has_task else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        assert self._process.stderr is not None  # noqa: S101 - asked for above
        self._readers = [
            threading.Thread(target=_each_line, args=(self._process.stdout, self._heard), daemon=True),
            threading.Thread(
                target=_each_line,
                args=(self._process.stderr, lambda line: self._told(line.decode("utf-8", "replace"))),
                daemon=True,
            ),
        ]
        for reader in self._readers:
            reader.start()
        if self._is_told_to_stop.is_set():
            self.stop()

    def wait(self, seconds: float) -> int | None:
        """Waits for the end, and returns the status as `subprocess` gives it. None if the process still runs, or never began."""
        if self._process is None:
            return None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Asks the process to stop. It ends with 143, and its session can be resumed."""
        self._is_told_to_stop.set()
        if self._process is not None:
            with suppress(OSError):  # a full disk
                (self._folder / _TOLD_TO_STOP).touch(mode=0o600)
            _signal(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process at once. Its commands end with it."""
        self._is_told_to_stop.set()
        if self._process is not None:
            _signal(self._process, signal.SIGKILL)

    def end_now(self) -> None:
        """Ends the process if it still runs, and waits for its end."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOPS_WITHIN_S)

    def end_before(self) -> ProcessEnd | None:
        """The end of a job whose restored session or loop is completed: its worker was lost before it had told so. None if
        the process must start.
        """
        if self._job.until is not None:
            state = self._loop()
            has_succeeded = state is not None and state.ended is not None and state.ended.exit_code == 0
            return self._end_of_loop(self.so_far()) if has_succeeded else None
        story = self.story()
        if story is None or not story.is_completed:
            return None
        ended_run = story.runs[-1].ended
        return replace(self.so_far(), result=(ended_run.result or "") if ended_run is not None else "")

    def end(self, status: int) -> ProcessEnd:
        """How the process ended. `status` is what `wait` returned."""
        for reader in self._readers:
            reader.join(5)  # a process of the job that outlives it may hold the pipe open
        end_of = self._end_of_run if self._job.until is None else self._end_of_loop
        end = end_of(replace(self.so_far(), exit_code=128 - status if status < 0 else status))
        if status >= 0 or self._is_told_to_stop.is_set():
            return end
        return replace(end, was_killed=True, reason=f"it was killed by {signal.Signals(-status).name}")

    def end_left(self) -> ProcessEnd | None:
        """How the process ended that another worker had begun in this folder. None if `exit_code_left` is None."""
        code = exit_code_left(self._folder)
        return None if code is None else self.end(code)

    def so_far(self) -> ProcessEnd:
        """The turns and the cost so far of all processes of the job, from the journals and the loop's record, with
        exit code 0.
        """
        told = ProcessEnd(exit_code=0)
        if self._job.until is not None:
            if (state := self._loop()) is None:
                return told
            return replace(told, turns=state.turns, cost_usd=state.spent_usd or 0.0)
        if (story := self.story()) is None:
            return told
        return replace(told, turns=story.turns, cost_usd=story.cost_usd or 0.0)

    def story(self) -> SessionStory | None:
        """The story of the job's session. None if there is none yet."""
        return None if (journal := self._journal()) is None else look_to_list(journal).story

    def _journal(self) -> Path | None:
        return next(iter(self.state.glob(f"sessions/*/{self._session}.jsonl")), None)

    def last_change(self) -> float:
        """When a journal of the job was last written, as the file system says. 0 if there is none."""
        with suppress(OSError):
            times = [path.stat().st_mtime for path in self.state.glob("sessions/*/*.jsonl")]
            return max(times, default=0.0)
        return 0.0

    def _words(self, budget_usd: float | None) -> Iterator[str]:
        job = self._job
        budget = [] if budget_usd is None else [f"--max-budget-usd={budget_word(budget_usd)}"]
        if job.until is not None:
            if any(True for _ in self._records()):
                state = self._loop()
                # As with turns, a retry of a job that has reached its limit may do one more.
                most = max(job.max_iterations or 0, len(state.iterations) + 1 if state is not None else 0)
                iterations = [] if job.max_iterations is None else [f"--max-iterations={most}"]
                base = [] if job.base_url is None else [f"--base-url={job.base_url}"]
                yield from ("loop", "--continue", "--moved", *iterations, *base, *budget)
                return
            yield from (
                "loop",
                *(() if self._waits_in_outages else ("--no-outage-waits",)),
                "--output-format=stream-json",
                *words_of(job),
                *budget,
                *_TASK_FROM_INPUT,
            )
            return
        always = ("--output-format=stream-json", f"--result-file={self._result}")
        if job.max_turns is not None:
            job = replace(job, max_turns=max(job.max_turns - self.so_far().turns, 1))
        if self._has_session():
            yield from ("run", "--resume", self._session, "--moved", *always, *words_of(job), *budget)
            return
        yield from ("run", "--session-id", self._session, *always, *words_of(job), *budget, *_TASK_FROM_INPUT)

    def _has_session(self) -> bool:
        """Whether the session can be resumed. A journal without a message can be neither resumed nor begun again."""
        journal = self._journal()
        if journal is None:
            return False
        if look_to_list(journal).story.has_message:
            return True
        journal.unlink()
        return False

    def _records(self) -> Iterator[FileRecord]:
        for path in sorted(self.state.glob(f"loops/*/*/{RECORD_FILE}")):
            yield FileRecord(path.parent)

    def _loop(self) -> LoopState | None:
        """The state in the record of the loop. None if there is none that can be read."""
        with suppress(RecordError):
            return next((record.load() for record in self._records()), None)
        return None

    def _end_of_run(self, told: ProcessEnd) -> ProcessEnd:
        try:
            result = result_written(self._result, told.exit_code)
        except NoResultError as error:
            return replace(told, reason=str(error))
        return replace(
            told,
            reason=result.reason,
            result=result.last_words,
            retry_after_s=result.retry_after_s,
            limit=result.limit,
            turns=max(result.turns, told.turns),
            cost_usd=max(result.cost_usd or 0.0, told.cost_usd),
        )

    def _end_of_loop(self, told: ProcessEnd) -> ProcessEnd:
        if (state := self._loop()) is None:
            return told
        is_over = len(state.iterations) >= (self._job.max_iterations or math.inf)
        return replace(
            told,
            limit="max_budget_usd" if told.exit_code == _LIMIT_REACHED and not is_over else None,
            reason=state.ended.reason if state.ended is not None else "",
            result=state.last.last_words if state.last is not None else "",
            retry_after_s=state.ended.retry_after_s if state.ended is not None else None,
        )

    def _heard(self, line: bytes) -> None:
        if b'"api_retry"' not in line:
            return
        with suppress(msgspec.MsgspecError, ValueError):
            heard = msgspec.json.decode(line, type=_StreamLine)
            if heard.subtype == "api_retry" and heard.kind in _RATE_LIMITS and heard.retry_delay_ms:
                self._rate_limited(heard.retry_delay_ms / 1000)


def exit_code_left(folder: Path) -> int | None:
    """The exit code of the process that a job had in this folder of a claim, as it has written it at its end. None if it
    wrote none, or if it was interrupted and not by its worker: it died with that.
    """
    codes = []
    with suppress(NoResultError):
        codes.append(read_result(folder / _RESULT).exit_code)
    with suppress(OSError, RecordError):
        (folder / _TURN_LOCK).stat()  # without it no process has begun
        for record in folder.glob(f"state/loops/*/*/{RECORD_FILE}"):
            ended = FileRecord(record.parent).load().ended
            if ended is not None and record.stat().st_mtime != _RESTORED:
                codes.append(ended.exit_code)
    was_told = (folder / _TOLD_TO_STOP).exists()
    return next((code for code in codes if code <= _LAST_OF_NO_SIGNAL or was_told), None)


def child_environment(
    environment: Mapping[str, str], state: Path, turn_lock: Path, *, objects: Path, hidden: Sequence[Path]
) -> dict[str, str]:
    """The variables of a job's process. Those that lead to the store are not among them: a model's command could read
    them. `objects` are as in `JobProcess.start`, and `hidden` as in `JobProcess`. The agent can change the file in its checkout that names the
    objects, so the worker names them.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name != VARIABLE and not name.startswith(("PG", "RALPH_TURN_"))
    }
    places = {
        name: os.pathsep.join(filter(None, (environment.get(name), *map(str, added))))
        for name, added in ((SANDBOX_READ, (objects,)), (SANDBOX_HIDE, hidden))
    }
    return {**kept, **places, "RALPH_STATE_DIR": str(state), TURN_LOCK: str(turn_lock)}


def fingerprint(environment: Mapping[str, str], base_url: str | None, model: str | None = None) -> str:
    """Names the key that a worker uses for a model, without telling it. Two workers with one key have one fingerprint."""
    key = environment.get("ANTHROPIC_API_KEY") or environment.get("ANTHROPIC_AUTH_TOKEN") or ""
    server = base_url or environment.get("ANTHROPIC_BASE_URL") or ""
    if not server and (vendor := vendor_of(model or "")) is not None:
        key, server = environment.get(vendor.key_variable, ""), vendor.base_url
    return hashlib.sha256(f"ralph-fleet\n{server}\n{key}".encode()).hexdigest()[:16]


def has_own_access(job: Job) -> bool:
    """Whether a job names its server or its settings itself, so that a refused key is not the fault of its machine."""
    return job.base_url is not None or _names_settings(job)


def why_not_here(job: Job, environment: Mapping[str, str], folder: Path) -> str | None:
    """Why this job cannot begin with the machine's key and its user's settings. None if it can."""
    if _names_settings(job):
        return None
    # Any other model may be the name of a target, which the job's own settings decide.
    model = job.model if vendor_of(job.model or "") is not None else None
    try:
        load_with_claude({"model.base_url": job.base_url, "model.name": model}, environment, folder, None)
    except SettingsError as error:
        return str(error)
    return None


def _names_settings(job: Job) -> bool:
    return any(word.startswith("--config") for word in job.options)


def _each_line(stream: IO[bytes], hear: Callable[[bytes], None]) -> None:
    with stream:
        for line in stream:
            with suppress(Exception):  # a pipe that nobody reads would stop the process for ever
                hear(line)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.kill(process.pid, number)


def wait_for_end(process: JobProcess, seconds: float) -> int:
    """Waits for the end of a process that was asked to stop, and kills it when the time is over."""
    until = time.monotonic() + seconds
    while (status := process.wait(0.1)) is None:
        if time.monotonic() > until:
            process.kill()
    return status


# --- The state directory, packed into bytes for the store, and unpacked on another machine. The store is not trusted:
# links, devices and paths outside the directory are refused, and so is more than the given size.

_CARRIED = frozenset({"sessions", LOOPS})
"""The folders with what a job continues from. The rest is of this machine and this process alone: temporary files of hooks and of
MCP servers, which may hold their keys, the descriptions of this machine's protected files, and what commands had made of them."""
_LEVEL = 6  # zlib's own choice; journals are text and become a fifth
_MOST_ENTRIES = 10_000
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_DAMAGE = (tarfile.TarError, ValueError, EOFError, FileExistsError, FileNotFoundError, NotADirectoryError)


class TooLargeError(Exception):
    """The state is larger than a checkpoint may be."""


class BadStateError(Exception):
    """The packed state is damaged, or no ralph has packed it."""


def pack_state(directory: Path, most_bytes: int) -> bytes:
    """Packs the regular files and the folders of the sessions and the loops in a state directory. Links and everything else are
    left out. The same content gives the same bytes: neither times nor owners are packed. A file that grows meanwhile is packed
    as long as it was when it was opened. Raises TooLargeError if the files are larger than `most_bytes` in sum, and OSError.
    """
    packed = io.BytesIO()
    left = most_bytes
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, (name, path) in enumerate(_entries(directory, "", _CARRIED)):
            if number >= _MOST_ENTRIES:
                raise TooLargeError(f"{directory} has more than {_MOST_ENTRIES:,} files")
            entry = tarfile.TarInfo(name)
            if path is None:
                entry.type, entry.mode = tarfile.DIRTYPE, _FOLDER_MODE
                archive.addfile(entry)
                continue
            content = _content(path, left)
            if content is None:
                continue
            if len(content) > left:
                raise TooLargeError(f"{directory} is larger than {most_bytes:,} bytes")
            left -= len(content)
            entry.mode, entry.size = _FILE_MODE, len(content)
            archive.addfile(entry, io.BytesIO(content))
    return zlib.compress(packed.getvalue(), _LEVEL)


def unpack_state(data: bytes, directory: Path, most_bytes: int) -> None:
    """Unpacks what `pack_state` returned into the new directory `directory`. Files have the mode 0600 and folders
    0700. Raises BadStateError if the data is damaged or hostile, TooLargeError if it would unpack to more than
    `most_bytes`, and OSError.
    """
    # Each entry has a head of 512 bytes and may have a long name; its content is padded.
    most_packed = most_bytes + _MOST_ENTRIES * 4096
    unzip = zlib.decompressobj()
    try:
        packed = unzip.decompress(data, most_packed)
    except zlib.error as error:
        raise BadStateError(f"the packed state is damaged: {error}") from None
    if not unzip.eof:
        if unzip.unconsumed_tail:
            raise TooLargeError(f"the packed state is larger than {most_bytes:,} bytes")
        raise BadStateError("the packed state is cut short")
    if not packed.endswith(bytes(2 * tarfile.BLOCKSIZE)):  # the end of an archive
        raise BadStateError("the packed state is not a complete archive")
    directory.mkdir(mode=_FOLDER_MODE)
    left = most_bytes
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            for number, entry in enumerate(archive):
                left -= entry.size
                if left < 0 or number >= _MOST_ENTRIES:
                    raise TooLargeError(f"the packed state is larger than {most_bytes:,} bytes")
                _unpack(archive, entry, directory)
    except _OF_DAMAGE as error:
        raise BadStateError(f"the packed state is damaged: {error}") from None


def _entries(
    directory: Path, above: str, only: Container[str] | None = None
) -> Iterator[tuple[str, str | None]]:
    """The relative names below a directory, folders before their content, each with the path of a file, or None for a folder. With
    `only`, the directory has no other entries than these.
    """
    with os.scandir(directory) as listing:
        found = sorted(
            (entry for entry in listing if only is None or entry.name in only), key=lambda entry: entry.name
        )
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield above + entry.name, None
            yield from _entries(directory / entry.name, f"{above}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield above + entry.name, entry.path


def _content(path: str, most_bytes: int) -> bytes | None:
    """The content of a file, or one byte more than `most_bytes` of it. None if it is gone or no regular file now."""
    try:
        descriptor = open_regular_file(path, os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read(min(os.fstat(descriptor).st_size, most_bytes + 1))


def _unpack(archive: tarfile.TarFile, entry: tarfile.TarInfo, directory: Path) -> None:
    parts = entry.name.split("/")
    if not entry.name or "\0" in entry.name or any(part in {"", ".", ".."} for part in parts):
        raise BadStateError(f"the packed state has an entry that no ralph packs: {entry.name!r}")
    path = directory.joinpath(*parts)
    if entry.isdir():
        path.mkdir(mode=_FOLDER_MODE)
        return
    source = archive.extractfile(entry) if entry.type == tarfile.REGTYPE and not entry.issparse() else None
    if source is None:
        raise BadStateError(f"the packed state has an entry that no ralph packs: {entry.name!r}")
    with os.fdopen(os.open(path, _WRITE, _FILE_MODE), "wb") as file:
        content = source.read()
        if len(content) != entry.size:
            raise BadStateError("the packed state is cut short")
        file.write(content)
