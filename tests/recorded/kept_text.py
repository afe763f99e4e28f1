"""Turns a recording into text that can be kept and compared. Leaves out everything that depends on the run or the
machine: times, ids, durations, paths, ports and versions.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from typing import TYPE_CHECKING, Any

from ralph import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.recorded.play import Recording

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MEASURED = {
    "duration_ms",
    "duration_api_ms",
    "duration_s",
    "latency_s",
    "took_s",
    "elapsed_s",
    "check_s",
    "since_s",
    "after_s",
    "seconds_left",
    "pid",
    "uuid",
}
"""Keys whose values differ in each run."""
_MACHINES_OWN = {"sandbox", "sandbox_protections"}
"""Keys whose values depend on what the machine's kernel can do."""
_JOURNALS_OWN = {"crc", "run_bytes", "at"}
"""Keys that are left out. Their values follow from the bytes of the lines, which depend on paths and times."""
_PATTERNS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?"), "<time>"),
    (re.compile(r"\b\d+\.\d+ ?s\b"), "<s>"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "<commit>"),
    (re.compile(r"loops/work-[0-9a-f]+/[^/\s\"]+"), "loops/<loop>"),
    (re.compile(r"\bwork-[0-9a-f]{12}\b"), "<work>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"127\.0\.0\.1:\d{4,5}"), "127.0.0.1:<port>"),
    (re.compile(r"\b\d\d-\d\d \d\d:\d\d\b"), "<time>"),
    (re.compile(r"/ralph-output-[0-9a-f]{16}/output-[0-9a-f]{8}"), "/ralph-output-<name>/output-<name>"),
    (re.compile(r"\b\d+ s ago\b"), "<s> ago"),
    (re.compile(r"(/usr)?/bin/bash\b"), "<bash>"),
    (
        re.compile(
            r"^  (ok|warn|FAIL) +(system|bash|git|rg|bwrap|memory|sandbox|unix sockets|disk|process budget): .*"
        ),
        r"  <check> \2",
    ),
    (re.compile(r"\(sandbox: \w+\)$"), "(sandbox: <level>)"),
    (re.compile(r"^ralph_sandbox_info\{.*\}"), "ralph_sandbox_info{<level>}"),
    # The sentence for the model depends on the kernel, and is not there without Landlock.
    (re.compile(r"(\\+n|\n){2}Commands run in a sandbox: [^.]*\."), ""),
    (re.compile(r"^(ralph_\w*seconds\w*(\{.*\})?) \S+$"), r"\1 <seconds>"),
    (re.compile(r"(?<=, )(\d+m)?\d+s(?=, |$)"), "<s>"),
    (re.compile(r"\bsession [0-9a-f]{8}\b"), "session <id>"),
    # Not everybody may make a control group.
    (re.compile(r"(processes and threads at a time); .*"), r"\1; <counted>"),
    (re.compile(r"\bpid \d+|\bprocess \d+"), "<process>"),
)
_VERSION = re.compile(rf"(?<![\w.]){re.escape(__version__)}(?![\w.])"), "<version>"
_LONG = 400
"""A system prompt or tool list with at least this many characters is replaced by its checksum."""


def text_of(recording: Recording, *, shows_all: bool = False) -> str:
    """The text of the whole recording."""
    return "\n".join(_Writer(recording, shows_all=shows_all).lines()) + "\n"


class Plain:
    """Replaces everything that differs in each run or on each machine. Each of the ids in `sessions` gets a
    name.
    """

    def __init__(self, directory: Path, servers: Mapping[str, str], sessions: Iterable[str]) -> None:
        self._ids = {session: f"<id {number}>" for number, session in enumerate(sessions, 1)}
        self._replaced = [(url, f"<{name}>") for name, url in servers.items()]
        self._replaced += [(url.removeprefix("http://"), f"<{name} host>") for name, url in servers.items()]
        self._replaced += [
            (str(directory), "<dir>"),
            (sys.executable, "<python>"),
            (platform.release(), "<kernel>"),
            (platform.python_version(), "<python version>"),
        ]
        short = ((re.compile(rf"\b{whole[:8]}\b"), name) for whole, name in self._ids.items())
        self._patterns = [(pattern, f"{name[:-1]} in short>") for pattern, name in short]
        self._patterns += [*_PATTERNS, _VERSION]
        self._made: dict[str, str] = {}
        """The texts so far. Most texts of a recording stand in it many times: a key of an object, a message that
        each request repeats."""

    def text(self, text: str) -> str:
        made = self._made.get(text)
        if made is None:
            made = self._made[text] = self._replaced_in(text)
        return made

    def _replaced_in(self, text: str) -> str:
        for old, new in self._replaced:
            text = text.replace(old, new)
        text = _UUID.sub(lambda found: self._ids.get(found[0], "<uuid>"), text)
        for pattern, new in self._patterns:
            text = pattern.sub(new, text)
        return text

    def line(self, line: str) -> str:
        """A line of output or of a journal. The text says so if an object was not written as compactly as ralph
        does it.
        """
        try:
            value = json.loads(line)
        except ValueError:
            return self.text(line)
        if not isinstance(value, dict):
            return self.text(line)
        note = "" if compact(value) == line else "  <not compact>"
        return compact(self.value(value)) + note

    def value(self, value: Any) -> Any:
        match value:
            case dict():
                return {
                    self.text(key): self._field(key, one)
                    for key, one in value.items()
                    if key not in _JOURNALS_OWN
                }
            case list():
                return [self.value(one) for one in value]
            case str():
                return self.text(value)
            case _:
                return value

    def _field(self, key: str, value: Any) -> Any:
        if key in _MEASURED and not isinstance(value, dict | list) and value is not None:
            return f"<{key}>"
        if key in _MACHINES_OWN and (isinstance(value, str) or key == "sandbox_protections"):
            return f"<{key}>"
        if key == "head" and isinstance(value, str):
            return self._head(value)
        return self.value(value)

    def _head(self, value: str) -> Any:
        """The fixed part of requests, as a journal contains it."""
        try:
            head = json.loads(self.text(value))
        except ValueError:
            return _by_checksum(self.text(value))
        return {key: _by_checksum(one) for key, one in head.items()}


