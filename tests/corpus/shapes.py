"""Reads the shapes of the corpus, runs ralph on them, and judges what happened.

A shape is a table of a TOML file in this folder. It has files, a command line and what a model calls, in the words of
this project; nobody's own text is copied. `<home>`, `<work>` and `<url>` in it stand for the two directories and for
the scripted server.
"""

from __future__ import annotations

import subprocess
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from ralph.mock_api import MockApi
from tests.git.repositories import Repository
from tests.processes.fork_server import start_ralph
from tests.program.conftest import Ralph, ralph_in, without_sandbox
from tests.program.model_answers import DONE, calls, results

if TYPE_CHECKING:
    from ralph.mock_api import RecordedRequest, Turn

FOLDER = Path(__file__).parent


class Verdict(StrEnum):
    WORKS = "works"
    REFUSED = "refused with the way out"
    NO_WAY_OUT = "refused without"
    DIFFERENT = "silently different"


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A call of the model, and what must come of it: an output, or a refusal that says why."""

    bash: str | None = None
    """The command of a call of Bash."""
    tool: str = "Bash"
    input: dict[str, Any] = {}
    gives: str = ""
    """A part of the result of a call that runs."""
    denied: str | None = None
    """A part of the result of a call that must not run."""
    fails: str | None = None
    """A part of the result of a call that runs and does not succeed, as the command `false`."""

    def verdict(self, result: str, *, is_error: bool) -> Verdict:
        if self.denied is not None:
            if not is_error:
                return Verdict.DIFFERENT
            return Verdict.REFUSED if self.denied in result else Verdict.NO_WAY_OUT
        if self.fails is not None:
            return Verdict.WORKS if is_error and self.fails in result else Verdict.DIFFERENT
        if is_error:
            return Verdict.NO_WAY_OUT
        return Verdict.WORKS if self.gives in result else Verdict.DIFFERENT


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """Files, a command line and calls of a model as somebody has them, and what must happen."""

    name: str
    arguments: tuple[str, ...]
    files: dict[str, str] = {}
    """The content of files, by their path below `home/` or `work/`. Those without an ending, and `.sh`, are programs."""
    later_files: dict[str, str] = {}
    """Files that are written after the commit of the checkout."""
    links: dict[str, str] = {}
    """The targets of symbolic links, by their path."""
    environment: dict[str, str] = {}
    without: tuple[str, ...] = ()
    """Variables that are not set."""
    stdin: str | None = None
    is_checkout: bool = False
    """Whether the directory is the top of a git checkout, with all files in one commit."""
    needs_sandbox: bool = False
    calls: tuple[Call, ...] = ()
    """The calls in the model's first answer. Its second one ends the task."""
    code: int = 0
    refused: str | None = None
    """The way out, where nothing may be sent: a part of the last line on standard error."""
    says: tuple[str, ...] = ()
    """Parts of standard error."""
    says_not: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    """Parts of what the model is told before it answers for the first time."""
    sends_not: tuple[str, ...] = ()
    prints: str = ""
    """A part of standard output."""
    requests: int | None = None
    """How many requests are sent, where it matters."""
    leaves: dict[str, str] = {}
    """Parts of files that are there afterwards. `""` is any content, and `"-"` that there is no such file."""


class Happened(Struct, frozen=True):
    code: int
    stdout: str
    stderr: str
    requests: int
    told: str
    """The text of the first request."""
    results: tuple[tuple[str, bool], ...]
    """The result of each call, and whether it is an error."""
    left: dict[str, str]
    """The files that the shape names, as they were afterwards."""

    def missing(self, shape: Shape) -> list[str]:
        """Names each thing beyond the exit code that the shape asks for and that did not happen."""
        lacks = [f"says {part!r}" for part in shape.says if part not in self.stderr]
        lacks += [f"does not say {part!r}" for part in shape.says_not if part in self.stderr]
        lacks += [f"sends {part!r}" for part in shape.sends if part not in self.told]
        lacks += [f"does not send {part!r}" for part in shape.sends_not if part in self.told]
        if shape.prints not in self.stdout:
            lacks.append(f"prints {shape.prints!r}")
        if shape.requests not in {None, self.requests}:
            lacks.append(f"sends {shape.requests} requests and not {self.requests}")
        for path, part in shape.leaves.items():
            found = self.left.get(path)
            if (found is not None) if part == "-" else (found is None or part not in found):
                lacks.append(f"leaves {path} with {part!r} and not {found!r}")
        return lacks


