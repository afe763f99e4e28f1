"""The calls of workers to the store: who works on which job, what it has spent, its last checkpoint and its log. Each
change by a worker names the job's generation, and changes nothing if another worker has taken up the job since.
"""

from __future__ import annotations

import enum
import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec
import sqlalchemy as sa

from ralph.fleet.database import reading
from ralph.fleet.decisions import LEAST_GRANT_USD, NOTHING_USD, Final, JobState, grant_usd, outcome_of
from ralph.fleet.job_content import priority_of
from ralph.fleet.job_rules import host_of
from ralph.fleet.rows import (
    FINAL_STATES,
    MOST_COUNTED,
    OPEN_STATES,
    DueJob,
    JobRow,
    Kept,
    Later,
    NotOurs,
    OpenSet,
    StoredCheckpoint,
    TakeUp,
    columns_of_cancel,
    columns_of_end,
    columns_of_next,
    job_row,
    kept_row,
    limits_from,
    of_job,
    storable,
)
from ralph.fleet.schema import attempts, checkpoints, executors, holds, jobs, logs, sets, undelivered
from ralph.fleet.store import FleetStore, is_kept
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ralph.fleet.jobs import SetLimits

MOST_LOG_BYTES = 4 * 1024 * 1024
"""The log of one takeup is not longer than this. The rest is in the session's journal."""
MOST_CLAIMED = 50
"""A worker gives so many jobs to the engine at a time, about a fifth of a second."""
CLAIM_S = 30.0
"""If a worker dies while it gives jobs to the engine, another one does so after this time."""
SEEN_WITHIN_S = 30.0
FORGOTTEN_S = 600.0
"""An executor that was not seen for so long is not listed any more."""
_RESERVED_S = 15.0
"""A job waits so long before it looks again whether running jobs have given back what they had reserved."""


class Adopted(enum.Enum):
    """The state, in the store, of the work that a killed or lost takeup left."""

    OURS = "ours"
    """This machine keeps it, and nobody has taken up the job since."""
    TAKEN_OVER = "taken over"
    """Another worker has taken up the job since."""
    TOLD = "told"
    """That takeup has told its end, and kept nothing."""
    UNKNOWN = "unknown"
    """It is of no takeup of this store."""


