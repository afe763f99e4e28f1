"""The scenarios of the campaign against a fleet: workers are killed and stopped, the store goes away, users submit at
once and cancel. Each scenario yields a sentence for each promise that was broken.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tests.nemesis.fleet_facts import Checkpoints, Pushes, delivered, left_behind
from tests.nemesis.fleet_jobs import ENDLESS, TURNS, Answers, endless, jobs_for, said_in
from tests.nemesis.fleet_room import FleetRoom, Worker, tree_of
from tests.patience import within_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from ralph.mock_api import Script
    from tests.services.postgres import PostgresServer

ATTEMPTS = ("--max-attempts", "1000")
WORK = ("--until-done",)
_CANCEL_S = 10.0
"""A cancelled job has no process after this time, as the specification promises."""


@dataclass(frozen=True)
class Size:
    jobs: int = 200
    every_s: float = 2.0
    """The seconds between two kills."""
    stopped_s: float = 45.0
    """How long a worker is stopped, and the store is away for that and a third."""


@dataclass(frozen=True)
class Stage:
    """All that a scenario needs."""

    room: FleetRoom
    postgres: PostgresServer
    size: Size
    draw: Random


@dataclass(frozen=True)
class Scenario:
    name: str
    play: Callable[[Stage], Iterator[str]]
    answers: Script


def _killed(stage: Stage) -> Iterator[str]:
    """SIGKILL of a random worker with its slots, of its supervisor alone or of one slot, again and again."""
    room, count = stage.room, stage.size.jobs
    limits = stage.draw.choice(([], ["--per-host", "100"], ["--concurrency", "100"]))
    room.submit("killed", jobs_for(room.repository, "killed", count), *ATTEMPTS, *limits)
    room.add_workers(3, 2, *WORK)
    kills: Counter[str] = Counter()
    seen = Checkpoints(room)
    last, changed_s, due_s = count, time.monotonic(), time.monotonic() + stage.size.every_s
    while (left := room.unfinished()) and time.monotonic() - changed_s < within_s(300):
        if left != last:
            last, changed_s = left, time.monotonic()
        room.status = f"{count - left} of {count} jobs, {kills.total()} kills, {len(seen.judged)} checkpoints"
        seen.look()
        yield from _restart(room)
        if time.monotonic() >= due_s:
            due_s += stage.size.every_s
            kills[_kill_one(stage)] += 1
        room.pause(0.1)
    if left:
        yield f"no job has ended for 300 s: {left} are left"
        return
    yield from seen.faults
    yield from room.wait_for_workers()
    room.fleet("wait", "killed", "--json")
    yield from delivered(room, "killed", count)
    starts = sum(worker.starts for worker in room.workers)
    room.status = f"{room.status}: {dict(kills)}, {starts} starts of workers, {_takeups(room)}"


def _kill_one(stage: Stage) -> str:
    worker = stage.draw.choice(stage.room.workers)
    what = stage.draw.choices(("worker", "supervisor", "slot"), weights=(4, 1, 5))[0]
    slots = worker.slot_pids
    if what == "slot" and not slots:
        what = "supervisor"
    chosen = {
        "worker": [worker.pid, *slots],
        "supervisor": [worker.pid],
        "slot": stage.draw.sample(slots, min(1, len(slots))),
    }[what]
    worker.signal(signal.SIGKILL, chosen)
    return what


def _restart(room: FleetRoom) -> Iterator[str]:
    """Starts the workers again that were killed. None may end by itself while there are jobs."""
    for worker in room.workers:
        if worker.has_ended():
            code = worker.exit_code
            if code != -signal.SIGKILL and not (code == 0 and not room.unfinished()):
                yield f"{worker.name} ended with {code}: {worker.told[-500:]}"
            if room.unfinished():
                worker.start(*WORK)


def _takeups(room: FleetRoom) -> str:
    [(takeups, most)] = room.rows("SELECT sum(generation), max(generation) FROM ralph_fleet.jobs")
    first = sum(not said_in(request) for request in room.api.requests)
    return f"{takeups} takeups, {most} of one job, {first} sessions begun, {room.api.request_count} requests"


def _stopped(stage: Stage, choose: Callable[[Worker, Stage], list[int]], count: int) -> Iterator[str]:
    """SIGSTOP for longer than the silence after which others take over, then SIGCONT."""
    room = stage.room
    room.submit("stopped", jobs_for(room.repository, "stopped", count), *ATTEMPTS)
    workers = room.add_workers(3, 2, *WORK)
    pushes = Pushes(room)
    room.wait(lambda: any(_saved(room, worker) for worker in workers), "no job has a checkpoint", 120)
    zombie = next(worker for worker in workers if _saved(room, worker))
    room.pause(stage.draw.uniform(0, 6))
    pids = choose(zombie, stage)
    zombie.signal(signal.SIGSTOP, pids)
    stopped = [(job, generation) for job, generation, pid in _running(room, zombie) if pid in pids]
    until_s = time.monotonic() + stage.size.stopped_s
    while time.monotonic() < until_s:
        pushes.look()
        room.status = f"{zombie.name} is stopped with {len(stopped)} jobs, {room.unfinished()} jobs are left"
        room.pause(0.1)
    taken = {
        job: float(started_at)
        for job, generation, started_at in room.rows(
            "SELECT job, generation, started_at FROM ralph_fleet.attempts"
        )
        if (job, generation - 1) in stopped
    }
    # A job that another slot of the same machine has taken over is pushed under the same name.
    elsewhere = taken.keys() - {job for job, _, _ in _running(room, zombie)}
    if not stopped or len(taken) != len(stopped):
        yield f"of the jobs {stopped} of a stopped worker, only {sorted(taken)} were taken over"
    zombie.signal(signal.SIGCONT, pids)
    while room.unfinished() or not all(worker.has_ended() for worker in workers):
        pushes.look()
        room.status = f"{zombie.name} has woken, {room.unfinished()} jobs are left"
        room.pause(0.1)
        if time.monotonic() > until_s + within_s(300):
            yield f"after 300 s, {room.unfinished()} jobs are left"
            break
    yield from room.wait_for_workers()
    yield from delivered(room, "stopped", count)
    # The clock of the reference log has whole seconds.
    yield from (
        f"{who} pushed {ref} {at - taken[job]:.0f} s after its job was taken over"
        for ref, _, _, who, at in sorted(pushes.found)
        for job in elsewhere
        if f"/{job}" in ref and who == zombie.name and at > taken[job] + 1
    )
    room.status = (
        f"{len(taken)} jobs were taken over, {len(elsewhere)} by other machines, {len(pushes.found)} pushes "
        f"seen, {_takeups(room)}"
    )


def _running(room: FleetRoom, worker: Worker) -> list[tuple[str, int, int]]:
    """The jobs that this worker's slots work on: id, generation, and the slot's process."""
    slots = set(worker.slot_pids)
    rows = room.rows("SELECT id, generation, holder FROM ralph_fleet.jobs WHERE holder IS NOT NULL")
    found = [(job, generation, int(holder.rsplit("-", 2)[1])) for job, generation, holder in rows]
    return [row for row in found if row[2] in slots]


def _saved(room: FleetRoom, worker: Worker) -> int:
    """How many jobs that this worker's slots work on have a checkpoint."""
    saved = {job for (job,) in room.rows("SELECT job FROM ralph_fleet.checkpoints")}
    return sum(job in saved for job, _, _ in _running(room, worker))


