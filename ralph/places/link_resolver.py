"""Resolves symbolic links one by one, and follows none that a command could have made."""

from __future__ import annotations

import os

from ralph.machine.repository import is_within_any

_MOST_LINKS = 40
"""The kernel follows no more (path_resolution(7))."""


class LinkResolver:
    """Resolves the links of absolute paths, which need not exist. Many paths in few directories are fast, because each
    directory is looked up only once.
    """

    def __init__(self, unfollowed: tuple[str, ...] = ()) -> None:
        """`unfollowed` are directories, without symbolic links, in which no link is followed: what lies there says nothing
        about other places.
        """
        self.unfollowed = unfollowed
        self._known: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        """The path without symbolic links. If the way leads into one of `unfollowed`, the result lies there, and may
        contain links.
        """
        return self._from("/", path)

    def outside(self, path: str) -> str | None:
        """The path without symbolic links. None if the way leads into one of `unfollowed`."""
        real = self(path)
        return None if is_within_any(real, self.unfollowed) else real

    def _from(self, directory: str, path: str, links: int = 0) -> str:
        real = "/" if path.startswith("/") else directory
        for name in path.split("/"):
            if name == "..":
                real = real if is_within_any(real, self.unfollowed) else os.path.dirname(real)  # noqa: PTH120 - strings throughout
            elif name not in ("", "."):
                real = self._entry(real, name, links)
        return real

    def _entry(self, directory: str, name: str, links: int) -> str:
        path = f"{directory.rstrip('/')}/{name}"
        if path not in self._known:
            self._known[path] = path  # a link that leads to itself ends here
            if links < _MOST_LINKS and not is_within_any(path, self.unfollowed):
                try:
                    self._known[path] = self._from(directory, os.readlink(path), links + 1)  # noqa: PTH115 - strings throughout
                except OSError:  # it is no link, or there is nothing
                    return path
        return self._known[path]
