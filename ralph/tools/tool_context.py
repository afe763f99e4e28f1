"""The objects that all tools of a run share: settings, clock, waiter, open directories, the files that the model was shown, and
redaction of credentials.

The roots are the directories where file tools may write. Each root is kept open during the run, so that the system cannot
reuse its inode number. A directory that replaces a root at the same path is therefore recognised.

If another program has changed a file since Read, Write or Edit last used it, ralph notices this before it overwrites the file. Two
states are compared by the digest of the content or, for example for a very large file, by size and modification time.
"""

from __future__ import annotations

import errno
import os
import re
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.machine.files.paths import HELD_DIRECTORY, is_within, is_within_any
from ralph.machine.files.trees import SpillDirectory
from ralph.machine.own_programs import own_program, search_around, without_unsafe_loads
from ralph.sandbox.box_plan import BoxPlan
from ralph.sandbox.bubblewrap import TEMPORARY
from ralph.sandbox.detection import no_means
from ralph.sandbox.disk_work import DiskWork, OwnDisks
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.answer import Block, ToolError, tool_errors
from ralph.values.ports import Clock, PathRules, Waiter, WorkingDirectoryGoneError
from ralph.values.strict_json import is_encodable
from ralph.values.tool_choice import TOOL_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ralph.machine.command_supervisor import CommandSupervisor, Confinement
    from ralph.machine.own_programs import ProgramSearch
    from ralph.sandbox.command_box import CommandBox
    from ralph.tools.background import BackgroundCommands
    from ralph.tools.path_guard import PathGuard
    from ralph.values.redaction import Redactor


class ToolSettings(Struct, frozen=True):
    cwd: Path
    """The working directory as an absolute path. Commands start here, and relative paths are relative to it."""
    environment: Mapping[str, str]
    """The environment variables that commands get. The caller has removed credentials. ralph also looks for `bash` in
    the PATH of this environment, and skips directories inside the checkout."""
    bash_timeout_s: float = 120
    bash_max_timeout_s: float = 600
    """The longest timeout of a command in seconds. If the model requests a longer timeout, the command gets this
    one."""
    max_output_bytes: int = 30_000
    """The maximum number of bytes in one result of Bash, Glob or Grep. A note replaces all further bytes."""
    enabled: frozenset[str] = frozenset(TOOL_NAMES)
    kill_grace_s: float = 3.0
    """Seconds from SIGTERM to SIGKILL when a command is stopped. A stop of the run takes six seconds at most."""
    search_timeout_s: float = 20.0
    spill_bytes: int = 100_000_000
    writable: tuple[Path, ...] = ()
    user_environment: Mapping[str, str] | None = None
    """The environment variables with which ralph was started. They show where the user's credentials are stored. If
    this is None, `environment` is used instead."""
    configuration: tuple[Path, ...] = ()
    agents: tuple[Path, ...] = ()
    session_directory: Path | None = None
    is_below_loop: bool = False
    box_plan: BoxPlan = BoxPlan(no_means("no sandbox was planned"))
    hook_plan: BoxPlan | None = None
    sandbox: SandboxSettings = SandboxSettings()
    rules: PathRules | None = None

    @property
    def places_environment(self) -> Mapping[str, str]:
        """The environment variables that show where the user's credentials are stored."""
        return self.environment if self.user_environment is None else self.user_environment


# Base64 makes images a third larger, which leaves a third of a request's 32 MB for everything else.
MOST_BYTES = 16 * 1024 * 1024
# The most images in one request that the API accepts for every model. Some models take more.
MOST_IMAGES = 100


class ImageBudget:
    """Limits the images of a conversation, because each request contains all of them. For any thread."""

    def __init__(self) -> None:
        self._bytes = 0
        self._images = 0
        self._lock = Lock()

    def take(self, size_bytes: int) -> None:
        """Adds one image to the count. Raises ToolError if the count or the total size would exceed the limit."""
        with self._lock:
            if self._images >= MOST_IMAGES:
                raise ToolError(
                    f"this conversation holds {self._images} images, and no more fit into a request. Work with "
                    "what you have seen, or look at the image with Bash"
                )
            if self._bytes + size_bytes > MOST_BYTES:
                raise ToolError(
                    f"the image has {size_bytes:,} bytes; the images of this conversation may have {MOST_BYTES:,} "
                    f"in all, and {MOST_BYTES - self._bytes:,} are left. Shrink it, or look at a part of it"
                )
            self._bytes += size_bytes
            self._images += 1

    def restore(self, blocks: Iterable[Block]) -> None:
        """Adds the images that are already in the conversation, even if they exceed the limit."""
        with self._lock:
            for size_bytes in _sizes(blocks):
                self._bytes += size_bytes
                self._images += 1


