"""Durations and costs as short texts for people."""

from __future__ import annotations

TENTHS_BELOW_S, MINUTE_S, HOUR_S = 9.95, 60, 3600


def time_text(seconds: float) -> str:
    """A duration as text, such as `4.2s`, `42s`, `3m12s` or `2h05m`."""
    if seconds < TENTHS_BELOW_S:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole}s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m{whole % MINUTE_S:02d}s"
    return f"{whole // HOUR_S}h{whole % HOUR_S // MINUTE_S:02d}m"


def money_text(cost_usd: float | None) -> str:
    """The cost in dollars as text. An amount between 0 and 1 dollar has four decimal places. An unknown cost is shown
    as `$?`.
    """
    if cost_usd is None:
        return "$?"
    return f"${cost_usd:.2f}" if cost_usd >= 1 or not cost_usd else f"${cost_usd:.4f}"
