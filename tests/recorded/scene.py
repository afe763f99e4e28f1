"""The parts of a scene: some runs of ralph, one after the other, and the answers of the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - a dataclass shows its types
from dataclasses import dataclass, field
from typing import Any, Literal

from ralph.mock_api import Playable  # noqa: TC001 - a dataclass shows its types


@dataclass(frozen=True)
class Say:
    """The driver writes a line."""

    line: Mapping[str, Any] | str
    """The object to send. A string is sent as it is."""


@dataclass(frozen=True)
class Await:
    """The driver waits for the `nth` line that has these fields. Fields of `response` and `event` count too."""

    fields: Mapping[str, Any]
    nth: int = 1


@dataclass(frozen=True)
class AwaitRequest:
    """The driver waits until the scene's first server has received this number of requests."""

    count: int


@dataclass(frozen=True)
class AwaitFile:
    """The driver waits until a file exists. The path is relative to the working directory."""

    path: str


@dataclass(frozen=True)
class Send:
    """The driver sends a signal to ralph."""

    name: Literal["SIGINT", "SIGTERM", "SIGHUP"]


Action = Say | Await | AwaitRequest | AwaitFile | Send


@dataclass(frozen=True)
class Run:
    """One process: `ralph` with these words. `sh FILE` runs that file instead, and its output is not recorded."""

    words: Sequence[str]
    stdin: bytes | None = None
    """The standard input. None means /dev/null, or a pipe if there are actions."""
    actions: Sequence[Action] = ()
    """The driver's actions while the process runs. Afterwards the driver closes the standard input."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Environment variables to set. None removes a variable. Here and in the words, `{work}`, `{main}` and `{spare}` stand
    for the working directory and the addresses of the servers.
    """
    combined: bool = False
    """Whether standard error goes to the same file as standard output."""


@dataclass(frozen=True)
class Scene:
    name: str
    runs: Sequence[Run]
    answers: Sequence[Playable] = ()
    """The answers to the requests of all runs, in order."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files in the working directory, besides those of every scene. `../home/x` is in the home directory, and the
    content `-> x` makes a link.
    """
    spare: Sequence[Playable] = ()
    """The answers of a second server, which is used only if the settings name it as a target."""
    settings: str = ""
    """The user's settings file. `{main}` and `{spare}` stand for the addresses of the servers."""
    is_boxed: bool = False
    """Whether commands run in the sandbox of the machine, as they do by default. It takes as much CPU time as all else
    that a short run does, and hardly a scene shows it.
    """
    is_checkout: bool = False
    """Whether the working directory is a git checkout with one commit."""
    has_remote: bool = False
    """Whether the checkout has a remote beside it."""
    is_brief: bool = False
    """Whether only what people see is recorded: outputs, exit codes, messages for the model, iterations, files, the state
    of the checkout and its branches.
    """
    shows_all: bool = False
    """Whether system prompts and tool lists are recorded in full instead of by their checksums."""
