"""Ends the threads of spools after each test. A spool's thread has no other end than the process, and each look for the
children of a process with many threads reads a file for each of them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine.starting import start_thread
from ralph.output import writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _EndedError(Exception):
    """The test of this thread is over."""


class _End:
    """An item of a spool's queue that ends its thread."""

    def put(self, _done: object) -> None:
        raise _EndedError


@pytest.fixture(autouse=True)
def _spools_end(monkeypatch) -> Iterator[None]:
    works: list[Any] = []

    def start(work: Callable[[], None], **options: Any) -> None:
        def until_end() -> None:
            with suppress(_EndedError):
                work()

        start_thread(until_end, **options)
        works.append(work)

    monkeypatch.setattr(writer, "start_thread", start)
    yield
    for work in works:
        work.__self__._queue.put(_End())
