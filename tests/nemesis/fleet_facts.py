"""Checks what must hold for a fleet after all its jobs have ended. Each function yields one sentence for each
violation.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.fleet.job_process import unpack_state
from tests.nemesis.fleet_cluster import BRANCH, FIRST_LINE, LINES_FILE
from tests.nemesis.fleet_jobs import COUNT_FILE, commits_itself, names_for
from tests.nemesis.journal_text import Line, readable_lines, unanswered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nemesis.fleet_cluster import FleetCluster

_MOST_STATE_BYTES = 1 << 30


def delivered(cluster: FleetCluster, kind: str, count: int) -> Iterator[str]:
    """All jobs have ended with 0, each branch has its line exactly once, and nothing is left anywhere."""
    names = names_for(kind, count)
    yield from _ended(cluster, names)
    yield from _branches(cluster, names)
    yield from _told(cluster)
    yield from _final_journals(cluster)
    yield from left_behind(cluster)


def _ended(cluster: FleetCluster, names: list[str]) -> Iterator[str]:
    rows = cluster.rows("SELECT id, state, exit_code, reason, generation FROM ralph_fleet.jobs ORDER BY id")
    if [row[0] for row in rows] != names:
        yield f"the store has {len(rows)} jobs instead of {len(names)}"
    for name, state, code, reason, generation in rows:
        if (state, code) != ("done", 0):
            yield f"{name} is {state} with {code} after {generation} claims: {reason}"


def _branches(cluster: FleetCluster, names: list[str]) -> Iterator[str]:
    """Each job's branch has the first line and the job's own line, once."""
    found = set(cluster.git("for-each-ref", "--format=%(refname)").split())
    expected = {f"refs/heads/{BRANCH}", *(f"refs/heads/ralph/{name}" for name in names)}
    # A worker that is killed between the end of a job and the removal of its checkpoint leaves that.
    yield from (
        f"nobody asked for {ref}" for ref in sorted(found - expected) if not ref.startswith("refs/ralph/")
    )
    for name in names:
        if f"refs/heads/ralph/{name}" not in found:
            yield f"{name} has no branch"
            continue
        lines = cluster.git("show", f"ralph/{name}:{LINES_FILE}").splitlines()
        if lines != [FIRST_LINE, name]:
            yield f"the branch of {name} has the lines {lines}"
        base = cluster.git("merge-base", BRANCH, f"ralph/{name}").strip()
        commits = cluster.git("rev-list", "--count", f"{base}..ralph/{name}").strip()
        if commits != str(1 + commits_itself(name)):
            yield f"the branch of {name} has {commits} commits of its own"
        if (counted := cluster.git("show", f"ralph/{name}:{COUNT_FILE}").strip()) != "2":
            yield f"the branch of {name} counts {counted} lines"


def _told(cluster: FleetCluster) -> Iterator[str]:
    """No model was told that a command had failed: a session continues where files and journal agree."""
    for job, requests in cluster.requests_of().items():
        results = [
            block
            for request in requests
            for message in request.json()["messages"]
            if message["role"] == "user" and not isinstance(message["content"], str)
            for block in message["content"]
            if block["type"] == "tool_result" and block.get("is_error")
        ]
        if results:
            yield f"{job} was told of a failed command: {str(results[0]['content'])[:300]}"


def _final_journals(cluster: FleetCluster) -> Iterator[str]:
    """Every journal that is still on a machine is valid, wherever a worker was killed."""
    for worker in cluster.workers:
        for path in worker.state.rglob("sessions/*/*.jsonl"):
            yield from (
                f"{path.relative_to(cluster.folder)}: {found}"
                for found in journal_faults(readable_lines(path.read_bytes()), is_whole=False)
            )


def journal_faults(lines: list[Line], *, is_whole: bool) -> Iterator[str]:
    """The faults of a session's records. A whole journal has a result for each call that was begun."""
    if [line["seq"] for line in lines] != list(range(len(lines))):
        yield "the numbers of the records have a gap or come twice"
    answers = Counter(line["message"]["id"] for line in lines if line["kind"] == "assistant")
    results = Counter(line["tool_use_id"] for line in lines if line["kind"] == "tool_result")
    intents = Counter(line["id"] for line in lines if line["kind"] == "tool_intent")
    for kind, counts in (("answer", answers), ("result", results), ("intent", intents)):
        yield from (
            f"the {kind} of {name} is recorded {count} times" for name, count in counts.items() if count > 1
        )
    if is_whole:
        yield from (f"{call} has no result" for call in sorted(unanswered(lines) & intents.keys()))
        yield from (
            f"{line['tool_use_id']} failed: {str(line['content'])[:200]}"
            for line in lines
            if line["kind"] == "tool_result" and line.get("is_error")
        )


