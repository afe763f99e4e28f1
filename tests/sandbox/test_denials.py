"""Tests which lines of a failed command's output show that the sandbox denied something. A false alarm would mislead
the model.
"""

from __future__ import annotations

import os
import time

from msgspec.structs import replace

from ralph.places.places import places_of
from ralph.sandbox.box_plan import BoxPlan, Means
from ralph.sandbox.denials import denial_note
from ralph.sandbox.landlock import Support
from tests.rows import every_row

SPACES = Means(Support(6), bwrap="/usr/bin/bwrap")


def plan_of(work, denied: tuple[str, ...] = ()) -> BoxPlan:
    places = places_of({"root": (str(work),), "denied": denied}, {}, str, str)
    return BoxPlan(Means(Support(6)), writable=(str(work),), places=places)


def note(output: str, tmp_path) -> str | None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (tmp_path / "secret").mkdir(exist_ok=True)
    (tmp_path / "secret" / "key").write_text("x")
    parts = plan_of(work, (f"{tmp_path}/secret",))
    parts = replace(parts, masked=(f"{work}/.env",))
    return denial_note(output, parts, str(work), ["/added"], protected=[f"{work}/.git/config"])


def test_a_path_that_the_sandbox_denies_is_named_with_the_places_that_are_allowed(tmp_path) -> None:
    for line in (
        f"bash: line 1: {tmp_path}/out: Permission denied",
        "bash: line 1: ../out: Permission denied",
        f"touch: cannot touch '{tmp_path}/out': Permission denied",
        f"PermissionError: [Errno 13] Permission denied: '{tmp_path}/out'",
        f"mkdir: cannot create directory \u2018{tmp_path}/out\u2019: Permission denied",
        f"error: failed to create directory `{tmp_path}/out`: Read-only file system (os error 30)",
    ):
        assert note(f"first\n{line}\nlast", tmp_path) == (
            f"the sandbox denies writing {tmp_path}/out; allowed for writing: the working directory, /added, $TMPDIR"
        ), line
    # uv 0.13.9 makes all directories of a path.
    failed = f"error: failed to create directory `{tmp_path}/new/one`: Permission denied (os error 13)"
    assert str(note(failed, tmp_path)).startswith(f"the sandbox denies writing {tmp_path}/new/one;")
    secret = f"{tmp_path}/secret"
    said = f"the sandbox denies reading {secret}/key ({secret} must not be read"
    assert str(note(f"cat: {secret}/key: Permission denied", tmp_path)).startswith(said)


