"""ralph's own programs come from no place that commands may write, by whatever way a path leads there."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

import pytest

from ralph.machine.own_programs import (
    ProgramSearch,
    link_from_home,
    own_environment,
    own_program,
    search_outside,
    trusted_directories,
    why_not_used,
    with_set_aside,
    without_unsafe_loads,
)
from tests.rows import every_row

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
def directory(tmp_path: Path) -> Path:
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


def search(directory: Path, entry: str) -> ProgramSearch:
    environment = {"PATH": f"{directory}/{entry}", "HOME": f"{directory}/home", "TMPDIR": f"{directory}/tmp"}
    return search_outside(environment, (directory / "work", directory / "added"))


def looked_up(directory: Path, row: tuple[str, Made]) -> tuple[str | None, tuple[str, ...]]:
    entry, made = row
    for link, target in made:
        (directory / link).symlink_to(directory / target)
    wanted = search(directory, entry)
    return own_program("git", wanted), trusted_directories(wanted)


@pytest.mark.parametrize("row", LEADING_IN.values(), ids=LEADING_IN)
def test_an_entry_that_leads_through_a_writable_place_is_skipped(directory, row) -> None:
    assert looked_up(directory, row) == (None, ())


@pytest.mark.parametrize("row", ALLOWED.values(), ids=ALLOWED)
def test_an_entry_elsewhere_is_used(directory, row) -> None:
    assert looked_up(directory, row) == (f"{directory}/{row[0]}/git", (f"{directory}/{row[0]}",))


def test_a_program_that_is_a_link_into_a_writable_place_is_skipped(directory) -> None:
    (directory / "outside/git").unlink()
    (directory / "outside/git").symlink_to(directory / "work/bin/git")
    assert own_program("git", search(directory, "outside")) is None


@pytest.mark.parametrize("entry", ["", ".", "work/bin"])
def test_an_entry_that_is_empty_or_relative_is_skipped(directory, monkeypatch, entry) -> None:
    monkeypatch.chdir(directory)
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
def test_in_a_temporary_directory_nothing_is_used_that_another_user_can_replace(directory, change) -> None:
    change(directory / "tmp/mine")
    wanted = search(directory, "tmp/mine/bin")
    assert own_program("git", wanted) is None
    assert trusted_directories(wanted) == ()


def test_a_group_of_the_user_alone_is_no_other_user(directory, monkeypatch) -> None:
    """Umask 002 with such groups is usual, as on Debian and Fedora."""
    user = pwd.getpwuid(os.geteuid())
    (directory / "tmp/mine").chmod(0o775)
    os.chown(directory / "tmp/mine", -1, user.pw_gid)
    wanted = search(directory, "tmp/mine/bin")
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


def test_the_reason_why_a_program_is_not_used_names_the_place(directory) -> None:
    assert why_not_used("git", search(directory, "work/bin")) == (
        f"{directory}/work/bin/git does not count: commands may write {directory}/work"
    )
    assert why_not_used("no-such", search(directory, "work/bin")) == ""


def test_what_is_found_stays_when_the_directory_is_replaced(directory) -> None:
    wanted = search(directory, "outside")
    found = own_program("git", wanted), trusted_directories(wanted)
    (directory / "outside").rename(directory / "was")
    (directory / "outside").symlink_to(directory / "work/bin")
    assert (own_program("git", wanted), trusted_directories(wanted)) == found


LOADED = """
GCONV_PATH LOCPATH OPENSSL_CONF OPENSSL_MODULES KRB5_CONFIG GSS_MECH_CONFIG SASL_PATH SASL_CONF_PATH SSH_SK_HELPER
SSH_PKCS11_HELPER P11_KIT_CONF
"""


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("LD_LIBRARY_PATH", "{directory}/work/lib", None),
        ("LD_LIBRARY_PATH", ":{directory}/outside", "{directory}/outside"),
        ("LD_LIBRARY_PATH", "{directory}/outside;{directory}/added/lib:lib", "{directory}/outside"),
        ("LD_LIBRARY_PATH", "{directory}/link", None),
        ("LD_PRELOAD", "{directory}/outside/git {directory}/work/b.so", "{directory}/outside/git"),
        ("LD_PRELOAD", "libc.so.6", None),
        ("LD_AUDIT", "{directory}/work/b.so", None),
        ("DYLD_INSERT_LIBRARIES", "{directory}/work/b.dylib", None),
        *((name, "{directory}/work/x", None) for name in LOADED.split()),
        ("KRB5_CONFIG", "{directory}/work/x:{directory}/outside", "{directory}/outside"),
        ("LD_LIBRARY_PATH", "/proc/self/cwd/lib:/dev/fd/../cwd/lib", None),
        ("GIT_EXEC_PATH", "{directory}/home/.cache/ralph/packages/0", None),
        ("GIT_TEMPLATE_DIR", "{directory}/home/.cache/ralph/packages/0", None),
        ("GIT_EXEC_PATH", "{directory}/outside", "{directory}/outside"),
        ("NODE_OPTIONS", "--trace-warnings --require {directory}/work/x", None),
        ("NODE_OPTIONS", "--require dotenv/config", None),
        (
            "NODE_OPTIONS",
            "--import=file://{directory}/outside/git",
            "--import=file://{directory}/outside/git",
        ),
        ("NODE_OPTIONS", "--max-old-space-size=4096", "--max-old-space-size=4096"),
        ("VIRTUAL_ENV", "{directory}/work/.venv", None),
        ("VIRTUAL_ENV", "{directory}/outside", "{directory}/outside"),
        ("UV_PYTHON", "{directory}/work/.venv/bin/python", None),
        ("UV_PYTHON", ".venv", None),
        ("UV_PYTHON", "3.12", "3.12"),
        ("RUBYOPT", "-W0 -I. -r./x", None),
        ("PERL5OPT", "-I{directory}/work/bin", None),
        ("JAVA_TOOL_OPTIONS", "-Xmx1g -javaagent:{directory}/work/x.jar", None),
        ("JAVA_TOOL_OPTIONS", "-Xmx1g", "-Xmx1g"),
        ("DOTNET_STARTUP_HOOKS", "{directory}/work/x.dll", None),
        ("EDITOR", "{directory}/work/x", "{directory}/work/x"),
    ],
)
def test_nothing_that_commands_can_replace_is_loaded_into_ralphs_own_programs(
    directory, name, value, kept
) -> None:
    (directory / "link").symlink_to(directory / "work/bin")
    safe = without_unsafe_loads({name: value.format(directory=directory)}, search(directory, "outside"))
    assert safe.get(name) == (None if kept is None else kept.format(directory=directory))


@every_row(
    ("name", "value", "is_left_out"),
    [
        *(
            (name, "$W/x", True)
            for name in "GIT_CONFIG_GLOBAL GIT_ASKPASS XDG_CONFIG_HOME EDITOR HOME".split()
        ),
        *(
            (name, "$W", True)
            for name in "CURL_HOME DOCKER_CONFIG HOME KUBECONFIG GIT_DIR PLAYWRIGHT_BROWSERS_PATH".split()
        ),
        ("KUBECONFIG", "$H/.kube/config:$W/kube", True),
        ("CARGO_HOME", "$D/link/x", True),
        ("LESSOPEN", "|$W/x %s", True),
        ("GIT_SSH_COMMAND", "ssh -o ProxyCommand='$W/x %h'", True),
        ("npm_config_script_shell", "$W/x", True),
        ("MAVEN_OPTS", "-Xmx1g -javaagent:$W/x.jar", True),
        ("XDG_CACHE_HOME", "$H/.cache/ralph/packages/0", True),
        ("WORKSPACE", "$W", False),
        ("OLDPWD", "$W/bin", False),
        ("PWD", "$W/bin", False),
        ("RALPH_LOG", "$W/x", False),
        ("CLAUDE_PROJECT_DIR", "$W", False),
        ("HOME", "$H", False),
        ("DOCKER_CONFIG", "$H/.docker", False),
        ("KUBECONFIG", "$W-2/x", False),
        ("SERVER", "https://example.org/x", False),
        ("EDITOR", "vim", False),
        ("DOCKER_CONFIG", ".docker", True),
        ("KUBECONFIG", "kube/config", True),
        ("KUBECONFIG", "$H/.kube/config:more.yaml", True),
        ("AWS_CONFIG_FILE", "aws.ini", True),
        ("GIT_EXTERNAL_DIFF", "./d", True),
        ("GIT_SSH_COMMAND", "ssh -F ../x", True),
        ("R_PROFILE_USER", "bin/profile", True),
        ("CLASSPATH", ".", True),
        ("ZDOTDIR", "$W", True),
        ("R_LIBS", "$W", True),
        ("PROJECT_DIR", "$W", False),
        ("APP_CONFIG", "production", False),
        ("KUBECONFIG", "kubeconfig", True),
        ("WGETRC", "wgetrc", True),
        ("KUBECONFIG", "", False),
        ("MY_PREFIX", "v1.2", False),
        ("MAVEN_ARGS", "-s settings.xml", False),
        ("TZ", "Europe/Berlin", False),
        ("GITHUB_REPOSITORY", "work/work", False),
        ("NO_PROXY", "localhost,.internal", False),
        ("AWS_PROFILE", "prod", False),
        ("DOCKER_CONFIG", "~/.docker", False),
        ("CI_PROJECT_PATH", "group/project", False),
        ("PS1", "...", False),
    ],
)
def test_what_a_variable_names_where_commands_may_write_is_not_told_to_what_has_more_rights(
    directory, name, value, *, is_left_out
) -> None:
    for short, path in {"$W": "work", "$H": "home", "$D": ""}.items():
        value = value.replace(short, str(directory / path))
    if not (directory / "link").is_symlink():
        (directory / "link").symlink_to(directory / "work")
    (directory / "work/bin/profile").touch()
    given = {"HOME": str(directory / "home"), "PATH": str(directory / "work/bin"), name: value}
    made = own_environment(given, search(directory, "outside"))
    assert (made.get(name), made["PATH"]) == ((None if is_left_out else value), str(directory / "outside"))


@every_row(
    ("link", "target", "is_told"),
    [
        (".curlrc", "work/curlrc", True),
        (".zshenv", "work/missing", True),
        (".config/gh", "work/gh", True),
        (".config/gh/config.yml", "work/x", True),
        (".config", "work/config", True),
        (".docker/cli-plugins", "work/x", True),
        ("zsh/.zshenv", "work/x", True),
        (".config/fish/conf.d/x.fish", "work/x", True),
        (".oh-my-zsh/custom/plugins/x", "work/x", True),
        (".nvm/versions/node/x", "work/x", False),
        ("zsh", "work/zsh", False),
        (".curlrc", "outside/curlrc", False),
        ("notes", "work/notes", False),
    ],
)
def test_what_programs_read_in_the_home_does_not_lead_to_where_commands_write(
    tmp_path_factory, link, target, *, is_told
) -> None:
    place = tmp_path_factory.mktemp("place")
    for name in ("work", "outside", "home"):
        (place / name).mkdir()
    path = place / "home" / link
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(place / target)
    given = {"HOME": str(place / "home"), "ZDOTDIR": str(place / "home/zsh")}
    told = link_from_home(given, search(place, "outside"))
    assert told.startswith(f"{path}, which programs read, leads through {place}/work") is is_told
    assert bool(told) is is_told


def test_ralphs_own_interpreters_run_nothing_unasked_of_an_editable_installation(tmp_path) -> None:
    venv.create(tmp_path / "venv")
    [packages] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (packages / "editable.pth").write_text(f"{tmp_path}\n")
    (tmp_path / "sitecustomize.py").write_text("print('of the work')\n")
    start = (
        "import subprocess; from ralph.machine.own_programs import own_python; "
        "subprocess.run(own_python('print(sys.prefix)'))"
    )
    ran = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", start],
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True,
        capture_output=True,
        text=True,
    )
    # The second line is from the user's own start of the first interpreter.
    assert ran.stdout.splitlines() == [str(tmp_path / "venv"), "of the work"]


def test_the_home_of_the_user_may_be_where_commands_write(directory, monkeypatch) -> None:
    home = str(directory / "work")
    entry = pwd.struct_passwd(("me", "x", os.geteuid(), os.getegid(), "", home, "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
    assert own_environment({"HOME": home}, search(directory, "outside"))["HOME"] == home


def test_a_program_of_rustup_is_of_the_toolchain_that_the_user_chose(directory: Path) -> None:
    (directory / "home/.rustup").mkdir()
    settings = 'version = "12"\ndefault_toolchain = "stable-x86_64"\n\n[overrides]\n"/x" = "nightly"\n'
    (directory / "home/.rustup/settings.toml").write_text(settings)
    own = search(directory, "outside")
    home = {"HOME": str(directory / "home")}
    assert without_unsafe_loads(home, own)["RUSTUP_TOOLCHAIN"] == "stable-x86_64"
    assert without_unsafe_loads(home | {"RUSTUP_TOOLCHAIN": "beta"}, own)["RUSTUP_TOOLCHAIN"] == "beta"
    assert "RUSTUP_TOOLCHAIN" not in with_set_aside(home, own)
    assert "RUSTUP_TOOLCHAIN" not in without_unsafe_loads({"HOME": str(directory)}, own)


def test_a_program_of_asdf_has_the_version_that_the_user_chose_for_ralphs_own_programs_only(
    directory: Path,
) -> None:
    chosen = "# mine\npython 3.12.1 system # both\n\nnodejs\njava-x openjdk-21\n"
    (directory / "home/.tool-versions").write_text(chosen)
    (directory / "work/.tool-versions").write_text("python path:/x\nruby path:/x\n")
    given = {"HOME": str(directory / "home"), "ASDF_JAVA_X_VERSION": "17"}
    own = search(directory, "outside")
    made = without_unsafe_loads(given, own)
    versions = {name: value for name, value in made.items() if name.startswith("ASDF")}
    assert versions == {"ASDF_PYTHON_VERSION": "3.12.1 system", "ASDF_JAVA_X_VERSION": "17"}
    assert with_set_aside(given, own) == given
    at_work = {"HOME": str(directory / "work")}
    assert "ASDF_PYTHON_VERSION" not in without_unsafe_loads(at_work, own)


def test_mise_reads_nothing_where_commands_may_write_for_ralphs_own_programs_only(directory: Path) -> None:
    name, given = "MISE_IGNORED_CONFIG_PATHS", {"MISE_IGNORED_CONFIG_PATHS": "/x"}
    own = search(directory, "outside")
    ignored = without_unsafe_loads(given, own)[name].split(":")
    assert ignored == ["/x", *own.roots]
    assert str(directory / "work") in ignored
    assert name not in with_set_aside({}, own)
    assert with_set_aside(given, own) == {f"RALPH_SET_ASIDE_{name}": "/x"}
