"""`ralph fleet work`: a supervisor that forks one process for each job slot, and the process of a slot.

The supervisor has one thread and no open connection when it forks. A slot is an executor with an id and a lock of its
own. It works for one set, on one job at a time. If it was silent for too long and another worker took its job, it ends,
and the supervisor starts a new one with a new id.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import re
import secrets
import select
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ralph.fleet.attempt import LostError, MachineError, Stop, Takeup, Worker
from ralph.fleet.checkouts import places_of_jobs
from ralph.fleet.checkpoint import BadStateError
from ralph.fleet.database import StoreError, Waiting, WaitStoppedError, patiently, prepare, refuse_pooler
from ralph.fleet.decisions import JobState, worst_exit_code
from ralph.fleet.engine import Engine, end_attempt
from ralph.fleet.job_content import UnknownFormatError
from ralph.fleet.job_process import STOPS_WITHIN_S, exit_code_left, fingerprint, why_not_here
from ralph.fleet.jobs import SetLimits
from ralph.fleet.listing import progress_line
from ralph.fleet.locks import take_lock
from ralph.fleet.portable_rows import refuse_other_forms, refuse_pickles
from ralph.fleet.rows import Kept, NotOurs, OpenSet, TakeUp
from ralph.fleet.takeups import Adopted, WorkerStore
from ralph.fleet.undelivered import BUNDLE, CHECKOUT, LEFT_SUFFIX, MOST_BYTES, Undelivered
from ralph.machine.inbox import ONE_SIGNAL_S, STOP_SIGNALS, StopEvent
from ralph.machine.own_process import end_with_parent
from ralph.machine.trees import remove_tree_if_possible
from ralph.values.credentials import known_secrets
from ralph.values.outcome import CannotError, Outcome
from ralph.values.redaction import Redactor
from ralph.values.tool_calls import describe_bug

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.database import Database
    from ralph.fleet.rows import JobRow

    T = TypeVar("T")

DRAIN_S = 20.0
"""How long a running job may go on after the first SIGTERM, before it is handed back. Kubernetes kills after 30 s."""
_TICK_S = 0.5
_ASK_S = 1.0
PUSH_S = 90.0
"""After the drain, a job may take so long to push. A git host may never answer: then its work is kept here."""
HAND_BACK_S = 120.0
"""After the drain, a job may take so long to be handed back."""
_SUPERVISE_S = 1.0
_LOOK_AFTER_OTHERS_S = 5.0
_IDLE_S = 3.0
_LOOK_FOR_OTHER_SETS_S = 1.0
"""A slot whose set has nothing to begin ends after this time, if another set has something."""
_RESTART_S = 1.0
_LONGEST_RESTART_S = 60.0
_LOST_EXIT = 3
_IDLE_EXIT = 0
_STORE_EXIT = 4
_BUG_EXIT = 70
_REFUSED_EXITS = {Outcome.AUTH.exit_code(), Outcome.CONFIG.exit_code()}
_RELEASE_S = 2.0
_RECONCILE_S = 60.0
_TURN_S = 10.0
"""A slot works so long for its set before it goes to one for which nobody works."""
_HARD_STOP_S = 8.0
_LOCK_SUFFIX = ".lock"
_EXECUTOR = re.compile(r"[A-Za-z0-9_-]+-[0-9]+-[0-9a-f]{8}")


class WorkOptions(Struct, frozen=True, kw_only=True):
    slots: int
    sets: tuple[str, ...] = ()
    """The sets to work for. Empty means all."""
    until_done: bool = False
    """Whether to end when all jobs have ended."""
    drain_s: float = DRAIN_S
    writable: tuple[str, ...] = ()
    """The places that commands of jobs may write, by `places_of_jobs`."""


def work(
    database: Database, options: WorkOptions, environment: Mapping[str, str], tell: Callable[[str], None]
) -> int:
    """Works until it is told to stop, and returns the exit code. Raises StoreError and CannotError."""
    places = places_of_jobs(environment, database.folder / "work")
    return _Supervisor(database, replace(options, writable=places), environment, tell).run()


class _Supervisor:
    def __init__(
        self,
        database: Database,
        options: WorkOptions,
        environment: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self._database = database
        self._options = options
        self._environment = environment
        self._tell = tell
        self._slots: dict[int, str | None] = {}
        """The processes, and their sets. None for the one that delivers."""
        self._undelivered = Undelivered(database.folder)
        self._looks_at_all_kept = True
        self._may_deliver_at = 0.0
        self._is_full = False
        self._signals: list[int] = []
        self._may_fork_at = 0.0
        self._restart_s = _RESTART_S
        self._refused: int | None = None
        """The exit code of a slot whose key or settings were refused while no other slot was at work."""
        self._worked = mmap.mmap(-1, 1)

    def run(self) -> int:
        stop = StopEvent()
        waiting = Waiting(self._database, self._tell, stop, outlasts_full_disk=lambda: True)

        def heard(number: int, _frame: object) -> None:
            self._signals.append(number)
            stop.set()
            self._stop_slots()

        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` leaves SIGHUP
                signal.signal(number, heard)
        codes: Iterable[int] = ()
        with suppress(WaitStoppedError):
            patiently(self._prepare, waiting=waiting)
            _remove_left_folders(self._database)
            for left in self._undelivered.left():
                self._tell(f"{left} has work that could not be kept elsewhere: look at it, and remove it")
            patiently(lambda: refuse_pooler(self._database), waiting=waiting)
            self._from_store(WorkerStore.create, waiting)
            patiently(lambda: refuse_other_forms(self._database), waiting=waiting)
            self._tell(f"working on {self._database.safe_text} with {_counted(self._options.slots, 'slot')}")
            try:
                codes = self._supervise(waiting)
            except StoreError:
                # They may still reach the store, through connections of their own. If not, they keep their work here.
                self._stop_slots()
                self._wait_for_slots()
                raise
        self._wait_for_slots()
        if not self._signals:
            return worst_exit_code(codes)
        return 0 if self._signals[0] == signal.SIGTERM else 128 + self._signals[0]

    def _prepare(self) -> None:
        prepare(self._database)
        self._undelivered.identity()  # a full disk has no room for it later
        _refuse_mounted(self._undelivered.folder, self._database.folder / "work")

    def _from_store(self, call: Callable[[WorkerStore], T], waiting: Waiting) -> T:
        """Asks the store. The connection is closed afterwards: a fork must not inherit one."""

        def asked() -> T:
            store = WorkerStore(self._database)
            try:
                return call(store)
            finally:
                store.close()

        return patiently(asked, waiting=waiting)

    def _rows(self, store: WorkerStore) -> list[OpenSet]:
        """The sets with open jobs."""
        wanted = self._options.sets
        return [row for row in store.open_sets() if row.open_jobs and (not wanted or row.name in wanted)]

    def _supervise(self, waiting: Waiting) -> Iterable[int]:
        """Returns the exit codes of the jobs, if all have ended and the worker was to end then. If nothing can be done here,
        returns the code that says so.
        """
        while not self._signals:
            self._reap()
            if self._refused is not None:
                self._tell(
                    "no job can be done with the key and the settings of this machine: this worker ends"
                )
                self._stop_slots()
                return (self._refused,)
            rows = self._from_store(self._rows, waiting)
            delivers = self._from_store(self._has_to_deliver, waiting)
            if not rows and not self._slots and not delivers and self._options.until_done:
                return self._from_store(self._all_ended, waiting)
            slots = [name for name in self._slots.values() if name is not None]
            names = [] if self._is_at_the_bound() else _wanted(rows, slots, self._options.slots)
            for name in [*([None] if delivers else []), *names]:
                if time.monotonic() >= self._may_fork_at and not self._signals:
                    self._fork(name)
            waiting.stop.wait(_SUPERVISE_S)
        return ()

    def _all_ended(self, store: WorkerStore) -> Iterable[int]:
        """Says how the jobs have ended, and returns their exit codes."""
        codes = store.exit_codes(self._options.sets)
        rows = [row for row in store.set_rows() if not self._options.sets or row.name in self._options.sets]
        advice = (
            "; ralph fleet retry --failed lets those run again that did not end with 0" if any(codes) else ""
        )
        self._tell(f"all jobs have ended: {progress_line(rows)}{advice}")
        return codes

    def _has_to_deliver(self, store: WorkerStore) -> bool:
        """Whether this machine keeps something that is to be delivered or removed now."""
        if None in self._slots.values() or time.monotonic() < self._may_deliver_at:
            return False
        self._may_deliver_at = time.monotonic() + _LOOK_AFTER_OTHERS_S
        looks, self._looks_at_all_kept = self._looks_at_all_kept and any(self._undelivered.all()), False
        kept = store.kept_at(self._undelivered.identity())
        return looks or any(
            one.is_over or (is_due and _is_ours(row, self._options)) for one, row, is_due in kept
        )

    def _is_at_the_bound(self) -> bool:
        was_full, self._is_full = self._is_full, self._undelivered.is_full()
        if self._is_full and not was_full:
            self._tell(
                f"{self._undelivered.folder} has {MOST_BYTES >> 20:,} MiB of work that was not delivered: no job begins here "
                "until it is delivered or discarded (ralph fleet ls)"
            )
        return self._is_full

    def _fork(self, set_name: str | None) -> None:
        # A signal between the fork and the child's own handlers would be lost.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            if self._signals:  # it came a moment ago, and its handler could not tell this slot
                return
            supervisor = os.getpid()
            process_id = os.fork()
            if process_id == 0:
                self._become_slot(set_name, supervisor)
            self._slots[process_id] = set_name
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _become_slot(self, set_name: str | None, supervisor: int) -> NoReturn:
        code = _BUG_EXIT
        try:
            refuse_pickles()
            kind = _Slot if set_name is not None else _Courier
            slot = kind(
                self._database,
                self._options,
                self._environment,
                set_name or "",
                self._tell,
                worked=self._worked,
            )
            code = slot.run(supervisor)
        except BaseException as error:  # noqa: BLE001 - a forked process must never return into the supervisor
            self._tell(f"a slot ended: {self._database.without_password(str(error))}")
        finally:
            os._exit(code)

    def _reap(self) -> None:
        for process_id in list(self._slots):
            ended, status = os.waitpid(process_id, os.WNOHANG)
            if ended:
                del self._slots[process_id]
                if status == 0:
                    self._restart_s = _RESTART_S
                else:
                    self._may_fork_at = time.monotonic() + self._restart_s
                    self._restart_s = min(2 * self._restart_s, _LONGEST_RESTART_S)
                    self._looks_at_all_kept = True
                    _remove_left_folders(self._database)
                code = os.waitstatus_to_exitcode(status)
                if code in _REFUSED_EXITS and not any(self._slots.values()):
                    self._refused = code

    def _stop_slots(self) -> None:
        for process_id in self._slots:
            with suppress(OSError):  # it has ended
                os.kill(process_id, signal.SIGTERM)

    def _wait_for_slots(self) -> None:
        """Waits for the slots, which were told to stop. A second signal ends them."""
        if self._slots:
            self._tell(
                f"stopping: what runs has {self._options.drain_s:g} s to end, then it is handed back "
                "(a second signal ends them now)"
            )
        while self._slots:
            self._reap()
            time.sleep(0.05)
        _remove_left_folders(self._database)  # a dying run may have written while its folder was removed


def _wanted(rows: list[OpenSet], slots: list[str], most: int) -> list[str]:
    """The sets for which slots must be started: those with the fewest slots for what they have to do first. A set that has
    nothing to do now still gets one, if one is free: its slot takes over what a lost worker has left.
    """
    counts = {row.name: slots.count(row.name) for row in rows}
    wanted = []
    for _ in range(most - len(slots)):
        useful = [row.name for row in rows if counts[row.name] < row.useful_slots]
        unwatched = [row.name for row in rows if not counts[row.name]]
        if not useful and not unwatched:
            break
        name = min(useful or unwatched, key=lambda name: counts[name])
        counts[name] += 1
        wanted.append(name)
    return wanted


class _Slot:
    """One executor. Its main thread looks after the lock, the queue and other executors. The engine calls `_work` in a
    thread of its own.
    """

    def __init__(
        self,
        database: Database,
        options: WorkOptions,
        environment: Mapping[str, str],
        set_name: str,
        tell: Callable[[str], None],
        *,
        worked: mmap.mmap,
    ) -> None:
        self._database = database
        self._options = options
        self._environment = environment
        self._set_name = set_name
        self._tell = tell
        self._worked = worked
        self._machine = _machine()
        self._undelivered = Undelivered(database.folder)
        self._limits = SetLimits()
        self._executor = f"{self._machine}-{os.getpid()}-{secrets.token_hex(4)}"
        self._heard = -1
        """A pipe with a byte for each signal."""
        self._signals = 0
        self._last_signal_at = -ONE_SIGNAL_S
        self._hard_stop = threading.Event()
        self._lost = threading.Event()
        self._drain_ends: float | None = None
        self._running: Takeup | None = None
        self._is_busy = False
        self._takeup_lock = threading.Lock()
        self._orphans: set[str] = set()
        self._exit_code: int | None = None
        self._idle_since = self._began = time.monotonic()
        self._gives_at = 0.0
        self._waiting = Waiting(database, tell, self._hard_stop, outlasts_full_disk=lambda: True)
        redactor = Redactor(known_secrets(environment))
        self._redact = redactor.redact

    def run(self, supervisor: int) -> int:
        """Works until the slot must end, and returns the exit code of its process."""
        for number in {*STOP_SIGNALS} - {signal.SIGTERM}:
            # A terminal sends some to all; the supervisor passes them on. The handler here is still the supervisor's.
            signal.signal(number, signal.SIG_IGN)
        end_with_parent(supervisor, signal.SIGKILL)
        # The main thread may be in a long call of a library, so another one counts the signals.
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        self._heard, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.Thread(target=self._watch_signals, daemon=True).start()
        try:
            lock = self._ask(lambda: take_lock(self._database, self._executor, tell=self._tell))
            self._lost = lock.lost
            folder = self._database.folder / "work" / self._executor
            folder_lock = self._ask(lambda: _lock_folder(folder))
        except WaitStoppedError:
            return _IDLE_EXIT
        worker = Worker(
            WorkerStore(self._database),
            lock,
            # A job that is to end does not wait for room in the store: its work is kept, and the next worker tells it.
            Waiting(
                self._database, self._tell, self._hard_stop, outlasts_full_disk=lambda: not self._is_over()
            ),
            machine=self._machine,
            folder=folder,
            repositories=self._database.folder / "repositories",
            undelivered=self._undelivered,
            hidden=self._database.private_places,
            environment=self._environment,
            writable=self._options.writable,
            worked=self._worked,
            tell=self._tell,
            redact=self._redact,
        )
        try:
            self._serve(worker)
        except WaitStoppedError:
            pass  # the reason is looked at below
        except StoreError as error:
            self._tell(str(error))
            self._exit_code = _STORE_EXIT
            self._hard_stop.wait()  # until what runs has ended, or was kept here
        finally:
            self._leave(worker, folder_lock)
        return _LOST_EXIT if lock.lost.is_set() else self._exit_code or _IDLE_EXIT

    def _ask(self, call: Callable[[], T]) -> T:
        """Asks the store in the main thread, which waits until the slot ends."""
        return patiently(call, waiting=self._waiting)

    def _is_over(self) -> bool:
        """Whether the time of a drain is over."""
        return self._drain_ends is not None and time.monotonic() > self._drain_ends

    def _serve(self, worker: Worker) -> None:
        limits = self._ask(lambda: worker.store.limits(self._set_name))

        def work(*job: Any) -> None:
            self._work(worker, "/".join(job[:2]), functools.partial(self._taken, worker, *job))

        engine = Engine(self._database, self._executor, self._set_name, work)
        self._ask(lambda: engine.launch(limits))
        self._limits = limits
        self._look_after(worker, engine)

    def _leave(self, worker: Worker, folder_lock: int) -> None:
        """Stops the job, and leaves nothing of this executor behind."""
        lock = worker.lock
        self._hard_stop.set()
        self._wait_for_takeup()
        if lock.lost.is_set():
            self._tell(f"{self._executor} was silent and was taken over: its job was stopped")
        _remove_work(worker.folder, self._undelivered)
        if not worker.folder.exists():
            with suppress(OSError):
                worker.folder.with_name(f"{worker.folder.name}{_LOCK_SUFFIX}").unlink()
        os.close(folder_lock)
        if not lock.lost.is_set():
            with suppress(Exception):  # the row only tells `ls` who works; it is old after a minute
                worker.store.executor_gone(self._executor)
            lock.close()

    # --- the thread of the engine

    def _work(self, worker: Worker, name: str, take: Callable[[], TakeUp | None]) -> None:
        """Works on one attempt, which `take` begins. If the job is lost, or the process ends, it never returns: the engine must not record
        the end of a workflow that another worker continues.
        """
        try:
            with self._takeup_lock:
                self._is_busy = not (self._signals or self._hard_stop.is_set())
            if not self._is_busy:
                self._for_ever()
            taken = worker.ask(take)
            if taken is None:
                return self._end_work()
            takeup = Takeup(worker, taken)
            with self._takeup_lock:
                self._running = takeup
            try:
                takeup.run()
            finally:
                with self._takeup_lock:
                    self._running = None
            self._end_work()
        except MachineError as error:
            # The next job would fail here as fast. The supervisor waits longer before each slot.
            self._tell(f"{self._redact(str(error))}: this slot pauses")
            self._exit_code = error.outcome.exit_code()
            self._end_work()
        except LostError:
            self._tell(f"{name}: another worker has taken over this job; nothing was pushed")
            self._exit_code = _LOST_EXIT
            self._for_ever()
        except WaitStoppedError:
            self._for_ever()
        except StoreError as error:
            self._tell(str(error))
            self._exit_code = _STORE_EXIT
            self._for_ever()
        except Exception as error:  # noqa: BLE001 - the workflow must stay open: a survivor takes the job over
            self._tell(f"{name}: {self._database.without_password(describe_bug(error))}")
            self._exit_code = _BUG_EXIT
            self._for_ever()

    def _end_work(self) -> None:
        with self._takeup_lock:
            self._is_busy = False
            self._idle_since = time.monotonic()

    def _taken(self, worker: Worker, set_name: str, job: str, attempt: int) -> TakeUp | None:
        row = worker.store.job_row(set_name, job)
        if row is None:
            return None
        base_url = model = refused = None
        with suppress(UnknownFormatError):  # the takeup refuses it with the reason
            base_url, model = row.job.base_url, row.job.model
            refused = why_not_here(row.job, self._environment, worker.folder)
        if refused is not None:
            worker.store.begin_again(
                set_name, job, attempt, row.generation, self._redact(f"{self._machine}: {refused}")
            )
            raise worker.refusal(refused, Outcome.CONFIG)
        if self._undelivered.is_full():
            reason = f"{self._machine} keeps too much work that was not delivered"
            worker.store.begin_again(set_name, job, attempt, row.generation, reason)
            return None
        taken = worker.store.take_up(
            set_name,
            job,
            attempt,
            executor=self._executor,
            machine=self._machine,
            credential=fingerprint(self._environment, base_url, model),
        )
        if isinstance(taken, TakeUp):
            self._tell(f"{set_name}/{job}: attempt {attempt}")
            return taken
        if not isinstance(taken, NotOurs):
            self._tell(f"{set_name}/{job}: later: {taken.reason}")
        return None

    def _for_ever(self) -> None:
        self._end_work()
        while True:
            time.sleep(3600)

    # --- the main thread

    def _look_after(self, worker: Worker, engine: Engine) -> None:
        """Tends the queue until the slot must end. Raises WaitStoppedError then, too."""
        every: dict[Callable[[Worker, Engine], None], float] = {
            self._give: _TICK_S,
            self._ask_about_own: _ASK_S,
            self._release: _RELEASE_S,
            self._take_over: _LOOK_AFTER_OTHERS_S,
            self._renew_limits: _LOOK_AFTER_OTHERS_S,
            self._reconcile: _RECONCILE_S,
        }
        due_at = dict.fromkeys(every, 0.0)
        due_at[self._reconcile] = time.monotonic() + _RECONCILE_S
        next_look_at = 0.0
        while not self._hard_stop.wait(_TICK_S):
            for task, every_s in every.items():
                if time.monotonic() >= due_at[task]:
                    self._ask(functools.partial(task, worker, engine))
                    due_at[task] = time.monotonic() + every_s
            if time.monotonic() >= next_look_at:
                if self._is_idle(worker):
                    return
                next_look_at = time.monotonic() + _LOOK_FOR_OTHER_SETS_S

    def _release(self, worker: Worker, _engine: Engine) -> None:
        worker.store.release_waiting(self._set_name)

    def _reconcile(self, worker: Worker, engine: Engine) -> None:
        """Plans the next attempt of jobs whose workflow the engine does not have any more. It is not seen in practice,
        and would be a lost job.
        """
        unended = worker.store.unended(self._set_name)
        ids = {
            f"{self._set_name}/{job}/{attempt}": (job, attempt, generation)
            for job, attempt, generation in unended
        }
        for workflow in ids.keys() - engine.live(list(ids)):
            worker.store.begin_again(self._set_name, *ids[workflow], "the engine had lost it")
            self._tell(f"{workflow.rpartition('/')[0]}: the engine had lost it; it begins again")

    def _renew_limits(self, worker: Worker, engine: Engine) -> None:
        worker.store.seen(self._executor, self._machine, self._set_name)
        limits = worker.store.limits(self._set_name)
        if limits != self._limits:
            engine.set_limits(limits)
            self._limits = limits

    def _give(self, worker: Worker, engine: Engine) -> None:
        """Gives the engine what is due. A slot at work does so seldom: an idle one asks for itself."""
        with self._takeup_lock:
            is_busy = self._is_busy
        if is_busy and time.monotonic() < self._gives_at:
            return
        self._gives_at = time.monotonic() + _LOOK_AFTER_OTHERS_S
        due = worker.store.due_jobs(self._set_name)
        for job in due:
            engine.enqueue(job, self._limits)
        if due:
            worker.store.mark_queued(self._set_name, due)
            self._idle_since = time.monotonic()

    def _ask_about_own(self, worker: Worker, _engine: Engine | None = None) -> None:
        """Stops the running job if a user has cancelled it or another worker has taken it."""
        with self._takeup_lock:
            running = self._running
        if running is not None:
            is_ours, is_cancelled = worker.store.is_current(running.taken)
            if not is_ours:
                running.stop(Stop.LOST)
            elif is_cancelled:
                running.stop(Stop.CANCELLED)

    def _take_over(self, worker: Worker, engine: Engine) -> None:
        """Puts the workflows of executors that are gone back into the queue, and this executor's own orphans."""
        pending = engine.pending()
        own = set(pending.pop(self._executor, ()))
        for executor in worker.lock.gone(pending):
            with worker.lock.try_take_over(executor) as is_held:
                if is_held:
                    _clean_up(worker.folder.with_name(executor), self._undelivered)
                    for place, generation, left_by in self._undelivered.all():
                        if left_by == executor:  # it was killed before it could tell
                            with suppress(BadStateError):
                                self._adopt(worker, self._undelivered.identity(), place, generation, executor)
                    theirs = engine.pending().get(executor, [])
                    engine.resume(theirs)
                    worker.store.executor_gone(executor)
                    for workflow in theirs:
                        self._tell(
                            f"{workflow.rpartition('/')[0]}: taken over from {executor}, which is gone"
                        )
        with self._takeup_lock:
            is_working = self._is_busy
        # A workflow of this executor that nothing here works on, seen twice: the engine lost it in an outage.
        orphans = set() if is_working else own
        engine.resume(sorted(orphans & self._orphans))
        self._orphans = orphans

    def _is_free(self, worker: Worker, row: JobRow) -> bool:
        """Whether nobody works on a job that this machine keeps. Only its own processes do."""
        return row.state is JobState.QUEUED or _is_gone(worker.folder.with_name(row.holder or "none"))

    def _adopt(self, worker: Worker, identity: str, place: Path, generation: int, executor: str) -> None:
        """Takes what the store does not know as its own, if its worker is gone and nobody has taken up the job since."""
        work = self._undelivered.work_at(place)
        if not _is_gone(worker.folder.with_name(executor)):
            return
        kept = Kept(
            set_name=place.parts[-3],
            job=place.parts[-2],
            generation=generation,
            place=identity,
            machine=self._machine,
            path=str(place / BUNDLE if work is not None else place),
        )
        adopted = worker.store.adopt(kept, executor)
        if adopted is Adopted.TOLD and work is None:  # it was moved out of `fleet/work` a moment ago
            self._undelivered.remove(kept)
        elif adopted is Adopted.TAKEN_OVER:
            self._tell(f"{place} has work of a job that another worker took over: look at it, and remove it")
        elif adopted is not Adopted.OURS:
            self._tell(f"{place} is of no job of this store that waits for it: look at it, and remove it")

    def _is_idle(self, worker: Worker) -> bool:
        """Whether the set has no open jobs, or another set has more use for this slot."""
        with self._takeup_lock:
            if self._is_busy:
                return False
            if self._undelivered.is_full():
                return True
            idle_s = time.monotonic() - self._idle_since
        rows = self._ask(worker.store.open_sets)
        own = next((row for row in rows if row.name == self._set_name), None)
        if own is None:
            return True
        age_s = time.monotonic() - self._began
        for row in rows:
            if row.name == self._set_name or (self._options.sets and row.name not in self._options.sets):
                continue
            if idle_s > _IDLE_S and row.due_jobs:
                return True
            if age_s > _TURN_S and not row.workers and row.useful_slots:
                return True
        return False

    def _watch_signals(self) -> None:
        """Stops the running job when a signal, a loss or a store that cannot be used asks for it. It has a thread of its
        own: the others may be waiting for the store.
        """
        while not self._hard_stop.is_set():
            if select.select([self._heard], (), (), _TICK_S / 2)[0]:
                self._count_signals()
            with self._takeup_lock:
                running, is_busy = self._running, self._is_busy
            if self._lost.is_set() or self._exit_code == _LOST_EXIT:
                if running is not None:
                    running.stop(Stop.LOST)
                break
            is_broken = self._exit_code is not None
            if not (self._signals or is_broken):
                continue
            now = time.monotonic()
            if self._drain_ends is None or (is_broken and self._drain_ends > now):
                self._drain_ends = now + (0 if is_broken else self._options.drain_s)
            if must_end_now(self._signals, now - self._drain_ends):
                if running is not None:
                    running.stop(Stop.AT_ONCE)
                break
            if not is_busy:
                break
            if now > self._drain_ends and running is not None:
                push_s = STOPS_WITHIN_S if is_broken else PUSH_S
                running.stop(Stop.DRAINED if now < self._drain_ends + push_s else Stop.AT_ONCE)
        self._hard_stop.set()
        time.sleep(_HARD_STOP_S)  # the main thread ends the process before, unless the engine's library waits
        os._exit(_LOST_EXIT)

    def _count_signals(self) -> None:
        """Counts the signals that have come, those of one second as one."""
        os.read(self._heard, 512)
        now = time.monotonic()
        if now - self._last_signal_at > ONE_SIGNAL_S:
            self._signals += 1
        self._last_signal_at = now

    def _wait_for_takeup(self) -> None:
        """Waits until the running takeup has ended its process."""
        until = time.monotonic() + _HARD_STOP_S / 2
        while time.monotonic() < until:
            with self._takeup_lock:
                if not self._is_busy:
                    return
            time.sleep(0.05)


