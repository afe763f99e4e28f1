"""The end of a run, as an event."""

from __future__ import annotations

from typing import Any

from ralph.values.events import RunEnded
from ralph.values.outcome import Outcome
from ralph.values.usage import RunUsage


def ended(outcome: Outcome = Outcome.COMPLETED, **fields: Any) -> RunEnded:
    values: dict[str, Any] = {
        "outcome": outcome,
        "exit_code": outcome.exit_code(),
        "result": None,
        "errors": (),
        "stop_reason": "end_turn",
        "num_turns": 1,
        "duration_s": 1.25,
        "api_s": 1.0,
        "usage": RunUsage(),
        **fields,
    }
    return RunEnded(**values)
