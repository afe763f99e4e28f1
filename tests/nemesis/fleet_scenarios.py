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

from tests.nemesis.fleet_cluster import FleetCluster, Worker, tree_of
from tests.nemesis.fleet_facts import Checkpoints, Pushes, delivered, left_behind
from tests.nemesis.fleet_jobs import ENDLESS, TURNS, Answers, endless, jobs_for, said_in
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

    cluster: FleetCluster
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
    cluster, count = stage.cluster, stage.size.jobs
    limits = stage.draw.choice(([], ["--per-host", "100"], ["--concurrency", "100"]))
    cluster.submit("killed", jobs_for(cluster.repository, "killed", count), *ATTEMPTS, *limits)
    cluster.add_workers(3, 2, *WORK)
    kills: Counter[str] = Counter()
    seen = Checkpoints(cluster)
    last, changed_s, due_s = count, time.monotonic(), time.monotonic() + stage.size.every_s
    while (left := cluster.unfinished()) and time.monotonic() - changed_s < within_s(300):
        if left != last:
            last, changed_s = left, time.monotonic()
        cluster.status = (
            f"{count - left} of {count} jobs, {kills.total()} kills, {len(seen.judged)} checkpoints"
        )
        seen.look()
        yield from _restart(cluster)
        if time.monotonic() >= due_s:
            due_s += stage.size.every_s
            kills[_kill_one(stage)] += 1
        cluster.pause(0.1)
    if left:
        yield f"no job has ended for 300 s: {left} are left"
        return
    yield from seen.faults
    yield from cluster.wait_for_workers()
    cluster.fleet("wait", "killed", "--json")
    yield from delivered(cluster, "killed", count)
    starts = sum(worker.starts for worker in cluster.workers)
    cluster.status = f"{cluster.status}: {dict(kills)}, {starts} starts of workers, {_claims(cluster)}"


def _kill_one(stage: Stage) -> str:
    worker = stage.draw.choice(stage.cluster.workers)
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


def _restart(cluster: FleetCluster) -> Iterator[str]:
    """Starts the workers again that were killed. None may end by itself while there are jobs."""
    for worker in cluster.workers:
        if worker.has_ended():
            code = worker.exit_code
            if code != -signal.SIGKILL and not (code == 0 and not cluster.unfinished()):
                yield f"{worker.name} ended with {code}: {worker.told[-500:]}"
            if cluster.unfinished():
                worker.start(*WORK)


def _claims(cluster: FleetCluster) -> str:
    [(claims, most)] = cluster.rows("SELECT sum(generation), max(generation) FROM ralph_fleet.jobs")
    first = sum(not said_in(request) for request in cluster.api.requests)
    return f"{claims} claims, {most} of one job, {first} sessions begun, {cluster.api.request_count} requests"


