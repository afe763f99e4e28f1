"""Tests how the machine is shown as overlays, and that commands find no socket of a program outside by them. The rows of the probe
(`test_self_test.py`) try more ways.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from ralph.machine.files import trees
from ralph.machine.files.paths import mount_points
from ralph.machine.files.trees import locked
from ralph.machine.own_programs import ProgramSearch
from ralph.machine.trusted_programs import Candidate
from ralph.sandbox import bubblewrap, detection
from ralph.sandbox.box_plan import BoxPlan
from ralph.sandbox.box_rules import inside_rules
from ralph.sandbox.bubblewrap import Cover, EmptyDirectory, TooManyMountsError, cover
from ralph.sandbox.detection import find_means, why_not_covered
from ralph.sandbox.landlock import Rule
from tests.sandbox.boxes import WITH_OVERLAYS as MEANS
from tests.sandbox.boxes import box_of, needs_overlays, run_in, shell_in


def places(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Each option with its last path."""
    counts = {"--overlay-src": 1, "--ro-bind": 2, "--ro-bind-try": 2, "--symlink": 2}
    found: list[tuple[str, ...]] = []
    rest = [*words]
    while rest:
        option = rest.pop(0)
        path = [rest.pop(0) for _ in range(counts.get(option, 1))][-1]
        found += [(option, path)] if option != "--overlay-src" else []
    return found


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A directory, and a function that says which words show it if some of its places are mounts."""
    for (
        name
    ) in "plain/deep split/kept split/mount/inner vfat sys/kernel/ram sys/kernel/more/below empty".split():
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "split/file").write_text("x")
    (tmp_path / "split/link").symlink_to("file")
    os.mkfifo(tmp_path / "split/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path)
        bound.bind("split/socket")

    def shown(**kinds: str) -> list[tuple[str, ...]]:
        points = {f"{tmp_path}/{name.replace('__', '/')}": kind for name, kind in kinds.items()}
        monkeypatch.setattr(bubblewrap, "mount_points", lambda: {"/": "ext4", **points})
        covered = cover(str(tmp_path), f"{tmp_path}/empty")
        assert covered.devices == {os.lstat(tmp_path).st_dev}
        return [(option, path.removeprefix(f"{tmp_path}/")) for option, path in places(covered.words)]

    return shown


def test_a_directory_with_mounts_is_made_anew_without_sockets_and_pipes(tree, tmp_path) -> None:
    assert tree() == [("--ro-overlay", str(tmp_path))], "without mounts it is one overlay"
    assert tree(split__mount="ext4") == [
        ("--dir", str(tmp_path)),
        *(("--ro-overlay", one) for one in ("empty", "plain")),
        ("--dir", "split"),
        ("--ro-bind-try", "split/file"),
        ("--ro-overlay", "split/kept"),
        ("--symlink", "split/link"),
        *(("--ro-overlay", one) for one in ("split/mount", "sys", "vfat")),
    ]


def test_what_is_gone_since_it_was_listed_is_left_out(tmp_path, monkeypatch) -> None:
    gone = [("--symlink", "/gone/link"), ("--ro-overlay", "/gone/directory")]
    monkeypatch.setattr(bubblewrap, "_places", lambda *_: iter([*gone, ("--dir", "/there")]))
    assert places(cover("/", str(tmp_path)).words) == [("--dir", "/there")]


def test_what_holds_no_sockets_is_mounted_as_it_is_and_what_is_mounted_in_it_not(tree) -> None:
    below = {"sys__kernel__ram": "tmpfs", "sys__kernel__more": "tmpfs", "sys__kernel__more__below": "ext4"}
    shown = tree(vfat="vfat", sys="sysfs", **below)
    assert shown[-6:] == [
        ("--ro-overlay", "split"),
        ("--ro-bind", "sys"),
        ("--tmpfs", "sys/kernel/more"),
        ("--ro-overlay", "sys/kernel/more/below"),
        ("--ro-overlay", "sys/kernel/ram"),
        ("--ro-bind", "vfat"),
    ]


def test_a_box_of_too_many_mounts_is_not_made(tree, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bubblewrap, "_MOST_PLACES", 9)
    with pytest.raises(TooManyMountsError, match=f"more than 9 mounts .* in {re.escape(str(tmp_path))}$"):
        tree(split__mount="ext4")
    monkeypatch.setattr(bubblewrap, "_MOST_PLACES", 10)
    assert tree(split__mount="ext4")


def test_the_second_layer_is_empty_and_goes_with_its_owner() -> None:
    empty = EmptyDirectory()
    path = Path(empty.path)
    assert ([*path.iterdir()], path.stat().st_mode & 0o77) == ([], 0)
    empty.remove()
    assert not path.exists()
    EmptyDirectory().remove()


@needs_overlays
def test_a_file_system_that_makes_no_overlay_is_found_by_the_trial() -> None:
    assert MEANS.bwrap is not None
    assert why_not_covered(MEANS.bwrap, Cover(("--ro-bind", "/", "/"))) == ""
    proc = ("--overlay-src", "/tmp", "--overlay-src", "/nowhere", "--ro-overlay", "/etc")
    assert "/nowhere" in why_not_covered(MEANS.bwrap, Cover(("--ro-bind", "/", "/", *proc)))


@needs_overlays
def test_the_trial_leaves_nothing(monkeypatch) -> None:
    made: list[str] = []

    class Noted(EmptyDirectory):
        def __init__(self) -> None:
            super().__init__()
            made.append(self.path)

    monkeypatch.setattr(detection, "EmptyDirectory", Noted)
    monkeypatch.setattr(detection, "_TRIED", {})
    means = find_means(ProgramSearch(os.environ.get("PATH", "")), has_overlays=True)
    assert means.why_no_overlays == ""
    assert made
    assert [one for one in made if Path(one).exists()] == []


OLD = """#!/bin/sh
case "$*" in *--ro-overlay*) echo 'bwrap: Unknown option --overlay-src' >&2; exit 1;; esac
echo 'bubblewrap 0.8.0'
"""


def test_an_older_bubblewrap_is_used_without_overlays_and_the_reason_is_its_version(
    tmp_path, monkeypatch
) -> None:
    bwrap = tmp_path / "bwrap"
    monkeypatch.setattr(detection, "candidates", lambda *_: iter([Candidate(str(bwrap), "system")]))
    bwrap.write_text(OLD)
    bwrap.chmod(0o755)
    means = find_means(ProgramSearch(), shares_network=True, has_overlays=True)
    if not means.landlock.has_scopes or means.landlock.has_socket_paths:
        pytest.skip("overlays are of no use with this kernel's Landlock")
    assert means.bwrap == str(bwrap)
    assert means.why_no_overlays == "bubblewrap makes them from version 0.11 on"
    assert means.why_not_own_sockets.endswith("no overlays: bubblewrap makes them from version 0.11 on")


CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')"
OWN = """
import socket, threading
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
    server.bind("own"); server.listen(); client.connect("own"); print("own")