class _Courier(_Slot):
    """Delivers what this machine keeps, beside the slots and without the engine: it asks no model, and the jobs may be taken
    by this machine alone.
    """

    def _serve(self, worker: Worker) -> None:
        delivering = ThreadPoolExecutor(1).submit(self._deliver_all, worker)
        while not delivering.done():
            if self._hard_stop.wait(_TICK_S):
                return
            self._ask(functools.partial(self._ask_about_own, worker))
        delivering.result()

    def _deliver_all(self, worker: Worker) -> None:
        identity = self._undelivered.identity()
        known = {
            self._undelivered.place_at(one) for one, *_ in worker.ask(lambda: worker.store.kept_at(identity))
        }
        for place, generation, executor in self._undelivered.all():
            if place not in known:
                try:
                    worker.ask(functools.partial(self._adopt, worker, identity, place, generation, executor))
                except BadStateError as error:
                    self._tell(f"{error}: look at it, and remove it")
        for kept, row, is_due in worker.ask(lambda: worker.store.kept_at(identity)):
            if is_due and _is_ours(row, self._options) and not kept.is_over and self._is_free(worker, row):
                self._work(
                    worker, f"{kept.set_name}/{kept.job}", functools.partial(self._begun, worker, kept, row)
                )
        for kept, *_ in worker.ask(lambda: worker.store.kept_at(identity)):
            if kept.is_over:
                self._undelivered.remove(kept)
                worker.ask(functools.partial(worker.store.forget, kept))

    def _begun(self, worker: Worker, kept: Kept, row: JobRow) -> TakeUp | None:
        if row.state is JobState.RUNNING:  # its worker was killed, and maybe no slot comes to resume it
            end_attempt(self._database, kept.set_name, kept.job, row.attempt)
        taken = worker.store.take_to_deliver(kept, row, executor=self._executor, machine=self._machine)
        if isinstance(taken, NotOurs):
            return None
        self._tell(f"{kept.set_name}/{kept.job}: delivering {kept.path}")
        return taken