def _all_of_it(worker: Worker, _stage: Stage) -> list[int]:
    return tree_of(worker.pid)


def _one_slot(worker: Worker, stage: Stage) -> list[int]:
    return [stage.draw.choice([pid for _, _, pid in _running(stage.room, worker)])]


def _store_away(stage: Stage) -> Iterator[str]:
    """The store is stopped while eight jobs run, and started again."""
    room, count, away_s = stage.room, 8, stage.size.stopped_s * 4 / 3
    room.submit("away", jobs_for(room.repository, "away", count), *ATTEMPTS)
    room.add_workers(3, 3, *WORK)
    room.wait(lambda: len(room.requests_of()) == count, "not all jobs have sent a request")
    crash = stage.draw.choice((signal.SIGINT, signal.SIGQUIT))
    stage.postgres.stop(crash)
    before = room.api.request_count
    until_s = time.monotonic() + away_s
    while time.monotonic() < until_s:
        room.status = (
            f"the store is away ({crash.name}), {room.api.request_count - before} requests meanwhile"
        )
        room.pause(0.1)
    meanwhile = room.api.request_count - before
    stage.postgres.start()
    room.wait_for_jobs()
    yield from room.wait_for_workers()
    yield from delivered(room, "away", count)
    if not meanwhile:
        yield "no run has sent a request while the store was away"
    for job, requests in room.requests_of().items():
        if len(requests) != TURNS:
            yield f"{job} sent {len(requests)} requests instead of {TURNS}"
    for worker in room.workers:
        if "waiting for the store at 127.0.0.1:" not in worker.told:
            yield f"{worker.name} has not said what it waits for: {worker.told[-300:]!r}"
    room.status = f"{crash.name}, {meanwhile} requests while the store was away, {_takeups(room)}"


