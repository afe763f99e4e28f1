"""Finds the control groups that ralph makes to limit the processes of its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from ralph.machine.process_limit import NoLimitError, ProcessLimit


def _why_none() -> str | None:
    """Why ralph cannot make a control group on this machine, or None if it can."""
    try:
        limit = ProcessLimit.made(25)
    except NoLimitError as why:
        return str(why)
    limit.close()
    return None


_WHY = _why_none()
needs_group = pytest.mark.skipif(_WHY is not None, reason=f"no limit on processes can be set here: {_WHY}")


def groups_of(pid: int) -> list[Path]:
    """The control groups that the ralph process with this pid has made and not removed. That process must be in the
    same control group as this one.
    """
    limit = ProcessLimit.made(25)
    place = Path(limit.entrance).parent.parent
    limit.close()
    return list(place.glob(f"ralph-commands-{pid}-*"))
