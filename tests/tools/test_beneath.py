"""A file that is opened beneath a directory must lie there."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import pytest

from ralph.machine.files.paths import HELD_DIRECTORY
from ralph.tools.planned_write import open_directory, open_parent
from tests.processes.descriptors import open_descriptors, wait_until_closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RACE_S = float(os.environ.get("RALPH_TEST_RACE_S", "0.1"))


@pytest.fixture
def opened(root: int) -> Callable[[str], tuple[int, int]]:
    """Opens a directory beneath the root, and returns its device and inode."""
    return lambda relative: identity_of(open_directory(root, relative))


def identity_of(descriptor: int) -> tuple[int, int]:
    try:
        stat = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return stat.st_dev, stat.st_ino


def identity(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "root/inside/deep").mkdir(parents=True)
    (tmp_path / "outside/deep").mkdir(parents=True)
    descriptor = os.open(tmp_path / "root", HELD_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_t10_a_link_that_stays_inside_is_followed(opened, tmp_path) -> None:
    top = tmp_path / "root"
    (top / "plain").symlink_to("inside")
    (top / "inside/up").symlink_to("../inside/./deep")
    (top / "chain").symlink_to("plain/up")
    assert opened("plain/deep") == identity(top / "inside/deep")
    assert opened("inside/up") == identity(top / "inside/deep")
    assert (opened("chain/.."), opened(".")) == (identity(top / "inside"), identity(top))


@pytest.mark.parametrize("way", ["outside_link", "absolute_link", "..", "inside/../../outside", "absolute"])
def test_t10_what_leads_outside_is_refused(opened, tmp_path, way) -> None:
    top = tmp_path / "root"
    (top / "outside_link").symlink_to("../outside")
    (top / "absolute_link").symlink_to(top / "inside")
    relative = str(top / "inside") if way == "absolute" else way
    with pytest.raises(OSError, match="cross-device") as refused:
        opened(relative)
    assert refused.value.errno == errno.EXDEV


def test_t10_links_that_never_end_and_files_are_no_directories(opened, tmp_path) -> None:
    top = tmp_path / "root"
    (top / "loop").symlink_to("loop")
    (top / "file").touch()
    (top / "dangling").symlink_to("nothing")
    for relative, code in [
        ("loop", errno.ELOOP),
        ("file", errno.ENOTDIR),
        ("file/a", errno.ENOTDIR),
        ("dangling", errno.ENOENT),
        ("x" * 300, errno.ENAMETOOLONG),
    ]:
        with pytest.raises(OSError, match=r"\[Errno") as refused:
            opened(relative)
        assert refused.value.errno == code, relative


def test_t10_forty_links_are_followed_and_no_more(opened, tmp_path) -> None:
    top = tmp_path / "root"
    (top / "link0").symlink_to("inside")
    for number in range(1, 41):
        (top / f"link{number}").symlink_to(f"link{number - 1}")
    assert opened("link39") == identity(top / "inside")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        opened("link40")


def test_t10_nothing_stays_open(opened, tmp_path) -> None:
    top = tmp_path / "root"
    (top / "link").symlink_to("../outside")
    before = open_descriptors()
    opened("inside/deep/../deep")
    for relative in ("link", "inside/nothing", "inside/../.."):
        with pytest.raises(OSError, match=r"\[Errno"):
            opened(relative)
    wait_until_closed(before)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_t10_a_link_of_the_kernels_is_not_followed() -> None:
    process = os.open("/proc/self", HELD_DIRECTORY)
    with pytest.raises(OSError, match="cross-device"):
        open_directory(process, "cwd")
    os.close(process)


class Swapper(threading.Thread):
    """Exchanges a directory for a link that leads outside, and back, as fast as it can. There is no moment in
    between.
    """

    def __init__(self, top: Path) -> None:
        super().__init__(daemon=True)
        self.swaps = 0
        self.ends = threading.Event()
        self._top = os.open(top, HELD_DIRECTORY)
        (top / "place/deep").mkdir(parents=True)
        (top / "other").symlink_to("../outside")

    def run(self) -> None:
        renameat2, exchange = ctypes.CDLL(None).renameat2, 2
        while not self.ends.is_set():
            assert renameat2(self._top, b"place", self._top, b"other", exchange) == 0
            self.swaps += 1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        self.join()
        os.close(self._top)


@pytest.mark.skipif(sys.platform != "linux", reason="needs an exchange of two names")
def test_t10_a_directory_swapped_for_a_link_is_never_left_through_it(opened, tmp_path) -> None:
    inside, refused = 0, 0
    outside = identity(tmp_path / "outside/deep")
    ends_s = time.monotonic() + RACE_S
    with Swapper(tmp_path / "root") as swapper:
        while time.monotonic() < ends_s or not (inside and refused and swapper.swaps > 100):
            try:
                assert opened("place/deep") != outside
                inside += 1
            except OSError as error:
                assert error.errno in (errno.EXDEV, errno.ENOENT, errno.ENOTDIR)  # noqa: PT017
                refused += 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs an exchange of two names")
def test_t10_a_write_races_a_swap_and_stays_inside(make_tools, tmp_path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside/deep").mkdir(parents=True)
    tools = make_tools(cwd=tmp_path / "root")
    written, refused = 0, 0
    ends_s = time.monotonic() + RACE_S
    with Swapper(tmp_path / "root"):
        while time.monotonic() < ends_s or not (written and refused):
            call = {"file_path": "place/deep/file", "content": str(written)}
            if tools.call("Write", call).is_error:
                refused += 1
            else:
                written += 1
    assert list((tmp_path / "outside/deep").iterdir()) == []
    assert list((tmp_path / "outside").iterdir()) == [tmp_path / "outside/deep"]


def test_a_parent_is_made_beneath_the_root_with_all_above_it(root, tmp_path) -> None:
    directory, name = open_parent(root, "inside/new/newer/file", make=True)
    assert (identity_of(directory), name) == (identity(tmp_path / "root/inside/new/newer"), "file")
    with pytest.raises(FileNotFoundError):
        open_parent(root, "missing/file")
    assert not (tmp_path / "root/missing").exists()


@pytest.mark.parametrize("relative", ["../file", "..", "/file", "inside/..", "", "inside/"])
def test_a_name_that_is_none_is_refused(root, relative) -> None:
    with pytest.raises(OSError, match=r"\[Errno"):
        open_parent(root, relative, make=True)


def test_a_removed_root_is_not_made_again(root, tmp_path) -> None:
    with suppress(FileNotFoundError):
        for path in ("inside/deep", "inside", ""):
            (tmp_path / "root" / path).rmdir()
    with pytest.raises(FileNotFoundError):
        open_parent(root, "a/b", make=True)
    assert not (tmp_path / "root").exists()
