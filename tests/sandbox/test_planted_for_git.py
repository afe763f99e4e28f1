"""A command plants something for the user's next `git status`. Each row is tried at both levels of the sandbox, with the real
tools, and then the user calls git: no planted program runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ralph.machine import own_programs
from ralph.machine.files.trees import remove_tree
from ralph.places import gather
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.git.repositories import Repository, cloned, committed
from tests.git.test_planted_programs import program
from tests.places.test_one_table import LEVELS, tools_in, tools_of

# The checkout has the submodules `part` and `a/b` and the linked worktree `../linked`. $P is a program that leaves a mark.
ATTACKS = {
    "the configuration of a submodule": "git config -f .git/modules/part/config core.fsmonitor $P",
    "of a submodule with a path": "git config -f .git/modules/a/b/config core.fsmonitor $P",
    "of the working tree of a submodule": "git config -f .git/modules/part/config.worktree core.fsmonitor $P; "
    "git config -f .git/modules/part/config extensions.worktreeConfig true",
    "another directory of a submodule": "cp -r .git/modules/part x; git config -f x/config core.fsmonitor $P; "
    "echo ../../../x >.git/modules/part/commondir",
    "another directory of submodules": "cp -r .git/modules x; git config -f x/part/config core.fsmonitor $P; "
    "git config -f x/part/config core.worktree $PWD/part; "
    "mv .git/modules y; ln -s ../x .git/modules",
    "another directory of a submodule with a path": "cp -r .git/modules/a x; git config -f x/b/config core.fsmonitor $P; "
    "git config -f x/b/config core.worktree $PWD/a/b; "
    "mv .git/modules/a y; ln -s ../../x .git/modules/a",
    "a link in the place of a submodule": "cp -r .git/modules/part x; git config -f x/config core.fsmonitor $P; "
    "git config -f x/config core.worktree $PWD/part; "
    "mv .git/modules/part y; ln -s ../../x .git/modules/part",
    "the same, renamed": "cp -r .git/modules x; git config -f x/part/config core.fsmonitor $P; mv .git/modules y; mv x .git/modules",
    "the configuration of a linked worktree": "git config -f .git/worktrees/linked/config.worktree core.fsmonitor $P",
    "of a linked worktree, by a name that ends at a NUL": "printf '[core \"fsmonitor\\0\"]\\n\\tx = %s\\n' $P >.git/worktrees/linked/config.worktree",
    "another directory of a linked worktree": "cp -r .git x; git config -f x/config core.fsmonitor $P; "
    "echo $PWD/x >.git/worktrees/linked/commondir",
    "worktrees, renamed": "cp -r .git/worktrees x; cp -r .git z; git config -f z/config core.fsmonitor $P; "
    "echo $PWD/z >x/linked/commondir; mv .git/worktrees y; mv x .git/worktrees",
    "a hook of a submodule": "mkdir -p .git/modules/part/hooks; cp $P .git/modules/part/hooks/post-index-change",
    "attributes": "git config --file ../home/none x.y z; echo '* filter=mine' >.git/info/attributes",
    "attributes through a link": "mkdir x; echo '* filter=mine' >x/attributes; rm -r .git/info; ln -s ../x .git/info",
    "attributes of a submodule": "mkdir -p .git/modules/part/info; echo '* filter=mine' >.git/modules/part/info/attributes",
    "a file that include.path names": "git config -f shared.conf core.fsmonitor $P",
    "one that an included file names": "git config -f more/third.conf core.fsmonitor $P",
    "one that includeIf names": "git config -f own.conf core.fsmonitor $P",
    "one that does not exist yet": "git config -f new.conf core.fsmonitor $P",
    "one in the git directory": "git config -f .git/extra core.fsmonitor $P",
    "another file in its place": "git config -f x core.fsmonitor $P; mv x shared.conf",
    "another directory around it": "cp -r more x; git config -f x/third.conf core.fsmonitor $P; mv more y; mv x more",
    "what a link to it leads to": "git config -f places/real.conf core.fsmonitor $P",
    "one beside a link, and not beside its target": "git config -f fifth.conf core.fsmonitor $P",
    "what the user's own configuration is a link to": "git config -f mine.conf core.fsmonitor $P",
    "another link": "git config -f x core.fsmonitor $P; ln -sfn x linked.conf",
    "another link to its directory": "mkdir x; git config -f x/fourth.conf core.fsmonitor $P; ln -sfn x ways",
    "a file that a submodule includes": "git config -f part/part.conf core.fsmonitor $P",
    "attributes that core.attributesFile names": "echo '* filter=mine' >attributes",
    "a file that the user's own configuration includes": "git config -f users.conf core.fsmonitor $P",
    "a common directory": "cp -r .git x; git config -f x/config core.fsmonitor $P; echo ../x >.git/commondir",
}

# What exists is mounted for reading alone, or compared where that is impossible. What does not exist is always compared.
KNOWN = [("namespaces", True), ("landlock", False)]
# A command of one run, and one of the next run. Of the first, no program runs yet.
IN_TWO_RUNS = {
    "a folder around a submodule looks like one": (
        "touch .git/modules/a/HEAD",
        "git config -f .git/modules/a/b/config core.fsmonitor $P",
    ),
    "a folder around a submodule is made a repository": (
        "git init -q --bare x; rm x/config; cp -r x/* .git/modules/a",
        "git config -f .git/modules/a/b/config core.fsmonitor $P",
    ),
    "more folders than are guarded": (
        "cd .git/modules; for n in $(seq 40); do mkdir 0$n 0$n/objects 0$n/refs; touch 0$n/HEAD; done",
        "git config -f .git/modules/part/config core.fsmonitor $P; git config -f .git/modules/a/b/config core.fsmonitor $P",
    ),
    "more worktrees than are guarded": (
        "cd .git/worktrees; for n in $(seq 40); do mkdir 0$n; touch 0$n/HEAD; done",
        "git config -f .git/worktrees/linked/config.worktree core.fsmonitor $P",
    ),
}
# A command makes the submodule `part` another repository, whose configuration names a program.
SUBMODULE = ".git/modules/part"
TOLD = {
    "in the tree": f"cp -r {SUBMODULE} x; echo gitdir: ../x >part/.git; D=x",
    "in place": f"cp -r {SUBMODULE} x; rm part/.git; mv x part/.git; D=part/.git",
    "through a link": f"cp -r {SUBMODULE} .git/x; rm part/.git; ln -s ../.git/x part/.git; D=.git/x",
    "through what it shares": f"cp -r {SUBMODULE} .git/x; cp -r {SUBMODULE} .git/y; echo ../y >.git/x/commondir; "
    "git config -f .git/x/config --unset core.worktree; echo gitdir: ../.git/x >part/.git; D=.git/y",
    "in the cache": f"D=$XDG_CACHE_HOME/x; cp -r {SUBMODULE} $D; echo gitdir: $D >part/.git",
    **{
        f"in {place}": f"D={place}/x; cp -r {SUBMODULE} $D; echo gitdir: ../$D >part/.git"
        for place in (".git", ".git/objects", ".git/modules/a/b")
    },
}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The home with all repositories, which takes 25 calls of git. There is a copy of it beside it."""
    home: Path = tmp_path_factory.mktemp("place") / "home"
    made = cloned(home / "work", home)
    committed(home / "source", home)
    for place in ("part", "a/b"):
        made.git("submodule", "add", "-q", "../source", place)
    made.git("config", "extensions.worktreeConfig", "true")
    for place in ("shared.conf", "new.conf", "linked.conf", "ways/fourth.conf"):
        made.git("config", "--add", "include.path", f"../{place}")
    made.git("config", "--add", "include.path", "extra")
    made.git("config", "includeIf.onbranch:main.path", str(made.top / "own.conf"))
    made.git("config", "core.attributesFile", "attributes")
    made.write("shared.conf", "[core]\n\tabbrev = 12\n[include]\n\tpath = more/third.conf\n")
    for place in ("more/third.conf", "own.conf", "places/fourth.conf", "users.conf"):
        made.write(place, "[core]\n\tabbrev = 12\n")
    (made.top / "linked.conf").symlink_to("places/real.conf")
    made.write("places/real.conf", "[include]\n\tpath = fifth.conf\n")
    made.write("fifth.conf", "[core]\n\tabbrev = 12\n")
    (made.top / "ways").symlink_to("places")
    made.git("-C", "part", "config", "include.path", "../../../part/part.conf")
    made.git("config", "--global", "include.path", str(made.top / "users.conf"))
    marks = home / "marks"
    marks.mkdir()
    program(home / "planted", marks)
    made.git("config", "--global", "filter.mine.clean", str(program(home / "filter", marks)))
    (home / ".gitconfig").rename(made.top / "mine.conf")
    (home / ".gitconfig").symlink_to("work/mine.conf")
    made.commit_all()
    made.git("worktree", "add", "-q", "../linked")
    subprocess.run(["cp", "-a", home, home.with_name("kept")], check=True)
    return home


