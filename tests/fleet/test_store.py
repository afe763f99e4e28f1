"""Which changes of the store happen once, and which writer it refuses, on SQLite and on Postgres."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.fleet.claims import Adoption, Claim, Claims, ClaimWriter, LostError
from ralph.fleet.database import database_of, prepare
from ralph.fleet.jobs import Final, Job, JobState, SetLimits
from ralph.fleet.schema import JobRow, KeptRow
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REPOSITORY = "https://git.example.org/x.git"
NO_LIMITS = SetLimits()


@pytest.fixture(params=["sqlite", "postgres"])
def connect(request, tmp_path) -> Iterator[Callable[[], Claims]]:
    """Makes a store with connections of its own, as another process has."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    database = database_of(url, {"RALPH_STATE_DIR": str(tmp_path)})
    prepare(database)
    with ExitStack() as opened:
        yield lambda: opened.enter_context(closing(Claims(database)))


@pytest.fixture
def store(connect: Callable[[], Claims]) -> Claims:
    made = connect()
    made.create()
    return made


def job(name: str, **values: Any) -> Job:
    return Job(id=name, repository=values.pop("repository", REPOSITORY), prompt="Do it.", **values)


def jobs(count: int) -> list[Job]:
    return [job(f"j{number}") for number in range(count)]


@pytest.mark.parametrize("has_it", [False, True])
def test_a_set_keeps_or_lacks_a_limit_per_host_for_ever(store: Claims, has_it: bool) -> None:
    """The engine strands a job without a key in a queue with such a limit (DBOS 3.4.0)."""
    first, then = SetLimits(per_host=2 if has_it else None), SetLimits(per_host=None if has_it else 2)
    store.submit("s", first, jobs(1))
    with pytest.raises(UsageError, match="cannot change: submit another set"):
        store.submit("s", then, jobs(2))
    assert store.job_row("s", "j1") is None
    store.submit("s", replace(first, concurrency=3), jobs(2))
    assert store.limits("s").concurrency == 3


def take(store: Claims, name: str, *, attempt: int = 1, by: str = "w-1", key: str = "k") -> Any:
    return store.claim("s", name, attempt, executor=by, machine="m", credential=key)


def taken(store: Claims, name: str, **how: Any) -> Claim:
    found = take(store, name, **how)
    assert isinstance(found, Claim), found
    return found


def held(store: Claims, name: str, **how: Any) -> ClaimWriter:
    return ClaimWriter(store, taken(store, name, **how))


def row(store: Claims, name: str) -> JobRow:
    found = store.job_row("s", name)
    assert found is not None
    return found


