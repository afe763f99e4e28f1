"""Makes the command line of bubblewrap (`bwrap`), which makes the box of a run's commands. No I/O happens here.

A command sees the whole file system, which is read-only except for the writable places. `/proc` shows only the
command's own processes, `/dev` contains only harmless devices, and `/tmp` is the session's temporary directory.
Hidden directories and files appear empty. Landlock forbids mounts, so it is applied after all mounts are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.machine.repository import is_within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TEMPORARY = "/tmp"  # noqa: S108 - the session's directory is mounted there
DEVICES = "/dev"
"""The place of the devices that bubblewrap makes for a command."""
QUEUES = f"{DEVICES}/mqueue"
"""The place of the command's own POSIX message queues (mq_overview(7))."""
PROCESSES = "/proc"
"""The place where bubblewrap shows only the processes of a command."""


def bwrap_command(
    bwrap: str,
    *,
    cover: Iterable[str] = (),
    temporary: str | None = None,
    writable: Collection[str] = (),
    devices: Iterable[str] = (),
    visible: Iterable[str] = (),
    visible_covers: Iterable[str] = (),
    pinned: Iterable[str] = (),
    read_only: Iterable[str] = (),
    copies: Iterable[tuple[str, str]] = (),
    empty_directories: Iterable[str] = (),
    empty_files: Iterable[str] = (),
    closed: str = "",
    closed_directories: Iterable[str] = (),
    has_queues: bool = False,
    has_network: bool = True,
) -> list[str]:
    """The command line of bubblewrap, without `--` and the program that it runs. All paths are absolute, contain no symbolic
    links, and exist. Later mounts cover earlier ones.

    `devices` are device nodes, and directories with some, that work for the command: elsewhere bubblewrap's mounts make them useless.
    `cover` are the words that show the file system as overlays (`overlays.py`), and `visible_covers` those for directories in
    /tmp. Without them, it is one read-only mount, in which the command finds every socket.
    `temporary` is the session's directory, which is mounted on /tmp; None leaves the machine's own /tmp to the command.
    `visible` are paths that the command must be able to read, such as its Python: a path in /tmp is mounted there again,
    read-only. Landlock gives these paths the same rights as the session's directory, so none may contain an unreadable one. `copies` are
    mounted over their files, each after its copy. `pinned` are directories that the command cannot rename or replace, such as `.git`. A command cannot open an empty file, because it is a device. `closed`
    is an empty directory in which nothing can be looked up; it is mounted on the `closed_directories`. `has_queues` gives the command message queues of its own, for which the kernel must have them. Without
    `has_network`, the command's network has only a loopback device.
    """
    namespaces = ("--die-with-parent", "--unshare-pid", "--unshare-ipc")
    words = [bwrap, *namespaces, *(() if has_network else ("--unshare-net",))]
    covered = (*cover,)
    words += covered or ("--bind" if "/" in writable else "--ro-bind", "/", "/")
    words += ("--proc", PROCESSES, "--dev", DEVICES, *(("--mqueue", QUEUES) if has_queues else ()))
    if temporary is not None:
        words += ("--bind", temporary, TEMPORARY)
        for place in visible:
            if is_within(place, TEMPORARY):
                words += ("--ro-bind", place, place)
        words += visible_covers
    for place in writable:
        # bubblewrap's `/dev` has its own `shm`, and the session's directory is on /tmp already.
        if place not in ("/", temporary) and not is_within(place, DEVICES):
            words += ("--bind", place, place)
    for option, places in (("--dev-bind", devices), ("--bind", pinned), ("--ro-bind", read_only)):
        for place in places:
            words += (option, place, place)
    for copy, file in copies:
        words += ("--ro-bind", copy, file)
    for directory in empty_directories:
        words += ("--tmpfs", directory)
    for file in empty_files:
        words += ("--ro-bind", "/dev/null", file)
    for directory in closed_directories:
        words += ("--ro-bind", closed, directory)
    # What one command makes there would be there for the next one. With a cover, the root directory is a file system of the box.
    words += ("--tmpfs", f"{DEVICES}/shm", "--remount-ro", DEVICES)
    return [*words, "--remount-ro", "/"] if covered else words
