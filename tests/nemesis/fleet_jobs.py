"""The jobs of the campaign against the fleet, and the answers of their model. Each job adds one line to a file, so that
a job that was done twice, or half, can be seen in its branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Fault, Step, Text, ToolUse, Turn
from tests.nemesis.fleet_cluster import LINES_FILE, job_of, prompt_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ralph.mock_api import RecordedRequest

TURNS = 3
COUNT_FILE = "count.txt"
"""The file to which the second turn writes the number of lines."""


def names_for(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number:04}" for number in range(1, count + 1)]


def commits_itself(name: str) -> bool:
    return number_of(name) % 3 == 0


def number_of(name: str) -> int:
    return int(name[-4:])


def jobs_for(repository: Path, kind: str, count: int) -> list[dict[str, Any]]:
    """The jobs, each of three turns. Every third commits its line itself, and every tenth is a loop. Every fifth has the
    sandbox that users have; the others have none, which takes less CPU time.
    """
    found = []
    for name in names_for(kind, count):
        number = number_of(name)
        job: dict[str, Any] = {"id": name, "repository": str(repository), "prompt": prompt_for(name)}
        if number % 5:
            job["sandbox"] = "off"
        if number % 10 == 0:
            job["until"] = f"grep -qx {name} {LINES_FILE} && test -s {COUNT_FILE}"
        found.append(job)
    return found


@dataclass(frozen=True)
class Answers:
    """The model. The messages of a request decide the answer, so a session that was moved continues as if nothing had
    happened.
    """

    pause_s: float = 0.0
    """The seconds that each answer takes."""
    usage: Mapping[str, int] | None = None

    def __call__(self, request: RecordedRequest, _index: int) -> Step:
        job = job_of(request)
        pause = Fault(stall_after_events=2, stall_s=self.pause_s) if self.pause_s else None
        return Step(_turn(job, said_in(request), self.usage), pause)


def said_in(request: RecordedRequest) -> int:
    """The number of answers that a request contains."""
    return sum(message["role"] == "assistant" for message in request.json()["messages"])


def _turn(job: str, number: int, usage: Mapping[str, int] | None) -> Turn:
    if number >= TURNS - 1:
        return Turn(f"{job} is done.", id=f"msg_{job}_{number}", usage=usage)
    command = f"wc -l < {LINES_FILE} > {COUNT_FILE}" if number else f"echo {job} >> {LINES_FILE}"
    if number == 0 and commits_itself(job):
        command += f" && git add -A && git commit -qm 'Add {job}'"
    call = ToolUse("Bash", {"command": command}, id=f"toolu_{job}_{number}")
    return Turn([Text(f"Turn {number}."), call], id=f"msg_{job}_{number}", usage=usage)


ENDLESS = "sleep 997"


def endless(request: RecordedRequest, _index: int) -> Step:
    """The model of jobs that never end: of the odd ones in a command, of the even ones in an answer."""
    job = job_of(request)
    if number_of(job) % 2:
        call = ToolUse("Bash", {"command": f"setsid {ENDLESS} & {ENDLESS}"}, id=f"toolu_{job}")
        return Step(Turn([call], id=f"msg_{job}"))
    return Step(Turn("Wait.", id=f"msg_{job}"), Fault(stall_after_events=2, stall_s=997))
