"""Homes of others, which ralph could read as root or on Windows Subsystem for Linux, are closed like the user's own."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from ralph.places import home as home_module
from ralph.places.gather import gather_places
from ralph.places.table import PATTERNS
from tests.places.test_one_table import LEVELS, tools_in
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILES = """
.ssh/id .aws/credentials .config/gh/hosts.yml .cargo/credentials.toml .local/state/ralph/x notes .nvm/node .cache/pip/x .cargo/bin/x
""".split()
SHOWN = [".nvm/node", ".cache/pip/x", ".cargo/bin/x"]
SECRET = FILES[:5]


def made(home: Path) -> Path:
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("canary")
    return home


def open_in(home: Path, root: Path | str, **variables: str) -> list[str]:
    """The files that may be read."""
    places = gather_places([str(root)], {"HOME": "/own", "PATH": "/usr/bin", **variables})
    return [name for name in FILES if places.why_not_read(f"{home}/{name}") is None]


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets the user id, and the users that the database lists, and those that it only knows by name, each with the home."""
    found: dict[str, Path | str] = {}

    def known(name: str) -> SimpleNamespace:
        return SimpleNamespace(pw_dir=str(found[name]))

    def become(uid: int, *listed: Path | str, **by_name: Path | str) -> None:
        found.update(by_name)
        monkeypatch.setattr(os, "getuid", lambda: uid)
        monkeypatch.setattr(pwd, "getpwall", lambda: [SimpleNamespace(pw_dir=str(home)) for home in listed])

    monkeypatch.setattr(pwd, "getpwnam", known)
    monkeypatch.setattr(home_module, "_AROUND_DRIVES", ())
    yield become
    monkeypatch.undo()


def test_as_root_the_homes_of_all_users_are_closed_but_for_their_toolchains(users, tmp_path) -> None:
    me, other = made(tmp_path / "home/me"), made(tmp_path / "home/other")
    (tmp_path / "home/link").symlink_to(other)
    users(0, "/", "/nonexistent", tmp_path / "home/link", me=me)
    assert (open_in(other, "/work"), open_in(me, "/work")) == (SHOWN, FILES)
    assert open_in(me, "/work", SUDO_USER="nobody-knows") == FILES
    assert open_in(me, "/work", SUDO_USER="me") == SHOWN
    assert open_in(me, me / "work", SUDO_USER="me") == SHOWN
    users(1000, other)
    assert open_in(other, "/work", SUDO_USER="me") == FILES


def test_of_a_home_in_the_work_only_the_deny_list_is_closed(users, tmp_path) -> None:
    home = made(tmp_path / "home/me")
    users(0, home)
    left = [name for name in FILES if name not in SECRET]
    for root in (home, home.parent, "/"):
        assert open_in(home, root) == left
    work = home / ".config/gh"
    assert gather_places([str(work)], {"HOME": "/own"}).why_not_written(f"{work}/x") is None


def test_files_in_the_home_of_a_program_are_its_work(users, tmp_path) -> None:
    app = made(tmp_path / "app")
    users(0, app)
    assert open_in(app, app) == open_in(app, app / "part") == FILES
    assert open_in(app, tmp_path / "else") == [name for name in FILES if name not in SECRET]


@every_row("home", ["/", "/usr", "/usr/sbin", "/bin", "/dev", "/var", "/var/lib", "/opt", "/tmp", "/home"])
def test_no_directory_of_the_system_is_closed_whoever_has_it_as_home(home, users) -> None:
    users(0, home)
    places = gather_places(["/work"], {"HOME": "/own"})
    assert home not in places.closed_homes
    assert places.why_not_read(f"{home}/x".replace("//", "/")) is None