def _submitted_at_once(stage: Stage) -> Iterator[str]:
    """Users submit the same file at once, and two files that differ in one job."""
    room = stage.room
    for number in range(5):
        name = f"once-{number}"
        jobs = jobs_for(room.repository, name, 50)
        path = room.write_jobs(name, jobs)
        same = [room.start_fleet("submit", str(path)) for _ in range(3)]
        for process in same:
            _, err = process.communicate()
            if process.returncode:
                yield f"submitting {name} at once ended with {process.returncode}: {err.decode()[-300:]}"
        [(count,)] = room.rows("SELECT count(*) FROM ralph_fleet.jobs WHERE set_name = %s", name)
        if count != len(jobs):
            yield f"{name} has {count} jobs instead of {len(jobs)}"

        other = f"other-{number}"
        jobs = jobs_for(room.repository, other, 50)
        changed = stage.draw.randrange(len(jobs))
        paths = []
        for prompt in ("this", "that"):
            jobs[changed] |= {"prompt": prompt}
            paths.append(room.write_jobs(f"{other}-{prompt}", jobs))
        two = [room.start_fleet("submit", str(path), "--set", other) for path in paths]
        ends = [(process.communicate()[1].decode().strip()[-300:], process.returncode) for process in two]
        if sorted(code for _, code in ends) != [0, 2]:
            yield f"two files at once ended with {[code for _, code in ends]}: {ends}"
        [(count,)] = room.rows("SELECT count(*) FROM ralph_fleet.jobs WHERE set_name = %s", other)
        if count != len(jobs):
            yield f"{other} has {count} jobs instead of {len(jobs)}"
        # Two sets that would push to the same branch.
        third = [room.start_fleet("submit", str(paths[0]), "--set", f"{other}-{end}") for end in "ab"]
        codes = sorted(process.communicate() and process.returncode for process in third)
        if codes != [2, 2]:
            yield f"sets with the same branches as an open one were submitted: {codes}"
        room.status = f"{number + 1} rounds"


def _cancelled(stage: Stage) -> Iterator[str]:
    """Twenty jobs run on three workers, half of them in a command, and are cancelled."""
    room, count = stage.room, 20
    room.submit("cancelled", jobs_for(room.repository, "cancelled", count), *ATTEMPTS)
    room.add_workers(3, 8)
    room.wait(lambda: len(room.requests_of()) == count, "not all jobs have sent a request")
    room.wait(
        lambda: sum(words.startswith(ENDLESS) for words in room.run_processes().values()) >= count,
        "not all commands have begun",
    )
    began = len(room.run_processes())
    called_s = time.monotonic()
    room.fleet("cancel", "--all", "--set", "cancelled")
    while (left := room.run_processes()) and time.monotonic() - called_s < within_s(60):
        room.pause(0.05)
    took_s = time.monotonic() - called_s
    if took_s > within_s(_CANCEL_S):
        yield f"{took_s:.1f} s after the call, processes were left: {left}"
    room.wait(lambda: not room.unfinished(), "cancelled jobs have not ended")
    rows = room.rows("SELECT id, state FROM ralph_fleet.jobs WHERE state <> 'cancelled'")
    yield from (f"{job} is {state}" for job, state in rows)
    yield from _drained(room)
    yield from left_behind(room)
    if room.git("for-each-ref", "refs/heads/ralph"):
        yield "a cancelled job was pushed"
    room.status = f"{began} processes of runs were gone after {took_s:.1f} s"


def _drained(room: FleetRoom) -> Iterator[str]:
    """Ends the workers by SIGTERM."""
    for worker in room.workers:
        worker.signal(signal.SIGTERM, [worker.pid])
    for worker in room.workers:
        room.wait(worker.has_ended, f"{worker.name} ignores SIGTERM", 60)
        if worker.exit_code not in {0, 143, -signal.SIGTERM}:
            yield f"{worker.name} ended with {worker.exit_code} after SIGTERM"


_RATES = (("fast", "2/s", 2, 1.0, 16), ("slow", "20/min", 20, 60.0, 30))


