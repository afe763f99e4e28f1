"""Tests on real directories which parts of a home a run shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ralph.places.gather import gather_places
from ralph.places.table import FILTERED
from tests.git.repositories import committed
from tests.rows import every_row


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    for name in ("src/work", "src/other", "private"):
        (made / name).mkdir(parents=True)
    return made


def is_shown(home: Path, path: str, *roots: str, **variables: str) -> bool:
    work = [os.path.realpath(home / root) for root in roots or ("src/work",)]
    places = gather_places(work, {"HOME": str(home), "PATH": "/usr/bin", **variables})
    return places.why_not_read(os.path.realpath(home / path)) is None


def test_of_the_home_toolchains_and_the_work_are_shown(home) -> None:
    shown = "src/work/a .nvm/a .rustup/a .m2/repository/a .cache/pip/a .gitconfig .local/bin/a".split()
    others = (
        ".bashrc src/other/a private .cargo/credentials.toml .npmrc .config/a .local/share/a src .".split()
    )
    assert [path for path in (*shown, *others) if is_shown(home, path)] == shown


@every_row("root", [".", "..", "/"])
def test_where_the_home_is_in_the_work_the_deny_list_applies(root, home) -> None:
    assert is_shown(home, ".bashrc", root)
    assert not is_shown(home, ".ssh/id", root)


@every_row("home_of_user", ["/", "/usr", "/usr/sbin", "/opt", "/var", "/tmp", "/dev"])
def test_a_directory_of_the_system_is_no_home_to_close(home_of_user) -> None:
    places = gather_places(["/w"], {"HOME": home_of_user})
    assert home_of_user not in places.closed_homes
    assert places.why_not_read(f"{home_of_user}/.ssh/id".replace("//", "/")) is not None


def test_directories_of_PATH_are_shown_with_their_installations(home) -> None:  # noqa: N802 - the variable's name
    for name in ("jdk/bin", "jdk/lib", "own/bin", "own/notes", ".local/lib", ".local/bin"):
        (home / name).mkdir(parents=True)
    path = f"{home}/jdk/bin:{home}/own/bin:{home}/.local/bin:{home}"
    names = "jdk/lib/a own/bin/a own/notes/a .local/share/a private".split()
    assert [name for name in names if is_shown(home, name, PATH=path)] == ["jdk/lib/a", "own/bin/a"]


def test_packages_that_are_installed_as_editable_are_shown(home) -> None:
    for env in ("env", "src/work/env"):
        packages = home / env / "lib/python3.12/site-packages"
        (packages / "b-1.dist-info").mkdir(parents=True)
        (home / env / "bin").mkdir()
        for name in ("lib-a", "lib-b", "lib-c/src", "lib-d", "lib-e"):
            (home / name).mkdir(exist_ok=True, parents=True)
        (home / ".bashrc").touch()
        (packages / "a.pth").write_text(f"import x\n{home}/lib-a\n{home}/.bashrc\n")
        (packages / "__editable___c_1_finder.py").write_text(f"MAPPING = {{'c': '{home}/lib-c/src'}}\n")
        (packages / "e.pth").write_text("../../../../lib-e\n")
        editable = '{"dir_info": {"editable": true}, "url": "file://%s/lib-b"}'
        (packages / "b-1.dist-info/direct_url.json").write_text(editable % home)
        (packages / "home.pth").write_text(f"{home}\n/\n")
    names = ("lib-a/x", "lib-b/x", "lib-c/src/x", "lib-c/x", "lib-d/x", "lib-e/x", "private", ".bashrc")
    found = [name for name in names if is_shown(home, name, VIRTUAL_ENV=f"{home}/env")]
    assert found == ["lib-a/x", "lib-b/x", "lib-c/src/x", "lib-e/x"]
    assert [name for name in names if is_shown(home, name, PATH=f"{home}/env/bin")] == found
    # A command may have written the files of an environment in a root.
    assert not [name for name in names if is_shown(home, name, VIRTUAL_ENV=f"{home}/src/work/env")]


def test_no_link_in_the_work_shows_anything(home) -> None:
    (home / "src/work/bin").symlink_to(home / "private")
    (home / "src/work/.venv").symlink_to(home / "private")
    variables = {
        "PATH": f"{home}/src/work/bin",
        "VIRTUAL_ENV": f"{home}/src/work/.venv",
        "NVM_DIR": f"{home}/src/work/.venv",
    }
    assert not is_shown(home, "private/a", **variables)
    (home / ".local").mkdir()
    (home / ".local/bin").symlink_to(home / "private")
    assert is_shown(home, "private/a")
    places = gather_places([f"{home}/src/work"], {"HOME": str(home)}, given=[f"{home}/.local"])
    assert places.why_not_read(f"{home}/private/a"), "commands may write in a place that is given"
    (home / ".local/bin").unlink()
    (home / ".nvm").symlink_to(home)
    assert not is_shown(home, "private/a"), "a home is not shown as a whole"


@every_row(
    ("link", "target", "planted", "variables"),
    [
        ("spelled", ".", "src/work/.venv/bin", {"PATH": "spelled/src/work/.venv/bin"}),
        (".claude/commands", "src/work/commands", "src/work/commands", {}),
        (".nvm", "src/work/a/../nvm", "src/work/nvm", {}),
        (".gitconfig", "src/work/gitconfig", "src/work/gitconfig", {}),
        ("tool", "src/work/tool", "src/work/tool", {"VOLTA_HOME": "tool/more"}),
        ("jdk", ".cache/ralph/packages/x/bin", ".cache/ralph/packages/x/bin", {"JAVA_HOME": "jdk"}),
        ("bin", "src/given/bin", "src/given/bin", {}),
        ("bin", "src/main/.git/logs/bin", "src/main/.git/logs/bin", {}),
        (".pyenv", "one", "src/work/one", {}),
        ("one", "src/work/one", "src/work/one", {"PYENV_ROOT": "one"}),
    ],
)
def test_a_link_where_commands_may_write_shows_nothing(link, target, planted, variables, tmp_path) -> None:
    with TemporaryDirectory(dir=tmp_path) as made:
        home = Path(made) / "home"
        for name in ("private", "src/work", "src/given"):
            (home / name).mkdir(parents=True)
        committed(home / "src/main", home).git("worktree", "add", "../linked")
        (home / link).parent.mkdir(parents=True, exist_ok=True)
        (home / planted).parent.mkdir(parents=True, exist_ok=True)
        (home / link).symlink_to(home / target)
        (home / planted).symlink_to(home / "private")
        places = gather_places(
            [f"{home}/src/work", f"{home}/src/linked"],
            {"HOME": str(home), **{name: f"{home}/{value}" for name, value in variables.items()}},
            given=[f"{home}/src/given"],
        )
        assert places.why_not_read(f"{home}/private/a")
        assert places.why_not_read(f"{home}/private")


def test_no_file_where_commands_may_write_says_what_is_shown(home) -> None:
    """Lines of `.pth` files, and of files that git's configuration includes."""
    for where in ("src/work", ".cache/ralph/packages/x"):
        packages = home / where / "env/lib/python3.12/site-packages"
        packages.mkdir(parents=True)
        (packages / "a.pth").write_text(f"{home}/private\n")
        (home / where / "config").write_text(f"[include]\n\tpath = {home}/notes\n")
        (home / "notes").touch()
        for link in ("", "env", "env/lib", "env/lib/python3.12", "env/lib/python3.12/site-packages/a.pth"):
            environment = home / where / "env"
            if link:
                environment = home / f"env-{len(link)}-{len(where)}"
                (environment / link).parent.mkdir(parents=True, exist_ok=True)
                (environment / link).symlink_to(home / where / link)
                environment /= "env"
            (home / ".gitconfig").write_text(f"[include]\n\tpath = {home / where}/config\n")
            for path, variables in (
                ("private/a", {"VIRTUAL_ENV": str(environment)}),
                ("private/a", {"PATH": f"{environment}/bin"}),
                ("notes", {}),
            ):
                assert not is_shown(home, path, **variables), (where, link, path)
    (home / "own").write_text(f"[include]\n\tpath = {home}/notes\n\tpath = {home}/private\n")
    (home / ".gitconfig").write_text(f"[include]\n\tpath = {home}/own\n")
    assert is_shown(home, "notes")
    assert not is_shown(home, "private/a"), "git includes no directory"