def left_behind(cluster: FleetCluster) -> Iterator[str]:
    """Nothing of the jobs is left: no process, no lock, no workflow and no reservation."""
    yield from (f"process {pid} is left: {words}" for pid, words in cluster.processes().items())
    for statement, what in _MUST_BE_EMPTY.items():
        yield from (f"{what}: {row}" for row in cluster.rows(statement))
    for worker in cluster.workers:
        for folder in worker.state.glob("fleet/work/*"):
            yield f"{folder.relative_to(cluster.folder)} is left"


_MUST_BE_EMPTY = {
    "SELECT pid, objid FROM pg_locks WHERE locktype = 'advisory' "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())": "a lock is held",
    "SELECT workflow_uuid, status FROM dbos.workflow_status "
    "WHERE status NOT IN ('SUCCESS', 'ERROR', 'CANCELLED')": "the engine has a workflow that has not ended",
    "SELECT workflow_uuid, left(error, 200) FROM dbos.workflow_status "
    "WHERE status = 'ERROR'": "the engine has a workflow that failed",
    "SELECT id, holder, reserved_usd FROM ralph_fleet.jobs "
    "WHERE ended_at IS NULL OR holder IS NOT NULL OR reserved_usd <> 0": "a job's row is not closed",
    "SELECT a.job, a.generation FROM ralph_fleet.attempts a "
    "WHERE ended_at IS NULL": "an attempt's row is not closed",
    "SELECT job, ref FROM ralph_fleet.checkpoints c JOIN ralph_fleet.jobs j "
    "ON (j.set_name, j.id) = (c.set_name, c.job) "
    "WHERE j.ended_at IS NULL OR j.exit_code IN (0, 1, 2, 4)": "a checkpoint that nobody needs is in the store",
}


@dataclass
class Pushes:
    """The pushes, by the reference log of the bare repository. Call `look` again and again, because the log of a
    reference is removed with it.
    """

    cluster: FleetCluster
    found: set[tuple[str, str, str, str, int]] = field(default_factory=set)
    """Reference, old and new commit, who pushed, and the second."""

    def look(self) -> None:
        top = self.cluster.repository / "logs"
        for path in (path for path in top.glob("refs/**/*") if path.is_file()):
            try:
                text = path.read_text()
            except OSError:  # removed meanwhile
                continue
            for line in text.splitlines():
                match = re.fullmatch(
                    r"(?P<old>\w{40}) (?P<new>\w{40}) (?P<who>\S+) <.*> (?P<at>\d+) .*", line
                )
                if match:
                    ref = str(path.relative_to(top))
                    self.found.add((ref, match["old"], match["new"], match["who"], int(match["at"])))


@dataclass
class Checkpoints:
    """The checkpoints that were stored, each judged once. Call `look` again and again, because a checkpoint replaces the
    one before and the end of the job removes it.
    """

    cluster: FleetCluster
    judged: set[tuple[str, float]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def look(self) -> None:
        rows = self.cluster.rows(
            "SELECT c.job, c.made_at, c.ref, c.state FROM ralph_fleet.checkpoints c "
            "WHERE NOT (c.job || c.made_at = ANY(%s))",
            [f"{job}{made_at!r}" for job, made_at in self.judged],
        )
        for job, made_at, ref, state in rows:
            if (job, made_at) in self.judged:
                continue
            self.judged.add((job, made_at))
            with tempfile.TemporaryDirectory() as folder:
                unpack_state(bytes(state), Path(folder) / "state", _MOST_STATE_BYTES)
                for path in Path(folder).rglob("sessions/*/*.jsonl"):
                    lines = readable_lines(path.read_bytes())
                    self.faults += [
                        f"a checkpoint of {job} at {ref}: {fault}"
                        for fault in journal_faults(lines, is_whole=True)
                    ]
