"""Runs the server of `ralph demo --scenario loop`, and stops it for a while.

The number of failed runs decides when the server stops and starts. This number is read from the loop's record,
because the server cannot count attempts to connect while its port is closed.
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
"""The start of the outage: the number of an iteration, and a number of answers. After that many answers in the
iteration, the API is overloaded."""
_GONE_AFTER = 1
"""The server stops when this number of runs in an iteration have ended with exit code 75."""
_BACK_AFTER = 2

# The seconds between two looks at the loop's record. A run takes ten times as long to start, so none comes in
# between.
_LOOKS_EVERY_S = 0.02


class LoopOutage:
    """A context manager that runs the demo's server. Inside the context the server runs, except during the outage.
    The attributes `ended_runs`, `waited_s` and `request_count` are complete when the context has ended.
    """

    def __init__(self, store: LoopStore, *, has_git: bool) -> None:
        self.ended_runs = 0
        self.waited_s = 0.0
        """The sum of the completed waits in seconds, as the loop has recorded them."""
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
        except RecordError:  # there is no record yet
            return None

    def _come_back(self) -> None:
        """Starts a new server at the same port."""
        with suppress(OSError):
            self._servers.append(MockApi(script=LoopScript(self._has_git), port=self.port).start())