def test_no_copy_is_made_of_a_file_to_which_a_link_in_the_work_leads(home) -> None:
    (home / ".npmrc").symlink_to(home / "src/work/npmrc")
    (home / "src/work/npmrc").symlink_to(home / "private/passwords")
    (home / "private/passwords").write_text("mail: x\npassword = x\n")
    places = gather_places([f"{home}/src/work"], {"HOME": str(home)})
    assert {f"{home}/.npmrc", f"{home}/private/passwords"}.isdisjoint(places.guarded(FILTERED, {}))
    assert places.why_not_read(f"{home}/private/passwords")


def test_no_copy_is_made_of_a_file_that_holds_credentials_only(home) -> None:
    (home / ".m2").mkdir()
    for name in ("settings.xml", "settings-work.xml", "settings-security.xml"):
        (home / ".m2" / name).write_text("<settingsSecurity><master>{x}</master></settingsSecurity>")
    places = gather_places([f"{home}/src/work"], {"HOME": str(home)})
    copied = {f"{home}/.m2/settings.xml", f"{home}/.m2/settings-work.xml"}
    assert {path for path in places.guarded(FILTERED, {}) if path.startswith(f"{home}/.m2/")} == copied


def test_a_file_that_a_variable_with_the_name_of_a_credential_names_is_not_read(tmp_path) -> None:
    for name in ("key", "password", "config"):
        (tmp_path / name).write_text("x")
    variables = {
        "VAULT_CLIENT_KEY": "key", "RESTIC_PASSWORD_FILE": "password", "TOOL_CONFIG_FILE": "config", "SECRETS_DIR": "",
    }  # fmt: skip
    places = gather_places(["/work"], {name: f"{tmp_path}/{value}" for name, value in variables.items()})
    closed = [name for name in ("key", "password", "config") if places.why_not_read(f"{tmp_path}/{name}")]
    assert closed == ["key", "password"]


