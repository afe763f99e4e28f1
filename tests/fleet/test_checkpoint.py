"""Packing the state directory of a job, and unpacking what a store returns."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from ralph.fleet import job_process
from ralph.fleet.job_process import BadStateError, TooLargeError, pack_state, unpack_state

if TYPE_CHECKING:
    from pathlib import Path

MOST = 100_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    (made / "sessions/abc").mkdir(parents=True)
    (made / "sessions/abc/journal.jsonl").write_bytes(b'{"kind": "x"}\n' * 100)
    (made / "loops/empty").mkdir(parents=True)
    (made / "sessions/ünï\nname").write_text("n")
    return made


def test_what_is_unpacked_is_what_was_packed_for_the_user_alone(state: Path, tmp_path: Path) -> None:
    (state / "sessions/link").symlink_to("/etc/passwd")
    (state / "sessions/up").symlink_to("..")
    os.mkfifo(state / "sessions/pipe")
    (state / "sessions/abc/journal.jsonl").chmod(0o664)
    packed = pack_state(state, MOST)
    old_umask = os.umask(0)
    try:
        unpack_state(packed, tmp_path / "new", MOST)
    finally:
        os.umask(old_umask)
    found = {
        str(path.relative_to(tmp_path / "new")): (
            stat.S_IMODE(path.lstat().st_mode),
            path.is_dir() or path.read_bytes(),
        )
        for path in (tmp_path / "new").rglob("*")
    }
    assert found == {
        "sessions": (0o700, True),
        "sessions/abc": (0o700, True),
        "sessions/abc/journal.jsonl": (0o600, b'{"kind": "x"}\n' * 100),
        "loops": (0o700, True),
        "loops/empty": (0o700, True),
        "sessions/ünï\nname": (0o600, b"n"),
    }
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_equal_content_is_packed_to_equal_bytes(state: Path, tmp_path: Path) -> None:
    packed = pack_state(state, MOST)
    unpack_state(packed, tmp_path / "new", MOST)
    os.utime(tmp_path / "new/sessions", (1, 1))
    assert pack_state(tmp_path / "new", MOST) == packed


def test_a_large_state_is_refused_on_both_ways(state: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(job_process, "_MOST_ENTRIES", 6)
    size = 1400 + 1
    packed = pack_state(state, size)
    unpack_state(packed, tmp_path / "new", size)
    with pytest.raises(TooLargeError):
        pack_state(state, size - 1)
    with pytest.raises(TooLargeError):
        unpack_state(packed, tmp_path / "other", size - 1)
    bomb = zlib.compress(bytes(1_000_000))
    with pytest.raises(TooLargeError):
        unpack_state(bomb, tmp_path / "bomb", MOST)
    many = tmp_path / "many"
    (many / "sessions").mkdir(parents=True)
    for number in range(6):
        os.mknod(many / "sessions" / str(number))
    with pytest.raises(TooLargeError, match="more than 6 files"):
        pack_state(many, MOST)


def test_what_is_of_this_machine_alone_is_not_packed(state: Path) -> None:
    packed = pack_state(state, MOST)
    for name in ("ralph-tmp-x/token-cache.json", "running/abc", "undone/abc", "ralph-tmp-x/sessions/big"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("key" * MOST)
    assert pack_state(state, MOST) == packed


def archive_of(*entries: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    return zlib.compress(packed.getvalue())


def entry_of(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    made.mode = 0o7777
    return made


@pytest.mark.parametrize(
    "entries",
    [
        [entry_of("../out")],
        [entry_of("/tmp/out")],
        [entry_of("a/../../out")],
        [entry_of("./out")],
        [entry_of("a//b")],
        [entry_of("link", tarfile.SYMTYPE, "/etc")],
        [entry_of("link", tarfile.SYMTYPE, ".."), entry_of("link/out")],
        [entry_of("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [entry_of("a", size=1), entry_of("b", tarfile.LNKTYPE, "a")],
        [entry_of("device", tarfile.CHRTYPE)],
        [entry_of("device", tarfile.BLKTYPE)],
        [entry_of("pipe", tarfile.FIFOTYPE)],
        [entry_of("contiguous", tarfile.CONTTYPE)],
        [entry_of("twice"), entry_of("twice")],
        [entry_of("no/folder")],
        [entry_of("file"), entry_of("file/below")],
    ],
    ids=lambda entries: " ".join(f"{entry.name}-{entry.type!r}" for entry in entries),
)
def test_no_hostile_entry_is_unpacked(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    (tmp_path / "room").mkdir()
    with pytest.raises(BadStateError):
        unpack_state(archive_of(*entries), tmp_path / "room/new", MOST)
    assert [path.name for path in tmp_path.rglob("*") if path.name not in {"a", "file", "twice"}] == [
        "room",
        "new",
    ]


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_damaged_data_is_refused(state: Path, tmp_path: Path, cut: int) -> None:
    packed = pack_state(state, MOST)
    with pytest.raises(BadStateError):
        unpack_state(packed[:cut], tmp_path / "new", MOST)
    inner = zlib.decompress(packed)
    for damaged in (inner[:700], b"\xff" * 1024 + inner):
        with pytest.raises(BadStateError):
            unpack_state(zlib.compress(damaged), tmp_path / f"new{len(damaged)}", MOST)
