"""The sinks that show how a run progresses: the log and the live file of a loop's iteration, and the line on a terminal. A run
without a loop and a terminal imports none of it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ralph import __version__
from ralph.output.iteration_log import IterationLog, LiveFile, LiveIteration, LogFiles
from ralph.output.status_line import LiveRun, StatusLine
from ralph.values.events import Event, Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from ralph.output.writer import Writer
    from ralph.settings.handover import LoopHandover
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock


def progress_sinks(  # noqa: PLR0917 - they are what `assemble` has made
    of_loop: LoopHandover | None,
    settings: Settings,
    clock: Clock,
    writer: Writer,
    redact: Callable[[str], str],
    wake: Callable[[], None],
    emit: Callable[[Event], None],
    *,
    new_id: str,
    has_line: bool,
) -> tuple[IterationLog | None, list[LiveFile | StatusLine]]:
    """The log of the loop that started the run, and what shows the present state: the file that says what its iteration does now,
    and with `has_line` the line on the terminal.
    """
    log, drawn = None, list[LiveFile | StatusLine]()
    if of_loop is not None:
        now_s, limits = clock.utc_now().timestamp(), settings.limits
        first = LiveIteration(
            *(os.getpid(), of_loop.number, new_id, now_s, LiveRun(now_s)),
            max_turns=limits.max_turns,
            max_budget_usd=limits.max_budget_usd,
            max_time_s=limits.max_time_s,
        )
        log_files = LogFiles(of_loop.folder, redact, lambda text: emit(Notice(text)))
        log = IterationLog(log_files, clock, of_loop.number, new_id, ralph_version=__version__)
        drawn.append(LiveFile(of_loop.folder, first, clock, redact))
    if has_line:
        drawn.append(StatusLine(writer, clock, redact, wake=wake, is_iteration=of_loop is not None))
    return log, drawn