def test_the_number_of_homes_is_bounded_and_that_of_who_has_called_sudo_counts_first(
    users, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(home_module, "_MOST_USERS", 3)
    homes = [made(tmp_path / f"home/{number}") for number in range(4)]
    users(0, "/", "/usr", *homes, last=homes[3])
    closed = [home for home in homes if open_in(home, "/work", SUDO_USER="last") == SHOWN]
    assert closed == [homes[0], homes[1], homes[3]]


def test_a_toolchain_beside_secrets_opens_none_of_them(users, tmp_path) -> None:
    home = made(tmp_path / "home/me")
    users(0, home)
    for name in ".local/bin .local/lib bin lib .linuxbrew/bin .linuxbrew/lib".split():
        (home / name).mkdir(parents=True)
    (home / ".local/share/keyrings").mkdir(parents=True)
    environment = {
        "HOME": "/own",
        "PATH": f"{home}/.local/bin:{home}/bin:{home}/.config:{home}/.linuxbrew/bin",
    }
    places = gather_places(["/work"], environment)
    names = ".local/bin/x .local/share/x .local/share/keyrings/x bin/x .linuxbrew/bin/x x .config/x .config/gh/x .linuxbrew/etc/x".split()
    shown = [name for name in names if places.why_not_read(f"{home}/{name}") is None]
    assert shown == [".local/bin/x", "bin/x", ".linuxbrew/bin/x"]


def test_a_login_that_a_variable_names_in_the_home_of_another_is_the_users_own(users, tmp_path) -> None:
    home = made(tmp_path / "home/me")
    users(0, home)
    for variable, folder, login in (
        ("CLAUDE_CONFIG_DIR", ".claude", ".credentials.json"),
        ("XDG_DATA_HOME", ".local/share", "opencode/auth.json"),
    ):
        file = home / folder / login
        file.parent.mkdir(parents=True)
        file.touch()
        places = gather_places(["/work"], {"HOME": "/own", variable: f"{home}/{folder}"})
        assert [row.why for row in places.secrets_around(str(file))] == [
            f"holds credentials of {'claude' if 'claude' in folder else 'opencode'}"
        ]
        assert places.why_not_read(str(file)) is not None


def test_homes_of_windows_are_closed_to_every_user(users, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(home_module, "_AROUND_DRIVES", (str(tmp_path / "mnt"),))
    home, server = made(tmp_path / "mnt/c/Users/me"), made(tmp_path / "mnt/nas/Users/me")
    data = home / "AppData/Local"
    (data / "Temp").mkdir(parents=True)
    users(1000)

    def may_read(path: Path, root: Path) -> bool:
        return gather_places([str(root)], {"HOME": "/own"}).why_not_read(str(path)) is None

    assert (open_in(home, "/work"), open_in(server, "/work")) == (SHOWN, FILES)
    assert open_in(home, home / "src") == SHOWN
    assert open_in(home, home) == [name for name in FILES if name not in SECRET]
    for root in (Path("/work"), home, home / "src", data / "Temp"):
        assert not may_read(data / "x", root), root
    assert may_read(home / "src/x", home / "src")
    assert may_read(data / "Temp/x", data / "Temp")
    assert may_read(tmp_path / "mnt/c/Windows/x", Path("/work"))


@pytest.mark.parametrize("level", LEVELS)
def test_tools_and_commands_keep_out_of_the_homes_of_others(level, monkeypatch) -> None:
    with TemporaryDirectory(dir="/var/tmp") as above:
        home, work = made(Path(above, "home/other")), Path(above, "work")
        work.mkdir()
        monkeypatch.setattr(home_module, "_homes_of_users", lambda _: iter([str(home)]))
        for tools in tools_in(work, {"HOME": f"{above}/own", "PATH": os.environ["PATH"]}, level):
            for name in FILES:
                file = f"{home}/{name}"
                said = [
                    str(tools.call(tool, arguments).content)
                    for tool, arguments in (
                        ("Bash", {"command": f"cat {file}"}),
                        ("Read", {"file_path": file}),
                        ("Grep", {"pattern": "canary", "path": file, "output_mode": "content"}),
                    )
                ]
                assert ["canary" in text for text in said] == [name in SHOWN] * 3, (name, said)
                edit = {"file_path": file, "old_string": "canary", "new_string": "other"}
                assert tools.call("Edit", edit).is_error


def test_what_only_root_can_read_of_the_services_of_a_machine_is_closed_to_root(
    users, monkeypatch, tmp_path
) -> None:
    monkeypatch.setitem(PATTERNS, "services", f"{tmp_path}/keys  {tmp_path}/runner/.cred*")
    (tmp_path / "keys").mkdir()
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner/.credentials").touch()
    for uid in (0, 1000):
        users(uid)
        places = gather_places(["/work"], {"HOME": "/own"})
        for name in ("keys/x", "runner/.credentials"):
            assert (places.why_not_read(f"{tmp_path}/{name}") is None) == (uid != 0)
        assert places.why_not_read(f"{tmp_path}/runner/x") is None


def test_the_secrets_of_a_codespace_are_closed() -> None:
    places = gather_places(["/workspaces/x"], {"HOME": "/own"})
    assert places.why_not_read("/workspaces/.codespaces/shared/.env-secrets") is not None
    assert places.why_not_read("/workspaces/y/z") is None