def test_files_that_the_configuration_of_git_names_are_shown(home) -> None:
    (home / ".gitconfig").write_text(
        '[include]\n\tpath = ~/dot/more\n[core]\n\texcludesFile = "dot/ignored"\n\thooksPath = ~\n'
    )
    (home / "dot").mkdir()
    (home / "dot/more").write_text("[include]\n\tpath = deeper\n[user]\n\tname = x\n")
    (home / "dot/deeper").write_text("[http]\n\textraHeader = Authorization: x\n")
    named = ("more", "ignored", "deeper", "other")
    assert [name for name in named if is_shown(home, f"dot/{name}")] == ["more", "ignored"]
    (home / ".gitconfig").write_text("[github]\n\ttoken = x\n")
    assert not is_shown(home, ".gitconfig")


@every_row(
    "paths",
    [
        ".local/share/gem/credentials .stack/upload/credentials.json .rye/credentials .nimble/github_api_token",
        ".gradle/develocity/keys.properties .gradle/enterprise/keys.properties gradle/develocity/keys.properties",
        ".m2/.develocity/keys.properties .m2/.gradle-enterprise/keys.properties .m2/settings-security4.xml",
        ".config/mise/age.txt .dotnet/corefx/cryptography/x509stores/my/a.pfx .cargo/credentials.toml.old",
        ".cache/ms-playwright/mcp-chrome-profile/Default/Cookies .claude/plugins/a/.mcp.json",
        ".claude/plugins/cache/a/b/1/.mcp.json",
        # Files with configuration, and credentials beside it.
        ".gradle/init.gradle .gradle/init.d/a.gradle gradle/gradle.properties gradle/init.d/a.gradle",
        ".config/mise/config.local.toml .config/mise/conf.d/a.toml .config/mise/mise.work.toml .config/pnpm/config.yaml",
        ".conda/.condarc .conda/condarc miniconda3/.condarc env/.condarc",
        ".virtualenvs/a/pip.conf .pyenv/versions/3.12/pip.conf env/pip.conf",
        ".nvm/versions/node/v20/etc/npmrc .npm-global/etc/npmrc node[1]/etc/npmrc node[1]/versions/node/v1/etc/npmrc",
        "maven/conf/settings.xml cargo/config .m2/settings.xml.bak .config/git/config~ cargo/config.toml.orig",
        ".sdkman/candidates/maven/3/conf/settings.xml .local/share/pipx/venvs/a/pipx_metadata.json .npm/_logs/1-debug.log",
        ".pyenv/versions/3/envs/a/src/b/.git/config .cache/pypoetry/virtualenvs/a/src/b/.git/config .ccache/ccache.conf",
        ".bundle/cache/git/a/config .local/share/gem/ruby/3/cache/bundler/git/a/config miniconda3/envs/a/src/b/.git/config",
        ".local/share/virtualenvs/a/src/b/.git/config .virtualenvs/a/src/b/.git/config env/src/b/.git/config",
        ".cache/uv/git-v0/checkouts/a/1/.git/config .pyenv/.git/config .nvm/.git/config",
    ],
)  # fmt: skip
def test_credentials_inside_of_what_is_shown_are_not(paths, tmp_path) -> None:
    variables = {
        "GRADLE_USER_HOME": "gradle", "MAVEN_HOME": "maven", "CARGO_HOME": "cargo", "CONDA_PREFIX": "env",
        "VIRTUAL_ENV": "env", "N_PREFIX": "node[1]", "NVM_DIR": "node[1]",
    }  # fmt: skip
    with TemporaryDirectory(dir=tmp_path) as made:
        home = Path(made)
        named = {name: f"{home}/{value}" for name, value in variables.items()}
        for path in paths.split():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(
                "<a><password>x</password></a>" if ".xml" in path else "password = 'x'\n"
            )
            above = [path.rsplit("/", count)[0] for count in range(1, path.count("/") + 1)]
            assert any(is_shown(home, f"{one}/other", **named) for one in above), path
            assert not is_shown(home, path, **named), path


