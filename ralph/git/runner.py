# os.path instead of pathlib: a tree may have many thousand directories.
# ruff: noqa: PTH113, PTH118, PTH120
"""Runs git, under supervision, with a time limit and a limit on the output of each call. Git runs only programs that the
user's own configuration names, not programs that only the repository's configuration names, and of filters only those
that the user's settings for ralph name too. `settings.py` makes sure of this.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections import deque
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.git.answer import CheckoutError, GitAnswer, failure
from ralph.git.settings import ALWAYS, LIST, GitSettings, settings_from
from ralph.machine.files.paths import (
    beginning_of,
    blocking_entry,
    blocks,
    common_directory,
    git_directory,
    git_entry,
    is_within,
    leads_into,
)
from ralph.machine.launcher import TRY_AGAIN
from ralph.machine.own_programs import own_environment, own_program, search_outside, why_not_used
from ralph.machine.running_command import (
    STARTER_GONE,
    UNSEEN_END,
    BlockSearch,
    CommandEnding,
    EndCause,
    KeptErrors,
    MemoryCapture,
    RunningCommand,
)
from ralph.machine.starting import environment_for_commands
from ralph.places.git_config import STANDARD_LFS
from ralph.places.git_places import foreign_directories, read_elsewhere
from ralph.places.own_commands import why_changeable
from ralph.sandbox.left_behind import why_left_behind
from ralph.values.outcome import CannotError, Outcome, ShortageError, shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.machine.own_programs import ProgramSearch
    from ralph.values.ports import Clock, Waiter

LOCAL_LIMIT_S = 300.0
"""Seconds for a call that contacts no remote. So long because a slow disk with a cold cache must not end a loop."""

_HURRIED_LIMIT_S = 3.0
"""Seconds for a call after a signal or a time limit has stopped ralph, and for a local call in the minute after one that
did not end in time. A file system that does not answer must not keep ralph from ending."""
_HURRIED_FOR_S = 60.0
_LEAST_LIMIT_S = 0.05
"""Seconds for a call after `ends_at_s`. Hardly any call ends within them."""
_GRACE_S = 1.0
# Git answers sooner, unless the repository is large or something blocks it.
_SEARCHES_AFTER_S = 2.0
MOST_OUTPUT_BYTES = 256 * 1024 * 1024  # names and ids of two million files

# These would make git use another checkout or index, or read paths in another way: `git rev-parse
# --local-env-vars` lists most of them.
_NOT_OURS = frozenset(
    """
    GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_PREFIX
    GIT_NAMESPACE GIT_SHALLOW_FILE GIT_GRAFT_FILE GIT_CONFIG GIT_IMPLICIT_WORK_TREE GIT_INTERNAL_SUPER_PREFIX
    GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS GIT_ICASE_PATHSPECS GIT_EXTERNAL_DIFF
    GIT_NO_REPLACE_OBJECTS
    """.split()
)
# Programs that git starts, a library that ssh loads, certificates, and files to which git adds what it does.
_NAMES_A_FILE = re.compile(
    r"GIT_(?:ASKPASS|LFS_PROGRESS|SSH|SSH_COMMAND|PROXY_COMMAND|TRACE.*|SSL_.*|PROXY_SSL_.*)|SSH_ASKPASS|SSH_SK_PROVIDER"
    r"|SSL_CERT_(?:FILE|DIR)|CURL_CA_BUNDLE"
)
# What these name is read and judged before git may run it (`settings_of`).
_NAMES_CONFIGURATION = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM")
# Git reads `trace2.*` of the configuration before all else, and no `-c` comes before it (git-config(1)).
_UNTRACED = dict.fromkeys(("GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF"), "0")
_OF_READING = {"GIT_OPTIONAL_LOCKS": "0"}
_UPDATE_INDEX = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
# A path that git refuses (update-index.c): the command ends with 0 all the same.
_REFUSED = re.compile(rb"^Ignoring path (.*)$", re.MULTILINE)
# A file that git cannot convert as its attributes or `core.safecrlf` say (convert.c): the command ends at the first one.
_UNCONVERTED = re.compile(
    rb"^fatal: (?:BOM is \w+ in '(.*)' if|failed to encode '(.*)' from|encoding '(.*)' from|(?:CR)?LF would be replaced by \w+ in (.*)$)",
    re.MULTILINE,
)
_MOST_UNCONVERTED = 100
# Git's message ends with strerror(3) in the C locale. Nothing else shows a shortage.
_SHORTAGE = re.compile(
    rb": (?:(?P<process>Resource temporarily unavailable)|(?P<memory>Cannot allocate memory)|Too many open files)$",
    re.MULTILINE,
)


def nul_ended(paths: Iterable[str]) -> bytes:
    """Paths as git reads and writes them with `-z`."""
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


class GitSeams(Struct, frozen=True):
    """The environment, supervisor, waiter and clock that every git call uses."""

    environment: Mapping[str, str]
    """The environment, without credentials that git does not need."""
    supervisor: CommandSupervisor
    waiter: Waiter
    clock: Clock
    token: GitToken | None = None
    """The token that git gets if a server asks for a password."""
    late: list[float] = field(default_factory=list)
    """When local calls did not end in time, by the clock."""
    writable: tuple[Path | str, ...] = ()
    """The places that commands may write, besides the checkout."""
    filters: tuple[str, ...] = ()
    """The filters of the user's own configuration that git may run, besides git-lfs."""
    may_read: Callable[[str], bool] = lambda _path: True
    """Tells whether commands may read a path, which has no links. Raises CheckoutError."""
    ends_at_s: float = math.inf
    """When no call may run any more, by the clock. Infinite without such a time."""

    def limit_s(self, wanted_s: float, *, is_remote: bool) -> float:
        """The time limit of the next call, in seconds: `wanted_s`, or less if ralph must end soon."""
        was_late = bool(self.late) and self.clock.now_s() - self.late[-1] < _HURRIED_FOR_S
        is_hurried = self.waiter.was_stopped or (was_late and not is_remote)
        limit_s = min(wanted_s, _HURRIED_LIMIT_S) if is_hurried else wanted_s
        return min(limit_s, max(self.ends_at_s - self.clock.now_s(), _LEAST_LIMIT_S))


