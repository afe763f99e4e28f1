# os.path instead of pathlib: these are strings throughout.
# ruff: noqa: PTH103, PTH108, PTH112, PTH113, PTH114, PTH116, PTH123, PTH207, PTH208
"""Runs each iteration as a process of another agent, in ralph's sandbox and process control. When the process has ended, every
process that it started is ended too. The directories of the agent belong to the loop: the agent cannot change the user's
own files there, and finds no sessions of other projects. A closed list says which of the user's files are copied.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from glob import glob
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.loop.agent_events import (
    AgentSession,
    EventLog,
    is_session_unknown,
    open_session,
    outcome_of_run,
    read_session,
)
from ralph.loop.rules import is_counted
from ralph.loop.values import IterationResult, IterationSession, Setback
from ralph.machine.files.opened_file import KERNEL_PLACES, opened, read_regular_file, replace_at
from ralph.machine.files.paths import is_within, is_within_any, planted_link
from ralph.machine.files.trees import remove_tree
from ralph.machine.launcher import NOT_STARTED, TRY_AGAIN
from ralph.machine.running_command import STILL_RUNS, EndCause, KeptErrors, readable_text
from ralph.places.gather import gather_places, home_directories
from ralph.places.places import xdg_bases
from ralph.places.table import expanded
from ralph.values.credentials import known_secrets, secret_header_values
from ralph.values.outcome import Outcome, ShortageError, shortage_of
from ralph.values.ports import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ralph.loop.agent_events import AgentRun
    from ralph.loop.agents import AgentPlace, AgentRow, OpenAgent
    from ralph.loop.values import IterationOrder
    from ralph.machine.running_command import CommandEnding
    from ralph.places.places import GuardedPlaces
    from ralph.sandbox.sandbox_settings import SandboxSettings
    from ralph.values.redaction import Redactor

_MOST_BYTES = 20_000_000
_TOKENS = frozenset(
    "accessToken refreshToken expiresAt refreshTokenExpiresAt access refresh expires access_token refresh_token id_token "
    "last_refresh".split()
)
"""The names of the fields that change when an agent refreshes a login (OAuth)."""
_SECRET = frozenset({"access", "refresh", "key"})
"""Names of secrets in the logins of opencode and pi. Elsewhere they are ordinary words."""
_TOKEN = re.compile(r"[\w.~+/=:|#-]*", re.ASCII)
_NAMED = re.compile(
    r"""(?P<name>[\w.-]+)["']?\s*[=:]\s*(?:(?P<mark>["'])(?P<quoted>[^"'\n]*)(?P=mark)|(?P<bare>[^\s"',;}]+))"""
)


class AgentHome(Struct, frozen=True, dict=True):
    folder: str
    """The loop's directory that contains them."""
    row: AgentRow
    environment: Mapping[str, str]
    """The user's environment, which says where the agent's directories of the user are."""
    roots: tuple[str, ...]
    """The directories in which the agent works, the loop's first."""

    @property
    def variables(self) -> dict[str, str]:
        return {place.variable: f"{self.folder}/{place.variable}" for place in self.row.state}

    @property
    def protected(self) -> tuple[str, ...]:
        """The paths of the copies and of the user's originals, which may lie in the work. An iteration must not change
        them, because they decide what the agent does.
        """
        taken = ((place, *one) for place in self.row.state for one in self._taken(place))
        logins = (login for _, login in self._logins())
        return (
            *(path for place, name, source in taken for path in (self._own(place, name), source)),
            *logins,
        )

    def sandbox(self, wanted: SandboxSettings) -> SandboxSettings:
        """The sandbox of the agent. It is that of commands, and the agent may also write to its directories and read
        the user's files in the list.
        """
        taken = (source for place in self.row.state for _, source in self._taken(place))
        reads = (*filter(self._is_users, _paths(self.row.reads, self.environment)), *taken)
        return replace(
            wanted,
            write=(*wanted.write, self.folder),
            read=(*wanted.read, *filter(os.path.exists, dict.fromkeys(reads))),
        )

    def begin(self, *, is_new: bool) -> None:
        """Copies or links the user's current files. A new loop also begins without sessions. No process of the loop
        may run. Raises OSError.
        """
        self.take_login_back()
        if is_new and os.path.lexists(self.folder):
            remove_tree(self.folder)
        for place in self.row.state:
            for name, source in self._taken(place):
                own = _cleared(self.folder, self._own(place, name))
                if os.path.isdir(source):
                    own.symlink_to(source)
                elif os.path.isfile(source):
                    _write_new(own, read_regular_file(os.path.realpath(source), _MOST_BYTES))
            for name, source in self._beside(place):
                _cleared(self.folder, self._own(place, name)).symlink_to(source)
            named = _paths(place.by_project, self.environment)
            found = [_read(path) for path in named if self._is_users(path)]
            if data := next((_of_project(one, self.roots[0]) for one in found if one is not None), b""):
                _write_new(
                    _cleared(self.folder, self._own(place, place.by_project[0].rpartition("/")[2])), data
                )

    def take_login(self) -> None:
        """Copies the user's login for one process of the agent. Raises OSError."""
        self.take_login_back()
        for place, theirs in self._logins():
            own = _cleared(self.folder, self._own(place, place.login))
            if (data := _read(theirs)) is not None:
                _write_new(own, data)
                status = os.stat(theirs)
                os.utime(own, ns=(status.st_atime_ns, status.st_mtime_ns))

    def take_login_back(self) -> None:
        """Removes the copy of the login, and writes its refreshed tokens to the user's own, because the old ones may
        be void. Ignores everything else in it, because commands may have written it. Raises OSError.
        """
        for place, theirs in self._logins():
            own = self._own(place, place.login)
            real = os.path.realpath(self.folder) + own.removeprefix(self.folder)
            if os.path.realpath(own) != real or planted_link(own, self.roots) is not None:
                continue  # a command's link, which leads elsewhere
            data, before = _read(own), _read(theirs)
            if data is None or before is None:
                continue
            is_newer = os.stat(own).st_mtime_ns > os.stat(theirs).st_mtime_ns
            os.unlink(own)
            old = _decoded(before)
            if is_newer and (merged := _merged(old, _decoded(data))) != old:
                _replace(os.path.realpath(theirs), msgspec.json.encode(merged))

    def secrets(self) -> Iterator[str]:
        """Yields the secrets in the user's logins and in the user's files in the list, as they are now. Raises
        OSError.
        """
        named = _paths((one for place in self.row.state for one in place.by_project), self.environment)
        taken = (source for place in self.row.state for _, source in self._taken(place))
        for path in (*(login for _, login in self._logins()), *filter(self._is_users, named), *taken):
            if (data := _read(path)) is not None:
                found = _decoded(data)
                text = data.decode("utf-8", "replace")
                yield from _secrets_in(found) if isinstance(found, dict) else _secrets_in_text(text)

    def _logins(self) -> Iterator[tuple[AgentPlace, str]]:
        for place in self.row.state:
            login = f"{self._users(place)}/{place.login}"
            if place.login and self._is_users(login):
                yield place, login

    def _is_users(self, path: str) -> bool:
        """Whether the path is the user's own. False if a link on it may have been made by commands of the loop, or
        leads to a file of the kernel, around the home, or to a secret place other than the path itself: a command of
        an earlier run may have made such a link in dotfiles.
        """
        real = os.path.realpath(path)
        return (
            planted_link(path, self.roots) is None
            and not any(
                is_within(os.path.realpath(home), real) for home in home_directories(self.environment)
            )
            and not is_within_any(real, ("/dev", *KERNEL_PLACES))
            and all(path in _paths(row.where, self.environment) for row in self._places.secrets_around(real))
        )

    @cached_property
    def _places(self) -> GuardedPlaces:
        return gather_places(self.roots, self.environment)

    def _users(self, place: AgentPlace) -> str:
        paths = _paths((f"${place.variable}", place.usual), self.environment)
        return f"{next(iter(paths), os.devnull)}/{place.folder}".rstrip("/")

    def _own(self, place: AgentPlace, name: str) -> str:
        return os.path.normpath(f"{self.folder}/{place.variable}/{place.folder}/{name}")

    def _taken(self, place: AgentPlace) -> Iterator[tuple[str, str]]:
        above = self._users(place)
        for name in place.taken:
            found = glob(name, root_dir=above) if "*" in name else [name]
            yield from ((one, f"{above}/{one}") for one in found if self._is_users(f"{above}/{one}"))

    def _beside(self, place: AgentPlace) -> Iterator[tuple[str, str]]:
        above = self._users(place).rpartition("/")[0]
        for name in os.listdir(above) if place.folder and os.path.isdir(above) else ():
            if name != place.folder:
                yield f"../{name}", f"{above}/{name}"


def _paths(templates: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    homes = home_directories(environment)[:1]
    known = {"~": homes, **xdg_bases(homes, environment)}
    return tuple(dict.fromkeys(path for one in templates for path in expanded(one, known, environment)))


def _cleared(folder: str, path: str) -> Path:
    """A path in `folder` at which a new file can be made. Removes what commands have put there, or on the way to it."""
    way = [folder]
    for part in path.removeprefix(f"{folder}/").split("/")[:-1]:
        way.append(f"{way[-1]}/{part}")
    for above in way:
        if os.path.lexists(above) and (os.path.islink(above) or not os.path.isdir(above)):
            os.unlink(above)
        os.makedirs(above, mode=0o700, exist_ok=True)
    if os.path.lexists(path):
        remove_tree(path)
    return Path(path)


def _read(path: str) -> bytes | None:
    """None if there is no regular file, or it cannot be read."""
    try:
        return read_regular_file(os.path.realpath(path), _MOST_BYTES)
    except OSError as error:
        if shortage_of(error) is not None:
            raise
        return None


def _write_new(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


def _replace(path: str, data: bytes) -> None:
    above, name = os.path.split(path)
    try:
        with opened(above, os.O_RDONLY | os.O_DIRECTORY) as directory:
            replace_at(directory, name, data, os.stat(path))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        Path(path).write_bytes(data)  # it is mounted, as into a container


def _of_project(data: bytes, directory: str) -> bytes:
    """Settings without the parts about projects other than `directory`. Empty if they cannot be parsed."""
    found = _decoded(data)
    if not isinstance(found, dict):
        return b""
    projects = found.get("projects")
    if isinstance(projects, dict):
        found["projects"] = {name: one for name, one in projects.items() if is_within(directory, name)}
    return msgspec.json.encode(found)


def _merged(old: object, new: object, name: str = "") -> object:
    """A login with the tokens of another one, where both have a token."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: _merged(value, new.get(key), key) for key, value in old.items()}
    is_token = name in _TOKENS and type(new) is type(old) and isinstance(old, str | int)
    return new if is_token and _TOKEN.fullmatch(str(new)) else old


def _secrets_in(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        yield from chain.from_iterable(_secrets_in(one, key) for key, one in value.items())
    elif isinstance(value, list):
        yield from chain.from_iterable(_secrets_in(one, name) for one in value)
    elif isinstance(value, str):
        secrets = secret_header_values([(name, value)])
        yield from known_secrets({name: value}, [value] if name in _SECRET else secrets)


def _secrets_in_text(text: str) -> Iterator[str]:
    """The secrets in TOML, in variables as a shell reads them, and in JSON with comments."""
    yield from known_secrets({"": text})
    for found in _NAMED.finditer(text):
        yield from _secrets_in(found["quoted"] or found["bare"] or "", found["name"])


def _decoded(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):  # no JSON, or none that anyone means
        return None


_GRACE_S = 3.0  # a stop takes six seconds at most
_CONTINUE = "The last run of this session was cut off before its end. See what is done already, and go on with the task."
_MOST_REASON_CHARS = 300


class AgentIterations:
    """Implements the `Iterations` port with processes of another agent. Works on the main thread only."""

    def __init__(self, agent: OpenAgent, folder: Path, redactor: Redactor) -> None:
        """`folder` is the loop's folder, with the files of the agent's sessions."""
        self._agent, self._row, self._commands = agent, agent.line.row, agent.commands
        self._folder, self._redactor = folder, redactor
        self._clock, self._tell = agent.commands.clock, agent.commands.tell

    def run(self, order: IterationOrder) -> IterationResult:
        """Runs one process of the agent to its end. If this machine lacks a resource, the result has a setback. Raises OSError
        if the process cannot be started for another reason. Never raises Interrupted.
        """
        began_s = self._clock.now_s()
        name, row = _name_of(order.session_id), self._row
        is_new = order.prompt is not None
        before = AgentSession() if is_new else read_session(self._folder / name, row)
        log = EventLog(
            open_session(self._folder, name, is_new=is_new),
            row,
            redact=self._redactor.redact,
            is_over_budget=lambda run: _is_over(order.budget_usd, run),
            before_usd=before.cost_usd or 0.0,
        )
        result = self._with_login(lambda: self._ran(order, before.id, log))
        after = before.with_run(log.run, tells_cost=row.tells_cost)
        result = replace(
            result,
            turns=after.turns,
            cost_usd=after.cost_usd,
            last_words=log.run.answer or log.words,
            reason=result.reason[:_MOST_REASON_CHARS].rstrip("."),
            duration_s=round(self._clock.now_s() - began_s, 3),
        )
        with suppress(OSError):
            log.end(result)
        if before.id and is_session_unknown(log.run, result.reason):
            (self._folder / name).unlink(missing_ok=True)  # so the iteration begins anew
            result = replace(result, outcome=Outcome.API_UNAVAILABLE, setback=Setback.KILL)
        if result.reason and result.setback is None and result.stopped_by is None:
            self._tell(result.reason)
        return result

    def seen(self, session_id: str) -> IterationSession | None:
        """The state of a session, from its file. None if the agent has named no session that it can resume. Raises OSError."""
        row = self._row
        try:
            found = read_session(self._folder / _name_of(session_id), row)
        except FileNotFoundError:
            return None
        is_over = found.ended is not None and is_counted(found.ended.outcome)
        if not ((found.id and row.resume) or is_over):
            return None
        written_at = datetime.fromtimestamp(found.written_s, UTC)
        return IterationSession(found.turns, found.cost_usd, found.ended, written_at)

    def _with_login(self, run: Callable[[], IterationResult]) -> IterationResult:
        home, is_confined = self._agent.home, self._commands.box.is_confined
        try:
            if is_confined:
                home.take_login()
            self._redactor.learn(home.secrets())
        except OSError as error:
            shortage = shortage_of(error)
            if shortage is None:
                raise
            return _setback(Setback.SHORTAGE, f"its login could not be copied: {shortage}")
        try:
            return run()
        finally:
            try:
                if is_confined:
                    home.take_login_back()
                self._redactor.learn(home.secrets())
            except OSError as error:
                self._tell(f"{self._row.name}: its refreshed login could not be saved: {error}")

    def _ran(self, order: IterationOrder, session: str, log: EventLog) -> IterationResult:
        with tempfile.TemporaryFile() as given, KeptErrors() as errors:
            given.write((_CONTINUE if order.prompt is None else order.prompt).encode("utf-8", "replace"))
            given.seek(0)
            try:
                ending, _ = self._commands.run(
                    self._agent.line.command(session, is_confined=self._commands.box.is_confined),
                    log,
                    self._agent.environment,
                    name=self._row.name,
                    waiting_for=f"{self._row.name}, {order.waiting_for}",
                    limit_s=math.inf if order.time_s is None else order.time_s,
                    grace_s=_GRACE_S,
                    streams=(given.fileno(), errors.fileno),
                    search=log.search,
                )
            except Interrupted as stop:
                number = stop.signal_number or signal.SIGTERM
                code = Outcome.INTERRUPTED.exit_code(number)
                return IterationResult(code, Outcome.INTERRUPTED, stopped_by=number)
            except OSError as error:
                shortage = shortage_of(error)
                if shortage is None:
                    raise
                return _setback(Setback.SHORTAGE, f"it could not be started: {shortage}")
            said = self._redactor.redact(readable_text(errors.read())[0]).strip() or log.words
        return self._judged(ending, log.run, said, order)

    def _judged(
        self, ending: CommandEnding, run: AgentRun, said: str, order: IterationOrder
    ) -> IterationResult:
        name = self._row.name
        last = said.rpartition("\n")[2]
        match ending.how:
            case EndCause.BY_ITSELF if ending.status == TRY_AGAIN and said.startswith(NOT_STARTED):
                return _setback(Setback.SHORTAGE, f"it could not be started: {ShortageError('process')}")
            case EndCause.BY_ITSELF if said.startswith(NOT_STARTED) and not run.has_events:
                result = _result(Outcome.CONFIG, f"{name}: {last}")
            case EndCause.BY_ITSELF if ending.status - 128 in signal.valid_signals():
                result = _setback(Setback.KILL, f"was killed by {signal.Signals(ending.status - 128).name}")
            case EndCause.BY_ITSELF:
                result = self._by_itself(ending.status, run, last)
            case EndCause.TIMED_OUT if ending.blocked_by:
                self._tell(f"{name}: {ending.blocked_by}")
                result = self._by_itself(0, run, last)
            case EndCause.TIMED_OUT:
                result = _result(Outcome.TIMED_OUT, f"{name} was stopped at its time limit")
            case EndCause.TOO_MUCH_OUTPUT:
                why = f"{name} was stopped: the budget of ${order.budget_usd:g} is spent"
                result = replace(_result(Outcome.LIMIT_REACHED, why), limit="max_budget_usd")
            case EndCause.WITHOUT_SUPERVISOR | EndCause.NEVER_STARTED | EndCause.ELSEWHERE:
                result = _setback(Setback.KILL, "ended together with the process that starts commands")
            case _:
                stopped = self._commands.limits.why_stopped(ending.how)
                result = _result(Outcome.TASK_FAILED, f"{name} was stopped: {stopped or ending.how.name}")
        if not ending.is_all_gone:
            result = replace(result, reason="; ".join(filter(None, (result.reason, STILL_RUNS))))
        return result

    def _by_itself(self, status: int, run: AgentRun, last: str) -> IterationResult:
        if self._row.read is None:
            done = Outcome.COMPLETED if status == 0 else Outcome.TASK_FAILED
            why = "" if status == 0 else f"{self._row.name} ended with exit {status}"
            return _result(done, f"{why}: {last}" if why and last else why)
        outcome, why = outcome_of_run(run, status, last)
        return _result(outcome, f"{self._row.name}: {why}" if why else "")


def _name_of(session_id: str) -> str:
    return f"agent-{session_id}.jsonl"


def _is_over(budget_usd: float | None, run: AgentRun) -> bool:
    return budget_usd is not None and run.cost_usd is not None and run.cost_usd > budget_usd


def _result(outcome: Outcome, reason: str) -> IterationResult:
    return IterationResult(outcome.exit_code(), outcome, reason=reason)


def _setback(setback: Setback, reason: str) -> IterationResult:
    return replace(_result(Outcome.API_UNAVAILABLE, reason), setback=setback)
