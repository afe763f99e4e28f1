"""A list of search results with limits on entries and bytes. Its text includes notes on results that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ralph.tools.files.path_guard import HiddenPlaces
    from ralph.tools.search.file_search import Search

MOST_ENTRIES = 1000
_MOST_NAMED = 5


class FoundList:
    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.entries: list[str] = []
        self.is_full = False
        self.stopped_in: list[str] = []
        self._bytes = 0

    def add(self, entry: str) -> bool:
        """Adds an entry and returns True. Returns False if the list is full, so that the search can stop."""
        size = len(entry.encode("utf-8", "replace")) + 1
        if len(self.entries) >= self.max_entries or self._bytes + size > self.max_bytes:
            self.is_full = True
            return False
        self.entries.append(entry)
        self._bytes += size
        return True

    def text(self, nothing: str, search: Search, hidden: HiddenPlaces) -> str:
        notes = []
        if self.is_full:
            notes.append(
                f"[only the first {len(self.entries):,} are shown; narrow the pattern or the path to see more]"
            )
        if search.is_cut_short:
            notes.append(search.why_stopped)
        if search.skipped:
            notes.append(f"[{search.skipped:,} could not be read and were skipped]")
        for says, paths in (
            ("searched only up to a NUL byte", self.stopped_in),
            ("left out, as they must not be read", hidden.those_there),
        ):
            if paths:
                more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
                notes.append(f"[{says}: {', '.join(paths[:_MOST_NAMED])}{more}]")
        return "\n".join([*(self.entries or [nothing]), *notes])
