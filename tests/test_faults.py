"""Every row of the list of faults is tried by a test, whose name begins with the row: `test_a6_what_happens`."""

from __future__ import annotations

import re
from pathlib import Path

FAULTS = {
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
    "t6": "Output that is not text",
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


def test_every_row_is_tried() -> None:
    names = [
        name
        for path in Path(__file__).parent.rglob("test_*.py")
        for name in re.findall(r"^def test_((?:[adpt]\d+_)+)", path.read_text(), re.MULTILINE)
    ]
    assert {row for name in names for row in name.rstrip("_").split("_")} == set(FAULTS)
