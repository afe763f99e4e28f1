"""The time limits of git calls, and the outcomes of calls that could not be run."""

from __future__ import annotations

import ast
import math
import os
import resource
import shutil
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ralph.fleet.checkouts import GitCalls, WorkerGit
from ralph.git.answer import CheckoutError
from ralph.git.runner import CheckoutGit, GitSeams
from ralph.machine.waiter import InboxWaiter
from ralph.values.outcome import Outcome, ShortageError
from tests.git.repositories import CLOCK, Repository
from tests.processes.one_supervisor import SUPERVISOR
from tests.processes.scripts import before_git, script
from tests.rows import every_row
from tests.syntax_trees import nodes_below, nodes_of
from tests.test_architecture import MODULES, module_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.git.runner import Git


class Leap:
    """A clock that leaps forward by `leap_s` seconds when git has begun. With `ends`, git then does its work; otherwise
    it waits for ever.
    """

    def __init__(self, place: Path, leap_s: float, *, ends: bool) -> None:
        self._began, self._seen = place / "began", place / "seen"
        self._leap_s = leap_s
        self._ends = ends
        self._looks = 0

    def now_s(self) -> float:
        return CLOCK.now_s() + (self._leap_s if self._looks else 0.0)

    def look(self) -> None:
        self._looks += self._began.exists()
        if self._looks > 1 and self._ends:
            self._seen.touch()


@pytest.mark.parametrize(("seconds", "is_stopped"), [(290, False), (310, True)])
def test_a_look_may_take_five_minutes(repository: Repository, tmp_path: Path, seconds, is_stopped) -> None:
    waits = f": > {tmp_path}/began; while [ ! -e {tmp_path}/seen ]; do sleep 0.02; done"
    before_git(repository.environment, tmp_path / "bin", waits)
    clock = Leap(tmp_path, seconds, ends=not is_stopped)
    waiter = InboxWaiter(clock, on_look=clock.look)  # type: ignore[arg-type]
    seams = GitSeams(repository.environment, SUPERVISOR, waiter, clock)  # type: ignore[arg-type]
    if is_stopped:
        with pytest.raises(CheckoutError, match="git config took longer than 300 s and was stopped"):
            CheckoutGit(repository.top, seams)
    else:
        assert CheckoutGit(repository.top, seams).settings.values["user.name"] == "Tester"


@every_row(
    ("was_stopped", "late_ago_s", "left_s", "is_remote", "limit_s"),
    [
        (False, None, math.inf, False, 300),
        (True, None, math.inf, True, 3),
        (False, 59, math.inf, False, 3),
        (False, 61, math.inf, False, 300),
        (False, 59, math.inf, True, 300),
        (False, None, 10, True, 10),
        (True, None, 2, False, 2),
        (False, None, -1, False, 0.05),
    ],
)
def test_a_call_has_less_time_after_a_stop_after_a_late_call_and_before_the_end(
    was_stopped: bool, late_ago_s: float | None, left_s: float, is_remote: bool, limit_s: float
) -> None:
    clock, waiter = SimpleNamespace(now_s=lambda: 1000.0), SimpleNamespace(was_stopped=was_stopped)
    late = [] if late_ago_s is None else [1000.0 - late_ago_s]
    seams = GitSeams({}, SUPERVISOR, waiter, clock, late=late, ends_at_s=1000.0 + left_s)
    assert seams.limit_s(300, is_remote=is_remote) == limit_s


def test_a_call_is_stopped_when_its_time_is_over(repository: Repository, tmp_path: Path) -> None:
    before_git(repository.environment, tmp_path / "bin", "sleep 99")
    seams = replace(repository.seams(), ends_at_s=CLOCK.now_s())
    with pytest.raises(CheckoutError, match=r"git config took longer than 0\.05 s and was stopped"):
        CheckoutGit(repository.top, seams)


