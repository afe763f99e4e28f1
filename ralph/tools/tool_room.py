"""The parts that all tools of a run share: the settings, the clock, the waiter, and the redaction of credentials."""

from __future__ import annotations

import os
from functools import cached_property
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ralph.machine.output_capture import SpillDirectory
from ralph.machine.own_programs import own_program
from ralph.machine.repository import repository_top
from ralph.tools.files.seen_files import SeenFiles
from ralph.values.error_text import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from ralph.machine.command_supervisor import CommandSupervisor
    from ralph.tools.files.path_guard import PathGuard
    from ralph.tools.files.roots import Roots
    from ralph.values.ports import Clock, Waiter
    from ralph.values.tool_calls import Block

ALL_TOOLS = frozenset({"Read", "Write", "Edit", "Bash", "Glob", "Grep"})


class ToolSettings(Struct, frozen=True):
    cwd: Path
    """The working directory, absolute. Relative paths and every command start here."""
    environment: Mapping[str, str]
    """The environment of commands, already without credentials. `bash` is found on its PATH, but not in the work."""
    bash_timeout_s: float = 120
    bash_max_timeout_s: float = 600
    """The longest timeout of a command. A longer requested timeout is shortened to it."""
    max_output_bytes: int = 30_000
    """Bytes of one result of Bash, Glob or Grep; the rest is left out, with a note."""
    enabled: frozenset[str] = ALL_TOOLS
    kill_grace_s: float = 5.0
    """Seconds from SIGTERM to SIGKILL."""
    search_timeout_s: float = 20.0
    spill_bytes: int = 100_000_000
    """Bytes of output after which a command is stopped."""
    writable: tuple[Path, ...] = ()
    """Directories besides `cwd` in which Write and Edit may write. Absolute."""
    user_environment: Mapping[str, str] | None = None
    """The environment that ralph was started with; it shows where the user's secrets are. None: `environment` is used.
    """
    configuration: tuple[Path, ...] = ()
    """The settings files that the command line named."""
    session_directory: Path | None = None
    """The directory for sessions that the command line named."""
    is_below_loop: bool = False
    """Whether the parent of this process is `ralph loop`."""


# Base64 makes them a third larger, which leaves a third of the API's 32 MB for everything else.
MOST_BYTES = 16 * 1024 * 1024
# The most that models with the smallest window take in one request.
MOST_IMAGES = 100


class ImageBudget:
    """The most images that one conversation may hold. Every request sends all images again, and the API always refuses
    a request that is too large. Any thread may call.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._images = 0
        self._lock = Lock()

    def take(self, size_bytes: int) -> None:
        """Takes room for one image. Raises ToolError if there is too little."""
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
        """Counts the images that the conversation holds already. If they exceed the most, there is no room for more."""
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


class ToolRoom(Struct, frozen=True, dict=True):
    settings: ToolSettings
    waiter: Waiter
    clock: Clock
    redact: Callable[[str], str]
    redact_longest: int
    roots: Roots
    spill: SpillDirectory = field(default_factory=SpillDirectory)
    seen: SeenFiles = field(default_factory=SeenFiles)
    images: ImageBudget = field(default_factory=ImageBudget)
    give_up: Event = field(default_factory=Event)
    """Set when the results of the running read-only calls are no longer needed."""
    _found: dict[str, str | None] = field(default_factory=dict)

    @cached_property
    def guard(self) -> PathGuard:
        from ralph.sandbox.protected_places import gather_paths  # noqa: PLC0415 - for the first file tool
        from ralph.tools.files.path_guard import PathGuard  # noqa: PLC0415 - the same

        settings = self.settings
        environment = settings.environment if settings.user_environment is None else settings.user_environment
        roots = self.roots.paths
        return PathGuard(
            lambda: gather_paths(roots, environment, settings.configuration, settings.session_directory),
            own_files=lambda: self.spill.path,
        )

    @cached_property
    def supervisor(self) -> CommandSupervisor:
        from ralph.machine.command_supervisor import CommandSupervisor  # noqa: PLC0415 - for the first command
        from ralph.machine.processes import environment_for_commands  # noqa: PLC0415 - the same

        environment = environment_for_commands(self.settings.environment)
        return CommandSupervisor(environment, is_below_loop=self.settings.is_below_loop)

    def close(self) -> None:
        """Releases the resources of the tools. Call it when no tool runs any more."""
        if "supervisor" in vars(self):
            self.supervisor.close()
        self.spill.remove()
        self.roots.close()

    def program(self, name: str) -> str | None:
        """The path of a program for ralph's own use, looked up once; None when there is none outside the work."""
        if name not in self._found:
            work = repository_top(self.settings.cwd) or self.settings.cwd
            search_path = self.settings.environment.get("PATH", os.defpath)
            self._found[name] = own_program(name, search_path, work)
        return self._found[name]

    def resolve(self, path: str) -> Path:
        """An absolute path, relative to the working directory; `~` is the home directory. Links are not followed."""
        if path == "~" or path.startswith("~/"):
            path = os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises without a home
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise ToolError(f"the path {path!r} cannot be the name of a file") from None
        if not path or "\0" in path:
            raise ToolError(f"the path {path!r} cannot be the name of a file")
        return self.settings.cwd / path

    def shown(self, path: Path) -> str:
        """A path for the model, relative to the working directory when inside it: shorter, and models type it
        like that.
        """
        try:
            return str(path.relative_to(self.settings.cwd))
        except ValueError:
            return str(path)


Arguments = dict[str, Any]
"""A call's arguments, already checked against the tool's schema."""
