"""Makes a table of what ralph does with a journal that ends at any of its records: the tools that run, the new
records and the next request.

`python -m tests.recorded.resume_table` makes the table anew. Each row is one forked process of ralph.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.mock_api import FOREVER, MockApi, Scenario, Step, Turn
from tests.processes.fork_server import start_ralph
from tests.recorded.kept_text import Plain, compact
from tests.recorded.play import KEY
from tests.recorded.raw_journals import MADE_UP, kinds, moved, recorded_journals
from tests.recorded.scenes import PIXEL

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).parent / "resume_table.jsonl"
_TARGETS = """
[retry]
policy = "off"
[[targets]]
name = "{first}"
model = "opus"
base_url = "{url}"
[[targets]]
name = "{second}"
model = "sonnet"
base_url = "{url}"
"""
_SAMPLED = 24
"""The test suite compares one row in 24."""
_NUMBERED = re.compile(r"\b(req|msg)_mock_\d+")
"""Ids of answers. They are replaced because one server answers all rows."""
_SHOWN = 160


def sample() -> list[dict[str, Any]]:
    """The rows that the test suite compares. If RALPH_RESUME_TABLE is `all`, these are all rows."""
    rows = [json.loads(line) for line in TABLE.read_text().splitlines()]
    every = 1 if os.environ.get("RALPH_RESUME_TABLE") == "all" else _SAMPLED
    return [row for number, row in enumerate(rows) if number % every == 0]


@dataclass(frozen=True)
class Cut:
    """One row: a journal's first `records` records, in a directory whose files are as `state` says."""

    journal: str
    records: int
    last: str
    """The kind of the last record."""
    state: str = "untouched"
    """The state of the file that an interrupted file tool was to change: `untouched`, `done` (the change was made)
    or `changed` (something else changed it).
    """


def cuts(name: str, journal: bytes) -> Iterator[Cut]:
    """All cuts of one journal."""
    lines = journal.splitlines()
    for number, kind in enumerate(kinds(journal), 1):
        yield Cut(name, number, kind)
        if kind == "tool_intent" and "change" in json.loads(lines[number - 1]):
            yield Cut(name, number, kind, "done")
            yield Cut(name, number, kind, "changed")


