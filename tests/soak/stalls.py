"""Attempts that fail because nothing or too little arrives. One of ralph's clocks must end the wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.mock_api import Fault, Step
from tests.patience import within_s
from tests.soak.attempt import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.soak.answers import ModelAnswer

    Maker = Callable[[Random, ModelAnswer], Attempt]

CLOCKS_S = {"first_byte_s": within_s(2), "bytes_idle_s": within_s(2), "progress_idle_s": within_s(3)}
"""The limits in runs with stalls. They are long enough that a loaded machine alone does not reach them."""


def _silence_before_headers(draw: Random, answer: ModelAnswer) -> Attempt:
    step = Step(answer.turn, Fault(stall_before_headers_s=draw.choice((30.0, float("inf")))))
    return Attempt("stall", "headers", step, failure_kind="timeout", clock="first byte", ends_connection=True)


def _silence_inside(draw: Random, answer: ModelAnswer) -> Attempt:
    at = draw.randrange(len(answer.events))
    step = Step(answer.turn, Fault(stall_after_events=at, stall_s=draw.choice((30.0, None))))
    clock = "bytes idle" if at else "first byte"
    return Attempt(
        "stall",
        f"after {at} events",
        step,
        failure_kind="stream",
        clock=clock,
        message_id=answer.id_after(at),
        ends_connection=True,
    )


def _pings_only(draw: Random, answer: ModelAnswer) -> Attempt:
    at = draw.randrange(len(answer.events))
    step = Step(answer.turn, Fault(stall_after_events=at, ping_interval_s=0.2))
    return Attempt(
        "pings only",
        f"after {at} events",
        step,
        failure_kind="stream",
        clock="progress idle",
        message_id=answer.id_after(at),
        ends_connection=True,
    )


def _slow_drip(_draw: Random, answer: ModelAnswer) -> Attempt:
    """An answer so slow that its first event is not complete when the clock fires."""
    step = Step(answer.turn, Fault(drip_s=0.05))
    return Attempt("slow drip", "", step, failure_kind="stream", clock="progress idle", ends_connection=True)


STALLS: tuple[tuple[int, Maker], ...] = (
    (2, _silence_before_headers),
    (2, _silence_inside),
    (1, _pings_only),
    (1, _slow_drip),
)
"""The makers of stalls. Each takes as much time as a clock needs to fire (`CLOCKS_S`)."""
