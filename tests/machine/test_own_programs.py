"""ralph's own programs come from no place that commands may write, by whatever way a path leads there."""

from __future__ import annotations

import grp
import os
import pwd
from typing import TYPE_CHECKING

import pytest

from ralph.machine.own_programs import (
    ProgramSearch,
    own_program,
    search_outside,
    trusted_directories,
    why_not_used,
    with_set_aside,
    without_unsafe_loads,
)

if TYPE_CHECKING:
    from pathlib import Path

# What is made, below a directory in which commands may write `work` and `added`, and the entry of PATH.
Made = tuple[tuple[str, str], ...]
LEADING_IN: dict[str, tuple[str, Made]] = {
    "a directory": ("work/bin", ()),
    "a directory that is not there yet": ("work/not/yet", ()),
    "another root": ("added/bin", ()),
    "a way through": ("work/../work/bin", ()),
    "a link there that leads out": ("work/out", (("work/out", "outside"),)),
    "a directory behind such a link": ("work/out/bin", (("work/out", "."),)),
    "a link from outside": ("link", (("link", "work/bin"),)),
    "a link from outside to one that leads out": ("link", (("link", "work/out"), ("work/out", "outside"))),
    "the caches of packages": ("home/.cache/ralph/packages/0/bin", ()),
    "a link into the caches": ("link", (("link", "home/.cache/ralph/packages/0"),)),
    "a session's temporary directory": ("tmp/ralph-tmp-0/bin", ()),
}
ALLOWED: dict[str, tuple[str, Made]] = {
    "outside": ("outside", ()),
    "a link outside": ("link", (("link", "outside"),)),
    "a name that begins in the same way": ("work-2/bin", ()),
    "the user's own temporary directory": ("tmp/mine/bin", ()),
}


@pytest.fixture
def room(tmp_path: Path) -> Path:
    for name in (
        *("work/bin", "added/bin", "outside/bin", "bin", "work-2/bin", "tmp/mine/bin", "tmp/ralph-tmp-0/bin"),
        "home/.cache/ralph/packages/0/bin",
    ):
        plant(tmp_path / name)
    plant(tmp_path / "outside")
    plant(tmp_path / "home/.cache/ralph/packages/0")
    return tmp_path


def plant(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "git").write_text("#!/bin/sh\n")
    (directory / "git").chmod(0o755)


def search(room: Path, entry: str) -> ProgramSearch:
    environment = {"PATH": f"{room}/{entry}", "HOME": f"{room}/home", "TMPDIR": f"{room}/tmp"}
    return search_outside(environment, (room / "work", room / "added"))


def looked_up(room: Path, row: tuple[str, Made]) -> tuple[str | None, tuple[str, ...]]:
    entry, made = row
    for link, target in made:
        (room / link).symlink_to(room / target)
    wanted = search(room, entry)
    return own_program("git", wanted), trusted_directories(wanted)


@pytest.mark.parametrize("row", LEADING_IN.values(), ids=LEADING_IN)
def test_an_entry_that_leads_through_a_writable_place_is_skipped(room, row) -> None:
    assert looked_up(room, row) == (None, ())


@pytest.mark.parametrize("row", ALLOWED.values(), ids=ALLOWED)
def test_an_entry_elsewhere_is_used(room, row) -> None:
    assert looked_up(room, row) == (f"{room}/{row[0]}/git", (f"{room}/{row[0]}",))


def test_a_program_that_is_a_link_into_a_writable_place_is_skipped(room) -> None:
    (room / "outside/git").unlink()
    (room / "outside/git").symlink_to(room / "work/bin/git")
    assert own_program("git", search(room, "outside")) is None


@pytest.mark.parametrize("entry", ["", ".", "work/bin"])
def test_an_entry_that_is_empty_or_relative_is_skipped(room, monkeypatch, entry) -> None:
    monkeypatch.chdir(room)
    assert trusted_directories(ProgramSearch(entry)) == ()
    assert own_program("git", ProgramSearch(entry)) is None