@pytest.mark.parametrize("way", ["include", "link", "hard link", "variable", "added", "cache"])
def test_the_users_own_settings_in_the_work_run_no_program(
    repository: Repository, tmp_path: Path, way: str
) -> None:
    user, added = tmp_path / "user.gitconfig", tmp_path / "added"
    added.mkdir()
    cache = tmp_path / "cache/ralph/packages"
    file = {"added": added, "cache": cache}.get(way, repository.top) / "shared"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[filter "evil"]\n\tclean = evil\n')
    if way == "link":
        user.symlink_to(file)
    elif way == "hard link":
        os.link(file, user)
    else:
        user.write_text(f'[filter "mine"]\n\tclean = mine\n[include]\n\tpath = {file}\n')
    repository.filters = ("mine", "evil")
    variables = {"GIT_CONFIG_GLOBAL": str(file if way == "variable" else user)}
    seams = repository.seams(**variables, XDG_CACHE_HOME=str(tmp_path / "cache"))
    seams = replace(seams, writable=(str(added),))
    assert CheckoutGit(repository.top, seams).settings.dropped_filters == {"evil"}


# What the user's configuration names: `{0}` is a directory that commands may write, `{1}` another one. The link `{1}/way`
# leads to a file in the former. The second value says whether an agent decides about the program.
VALUES = {
    "a path": ("{0}/clean", True),
    "an argument": ("{1}/clean --rules {0}/rules", True),
    "in a script": ("!f() {{ exec '{0}/clean'; }}; f", True),
    "behind an option": ("clean -F{0}/rules", True),
    "with spaces": ('\\"{0}/my programs/clean\\" %f', True),
    "with escapes": ("{0}/my\\\\ programs/clean", True),
    "by a link": ("{1}/way", True),
    "by a second name": ("{1}/named-again", True),
    "a link elsewhere": ("{1}/named-elsewhere", False),
    "by a quoted link": ("'{1}/way' %f", True),
    "of the home": ("~/added/clean", True),
    "by a variable": ("$HOME/added/clean", True),
    "by a quoted variable": ('sh \\"${{HOME}}\\"/added/clean', True),
    "up and down": ("{1}/../added/clean", True),
    "in the work": ("sh tools/clean", True),
    "a script of the work": ("python3 clean.py", True),
    "a script without a suffix": ("sh script", True),
    "a script by the variable of the directory": ("sh $PWD/script", True),
    "a module": ('\\"/usr/bin/python3\\" -m mod', True),
    "a module behind its option": ("python3.12 -Im mod", True),
    "a module in a statement": ('python3 -c \\"import mod\\"', True),
    "a directory of an interpreter": ("python3 tools", True),
    "the work itself": ("python3 $PWD", True),
    "a program of a PATH": ("PATH=tools:$PATH cleaner", True),
    "a script whose interpreter is in the work": ("{1}/named", True),
    "nothing but the work": ("{0}/../../work", False),
    "in a directory": ("cd tools && sh x", True),
    "a program that finds its file": ("make -s all", True),
    "a program that finds a program": ("uv run black -", True),
    "one that finds its rules": ("ninja -t clean", True),
    "one whose settings are code": ("jupyter nbconvert --stdin --stdout", True),
    "one that builds": ("cmake --build . -t clean-file", True),
    "one that finds its containers": ("docker compose run --rm cleaner", True),
    "one that finds all in a directory": ("run-parts --arg=%f hooks", True),
    "a script by a pattern": ("sh scr*", True),
    "a script by a pattern behind a dot": ("sh ./[cr]lean", True),
    "a pattern that no name fits": ("tr -d [0-9]*", False),
    "a module elsewhere": ("python3 -m other", False),
    "a word that is a directory": ("!gh tools git-credential", False),
    "by a link in PATH": ("linked %f", True),
    "a helper by a link in PATH": ("sub --get", True),
    "elsewhere": ("{1}/clean", False),
    "on PATH": ("clean -- %f", False),
    "an expression": ("sed s/tools/x/ -e '/b/d'", False),
    "LFS": ("git-lfs clean -- %f", False),
}