@pytest.fixture
def repository(home) -> Repository:
    """The checkout in the home as it was made."""
    remove_tree(home)
    own_programs._named_again_in.cache_clear()  # a process looks once
    subprocess.run(["cp", "-a", home.with_name("kept"), home], check=True)
    return Repository(home / "work", home)


def planted_in(repository: Repository) -> Path:
    """The program that a command plants."""
    return repository.top.parent / "planted"


def marks_of_status(repository: Repository) -> list[str]:
    """The marks of the programs that the user's `git status` runs."""
    home = repository.top.parent
    marks = home / "marks"
    for mark in marks.iterdir():
        mark.unlink()
    for path in (repository.top, home / "linked", repository.top / "part", repository.top / "a/b"):
        for file in path.glob("*.txt"):
            os.utime(file, (1, 1))
            file.write_bytes(file.read_bytes())
        subprocess.run(
            ["git", "status"], cwd=path, env=repository.environment, check=False, capture_output=True
        )
    return [mark.name for mark in marks.iterdir()]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_that_a_command_planted_runs_at_the_users_git_status(repository, level, attack) -> None:
    planted = planted_in(repository)
    for tools in tools_of(repository, level):
        script = f"P={planted}; {ATTACKS[attack]}"
        tools.call("Bash", {"command": script})
        tools.call("Bash", {"command": "true"})  # what was new is known now
    assert marks_of_status(repository) == []


