"""Makes the command line of bubblewrap (`bwrap`), which makes the box of a run's commands. No I/O happens here.

A command sees the whole file system, which is read-only except for the writable places. `/proc` shows only the
command's own processes, `/dev` contains only harmless devices, and `/tmp` is the session's temporary directory.
Hidden directories and files appear empty. Landlock forbids mounts, so it is applied after all mounts are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.machine.files.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

TEMPORARY = "/tmp"  # noqa: S108 - the session's directory is mounted there
DEVICES = "/dev"
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

    `cover` are the words that show the file system as overlays (`overlays.py`), and `visible_covers` those for directories in
    /tmp. Without them, it is one read-only mount, in which the command finds every socket. `temporary` is the session's directory,
    which is mounted on /tmp; None leaves it the machine's own. `visible` are paths, such as the command's Python, of which those in
    /tmp are mounted there again, read-only. They get the rights of the session's directory: none may contain an unreadable one.

    `devices` are device nodes, and directories with some: other mounts make them useless. `pinned` are directories, such as `.git`,
    that the command cannot rename or replace. `copies` are mounted over their files, each after its copy. An empty file is a device,
    which cannot be opened. In `closed`, which is mounted on the `closed_directories`, nothing can be looked up. `has_queues` gives
    message queues of the command's own, if the kernel has them. Without `has_network`, there is only a loopback device.
    """
    namespaces = ("--die-with-parent", "--unshare-pid", "--unshare-ipc")
    words = [bwrap, *namespaces, *(() if has_network else ("--unshare-net",))]
    covered = (*cover,)
    words += covered or ("--bind" if "/" in writable else "--ro-bind", "/", "/")
    words += ("--proc", PROCESSES, "--dev", DEVICES, *(("--mqueue", QUEUES) if has_queues else ()))
    if temporary is not None:
        words += ("--bind", temporary, TEMPORARY)
        for place in (one for one in visible if is_within(one, TEMPORARY)):
            words += ("--ro-bind", place, place)
        words += visible_covers
    # bubblewrap's `/dev` has its own `shm`, and the session's directory is on /tmp already.
    work = (one for one in writable if one not in ("/", temporary) and not is_within(one, DEVICES))
    bound = (("--bind", work), ("--dev-bind", devices), ("--bind", pinned), ("--ro-bind", read_only))
    for option, places in bound:
        for place in places:
            words += (option, place, place)
    for copy, file in copies:
        words += ("--ro-bind", copy, file)
    for directory in empty_directories:
        words += ("--tmpfs", directory)
    for source, places in (("/dev/null", empty_files), (closed, closed_directories)):
        for place in places:
            words += ("--ro-bind", source, place)
    # What one command makes there would be there for the next one. With a cover, the root directory is a file system of the box.
    words += ("--tmpfs", f"{DEVICES}/shm", "--remount-ro", DEVICES)
    return [*words, "--remount-ro", "/"] if covered else words
