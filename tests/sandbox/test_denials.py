"""Tests which lines of a failed command's output show that the sandbox denied something. A false alarm would mislead
the model.
"""

from __future__ import annotations

import os

from ralph.sandbox.box_parts import BoxParts
from ralph.sandbox.denials import denial_note


def note(output: str, tmp_path) -> str | None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (tmp_path / "secret").mkdir(exist_ok=True)
    (tmp_path / "secret" / "key").write_text("x")
    parts = BoxParts((str(work),), (f"{tmp_path}/secret",))
    return denial_note(output, parts, str(work), ["/added"])


def test_a_path_that_the_sandbox_denies_is_named_with_the_places_that_are_allowed(tmp_path) -> None:
    for line in (
        f"bash: line 1: {tmp_path}/out: Permission denied",
        "bash: line 1: ../out: Permission denied",
        f"touch: cannot touch '{tmp_path}/out': Permission denied",
        f"PermissionError: [Errno 13] Permission denied: '{tmp_path}/out'",
        f"mkdir: cannot create directory \u2018{tmp_path}/out\u2019: Permission denied",
    ):
        assert note(f"first\n{line}\nlast", tmp_path) == (
            f"the sandbox denies writing {tmp_path}/out; allowed for writing: the working directory, /added, $TMPDIR"
        ), line
    read = note(f"cat: {tmp_path}/secret/key: Permission denied", tmp_path)
    assert read is not None
    assert read.startswith(f"the sandbox denies reading {tmp_path}/secret/key;")


def test_a_signal_to_a_process_of_this_user_is_named(tmp_path) -> None:
    said = note(f"bash: line 1: kill: ({os.getpid()}) - Operation not permitted", tmp_path)
    assert said is not None
    assert "signals to processes that the command did not start" in said


def test_what_mounts_keep_as_it_is_and_a_tmp_of_its_own_are_known(tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    parts = BoxParts((str(work),), ())

    def said(line: str) -> str | None:
        own = f"{work}/own"
        return denial_note(
            line,
            parts,
            str(work),
            protected=[f"{work}/.git/config"],
            outside=lambda path: path.replace("/tmp/", f"{own}/") if path.startswith("/tmp/x") else path,
        )

    for line in (
        "error: could not write config file .git/config: Device or resource busy",
        "bash: line 1: .git/config: Read-only file system",
    ):
        found = said(line)
        assert found is not None, line
        assert found.startswith(f"the sandbox denies changing {work}/.git/config;")
    found = said(f"touch: cannot touch '{tmp_path}/out': Read-only file system")
    assert found is not None
    assert f"writing {tmp_path}/out" in found
    assert said("bash: line 1: /tmp/x: Permission denied") is None


def test_an_ordinary_failure_is_none_of_the_sandboxs(tmp_path) -> None:
    for line in (
        "",
        "cat: missing: No such file or directory",
        "x: Permission denied",  # in the working directory
        f"{tmp_path}/out: some other error",
        f"{tmp_path}/nowhere/deeper/out: Permission denied",
        "kill: (999999999) - Operation not permitted",
        "git@example.com: Permission denied (publickey).",
        "Permission denied",
        "'\0': Permission denied",
    ):
        assert note(line, tmp_path) is None, line


def test_a_long_output_costs_little(tmp_path) -> None:
    assert note("x" * 1_000_000 + ": Permission denied", tmp_path) is None
    assert note("'a' 'b': Permission denied\n" * 100_000, tmp_path) is None