class Resumer:
    """A directory and a server with which cuts are resumed one after the other."""

    def __init__(self, directory: Path, api: MockApi) -> None:
        self._directory = directory
        self._api = api
        self._work = directory / "work"
        self._sessions = directory / "sessions" / "work"

    def row(self, cut: Cut, journal: bytes) -> dict[str, Any]:
        """Resumes one cut and returns its row. If the session is already completed, resumes it with a new
        prompt.
        """
        here = moved(journal, MADE_UP, str(self._work), self._api.base_url)
        lines = here.splitlines(keepends=True)
        self._lay_out(lines, cut)
        session = json.loads(lines[0])["id"]
        path = self._sessions / f"{session}.jsonl"
        path.write_bytes(b"".join(lines[: cut.records]))
        before, asked = path.stat().st_size, self._api.request_count
        plain = Plain(self._directory, {"main": self._api.base_url}, [session])
        row: dict[str, Any] = {
            "journal": cut.journal,
            "records": cut.records,
            "last": cut.last,
            "state": cut.state,
        }
        code, said = self._resume(session, [])
        row["without a prompt"] = f"{code}: {plain.text(said)}"
        if self._api.request_count == asked:
            code, said = self._resume(session, ["And then?"])
            row["with a prompt"] = f"{code}: {plain.text(said)}"
        added = [json.loads(line) for line in path.read_bytes()[before:].splitlines()]
        row["added"] = " ".join(self._short(record) for record in added)
        row["requests"] = [
            self._request(request.body or b"", plain) for request in self._api.requests[asked:]
        ]
        row["files"] = {
            one.name: hashlib.sha256(one.read_bytes()).hexdigest()[:8]
            for one in sorted(self._work.iterdir())
            if one.is_file() and one.name != "pixel.png"
        }
        shown = [plain.value(record) for record in added]
        row["sha256 of what was added"] = hashlib.sha256(
            _NUMBERED.sub(r"\1", compact(shown)).encode()
        ).hexdigest()[:16]
        return row

    def _lay_out(self, lines: list[bytes], cut: Cut) -> None:
        for directory in (self._work, self._sessions):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
        (self._work / "notes.txt").write_text("one\ntwo\nthree\n")
        (self._work / "pixel.png").write_bytes(PIXEL)
        last = json.loads(lines[cut.records - 1])
        if cut.state != "untouched":
            path = Path(last["change"]["path"])
            assert path.is_relative_to(self._work)
            done = _content_after(lines[: cut.records], last["id"]) if cut.state == "done" else "another\n"
            path.write_text(done)

    def _resume(self, session: str, prompt: list[str]) -> tuple[int, str]:
        out, err = self._directory / "out", self._directory / "err"
        words = ["-r", session, *prompt, "-q", "--session-dir", str(self._directory / "sessions")]
        # Some commands kill the process that supervises them.
        own = self._directory / ".config" / "ralph" / "config.toml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("sandbox.mode = 'off'\n")
        config = self._directory / "config.toml"
        targets = _target_names(self._sessions / f"{session}.jsonl")
        if len(targets) > 1:
            config.write_text(_TARGETS.format(first=targets[0], second=targets[1], url=self._api.base_url))
            words += ["--config", str(config)]
        else:
            words += ["--retry", "off", "--base-url", self._api.base_url]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._directory),
            "TMPDIR": str(self._directory / "tmp"),
            "ANTHROPIC_API_KEY": KEY,
        }
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = start_ralph(
                words, self._work, environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
            )
            code = process.wait()
        told = err.read_text().splitlines()
        return code, _NUMBERED.sub(r"\1", told[-1] if told else out.read_text().strip())

    def _short(self, record: dict[str, Any]) -> str:
        match record["kind"]:
            case "tool_intent":
                return f"tool_intent({record['name']})"
            case "tool_result":
                return "tool_result(error)" if record.get("is_error") else "tool_result"
            case "event":
                return f"event({record['event']['subtype']})"
            case kind:
                return str(kind)

    def _request(self, body: bytes, plain: Plain) -> dict[str, Any]:
        text = plain.text(body.decode())
        sent = json.loads(text)
        last = compact(sent["messages"][-1]["content"])
        return {
            "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
            "model": sent["model"],
            "roles": "".join(message["role"][0] for message in sent["messages"]),
            "last": last if len(last) <= 2 * _SHOWN else f"{last[:_SHOWN]} ... {last[-_SHOWN:]}",
        }


def _content_after(lines: list[bytes], call_id: str) -> str:
    """The content of a file after this `Write`, or after this `Edit` of notes.txt, the only file that the scenes
    edit.
    """
    for line in reversed(lines):
        record = json.loads(line)
        if record["kind"] == "assistant":
            for block in record["message"]["content"]:
                if block.get("id") == call_id:
                    given = block["input"]
                    edited = "one\ntwo\nthree\n".replace(
                        given.get("old_string", "two"), given.get("new_string", "")
                    )
                    return str(given.get("content", edited))
    raise AssertionError(call_id)


def _target_names(journal: Path) -> list[str]:
    """The names of the targets in a journal, the first target first. The list has one name if there was only one
    target.
    """
    names: list[str] = []
    for line in journal.read_bytes().splitlines():
        record = json.loads(line)
        for name in (record.get("first"), record.get("target"), *record.get("cooling", ())):
            if name and name not in names:
                names.append(name)
    return names


@contextmanager
def resumer() -> Iterator[Resumer]:
    """Makes a `Resumer`, and removes its directory afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="ralph-cut-", dir="/var/tmp"))
    (directory / "tmp").mkdir()
    try:
        with MockApi(Scenario([Step(Turn("All done."), repeat=FOREVER)])) as api:
            yield Resumer(directory, api)
    finally:
        shutil.rmtree(directory)


def main() -> None:
    """Makes the table."""
    with resumer() as made, TABLE.open("w") as table:
        for name, journal in recorded_journals().items():
            for cut in cuts(name, journal):
                table.write(json.dumps(made.row(cut, journal), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