def test_a_program_that_writes_its_settings_in_the_home_is_told_what_makes_it_work(
    tmp_path, monkeypatch
) -> None:
    """Tried: wrangler 4.86.0, Poetry 2.5.1, PDM 2.29.4."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config").mkdir()
    way_out = "works with XDG_CONFIG_HOME=$TMPDIR or HOME=$TMPDIR"
    for line, is_settings in (
        (f"[Errno 30] Read-only file system: '{tmp_path}/.config/pypoetry'", True),
        (f"Error: EROFS: read-only file system, mkdir '{tmp_path}/.expo'", True),
        (f"touch: cannot touch '{tmp_path}/out': Permission denied", False),
    ):
        assert str(note(line, tmp_path)).endswith(way_out) == is_settings, line


# OpenJDK 17.0.15, esbuild 0.28.2, tar 1.34, zsh 5.9, git-lfs 3.3.0, OpenSSL 3.0.19, apt 2.6.1, pyenv 2.6.30, node 20.20.2,
# patch 2.7.6, unzip 6.00, cargo 1.95.0
@every_row(
    "lines",
    [
        'Exception in thread "main" java.io.FileNotFoundException: {0}/out (Read-only file system)',
        'Exception in thread "main" java.nio.file.AccessDeniedException: {0}/out',
        "[ERROR] Failed to write to output file: open {0}/out: permission denied",
        "tar: {0}/out: Cannot open: Permission denied",
        "zsh:1: read-only file system: {0}/out",
        "warning: error running git 'config': 'error: could not lock config file {0}/out: Read-only file system' 'exit status 255'",
        'genrsa: Can\'t open "{0}/out" for writing, Permission denied',
        "E: Could not open lock file {0}/out - open (13: Permission denied)",
        "pyenv: cannot rehash: {0}/out isn't writable",
        "npm error enoent ENOENT: no such file or directory, mkdir '{0}/out'",
        "patch: **** Can't create temporary file {0}/out : Permission denied",
        "checkdir:  cannot create extraction directory: {0}/out\n           Read-only file system",
        "  failed to create directory `{0}/out`\n\nCaused by:\n  Permission denied (os error 13)",
    ],
)
def test_a_path_is_found_wherever_a_program_names_it(lines, tmp_path) -> None:
    said = note(f"first\n{lines.format(tmp_path)}\nlast", tmp_path) or ""
    assert said.startswith(f"the sandbox denies writing {tmp_path}/out;")


@every_row(
    "line",
    [
        "script: failed to create pseudo-terminal: Permission denied",
        "OSError: out of pty devices",
        "openpty: Permission denied",
    ],
)
def test_a_terminal_that_cannot_be_made_is_told_where_terminals_are_closed(line, tmp_path) -> None:
    assert (note(line, tmp_path) or "").startswith("the sandbox denies making a terminal (in /dev/pts);")
    plan = plan_of(tmp_path)
    for other in (replace(plan, means=SPACES), replace(plan, writable=(str(tmp_path), "/dev/pts"))):
        assert denial_note(line, other, str(tmp_path)) is None


@every_row(
    ("line", "denied"),
    [
        ("cat: {0}/secret/key: Permission denied", "reading {0}/secret/key"),
        # A file that is newer than the rules of the kernel may be read, as far as the policy knows.
        ("cat: {0}/new: Permission denied", "reading {0}/new"),
        ("/bin/grep: {0}/new: Permission denied", "reading {0}/new"),
        ("head: cannot open '{0}/new' for reading: Permission denied", "reading {0}/new"),
        ("ls: cannot open directory '{0}/secret': Permission denied", "reading {0}/secret"),
        ("cp: cannot open '{0}/new' for reading: Permission denied", "reading {0}/new"),
        ("sed: can't read {0}/new: Permission denied", "reading {0}/new"),
        ("cp: cannot create regular file '{0}/new': Permission denied", "writing {0}/new"),
        ("tee: {0}/new: Permission denied", "writing {0}/new"),
        ("cat: {0}/missing: Permission denied", None),
        ("cat: {0}/work/own: Permission denied", None),
        ("cat: .git/config: Permission denied", None),
        ("cat: .env: Permission denied", "reading {0}/work/.env"),
        ("bash: line 1: .env: Permission denied", "reading {0}/work/.env"),
    ],
)
def test_a_note_says_reading_when_it_was_reading(line, denied, tmp_path) -> None:
    (tmp_path / "new").write_text("x")
    (tmp_path / "work" / ".git").mkdir(parents=True, exist_ok=True)
    for name in ("own", ".git/config"):
        (tmp_path / "work" / name).write_text("x")
    said = note(line.format(tmp_path), tmp_path)
    assert (said and said.partition(";")[0].partition(" (")[0]) == (
        denied and f"the sandbox denies {denied.format(tmp_path)}"
    )


# /proc/1/cwd is a link that only its owner may read.
HOSTILE_PATHS = [
    *"/proc/1/cwd /proc/1/root/etc /proc/self/fd/0 /dev/fd/0 leads-to-fd turns fails/x ~nobody-of-this-name".split(),
    *("a\udcff\ud800b", "~\ud800", "x" * 300, "a/" * 900),
]


@every_row("path", HOSTILE_PATHS)
def test_a_path_that_cannot_be_looked_at_costs_no_note_about_another(path, tmp_path) -> None:
    work = tmp_path / "work"
    if not work.exists():
        work.mkdir()
        (work / "leads-to-fd").symlink_to("/proc/self/fd/0")
        (work / "turns").symlink_to("turns")

    def outside(path: str) -> str:
        if "fails" in path:
            raise PermissionError(13, "Permission denied", path)
        return path

    lines = f"ls: cannot read symbolic link '{path}': Permission denied\n'{tmp_path}/out': Permission denied"
    said = denial_note(lines, plan_of(work), str(work), outside=outside)
    allowed = "allowed for writing: the working directory, $TMPDIR"
    assert said == f"the sandbox denies writing {tmp_path}/out; {allowed}"


def test_a_link_through_a_kernel_file_system_is_not_followed(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    with (secret / "log").open("w") as file:
        for path in (f"/proc/self/fd/{file.fileno()}", f"/dev/fd/{file.fileno()}", "/proc/self/cwd/x"):
            assert note(f"cat: {path}: Permission denied\ntee: {path}: Permission denied", tmp_path) is None


def test_a_signal_to_a_process_of_this_user_is_named(tmp_path) -> None:
    for line in (
        f"bash: line 1: kill: ({os.getpid()}) - Operation not permitted",
        f"pg_ctl: could not send stop signal (PID: {os.getpid()}): Operation not permitted",
    ):
        assert "signals to processes that the command did not start" in (note(line, tmp_path) or ""), line


def test_what_mounts_keep_as_it_is_and_a_tmp_of_its_own_are_known(tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    parts = plan_of(work)

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
        f"looks at {tmp_path}/out\nPermission denied",  # says nothing of a failure
        f"cannot make {tmp_path}/out\na\nb\nc\nPermission denied",
        f"ENOENT: no such file or directory, open '{tmp_path}/out'",
        f"ENOENT: no such file or directory, mkdir '{tmp_path}/work/out'",
    ):
        assert note(line, tmp_path) is None, line


def test_a_long_output_costs_little(tmp_path) -> None:
    assert note("x" * 1_000_000 + ": Permission denied", tmp_path) is None
    assert note("'a' 'b': Permission denied\n" * 100_000, tmp_path) is None


def test_the_cost_of_a_line_grows_with_its_length_alone(tmp_path) -> None:
    for line in ("kill: " * 100 + "1" * 1350, "1: " * 650, "a:" * 950, "'" * 1900, "could not read " * 130):
        began = time.process_time()
        assert note(f"{line} EPERM\n" * 15, tmp_path) is None
        took_s = time.process_time() - began
        assert took_s < 3, f"{line}: a quadratic search of the first takes more than a minute"
