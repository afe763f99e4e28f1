"""Makes permission rules for tests, on a disk that exists only in memory."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from ralph.permissions.judge import Permissions, RulePlaces
from ralph.permissions.rule import Effect, parse_rule
from ralph.values.answer import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.permissions.gate import RuleVerdict

CWD, HOME = "/w/project", "/home/me"
FILES = (
    "/w/project/.env",
    "/w/project/secrets/key",
    "/w/project/src/main.py",
    "/w/project/tests/test_main.py",
)


class FakeDisk:
    """A disk with some files and symbolic links."""

    def __init__(
        self,
        links: Mapping[str, str] | None = None,
        files: Sequence[str] = FILES,
        *,
        has_too_many: bool = False,
        untracked: Sequence[str] = (),
    ) -> None:
        self._untracked = untracked
        self._links = links or {}
        self._files = files
        self._has_too_many = has_too_many

    def real(self, path: str) -> str:
        if "\0" in path:
            raise ValueError("embedded null byte")
        above, below = posixpath.normpath(path), ""
        while above not in self._links and above.strip("/"):
            above, _, name = above.rpartition("/")
            below = f"/{name}{below}"
        return self._links.get(above, above.rstrip("/")) + below or "/"

    def names_in(self, directory: str) -> list[str]:
        above = directory.rstrip("/") + "/"
        return [path[len(above) :].partition("/")[0] for path in self._files if path.startswith(above)]

    def may_be_tracked(self, path: str) -> bool:
        return path not in self._untracked

    def paths_below(self, directory: str) -> list[str] | None:
        if self._has_too_many:
            return None
        above = directory.rstrip("/") + "/"
        return [path for path in self._files if path.startswith(above)]


def permissions(
    deny: Sequence[str] = (),
    ask: Sequence[str] = (),
    allow: Sequence[str] | None = None,
    *,
    links: Mapping[str, str] | None = None,
    root: str = CWD,
    has_too_many: bool = False,
    added: Sequence[str] = (),
    files: Sequence[str] = FILES,
    untracked: Sequence[str] = (),
) -> Permissions:
    rules = [parse_rule(text, Effect.DENY, "the file", root) for text in deny]
    rules += [parse_rule(text, Effect.ASK, "the file", root) for text in ask]
    allowed = None if allow is None else [parse_rule(text, Effect.ALLOW, "the option") for text in allow]
    disk = FakeDisk(links, files, has_too_many=has_too_many, untracked=untracked)
    return Permissions(rules, allowed, RulePlaces(CWD, HOME, disk, added))


def verdict(judge: Permissions, tool: str, **arguments: object) -> RuleVerdict:
    return judge.judge(ToolCall("id", tool, arguments))


def denies(judge: Permissions, tool: str, **arguments: object) -> bool:
    return verdict(judge, tool, **arguments).denied is not None
