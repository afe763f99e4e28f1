"""What a scene is made of: some runs of ralph, one after the other, and what a server answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - a dataclass shows its types
from dataclasses import dataclass, field
from typing import Any, Literal

from ralph.mock_api import Playable  # noqa: TC001 - as above


@dataclass(frozen=True)
class Say:
    """A line that a driver writes."""

    line: Mapping[str, Any] | str
    """A string is sent as it is."""


@dataclass(frozen=True)
class Await:
    """A line that a driver waits for: the `nth` that has these fields, those of `response` and `event` included."""

    fields: Mapping[str, Any]
    nth: int = 1


@dataclass(frozen=True)
class AwaitRequest:
    """Wait until the scene's first server has had so many requests."""

    count: int


@dataclass(frozen=True)
class AwaitFile:
    """Wait until a file is there, named from the working directory."""

    path: str


@dataclass(frozen=True)
class Send:
    """A signal."""

    name: Literal["SIGINT", "SIGTERM", "SIGHUP"]


Action = Say | Await | AwaitRequest | AwaitFile | Send


@dataclass(frozen=True)
class Run:
    """One process: `ralph` with these words. `sh FILE` runs that file instead, and nothing of it is kept."""

    words: Sequence[str]
    stdin: bytes | None = None
    """None: /dev/null, or a pipe where there are actions."""
    actions: Sequence[Action] = ()
    """Done while it runs; then its standard input is closed."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """None: the variable is taken out."""
    combined: bool = False
    """Standard error goes where standard output goes."""


@dataclass(frozen=True)
class Scene:
    name: str
    runs: Sequence[Run]
    answers: Sequence[Playable] = ()
    """Of all runs, in order."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """In the working directory, beside those of every scene. `../home/x` is in the home directory; `-> x` makes a link."""
    spare: Sequence[Playable] = ()
    """Of a second server, which only a target of the settings names."""
    settings: str = ""
    """The user's file. `{main}` and `{spare}` as above."""
    is_checkout: bool = False
    """The working directory is a git checkout with one commit."""
    shows_all: bool = False
    """System prompts and tool lists are kept whole, elsewhere by their checksum."""
