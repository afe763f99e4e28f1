"""The API of `--scenario loop`: it is down for a while, timed by the outages in the loop's own record.

A client that finds a closed port is invisible to the server, so the loop's record counts those attempts.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from ralph.demo.loop_script import LoopScript
from ralph.loop.record import RecordError
from ralph.mock_api import MockApi

if TYPE_CHECKING:
    from types import TracebackType

    from ralph.loop.state import CurrentIteration
    from ralph.loop.store import LoopStore

BEGINS = (2, 1)
"""The iteration in which the API becomes overloaded, and the number of answers in that iteration before it does."""
_GONE_AFTER = 1
"""The number of iteration processes that end with exit code 75 before the server goes down."""
_BACK_AFTER = 2

# An iteration takes ten times as long to start: no request comes in between.
_LOOKS_EVERY_S = 0.02


class LoopOutage:
    """The demo's server. It is up from entry to exit, except during the outage. Read its counts after the exit."""

    def __init__(self, store: LoopStore, *, has_git: bool) -> None:
        self.ended_runs = 0
        self.waited_s = 0.0
        """Seconds of completed waits, as the loop has recorded them."""
        self._store = store
        self._has_git = has_git
        self._servers: list[MockApi] = []
        self._is_over = Event()
        self._watch = Thread(target=self._follow, name="demo-outage", daemon=True)

    def __enter__(self) -> Self:
        first = MockApi(script=LoopScript(self._has_git, BEGINS)).start()
        self._servers.append(first)
        self.port, self.base_url = first.port, first.base_url
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._watch.join()
        self._servers[-1].close()

    @property
    def request_count(self) -> int:
        return sum(server.request_count for server in self._servers)

    def _follow(self) -> None:
        is_gone = False
        while not self._is_over.wait(_LOOKS_EVERY_S):
            current = self._current()
            if current is None:
                continue
            self.ended_runs = max(self.ended_runs, current.outages)
            self.waited_s = max(self.waited_s, current.slept_s)
            if not is_gone and current.outages >= _GONE_AFTER:
                self._servers[0].close()
                is_gone = True
            elif len(self._servers) == 1 and current.outages >= _BACK_AFTER:
                self._come_back()

    def _current(self) -> CurrentIteration | None:
        try:
            return self._store.newest().load().current
        except RecordError:  # there is none yet
            return None

    def _come_back(self) -> None:
        """Listen again. If another program has taken the port, a later call tries again."""
        with suppress(OSError):
            self._servers.append(MockApi(script=LoopScript(self._has_git), port=self.port).start())
