"""An outage of one vendor in the middle of a session, which another vendor's model bridges: who answers which turn, and how the first one
is away. The conversation in a request decides, so that a resumed session meets the same outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ralph.mock_api import ErrorEvent, Fault, Step
from ralph.mock_api.plan import CHAT, RESPONSES

if TYPE_CHECKING:
    from random import Random

    from ralph.mock_api import RecordedRequest
    from tests.nemesis.task import Task

_SETTINGS = """\
[retry]
policy = "custom"
base_delay_s = {cooldown_s}
max_delay_s = {cooldown_s}

[[targets]]
name = "first"
model = "sonnet"
base_url = "{first}"

[[targets]]
name = "second"
api = "{api}"
model = "{model}"
base_url = "{second}/v1"
api_key_env = "SECOND_KEY"
"""
COOLDOWN_S = 0.05
SECOND_MODEL = "gpt-5.5"
_AWAY = (
    Fault(status=529),
    Fault(status=503),
    Fault(status=429),
    Fault(reset_before_headers=True),
    Fault(error_event=ErrorEvent(after_events=3)),
    Fault(cut_after_events=5, framing="close"),
)


@dataclass(frozen=True)
class Outage:
    """The first vendor is away for the turns `begins` to `ends`, the latter not included."""

    begins: int
    ends: int
    away: Fault
    api: str
    """The dialect of the second vendor."""

    def settings(self, first: str, second: str) -> str:
        """The settings file. Takes the base URLs of the vendors."""
        return _SETTINGS.format(
            first=first, second=second, api=self.api, model=SECOND_MODEL, cooldown_s=COOLDOWN_S
        )

    def first_vendor(self, task: Task, request: RecordedRequest) -> Step:
        step = task.step(request, 0)
        if not self.begins <= task.turn_of(request) < self.ends:
            return step
        return Step(None if self.away.replaces_answer() else step.turn, self.away)

    def second_vendor(self, task: Task, request: RecordedRequest) -> Step:
        """The second vendor takes its time for the last turn of the outage, so that the first one's cooldown is over."""
        step = task.step(request, 0)
        is_last = task.turn_of(request) == self.ends - 1
        return Step(step.turn, Fault(stall_before_headers_s=3 * COOLDOWN_S)) if is_last else step


def draw_outage(draw: Random, turns: int) -> Outage:
    """An outage that begins behind the first turn and ends before the last one."""
    begins = draw.randrange(1, turns - 2)
    ends = draw.randrange(begins + 1, turns)
    return Outage(begins, ends, draw.choice(_AWAY), draw.choice((CHAT.api, RESPONSES.api)))
