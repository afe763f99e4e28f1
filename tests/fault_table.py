"""Writes docs/inside/faults.md, which lists the faults that the tests try, from the names of the tests:

python -m tests.fault_table > docs/inside/faults.md

A test for row A6 is named `test_a6_what_happens`, and one for two rows `test_a6_a7_what_happens`. If the test runs
the whole program, its name ends with the exit code, as in `_exits_75`. Only the titles are written by hand, here.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "inside" / "faults.md"

TITLES = {
    "a1": "Connection refused",
    "a2": "Name lookup fails",
    "a3": "TLS: no certificate to trust, or no TLS at all",
    "a4": "The connection ends before the first byte",
    "a5": "The connection ends inside the headers, or speaks no HTTP",
    "a6": "The body ends early and cleanly",
    "a7": "The body ends early with an error; a reset after the whole message",
    "a8": "Silence",
    "a9": "Nothing but pings",
    "a10": "A drip, a line without end, an answer without end",
    "a11": "A stopped process, a laptop that sleeps",
    "a12": "JSON that does not parse",
    "a13": "A page instead of a stream; a redirect",
    "a14": "An error of a gateway, with any body",
    "a15": "JSON instead of a stream",
    "a16": "An error inside the stream",
    "a17": "Rate limits and the wait that the server requests",
    "a18": "Outages",
    "a19": "Requests that are refused for good",
    "a20": "A request that is too large",
    "a21": "Events twice, missing or out of order",
    "a22": "Events, blocks, deltas and fields of the future",
    "a23": "Bytes that are no UTF-8",
    "a24": "Proxies",
    "a25": "Any mix of all this",
    "d1": "A tool that does not exist",
    "d2": "Arguments that are wrong",
    "d3": "A call that `max_tokens` cut",
    "d4": "Answers that are empty, or only thinking",
    "d5": "Text without a tool call",
    "d6": "Calls that go round in circles",
    "d7": "Refusals",
    "d8": "A context that overflows",
    "d9": "Pauses",
    "d10": "Stop reasons of the future, or none",
    "d11": "Several calls in one answer, some of which fail",
    "d12": "Limits of turns, dollars and time",
    "d13": "Tool output that gives orders",
    "p1": "Killed at any moment",
    "p2": "Killed between a tool's effect and its record",
    "p3": "A torn last line, a damaged journal",
    "p4": "No room for the journal",
    "p5": "No room in the working directory",
    "p6": "Read-only places",
    "p7": "SIGINT and SIGTERM",
    "p8": "SIGHUP, a closed terminal",
    "p9": "Readers that leave, closed descriptors",
    "p10": "A reader that never reads",
    "p11": "Standard input that is open and silent",
    "p12": "A clock that jumps",
    "p13": "Two runs on one session",
    "p14": "Journals of other versions",
    "p15": "Memory of a long run",
    "p16": "Leaks of descriptors and processes",
    "p17": "Bare environments",
    "p18": "No thread, process, memory or file descriptor left",
    "t1": "Commands that hang",
    "t2": "Daemons",
    "t3": "A grandchild that keeps the output open",
    "t4": "Gigabytes of output",
    "t5": "Commands that wait for somebody",
    "t6": "Output that is no text",
    "t7": "Commands that kill",
    "t8": "A working directory that is gone",
    "t10": "Ways out of the directory",
    "t11": "Files that are none, or huge",
    "t12": "Edits that match nothing, or too much",
    "t13": "Encodings, line ends, modes",
    "t14": "Files that changed since they were read",
    "t15": "A crash inside a write",
    "t16": "Searches without end",
    "t18": "Odd repositories",
}

_INTRODUCTION = """\
# Faults that have been tried

This page is made from the names of the tests (`python -m tests.fault_table > docs/inside/faults.md`), and a test compares
them. A row has an exit code if its test runs the whole program (0: the run survived the fault); the other tests are of
the client or the loop.
"""

SECTIONS = {
    "The network and the server": "a",
    "Signals, disks, locks, files and commands of this machine": "pt",
    "Answers of the model": "d",
}
"""The page's sections, each with the letters with which its rows begin."""

_NAME = re.compile(r"test_((?:[adpt]\d+_)+)(.+?)(?:_exits_([\d_or]+))?")


class Line(NamedTuple):
    row: str
    what: str
    exit_codes: str


def lines(families: str) -> list[Line]:
    """One line for each row of each test, sorted by row. In a row, lines with an exit code come first."""
    found = [line for path in sorted(TESTS.rglob("test_*.py")) for line in _lines_of(path)]
    return sorted(
        (line for line in found if line.row[0] in families),
        key=lambda line: (line.row[0], int(line.row[1:]), not line.exit_codes, line.what),
    )


def page() -> str:
    return "\n".join([_INTRODUCTION, *(_section(*section) for section in SECTIONS.items())])


def _section(title: str, families: str) -> str:
    parts = [f"## {title}\n", "| Row | What happens | Exit |", "| --- | --- | --- |"]
    for row, of_row in groupby(lines(families), key=lambda line: line.row):
        parts.append(f"| **{row.upper()}** | **{TITLES[row]}** | |")
        tried = list(of_row)
        parts += [f"| | {line.what} | {line.exit_codes} |" for line in tried if line.exit_codes]
        if inside := [line.what for line in tried if not line.exit_codes]:
            parts.append(f"| | {'; '.join(inside)} | |")
    return "\n".join(parts) + "\n"


def _lines_of(path: Path) -> list[Line]:
    names = re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE)
    matches = [match for name in names if (match := _NAME.fullmatch(name))]
    return [
        Line(row, match[2].replace("_", " "), _codes(match[3] or ""))
        for match in matches
        for row in match[1].rstrip("_").split("_")
    ]


def _codes(text: str) -> str:
    """Turns the end of a test's name into words: `3_69_or_77` becomes "3, 69 or 77"."""
    return text.replace("_or_", " or ").replace("_", ", ")


if __name__ == "__main__":
    sys.stdout.write(page())
