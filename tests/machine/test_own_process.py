"""Tests for the environment of the process itself at its start."""

from __future__ import annotations

import os
import pwd
import tempfile
from types import SimpleNamespace

import pytest

from ralph.machine import own_process


@pytest.mark.parametrize(
    ("home", "known", "taken"),
    [
        (None, "{there}", "{there}"),
        ("", "{there}", "{there}"),
        ("/x", "{there}", "/x"),
        (None, "/missing", None),
    ],
)
def test_without_a_home_the_one_that_the_system_knows_is_taken(
    monkeypatch, tmp_path, home, known, taken
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=known.format(there=tmp_path)))
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    own_process.know_home()
    assert os.environ.get("HOME") == (taken and taken.format(there=tmp_path))


def test_a_user_whom_the_system_does_not_know_has_no_home(monkeypatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    own_process.know_home()
    assert "HOME" not in os.environ


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"TMPDIR": "gone"},
        {"TMPDIR": "", "TEMP": "made"},
        {"TMPDIR": "gone", "TEMP": "file", "TMP": "made"},
    ],
)
def test_the_place_for_temporary_files_is_that_of_the_standard_library(monkeypatch, tmp_path, named) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    for variable in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(variable, named.get(variable, ""))
    found = own_process.temporary_directory()
    assert found == tempfile.gettempdir()
    assert (found == str(tmp_path / "made")) is ("made" in named.values())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OSError, match="no directory for temporary files"):
        own_process.temporary_directory()
