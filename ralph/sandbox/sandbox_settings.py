"""The settings of the sandbox in which commands run (`ralph/sandbox/`)."""
# No `from __future__ import annotations` here: the rows are read from the annotations, without evaluating text.

from posixpath import normpath
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.sandbox.allowed_hosts import allowed_hosts
from ralph.values.setting import MEGABYTE, SWITCH, Arity, Flag, Key, Kind, at_least, one_of, printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Annotated

    from ralph.machine.running_command import EndCause
else:
    from ralph.values.setting import Declared as Annotated

SANDBOX_MODES = ("auto", "strict", "off")
NETS = ("full", "proxy", "off")
GPUS = ("auto", "all", "off")
UNIX_SOCKETS = ("auto", "allow", "deny")
# The greatest number that fits everywhere where a size is kept in 64 bits with a sign.
_MOST_BYTES = 2**62


def _places(paths: tuple[str, ...]) -> tuple[str, ...]:
    places = tuple(dict.fromkeys(map(printable, paths)))
    for place in places:
        # A relative path would mean another place in each working directory.
        if not place.startswith(("/", "~/")):
            raise ValueError(f"must contain absolute paths, or paths that begin with ~/, not {place!r}")
    return places


def _hosts(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError("must name a host: leave it out to open the whole network, or use `off` (--net off)")
    try:
        allowed_hosts(names)
    except ValueError as error:
        raise ValueError(f"must contain names of hosts, NAME:PORT, *.NAME or networks: {error}") from None
    return tuple(dict.fromkeys(name.lower() for name in names))


_NAMES = tuple[str, ...]
PLACES = Kind(_NAMES, "a list of paths", _places)
HOSTS = Kind(_NAMES, "a list of names", _hosts)


class SandboxSettings(Struct, frozen=True):
    """The settings of the sandbox of commands, searches and a loop's check. Only trusted sources may set them."""

    mode: Annotated[
        str,
        Key(
            one_of(*SANDBOX_MODES),
            "`auto` (the protections that this machine has), `strict` (exit 78 if one of them is missing) or `off`",
            Flag(
                "--sandbox",
                "Sandbox for commands. auto (default): as far as this machine allows; strict: exit 78 if that is not "
                "enough; off.",
                choices=SANDBOX_MODES,
            ),
        ),
    ] = "auto"
    write: Annotated[tuple[str, ...], Key(PLACES, "more files and directories that commands may write")] = ()
    """Paths that commands may write in addition to the working directory and each `--add-dir`. In this setting and
    the next three, a path is absolute or begins with `~/`."""
    read: Annotated[
        tuple[str, ...],
        Key(PLACES, "files and directories that may be read although they are in the home or secret"),
    ] = ()
    """Paths in the home or on the list of secret places that may be read all the same. Secret places inside them stay closed."""
    sockets: Annotated[
        tuple[str, ...],
        Key(PLACES, "sockets in the file system that commands may connect to, such as that of an agent"),
    ] = ()
    unix_sockets: Annotated[
        str,
        Key(
            one_of(*UNIX_SOCKETS),
            "Unix sockets for commands: `auto` (only their own, where the machine can tell them from others), `allow` (all, "
            "where it cannot) or `deny`",
            Flag(
                "--unix-sockets",
                "Unix sockets for commands. auto (default): only their own, if the machine can tell them from others; "
                "allow: all, if it cannot; deny: none.",
                choices=UNIX_SOCKETS,
            ),
        ),
    ] = "auto"
    read_deny: Annotated[
        tuple[str, ...], Key(PLACES, "more files and directories that commands and tools must not read")
    ] = ()
    net: Annotated[
        str | None,
        Key(
            one_of(*NETS),
            "network for commands: `full`, `proxy` (only `allow_hosts`) or `off`; not set: `full`, or `proxy` if there "
            "are `allow_hosts`",
            Flag("--net", "Network for commands. Default: full, or proxy with --allow-host.", choices=NETS),
        ),
    ] = None
    allow_hosts: Annotated[
        tuple[str, ...],
        Key(
            HOSTS,
            'hosts that commands may reach with `net = "proxy"`: `NAME`, `*.NAME`, `NAME:PORT`; and private networks that '
            "they may be in",
            Flag("--allow-host", "Let commands reach this host, and no others.", "HOST", Arity.NAMES),
        ),
    ] = ()
    gpu: Annotated[
        str | None,
        Key(
            one_of(*GPUS),
            "GPUs that commands may use: `auto` (those of NVIDIA, and AMD's with ROCm), `all` (also the render nodes of others) or "
            '`off`; not set: `auto`, or `off` with `mode = "strict"`',
            Flag(
                "--gpu",
                "GPUs for commands. auto (default, except with --sandbox strict): those of NVIDIA, and of AMD with ROCm; "
                "all: also the render nodes of others; off.",
                choices=GPUS,
            ),
        ),
    ] = None
    max_processes: Annotated[
        int, Key(at_least(0), "maximum number of processes and threads of a command at a time; 0: no limit")
    ] = 512
    max_memory_mb: Annotated[
        int | None,
        Key(
            at_least(1),
            "maximum memory of a command in megabytes, files in /dev/shm included; none: no limit",
        ),
    ] = None
    max_file_mb: Annotated[
        int | None,
        Key(at_least(1), "maximum size in megabytes of a file that a command writes; none: no limit"),
    ] = None

    @property
    def asked_net(self) -> str:
        """The network access that the user wants for commands: one of `NETS`."""
        return self.net or ("proxy" if self.allow_hosts else "full")

    @property
    def asked_gpu(self) -> str:
        """The GPUs that the user wants for commands: one of `GPUS`."""
        return self.gpu or ("off" if self.mode == "strict" else "auto")

    @property
    def most_memory_bytes(self) -> int:
        """The maximum memory of a command in bytes. 0 means no limit."""
        return min((self.max_memory_mb or 0) * MEGABYTE, _MOST_BYTES)

    def written(self, environment: "Mapping[str, str]") -> tuple[str, ...]:
        """The absolute paths of `write`."""
        return tuple(absolute_place(place, environment.get("HOME", "")) for place in self.write)

    def why_stopped(self, how: "EndCause") -> str | None:
        """Which limit a stopped command exceeded, and its setting. None if the command ended for another reason."""
        if how.name == "TOO_MANY_PROCESSES":
            return f"it had more than {self.max_processes} processes and threads (sandbox.max_processes)"
        if how.name == "TOO_MUCH_MEMORY":
            return (
                f"the command's processes used more than {self.max_memory_mb} MB, files in /dev/shm included "
                "(sandbox.max_memory_mb)"
            )
        return None


class HookSettings(Struct, frozen=True):
    """The rights that hooks of settings files have and commands do not. Only the user's own settings file may set it."""

    write: Annotated[
        tuple[str, ...],
        Key(
            PLACES,
            "files and directories that hooks may write; what is missing is created, without an ending as a directory",
            is_users_alone=True,
        ),
    ] = ()
    """Paths that hooks may write in addition to what commands may write, in the form of `sandbox.write`."""
    sockets: Annotated[
        tuple[str, ...],
        Key(PLACES, "sockets that hooks may connect to, such as that of the desktop", is_users_alone=True),
    ] = ()
    outside: Annotated[
        bool,
        Key(
            SWITCH,
            "`true`: hooks run outside the sandbox ([hooks](permissions.md#hooks))",
            is_users_alone=True,
        ),
    ] = False

    @property
    def gives_more(self) -> bool:
        """Whether hooks may do more than commands."""
        return self != HookSettings()


def absolute_place(place: str, home: str) -> str:
    """The absolute path. `~` at the beginning stands for the home directory."""
    return normpath(f"{home or '/'}/{place[2:]}" if place.startswith("~/") else place)
