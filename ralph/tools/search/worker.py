"""The search of a machine without ripgrep, in a process of its own: a hopeless regular expression is killed with it.

Prints what ripgrep would print with `--null`. Started by `file_search.py` with its task as JSON.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.tools.files.file_type import SNIFFED_BYTES, is_binary
from ralph.tools.files.text_encoding import marked_encoding
from ralph.tools.search.glob_pattern import GlobPattern
from ralph.tools.search.ignore_rules import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST_LINE_BYTES = 1 << 20
# If ralph was killed, nobody else ends a search that got stuck.
_MARGIN_S = 5.0


def main(task_json: str) -> int:
    task = json.loads(task_json)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, task["limit_s"] + _MARGIN_S)
    try:
        if task["output_mode"] == "files":
            for path in walk(task["top"], _report, hidden=frozenset(task["hidden"])):
                _put(b"./" + os.fsencode(path) + b"\0")
        else:
            _search(task)
    except re.error as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    sys.stdout.flush()
    return 0


def _search(task: dict[str, Any]) -> None:
    pattern = re.compile(task["pattern"], re.IGNORECASE if task["ignore_case"] else 0)
    for path in _paths(task):
        try:
            lines = _lines(path)
            if task["output_mode"] == "content":
                _put_matches(path, _with_context(lines, pattern, task["before"], task["after"]), task)
            else:
                _put_summary(path, lines, pattern, task["output_mode"])
        except OSError as error:
            _report(path, error)


def _paths(task: dict[str, Any]) -> Iterator[str]:
    if task["target"] != "./":
        yield task["target"]
        return
    glob = GlobPattern(task["glob"]) if task["glob"] is not None else None
    for path in walk(task["top"], _report, hidden=frozenset(task["hidden"])):
        if glob is None or glob.matches(path):
            yield "./" + path


def _lines(path: str) -> Iterator[str]:
    """The lines of a text file; none of a binary one. What is not UTF-8 comes through unharmed."""
    with io.BufferedReader(io.FileIO(path), SNIFFED_BYTES) as file:
        start = file.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]
        marked = marked_encoding(start)
        if marked is not None and marked[1].startswith("utf-16"):
            with Path(path).open(encoding="utf-16", errors="replace") as text:
                yield from (line.rstrip("\n") for line in text)
            return
        if is_binary(start):
            return
        if marked is not None:
            file.read(len(marked[0]))
        while line := file.readline(_LONGEST_LINE_BYTES):
            if b"\0" in line:
                return
            yield line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
            while line and not line.endswith(b"\n"):  # of a longer line only the beginning is searched
                line = file.readline(_LONGEST_LINE_BYTES)


def _with_context(
    lines: Iterable[str], pattern: re.Pattern[str], before: int, after: int
) -> Iterator[tuple[int, str, bool]]:
    """Line number, line, and whether it matches; the lines around matches come too, once."""
    waiting: deque[tuple[int, str]] = deque(maxlen=before)
    after_left = 0
    for number, line in enumerate(lines, 1):
        if pattern.search(line):
            yield from ((early, text, False) for early, text in waiting)
            waiting.clear()
            after_left = after
            yield number, line, True
        elif after_left:
            after_left -= 1
            yield number, line, False
        else:
            waiting.append((number, line))


_printed_any = False


def _put_matches(path: str, found: Iterator[tuple[int, str, bool]], task: dict[str, Any]) -> None:
    """Groups of lines that do not touch are set apart, as ripgrep does when context is asked for."""
    global _printed_any
    last = -1
    for number, line, is_match in found:
        if (task["before"] or task["after"]) and number != last + 1 and _printed_any:
            _put(b"--\n")
        mark = ":" if is_match else "-"
        _put_finding(os.fsencode(path) + f"\0{number}{mark}{line}\n".encode("utf-8", "surrogateescape"))
        _printed_any, last = True, number


def _put_summary(path: str, lines: Iterator[str], pattern: re.Pattern[str], output_mode: str) -> None:
    matching = (True for line in lines if pattern.search(line))
    if output_mode == "count":
        count = sum(matching)
        if count:
            _put_finding(os.fsencode(path) + f"\0{count}\n".encode())
    elif next(matching, False):
        _put_finding(os.fsencode(path) + b"\0")


def _put(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _put_finding(data: bytes) -> None:
    """At once: the next line may be one that the expression never gets over."""
    _put(data)
    sys.stdout.buffer.flush()


def _report(path: str, error: OSError) -> None:
    sys.stderr.write(f"{os.fsencode(path)!r}: {error.strerror} (os error {error.errno})\n")
