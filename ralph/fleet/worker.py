"""`ralph fleet work`: a supervisor that forks one process for each job slot.

The supervisor has one thread and no open connection when it forks. If a slot was silent for too long and another worker took
its job, it ends, and the supervisor starts a new one with a new id.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from ralph.fleet.checkouts import git_terms
from ralph.fleet.decisions import worst_exit_code
from ralph.fleet.listing import progress_line
from ralph.fleet.slot import BUG_EXIT, LOOK_AFTER_OTHERS_S, Courier, Slot, WorkOptions, is_open
from ralph.fleet.store.claims import Claims
from ralph.fleet.store.database import (
    StoreError,
    WaitOptions,
    WaitStoppedError,
    patiently,
    prepare,
    refuse_pooler,
)
from ralph.fleet.store.schema import refuse_other_forms, refuse_pickles
from ralph.fleet.undelivered import MOST_BYTES, Undelivered, remove_left_folders
from ralph.machine.waiter import STOP_SIGNALS, StopEvent
from ralph.values.outcome import CannotError, Outcome
from ralph.values.screen_text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from ralph.fleet.store.claims import OpenSet
    from ralph.fleet.store.database import Database

    T = TypeVar("T")

_SUPERVISE_S = 1.0
_RESTART_S = 1.0
_LONGEST_RESTART_S = 60.0
_REFUSED_EXITS = {Outcome.AUTH.exit_code(), Outcome.CONFIG.exit_code()}


def work(
    database: Database, options: WorkOptions, environment: Mapping[str, str], tell: Callable[[str], None]
) -> int:
    """Works until it is told to stop, and returns the exit code. Raises StoreError and CannotError."""
    terms = git_terms(environment, database.folder / "work")
    return Supervisor(database, replace(options, terms=terms), environment, tell).run()


class Supervisor:
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
        waiting = WaitOptions(self._database, self._tell, stop, outlasts_full_disk=lambda: True)

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
            remove_left_folders(self._database.folder)
            for left in self._undelivered.left():
                self._tell(f"{left} has work that could not be kept elsewhere: check it, then remove it")
            patiently(lambda: refuse_pooler(self._database), waiting=waiting)
            self._from_store(Claims.create, waiting)
            patiently(lambda: refuse_other_forms(self._database), waiting=waiting)
            self._tell(f"working on {self._database.safe_text} with {counted(self._options.slots, 'slot')}")
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

    def _from_store(self, call: Callable[[Claims], T], waiting: WaitOptions) -> T:
        """Asks the store. The connection is closed afterwards: a fork must not inherit one."""

        def asked() -> T:
            with closing(Claims(self._database)) as store:
                return call(store)

        return patiently(asked, waiting=waiting)

    def _supervise(self, waiting: WaitOptions) -> Iterable[int]:
        """Returns the exit codes of the jobs, if all have ended and the worker was to end then. If nothing can be done here,
        returns the code that says so.
        """
        while not self._signals:
            self._reap()
            if self._refused is not None:
                self._tell("no job can run with the key and the settings of this machine: this worker ends")
                self._stop_slots()
                return (self._refused,)
            rows = [row for row in self._from_store(Claims.open_sets, waiting) if row.open_jobs]
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

    def _all_ended(self, store: Claims) -> Iterable[int]:
        codes, rows = store.exit_codes(), store.set_rows()
        advice = (
            "; ralph fleet retry --failed lets those run again that did not end with 0" if any(codes) else ""
        )
        self._tell(f"all jobs have ended: {progress_line(rows)}{advice}")
        return codes

    def _has_to_deliver(self, store: Claims) -> bool:
        """Whether this machine keeps something that is to be delivered or removed now."""
        if None in self._slots.values() or time.monotonic() < self._may_deliver_at:
            return False
        self._may_deliver_at = time.monotonic() + LOOK_AFTER_OTHERS_S
        looks, self._looks_at_all_kept = self._looks_at_all_kept and any(self._undelivered.all()), False
        kept = store.kept_at(self._undelivered.identity())
        return looks or any(one.is_over or (is_due and is_open(row)) for one, row, is_due in kept)

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
        code = BUG_EXIT
        try:
            refuse_pickles()
            kind = Slot if set_name is not None else Courier
            environment = self._environment
            slot = kind(
                self._database, self._options, environment, set_name or "", self._tell, worked=self._worked
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
                    remove_left_folders(self._database.folder)
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
                f"stopping: running jobs have {self._options.drain_s:g} s to end, then they are handed back "
                "(a second signal ends them now)"
            )
        while self._slots:
            self._reap()
            time.sleep(0.05)
        # A dying run may have written while its folder was removed.
        remove_left_folders(self._database.folder)


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


def _refuse_mounted(*folders: Path) -> None:
    """Raises CannotError unless the folders are on one file system: work is kept by a rename, which a full disk allows."""
    devices = set()
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
        devices.add(folder.stat().st_dev)
    if len(devices) > 1:
        names = " and ".join(map(str, folders))
        raise CannotError(f"{names} must be on one file system: mount the folder above them instead")