@every_row("name", [".local", ".local/share", ".config", ".cache", ".local/share/..", ".", "data"])
def test_no_variable_shows_a_directory_of_everything(name, tmp_path) -> None:
    variables = dict.fromkeys(
        ("N_PREFIX", "PIPX_HOME", "DENO_INSTALL", "BUN_INSTALL", "VIRTUAL_ENV"), f"{tmp_path}/{name}"
    )
    variables |= {"XDG_DATA_HOME": f"{tmp_path}/data", "PATH": f"{tmp_path}/{name}/bin"}
    (tmp_path / ".local/lib").mkdir(parents=True, exist_ok=True)
    for path in (".local/share/Trash/a", ".config/a", ".cache/a", "data/Trash/a"):
        assert not is_shown(tmp_path, path, **variables), path
    assert is_shown(tmp_path, ".local/bin/a", **variables)


def test_the_checkouts_of_the_roots_are_shown(home) -> None:
    (home / "own").mkdir()
    (home / "own/sub").mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    for words in (
        "init -q own",
        "-C own -c user.name=x -c user.email=x commit -q --allow-empty -m x",
        "-C own worktree add -q ../linked",
        "clone -q --bare own bare/it",
        "-C bare/it worktree add -q ../../of-bare",
        "-C bare/it worktree add -q inside",
    ):
        subprocess.run(["git", *words.split()], cwd=home, env=environment, check=True, capture_output=True)
    assert is_shown(home, "own/a", "own/sub")
    assert is_shown(home, "own/a", "linked")
    assert is_shown(home, "bare/it/config", "of-bare")
    assert is_shown(home, "bare/it/config", "bare/it/inside")
    assert not is_shown(home, "bare/it/other", "bare/it/inside")
    (home / "src/work/.git").write_text(f"gitdir: {home}/own/.git/worktrees/linked\n")
    assert not is_shown(home, "own/a", "src/work"), "it does not know this checkout"


def test_what_the_user_allows_opens_no_secret_inside_of_it(home) -> None:
    def shown(path: str, *given: str) -> bool:
        places = gather_places([f"{home}/src/work"], {"HOME": str(home)}, given=given)
        return places.why_not_read(f"{home}/{path}") is None

    assert shown(".bashrc", str(home))
    assert not shown(".ssh/id", str(home))
    assert shown(".ssh/known_hosts", str(home), f"{home}/.ssh/known_hosts")
    assert shown("private/a", f"{home}/private")
    assert not shown("src/other/a", f"{home}/private")