@pytest.mark.parametrize(("level", "is_there"), KNOWN)
@pytest.mark.parametrize("name", ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"])
def test_the_users_own_configuration_in_the_work_is_guarded(repository, level, name, is_there) -> None:
    planted = planted_in(repository)
    file = repository.top / "own/git.conf"
    file.parent.mkdir()
    if is_there:
        file.write_text("[core]\n\tabbrev = 12\n")
    repository.environment[name] = str(file)
    for tools in tools_of(repository, level):
        tools.call("Bash", {"command": f"git config -f own/git.conf core.fsmonitor {planted}"})
    assert marks_of_status(repository) == []


# The user's configuration of git leads to `{given}/own.conf` in a place of sandbox.write, or in the work. The environment says
# so, or the text of `~/.gitconfig`, or it is a link.
ELSEWHERE: dict[str, tuple[str, dict[str, str], str]] = {
    "an include": ("[include]\n\tpath = {given}/own.conf\n", {}, "{given}/own.conf"),
    "a link": ("", {}, "{given}/own.conf"),
    "the directory of the configuration": ("", {"XDG_CONFIG_HOME": "{given}"}, "{given}/git/config"),
    "a variable": (
        "[core]\n",
        {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "Include.Path",
            "GIT_CONFIG_VALUE_0": "~/given/own.conf",
        },
        "{given}/own.conf",
    ),
    "what git -c passes on": (
        "[core]\n",
        {"GIT_CONFIG_PARAMETERS": "'core.abbrev'='9' 'Include.path=~/given/own.conf'"},
        "{given}/own.conf",
    ),
    "the same, as a newer git does": (
        "[core]\n",
        {"GIT_CONFIG_PARAMETERS": "'includeif.onbranch:main.path'='{given}/own.conf'"},
        "{given}/own.conf",
    ),
    "the system's own, as it lies beside git": (
        "[core]\n",
        {"PATH": "{home}/bin:{path}", "GIT_CONFIG_NOSYSTEM": "0"},
        "{given}/own.conf",
    ),
    "a relative path": ("[core]\n", {"GIT_CONFIG_GLOBAL": "global.conf"}, "{work}/global.conf"),
}


@pytest.mark.parametrize(("level", "is_there"), KNOWN)
@pytest.mark.parametrize("way", ELSEWHERE)
def test_the_users_own_configuration_is_guarded_wherever_commands_may_write(
    repository, level, way, is_there
) -> None:
    home, work = repository.top.parent, repository.top
    planted = planted_in(repository)
    given = home / "given"
    (given / "git").mkdir(parents=True)
    text, variables, name = ELSEWHERE[way]
    file = Path(name.format(given=given, work=work))
    if is_there:
        file.write_text("[core]\n\tabbrev = 12\n")
    (home / ".gitconfig").unlink()
    if text:
        (home / ".gitconfig").write_text(text.format(given=given))
    else:
        (home / ".gitconfig").symlink_to(file)
    path = repository.environment["PATH"]
    git = program(home / "bin/git", home)
    git.write_text(f'#!/bin/sh\nGIT_CONFIG_SYSTEM={home}/etc/gitconfig exec {shutil.which("git")} "$@"\n')
    (home / "etc").mkdir()
    (home / "etc/gitconfig").write_text(f"[include]\n\tpath = {given}/own.conf\n")
    repository.environment |= {
        key: value.format(given=given, home=home, path=path) for key, value in variables.items()
    }
    wanted = SandboxSettings(write=(str(given),))
    for tools in tools_in(work, repository.environment, level, wanted):
        tools.call("Bash", {"command": f"printf '[core]\n\tfsmonitor = {planted}\n' >{file}"})
        moved = f"mv {given} {home}/x; mv {given}/git {given}/x && mkdir {given}/git"
        tools.call("Bash", {"command": f"{moved}; printf '[core]\n\tfsmonitor = {planted}\n' >{file}"})
    assert marks_of_status(repository) == []


@pytest.mark.parametrize("level", LEVELS)
def test_the_users_own_configuration_with_a_second_name_is_guarded(repository, level) -> None:
    home, given = repository.top.parent, repository.top.parent / "given"
    planted = planted_in(repository)
    given.mkdir()
    (home / ".gitconfig").unlink()
    (home / ".gitconfig").write_text("[core]\n\tabbrev = 12\n")
    (given / "own.conf").hardlink_to(home / ".gitconfig")
    said = ""
    for tools in tools_in(
        repository.top, repository.environment, level, SandboxSettings(write=(str(given),))
    ):
        command = f"printf '[core]\n\tfsmonitor = {planted}\n' >{given}/own.conf"
        said = str(tools.call("Bash", {"command": command}).content)
    assert f"undone: changes to {home}/.gitconfig" in said
    assert marks_of_status(repository) == []


def test_the_systems_own_configuration_is_known() -> None:
    assert "/etc/gitconfig" in gather._git_files((), {"PATH": "/usr/bin"})


@pytest.mark.parametrize(("level", "is_there"), KNOWN)
@pytest.mark.parametrize("directory", [".git", ".git/modules/part", ".git/modules/a/b"])
def test_no_command_says_from_where_git_borrows_objects(repository, level, directory, is_there) -> None:
    other = repository.top.parent / "source/.git/objects"
    objects = repository.top / directory / "objects"
    file = objects / "info/alternates"
    if is_there:
        file.parent.mkdir(exist_ok=True)
        file.write_text("# mine\n")
    elif file.parent.exists():
        file.parent.rmdir()
    for tools in tools_of(repository, level):
        ordinary = "git commit -q --allow-empty -m x && git gc -q && git repack -adq && echo fine"
        assert "fine" in tools.call("Bash", {"command": ordinary}).content
        for script in (
            f"echo {other} >{file}",
            f"rm -rf {objects}/info; mkdir {objects}/info; echo {other} >{file}",
            f"cp -r {objects} x; mv {objects} y; echo {other} >x/info/alternates; mv x {objects}",
        ):
            tools.call("Bash", {"command": script})
            assert (file.read_text() if file.exists() else "") == ("# mine\n" if is_there else "")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("attack", IN_TWO_RUNS)
def test_what_one_run_has_prepared_opens_nothing_to_the_next(repository, level, attack, monkeypatch) -> None:
    planted = planted_in(repository)
    monkeypatch.setattr(gather, "_MOST_NESTED", 20)
    for script in IN_TWO_RUNS[attack]:
        for tools in tools_of(repository, level):
            tools.call("Bash", {"command": f"P={planted}; {script}"})
            tools.box.close()
    assert marks_of_status(repository) == []


@pytest.mark.parametrize("level", LEVELS)
def test_no_command_starts_while_not_all_is_guarded(repository, level, monkeypatch) -> None:
    many, one = repository.top / ".git/modules/many", "echo started"
    for tools in tools_of(repository, level):
        assert tools.call("Bash", {"command": f"mkdir -p {many}/{{1..40}}; {one}"}).content == "started"
        monkeypatch.setattr(gather, "_MOST_NESTED", 20)
        said = tools.call("Bash", {"command": one})
        assert said.is_error
        assert (
            f"{repository.top}/.git/modules holds more folders than ralph guards, so no command starts"
            in said.content
        )
        shutil.rmtree(many)
        assert tools.call("Bash", {"command": one}).content == "started"


@pytest.mark.parametrize("level", LEVELS)
def test_a_git_directory_beside_the_work_is_guarded(repository, level) -> None:
    """It does not name the checkout, so commands get no rights to it, but they may write all of the working directory."""
    planted = planted_in(repository)
    (repository.top / ".git").rename(repository.top / "there")
    (repository.top / ".git").write_text("gitdir: there\n")
    for tools in tools_of(repository, level):
        tools.call("Bash", {"command": f"git config -f there/config core.fsmonitor {planted}"})
    assert marks_of_status(repository) == []


@pytest.mark.parametrize("attack", TOLD)
def test_what_cannot_be_prevented_is_told_at_the_end(repository, attack) -> None:
    settings = f"core.worktree $PWD/part; git config -f $D/config core.fsmonitor {planted_in(repository)}"
    note = ""
    for tools in tools_of(repository, "landlock"):
        tools.call("Bash", {"command": f"{TOLD[attack]}; git config -f $D/config {settings}"})
        note = tools.box.close()
    assert marks_of_status(repository), "git runs it, or the row shows nothing"
    assert "git runs programs that these repositories below the work name:" in note
    assert "part (" in note


@pytest.mark.parametrize(("level", "place"), [("namespaces", "nested"), ("landlock", "part")])
def test_a_hook_by_the_users_own_relative_setting_is_told_in_every_working_tree(
    repository, level, place
) -> None:
    """The user's configuration names directories that are relative to whatever working tree git runs in."""
    home = repository.top.parent
    repository.git("config", "--global", "core.hooksPath", ".husky")
    tree = repository.top / place
    if place != "nested":
        (tree / ".husky").mkdir()
    note = ""
    for tools in tools_of(repository, level):
        hook = f"printf '#!/bin/sh\\necho >{home}/marks/hook\\n' >.husky/post-index-change; chmod +x .husky/*"
        more = f"mkdir -p .husky; {hook}; touch x.txt; git -c core.hooksPath=/dev/null add x.txt"
        tools.call("Bash", {"command": f"git init -q nested; cd {tree}; {more}"})
        note = tools.box.close()
    os.utime(tree / "x.txt", (1, 1))
    subprocess.run(["git", "status"], cwd=tree, env=repository.environment, check=False, capture_output=True)
    assert [*(home / "marks").iterdir()], "git runs it, or the row shows nothing"
    assert f"{place}{' (core.hookspath)' if place == 'nested' else '/.husky/post-index-change'}" in note


@pytest.mark.parametrize("level", LEVELS)
def test_ordinary_work_of_git_goes_through(repository, level) -> None:
    """Commits, a rebase, a search by halves, and worktrees and submodules need lock files, HEAD and the like."""
    who = "export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@y GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@y"
    work = (
        "set -e; git switch -qc topic; echo x >x; git add x; git commit -qm x; git rebase -q main; git bisect start;"
        " git bisect reset 2>&1; git -C part switch -qc topic; git -C part commit -qm y --allow-empty;"
        " git worktree add -q sub/new; git -C sub/new commit -qm z --allow-empty; git worktree remove sub/new;"
        " git worktree add -q sub/newer; git stash -q -u 2>/dev/null || true; git status >/dev/null"
    )
    for tools in tools_of(repository, level):
        for command in (f"{who}; {work}", "git worktree remove --force sub/newer"):
            said = tools.call("Bash", {"command": f"{command} && echo done"}).content
            assert "done" in said, said
            assert "undone" not in said
