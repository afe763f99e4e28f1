"""The command line of bubblewrap. Whole runs show what it does: `tests/program/sandbox`, `tests/machine/test_kept_box.py`."""

from __future__ import annotations

from ralph.sandbox.bubblewrap import bwrap_command

OWN_DEVICES = ("--tmpfs", "/dev/shm", "--remount-ro", "/dev")


def test_later_mounts_lie_on_top_and_only_places_in_tmp_are_bound_again() -> None:
    words = bwrap_command(
        "/usr/bin/bwrap",
        temporary="/var/ralph/tmp",
        writable=("/tmp/work", "/srv", "/dev/shm", "/var/ralph/tmp"),
        devices=("/dev/nvidia0",),
        visible=("/tmp/python", "/usr"),
        pinned=("/tmp/work/.git",),
        read_only=("/tmp/work/.git/config",),
        empty_directories=("/run/user",),
        empty_files=("/run/docker.sock",),
        closed="/var/ralph/closed",
        closed_directories=("/tmp/work/secrets",),
        has_queues=True,
        has_network=False,
    )
    assert words == [
        *("/usr/bin/bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-net"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
        *("--mqueue", "/dev/mqueue", "--bind", "/var/ralph/tmp", "/tmp"),
        *("--ro-bind", "/tmp/python", "/tmp/python"),
        *("--bind", "/tmp/work", "/tmp/work", "--bind", "/srv", "/srv"),
        *("--dev-bind", "/dev/nvidia0", "/dev/nvidia0"),
        *("--bind", "/tmp/work/.git", "/tmp/work/.git"),
        *("--ro-bind", "/tmp/work/.git/config", "/tmp/work/.git/config"),
        *("--tmpfs", "/run/user", "--ro-bind", "/dev/null", "/run/docker.sock"),
        *("--ro-bind", "/var/ralph/closed", "/tmp/work/secrets"),
        *OWN_DEVICES,
    ]


def test_places_that_hold_tmp_leave_it_to_the_command() -> None:
    words = bwrap_command("/usr/bin/bwrap", writable=("/", "/tmp"))
    assert words[4:] == [
        *("--bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--bind", "/tmp", "/tmp"),
        *OWN_DEVICES,
    ]