@every_row(("value", "is_agents"), [*VALUES.values()])
def test_a_program_of_the_users_configuration_that_an_agent_can_write_does_not_run(
    tmp_path_factory, value: str, *, is_agents: bool
) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = Repository.empty(place / "work", place / "home")
    repository.filters = ("mine",)
    added, other = place / "home/added", place / "home/other"
    added.mkdir()
    other.mkdir()
    (other / "way").symlink_to(added / "clean")
    (other / "clean").touch()
    (added / "x").touch()
    (other / "named").write_text(f"#!{repository.top}/clean\n")
    os.link(added / "x", other / "named-again")
    os.link(other / "clean", other / "named-elsewhere")
    for name in ("linked", "git-credential-sub"):
        (other / name).symlink_to(added / "clean")
    repository.environment["PATH"] = f"{other}:{repository.environment['PATH']}"
    for name in ("tools/clean", "clean.py", "clean", "script", "mod.py"):
        repository.write(name)
    text = f'[filter "mine"]\n\tclean = "{value.format(added, other)}"\n'
    (place / "home/.gitconfig").write_text(text)
    git = CheckoutGit(repository.top, replace(repository.seams(), writable=(str(added),)))
    assert git.settings.dropped_filters == ({"mine"} if is_agents else set())
    assert git.settings.left_out == (("filter.mine.clean",) if is_agents else ())