def _sizes(blocks: Iterable[Block]) -> Iterable[int]:
    for block in blocks:
        if block.get("type") == "image":
            yield len(block.get("source", {}).get("data", "")) * 3 // 4
        elif isinstance(block.get("content"), (list, tuple)):
            yield from _sizes(block["content"])


class Root(Struct, frozen=True):
    named: Path
    path: Path
    descriptor: int

    def is_in_place(self) -> bool:
        """Whether the path still leads to the opened directory. True if an error of the file system hides that."""
        try:
            there = self.named.stat()
        except OSError as error:
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
        return os.path.samestat(there, os.fstat(self.descriptor))


class Roots:
    """All roots of a run. The working directory is the first."""

    def __init__(self, cwd: Path, added: Sequence[Path]) -> None:
        """Raises WorkingDirectoryGoneError if the working directory is gone, and OSError if another root cannot be opened."""
        self._roots: list[Root] = []
        self._temporary: Root | None = None
        try:
            self._roots.append(_held(cwd))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WorkingDirectoryGoneError(cwd) from error
        try:
            self._roots += map(_held, added)
        except OSError:
            self.close()
            raise

    @property
    def paths(self) -> list[str]:
        """The paths of the roots, with links resolved."""
        return [str(root.path) for root in self._roots]

    @property
    def working_directory(self) -> int:
        """The descriptor of the working directory, which stays open during the run."""
        return self._roots[0].descriptor

    def check_working_directory(self) -> None:
        """Raises WorkingDirectoryGoneError if the working directory was removed or replaced."""
        if not self._roots[0].is_in_place():
            raise WorkingDirectoryGoneError(self._roots[0].named)

    def root_of(self, target: Path, shown: str) -> Root:
        """The innermost root around a path without links. Raises ToolError if there is none, or it was removed or replaced."""
        roots = self._roots if self._temporary is None else [*self._roots, self._temporary]
        above = [root for root in roots if root.path in target.parents]
        if not above:
            allowed = ", ".join(self.paths)
            where = shown if shown == str(target) else f"{shown} (really {target})"
            raise ToolError(
                f"{where} is outside the directories that this run may write to: {allowed}. It can be read. "
                "Who starts ralph can allow more with --add-dir"
            )
        root = max(above, key=lambda root: len(root.path.parts))
        if not root.is_in_place():
            raise ToolError(f"the directory {root.named} is gone, or is another one now; nothing was written")
        return root

    def add_temporary(self, directory: str) -> None:
        """Opens the directory that commands use for temporary files, and adds it to the roots. Raises OSError."""
        if self._temporary is None:
            self._temporary = _held(Path(directory))

    def close(self) -> None:
        while self._roots:
            os.close(self._roots.pop().descriptor)
        if self._temporary is not None:
            os.close(self._temporary.descriptor)


def _held(directory: Path) -> Root:
    real = Path(os.path.realpath(directory))
    return Root(directory, real, os.open(real, HELD_DIRECTORY))


_MOST_FILES = 10_000
_MOST_BYTES_HASHED = 10_000_000
_CHUNK_BYTES = 1 << 20

Signature = tuple[int, int, int, int]


class _SeenFile(Struct, frozen=True):
    signature: Signature | None
    """The file's signature when the model was shown it. None if only the digest is known."""
    digest: str | None
    """The digest of the whole content. None if the file was too large to hash, or if it changed while it was hashed."""

    def as_text(self) -> str:
        """The digest, or the signature if there is no digest, as text for the journal."""
        return self.digest or ":".join(map(str, self.signature or ()))

    @classmethod
    def of_text(cls, text: str) -> _SeenFile:
        """Parses the result of `as_text`. Raises ValueError for other text."""
        if ":" not in text:
            return cls(None, text)
        device, inode, size, time_ns = map(int, text.split(":"))
        return cls((device, inode, size, time_ns), None)

    def is_of(self, now: os.stat_result, digest: str | None) -> bool:
        if self.digest is not None and digest is not None:
            return self.digest == digest
        return self.signature == signature_of(now)


_CHANGED = _SeenFile(None, None)
"""Replaces the state of a file that has changed since the model was shown it. The model must read the file again."""