class Git:
    """Runs git in one directory, always with the same options and environment variables."""

    def __init__(
        self,
        seams: GitSeams,
        directory: Path,
        environment: Mapping[str, str],
        options: Sequence[str] = ALWAYS,
        *,
        repository: str | None = None,
    ) -> None:
        """`environment` is made by `environment_for_git`. `repository` is its name in errors; None stands for `directory`."""
        self.directory = directory
        self.environment = environment
        self.options = tuple(options)
        self.seams = seams
        self._repository = repository

    def read(self, *arguments: str, **options: Any) -> bytes:
        """As `change`, for a command that changes nothing."""
        return self.change(*arguments, variables=_OF_READING, **options)

    def answer(self, *arguments: str, given: bytes | None = None) -> GitAnswer:
        """As `call`, for a command that changes nothing."""
        return self.call(*arguments, given=given, variables=_OF_READING)

    def change(self, *arguments: str, **options: Any) -> bytes:
        """Runs a git command that changes this repository, and returns its output. The parameters are those of `call`.
        Raises Interrupted, and CheckoutError if the command fails.
        """
        answer = self.call(*arguments, **options)
        if answer.status:
            raise self.failure(arguments[0], answer)
        return answer.output

    def stage(self, listed: bytes, variables: Mapping[str, str] | None = None) -> list[str]:
        """Brings the index up to date with files of the working tree, whose paths are NUL-terminated. `git add` would look into
        submodules. Returns the paths that git refuses, such as `git~1`, and those of files that it cannot convert. Raises CheckoutError and Interrupted.
        """
        top = os.path.realpath(os.fsencode(self.directory))
        paths = [(path.rpartition(b"/")[0], path + b"\0") for path in listed.split(b"\0")[:-1]]
        folders = {folder for folder, _ in paths} - {b""}
        linked = {one for one in folders if os.path.realpath(top + b"/" + one) != top + b"/" + one}
        if linked:  # a link has taken the place of their folder, and git refuses such paths
            gone = b"".join(path for folder, path in paths if folder in linked)
            self.change("update-index", "--force-remove", "-z", "--stdin", given=gone, variables=variables)
            listed = b"".join(path for folder, path in paths if folder not in linked)
        return self.stage_unlinked(listed, variables)

    def stage_unlinked(self, listed: bytes, variables: Mapping[str, str] | None = None) -> list[str]:
        """As `stage`, for files to which no link leads."""
        refused: list[bytes] = []
        while (answer := self.call(*_UPDATE_INDEX, given=listed, variables=variables)).status:
            found, paths = _UNCONVERTED.search(answer.errors), listed.split(b"\0")
            path = b"" if found is None else found[found.lastindex or 0]
            if not path or path not in paths or len(refused) == _MOST_UNCONVERTED:
                raise self.failure(_UPDATE_INDEX[0], answer)
            refused.append(path)
            listed = b"\0".join(one for one in paths if one != path)
        return [os.fsdecode(path) for path in (*refused, *_REFUSED.findall(answer.errors))]

    def resolved(self, name: str) -> str | None:
        """The id of the commit that a name means, or None."""
        answer = self.answer("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return answer.output.decode().strip() or None if not answer.status else None

    @cached_property
    def agents_places(self) -> ProgramSearch:
        """The places that commands may write, with the directory."""
        return search_outside(self.environment, (self.directory, *self.seams.writable))

    def is_writable(self, path: str) -> bool:
        """Whether an agent can decide what is at a path, also one of another run whose change of it was not undone yet, or that
        git finds relative to the directory.
        """
        search = self.agents_places
        is_open = (
            not path.startswith("/")
            or search.why_open(path) is not None
            or leads_into(path, search.roots)
            or (os.path.lexists(path) and not search.is_safe(path))
        )
        return is_open or why_left_behind(path, self.seams.environment) is not None

    def names_writable(self, value: str, names: Mapping[str, bool] | None = None) -> bool:
        """Whether commands can decide what a setting of the user's runs or reads (`why_changeable`). `names` are as there."""
        # With the user's own PATH: git does not run what only places of commands have, and what it leaves out must be known.
        search = search_outside(self.seams.environment, (self.directory, *self.seams.writable))
        return _names_agents(value, search, self.environment, str(self.directory), names)

    def settings_of(self, listing: bytes, names: Mapping[str, bool] | None = None) -> GitSettings:
        """As `settings_from`, for this directory and what the seams tell about the user. `names` are as in `why_changeable`.
        A file counts as an agent's, with what it may include, if another run's command has changed it and nothing is undone.
        Raises CheckoutError.
        """
        changed: list[str] = []

        def is_agents(file: str) -> bool:
            changed.extend([file] if why_left_behind(file, self.seams.environment) else [])
            return bool(changed) or self.is_writable(file)

        def is_elsewhere() -> bool:
            writable = tuple(map(os.path.realpath, self.seams.writable))
            return bool(foreign_directories(os.path.realpath(self.directory), writable))

        def names_writable(value: str) -> bool:
            return self.names_writable(value, names)

        return settings_from(listing, is_agents, names_writable, self.seams.filters, is_elsewhere)

    def failure(self, command: str, answer: GitAnswer) -> CheckoutError:
        name = self._repository
        return failure(name or str(self.directory), command, answer, is_named=name is not None)

    def call(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        given: bytes | None = None,
        input_from: int | None = None,
        output_to: int | None = None,
        held: int | None = None,
        limit_s: float = LOCAL_LIMIT_S,
        is_remote: bool = False,
        most_bytes: int | None = None,
    ) -> GitAnswer:
        """Runs one git command, which is allowed to fail. `variables` are added to the environment. `given` is the standard
        input; `input_from` and `output_to` are descriptors for what does not fit into memory, and `held` is one that the
        command's processes keep open until they have ended. `is_remote` says whether the command contacts a remote: only
        then it gets the token, and a shortage that is reported may be the remote's. If the output exceeds `most_bytes`, the
        command is stopped and its output so far is returned with status 0.

        Raises Interrupted. Raises CheckoutError if the command cannot be run or does not end by itself, and
        ShortageError if this machine lacks a resource that the command needs, such as memory.
        """
        name, seams = arguments[0], self.seams
        limit_s = seams.limit_s(limit_s, is_remote=is_remote)
        environment = {**self.environment, **(variables or {})}
        token = seams.token if is_remote else None
        options = self.options if token is None else (*self.options, *token.options)
        capture = MemoryCapture(most_bytes or MOST_OUTPUT_BYTES)
        try:
            with (
                KeptErrors() as errors,
                tempfile.TemporaryFile() as source,
                nullcontext() if token is None else token.pipe() as pipe,
            ):
                source.write(given or b"")
                source.seek(0)
                ending = self._run(
                    [*options, *arguments],
                    *(environment, capture, limit_s, f"git {name}"),
                    input_from=input_from if given is None else source.fileno(),
                    output_to=output_to,
                    errors_to=errors.fileno,
                    held=held,
                    passed=None if pipe is None else (PIPE, pipe),
                )
                said = errors.read()
        except OSError as error:
            if (shortage := shortage_of(error)) is not None:
                raise shortage from None
            problem = f"git {name} could not be run in {self.directory}: {error}"
            raise CheckoutError(problem, Outcome.IO_ERROR) from None
        output = bytes(capture.data)
        if most_bytes is not None and ending.how is EndCause.TOO_MUCH_OUTPUT and ending.is_all_gone:
            return GitAnswer(0, output, said)
        if ending.how is EndCause.TIMED_OUT and not (is_remote or ending.blocked_by):
            seams.late.append(seams.clock.now_s())
        _refuse_other_ends(name, ending, limit_s)
        _refuse_shortage(ending.status, b"" if is_remote else said)
        return GitAnswer(ending.status, output, output + said if is_remote else said)

    def _run(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        capture: MemoryCapture,
        limit_s: float,
        waiting_for: str,
        **streams: Any,
    ) -> CommandEnding:
        """The only place where ralph starts git."""
        seams, top = self.seams, str(self.directory)
        program = git_program(environment, (self.directory, *seams.writable), seams.environment)
        search = BlockSearch(_SEARCHES_AFTER_S, lambda is_over: blocking_file(top, environment, is_over))
        for _ in range(2):  # an iteration may have killed the supervisor
            process = seams.supervisor.start(
                [program, "--no-pager", *arguments],
                cwd=self.directory,
                environment=environment,
                grace_s=_GRACE_S,
                is_confined=False,
                **streams,
            )
            running = RunningCommand(process, capture, waiter=seams.waiter, clock=seams.clock)
            ending = running.run(limit_s, waiting_for, search)
            if ending.how is not EndCause.NEVER_STARTED:
                break
        return ending


class CheckoutGit(Git):
    """Runs git on the user's checkout at `top`, the directory that contains `.git`. Never contacts a remote. An agent may change
    the git settings, which are read in the constructor, so each operation of a loop uses a new `CheckoutGit`.
    """

    def __init__(self, top: Path, seams: GitSeams, options: Sequence[str] = ()) -> None:
        """`options` are further options of each later call. Raises CheckoutError and Interrupted."""
        ours = {
            # So that git uses neither `core.worktree` nor, if this repository is damaged, one in a parent directory.
            "GIT_WORK_TREE": str(top),
            "GIT_CEILING_DIRECTORIES": str(top.parent),
        }
        if os.path.lexists(top / "HEAD"):
            # Where `.git` is damaged, git would take this directory itself for a bare repository.
            ours["GIT_DIR"] = str(top / ".git")
        # Git uses the first `core.gitProxy`: a later one does not replace it.
        environment = {"GIT_PROXY_COMMAND": ""} | environment_for_git(seams, top)
        super().__init__(seams, top, environment | ours)
        self.top = top
        _refuse_unreadable(top, seams.may_read)
        settings = self.settings_of(self.read(*LIST))
        left_out = (name for name in seams.environment if _is_unsafe(name, seams, top))
        self.settings: GitSettings = replace(settings, left_out=(*settings.left_out, *left_out))
        self.options = (*options, *self.settings.arguments)


def _names_agents(
    value: str,
    search: ProgramSearch,
    environment: Mapping[str, str],
    directory: str,
    names: Mapping[str, bool] | None = None,
) -> bool:
    held = {} if STANDARD_LFS.fullmatch(value) else names
    known = {**environment, "GIT_WORK_TREE": directory}
    return bool(why_changeable(value.removeprefix("!"), directory, known, search, names=held))


def _refuse_unreadable(top: Path, may_read: Callable[[str], bool]) -> None:
    """Raises CheckoutError if git would read what commands may not read: its errors repeat lines of some files."""
    try:
        for path, leading in read_elsewhere(str(top)):
            if not may_read(path):
                raise CheckoutError(
                    f"git would read {path}, which commands may not read ({leading} leads there); if it is yours and you "
                    "trust this checkout, open it to commands (sandbox.read in the settings)"
                )
    except OSError as error:
        if (shortage := shortage_of(error)) is not None:
            raise shortage from None
        raise CheckoutError(f"{error.filename} cannot be looked through: {error.strerror}") from None


def _is_unsafe(name: str, seams: GitSeams, work: Path) -> bool:
    if _NAMES_A_FILE.fullmatch(name) is None:
        return False
    search = search_outside(seams.environment, (work, *seams.writable))
    return _names_agents(seams.environment[name], search, seams.environment, str(work))


def git_program(
    environment: Mapping[str, str], places: Iterable[Path | str], told: Mapping[str, str] | None = None
) -> str:
    """The absolute path of git. Raises CheckoutError if PATH leads to none except through `places` and other places that
    commands may write. `told` are the user's variables, whose PATH the error is about.
    """
    program = own_program("git", search_outside(environment, places))
    if program is None:
        search = search_outside(environment if told is None else told, places)
        why = why_not_used("git", search) or "ralph ignores directories that commands may write"
        raise CheckoutError(f"there is no git program on PATH ({why}); install git")
    return program


def environment_for_git(seams: GitSeams, work: Path) -> dict[str, str]:
    """The environment variables for ralph's git calls. Programs on PATH in `work` or in another place that commands may
    write are not run, because an agent may have made them.
    """
    ours = {
        name: value
        for name, value in seams.environment.items()
        if name not in _NOT_OURS and not _is_unsafe(name, seams, work)
    }
    search = search_outside(ours, (work, *seams.writable))
    return (
        _UNTRACED
        | environment_for_commands(
            own_environment(ours, search)
        )  # whose PATH has its helpers, ssh and a shell
        | {name: ours[name] for name in _NAMES_CONFIGURATION if name in ours}
        | {
            # A missing object is an error. To fetch it from a remote would run the program in `uploadpack`.
            "GIT_NO_LAZY_FETCH": "1",
            # A Python program of the user's that git starts takes no module from the working tree.
            "PYTHONSAFEPATH": "1",
            # Git's messages are parsed in this package.
            "LC_ALL": "C",
        }
    )


def git_directory_of(top: Path) -> Path:
    """The git directory of the working tree at `top`, with links resolved. Each linked working tree (git-worktree(1)) has
    a separate one. Runs no git. Raises CheckoutError if `.git` leads to no directory.
    """
    found = git_directory(str(top))
    if found is None or not os.path.isdir(found):  # noqa: PTH112 - strings throughout
        raise CheckoutError(f"{top / '.git'} does not lead to a git directory")
    return Path(os.path.realpath(found))


def _refuse_other_ends(command: str, ending: CommandEnding, limit_s: float) -> None:
    if not ending.is_all_gone:
        raise CheckoutError(f"git {command} started something that cannot be stopped")
    match ending.how:
        case EndCause.TIMED_OUT if ending.blocked_by:
            raise CheckoutError(
                f"git {command} waits for {ending.blocked_by}, which is not a file but a pipe, a device or a socket: remove it"
            )
        case EndCause.TIMED_OUT:
            problem = f"git {command} took longer than {limit_s:g} s and was stopped"
            raise CheckoutError(problem, Outcome.API_UNAVAILABLE)
        case EndCause.TOO_MUCH_OUTPUT:
            raise CheckoutError(
                f"git {command} printed more than {MOST_OUTPUT_BYTES:,} bytes and was stopped"
            )
        case EndCause.WITHOUT_SUPERVISOR:
            raise CheckoutError(f"git {command}: {UNSEEN_END}", Outcome.API_UNAVAILABLE)
        case EndCause.NEVER_STARTED:
            problem = f"git {command} was not started: {STARTER_GONE}"
            raise CheckoutError(problem, Outcome.API_UNAVAILABLE)


def _refuse_shortage(status: int, said: bytes) -> None:
    found = _SHORTAGE.search(said) if status else None
    if status == TRY_AGAIN:
        raise ShortageError("process")
    if found is not None:
        raise ShortageError(found.lastgroup or "file descriptor")


# A token is given to git when it asks for a password, so that it is neither in an environment nor in a command line nor
# on the disk.
#
# Git's own mechanism is a credential helper (gitcredentials(7)). The helper here is a line of shell that reads one record from
# a pipe, which the processes of one git call inherit. Each record has the same size, so that two helpers at once do not
# share one.

PIPE = 90
"""The number of the descriptor in git's processes. So high that it is nobody's, and below the least usual limit."""
_RECORD_BYTES = 1024
_RECORDS = 32
"""How often the processes of one call may ask. Together the records fit into the smallest pipe of Linux with 64 KiB, and are
written at once."""
_USER = "x-access-token"


TOKEN, HOST = "RALPH_GIT_TOKEN", "RALPH_GIT_HOST"
_DEFAULT_HOST = "github.com"


def given_token(environment: Mapping[str, str]) -> GitToken | None:
    """The token that the user's environment has for git, or None. Raises CannotError as `GitToken` does."""
    token = environment.get(TOKEN)
    return GitToken(environment.get(HOST) or _DEFAULT_HOST, token) if token else None


class GitToken:
    """A token for one host. Its `repr` does not show it."""

    def __init__(self, host: str, token: str) -> None:
        """Raises CannotError, without the token, if it cannot be one line of git's protocol."""
        self._record = f"username={_USER}\npassword={token}\n".encode()
        if len(self._record) > _RECORD_BYTES or not token.isprintable() or " " in token:
            raise CannotError("the git token is too long, or has spaces or control characters")
        if not host or not all(one.isalnum() or one in ".-:[]" for one in host):
            raise CannotError(f"{host!r} is not a host for a git token")
        reading = f"dd bs={_RECORD_BYTES} count=1 </dev/fd/{PIPE} 2>/dev/null"
        helper = f'!f() {{ test "$1" = get && {reading}; }}; f'
        name = f"credential.https://{host}.helper"
        self.options = ("-c", f"{name}=", "-c", f"{name}={helper}")
        """The options of git that name the helper, and no other one for the host: the user's might keep the token on the disk."""

    @contextmanager
    def pipe(self) -> Iterator[int]:
        """Yields the descriptor from which the helpers of one git call read. Raises OSError."""
        reading, writing = os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        try:
            try:
                # An empty line ends a record for git.
                os.write(writing, self._record.ljust(_RECORD_BYTES, b"\n") * _RECORDS)
            finally:
                os.close(writing)
            yield reading
        finally:
            os.close(reading)


# The file for which a git call waits is a named pipe, a device or a socket in the place of a file that git reads: git opens it
# without looking at it first, and waits for ever. The search for it opens only regular files.

# The files that git reads in each directory of a working tree, and `.git` itself, which may be a file.
_READ_IN_TREE = frozenset((".gitignore", ".gitattributes", ".gitmodules", ".mailmap", ".git"))
_CONFIGURATIONS = ("config", "config.worktree")
_VALUE = re.compile(rb'^[ \t]*[A-Za-z][A-Za-z0-9-]*[ \t]*=[ \t]*"?([^"\r\n]+)', re.MULTILINE)
_MOST_CONFIGURATIONS = 100


def blocking_file(top: str, environment: Mapping[str, str], is_over: Callable[[], bool]) -> str | None:
    """The path of a pipe, device or socket that git would open for the repository at `top`, a working tree or a git
    directory. None if there is none, or if `is_over` returned True before the end of the search. `environment` are git's
    variables.
    """
    named = environment.get("GIT_DIR") or (git_directory(top) if os.path.lexists(git_entry(top)) else top)
    own = [] if named is None else [os.path.join(top, named)]
    own += [common for place in own if (common := common_directory(place))]
    home = environment.get("HOME", "")
    files = [f"{place}/{name}" for place in own for name in _CONFIGURATIONS]
    files += [f"{home}/.gitconfig", f"{environment.get('XDG_CONFIG_HOME') or f'{home}/.config'}/git/config"]
    for path in _named(files, home):
        if blocks(path):
            return path
    own += _alternates(own)

    def is_gits(path: str) -> bool:
        """Whether a path is in the repository's git directory, in one that lends it objects, or in one of a repository below."""
        return "/.git/" in f"{path[len(top) :]}/" or any(is_within(path, place) for place in own)

    return blocking_entry(
        (*own, top), lambda entry: entry.name in _READ_IN_TREE or is_gits(entry.path), is_over, is_gits
    )


def _alternates(own: Sequence[str]) -> list[str]:
    """The directories of objects that `info/alternates` names (gitrepository-layout(5)), also those that these name."""
    pending = deque(f"{place}/objects" for place in own)
    found: dict[str, None] = {}
    while pending and len(found) < _MOST_CONFIGURATIONS:
        objects = pending.popleft()
        file = f"{objects}/info/alternates"
        for line in () if blocks(file) else beginning_of(file).splitlines():
            path = os.path.join(objects, os.fsdecode(line).replace("\0", ""))
            if path not in found:
                found[path] = None
                pending.append(path)
    return list(found)


def _named(files: list[str], home: str) -> Iterator[str]:
    pending = deque(files)
    seen = set[str]()
    while pending and len(seen) < _MOST_CONFIGURATIONS:
        file = pending.popleft()
        if file in seen:
            continue
        seen.add(file)
        yield file
        if blocks(file) or not os.path.isfile(file):
            continue
        for value in map(bytes.rstrip, _VALUE.findall(beginning_of(file))):
            named = os.fsdecode(value).replace("\0", "")
            named = home + named[1:] if named.startswith("~/") else named
            pending.append(os.path.join(os.path.dirname(file), named))
