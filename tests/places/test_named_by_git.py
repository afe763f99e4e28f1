"""The files in the work that git's configuration names: further configuration is guarded, and programs are told of where they
have changed. `tests/sandbox/test_planted_for_git.py` tries to plant into the first.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ralph.machine.own_programs import ProgramSearch
from ralph.places.gather import changed_by_run, named_in
from ralph.places.nested_repositories import last_look
from tests.git.repositories import Repository, cloned
from tests.rows import every_row

HUSKY = "git config core.hooksPath .husky"


def hook(path: str) -> str:
    return f"printf '#!/bin/sh\\n' >{path}; chmod +x {path}"


OLD = f"{HUSKY}; {hook('.husky/update')}"
# What the user has configured, what a command does, and the programs that are told of.
PROGRAMS = {
    "a new hook": (HUSKY, hook(".husky/pre-commit"), ".husky/pre-commit"),
    "an old hook with another text": (OLD, "echo x >>.husky/update", ".husky/update"),
    "a file that becomes a hook": (f"{OLD}; chmod -x .husky/*", "chmod +x .husky/update", ".husky/update"),
    "what a hook is a link to": (
        f"{HUSKY}; {hook('real')}; ln -s ../real .husky/pre-push",
        *("echo x >>real", ".husky/pre-push"),
    ),
    "what git's own hook is a link to": (
        f"{hook('tools/check')}; ln -s ../../tools/check .git/hooks/pre-commit",
        *("echo x >>tools/check", "tools/check"),
    ),
    "what git's own directory of hooks is a link to": (
        "rm -r .git/hooks; ln -s ../other .git/hooks",
        *(hook("other/update"), "other/update"),
    ),
    "older hooks from elsewhere": (
        f"{HUSKY}; {hook('other/update')}",
        *("mv .husky x; mv other .husky", ".husky"),
    ),
    "hooks by an absolute path": (
        'git config core.hooksPath "$PWD/other"',
        *(hook("other/update"), "other/update"),
    ),
    "hooks that new repositories get": (
        'mkdir other/hooks; git config --global init.templateDir "$PWD/other"',
        *(hook("other/hooks/update"), "other/hooks/update"),
    ),
    "a program": ("git config core.fsmonitor tools/p; echo x >tools/p", "echo y >tools/p", "tools/p"),
    "a script of a shell": (
        "git config filter.x.clean 'sh -c \"tools/p %f\"'; echo x >tools/p",
        *("echo y >tools/p", "tools/p"),
    ),
    "a script without a path": (
        "git config diff.x.textconv 'python3 show.py --all'; echo x >show.py",
        *("echo y >show.py", "show.py"),
    ),
    "one that an included file names": (
        "git config include.path ../shared; git config -f shared core.editor ./tools/p; echo x >tools/p",
        *("echo y >tools/p", "tools/p"),
    ),
    "hooks that the user's own configuration names": (
        'git config --global core.hooksPath "$PWD/other"',
        *(hook("other/update"), "other/update"),
    ),
    "more than are told": (
        HUSKY,
        "; ".join(hook(f".husky/{name}") for name in "abcd"),
        ".husky/a, .husky/b, .husky/c and 1 more",
    ),
    "a hook beside a link in a circle": (
        'git config --global core.hooksPath "$PWD/other"',
        f"ln -s loop other/loop; ln -s update/x other/through; {hook('other/update')}",
        "other/update",
    ),
    "nothing": (OLD, "echo x >y", ""),
    "no hook": (HUSKY, "echo x >.husky/notes; touch .husky/a.sample", ""),
    "a switch": ("git config core.fsmonitor true", "echo x >true; chmod +x true", ""),
    "another file": ("git config core.fsmonitor tools/p; echo x >tools/p", "echo y >tools/other", ""),
    "a program elsewhere": ("git config core.editor $HOME/edit", "echo x >$HOME/edit", ""),
}


def run(repository: Repository, script: str) -> None:
    subprocess.run(
        ["sh", "-ec", script], cwd=repository.top, env=repository.environment, check=True, capture_output=True
    )


@every_row(("before", "script", "names"), list(PROGRAMS.values()))
def test_a_program_of_the_project_that_git_runs_is_named_where_it_has_changed(
    tmp_path_factory, before, script, names
) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = cloned(place / "work", place / "home")
    run(repository, f"mkdir -p .husky other tools; {before}")
    time.sleep(0.05)
    since_s, said = time.time(), list[str]()
    checkout = repository.checkout(warn=said.append)
    run(repository, script)
    told = [f"git runs {names}, which changed during the run"] if names else []
    assert last_look([str(repository.top)], since_s, repository.environment) == "".join(told)
    repository.write("work.txt")
    assert checkout.commit("x")
    assert said == told
    assert not checkout.commit("x")
    assert said == told, "it is said once"


def test_the_work_of_the_project_on_its_hooks_is_committed(tmp_path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    run(
        repository,
        "mkdir .husky; git config core.hooksPath .husky; echo x >.husky/update; chmod +x .husky/update",
    )
    assert repository.checkout().commit("x")
    assert repository.git("ls-tree", "--name-only", "HEAD", ".husky/") == ".husky/update"


def test_a_ring_of_includes_ends_and_what_lies_elsewhere_is_not_named(tmp_path) -> None:
    repository = cloned(tmp_path / "work", tmp_path / "home")
    for name, other in (("one", "two"), ("two", "one")):
        repository.write(name, f"[include]\n\tpath = {other}\n")
    (repository.top / "ring").symlink_to("ring")
    paths = ("../one", "../../outside", "/etc/gitconfig", "~/mine", "../ring", "..")
    with (repository.top / ".git" / "config").open("a") as config:
        config.write("[include]\n" + "".join(f"\tpath = {path}\n" for path in paths))
    top = str(repository.top)
    about = (repository.environment, [f"{top}/.git"], ProgramSearch(roots=(top,)))
    found = named_in([top], about[1], about[0], about[2])
    assert {one for one in found.configuration if not one.endswith("ring")} == {f"{top}/one", f"{top}/two"}
    assert changed_by_run([top], time.time() - 100, *about) == ""
    nothing = named_in([str(tmp_path / "none")], [], repository.environment, ProgramSearch())
    assert nothing.configuration == ()


def test_the_configuration_that_new_repositories_get_is_guarded(tmp_path) -> None:
    (tmp_path / ".gitconfig").write_text("[init]\n\ttemplateDir = ~/dotfiles/new\n")
    search = ProgramSearch(roots=(f"{tmp_path}/dotfiles",))
    found = named_in([str(tmp_path / "work")], [], {"HOME": str(tmp_path)}, search)
    assert found.configuration == (f"{tmp_path}/dotfiles/new/config",)
    assert f"{tmp_path}/dotfiles/new/hooks" in found.programs


# Variables of the user's, and what they name in `work` and `dotfiles`.
VARIABLES = {
    "what new repositories get": (
        {"GIT_TEMPLATE_DIR": "{home}/dotfiles"},
        ["dotfiles/config", "dotfiles/hooks"],
    ),
    "the same, in the work": ({"GIT_TEMPLATE_DIR": "new"}, ["work/new/config", "work/new/hooks"]),
    "a setting": (
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "Core.HooksPath", "GIT_CONFIG_VALUE_0": "hooks"},
        ["work/hooks"],
    ),
    "an included file": (
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "include.path", "GIT_CONFIG_VALUE_0": "~/dotfiles/c"},
        ["dotfiles/c"],
    ),
    "what an option gave": (
        {"GIT_CONFIG_PARAMETERS": "'core.attributesFile'='a=b' 'includeIf.gitdir:/a=b/.path=~/dotfiles/c'"},
        ["dotfiles/c", "work/a=b"],
    ),
    "a text that is none": ({"GIT_CONFIG_PARAMETERS": "'core.attributesFile=a"}, []),
}


@every_row(("variables", "names"), list(VARIABLES.values()))
def test_what_the_environment_makes_git_read_or_run_is_named(tmp_path_factory, variables, names) -> None:
    home = tmp_path_factory.mktemp("home")
    given = {name: value.format(home=home) for name, value in variables.items()}
    search = ProgramSearch(roots=(f"{home}/work", f"{home}/dotfiles"))
    without, found = (
        named_in([f"{home}/work"], [], {"HOME": str(home), **variables}, search) for variables in ({}, given)
    )
    new = {*found.configuration, *found.programs}.difference(without.configuration, without.programs)
    assert sorted(new) == [f"{home}/{name}" for name in names]


# Forms of a path in a configuration that includes the file of a name.
FORMS = {
    "behind much else": ("#" * 70_000 + "\n[include]\n\tpath = c\n", "c"),
    "with a tab": ('[include]\n\tpath = "a\\tb"\n', "a\tb"),
    "with quotes inside": ('[include]\n\tpath = "c ; "d\n', "c ; d"),
    "of the installation": ("[include]\n\tpath = %(prefix)/$UP/c\n", "c"),
}


@every_row(("text", "name"), list(FORMS.values()))
def test_an_included_file_is_found_as_git_finds_it(tmp_path_factory, text, name) -> None:
    home = tmp_path_factory.mktemp("home")
    installation = Path(shutil.which("git") or "").resolve().parents[1]
    (home / ".gitconfig").write_text(text.replace("$UP", os.path.relpath(home, installation)))
    (home / name).write_text("[x]\n\tyes = 1\n")
    environment = {"HOME": str(home), "PATH": os.defpath, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "config", "x.yes"], env=environment, cwd=home, check=True, capture_output=True)
    found = named_in([f"{home}/work"], [], environment, ProgramSearch(roots=(f"{home}/{name}",)))
    assert found.configuration == (f"{home}/{name}",)


def test_the_home_of_a_user_is_found_by_the_users_name(tmp_path) -> None:
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        pytest.skip("this user has no name")
    (tmp_path / ".gitconfig").write_text(f"[include]\n\tpath = ~{user.pw_name}/x/shared\n")
    home = os.path.realpath(user.pw_dir)
    search = ProgramSearch(roots=(f"{home}/x",))
    found = named_in([str(tmp_path / "work")], [], {"HOME": str(tmp_path)}, search)
    assert found.configuration == (f"{home}/x/shared",)


@pytest.mark.parametrize("tool", ["Write", "Edit"])
def test_the_file_tools_refuse_such_a_file(tmp_path, tool) -> None:
    from tests.places.test_one_table import tools_of

    repository = cloned(tmp_path / "home" / "work", tmp_path / "home")
    repository.write("shared", "[core]\n\tabbrev = 12\n")
    repository.git("config", "include.path", "../shared")
    for tools in tools_of(repository, "landlock"):
        more = {"content": "x"} if tool == "Write" else {"old_string": "12", "new_string": "13"}
        tools.call("Read", {"file_path": "shared"})
        said = tools.call(tool, {"file_path": "shared", **more})
        assert "is read by git as its configuration" in said.content
