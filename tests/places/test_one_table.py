"""A row of the table is changed, and each part of ralph that refuses, hides, mounts, compares or lists places follows."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ralph.cli.checks import probe
from ralph.pages.content import Excerpts
from ralph.pages.git_changes import CommitRange, GitQuestion, GitReader
from ralph.places import table
from ralph.places.table import (
    CLOSED,
    COMPARED,
    DEVICE,
    EMPTY,
    FILTERED,
    GUARDS,
    JUDGED,
    PRIVATE,
    READ_ONLY,
    SHOWN,
    TOLD,
    UNQUOTED,
    UNWRITTEN,
    VISIBLE,
    WRITABLE,
    PlaceRow,
)
from ralph.prompt.judged_file import Place, why_not_for_model
from ralph.sandbox import command_box
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.redaction import LookedCommit, Redactor
from tests.git.repositories import committed
from tests.rows import every_row
from tests.tools.conftest import Tools

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.git.repositories import Repository

NEW_ROWS = (
    PlaceRow(("~/work/secret", "~/tools/secret"), "holds a test"),
    PlaceRow(("**/agent.conf",), "is obeyed", (UNWRITTEN, READ_ONLY, COMPARED)),
    PlaceRow(("{git}/programs",), "is obeyed", (READ_ONLY, COMPARED, TOLD)),
    PlaceRow(("~/work/sub/deep/kept",), "is obeyed", (UNWRITTEN, READ_ONLY, COMPARED)),
    PlaceRow(("**/.token",), "is no instruction", (UNQUOTED,)),
    PlaceRow(("**/limits",), "is of a process", (PRIVATE,)),
    PlaceRow(("~/tools/sockets", "~/tools/one.socket"), "holds sockets", (EMPTY,)),
    PlaceRow(("$SHOWN",), "holds a program", (VISIBLE,)),
    PlaceRow(("~/tools/scratch",), "is for the work", (WRITABLE,)),
    PlaceRow(("~/tools/device",), "is like a device", (DEVICE,)),
    PlaceRow(("~/tools/closed",), "holds hardware", (CLOSED,)),
    PlaceRow(("~/toolchain",), "holds a toolchain", (SHOWN,)),
    PlaceRow(("~/tools/settings",), "holds two things", (FILTERED,)),
    PlaceRow(("**/both*.ini",), "may hold credentials beside configuration", (JUDGED,)),
)
ALWAYS = (PlaceRow(("~/tools",), "is a directory of the home that is shown", (SHOWN,)),)
LEVELS = ("namespaces", "landlock")


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """The home directory, of this process too: `~` means that of ralph."""
    made = tmp_path / "home"
    monkeypatch.setenv("HOME", str(made))
    both = "a = canary\npassword = pass phrase\n"
    for name, text in {
        **dict.fromkeys("secret/key sockets/one one.socket scratch/file device closed/one".split(), "canary"),
        "../toolchain": "canary",
        "settings": both,
        "deep/er/both-x.ini": both,
        "deep/er/both.ini": "a = canary\n",
    }.items():
        (made / "tools" / name).parent.mkdir(parents=True, exist_ok=True)
        (made / "tools" / name).write_text(text)
    return made


@pytest.fixture
def repository(home: Path) -> Repository:
    made = committed(home / "work", home)
    made.write("agent.conf", "mine")
    made.write(".token", "x")
    made.write(".git/programs/x", "mine")
    made.write("sub/deep/kept", "mine")
    return made


@pytest.fixture
def with_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def change(is_changed: bool) -> None:
        rows = (*ALWAYS, *(NEW_ROWS if is_changed else ()))
        monkeypatch.setattr(table, "ROWS", (*table.ROWS, *rows))

    return change


def tools_of(repository: Repository, level: str | None) -> Iterator[Tools]:
    yield from tools_in(repository.top, repository.environment, level)


def tools_in(
    work: Path,
    environment: Mapping[str, str],
    level: str | None,
    wanted: SandboxSettings | None = None,
    writable: tuple[Path, ...] = (),
    **settings: Any,
) -> Iterator[Tools]:
    """The tools of a run whose commands have this level of the sandbox, or none. Closes them afterwards."""
    if level is not None:
        plan = plan_box(wanted or SandboxSettings(), environment, (work, *writable))
        if level == "landlock":
            plan = replace(plan, means=replace(plan.means, bwrap=None, has_network_namespace=False))
        if plan.level.name == "none" or (level == "namespaces" and not plan.has_namespaces):
            pytest.skip(f"no {level} here")
        settings["box_plan"] = plan
    tools = Tools(work, cwd=work, environment=environment, writable=writable, **settings)
    yield tools
    tools.box.close()


@pytest.mark.parametrize("is_changed", [False, True])
def test_file_tools_and_searches_follow_the_table(with_rows, repository, home, is_changed) -> None:
    with_rows(is_changed)
    own = home / "tools"
    for tools in tools_of(repository, None):

        def said(name: str, **arguments: object) -> str:
            given = {key: str(value) for key, value in arguments.items()}
            return str(tools.call(name, given).content)  # noqa: B023 - called in this round

        canaries = {"pattern": "canary", "output_mode": "content"}
        for text, why in (
            (said("Read", file_path=own / "secret/key"), "holds a test"),
            (said("Grep", pattern="canary", path=own / "secret"), "holds a test"),
            (said("Write", file_path=repository.top / "sub/agent.conf", content="x"), "is obeyed"),
            (said("Edit", file_path="agent.conf", old_string="mine", new_string="other"), "is obeyed"),
            (said("Read", file_path=own / "settings"), "holds credentials beside configuration"),
            (said("Read", file_path=own / "deep/er/both-x.ini"), "may hold credentials beside"),
            (said("Read", file_path=home / "toolchain"), "canary"),
            (said("Read", file_path="/proc/self/limits"), "is of a process"),
        ):
            assert (why in text) == is_changed, text
        found = said("Grep", path=own, **canaries)
        assert ("secret/key" in found) != is_changed
        assert ("both-x.ini" in found) != is_changed
        assert "both.ini" in found
        assert ("secret/key" in said("Glob", pattern="**/key", path=own)) != is_changed
        assert "a = canary" in said("Read", file_path=own / "deep/er/both.ini")


def bash_output(tools: Tools, command: str) -> str:
    return str(tools.call("Bash", {"command": command}).content)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_changed", [False, True])
def test_commands_follow_the_table(with_rows, repository, home, level, is_changed) -> None:
    with_rows(is_changed)
    is_mounted = is_changed and level == "namespaces"
    for tools in tools_of(repository, level):
        said = partial(bash_output, tools)
        for path in ("agent.conf", ".git/programs/x", "sub/deep/kept"):
            file = repository.top / path
            file.write_text("mine")
            text = said(f"echo other > {path}")
            assert (file.read_text() == "mine") == is_changed, text
            assert ("Read-only file system" in text) == is_mounted
            assert ("undone" in text) == (is_changed and not is_mounted)
        text = said("mv sub other && mkdir -p sub/deep && echo x > sub/deep/kept")
        assert ("Device or resource busy" in text) == is_mounted, text
        assert ("canary" in said(f"cat {home}/tools/secret/key")) != is_changed
        text = said(f"cat {home}/toolchain")
        assert ("canary" in text, "sandbox.read" in text) == (is_changed, not is_changed)
        text = said(f"cat {home}/tools/settings")
        assert ("phrase" in text) != is_changed
        assert ("a = canary" in text) == (not is_changed or level == "namespaces")


def test_each_kind_of_row_is_tried() -> None:
    assert {guard for row in NEW_ROWS for guard in row.guards} == {*GUARDS}


@pytest.fixture
def shown() -> Iterator[Path]:
    """A directory in /tmp, which commands with namespaces do not see."""
    with TemporaryDirectory(dir="/tmp") as made:
        (Path(made) / "program").write_text("canary")
        yield Path(made)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_changed", [False, True])
def test_what_commands_find_follows_the_table(
    with_rows, repository, home, shown, level, is_changed, monkeypatch
) -> None:
    with_rows(is_changed)
    monkeypatch.setitem(table.CACHES, "NEW_CACHE" if is_changed else "OTHER_CACHE", "/new")

    def is_kept(guard: str) -> bool:
        return is_changed and level in GUARDS[guard].levels

    environment = {**repository.environment, "SHOWN": str(shown)}
    for tools in tools_in(repository.top, environment, level):
        said = partial(bash_output, tools)
        assert (said(f"ls {home}/tools/sockets") != "one") == is_kept(EMPTY)
        assert ("canary" not in said(f"cat {home}/tools/one.socket")) == is_kept(EMPTY)
        is_seen = level == "landlock" or is_kept(VISIBLE)
        assert ("canary" in said(f"cat {shown}/program")) == is_seen
        for guard, path in ((WRITABLE, home / "tools/scratch/file"), (DEVICE, home / "tools/device")):
            said(f"echo other >> {path}")
            assert path.read_text().endswith("other\n") == is_kept(guard), guard
        assert ("canary" not in said(f"cat {home}/tools/closed/one")) == is_kept(CLOSED)
        assert said("echo $NEW_CACHE").endswith("/new") == is_changed


@pytest.mark.parametrize("level", LEVELS)
def test_attacks_on_the_home_from_the_work_show_nothing(repository, home, level) -> None:
    """Each command tries to get the text of a file that is not shown."""
    for name, text in (
        (".bashrc", "export X=canary\n"),
        ("src/other/.env", "canary\n"),
        (".claude/history.jsonl", "canary\n"),
        (".ssh/more", "a = canary\n"),
        (".gitconfig", "[include]\n\tpath = ~/.ssh/more\n[user]\n\tname = one\n"),
        (".npmrc", "//h/:_authToken=canary\nfund=false\n"),
        (".cargo/config.toml", '[registries]\nx = { token = "canary" }\n'),
        (".m2/settings.xml.bak", "<s><password>canary</password></s>"),
        (".composer/auth.json.bak", "canary\n"),
        (".config/git/.credentials.swp", "canary\n"),
        (".linuxbrew/etc/my.cnf", "canary\n"),
        (".linuxbrew/var/data", "canary\n"),
        (".linuxbrew/bin/program", "x\n"),
        (".linuxbrew/lib/library", "x\n"),
        (".gradle/daemon/8.5/daemon-1.out.log", "canary\n"),
        ("miniconda3/envs/x/conda-meta/state", '{"env_vars": {"API_KEY": "canary"}}\n'),
        (".cache/pre-commit/repoa/.git/config", '[remote "origin"]\n\turl = https://x:canary@h/x\n'),
        (".local/share/gem/credentials", "canary\n"),
        (".cache/ms-playwright/mcp-chrome-profile/Cookies", "canary\n"),
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    work = repository.top
    (work / "link").symlink_to(home)
    attacks = [
        "cat ~/.bashrc ../src/other/.env ~/.claude/history.jsonl ~/.ssh/more ~/.npmrc",
        "cat ~/.cargo/config.toml ~/.m2/settings.xml.bak ~/.local/share/gem/* ~/.cache/ms-playwright/*/*",
        "cat ~/.composer/* ~/.config/git/.* ~/.linuxbrew/*/* ~/.gradle/daemon/*/* ~/miniconda3/envs/x/*/*",
        "cat ~/.cache/pre-commit/repoa/.git/config; git -C ~/.cache/pre-commit/repoa config -l",
        "cat link/.bashrc /proc/self/root$HOME/.bashrc /proc/self/cwd/../.bashrc",
        "ln ~/.bashrc mine; cat mine; cp ~/.bashrc mine2; mv ~/.bashrc mine3; cat mine2 mine3",
        ". ~/.bashrc; echo $X; bash -ic 'echo $X'; git config --list; cd .. && cat .bashrc",
        "rm -rf bin && ln -s ~ bin; PATH=$PWD/bin:$PATH cat bin/.bashrc; mkdir -p .venv; ln -s ~ .nvm; cat .nvm/.bashrc",
        "tar c ~ 2>/dev/null | tar xO 2>/dev/null; find ~ -type f -exec cat {} + 2>/dev/null; rg -uu canary ~",
        "unshare -rm cat ~/.bashrc; chmod 777 ~/.bashrc; cat ~/.bashrc; umount ~/.npmrc; cat ~/.npmrc",
    ]
    variables = {"HOME": str(home), "PATH": f"{home}/.linuxbrew/bin:{repository.environment['PATH']}"}
    for tools in tools_in(work, {**repository.environment, **variables}, level):
        for attack in attacks:
            said = str(tools.call("Bash", {"command": attack}).content)
            assert "canary" not in said, attack
        for path in "~/.bashrc link/.bashrc ../src/other/.env ~/.npmrc /proc/self/cwd/../.bashrc".split():
            for name, more in (("Read", {"file_path": path}), ("Grep", {"pattern": "canary", "path": path})):
                said = str(tools.call(name, more).content)
                assert "canary" not in said.replace("'canary'", ""), (name, path)
        for name in ("~", "link", "..", str(home.parent)):
            found = tools.call("Grep", {"pattern": "canary", "path": name, "output_mode": "content"})
            assert "canary" not in str(found.content)
        copied = str(tools.call("Bash", {"command": "cat ~/.npmrc"}).content)
        assert ("fund=false" in copied) == (level == "namespaces")


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_mounted_in_a_closed_home_is_closed_at_its_other_path(
    repository, home, level, monkeypatch
) -> None:
    """The work, which is mounted in the home too, stays open there."""
    for name in ("x/secret", "y/file"):
        (home.parent / name).parent.mkdir()
        (home.parent / name).write_text("canary\n")
    mounts = "".join(
        f"{number} 1 {device} / {point} rw - ext4 /dev/x rw\n"
        for number, device, point in (
            *((1, "8:0", "/"), (2, "8:1", home / "notes"), (3, "8:1", home.parent / "x")),
            *((4, "8:2", home / "work"), (5, "8:2", home.parent / "y")),
        )
    )
    monkeypatch.setattr(command_box, "mounts", lambda: mounts)
    for tools in tools_of(repository, level):
        assert "canary" not in str(tools.call("Bash", {"command": "cat ../../x/secret"}).content)
        assert "canary" in str(tools.call("Bash", {"command": "cat ../../y/file"}).content)


@pytest.mark.parametrize("level", LEVELS)
@every_row(
    ("link", "planted", "variables"),
    [
        # The home is reached by a link, and an environment of the work is active.
        ("../spelled", "mkdir -p .venv; ln -s ~/Documents .venv/bin", {"PATH": "/spelled/work/.venv/bin:$PATH"}),
        (
            "../spelled",
            ("mkdir -p $XDG_CACHE_HOME/v/bin $XDG_CACHE_HOME/v/lib/python3.11/site-packages && ln -s $XDG_CACHE_HOME/v .venv && "
            "printf '%s\\n' ~/.bashrc ~/Documents > .venv/lib/python3.11/site-packages/x.pth"),
            {"PATH": "/spelled/work/.venv/bin:$PATH", "VIRTUAL_ENV": "/spelled/work/.venv"},
        ),
        (".claude/commands work/commands", "ln -s ~/Documents commands", {}),
        (".config/git/config work/gitconfig", "ln -s ~/.bashrc gitconfig", {}),
        (".npmrc work/npmrc", "ln -s ~/.bashrc npmrc", {}),
        ("given work/given", "ln -s ~/Documents given", {}),
        ("", "printf '[include]\\npath = ~/Documents/a\\npath = ~/.bashrc\\npath = ~/Documents' > shared.gitconfig", {}),
    ],
)  # fmt: skip
def test_what_a_run_leaves_in_the_work_shows_the_next_run_nothing(
    link, planted, variables, level, tmp_path
) -> None:
    with TemporaryDirectory(dir=tmp_path) as made:
        home = Path(made) / "home"
        (home / "Documents").mkdir(parents=True)
        (home / "Documents/a").write_text("canary\n")
        (home / ".bashrc").write_text("export canary=1\nexport TOKEN=x\n")
        repository = committed(home / "work", home)
        (home / ".gitconfig").write_text("[include]\n\tpath = ~/work/shared.gitconfig\n")
        name, _, target = link.partition(" ")
        if name:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).symlink_to(home / target)
        environment = {
            **repository.environment,
            "HOME": f"{made}/spelled" if "spelled" in name else str(home),
        }
        for one, value in variables.items():
            environment[one] = value.replace("$PATH", environment["PATH"]).replace(
                "/spelled", f"{made}/spelled"
            )
        for command in (planted, "cat ~/.bashrc ~/Documents/a"):
            for tools in tools_in(repository.top, environment, level, SandboxSettings(read=("~/given",))):
                said = tools.call("Bash", {"command": command})
                assert "canary" not in str(said.content), planted
                assert command != planted or not said.is_error, said.content
        for tools in tools_in(repository.top, environment, level, SandboxSettings(read=("~/given",))):
            for path in ("~/.bashrc", "~/Documents/a"):
                assert "canary" not in str(tools.call("Read", {"file_path": path}).content), planted


@pytest.mark.parametrize("level", LEVELS)
def test_a_command_runs_and_writes_where_the_working_directory_is_the_root(level, tmp_path) -> None:
    work, environment = Path("/"), {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for tools in tools_in(work, environment, level):
        said = tools.call("Bash", {"command": f"echo hi > {tmp_path}/file && cat {tmp_path}/file"})
        assert said.content == "hi"


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_loop_the_pages_and_doctor_follow_the_table(
    with_rows, repository, home, monkeypatch, is_changed
) -> None:
    with_rows(is_changed)
    assert ("programs/x" in (repository.checkout().snapshot().guarded or {})) == is_changed
    before = repository.git("rev-parse", "HEAD")
    repository.write("secret/key", "canary\n")
    after = repository.commit_all("x")
    reader = GitReader(repository.seams(), Excerpts(Redactor()), environment={"HOME": str(home)})
    asked = GitQuestion(repository.top, (CommitRange(1, before, after),), looked=(LookedCommit(after),))
    (commit,) = reader.facts(asked).commits
    [diff] = [file.diff for file in commit.files if file.path == "secret/key"]
    assert ("canary" in diff) != is_changed
    wanted = SandboxSettings(read_deny=("~/work/a.txt",))
    tried = [*probe._secrets({"HOME": str(home)}, wanted)]
    assert (str(home / "tools/secret/key") in tried) == is_changed
    assert str(home / "work/a.txt") in tried
    (home / "notes").write_text("x")
    assert str(home / "notes") in probe._secrets({"HOME": str(home)}, wanted)
    listed = "\n".join(probe._what_of_the_home({"HOME": str(home)}, repository.top, wanted))
    assert (f"    {home}/toolchain" in listed) == is_changed
    assert (f"    {home}/tools/settings  (with namespaces a copy without credentials" in listed) == is_changed


@pytest.mark.parametrize("is_changed", [False, True])
def test_instruction_files_follow_the_table(with_rows, repository, home, is_changed, monkeypatch) -> None:
    with_rows(is_changed)
    monkeypatch.setenv("HOME", str(home))
    repository.write("secret/key", "x")
    for name, why in (("secret/key", "holds a test"), (".token", "is no instruction")):
        path = str(repository.top / name)
        descriptor = os.open(path, os.O_RDONLY)
        said = why_not_for_model(descriptor, path, Place(str(repository.top)), is_named_by_ralph=False)
        os.close(descriptor)
        assert (said is not None and why in said) == is_changed, said