def test_a_python_program_of_the_users_takes_no_module_from_the_work(
    repository: Repository, tmp_path: Path
) -> None:
    wrapper = script(tmp_path / "wrapper", f"{sys.executable} -m mod %f\nexec cat")
    repository.write("mod.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    repository.write(".gitattributes", "*.txt filter=mine\n")
    repository.write("a.txt")
    repository.git("config", "--global", "filter.mine.clean", str(wrapper))
    repository.filters = ("mine",)
    CheckoutGit(repository.top, repository.seams()).change("add", "a.txt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("scope", ["--global", "--local"])
def test_lfs_does_not_run_by_a_link_to_what_an_agent_can_write(tmp_path: Path, scope: str) -> None:
    repository = Repository.empty(tmp_path / "work", tmp_path / "home")
    for name in ("bin", "added"):
        (tmp_path / name).mkdir()
    (tmp_path / "added/git-lfs").touch()
    (tmp_path / "bin/git-lfs").symlink_to(tmp_path / "added/git-lfs")
    repository.git("config", scope, "filter.lfs.clean", "git-lfs clean -- %f")
    seams = repository.seams(PATH=f"{tmp_path}/bin:{repository.environment['PATH']}")
    assert CheckoutGit(repository.top, seams).settings.dropped_filters == set()
    seams = replace(seams, writable=(f"{tmp_path}/added",))
    assert CheckoutGit(repository.top, seams).settings.dropped_filters == {"lfs"}


@every_row(
    "name",
    "GIT_ASKPASS GIT_SSH GIT_SSH_COMMAND GIT_PROXY_COMMAND SSH_ASKPASS GIT_TRACE GIT_LFS_PROGRESS".split(),
)
def test_a_variable_that_names_what_an_agent_can_write_is_left_out(tmp_path_factory, name: str) -> None:
    place = tmp_path_factory.mktemp("place")
    repository = Repository.empty(place / "work", place / "home")
    (place / "other").mkdir()
    (place / "other/x").touch()
    for value, is_kept in ((f"{place}/added/x -v", False), (f"{place}/other/x -v", True), ("./x", False)):
        repository.write("x")
        seams = replace(
            repository.seams(**{name: value, "KUBECONFIG": f"{place}/added/x"}), writable=(f"{place}/added",)
        )
        git = CheckoutGit(repository.top, seams)
        assert "KUBECONFIG" not in git.environment
        assert (git.environment.get(name) == value) is is_kept
        assert git.settings.left_out == (() if is_kept else (name,))


@pytest.mark.parametrize("target", ["normal", "event", "perf"])
def test_no_configuration_makes_git_write_a_trace(
    repository: Repository, tmp_path: Path, target: str
) -> None:
    trace, file = tmp_path / "trace", tmp_path / "home/.gitconfig"
    file.write_text(f"[trace2]\n\t{target}Target = {trace}\n")
    CheckoutGit(repository.top, repository.seams())
    assert not trace.exists()
    trace.touch()
    variable = f"GIT_TRACE2_{target.upper()}".removesuffix("_NORMAL")
    CheckoutGit(repository.top, repository.seams(**{variable: str(trace)}))
    assert trace.stat().st_size, "the user's own environment decides"


def test_after_a_call_that_did_not_end_local_calls_have_three_seconds_for_a_minute(
    repository: Repository,
) -> None:
    seams = repository.seams()
    for ago_s, is_remote, seconds in ((59.0, False, 3.0), (59.0, True, 300.0), (61.0, False, 300.0)):
        seams.late[:] = [CLOCK.now_s() - ago_s]
        assert seams.limit_s(300.0, is_remote=is_remote) == seconds


def of_loop(repository: Repository) -> Git:
    return CheckoutGit(repository.top, repository.seams())


def of_worker(repository: Repository) -> Git:
    return WorkerGit(
        GitCalls(repository.environment, SUPERVISOR), "https://host/x", repository.top.parent / "m/m.git"
    )


@pytest.mark.parametrize("make", [of_loop, of_worker])
def test_a_directory_that_is_gone_is_a_failed_disk(
    repository: Repository, make: Callable[[Repository], Git]
) -> None:
    """Another machine then does the job of a fleet, which a fault of the configuration would end for good."""
    git = make(repository)
    shutil.rmtree(repository.top)
    with pytest.raises(CheckoutError, match=r"git rev-parse could not be run in .* No such file") as caught:
        git.answer("rev-parse", "HEAD")
    assert caught.value.outcome is Outcome.IO_ERROR


@pytest.fixture
def few_descriptors() -> Iterator[Callable[[int], None]]:
    """Uses all file descriptors but some."""
    before, used = resource.getrlimit(resource.RLIMIT_NOFILE), []

    def use(left: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        while True:
            try:
                used.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for _ in range(left):
            os.close(used.pop())

    yield use
    for descriptor in used:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("left", range(3))
def test_a_call_without_file_descriptors_is_a_shortage(
    repository: Repository, few_descriptors: Callable[[int], None], left: int
) -> None:
    """A loop repeats such a step, and a worker of a fleet repeats a push."""
    git, worker = of_loop(repository), of_worker(repository)
    worker.directory.mkdir(parents=True)
    git.read("version")  # the process that starts commands runs
    few_descriptors(left)
    with pytest.raises(ShortageError, match="no file descriptor left"):
        git.read("version")
    with pytest.raises(CheckoutError, match="no file descriptor left") as caught:
        worker.read("version")
    assert caught.value.outcome is Outcome.API_UNAVAILABLE


# --- Nothing else starts git


RUNNER, LOOKS = "ralph.git.runner", "ralph.cli.checks.machine"
# With these names and functions of `os`, a module can start a program.
STARTERS = {
    *("subprocess", "start_process", "start_confined", "own_program", "OwnedProcess", "supervisor.start"),
    *("posix_spawn", "posix_spawnp", "system", "popen", "fork", "execv", "execve", "execvp", "execvpe"),
}


def starts_git(nodes: list[ast.AST]) -> bool:
    """Whether a module names the program git, and also something that starts programs."""
    names = {
        name
        for node in nodes
        for name in (
            *([node.id] if isinstance(node, ast.Name) else []),
            *(
                [node.attr, ".".join(ast.unparse(node).split(".")[-2:])]
                if isinstance(node, ast.Attribute)
                else []
            ),
            *([alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []),
        )
    }
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return not names.isdisjoint(STARTERS) and any(text == "git" or text.endswith("/git") for text in texts)


@every_row(
    ("code", "found"),
    [
        ("import subprocess\nsubprocess.run(['git', 'status'])", True),
        ("from ralph.machine.own_programs import own_program as p\np('git', path, None)", True),
        ("import os\nos.execv('/usr/bin/git', ['x'])", True),
        ("words = ('git', 'x')\nself.seams.supervisor.start(words)", True),
        ("import subprocess\nsubprocess.run(['rg'])", False),
        ("is_git = name == 'git'", False),
    ],
)
def test_a_module_that_starts_git_is_seen(code: str, found: bool) -> None:
    assert starts_git(list(nodes_below(ast.parse(code)))) == found


def test_git_is_started_in_one_module() -> None:
    """The demo plays a user, who has a git of its own. `ralph doctor` only looks whether the program is there."""
    found = {module_name(path) for path in MODULES if starts_git(list(nodes_of(path)))}
    assert {name for name in found if not name.startswith("ralph.demo.")} == {RUNNER, LOOKS}