"""


@needs_overlays
def test_a_file_system_that_was_mounted_meanwhile_closes_the_sockets_of_the_box(
    tmp_path, monkeypatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with box_of(MEANS, [work]) as box:
        points = mount_points()  # others may mount something meanwhile
        monkeypatch.setattr(bubblewrap, "mount_points", lambda: points)
        assert run_in(box, work, OWN).stdout == "own\n"
        tried: list[Cover] = []

        def fails(_bwrap: str, covered: Cover) -> str:
            tried.append(covered)
            return "no such mount"

        monkeypatch.setattr(detection, "why_not_covered", fails)
        monkeypatch.setattr(box._mounts, "_overlaid", frozenset())
        for _ in range(2):
            (work / "own").unlink(missing_ok=True)
            assert "PermissionError" in run_in(box, work, OWN).stderr
        assert len(tried) == 1, "what failed is not tried for each command"


@needs_overlays
def test_a_socket_that_the_settings_name_can_be_used_and_the_one_beside_it_not(tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as beside:
        for one, name in ((named, "named"), (beside, "beside")):
            one.bind(f"{tmp_path}/{name}")
            one.listen()
        with box_of(MEANS, [work], sockets=(f"{tmp_path}/named",)) as box:
            assert box.parts.protections["sockets in the file system"]
            assert run_in(box, work, CONNECT, f"{tmp_path}/named").stdout == "connected\n"
            assert "ConnectionRefused" in run_in(box, work, CONNECT, f"{tmp_path}/beside").stderr


@needs_overlays
@pytest.mark.parametrize("closed", [(), ("secret",)])
def test_a_place_in_tmp_that_commands_see_shows_no_socket_either(closed) -> None:
    """With a closed path in it, it is shown entry by entry."""
    with TemporaryDirectory(dir="/tmp") as shown, socket.socket(socket.AF_UNIX) as bound:
        work = Path(shown, "work")
        work.mkdir()
        Path(shown, "secret").mkdir()
        Path(shown, "file").write_text("x")
        bound.bind(f"{shown}/socket")
        bound.listen()
        read_deny = tuple(f"{shown}/{one}" for one in closed)
        with box_of(MEANS, [work], read=(shown,), read_deny=read_deny) as box:
            assert shell_in(box, work, "cat ../file").stdout == "x"
            why = "FileNotFound" if closed else "ConnectionRefused"
            assert why in run_in(box, work, CONNECT, f"{shown}/socket").stderr


@needs_overlays
def test_a_command_cannot_write_in_the_root_directory_of_its_own(tmp_path) -> None:
    with box_of(MEANS, [tmp_path]) as box:
        ran = shell_in(box, tmp_path, "mkdir /new")
    assert ran.stderr.endswith(("Permission denied\n", "Read-only file system\n")), ran.stderr


def test_rules_are_made_where_a_command_sees_the_places() -> None:
    plan = BoxPlan(MEANS, copies=(("/var/copies/1", "/home/me/.npmrc"),), temporary="/var/tmp/own")
    rules = [Rule(path, 1) for path in ("/", "/usr", "/tmp", "/tmp/other", "/var/tmp/own", "/var/copies/1")]
    paths = [rule.path for rule in inside_rules(replace(plan, has_own_temporary=True), rules, 3)]
    assert paths == ["/", "/usr", "/tmp", "/tmp", "/home/me/.npmrc", "/dev"]
    paths = [rule.path for rule in inside_rules(plan, rules, 3)]
    assert paths == ["/", "/usr", "/tmp", "/tmp/other", "/var/tmp/own", "/home/me/.npmrc", "/dev"]


def test_a_second_layer_that_was_removed_at_once_is_made_again(monkeypatch) -> None:
    """A run that starts takes a new directory that is not locked yet for one of a killed run."""
    locks: list[str] = []

    def removed_first(path: str) -> int:
        if len(locks) < 2:
            Path(path).rmdir()
        locks.append(path)
        return locked(path)

    monkeypatch.setattr(trees, "locked", removed_first)
    empty = EmptyDirectory()
    assert [Path(path).exists() for path in locks] == [False, False, True]
    empty.remove()
    locks.clear()
    monkeypatch.setattr(trees, "_TRIES", 2)
    with pytest.raises(FileNotFoundError):
        EmptyDirectory()