def let_go(store: Claims) -> list[JobRow]:
    """The jobs that may begin now, after those that waited were looked at."""
    store.release_waiting("s")
    return store.due_jobs("s")


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls that begin at one moment, each in its own thread."""
    ready = threading.Barrier(len(calls))

    def call(one: Callable[[], Any]) -> Any:
        ready.wait()
        return one()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(call, calls))


# --- Submitting


def test_a_store_has_no_tables_before_the_first_submit_and_makes_them_once(connect) -> None:
    stores = [connect() for _ in range(4)]
    assert not stores[0].exists()
    at_once([one.create for one in stores])
    assert stores[0].exists()


def test_two_submits_at_once_make_one_set(connect, store) -> None:
    stores = [connect() for _ in range(4)]
    done = at_once([partial(one.submit, "s", NO_LIMITS, jobs(20)) for one in stores])
    assert sorted((one.new, one.known) for one in done) == [(0, 20)] * 3 + [(20, 0)]
    assert [one.id for one in store.job_rows("s")] == [one.id for one in jobs(20)] == store.job_ids("s")


def test_a_key_with_another_content_is_refused_and_nothing_is_added(store) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    with pytest.raises(UsageError, match="has a job j0 with another content"):
        store.submit("s", SetLimits(concurrency=3), [job("new"), job("j0", max_turns=3)])
    assert (store.job_ids("s"), store.limits("s")) == (["j0"], NO_LIMITS)
    assert store.submit("s", SetLimits(concurrency=3), [job("new"), *jobs(1)]).has_new_limits
    assert (store.job_ids("s"), store.limits("s").concurrency) == (["j0", "new"], 3)


def test_two_open_sets_do_not_share_a_branch_of_a_repository(store, monkeypatch) -> None:
    # There are more repositories than a statement takes.
    monkeypatch.setattr("ralph.fleet.claims.MOST_PARAMETERS", 1)
    store.submit("s", NO_LIMITS, jobs(1))
    with pytest.raises(UsageError, match="the set s has an open job j0 on the same repository"):
        store.submit("other", NO_LIMITS, [job("a", repository="https://a"), *jobs(1)])
    store.submit("elsewhere", NO_LIMITS, [job("j0", repository="https://git.example.org/y.git")])
    held(store, "j0").end(0, "")
    assert store.submit("other", NO_LIMITS, jobs(1)).new == 1


# --- Working


def writes(holder: ClaimWriter) -> Iterator[Callable[[], object]]:
    """All that a holder may write but the end."""
    yield partial(holder.record, base="base")
    yield partial(holder.record, planned="planned")
    yield partial(holder.record, commit="commit")
    yield partial(holder.spend, 0.5, 3)
    yield partial(holder.save_checkpoint, "ref", "commit", b"state")


def test_a_stale_holder_changes_nothing(connect, store) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    stale, current = held(store, "j0"), held(connect(), "j0", by="w-2")
    before = row(store, "j0")
    ends: list[Callable[[], object]] = [partial(stale.plan_next, 75, 1, ""), partial(stale.end, 0, "")]
    for call in (*writes(stale), *ends, stale.is_cancelled):
        with pytest.raises(LostError):
            call()
    assert (row(store, "j0"), store.checkpoint("s", "j0")) == (before, None)
    assert not current.is_cancelled()
    for write in writes(current):
        write()
    saved = store.checkpoint("s", "j0")
    assert saved is not None
    assert (saved.commit, saved.state) == ("commit", b"state")
    for _ in range(2):  # it may be called again
        current.end(0, "done", commit="pushed")
    assert [one.failed for one in store.set_rows()] == [0]
    ended = row(store, "j0")
    assert (ended.state, ended.exit_code, ended.commit, ended.turns, ended.cost_usd, ended.holder) == (
        *(JobState.DONE, 0, "pushed", 3, 0.5, None),
    )
    assert (ended.base, ended.planned) == ("base", "planned")
    assert store.checkpoint("s", "j0") is None
    first, second = store.attempt_rows("s", "j0")
    assert (first.exit_code, second.exit_code, second.cost_usd) == (None, 0, 0.5)


def test_whoever_lost_a_job_that_was_put_off_ends_it_no_more(store) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    stale = held(store, "j0")
    store.hold("k", 60, "the key is held")
    assert isinstance(take(store, "j0", by="w-2"), str)
    with pytest.raises(LostError):
        stale.end(0, "")
    assert row(store, "j0").state is JobState.QUEUED


def test_an_attempt_is_planned_once_and_does_not_begin_before_its_time(store) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    first = held(store, "j0")
    for _ in range(2):
        first.plan_next(75, 60, "overloaded")
    planned = row(store, "j0")
    assert (planned.state, planned.attempt, planned.tries) == (JobState.QUEUED, 2, 1)
    assert planned.not_before > planned.created_at + 59
    assert take(store, "j0", attempt=1) is None, "the workflow of the first attempt"
    assert store.due_jobs("s") == [], "the engine would wait by the clock of the worker that gives it the job"
    assert isinstance(take(store, "j0", attempt=2), str)
    assert row(store, "j0").not_before == planned.not_before


def test_a_drain_is_no_try(store) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    held(store, "j0").plan_next(143, 0, "drained", is_try=False)
    assert (row(store, "j0").attempt, row(store, "j0").tries) == (2, 0)
    assert (row(store, "j0").reason, [one.attempt for one in store.due_jobs("s")]) == ("drained", [2])
    assert taken(store, "j0", attempt=2, by="w-2").row.tries == 1
    assert row(store, "j0").reason is None, "it told why the job waited"


def test_a_job_whose_workers_are_lost_is_only_delivered_after_the_last_try(store) -> None:
    store.submit("s", SetLimits(max_attempts=2), jobs(1))
    tries = [taken(store, "j0", by=f"w-{number}") for number in (1, 2)]
    assert [(one.row.tries, one.ending) for one in tries] == [(1, None), (2, None)]
    reason = "gave up after 2 attempts: the worker of the last one was lost"
    assert taken(store, "j0", by="w-3").ending == Final(75, reason)
    assert take(store, "j0", by="w-4") is None, "and that was the end of w-3"
    ended = row(store, "j0")
    assert (ended.state, ended.exit_code) == (JobState.DONE, 75)
    assert "gave up after 2 attempts" in (ended.reason or "")
    with pytest.raises(LostError):
        ClaimWriter(store, tries[-1]).end(0, "")
    assert {one.reason for one in store.attempt_rows("s", "j0")} == {"its worker was lost"}


def test_a_takeup_that_is_asked_for_twice_by_one_worker_is_one(store) -> None:
    store.submit("s", SetLimits(max_budget_usd=8.0), jobs(1))
    first = taken(store, "j0")
    assert (taken(store, "j0"), len(store.attempt_rows("s", "j0"))) == (first, 1)


def test_a_job_that_the_engine_must_get_is_claimed_by_one_worker(connect, store) -> None:
    store.submit("s", NO_LIMITS, [job("late"), *jobs(5)])
    stores = [connect() for _ in range(4)]
    claimed = at_once([partial(one.due_jobs, "s") for one in stores])
    assert sorted(due.id for found in claimed for due in found) == ["j0", "j1", "j2", "j3", "j4", "late"]
    store.mark_queued("s", [due for found in claimed for due in found])
    assert store.due_jobs("s") == []


def test_grants_never_exceed_the_budget(connect, store) -> None:
    budget = 8.0
    store.submit("s", SetLimits(max_budget_usd=budget), jobs(6))
    stores = enumerate([connect() for _ in range(6)])
    found = at_once([partial(take, one, f"j{n}", by=f"w-{n}") for n, one in stores])
    granted = [one.granted_usd or 0.0 for one in found if isinstance(one, Claim)]
    assert len(granted) == 6
    assert all(usd > 0 for usd in granted)
    assert sum(granted) <= budget
    assert sum(one.reserved_usd for one in store.job_rows("s")) == pytest.approx(sum(granted))
    spent = 0.0
    for one in found:  # each spends its grant, then what else it gets
        usd = one.granted_usd
        while usd:
            spent += usd
            total = usd if one.granted_usd == usd else row(store, one.row.id).cost_usd + usd
            ClaimWriter(store, one).spend(total, 1)
            usd, _ = ClaimWriter(store, one).ask_more(0.01)
        ClaimWriter(store, one).end(3, "")
    assert sum(one.cost_usd for one in store.job_rows("s")) == pytest.approx(spent)
    assert spent <= budget + 1e-6


def test_a_spent_budget_ends_what_comes_and_a_reserved_one_puts_it_off(store, monkeypatch) -> None:
    monkeypatch.setattr("ralph.fleet.claims._RESERVED_S", 0.0)
    store.submit("s", SetLimits(max_budget_usd=1.0), jobs(3))
    first = taken(store, "j0")
    assert first.granted_usd == 1.0
    put_off = take(store, "j1")
    assert isinstance(put_off, str)
    assert "reserved" in put_off
    ClaimWriter(store, first).spend(1.0, 1)
    ClaimWriter(store, first).end(0, "")
    assert take(store, "j1", attempt=2) is None
    ended = row(store, "j1")
    assert (ended.state, ended.exit_code, ended.reason) == (
        JobState.DONE,
        3,
        "the set's budget of $1 is spent",
    )


def test_a_held_key_puts_off_its_jobs_and_no_others(store) -> None:
    store.submit("s", NO_LIMITS, jobs(2))
    store.hold("k", 60, "the key is held")
    store.hold("k", 1, "a shorter hold does not end a longer one")
    put_off = take(store, "j0", key="k")
    assert (put_off, row(store, "j0").attempt) == ("the key is held", 2)
    assert row(store, "j0").not_before > row(store, "j0").created_at + 50
    taken(store, "j1", key="another")


def test_a_job_waits_for_those_before_it_and_is_blocked_if_one_fails(store) -> None:
    wanted = [*jobs(2), job("after", after=("j0", "j1")), job("last", after=("after",))]
    store.submit("s", NO_LIMITS, wanted)
    assert [one.id for one in let_go(store)] == ["j0", "j1"]
    held(store, "j0").end(0, "")
    assert let_go(store) == []
    held(store, "j1").end(4, "")
    for _ in range(2):  # one step of the chain each time
        assert let_go(store) == []
    blocked = [row(store, "after"), row(store, "last")]
    assert store.set_rows()[0].failed == 1, "blocked jobs are another state"
    assert [(one.state, one.exit_code) for one in blocked] == [(JobState.BLOCKED, 4)] * 2
    assert (store.retry("s", ["j1"]), [one.id for one in let_go(store)]) == (1, ["j1"])
    held(store, "j1", attempt=2).end(0, "")
    assert [one.id for one in let_go(store)] == ["after"]


# --- Cancelling and retrying


def test_a_cancelled_job_does_not_begin_and_a_running_one_is_told(store) -> None:
    store.submit("s", NO_LIMITS, jobs(3))
    running = held(store, "j0")
    assert store.cancel("s", ["j0", "j1"]) == 1
    assert [one.state for one in store.job_rows("s")] == [
        *(JobState.RUNNING, JobState.CANCELLED, JobState.QUEUED),
    ]
    assert take(store, "j1") is None
    assert running.is_cancelled()
    running.plan_next(75, 5, "overloaded")
    assert (row(store, "j0").state, row(store, "j0").exit_code) == (JobState.CANCELLED, 143)
    assert (store.cancel("s", None), store.retry("s", None)) == (1, 3)
    again = row(store, "j0")
    assert (again.state, again.attempt, again.tries, again.is_cancelled, again.exit_code) == (
        *(JobState.QUEUED, 2, 0, False, None),
    )


def test_a_running_job_that_was_cancelled_ends_when_it_is_taken_over(store) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    taken(store, "j0")
    store.cancel("s", None)
    assert take(store, "j0", by="w-2") is None
    assert row(store, "j0").state is JobState.CANCELLED


def test_only_ended_jobs_are_retried_and_of_a_set_only_those_that_failed(store) -> None:
    store.submit("s", NO_LIMITS, jobs(3))
    for name, code in (("j0", 0), ("j1", 74)):
        held(store, name).end(code, "")
    assert store.retry("s", None) == 1
    assert [one.state for one in store.job_rows("s")] == [JobState.DONE, JobState.QUEUED, JobState.QUEUED]
    assert store.retry("s", ["j0", "j2"]) == 1


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_known_as_kept_is_adopted_without_a_change(store, ends: bool) -> None:
    store.submit("s", NO_LIMITS, jobs(1))
    first = held(store, "j0")
    kept = KeptRow(
        set_name="s",
        job="j0",
        generation=1,
        place="p",
        machine="m",
        path="/old/s/j0/1.w-1/work.bundle",
        tries=2,
    )
    first.keep(kept)
    if ends:
        first.end(77, "", is_delivered=False)
        store.retry("s", ["j0"])
    else:
        first.plan_next(75, 0, "", is_delivered=False)
    known = store.kept_at("p")
    moved = replace(kept, path="/new/s/j0/1.w-1", tries=0)
    assert store.adopt(moved, "w-1") is Adoption.OURS
    assert store.kept_at("p") == known
    assert store.adopt(replace(moved, path="/new/s/j0/1.w-2"), "w-2") is Adoption.UNKNOWN, (
        "another store has this job too"
    )
    assert store.adopt(replace(moved, place="elsewhere"), "w-1") is Adoption.TOLD


def test_the_log_of_a_job_is_read_from_a_number_on(store) -> None:
    store.submit("s", NO_LIMITS, jobs(2))
    for number, name in enumerate(("j0", "j1", "j0")):
        held(store, name, by=f"w-{number}").add_log(f"{name} {number}\n")
    first, second = store.log_lines("s", "j0")
    assert ((first[1], second[1]), store.log_lines("s", "j0", first[0])) == (("j0 0\n", "j0 2\n"), [second])