class SeenFiles:
    """The last 10,000 files that the model was shown or has written in a session. For any thread. `was_shown` and `was_written`
    return what the caller must store in the journal: the real path and a text about the state.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, _SeenFile] = OrderedDict()
        self._lock = Lock()

    def restore(self, seen: Mapping[str, str]) -> None:
        """Restores what earlier runs of this session have stored in the journal."""
        for path, text in seen.items():
            try:
                self._keep(path, _SeenFile.of_text(text))
            except ValueError:  # written by another version of ralph; the model must read the file again
                self._keep(path, _CHANGED)

    def was_shown(self, path: Path, descriptor: int, before: os.stat_result) -> dict[str, str]:
        """Remembers a file that Read has shown. `before` is the status of the open file before it was read."""
        signature = signature_of(before)
        with self._lock:
            known = self._files.get(str(path))
        if known is None or known.signature != signature or known.digest is None:
            known = _SeenFile(signature, _digest(descriptor, before))
        return self._keep(str(path), known)

    def was_written(self, path: Path, after: os.stat_result | None, digest: str) -> dict[str, str]:
        """Remembers a file that was written. `after` is its status, or None if only the digest is known."""
        return self._keep(str(path), _SeenFile(None if after is None else signature_of(after), digest))

    def refuse_changed(self, path: Path, now: os.stat_result, digest: str | None, shown: str) -> None:
        """Raises ToolError if the file has changed since the model was shown it. `digest` is None if it is unknown."""
        with self._lock:
            seen = self._files.get(str(path))
        if seen is not None and not seen.is_of(now, digest):
            self._keep(str(path), _CHANGED)
            raise ToolError(f"{shown} changed on disk since it was read; read it again. Nothing was written")

    def _keep(self, path: str, seen: _SeenFile) -> dict[str, str]:
        with self._lock:
            self._files[path] = seen
            self._files.move_to_end(path)
            if len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
        # JSON cannot contain a name that is not UTF-8. When the session is resumed, such a file counts as never seen.
        return {path: seen.as_text()} if is_encodable(path) else {}


def signature_of(stat: os.stat_result) -> Signature:
    """A value that almost always changes with the content."""
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _digest(descriptor: int, before: os.stat_result) -> str | None:
    """The digest of an open file. None if it is too large, or has changed since `before`, and might not be what the model was
    shown.
    """
    if before.st_size > _MOST_BYTES_HASHED:
        return None
    # OpenSSL is four times as fast as Python's own function.
    from hashlib import sha256  # noqa: PLC0415 - 5 MB of OpenSSL, which only runs that use files need

    content = sha256()
    position = 0
    try:
        while position < before.st_size:
            chunk = os.pread(descriptor, min(_CHUNK_BYTES, before.st_size - position), position)
            if not chunk:
                return None
            content.update(chunk)
            position += len(chunk)
        is_same = signature_of(os.fstat(descriptor)) == signature_of(before)
    except OSError:
        return None
    return content.hexdigest() if is_same else None


class ToolContext(Struct, frozen=True, dict=True):
    settings: ToolSettings
    waiter: Waiter
    clock: Clock
    redactor: Redactor
    roots: Roots
    spill: SpillDirectory = field(default_factory=SpillDirectory)
    seen: SeenFiles = field(default_factory=SeenFiles)
    images: ImageBudget = field(default_factory=ImageBudget)
    give_up: Event = field(default_factory=Event)
    """The event that tells running searches to stop, because their results are no longer needed."""
    _lock: Any = field(default_factory=Lock)

    @cached_property
    def guard(self) -> PathGuard:
        from ralph.tools.path_guard import guard_of  # noqa: PLC0415 - only file tools need it

        return guard_of(self)

    @cached_property
    def box(self) -> CommandBox:
        """The sandbox of commands and searches."""
        return self._new_box(self.settings.box_plan)

    @cached_property
    def hook_box(self) -> CommandBox:
        """The sandbox of hooks, with a directory for temporary files in which commands change nothing: uv makes there what a hook
        runs. Makes what hooks may write and is missing: a directory where the name has no ending.
        """
        plan = self.settings.hook_plan or self.settings.box_plan
        for path in plan.write if self.settings.hook_plan else ():
            if not (is_within_any(path, self.roots.paths) or self.search.root_around(path)):
                with suppress(OSError):  # it is there, or its directory is missing
                    if Path(path).suffix:
                        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                    else:
                        Path(path).mkdir(0o700)
        # With more rights, hooks may change further protected files.
        return self._new_box(plan, like=None if self.settings.hook_plan else self.box)

    @cached_property
    def server_box(self) -> CommandBox:
        """The sandbox of MCP servers with credentials. Commands write neither its caches nor its temporary files."""
        return self._new_box(self.settings.box_plan, like=self.box, has_own_caches=True)

    def _new_box(
        self, plan: BoxPlan, *, like: CommandBox | None = None, has_own_caches: bool = False
    ) -> CommandBox:
        from ralph.sandbox.command_box import CommandBox  # noqa: PLC0415 - for the first command

        settings = self.settings
        return CommandBox(
            plan,
            self.roots.paths,
            settings.places_environment,
            lambda: self.guard.places,
            lambda: None if self.spill.path is None else str(self.spill.path),
            disk=DiskWork(self.waiter, self.clock, OwnDisks()),
            like=like,
            has_own_caches=has_own_caches,
        )

    @cached_property
    def supervisor(self) -> CommandSupervisor:
        return self.new_supervisor(self.box.confine())

    @cached_property
    def background(self) -> BackgroundCommands:
        from ralph.tools.background import BackgroundCommands  # noqa: PLC0415 - few runs have such commands

        return BackgroundCommands(self.waiter, self.clock)

    @cached_property
    def hook_supervisor(self) -> CommandSupervisor:
        # A command in the background could kill what decides in a hook, such as a `grep` of a guard.
        return self.new_supervisor(self.hook_box.confine(is_alone=True))

    def new_supervisor(self, confine: Callable[[str], Confinement] | None) -> CommandSupervisor:
        """A new supervisor, which the caller must close. `confine` makes the sandbox of a command; None: there is none."""
        from ralph.machine.command_supervisor import CommandSupervisor  # noqa: PLC0415 - only Bash needs it

        return CommandSupervisor(
            self.safe_environment,
            most_processes=self.settings.sandbox.max_processes,
            most_memory_bytes=self.settings.sandbox.most_memory_bytes,
            is_below_loop=self.settings.is_below_loop,
            confinement=confine,
        )

    def close(self) -> None:
        """Releases the resources of the tools. Must be called after the last tool call has ended."""
        for name in ("background", "hook_supervisor", "supervisor", "hook_box", "server_box", "box"):
            if name in vars(self):
                vars(self).pop(name).close()
        self.spill.remove()
        self.roots.close()

    def program(self, name: str) -> str | None:
        """The path of a program that ralph itself runs, or None if it does not exist outside the checkout."""
        return own_program(name, self.search)

    @cached_property
    def search(self) -> ProgramSearch:
        """Where commands may write, and where ralph's own programs are looked for."""
        environment = self.settings.environment
        return search_around(environment, self.roots.paths, self.settings.sandbox.written(environment))

    @property
    def safe_environment(self) -> dict[str, str]:
        """The variables for processes outside the sandbox, which load nothing that commands can replace."""
        return without_unsafe_loads(self.settings.environment, self.search)

    def resolve(self, path: str) -> Path:
        """The absolute path for one from the model, which may be relative to the working directory or begin with `~`. Links
        stay. Raises ToolError if the text cannot be a path.
        """
        if path == "~" or path.startswith("~/"):
            path = os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises without a home
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise ToolError(f"the path {path!r} cannot be the name of a file") from None
        if not path or "\0" in path:
            raise ToolError(f"the path {path!r} cannot be the name of a file")
        # POSIX lets two slashes at the beginning mean another root, and so `normpath` keeps them. Linux knows none.
        return self._outside(self.settings.cwd / re.sub("^//+", "/", path))

    def _outside(self, path: Path) -> Path:
        """The path outside the sandbox of a file that the model knows by its path inside: commands may see another /tmp."""
        plain = os.path.normpath(path)
        has_other = self.settings.box_plan.has_namespaces and is_within(plain, TEMPORARY)
        with tool_errors(plain), self._lock:
            outside = self.box.outside(plain) if has_other else plain
            temporary = self.box.temporary
            if temporary is not None and is_within(outside, temporary):
                self.roots.add_temporary(temporary)
        return path if outside == plain else self.settings.cwd / outside

    def shown(self, path: Path) -> str:
        """A path to show to the model, relative to the working directory if it is inside: that is shorter, and as models write."""
        try:
            return str(path.relative_to(self.settings.cwd))
        except ValueError:
            if "box" in vars(self) and self.settings.box_plan.has_namespaces:
                return self.box.parts.inside(str(path))
            return str(path)


Arguments = dict[str, Any]
"""The arguments of a tool call, already validated against the schema of the tool."""
