"""Turns what a `ralph run` process left behind into an `IterationResult`.

The exit code is the process's own and decides the outcome. The result object adds words and numbers, and is
refused whole where it does not speak of that very end.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, convert

from ralph.loop.values import IterationResult
from ralph.machine.regular_file import read_regular_file
from ralph.output.result_object import limit_named
from ralph.values.outcome import Outcome
from ralph.values.shortage import shortage_of
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from pathlib import Path

# An answer has some 100 KB.
_MOST_BYTES = 64 * 1024 * 1024
_BY_EXIT_CODE = {each.exit_code(): each for each in Outcome if each is not Outcome.INTERRUPTED}


Amount = Annotated[float, Meta(ge=0)]


class WrittenReport(Struct, frozen=True):
    summary: str = ""


class WrittenResult(Struct, frozen=True, kw_only=True):
    """The fields of a result object that a loop goes by. `output/result_object.py` writes them."""

    exit_code: int
    subtype: str | None = None
    result: str | None = None
    final_report: WrittenReport | None = None
    errors: tuple[str, ...] = ()
    session_num_turns: Annotated[int, Meta(ge=0)] = 0
    session_cost_usd: Amount | None = None
    retry_after_s: Amount | None = None


class NoResultError(Exception):
    """A sentence: why there is no result to be believed."""


def outcome_of(exit_code: int) -> Outcome | None:
    """The outcome of an exit code; None: `ralph run` has no such code."""
    if exit_code - 128 in signal.valid_signals():
        return Outcome.INTERRUPTED
    return _BY_EXIT_CODE.get(exit_code)


def result_written(path: Path, exit_code: int) -> IterationResult:
    """The result in this file. Raises NoResultError, and ShortageError where it cannot be read just now."""
    written = _read_result(path)
    if written.exit_code != exit_code:
        raise NoResultError(f"its result speaks of exit code {written.exit_code}: not believed")
    report = written.final_report
    return IterationResult(
        exit_code,
        outcome_of(exit_code) or Outcome.INTERNAL_ERROR,
        turns=written.session_num_turns,
        cost_usd=written.session_cost_usd,
        last_words=written.result or (report.summary if report is not None else ""),
        reason="; ".join(filter(None, written.errors)),
        limit=limit_named(written.subtype),
        retry_after_s=written.retry_after_s,
    )


def _read_result(path: Path) -> WrittenResult:
    try:
        return convert(strict_json(read_regular_file(path, _MOST_BYTES).decode()), WrittenResult)
    except FileNotFoundError:
        raise NoResultError("it left no result") from None
    except OSError as error:
        shortage = shortage_of(error)
        if shortage is not None:
            raise shortage from None
        raise NoResultError(f"its result cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise NoResultError(f"its result is damaged: {error}") from error
