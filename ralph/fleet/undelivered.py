"""The folders of executors on this machine, and the work in them that a git host did not take: it is kept here until it is
delivered or discarded.

Each claim that left such work has a folder. It is the claim's own folder with the checkout, renamed to its place, which
needs neither room nor time. Then a bundle takes the place of the checkout. A lock beside the folder of an executor is held
while its process lives, so that others find what a dead one has left.
Nothing here removes a folder because of its age or its size.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ralph.fleet.checkouts import LARGE
from ralph.fleet.job_process import BadStateError, exit_code_left
from ralph.fleet.jobs import Final  # noqa: TC001 - msgspec decodes it
from ralph.machine.files.opened_file import (
    closed_after,
    is_locked,
    locked_file,
    opened,
    read_regular_file,
    sync_directory,
)
from ralph.machine.files.trees import entries_below, remove_tree, remove_tree_if_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.fleet.schema import KeptRow

FOLDER = "undelivered"
BUNDLE, CHECKOUT = "work.bundle", "checkout"
_RECORD, _STATE = "record.json", "session"
LEFT_SUFFIX = ".left"
"""Ends the name of a claim's folder in `fleet/work` with work that could not be moved to this folder."""
MOST_BYTES = 1024**3
"""At this size of all that is kept, workers begin no job. It is about what 20 checkpoints of the largest size have, and a
disk has that much."""
_MOST_RECORD_BYTES = 1_000_000
_IDENTITY = "machine"
_NAME = re.compile(r"([0-9]+)\.([A-Za-z0-9_-]+)")
_LOCK_SUFFIX = ".lock"
_EXECUTOR = re.compile(r"[A-Za-z0-9_-]+-[0-9]+-[0-9a-f]{8}")
_AGAIN_S = 0.01


class KeptWork(Struct, frozen=True, kw_only=True):
    """The work that a claim left, written beside the bundle. The set, the job, the claim and the executor are in the path."""

    base: str
    """The commit at which the job began. The bundle needs it."""
    commit: str | None
    """The commit for the job's branch. None if there is none."""
    checkpoint: str | None
    """The commit of the last checkpoint. None if no file had changed, or if the job cannot be resumed."""
    rest: str | None = None
    """The commit with the work that the job has left beside its branch. None if there is none."""
    lacks: str = ""
    """The first paths and branches that are in neither commit, and the number of the others."""
    ending: Final | None
    """How the job ends when its work is delivered. None if it then continues."""
    resumes_at: float
    """When it then continues at the earliest, by this machine's clock."""
    result: str
    """The last answer of the agent."""
    turns: int = 0
    """Turns and cost of the whole job until then."""
    cost_usd: float = 0.0


class Undelivered:
    """The folder `undelivered` of one state directory."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the fleet's folder."""
        self.folder = folder / FOLDER
        self._moved: dict[Path, int] = {}
        """The bytes of the folders with a checkout that were moved here."""

    def identity(self) -> str:
        """The id of this state directory, which is made once. A host's name would not do: containers share them."""
        path = self.folder / _IDENTITY
        while True:
            with suppress(FileNotFoundError):
                return read_regular_file(path, 100).decode("ascii", "replace")
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                new = self.folder / f".{secrets.token_hex(8)}"
                write_file(new, secrets.token_hex(8).encode())
                try:
                    os.link(new, path)
                finally:
                    new.unlink()

    def is_full(self) -> bool:
        size = 0
        for place in [*self._places(), *self.left()]:
            if not (place / CHECKOUT).is_dir():
                size += _size_below(place)
                continue
            if place not in self._moved:  # it does not change, and may have many files
                self._moved[place] = _size_below(place)
            size += self._moved[place]
        return size >= MOST_BYTES

    def place_of(self, set_name: str, job: str, generation: int, executor: str) -> Path:
        """The folder of the work that a claim left. Its name has the executor: another store may have a job of the same name."""
        return self.folder / set_name / job / f"{generation}.{executor}"

    def place_at(self, kept: KeptRow) -> Path:
        """The folder of what a store says is kept here. The state directory may have moved since."""
        path = PurePath(kept.path)
        return self.folder / kept.set_name / kept.job / (path.parent if path.name == BUNDLE else path).name

    def make_job_folder(self, set_name: str, job: str) -> None:
        """Makes the folder for what claims of a job leave, while the disk has room. Raises OSError."""
        folder = self.folder / set_name / job
        while True:
            with suppress(FileNotFoundError):  # another claim has just removed the folder of the set
                for one in (self.folder, folder.parent, folder):
                    one.mkdir(mode=0o700, exist_ok=True)
                return

    def remove_job_folder(self, set_name: str, job: str) -> None:
        """Removes the folder for what claims of a job leave, if there is nothing."""
        folder = self.folder / set_name / job
        for one in (folder, folder.parent):
            with suppress(OSError):  # it has other work
                one.rmdir()

    def move(self, folder: Path, place: Path) -> None:
        """Moves the folder of a claim to the place of what it left. Needs no room on the disk after `make_job_folder`, unless
        another process has removed the empty folder since. Raises OSError.
        """
        try:
            folder.rename(place)
        except FileNotFoundError:
            if place.exists():  # another thread or process of this machine was faster
                return
            self.make_job_folder(place.parent.parent.name, place.parent.name)
            folder.rename(place)
        _sync(place.parent)

    def keep(
        self, work: KeptWork, place: Path, *, state: bytes | None, write: Callable[[int], None] | None
    ) -> None:
        """Writes the files of kept work, the record last, and removes the rest of what was moved to `place`. `write` writes
        the bundle to a descriptor; None if there are no commits. Raises OSError, and what `write` raises.
        """
        new = place / f".{_RECORD}"
        for path, content in (
            (place / BUNDLE, write),
            (place / _STATE, state),
            (new, msgspec.json.encode(work)),
        ):
            if content is not None:
                write_file(path, content)
        new.rename(place / _RECORD)
        _sync(place)
        for path in place.iterdir():
            if path.name not in {BUNDLE, LARGE, _STATE, _RECORD}:
                remove_tree(path)

    def work_at(self, place: Path) -> KeptWork | None:
        """The work that a claim left in a folder. None if there is no bundle, but a whole checkout or nothing. Raises
        BadStateError if the record cannot be read.
        """
        record = place / _RECORD
        try:
            return msgspec.json.decode(read_regular_file(record, _MOST_RECORD_BYTES), type=KeptWork)
        except FileNotFoundError:
            if (place / BUNDLE).exists() and not (place / CHECKOUT).exists():
                raise BadStateError(f"{record} is missing") from None
            return None
        except (OSError, ValueError) as error:
            raise BadStateError(f"{record} cannot be used: {error}") from None

    def state_at(self, place: Path) -> bytes | None:
        """The packed session that was kept in a folder. None if the job cannot be resumed. Raises OSError."""
        with suppress(FileNotFoundError):
            return read_regular_file(place / _STATE, MOST_BYTES)
        return None

    def all(self) -> Iterator[tuple[Path, int, str]]:
        """The folder of all that is kept here, of whichever store, with the claim and the executor that left it."""
        for place in self._places():
            if name := _NAME.fullmatch(place.name):
                yield place, int(name[1]), name[2]

    def left(self) -> list[Path]:
        """The folders of claims whose work could not be moved here."""
        found = paths_below(self.folder.parent, f"work/*/*/*{LEFT_SUFFIX}")
        return [path for path in found if (path / CHECKOUT).exists()]

    def _places(self) -> list[Path]:
        return paths_below(self.folder, "*/*/*")

    def remove(self, kept: KeptRow) -> None:
        """Removes what was delivered or discarded."""
        remove_tree_if_possible(self.place_at(kept))
        self.remove_job_folder(kept.set_name, kept.job)


