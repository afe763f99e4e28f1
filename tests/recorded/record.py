"""Plays the scenes (all, or the named ones) and records what they do: `python -m tests.recorded.record [NAME...]`.

It overwrites earlier recordings, so look at the difference before you commit it. Only journals are kept for ever:
an existing journal is not changed.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.recorded.kept_text import text_of
from tests.recorded.play import Recording, play
from tests.recorded.raw_journals import MADE_UP, OWN, moved
from tests.recorded.scenes import SCENES

KEPT = Path(__file__).parent / "kept"
JOURNALS_OF = (
    "amended",
    "compaction",
    "continue-and-fork",
    "damaged-answers",
    "doom-loop",
    "driven",
    "driven-interrupts",
    "effort-and-thinking",
    "every-tool",
    "fallback",
    "killed-and-resumed",
    "malformed-calls",
    "max-turns",
    "plan-mode",
    "report-missing",
    "report-of-failure",
    "report-schema",
    "retry-stream",
    "round-robin",
    "signals",
    "stop-reasons",
)
"""Scenes whose journals are kept for the resume table."""


def main(names: list[str]) -> None:
    """Records these scenes."""
    KEPT.mkdir(exist_ok=True)
    for name in names or SCENES:
        scene = SCENES[name]
        recording = play(scene)
        path = KEPT / f"{name}.txt"
        text = text_of(recording, shows_all=scene.shows_all)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"{name}\n")
        if name in JOURNALS_OF:
            keep_journals(name, recording)


def keep_journals(name: str, recording: Recording) -> None:
    """Writes the scene's journals that do not exist yet."""
    OWN.mkdir(exist_ok=True)
    for number, journal in enumerate(recording.journals.values(), 1):
        path = OWN / f"{name}-{number}.jsonl"
        if not path.exists():
            work = str(recording.directory / "work")
            path.write_bytes(moved(still_cooling(journal), work, MADE_UP, "http://127.0.0.1:9999"))


def still_cooling(journal: bytes) -> bytes:
    """The journal with all cooldowns that have not ended yet moved by a century, so that they do not end before a
    test.
    """
    now = datetime.now(UTC).isoformat().encode()

    def later(found: re.Match[bytes]) -> bytes:
        return found[0] if found[2] < now else b"%s2126%s" % (found[1], found[2][4:])

    return re.sub(rb'("[\w-]+":")(\d{4}-\d\d-\d\dT[\d:.]+\+00:00)(?="[},])', later, journal)


if __name__ == "__main__":
    main(sys.argv[1:])
