"""Measures `ralph report` with a journal of 100 MB: of ordinary work, of many short results, of a killed session, and of
results that become five times as long in HTML. Also shows the size of the page, which must be below 10 MB.
"""

from __future__ import annotations

import random

from benchmarks.harness import Row, figure, ralph, show, workplace
from benchmarks.sessions_list import RESULT_LINES, ResultLines, write_journal
from ralph.sessions.store import SessionStore

SIZE_MB = 100.0
RUNS = 5
_SEED = 16
_KILLED = 3
"""The number of a session that looks as if it was killed."""
_JOURNALS = {
    "ordinary work": (1, RESULT_LINES),
    "short results": (2, ResultLines("ok", 4)),
    "a killed session": (_KILLED, RESULT_LINES),
    "quotation marks": (4, ResultLines("\"'<&>" * 18, 140)),
}


def main() -> None:
    for name, (number, lines) in _JOURNALS.items():
        with workplace() as place:
            store = SessionStore.for_user(place.environment())
            size_mb = write_journal(
                store, place.directory, number, SIZE_MB, random.Random(_SEED), lines=lines
            )
            command = ralph("report", "-o", "page.html")
            place.measure(command)
            measured = [place.measure(command) for _ in range(RUNS)]
            page_mb = (place.directory / "page.html").stat().st_size / 1e6
        rows = [
            Row("wall", figure([one.wall_s * 1000 for one in measured])),
            Row("CPU", figure([one.cpu_s * 1000 for one in measured])),
            Row("peak memory, MB", figure([one.peak_mb for one in measured])),
            Row("the page, MB", figure([page_mb])),
        ]
        show(f"report, {name}, {size_mb:,.0f} MB", rows, unit="ms")


if __name__ == "__main__":
    main()