def paths_below(folder: Path, pattern: str) -> list[Path]:
    """The paths that match, sorted. Begins again where another process has removed a directory meanwhile."""
    while True:
        with suppress(FileNotFoundError):
            return sorted(folder.glob(pattern))


def write_file(path: Path, content: bytes | Callable[[int], None]) -> None:
    """Writes a file that is the user's alone, and syncs it. `content` may write to a descriptor itself."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
            file.flush()
        else:
            content(descriptor)
        os.fsync(descriptor)


def _size_below(folder: Path) -> int:
    """The bytes of the regular files below a folder. What cannot be read, or is just removed, counts as nothing."""
    size = 0
    for entry in entries_below(str(folder)):
        with suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                size += entry.stat(follow_symlinks=False).st_size
    return size


def _sync(folder: Path) -> None:
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        sync_directory(descriptor)


# --- The folder of an executor


def machine_name() -> str:
    """The name of the machine, in characters that an executor's id may have."""
    name = socket.gethostname().partition(".")[0]
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)[:60] or "machine"


def lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{_LOCK_SUFFIX}")


def lock_folder(folder: Path) -> int:
    """Makes the folder of an executor. Returns the descriptor of its lock. Raises OSError."""
    folder.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    while (descriptor := locked_file(lock_of(folder))) is None:  # it was just opened to be removed
        time.sleep(_AGAIN_S)
    folder.mkdir(mode=0o700, exist_ok=True)
    return descriptor


def is_gone(folder: Path) -> bool:
    """Whether the executor of this machine whose folder this is, or was, has ended."""
    return not is_locked(lock_of(folder))


def remove_left_folders(fleet_folder: Path) -> None:
    """Cleans up the folders of this machine's executors whose process is gone. Other machines may share the state directory."""
    place = fleet_folder / "work"
    # A run that was just dying may have made its folder anew after the folder and its lock had been removed.
    for name in {path.name.removesuffix(_LOCK_SUFFIX) for path in place.glob(f"{machine_name()}-*")}:
        if name.rsplit("-", 2)[0] == machine_name():
            clean_up(place / name, Undelivered(fleet_folder))


def clean_up(folder: Path, undelivered: Undelivered) -> None:
    """Removes the folder of an executor as `remove_work` does, and its lock, if its process is gone. A container may have had
    another name when it made the folder.
    """
    if not _EXECUTOR.fullmatch(folder.name):
        return
    with suppress(OSError):
        descriptor = locked_file(lock_of(folder))
        if descriptor is not None:
            with closed_after(descriptor):
                remove_work(folder, undelivered)


def remove_work(folder: Path, undelivered: Undelivered) -> None:
    """Removes the folder of an executor that has ended, and then its lock. The folder of a claim whose process had ended before
    is kept, as its work was paid for: if it cannot be moved, it stays.
    """
    for path in paths_below(folder, "*/*"):
        job, _, generation = path.name.rpartition(".")
        if path.name.endswith(LEFT_SUFFIX) and (path / CHECKOUT).exists():
            continue
        with suppress(OSError):
            if not generation.isdecimal() or exit_code_left(path) is None:
                remove_tree_if_possible(path)
            else:
                undelivered.make_job_folder(path.parent.name, job)
                place = undelivered.place_of(path.parent.name, job, int(generation), folder.name)
                undelivered.move(path, place)
    for path in (*folder.glob("*"), folder):
        with suppress(OSError):
            path.rmdir()
    if not folder.exists():
        with suppress(OSError):
            lock_of(folder).unlink()
