"""Turns what a `ralph run` process left behind into an `IterationResult`.

The exit code is the process's own and decides the outcome. The result object adds words and numbers, and is
refused whole where it does not speak of that very end.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from ralph.loop.values import IterationResult
from ralph.machine.regular_file import read_regular_file
from ralph.output.result_object import limit_named
from ralph.values.outcome import Outcome
from ralph.values.shortage import shortage_of
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# An answer has some 100 KB.
_MOST_BYTES = 64 * 1024 * 1024
_BY_EXIT_CODE = {each.exit_code(): each for each in Outcome if each is not Outcome.INTERRUPTED}


class NoResultError(Exception):
    """A sentence: why there is no result to be believed."""


def outcome_of(exit_code: int) -> Outcome | None:
    """The outcome of an exit code; None: `ralph run` has no such code."""
    if exit_code - 128 in signal.valid_signals():
        return Outcome.INTERRUPTED
    return _BY_EXIT_CODE.get(exit_code)


def result_written(path: Path, exit_code: int) -> IterationResult:
    """Raises NoResultError, and a ShortageError where it cannot be read just now."""
    fields = _object_in(path)
    told = fields.get("exit_code")
    if told != exit_code:
        raise NoResultError(f"its result speaks of exit code {told!r}: not believed")
    report = fields.get("final_report")
    summary = report.get("summary") if isinstance(report, dict) else None
    return IterationResult(
        exit_code,
        outcome_of(exit_code) or Outcome.INTERNAL_ERROR,
        turns=int(_amount(fields, "session_num_turns") or 0),
        cost_usd=_amount(fields, "session_cost_usd"),
        last_words=_text(fields.get("result")) or _text(summary),
        reason=_joined(fields.get("errors")),
        limit=limit_named(fields.get("subtype")),
        retry_after_s=_amount(fields, "retry_after_s"),
    )


def _object_in(path: Path) -> Mapping[str, Any]:
    try:
        value = strict_json(read_regular_file(path, _MOST_BYTES).decode())
    except FileNotFoundError:
        raise NoResultError("it left no result") from None
    except OSError as error:
        shortage = shortage_of(error)
        if shortage is not None:
            raise shortage from None
        raise NoResultError(f"its result cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NoResultError(f"its result is damaged: {error}") from error
    if not isinstance(value, dict):
        raise NoResultError("its result is damaged: it is no object")
    return value


def _amount(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        return None
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _joined(errors: object) -> str:
    return "; ".join(filter(None, map(_text, errors))) if isinstance(errors, list) else ""