def _stopped(stage: Stage, choose: Callable[[Worker, Stage], list[int]], count: int) -> Iterator[str]:
    """SIGSTOP for longer than the silence after which others take over, then SIGCONT."""
    cluster = stage.cluster
    cluster.submit("stopped", jobs_for(cluster.repository, "stopped", count), *ATTEMPTS)
    workers = cluster.add_workers(3, 2, *WORK)
    pushes = Pushes(cluster)
    cluster.wait(lambda: any(_saved(cluster, worker) for worker in workers), "no job has a checkpoint", 120)
    zombie = next(worker for worker in workers if _saved(cluster, worker))
    cluster.pause(stage.draw.uniform(0, 6))
    pids = choose(zombie, stage)
    zombie.signal(signal.SIGSTOP, pids)
    stopped = [(job, generation) for job, generation, pid in _running(cluster, zombie) if pid in pids]
    until_s = time.monotonic() + stage.size.stopped_s
    while time.monotonic() < until_s:
        pushes.look()
        cluster.status = (
            f"{zombie.name} is stopped with {len(stopped)} jobs, {cluster.unfinished()} jobs are left"
        )
        cluster.pause(0.1)
    taken = {
        job: float(started_at)
        for job, generation, started_at in cluster.rows(
            "SELECT job, generation, started_at FROM ralph_fleet.attempts"
        )
        if (job, generation - 1) in stopped
    }
    # A job that another slot of the same machine has taken over is pushed under the same name.
    elsewhere = taken.keys() - {job for job, _, _ in _running(cluster, zombie)}
    if not stopped or len(taken) != len(stopped):
        yield f"of the jobs {stopped} of a stopped worker, only {sorted(taken)} were taken over"
    zombie.signal(signal.SIGCONT, pids)
    while cluster.unfinished() or not all(worker.has_ended() for worker in workers):
        pushes.look()
        cluster.status = f"{zombie.name} has woken, {cluster.unfinished()} jobs are left"
        cluster.pause(0.1)
        if time.monotonic() > until_s + within_s(300):
            yield f"after 300 s, {cluster.unfinished()} jobs are left"
            break
    yield from cluster.wait_for_workers()
    yield from delivered(cluster, "stopped", count)
    # The clock of the reference log has whole seconds.
    yield from (
        f"{who} pushed {ref} {at - taken[job]:.0f} s after its job was taken over"
        for ref, _, _, who, at in sorted(pushes.found)
        for job in elsewhere
        if f"/{job}" in ref and who == zombie.name and at > taken[job] + 1
    )
    cluster.status = (
        f"{len(taken)} jobs were taken over, {len(elsewhere)} by other machines, {len(pushes.found)} pushes "
        f"seen, {_claims(cluster)}"
    )


def _running(cluster: FleetCluster, worker: Worker) -> list[tuple[str, int, int]]:
    """The jobs that this worker's slots work on: id, generation, and the slot's process."""
    slots = set(worker.slot_pids)
    rows = cluster.rows("SELECT id, generation, holder FROM ralph_fleet.jobs WHERE holder IS NOT NULL")
    found = [(job, generation, int(holder.rsplit("-", 2)[1])) for job, generation, holder in rows]
    return [row for row in found if row[2] in slots]


def _saved(cluster: FleetCluster, worker: Worker) -> int:
    """How many jobs that this worker's slots work on have a checkpoint."""
    saved = {job for (job,) in cluster.rows("SELECT job FROM ralph_fleet.checkpoints")}
    return sum(job in saved for job, _, _ in _running(cluster, worker))


def _all_of_it(worker: Worker, _stage: Stage) -> list[int]:
    return tree_of(worker.pid)


def _one_slot(worker: Worker, stage: Stage) -> list[int]:
    return [stage.draw.choice([pid for _, _, pid in _running(stage.cluster, worker)])]


def _store_away(stage: Stage) -> Iterator[str]:
    """The store is stopped while eight jobs run, and started again."""
    cluster, count, away_s = stage.cluster, 8, stage.size.stopped_s * 4 / 3
    cluster.submit("away", jobs_for(cluster.repository, "away", count), *ATTEMPTS)
    cluster.add_workers(3, 3, *WORK)
    cluster.wait(lambda: len(cluster.requests_of()) == count, "not all jobs have sent a request")
    crash = stage.draw.choice((signal.SIGINT, signal.SIGQUIT))
    stage.postgres.stop(crash)
    before = cluster.api.request_count
    until_s = time.monotonic() + away_s
    while time.monotonic() < until_s:
        cluster.status = (
            f"the store is away ({crash.name}), {cluster.api.request_count - before} requests meanwhile"
        )
        cluster.pause(0.1)
    meanwhile = cluster.api.request_count - before
    stage.postgres.start()
    cluster.wait_for_jobs()
    yield from cluster.wait_for_workers()
    yield from delivered(cluster, "away", count)
    if not meanwhile:
        yield "no run has sent a request while the store was away"
    for job, requests in cluster.requests_of().items():
        if len(requests) != TURNS:
            yield f"{job} sent {len(requests)} requests instead of {TURNS}"
    for worker in cluster.workers:
        if "waiting for the store at 127.0.0.1:" not in worker.told:
            yield f"{worker.name} has not said what it waits for: {worker.told[-300:]!r}"
    cluster.status = f"{crash.name}, {meanwhile} requests while the store was away, {_claims(cluster)}"