def test_shared_memory_is_writable() -> None:
    assert "/dev/shm" in search_outside({}, ()).roots


def _is_written_by_others(directory: Path) -> None:
    directory.chmod(0o777)


def _is_gone(directory: Path) -> None:
    (directory / "bin/git").unlink()
    (directory / "bin").rmdir()


def _is_of_another_user(directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(directory, 12345, 12345)


@pytest.mark.parametrize("change", [_is_written_by_others, _is_gone, _is_of_another_user])
def test_in_a_temporary_directory_nothing_is_used_that_another_user_can_replace(room, change) -> None:
    change(room / "tmp/mine")
    wanted = search(room, "tmp/mine/bin")
    assert own_program("git", wanted) is None
    assert trusted_directories(wanted) == ()


def test_a_group_of_the_user_alone_is_no_other_user(room, monkeypatch) -> None:
    """Umask 002 with such groups is usual, as on Debian and Fedora."""
    user = pwd.getpwuid(os.geteuid())
    (room / "tmp/mine").chmod(0o775)
    os.chown(room / "tmp/mine", -1, user.pw_gid)
    wanted = search(room, "tmp/mine/bin")
    for name, members, is_alone in (
        (user.pw_name, [], True),
        (user.pw_name, ["other"], False),
        ("x", [], False),
    ):
        group = grp.struct_group((name, "x", user.pw_gid, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, group=group: group)
        own_program.cache_clear()
        assert (own_program("git", wanted) is not None) is is_alone
        assert ("/tmp/mine" in why_not_used("git", wanted)) is not is_alone


def test_the_reason_why_a_program_is_not_used_names_the_place(room) -> None:
    assert why_not_used("git", search(room, "work/bin")) == (
        f"{room}/work/bin/git does not count: commands may write {room}/work"
    )
    assert why_not_used("no-such", search(room, "work/bin")) == ""


def test_what_is_found_stays_when_the_directory_is_replaced(room) -> None:
    wanted = search(room, "outside")
    found = own_program("git", wanted), trusted_directories(wanted)
    (room / "outside").rename(room / "was")
    (room / "outside").symlink_to(room / "work/bin")
    assert (own_program("git", wanted), trusted_directories(wanted)) == found


LOADED = """
GCONV_PATH LOCPATH OPENSSL_CONF OPENSSL_MODULES KRB5_CONFIG GSS_MECH_CONFIG SASL_PATH SASL_CONF_PATH SSH_SK_HELPER
SSH_PKCS11_HELPER P11_KIT_CONF
"""


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("LD_LIBRARY_PATH", "{room}/work/lib", None),
        ("LD_LIBRARY_PATH", ":{room}/outside", "{room}/outside"),
        ("LD_LIBRARY_PATH", "{room}/outside;{room}/added/lib:lib", "{room}/outside"),
        ("LD_LIBRARY_PATH", "{room}/link", None),
        ("LD_PRELOAD", "{room}/outside/git {room}/work/b.so", "{room}/outside/git"),
        ("LD_PRELOAD", "libc.so.6", None),
        ("LD_AUDIT", "{room}/work/b.so", None),
        ("DYLD_INSERT_LIBRARIES", "{room}/work/b.dylib", None),
        *((name, "{room}/work/x", None) for name in LOADED.split()),
        ("KRB5_CONFIG", "{room}/work/x:{room}/outside", "{room}/outside"),
        ("LD_LIBRARY_PATH", "/proc/self/cwd/lib:/dev/fd/../cwd/lib", None),
        ("GIT_EXEC_PATH", "{room}/home/.cache/ralph/packages/0", None),
        ("GIT_TEMPLATE_DIR", "{room}/home/.cache/ralph/packages/0", None),
        ("GIT_EXEC_PATH", "{room}/outside", "{room}/outside"),
        ("NODE_OPTIONS", "--trace-warnings --require {room}/work/x", None),
        ("NODE_OPTIONS", "--require dotenv/config", None),
        ("NODE_OPTIONS", "--import=file://{room}/outside/git", "--import=file://{room}/outside/git"),
        ("NODE_OPTIONS", "--max-old-space-size=4096", "--max-old-space-size=4096"),
        ("VIRTUAL_ENV", "{room}/work/.venv", None),
        ("VIRTUAL_ENV", "{room}/outside", "{room}/outside"),
        ("UV_PYTHON", "{room}/work/.venv/bin/python", None),
        ("UV_PYTHON", ".venv", None),
        ("UV_PYTHON", "3.12", "3.12"),
        ("RUBYOPT", "-W0 -I. -r./x", None),
        ("PERL5OPT", "-I{room}/work/bin", None),
        ("JAVA_TOOL_OPTIONS", "-Xmx1g -javaagent:{room}/work/x.jar", None),
        ("JAVA_TOOL_OPTIONS", "-Xmx1g", "-Xmx1g"),
        ("DOTNET_STARTUP_HOOKS", "{room}/work/x.dll", None),
        ("EDITOR", "{room}/work/x", "{room}/work/x"),
    ],
)
def test_nothing_that_commands_can_replace_is_loaded_into_ralphs_own_programs(
    room, name, value, kept
) -> None:
    (room / "link").symlink_to(room / "work/bin")
    safe = without_unsafe_loads({name: value.format(room=room)}, search(room, "outside"))
    assert safe.get(name) == (None if kept is None else kept.format(room=room))


