"""Tests for the environment of the process itself at its start."""

from __future__ import annotations

import os
import pwd
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