def _submitted_at_once(stage: Stage) -> Iterator[str]:
    """Users submit the same file at once, and two files that differ in one job."""
    cluster = stage.cluster
    for number in range(5):
        name = f"once-{number}"
        jobs = jobs_for(cluster.repository, name, 50)
        path = cluster.write_jobs(name, jobs)
        same = [cluster.start_fleet("submit", str(path)) for _ in range(3)]
        for process in same:
            _, err = process.communicate()
            if process.returncode:
                yield f"submitting {name} at once ended with {process.returncode}: {err.decode()[-300:]}"
        [(count,)] = cluster.rows("SELECT count(*) FROM ralph_fleet.jobs WHERE set_name = %s", name)
        if count != len(jobs):
            yield f"{name} has {count} jobs instead of {len(jobs)}"

        other = f"other-{number}"
        jobs = jobs_for(cluster.repository, other, 50)
        changed = stage.draw.randrange(len(jobs))
        paths = []
        for prompt in ("this", "that"):
            jobs[changed] |= {"prompt": prompt}
            paths.append(cluster.write_jobs(f"{other}-{prompt}", jobs))
        two = [cluster.start_fleet("submit", str(path), "--set", other) for path in paths]
        ends = [(process.communicate()[1].decode().strip()[-300:], process.returncode) for process in two]
        if sorted(code for _, code in ends) != [0, 2]:
            yield f"two files at once ended with {[code for _, code in ends]}: {ends}"
        [(count,)] = cluster.rows("SELECT count(*) FROM ralph_fleet.jobs WHERE set_name = %s", other)
        if count != len(jobs):
            yield f"{other} has {count} jobs instead of {len(jobs)}"
        # Two sets that would push to the same branch.
        third = [cluster.start_fleet("submit", str(paths[0]), "--set", f"{other}-{end}") for end in "ab"]
        codes = sorted(process.communicate() and process.returncode for process in third)
        if codes != [2, 2]:
            yield f"sets with the same branches as an open one were submitted: {codes}"
        cluster.status = f"{number + 1} rounds"


def _cancelled(stage: Stage) -> Iterator[str]:
    """Twenty jobs run on three workers, half of them in a command, and are cancelled."""
    cluster, count = stage.cluster, 20
    cluster.submit("cancelled", jobs_for(cluster.repository, "cancelled", count), *ATTEMPTS)
    cluster.add_workers(3, 8)
    cluster.wait(lambda: len(cluster.requests_of()) == count, "not all jobs have sent a request")
    cluster.wait(
        lambda: sum(words.startswith(ENDLESS) for words in cluster.run_processes().values()) >= count,
        "not all commands have begun",
    )
    began = len(cluster.run_processes())
    called_s = time.monotonic()
    cluster.fleet("cancel", "--all", "--set", "cancelled")
    while (left := cluster.run_processes()) and time.monotonic() - called_s < within_s(60):
        cluster.pause(0.05)
    took_s = time.monotonic() - called_s
    if took_s > within_s(_CANCEL_S):
        yield f"{took_s:.1f} s after the call, processes were left: {left}"
    cluster.wait(lambda: not cluster.unfinished(), "cancelled jobs have not ended")
    rows = cluster.rows("SELECT id, state FROM ralph_fleet.jobs WHERE state <> 'cancelled'")
    yield from (f"{job} is {state}" for job, state in rows)
    yield from _drained(cluster)
    yield from left_behind(cluster)
    if cluster.git("for-each-ref", "refs/heads/ralph"):
        yield "a cancelled job was pushed"
    cluster.status = f"{began} processes of runs were gone after {took_s:.1f} s"