class _Writer:
    def __init__(self, recording: Recording, *, shows_all: bool) -> None:
        self._recording = recording
        self._shows_all = shows_all
        self._said: list[Any] = []
        """The messages of the last request."""
        self._headers: dict[str, str] = {}
        sessions = [name.rpartition("/")[2].removesuffix(".jsonl") for name in recording.journals]
        self._plain = Plain(recording.directory, recording.servers, sessions)

    def lines(self) -> Iterator[str]:
        for number, run in enumerate(self._recording.runs, 1):
            yield f"===== run {number}: {self._plain.text(' '.join(['ralph', *map(_quoted, run.words)]))}"
            yield f"exit code {run.code}"
            yield from self._stream("standard output", run.stdout)
            yield from self._stream("standard error", run.stderr)
            for server, request in run.requests:
                yield from self._request(server, request)
        if self._recording.is_brief:
            yield from self._iterations()
        else:
            yield from self._records()
        for name, content in self._recording.files.items():
            yield f"===== file {_quoted(self._plain.text(name))}"
            yield from map(self._plain.line, content.decode(errors="replace").splitlines())
        if self._recording.history:
            yield "===== branches" if self._recording.is_brief else "===== commits"
            yield from self._plain.text(self._recording.history).splitlines()

    def _iterations(self) -> Iterator[str]:
        for loop in self._recording.loops:
            for one in json.loads(loop)["iterations"]:
                told = {key: value for key, value in one.items() if value not in (None, "", [])}
                yield f"===== iteration {compact(self._plain.value(told))}"

    def _records(self) -> Iterator[str]:
        for name, journal in self._recording.journals.items():
            yield f"===== journal {self._plain.text(name)}"
            yield from map(self._plain.line, journal.decode().splitlines())
        for loop in self._recording.loops:
            yield "===== loop record"
            yield from json.dumps(
                self._plain.value(json.loads(loop)), indent=1, ensure_ascii=False
            ).splitlines()

    def _stream(self, title: str, text: str) -> Iterator[str]:
        yield f"----- {title}"
        yield from map(self._plain.line, text.splitlines())
        if text and not text.endswith("\n"):
            yield "<no line break at the end>"

    def _request(self, server: str, request: Any) -> Iterator[str]:
        headers = {
            name: re.sub(r"/[\d.]+$", "/<version>", value)
            for name, value in request.headers.items()
            if name not in {"host", "content-length"}
        }
        shown = compact(headers)
        told = "headers as before" if self._headers.get(server) == shown else shown
        self._headers[server] = shown
        how = f": {request.method} {self._plain.text(request.path)} {told}"
        yield f"----- request to {server}{'' if self._recording.is_brief else how}"
        raw = (request.body or b"").decode()
        if not raw:
            return
        body = json.loads(raw)
        if compact(body) != raw:
            yield "<not compact>"
        body = json.loads(self._plain.text(raw))
        messages = body.get("messages")
        head = {key: one for key, one in body.items() if key != "messages"}
        if not self._shows_all:
            head = {key: _by_checksum(one) for key, one in head.items()}
        order = "" if messages is None or list(body)[-1] == "messages" else f"  <order {list(body)}>"
        if not self._recording.is_brief:
            yield compact(head) + order
        same = 0
        while same < min(len(self._said), len(messages or ())) and self._said[same] == messages[same]:
            same += 1
        if same:
            yield f"<messages 1 to {same} as before>"
        yield from map(compact, (messages or [])[same:])
        self._said = messages or []


def _by_checksum(value: Any) -> Any:
    """The value itself if it is short, otherwise its checksum."""
    text = value if isinstance(value, str) else compact(value)
    return value if len(text) < _LONG else f"<sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}>"


def compact(value: Any) -> str:
    """The value as JSON, as ralph writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w./=:<>{}-]+", word) else json.dumps(word, ensure_ascii=False)


def readable(lines: Sequence[str]) -> list[str]:
    """Splits each object into several lines, for a diff."""
    made: list[str] = []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            made.append(line)
        else:
            made += json.dumps(value, ensure_ascii=False, indent=1).splitlines()
    return made