class WorkerStore(FleetStore):
    """The store of one worker."""

    def open_sets(self) -> list[OpenSet]:
        """The sets with jobs that have not ended. Counts are exact up to `MOST_COUNTED`."""
        with reading(self._engine) as c:
            now = self._now(c)
            seen = sa.select(executors.c.set_name, sa.func.count()).where(
                executors.c.seen_at > now - SEEN_WITHIN_S
            )
            found_workers = c.execute(seen.group_by(executors.c.set_name)).all()
            workers: dict[str, int] = dict(found_workers)
            due = (jobs.c.state == JobState.QUEUED.value, jobs.c.not_before <= now, ~is_kept())
            running = (jobs.c.state == JobState.RUNNING.value, ~is_kept())
            found = [
                OpenSet(
                    name=row.name,
                    open_jobs=self._count(c, row.name, jobs.c.state.in_(OPEN_STATES)),
                    due_jobs=self._count(c, row.name, *due),
                    running_jobs=self._count(c, row.name, *running),
                    concurrency=limits_from(row.limits).concurrency,
                    workers=workers.get(row.name, 0),
                )
                for row in c.execute(sa.select(sets).order_by(sets.c.created_at)).all()
            ]
        return [one for one in found if one.open_jobs]

    def exit_codes(self, set_names: Collection[str]) -> set[int]:
        """The exit codes of the jobs of these sets, or of all."""
        ours = [jobs.c.set_name.in_(set_names)] if set_names else []
        query = sa.select(jobs.c.exit_code).where(jobs.c.exit_code.is_not(None), *ours).distinct()
        with reading(self._engine) as c:
            return set(c.execute(query).scalars())

    def _count(self, c: sa.Connection, set_name: str, *conditions: Any) -> int:
        some = sa.select(sa.literal(1)).where(jobs.c.set_name == set_name, *conditions).limit(MOST_COUNTED)
        return int(c.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one())

    def limits(self, set_name: str) -> SetLimits:
        with reading(self._engine) as c:
            return limits_from(
                c.execute(sa.select(sets.c.limits).where(sets.c.name == set_name)).scalar_one()
            )

    def due_jobs(self, set_name: str) -> list[DueJob]:
        """Claims jobs that the engine must get. Nobody else claims them for `CLAIM_S`. Looks first without a lock, because
        mostly there is nothing.
        """
        due = (
            *(jobs.c.set_name == set_name, jobs.c.state == JobState.QUEUED.value),
            *(jobs.c.is_queued.is_(False), jobs.c.claimed_until < sa.bindparam("now")),
            # The engine could wait for the time too, but by the clocks of the workers.
            *(jobs.c.not_before <= sa.bindparam("now"), ~is_kept()),
        )
        with reading(self._engine) as c:
            if not c.execute(sa.select(sa.exists().where(*due)), {"now": self._now(c)}).scalar():
                return []
        with self._engine.begin() as c:
            now = self._now(c)
            rows = c.execute(
                sa.select(jobs.c.id, jobs.c.attempt, jobs.c.content, jobs.c.repository)
                .where(*due)
                .order_by(jobs.c.position)
                .limit(MOST_CLAIMED)
                .with_for_update(skip_locked=True),
                {"now": now},
            ).all()
            c.execute(
                jobs.update()
                .where(jobs.c.set_name == set_name, jobs.c.id.in_([row.id for row in rows]))
                .values(claimed_until=now + CLAIM_S)
            )
        return [
            DueJob(
                row.id,
                row.attempt,
                priority_of(row.content),
                host_of(row.repository),
            )
            for row in rows
        ]

    def release_waiting(self, set_name: str) -> None:
        """Jobs that wait for others become queued if those have ended with 0, and blocked if one has not."""
        is_waiting = (jobs.c.set_name == set_name, jobs.c.state == JobState.WAITING.value)
        with reading(self._engine) as c:
            waiting = c.execute(sa.select(jobs.c.id, jobs.c.after).where(*is_waiting)).all()
            if not waiting:
                return
            ended = sa.select(jobs.c.id, jobs.c.exit_code).where(
                jobs.c.set_name == set_name, jobs.c.state.in_(FINAL_STATES)
            )
            codes = {row.id: row.exit_code for row in c.execute(ended)}
        released: dict[str, tuple[str, int] | None] = {}
        for row in waiting:
            before = json.loads(row.after)
            failed = next((name for name in before if codes.get(name)), None)
            if failed is not None:
                released[row.id] = (failed, codes[failed])
            elif all(codes.get(name) == 0 for name in before):
                released[row.id] = None
        if not released:
            return
        with self._engine.begin() as c:
            now = self._now(c)
            for job, failure in released.items():
                values: dict[str, Any] = {"state": JobState.QUEUED.value}
                if failure is not None:
                    name, code = failure
                    reason = f"{name}, which must come before, ended with exit {code}"
                    values = {
                        **columns_of_end(now, code, outcome_of(code), reason),
                        "state": JobState.BLOCKED.value,
                    }
                # Another worker may have released the job meanwhile, so that it has even ended.
                c.execute(jobs.update().where(*is_waiting, jobs.c.id == job).values(**values))

    def unended(self, set_name: str) -> list[tuple[str, int, int]]:
        """Id, attempt and generation of the jobs whose workflow the engine should have, queued or running."""
        with reading(self._engine) as c:
            begun = sa.and_(
                jobs.c.state == JobState.QUEUED.value,
                jobs.c.is_queued.is_(True),
                jobs.c.not_before < self._now(c) - CLAIM_S,
            )
            query = (
                sa.select(jobs.c.id, jobs.c.attempt, jobs.c.generation)
                .where(jobs.c.set_name == set_name, sa.or_(jobs.c.state == JobState.RUNNING.value, begun))
                .where(~is_kept())
                .order_by(jobs.c.position)
                .limit(MOST_COUNTED)
            )
            return [(row.id, row.attempt, row.generation) for row in c.execute(query)]

    def begin_again(self, set_name: str, job: str, attempt: int, generation: int, reason: str) -> None:
        """Plans the next attempt of a job whose workflow has ended in the engine although the job has not."""
        with self._engine.begin() as c:
            row = self._locked_row(c, set_name, job)
            is_open = row is not None and row.state in {JobState.QUEUED.value, JobState.RUNNING.value}
            if is_open and (row.attempt, row.generation) == (attempt, generation):
                self._close_lost_attempts(c, set_name, job, self._now(c))
                again = columns_of_next(attempt, 0.0, reason)
                self._set(c, set_name, job, **again, generation=generation + 1)

    def mark_queued(self, set_name: str, due: Iterable[DueJob]) -> None:
        """Records that the engine has the workflows of these attempts. One statement, because a takeup of one of them
        waits meanwhile, and all other takeups of the set wait for that one.
        """
        current = sa.tuple_(jobs.c.id, jobs.c.attempt).in_([(job.id, job.attempt) for job in due])
        with self._engine.begin() as c:
            c.execute(
                jobs.update()
                .where(jobs.c.set_name == set_name, current)
                .values(is_queued=True, claimed_until=0.0)
            )

    def take_up(
        self, set_name: str, job: str, attempt: int, *, executor: str, machine: str, credential: str
    ) -> TakeUp | Later | NotOurs:
        """Begins or continues an attempt. `credential` is the fingerprint of the key that this worker would use."""
        with self._engine.begin() as c:
            now = self._now(c)
            self._lock_set(c, set_name)
            row = self._locked_row(c, set_name, job)
            is_open = row is not None and row.state in {JobState.QUEUED.value, JobState.RUNNING.value}
            if row is None or not is_open or row.attempt != attempt:
                return NotOurs()
            if row.state == JobState.RUNNING.value and row.holder == executor:
                # The answer of the first call was lost, or the engine lost the workflow in an outage.
                limits = self._limits_in(c, set_name)
                granted = None if limits.max_budget_usd is None else row.reserved_usd
                return _taken(row, row.generation, row.tries, limits, granted)
            kept = self._kept_of(c, set_name, job)
            if kept is not None:  # a worker was killed while it kept the work
                reason = f"its work is on {kept.machine}: {kept.path}"
                is_delivering = row.generation > kept.generation
                return Later(reason) if is_delivering else self._later(c, row, now, reason)
            self._close_lost_attempts(c, set_name, job, now)
            if row.is_cancelled:
                self._set(c, set_name, job, **columns_of_cancel(now), generation=row.generation + 1)
                return NotOurs()
            limits = self._limits_in(c, set_name)
            granted = self._granted(c, set_name, job, limits)
            obstacle = self._obstacle(c, row, limits, granted=granted, credential=credential, now=now)
            if isinstance(obstacle, Later):
                return obstacle
            if obstacle is not None and (row.started_at is None or row.tries > limits.max_attempts):
                # Nothing is there to deliver, or delivering has cost a worker too.
                ended = columns_of_end(
                    now, obstacle.exit_code, outcome_of(obstacle.exit_code), obstacle.reason
                )
                self._set(c, set_name, job, **ended, generation=row.generation + 1)
                return NotOurs()
            self._begin(c, row, now, executor, machine, tries=row.tries + 1, reserved_usd=granted or 0.0)
        taken = _taken(row, row.generation + 1, row.tries + 1, limits, granted)
        return taken if obstacle is None else msgspec.structs.replace(taken, ending=obstacle)

    def _begin(
        self,
        c: sa.Connection,
        row: Any,
        now: float,
        executor: str,
        machine: str,
        *,
        tries: int,
        reserved_usd: float = 0.0,
    ) -> None:
        self._set(
            c,
            row.set_name,
            row.id,
            state=JobState.RUNNING.value,
            generation=row.generation + 1,
            tries=tries,
            holder=executor,
            reserved_usd=reserved_usd,
            started_at=row.started_at or now,
            is_queued=True,
            reason=None,
        )
        c.execute(
            attempts.insert().values(
                set_name=row.set_name,
                job=row.id,
                generation=row.generation + 1,
                attempt=row.attempt,
                executor=executor,
                machine=machine,
                started_at=now,
            )
        )

    # --- what this machine keeps

    def kept_at(self, place: str) -> list[tuple[Kept, JobRow, bool]]:
        """The work that the state directory `place` keeps, its job, and whether that job's time has come."""
        with reading(self._engine) as c:
            now = self._now(c)
            here = undelivered.c.place == place
            kept = [kept_row(row) for row in c.execute(sa.select(undelivered).where(here))]
            ids = sa.select(undelivered.c.set_name, undelivered.c.job).where(here)
            rows = c.execute(sa.select(jobs).where(sa.tuple_(jobs.c.set_name, jobs.c.id).in_(ids)))
            found = {(row.set_name, row.id): job_row(row) for row in rows}
        known = [(one, found.get((one.set_name, one.job))) for one in kept]
        return [(one, row, row.not_before <= now) for one, row in known if row is not None]

    def keep(self, taken: TakeUp, kept: Kept) -> bool:
        """Records what this machine keeps of a job, so that no other one takes it up. Returns False if the job is not this
        worker's any more. May be called again.
        """
        with self._engine.begin() as c:
            row = self._locked_row(c, taken.set_name, taken.id)
            if row is None or row.generation != taken.generation:
                return False
            self._put(c, kept)
        return True

    def adopt(self, kept: Kept, executor: str) -> Adopted:
        """Records what a takeup of this executor left that could not tell: as the job's own, if nobody has taken up the job
        since, else with that takeup.
        """
        left = (
            *(attempts.c.set_name == kept.set_name, attempts.c.job == kept.job),
            *(attempts.c.generation == kept.generation, attempts.c.executor == executor),
        )
        here = (*_is_kept_as(kept), undelivered.c.place == kept.place)
        with self._engine.begin() as c:
            row = self._locked_row(c, kept.set_name, kept.job)
            known = c.execute(sa.select(undelivered.c.path).where(*here)).scalar() or ""
            if f"{kept.generation}.{executor}" in PurePath(known).parts:
                return Adopted.OURS
            if row is not None and (row.generation, row.holder) == (kept.generation, executor):
                self._put(c, kept)
                return Adopted.OURS
            attempt = c.execute(sa.select(attempts.c.exit_code).where(*left)).one_or_none()
            if attempt is None:
                return Adopted.UNKNOWN
            if attempt.exit_code is not None:
                return Adopted.TOLD
            reason = f"its worker was lost; what it had made is kept on {kept.machine}: {kept.path}"
            c.execute(attempts.update().where(*left).values(reason=storable(reason)))
            return Adopted.TAKEN_OVER

    def _put(self, c: sa.Connection, kept: Kept) -> None:
        c.execute(undelivered.delete().where(*_is_kept_as(kept)))
        c.execute(undelivered.insert().values(**msgspec.structs.asdict(kept)))

    def forget(self, kept: Kept) -> None:
        """The machine has nothing of this any more."""
        with self._engine.begin() as c:
            c.execute(undelivered.delete().where(*_is_kept_as(kept)))

    def take_to_deliver(self, kept: Kept, seen: JobRow, *, executor: str, machine: str) -> TakeUp | NotOurs:
        """Begins to deliver what this machine keeps. `seen` is the job as `kept_at` returned it."""
        with self._engine.begin() as c:
            now = self._now(c)
            row = self._locked_row(c, kept.set_name, kept.job)
            if row is None or (row.state, row.generation) != (seen.state.value, seen.generation):
                return NotOurs()
            self._close_lost_attempts(c, row.set_name, row.id, now)
            if row.is_cancelled:
                self._set(c, row.set_name, row.id, **columns_of_cancel(now), generation=row.generation + 1)
                return NotOurs()
            limits = self._limits_in(c, kept.set_name)
            self._begin(c, row, now, executor, machine, tries=row.tries)
        taken = _taken(row, row.generation + 1, row.tries, limits, None)
        return msgspec.structs.replace(taken, kept=kept)

    def is_current(self, taken: TakeUp) -> tuple[bool, bool]:
        """Whether the job is still this worker's, and whether a user has cancelled it."""
        with reading(self._engine) as c:
            row = c.execute(
                sa.select(jobs.c.generation, jobs.c.is_cancelled).where(*of_job(taken.set_name, taken.id))
            ).one_or_none()
        return (row is not None and row.generation == taken.generation), bool(row and row.is_cancelled)

    def set_base(self, taken: TakeUp, commit: str) -> bool:
        """Records the commit at which the job began."""
        return self._set_if_current(taken, base=commit)

    def plan_push(self, taken: TakeUp, commit: str) -> bool:
        """Records which commit is about to be pushed, so that the next worker knows it as this job's own."""
        return self._set_if_current(taken, planned=commit)

    def set_pushed(self, taken: TakeUp, commit: str) -> bool:
        """Records which commit is at the job's branch."""
        return self._set_if_current(taken, commit=commit)

    def spend(self, taken: TakeUp, cost_usd: float, turns: int) -> bool:
        """Records what the whole job has spent until now. The reservation shrinks by what is new."""
        with self._engine.begin() as c:
            row = self._locked_row(c, taken.set_name, taken.id)
            if row is None or row.generation != taken.generation:
                return False
            more = max(cost_usd - row.cost_usd, 0.0)
            self._set(
                c,
                taken.set_name,
                taken.id,
                cost_usd=row.cost_usd + more,
                turns=max(turns, row.turns),
                reserved_usd=max(row.reserved_usd - more, 0.0),
            )
        return True

    def ask_more(self, taken: TakeUp, least_usd: float) -> tuple[float | None, bool]:
        """The amount that this takeup may spend from now on, after its grant did not suffice, and whether running jobs have
        reserved more, which may come back. The amount is None if the set has no budget.
        """
        with self._engine.begin() as c:
            self._lock_set(c, taken.set_name)
            limits = self._limits_in(c, taken.set_name)
            granted = self._granted(c, taken.set_name, taken.id, limits, least_usd)
            c.execute(jobs.update().where(*_current(taken)).values(reserved_usd=granted or 0.0))
            return granted, self._reserved_by_others(c, taken.set_name, taken.id) >= NOTHING_USD

    def save_checkpoint(self, taken: TakeUp, ref: str | None, commit: str | None, state: bytes) -> bool:
        """Replaces the job's checkpoint. Returns False if the job is not this worker's any more."""
        with self._engine.begin() as c:
            row = self._locked_row(c, taken.set_name, taken.id)
            if row is None or row.generation != taken.generation:
                return False
            c.execute(checkpoints.delete().where(*_checkpoint_of(taken.set_name, taken.id)))
            c.execute(
                checkpoints.insert().values(
                    set_name=taken.set_name,
                    job=taken.id,
                    generation=taken.generation,
                    ref=ref,
                    commit=commit,
                    state=state,
                    made_at=self._now(c),
                )
            )
        return True

    def checkpoint(self, set_name: str, job: str) -> StoredCheckpoint | None:
        with reading(self._engine) as c:
            row = c.execute(sa.select(checkpoints).where(*_checkpoint_of(set_name, job))).one_or_none()
        return None if row is None else StoredCheckpoint(row.ref, row.commit, row.state)

    def add_log(self, taken: TakeUp, text: str) -> None:
        with self._engine.begin() as c:
            c.execute(
                logs.insert().values(
                    set_name=taken.set_name,
                    job=taken.id,
                    generation=taken.generation,
                    at=self._now(c),
                    text=storable(text),
                )
            )

    def end_job(
        self,
        taken: TakeUp,
        *,
        exit_code: int,
        reason: str,
        result: str = "",
        commit: str | None = None,
        keeps_checkpoint: bool = False,
        is_delivered: bool = True,
    ) -> bool:
        """Ends the job. `keeps_checkpoint` is True if `retry` is to resume it from there. `is_delivered` is False if a machine
        keeps its work. Returns False if the job is not this worker's any more. May be called again.
        """
        reason = storable(reason)
        outcome = outcome_of(exit_code)
        state = JobState.DONE if is_delivered else JobState.UNDELIVERED
        with self._engine.begin() as c:
            now = self._now(c)
            row = self._locked_row(c, taken.set_name, taken.id)
            if row is None or row.generation != taken.generation:
                return False
            values = (
                columns_of_cancel(now)
                if row.is_cancelled
                else columns_of_end(now, exit_code, outcome, reason, state)
            )
            self._set(
                c, taken.set_name, taken.id, **values, result=storable(result), commit=commit or row.commit
            )
            self._end_attempt(c, taken, row, now, exit_code=exit_code, reason=reason)
            self._end_keeping(c, taken, is_delivered=is_delivered)
            if not keeps_checkpoint:
                c.execute(checkpoints.delete().where(*_checkpoint_of(taken.set_name, taken.id)))
        return True

    def plan_next(
        self,
        taken: TakeUp,
        *,
        exit_code: int,
        delay_s: float,
        reason: str,
        is_try: bool = True,
        is_delivered: bool = True,
    ) -> bool:
        """Ends this attempt and plans the next. `is_try` is False if the attempt does not count, because the worker was
        told to stop. `is_delivered` is as in `end_job`. Returns False if the job is not this worker's any more. May be called
        again.
        """
        reason = storable(reason)
        with self._engine.begin() as c:
            now = self._now(c)
            row = self._locked_row(c, taken.set_name, taken.id)
            if row is None or row.generation != taken.generation or row.attempt != taken.attempt:
                return row is not None and row.generation == taken.generation
            self._end_attempt(c, taken, row, now, exit_code=exit_code, reason=reason)
            self._end_keeping(c, taken, is_delivered=is_delivered)
            if row.is_cancelled:
                self._set(c, taken.set_name, taken.id, **columns_of_cancel(now))
            else:
                self._set(
                    c,
                    taken.set_name,
                    taken.id,
                    **columns_of_next(row.attempt, now + delay_s, reason),
                    tries=row.tries if is_try else row.tries - 1,
                )
        return True

    def hold(self, credential: str, for_s: float, reason: str) -> None:
        """No job begins with this key for `for_s` seconds."""
        with self._engine.begin() as c:
            self._lock_set(c, f"hold {credential}")
            until = self._now(c) + for_s
            known = c.execute(sa.select(holds.c.until).where(holds.c.credential == credential)).scalar()
            if known is None:
                c.execute(holds.insert().values(credential=credential, until=until, reason=storable(reason)))
            elif until > known:
                c.execute(
                    holds.update().where(holds.c.credential == credential).values(until=until, reason=reason)
                )

    def seen(self, executor: str, machine: str, set_name: str) -> None:
        """Records that an executor works for a set."""
        with self._engine.begin() as c:
            now = self._now(c)
            c.execute(executors.delete().where(executors.c.seen_at < now - FORGOTTEN_S))
            changed = c.execute(
                executors.update().where(executors.c.id == executor).values(seen_at=now)
            ).rowcount
            if not changed:
                c.execute(
                    executors.insert().values(id=executor, machine=machine, set_name=set_name, seen_at=now)
                )

    def executor_gone(self, executor: str) -> None:
        with self._engine.begin() as c:
            c.execute(executors.delete().where(executors.c.id == executor))

    # --- inside a transaction

    def _locked_row(self, c: sa.Connection, set_name: str, job: str) -> Any:
        return c.execute(sa.select(jobs).where(*of_job(set_name, job)).with_for_update()).one_or_none()

    def _set(self, c: sa.Connection, set_name: str, job: str, **values: Any) -> None:
        c.execute(jobs.update().where(*of_job(set_name, job)).values(**values))

    def _set_if_current(self, taken: TakeUp, **values: Any) -> bool:
        with self._engine.begin() as c:
            return bool(c.execute(jobs.update().where(*_current(taken)).values(**values)).rowcount)

    def _limits_in(self, c: sa.Connection, set_name: str) -> SetLimits:
        return limits_from(c.execute(sa.select(sets.c.limits).where(sets.c.name == set_name)).scalar_one())

    def _granted(
        self,
        c: sa.Connection,
        set_name: str,
        job: str,
        limits: SetLimits,
        least_usd: float = LEAST_GRANT_USD,
    ) -> float | None:
        if limits.max_budget_usd is None:
            return None
        spent = c.execute(
            sa.select(sa.func.sum(jobs.c.cost_usd)).where(jobs.c.set_name == set_name)
        ).scalar_one()
        left = limits.max_budget_usd - spent - self._reserved_by_others(c, set_name, job)
        return grant_usd(left, least_usd)

    def _reserved_by_others(self, c: sa.Connection, set_name: str, job: str) -> float:
        query = sa.select(sa.func.coalesce(sa.func.sum(jobs.c.reserved_usd), 0.0))
        return float(c.execute(query.where(jobs.c.set_name == set_name, jobs.c.id != job)).scalar_one())

    def _later(self, c: sa.Connection, row: Any, at: float, reason: str) -> Later:
        # A worker that lost the job may still be alive. The new generation shuts it out.
        again = columns_of_next(row.attempt, at, reason)
        self._set(c, row.set_name, row.id, **again, generation=row.generation + 1)
        return Later(reason)

    def _end_attempt(
        self, c: sa.Connection, taken: TakeUp, row: Any, now: float, *, exit_code: int, reason: str
    ) -> None:
        c.execute(
            attempts.update()
            .where(attempts.c.set_name == taken.set_name, attempts.c.job == taken.id)
            .where(attempts.c.generation == taken.generation)
            .values(ended_at=now, exit_code=exit_code, reason=reason, turns=row.turns, cost_usd=row.cost_usd)
        )

    def _end_keeping(self, c: sa.Connection, taken: TakeUp, *, is_delivered: bool) -> None:
        if is_delivered and taken.kept is not None:
            c.execute(undelivered.update().where(*_is_kept_as(taken.kept)).values(is_over=True))

    def _obstacle(
        self,
        c: sa.Connection,
        row: Any,
        limits: SetLimits,
        *,
        granted: float | None,
        credential: str,
        now: float,
    ) -> Later | Final | None:
        """Why the job's process must not start: not now, or never again. None if it may start."""
        if row.state == JobState.RUNNING.value and row.tries >= limits.max_attempts:
            reason = f"gave up after {limits.max_attempts} attempts: the worker of the last one was lost"
            return Final(Outcome.API_UNAVAILABLE.exit_code(), reason)
        if row.not_before > now:
            return self._later(c, row, row.not_before, "its time has not come")
        limited = (holds.c.credential == credential, holds.c.until > now)
        held = c.execute(sa.select(holds.c.until, holds.c.reason).where(*limited)).one_or_none()
        if held is not None:
            return self._later(c, row, held.until, held.reason)
        if granted is None or granted > 0:
            return None
        if self._reserved_by_others(c, row.set_name, row.id) >= NOTHING_USD:
            return self._later(
                c, row, now + _RESERVED_S, "the rest of the set's budget is reserved by running jobs"
            )
        reason = f"the set's budget of ${limits.max_budget_usd:g} is spent"
        return Final(Outcome.LIMIT_REACHED.exit_code(), reason)

    def _close_lost_attempts(self, c: sa.Connection, set_name: str, job: str, now: float) -> None:
        """Records that the workers of earlier takeups are gone, if those takeups have no end."""
        c.execute(
            attempts.update()
            .where(attempts.c.set_name == set_name, attempts.c.job == job, attempts.c.ended_at.is_(None))
            .values(ended_at=now, reason="its worker was lost")
        )


def _taken(row: Any, generation: int, tries: int, limits: SetLimits, granted_usd: float | None) -> TakeUp:
    return TakeUp(
        set_name=row.set_name,
        id=row.id,
        content=row.content,
        attempt=row.attempt,
        generation=generation,
        tries=tries,
        most_tries=limits.max_attempts,
        cost_usd=row.cost_usd,
        granted_usd=granted_usd,
        base=row.base,
        own_commits=tuple(commit for commit in (row.commit, row.planned) if commit is not None),
    )


def _current(taken: TakeUp) -> tuple[Any, ...]:
    return (*of_job(taken.set_name, taken.id), jobs.c.generation == taken.generation)


def _is_kept_as(kept: Kept) -> tuple[Any, ...]:
    u = undelivered.c
    return (u.set_name == kept.set_name, u.job == kept.job, u.generation == kept.generation)


def _checkpoint_of(set_name: str, job: str) -> tuple[Any, ...]:
    return (checkpoints.c.set_name == set_name, checkpoints.c.job == job)