def _is_ours(row: JobRow, options: WorkOptions) -> bool:
    """Whether a worker with these options may deliver this job now, if nobody does."""
    is_open = row.state in {JobState.QUEUED, JobState.RUNNING}
    return is_open and (not options.sets or row.set_name in options.sets)


def must_end_now(signals: int, since_drain_s: float) -> bool:
    """Whether a slot with a job ends without handing it back. `since_drain_s` is the time since the end of the drain."""
    return signals > 1 or since_drain_s > HAND_BACK_S


def _machine() -> str:
    """The name of the machine, in characters that an executor's id may have."""
    name = socket.gethostname().partition(".")[0]
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[:60] or "machine"


def _lock_folder(folder: Path) -> int:
    """Makes the folder of an executor, and a lock beside it that is held while the process lives. Returns the lock's
    descriptor. Raises OSError.
    """
    lock = folder.with_name(f"{folder.name}{_LOCK_SUFFIX}")
    lock.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # another process has just opened the lock to remove it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.stat().st_ino == os.fstat(descriptor).st_ino:
                folder.mkdir(mode=0o700, exist_ok=True)
                return descriptor
        os.close(descriptor)


def _is_gone(folder: Path) -> bool:
    """Whether the executor of this machine whose folder this is, or was, has ended."""
    try:
        descriptor = os.open(folder.with_name(f"{folder.name}{_LOCK_SUFFIX}"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _remove_left_folders(database: Database) -> None:
    """Cleans up the folders of this machine's executors whose process is gone. Other machines may share the state
    directory.
    """
    place = database.folder / "work"
    # A run that was just dying may have made its folder anew after the folder and its lock had been removed.
    for name in {path.name.removesuffix(_LOCK_SUFFIX) for path in place.glob(f"{_machine()}-*")}:
        if name.rsplit("-", 2)[0] == _machine():
            _clean_up(place / name, Undelivered(database.folder))


def _clean_up(folder: Path, undelivered: Undelivered) -> None:
    """Removes the folder of an executor as `_remove_work` does, and its lock, if its process is gone. A container may have had
    another name when it made the folder.
    """
    if not _EXECUTOR.fullmatch(folder.name):
        return
    lock = folder.with_name(f"{folder.name}{_LOCK_SUFFIX}")
    with suppress(OSError):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_work(folder, undelivered)
            if not folder.exists():
                lock.unlink()
        finally:
            os.close(descriptor)


def _refuse_mounted(*folders: Path) -> None:
    """Raises CannotError unless the folders are on one file system: work is kept by a rename, which a full disk allows."""
    devices = set()
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
        devices.add(folder.stat().st_dev)
    if len(devices) > 1:
        names = " and ".join(map(str, folders))
        raise CannotError(f"{names} must be on one file system: mount the folder above them instead")


def _remove_work(folder: Path, undelivered: Undelivered) -> None:
    """Removes the folder of an executor that has ended. The folder of a takeup whose process had ended before is kept, as
    its work was paid for: if it cannot be moved, it stays.
    """
    for path in folder.glob("*/*"):
        job, _, generation = path.name.rpartition(".")
        if path.name.endswith(LEFT_SUFFIX) and (path / CHECKOUT).exists():
            continue
        with suppress(OSError):
            if not generation.isdecimal() or exit_code_left(path) is None:  # an older ralph gave no number
                remove_tree_if_possible(path)
            else:
                undelivered.make_room(path.parent.name, job)
                place = undelivered.place_of(path.parent.name, job, int(generation), folder.name)
                undelivered.move(path, place)
    for path in (*folder.glob("*"), folder):
        with suppress(OSError):
            path.rmdir()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