def _drained(cluster: FleetCluster) -> Iterator[str]:
    """Ends the workers by SIGTERM."""
    for worker in cluster.workers:
        worker.signal(signal.SIGTERM, [worker.pid])
    for worker in cluster.workers:
        cluster.wait(worker.has_ended, f"{worker.name} ignores SIGTERM", 60)
        if worker.exit_code not in {0, 143, -signal.SIGTERM}:
            yield f"{worker.name} ended with {worker.exit_code} after SIGTERM"


_RATES = (("fast", "2/s", 2, 1.0, 16), ("slow", "20/min", 20, 60.0, 30))


def _rated(stage: Stage) -> Iterator[str]:
    """More jobs than a rate allows, on three workers that could work on all of them at once."""
    cluster = stage.cluster
    for name, rate, _, _, count in _RATES:
        jobs = jobs_for(cluster.repository, name, count)
        cluster.submit(name, jobs, "--rate", rate, *ATTEMPTS)
    cluster.add_workers(3, 4, *WORK)
    cluster.wait_for_jobs()
    yield from cluster.wait_for_workers()
    said = []
    for name, rate, most, period_s, count in _RATES:
        rows = cluster.rows(
            "SELECT split_part(workflow_uuid, '/', 2), min(started_at_epoch_ms) / 1000.0 "
            "FROM dbos.workflow_status WHERE workflow_uuid LIKE %s GROUP BY 1",
            f"{name}/%",
        )
        started = {job: float(at) for job, at in rows}
        statement = "SELECT job, min(started_at) FROM ralph_fleet.attempts WHERE set_name = %s GROUP BY job"
        begun = {job: float(at) for job, at in cluster.rows(statement, name)}
        asked = {
            job: datetime.fromisoformat(requests[0].received_at).timestamp()
            for job, requests in cluster.requests_of().items()
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
    cluster.status = ", ".join(said)


def _budgeted(stage: Stage) -> Iterator[str]:
    """Jobs that cost three times a set's budget."""
    cluster, count, calls = stage.cluster, 30, 30
    budget_usd = calls * CALL_USD
    words = ("--max-budget-usd", f"{budget_usd:g}", *ATTEMPTS)
    cluster.submit("budgeted", jobs_for(cluster.repository, "budgeted", count), *words)
    workers = cluster.add_workers(3, 2, *WORK)
    cluster.wait_for_jobs()
    yield from cluster.wait_for_workers()
    spent_usd = cluster.api.request_count * CALL_USD
    running = sum(worker.slots for worker in workers)
    if spent_usd > budget_usd + running * CALL_USD + 1e-9:
        yield f"${spent_usd:.2f} were spent of ${budget_usd:.2f}, and {running} calls ran at once"
    if spent_usd < budget_usd - running * CALL_USD:
        yield f"only ${spent_usd:.2f} were spent of ${budget_usd:.2f}"
    [(told_usd,)] = cluster.rows("SELECT sum(cost_usd) FROM ralph_fleet.jobs")
    if abs(told_usd - spent_usd) > 1e-6:
        yield f"the store knows of ${told_usd:.4f}, and ${spent_usd:.4f} were spent"
    ends = Counter(cluster.rows("SELECT exit_code, outcome FROM ralph_fleet.jobs"))
    if ends.keys() != {(0, "completed"), (3, "limit_reached")}:
        yield f"the jobs ended with {dict(ends)}"
    if not cluster.rows("SELECT id FROM ralph_fleet.jobs WHERE started_at IS NULL"):
        yield "every job has begun"
    waited = cluster.start_fleet("wait", "budgeted")
    waited.communicate()
    if waited.returncode != 3:
        yield f"wait ended with {waited.returncode}"
    yield from left_behind(cluster)
    cluster.status = f"${spent_usd:.2f} of ${budget_usd:.2f}, {CALL_USD:.2f} a call; {dict(ends)}"


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
