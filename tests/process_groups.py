"""What tests see of the control groups that ralph makes for its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from ralph.machine.process_limit import NoLimitError, ProcessLimit


def _why_none() -> str | None:
    """Asked of ralph itself: a test without a group has nothing to look at."""
    try:
        limit = ProcessLimit.made(25)
    except NoLimitError as why:
        return str(why)
    limit.close()
    return None


_WHY = _why_none()
needs_group = pytest.mark.skipif(_WHY is not None, reason=f"no limit on processes can be set here: {_WHY}")


def groups_of(pid: int) -> list[Path]:
    """Those that the ralph of this pid, which shares its group with this process, has made and not removed."""
    limit = ProcessLimit.made(25)
    place = Path(limit.entrance).parent.parent
    limit.close()
    return list(place.glob(f"ralph-commands-{pid}-*"))