def _rated(stage: Stage) -> Iterator[str]:
    """More jobs than a rate allows, on three workers that could work on all of them at once."""
    room = stage.room
    for name, rate, _, _, count in _RATES:
        jobs = jobs_for(room.repository, name, count)
        room.submit(name, jobs, "--rate", rate, *ATTEMPTS)
    room.add_workers(3, 4, *WORK)
    room.wait_for_jobs()
    yield from room.wait_for_workers()
    said = []
    for name, rate, most, period_s, count in _RATES:
        rows = room.rows(
            "SELECT split_part(workflow_uuid, '/', 2), min(started_at_epoch_ms) / 1000.0 "
            "FROM dbos.workflow_status WHERE workflow_uuid LIKE %s GROUP BY 1",
            f"{name}/%",
        )
        started = {job: float(at) for job, at in rows}
        statement = "SELECT job, min(started_at) FROM ralph_fleet.attempts WHERE set_name = %s GROUP BY job"
        begun = {job: float(at) for job, at in room.rows(statement, name)}
        asked = {
            job: datetime.fromisoformat(requests[0].received_at).timestamp()
            for job, requests in room.requests_of().items()
            if job in begun
        }
        if not len(started) == len(begun) == len(asked) == count:
            yield f"{len(started)}, {len(begun)} and {len(asked)} of {count} jobs of {name} have begun"
            continue
        # What follows a start comes later by a time that differs from job to job.
        for whose, times in (("starts", started), ("attempts", begun), ("first requests", asked)):
            late_s = max(times[job] - at for job, at in started.items())
            in_order = sorted(times.values())
            spans = [later - first for first, later in zip(in_order, in_order[most:], strict=False)]
            if min(spans) < period_s - late_s:
                yield f"{rate}: {most + 1} {whose} within {min(spans):.3f} s"
        took_s = max(started.values()) - min(started.values())
        said.append(f"{rate}: {count} jobs started in {took_s:.1f} s, requests {late_s:.1f} s later at most")
    room.status = ", ".join(said)


def _budgeted(stage: Stage) -> Iterator[str]:
    """Jobs that cost three times a set's budget."""
    room, count, calls = stage.room, 30, 30
    budget_usd = calls * CALL_USD
    words = ("--max-budget-usd", f"{budget_usd:g}", *ATTEMPTS)
    room.submit("budgeted", jobs_for(room.repository, "budgeted", count), *words)
    workers = room.add_workers(3, 2, *WORK)
    room.wait_for_jobs()
    yield from room.wait_for_workers()
    spent_usd = room.api.request_count * CALL_USD
    running = sum(worker.slots for worker in workers)
    if spent_usd > budget_usd + running * CALL_USD + 1e-9:
        yield f"${spent_usd:.2f} were spent of ${budget_usd:.2f}, and {running} calls ran at once"
    if spent_usd < budget_usd - running * CALL_USD:
        yield f"only ${spent_usd:.2f} were spent of ${budget_usd:.2f}"
    [(told_usd,)] = room.rows("SELECT sum(cost_usd) FROM ralph_fleet.jobs")
    if abs(told_usd - spent_usd) > 1e-6:
        yield f"the store knows of ${told_usd:.4f}, and ${spent_usd:.4f} were spent"
    ends = Counter(room.rows("SELECT exit_code, outcome FROM ralph_fleet.jobs"))
    if ends.keys() != {(0, "completed"), (3, "limit_reached")}:
        yield f"the jobs ended with {dict(ends)}"
    if not room.rows("SELECT id FROM ralph_fleet.jobs WHERE started_at IS NULL"):
        yield "every job has begun"
    waited = room.start_fleet("wait", "budgeted")
    waited.communicate()
    if waited.returncode != 3:
        yield f"wait ended with {waited.returncode}"
    yield from left_behind(room)
    room.status = f"${spent_usd:.2f} of ${budget_usd:.2f}, {CALL_USD:.2f} a call; {dict(ends)}"


CALL_USAGE = {"input_tokens": 45_000, "output_tokens": 1_000}
CALL_USD = 0.1
"""The cost of this usage of the default model."""

SCENARIOS = (
    Scenario("killed", _killed, Answers(pause_s=0.2)),
    Scenario("stopped worker", lambda stage: _stopped(stage, _all_of_it, 12), Answers(pause_s=6)),
    Scenario("stopped slot", lambda stage: _stopped(stage, _one_slot, 4), Answers(pause_s=30)),
    Scenario("store away", _store_away, Answers(pause_s=30)),
    Scenario("submitted at once", _submitted_at_once, Answers()),
    Scenario("cancelled", _cancelled, endless),
    Scenario("rated", _rated, Answers()),
    Scenario("budgeted", _budgeted, Answers(pause_s=0.3, usage=CALL_USAGE)),
)