def test_a_program_of_rustup_is_of_the_toolchain_that_the_user_chose(room: Path) -> None:
    (room / "home/.rustup").mkdir()
    settings = 'version = "12"\ndefault_toolchain = "stable-x86_64"\n\n[overrides]\n"/x" = "nightly"\n'
    (room / "home/.rustup/settings.toml").write_text(settings)
    own = search(room, "outside")
    home = {"HOME": str(room / "home")}
    assert without_unsafe_loads(home, own)["RUSTUP_TOOLCHAIN"] == "stable-x86_64"
    assert without_unsafe_loads(home | {"RUSTUP_TOOLCHAIN": "beta"}, own)["RUSTUP_TOOLCHAIN"] == "beta"
    assert "RUSTUP_TOOLCHAIN" not in with_set_aside(home, own)
    assert "RUSTUP_TOOLCHAIN" not in without_unsafe_loads({"HOME": str(room)}, own)


def test_a_program_of_asdf_has_the_version_that_the_user_chose_for_ralphs_own_programs_only(
    room: Path,
) -> None:
    chosen = "# mine\npython 3.12.1 system # both\n\nnodejs\njava-x openjdk-21\n"
    (room / "home/.tool-versions").write_text(chosen)
    (room / "work/.tool-versions").write_text("python path:/x\nruby path:/x\n")
    given = {"HOME": str(room / "home"), "ASDF_JAVA_X_VERSION": "17"}
    own = search(room, "outside")
    made = without_unsafe_loads(given, own)
    versions = {name: value for name, value in made.items() if name.startswith("ASDF")}
    assert versions == {"ASDF_PYTHON_VERSION": "3.12.1 system", "ASDF_JAVA_X_VERSION": "17"}
    assert with_set_aside(given, own) == given
    at_work = {"HOME": str(room / "work")}
    assert "ASDF_PYTHON_VERSION" not in without_unsafe_loads(at_work, own)


def test_mise_reads_nothing_where_commands_may_write_for_ralphs_own_programs_only(room: Path) -> None:
    name, given = "MISE_IGNORED_CONFIG_PATHS", {"MISE_IGNORED_CONFIG_PATHS": "/x"}
    own = search(room, "outside")
    ignored = without_unsafe_loads(given, own)[name].split(":")
    assert ignored == ["/x", *own.roots]
    assert str(room / "work") in ignored
    assert name not in with_set_aside({}, own)
    assert with_set_aside(given, own) == {f"RALPH_SET_ASIDE_{name}": "/x"}
