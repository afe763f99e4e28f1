"""Files and objects of a tree that commands change meanwhile are copied for git without following links."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ralph.machine.files import opened_copies
from ralph.machine.files.opened_copies import ReplacedError, copy_files, copy_objects

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


@pytest.fixture
def top(tmp_path: Path) -> Path:
    made = tmp_path / "top"
    (made / "d/deep").mkdir(parents=True)
    (made / "d/deep/run").write_text("program")
    (made / "d/deep/run").chmod(0o755)
    (made / "d/.gitattributes").write_text("* text")
    (made / "plain").write_text("plain")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("secret")
    return made


def test_files_and_links_are_copied_with_the_attributes_on_the_way(top: Path, tmp_path: Path) -> None:
    (top / "link").symlink_to("/etc/passwd")
    (top / "d/new\udcff\n").write_text("name")
    place = tmp_path / "place"
    assert copy_files(str(top), ["plain", "d/deep/run", "link", "d/new\udcff\n"], str(place)) == []
    assert str((place / "link").readlink()) == "/etc/passwd"
    assert (place / "d/deep/run").read_text() == "program"
    found = {
        str(one.relative_to(place)): os.access(one, os.X_OK) for one in place.rglob("*") if one.is_file()
    }
    assert found == {
        "plain": False,
        "d/deep/run": True,
        "d/new\udcff\n": False,
        "d/.gitattributes": False,
        "link": False,
    }


def test_what_is_missing_or_lies_behind_a_link_is_not_copied(top: Path, tmp_path: Path) -> None:
    (top / "l").symlink_to(tmp_path / "private")
    (top / "d/l").symlink_to(tmp_path / "private")
    os.mkfifo(top / "pipe")
    (top / "l.gitattributes").write_text("")
    paths = ["l/key", "d/l/key", "d/l/more/key", "missing", "no/folder", "plain/below", "pipe", "d"]
    assert sorted(copy_files(str(top), [*paths, "plain"], str(tmp_path / "place"))) == sorted(paths)
    assert (tmp_path / "place/plain").read_text() == "plain"
    assert not [
        one for one in (tmp_path / "place").rglob("*") if one.is_file() and "secret" in one.read_text()
    ]


def test_no_copy_is_made_through_a_link_that_was_copied(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command may exchange a folder and a link between the copies of two paths."""
    (top / "x").symlink_to(tmp_path / "private")
    real, folders = opened_copies.opened_folder, []

    def exchanged(top_path: str, folder: str, stack: ExitStack) -> int | None:
        folders.append(folder)
        if folder == "x":
            (top / "x").unlink()
            (top / "x").mkdir()
            (top / "x/new").write_text("new")
        return real(top_path, folder, stack)

    monkeypatch.setattr(opened_copies, "opened_folder", exchanged)
    with pytest.raises(FileExistsError):
        copy_files(str(top), ["x", "x/new"], str(tmp_path / "place"))
    assert "x" in folders
    assert [one.name for one in (tmp_path / "private").iterdir()] == ["key"]


def test_a_large_file_gets_a_second_name(top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_copies, "_COPIED_BYTES", 5)
    assert copy_files(str(top), ["plain", "d/deep/run"], str(tmp_path / "place")) == []
    assert (tmp_path / "place/d/deep/run").samefile(top / "d/deep/run")
    assert not (tmp_path / "place/plain").samefile(top / "plain")


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_repository_becomes_one_that_leads_to_its_git_directory(
    top: Path, tmp_path: Path, is_linked: bool
) -> None:
    (top / "sub").mkdir()
    if is_linked:
        (top / "sub/.git").write_text("gitdir: ../modules/sub\n")
    else:
        (top / "sub/.git").mkdir()
    assert copy_files(str(top), ["sub"], str(tmp_path / "place")) == []
    way = "../modules/sub" if is_linked else ".git"
    assert (tmp_path / "place/sub/.git").read_text() == f"gitdir: {top}/sub/{way}\n"


@pytest.mark.parametrize("has_second_names", [True, False])
def test_objects_are_taken_and_links_refused(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_second_names: bool
) -> None:
    if not has_second_names:
        monkeypatch.setattr(opened_copies, "_has_second_name", lambda *_: False)
    git, place = top / ".git", tmp_path / "place"
    for name in ("aa/object", "pack/x.pack", "info/alternates", "q/r"):
        (git / "objects" / name).parent.mkdir(parents=True)
        (git / "objects" / name).write_text(name)
    copy_objects(str(git), str(place))
    files = {str(one.relative_to(place)): one.read_text() for one in place.rglob("*") if one.is_file()}
    assert files == {"aa/object": "aa/object", "pack/x.pack": "pack/x.pack"}
    for number, name in enumerate(("objects/aa/key", "objects/bb", "objects", "")):
        there = git / name
        kept = there.rename(tmp_path / f"kept{number}") if there.exists() else None
        there.symlink_to(kept or tmp_path / "private")
        with pytest.raises(ReplacedError):
            copy_objects(str(git), str(tmp_path / f"place{number}"))
        there.unlink()
        if kept is not None:
            kept.rename(there)


@pytest.mark.parametrize("has_second_names", [True, False])
def test_an_object_that_becomes_a_link_after_the_look_is_not_taken(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_second_names: bool
) -> None:
    if not has_second_names:
        monkeypatch.setattr(opened_copies, "_has_second_name", lambda *_: False)
    (top / ".git/objects/aa").mkdir(parents=True)
    (top / ".git/objects/aa/key").symlink_to(tmp_path / "private/key")
    monkeypatch.setattr(opened_copies, "_entries", lambda folder, _named: list(os.scandir(folder)))
    if has_second_names:
        copy_objects(str(top / ".git"), str(tmp_path / "place"))
    else:
        with pytest.raises(OSError, match="key"):
            copy_objects(str(top / ".git"), str(tmp_path / "place"))
    assert not [*(tmp_path / "place/aa").iterdir()]
