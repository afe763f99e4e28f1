"""`ralph loop` from its options to its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.loop_options import LoopOptions


def loop_command(options: LoopOptions) -> int:
    raise NotImplementedError(options)


def loop_status(directory: Path) -> int:
    raise NotImplementedError(directory)