def end_verdict(shape: Shape, happened: Happened) -> Verdict:
    """Judges the run as a whole."""
    if shape.refused is not None:
        if happened.code == 0 or happened.requests:
            return Verdict.DIFFERENT
        is_told = happened.code == shape.code and shape.refused in happened.stderr
        return Verdict.REFUSED if is_told and not happened.missing(shape) else Verdict.NO_WAY_OUT
    if happened.code != shape.code:
        return Verdict.NO_WAY_OUT
    return Verdict.DIFFERENT if happened.missing(shape) else Verdict.WORKS


def judged(shape: Shape, happened: Happened) -> list[tuple[Verdict, str]]:
    """A verdict on the run, then one on each call, each with what there is to see."""
    end = end_verdict(shape, happened)
    seen = f"exit {happened.code}, {happened.requests} requests, lacks {happened.missing(shape)}: {happened.stderr[-1500:]}"
    all_judged = [(end, seen)]
    for index, call in enumerate(shape.calls):
        if index >= len(happened.results):
            all_judged.append((Verdict.NO_WAY_OUT, f"{call}: no result"))
            continue
        result, is_error = happened.results[index]
        all_judged.append((call.verdict(result, is_error=is_error), f"{call}: {result[:600]}"))
    return all_judged


def load(kind: str) -> list[Shape]:
    """The shapes of one file."""
    document = msgspec.toml.decode((FOLDER / f"{kind}.toml").read_bytes(), type=dict[str, list[Shape]])
    return document["shape"]


def kinds() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def try_out(shape: Shape, directory: Path) -> Happened:
    """Makes the shape's files below the directory, and runs ralph there against a scripted server."""
    directory.mkdir()
    ralph = ralph_in(directory)
    asked: list[tuple[str, dict[str, Any]]] = []
    with MockApi(script=lambda request, _index: _answer(asked, request)) as server:
        places = _Places(directory, ralph, server.base_url)
        for call in shape.calls:
            fields = {"command": call.bash} if call.bash is not None else call.input
            asked.append(
                (call.tool, msgspec.json.decode(places.put_into(msgspec.json.encode(fields).decode())))
            )
        _make(shape, places)
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        ralph.environment |= {name: places.put_into(value) for name, value in shape.environment.items()}
        for name in shape.without:
            del ralph.environment[name]
        words = [places.put_into(word) for word in shape.arguments]
        process = start_ralph(  # as typed: other tests make a lone word a prompt
            words if shape.needs_sandbox else without_sandbox(words),
            ralph.cwd,
            ralph.environment,
            stdin=subprocess.DEVNULL if shape.stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        ran = ralph.finish(process, None if shape.stdin is None else shape.stdin.encode())
        return Happened(
            ran.code,
            ran.stdout,
            places.take_out(ran.stderr),
            server.request_count,
            "".join(map(_told, server.requests[:1])),
            tuple(one for nth in range(1, len(server.requests)) for one in results(server, nth)),
            {name: (directory / name).read_text() for name in shape.leaves if (directory / name).exists()},
        )


class _Places:
    """The directories and the server for which a shape has names."""

    def __init__(self, directory: Path, ralph: Ralph, base_url: str) -> None:
        self.directory = directory
        self.work = ralph.cwd
        self.home = Path(ralph.environment["HOME"])
        self._named = {"<home>": str(self.home), "<work>": str(self.work), "<url>": base_url}

    def put_into(self, text: str) -> str:
        for name, place in self._named.items():
            text = text.replace(name, place)
        return text

    def take_out(self, text: str) -> str:
        for name, place in self._named.items():
            text = text.replace(place, name)
        return text

    def write(self, name: str, content: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.put_into(content).encode())
        if path.suffix in {"", ".sh"}:
            path.chmod(0o755)


def _make(shape: Shape, places: _Places) -> None:
    if shape.is_checkout:
        places.work.rmdir()
        repository = Repository.empty(places.work, places.home)
    for name, content in shape.files.items():
        places.write(name, content)
    for name, target in shape.links.items():
        (places.directory / name).symlink_to(places.put_into(target))
    if shape.is_checkout:
        repository.commit_all()
    for name, content in shape.later_files.items():
        places.write(name, content)


def _answer(asked: list[tuple[str, dict[str, Any]]], request: RecordedRequest) -> Turn:
    is_first = all(one["role"] == "user" for one in request.json()["messages"])
    return calls(*asked) if is_first and asked else DONE


def _told(request: RecordedRequest) -> str:
    """The model, the system prompt and the prompt."""
    body = request.json()
    texts = [body["model"], *(block["text"] for block in body["system"])]
    content = body["messages"][0]["content"]
    texts += [content] if isinstance(content, str) else [block.get("text", "") for block in content]
    return "\n".join(texts)
