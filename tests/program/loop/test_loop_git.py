"""`ralph loop` in a git checkout: only one at a time, with commits and pushes; nobody's work is lost, and it never hangs because git does."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Step, Turn
from tests.git.test_large_files import STANDARD, identifier, kept_at
from tests.patience import PATIENCE_S, wait_until
from tests.processes.scripts import before_git
from tests.program.conftest import loop_lines, loop_record, processes_of
from tests.program.model_answers import bash
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    from pathlib import Path


HANGS = Step(Turn("Late."), Fault(stall_before_headers_s=60))


def test_a_second_loop_in_the_same_checkout_names_the_first_and_exits_78(
    ralph, ralph_here, checkout, iterations
) -> None:
    server = iterations([HANGS])
    first = ralph.start("loop", "go")
    assert server.wait_for_requests(1, PATIENCE_S)
    status = ralph_here("loop", "--status").stdout
    assert f"running as process {first.pid}: 0 iterations and 1 not finished, " in status
    assert "iteration 1, session " in status
    wait_until(lambda: ": turn 1, the model works (" in ralph_here("loop", "--status").stdout)
    for where in (".", "dir"):
        second = ralph_here("loop", "go", "--cd", where, code=78)
        [line] = loop_lines(second)
        assert line.startswith(
            f"config (exit 78): another loop works on this checkout: process {first.pid}, since "
        )
        assert f" in {ralph.cwd}; wait for it, or stop it" in line
        assert second.stderr.count("\n") == 1
    assert ralph_here("loop", "--continue").code == 78
    assert server.request_count == 1
    first.terminate()
    assert ralph.finish(first).code == 143
    assert "continue with: ralph loop --continue" in ralph_here("loop", "--status").stdout


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_no_commit_publishes_credentials_that_an_earlier_step_has_put_into_the_checkout(
    ralph, checkout, iterations, sandbox
) -> None:
    """As google-github-actions/auth does, which names the file for the steps that follow."""
    file = checkout.write("gha-creds-1.json", "FAKE")
    ralph.environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)
    iterations([bash("echo 1 > one")])
    options = ("--commit", "--push", "--max-iterations", "1", "--sandbox", sandbox)
    ran = ralph("loop", "go", *options, code=0)
    assert "agents may not read these: gha-creds-1.json; commits leave them out" in loop_lines(ran)
    assert "gha-creds-1.json is uncommitted already" not in ran.stderr
    assert checkout.git("ls-tree", "-r", "--name-only", "origin/main").split() == [
        *(".gitignore", "a.txt", "dir/b.txt", "one")
    ]


def test_a_credential_that_ralph_knows_is_neither_committed_nor_pushed(ralph, checkout, iterations) -> None:
    key = "MY-known-QWERTY-77"
    ralph.environment["MY_API_KEY"] = key
    checkout.write("key", key)  # as a copy of an ignored .env would be
    checkout.write(".git/info/exclude", "/key\n")
    of_the_model = "git add -f key && git -c user.name=A -c user.email=a@b commit -qm mine"
    iterations([bash("cp key leaked.txt; cp key a.txt; echo 1 > one")], [bash(of_the_model)])
    ran = ralph("loop", "go", "--commit", "--push", "--max-iterations", "2")
    lines = loop_lines(ran)
    assert "these hold a credential that ralph knows: a.txt, leaked.txt; commits leave them out" in lines
    assert sum("holds a credential that ralph knows (key) and is not pushed" in line for line in lines) >= 1
    assert ran.code == 74
    assert key not in ran.stderr
    assert checkout.git("ls-tree", "-r", "--name-only", "origin/main").split() == [
        *(".gitignore", "a.txt", "dir/b.txt", "one")
    ]


HOOKS = (
    "for hook in pre-commit prepare-commit-msg commit-msg post-commit pre-push reference-transaction; do"
    " printf '#!/bin/sh\ntouch \"$HOME/planted\"\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook; done"
)
MONITOR = "git config core.fsmonitor 'touch $HOME/planted'"


def test_commits_and_pushes_go_through_what_agents_do_and_a_remote_that_is_away_for_a_while_exits_3(
    ralph, checkout, iterations, tmp_path
) -> None:
    """The agent plants hooks and removes everything that git ignores. The remote is missing at the second push."""
    iterations(
        [bash(f"echo 1 > one; {HOOKS}")],
        [bash("echo 2 > two; mv ../remote.git ../away; rm -r .ralph; git clean -fdxq -e '*'")],
        [bash(f"echo 3 > three; mv ../away ../remote.git; git clean -fdxq -e three; {MONITOR}")],
    )
    limits = ("--max-iterations", "3", "--until", "test -e four")
    ran = ralph("loop", "go", "--commit", "--push", *limits, "--sandbox", "off", code=3)
    assert not (tmp_path / "home" / "planted").exists()  # the git of this test does run them: it looks later
    checkout.git("config", "--unset", "core.fsmonitor")
    lines = loop_lines(ran)
    pushes = [line for line in lines if line.startswith(("pushed", "iteration 2: push"))]
    assert [line.partition(":")[0] for line in pushes] == [
        "pushed 1 commit",
        "iteration 2",
        "pushed 2 commits",
    ]
    assert "iteration 2: push failed, the next iteration tries again: " in pushes[1]
    assert not any("commits that were not pushed" in line for line in lines)
    assert checkout.git("rev-parse", "HEAD") == _git(tmp_path / "remote.git", "rev-parse", "main")
    assert checkout.git("ls-tree", "--name-only", "HEAD", "one", "two", "three").split() == [
        "one",
        "three",
        "two",
    ]
    assert [record["commits"] for record in loop_record(ralph)["iterations"]] == [1, 1, 1]
    assert checkout.git("status", "--porcelain") == ""


def test_the_lock_of_a_git_command_that_ends_soon_is_waited_for(ralph, checkout, iterations) -> None:
    iterations([bash("touch new")])
    lock = checkout.top / ".git/index.lock"
    lock.touch()
    loop = ralph.start("loop", "go", "--commit", "--max-iterations", "1")
    Timer(1, lock.unlink).start()
    ran = ralph.finish(loop)
    assert (ran.code, checkout.git("status", "--porcelain")) == (0, "")


def test_placeholders_in_agents_md_are_told_before_the_first_iteration_and_by_doctor(
    ralph, ralph_here, checkout, iterations
) -> None:
    iterations([bash("touch new")])
    (checkout.top / "AGENTS.md").write_text("- Build: `...`\n- All tests: `make test`\n")
    told = "AGENTS.md has unfilled placeholders: Build"
    assert f"{told} -> fill them in, or remove those lines" in ralph_here("doctor").stdout
    ran = ralph("loop", "go", "--max-iterations", "1", code=0)
    assert ran.stderr.index(f"{told}; fill them in") < ran.stderr.index("[loop] iteration 1")


def test_a_disk_that_does_not_let_a_loop_begin_exits_74(ralph_here, checkout, monkeypatch) -> None:
    (checkout.top / ".git/ralph-loop.lock").mkdir()
    refused = ralph_here("loop", "go", code=74)
    assert "ralph-loop.lock cannot be opened: Is a directory" in refused.last_line

    def refuse() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (checkout.top / ".git/ralph-loop.lock").rmdir()
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # git's answers go through one
    refused = ralph_here("loop", "go")
    assert (refused.code, "No space left on device" in refused.last_line) == (74, True)


@pytest.mark.sandboxed
def test_a_clone_of_what_a_loop_has_pushed_has_its_large_files_exits_0(
    ralph, checkout, iterations, tmp_path
) -> None:
    program_or_skip("git-lfs")
    for name, value in STANDARD.items():
        checkout.git("config", "--global", name, value)
    made = "echo '*.bin filter=lfs -text' >.gitattributes; echo 1 >1.bin; git add . && git commit -qm one; echo 2 >2.bin"
    iterations([bash(made)])
    ralph("loop", "go", "--commit", "--push", "--max-iterations", "1", code=0)
    remote = checkout.top.with_name("remote.git")
    assert kept_at(remote) == {identifier("1\n"), identifier("2\n")}
    checkout.git("clone", "-q", str(remote), str(tmp_path / "fresh"))
    assert [(tmp_path / "fresh" / name).read_text() for name in ("1.bin", "2.bin")] == ["1\n", "2\n"]


LARGE = "echo '*.bin filter=lfs' >.gitattributes; printf '[lfs]\nurl = x' >.lfsconfig; echo 1 >1.bin; git add .; git commit -qm one"
CANNOT = {
    "detached": (["checkout", "-q", "--detach"], (), (), "HEAD is detached"),
    "large files that only the repository's file says where to send": (
        ["-c", f"alias.x=!{LARGE}", "x"],
        ["config", "filter.lfs.clean", STANDARD["filter.lfs.clean"]],
        ("--push",),
        "git config lfs.url URL",
    ),
}


@pytest.mark.parametrize(("first", "then", "options", "says"), CANNOT.values(), ids=CANNOT.keys())
def test_what_would_stop_commits_and_pushes_is_told_before_anything_is_spent_exits_78(
    ralph, ralph_here, checkout, serve, first, then, options, says
) -> None:
    server = serve()
    for command in filter(None, (first, then)):
        checkout.git(*command)
    ran = ralph_here("loop", "go", "--commit", *options, "--until", "touch checked; false")
    assert (ran.code, server.request_count, ran.stderr.count("\n")) == (78, 0, 1)
    assert says in loop_lines(ran)[0]
    assert not (ralph.cwd / "checked").exists()


def _git(top, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=top, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_what_ralph_itself_writes_into_the_checkout_is_no_progress_and_in_no_commit(
    ralph, checkout, iterations
) -> None:
    """Otherwise `ralph loop ... > loop.log 2>&1` in the checkout would run for ever with a model that does
    nothing.
    """
    iterations()
    ralph.environment["GITHUB_STEP_SUMMARY"] = str(ralph.cwd / "summary.md")
    (ralph.cwd / "ralph-report.html").write_text("a page that was made between two loops")
    with (ralph.cwd / "loop.log").open("wb") as log:
        options = ("--commit", "--metrics-file", "m.prom", "--max-iterations", "9")
        process = ralph.start("loop", "go", *options, stdout=log, stderr=log)
        assert process.wait(PATIENCE_S) == 4
    assert checkout.git("rev-list", "--count", "HEAD").strip() == "1"
    untracked = checkout.git("status", "--porcelain").splitlines()
    own = {"loop.log", "m.prom", "summary.md", "ralph-report.html"}
    assert {line.split()[1] for line in untracked} == own
    assert "4 iterations in a row made no progress" in (ralph.cwd / "loop.log").read_text()


linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


def a_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


@linux_only
def test_a_pipe_for_which_git_would_wait_ends_the_loop_and_is_named(ralph, checkout, iterations) -> None:
    """The iteration has made it, so the loop's own look at the work meets it. tests/git/test_blocking_files.py has more."""
    iterations([bash("rm .git/index; mkfifo .git/index")])
    ran = ralph("loop", "go", "--commit", code=74)
    assert f"waits for {checkout.top}/.git/index, which is not a file" in ran.last_line
    assert processes_of(ralph) == {}


@linux_only
def test_a_pipe_that_a_configuration_names_ends_the_loop_before_it_begins(ralph, checkout, tmp_path) -> None:
    pipe, included = tmp_path / "pipe", checkout.top / ".git/more"
    included.write_text(f"[core]\n\tautocrlf = false\n[include]\n\tpath = {pipe}\n")
    with (checkout.top / ".git/config").open("a") as config:
        config.write("[include]\n\tpath = more\n")
    a_pipe(pipe)
    ran = ralph("loop", "go")
    assert (ran.code, f"waits for {pipe}, which is not a file" in ran.last_line) == (78, True)


@linux_only
def test_a_socket_in_the_place_of_the_index_is_named(ralph, checkout, monkeypatch) -> None:
    (checkout.top / ".git/index").unlink()
    with socket.socket(socket.AF_UNIX) as made:
        monkeypatch.chdir(checkout.top / ".git")  # the whole path may be too long for a socket
        made.bind("index")
        ran = ralph("loop", "go")
    assert ran.code in (74, 78)
    assert ".git/index" in ran.stderr


@linux_only
def test_a_remote_that_never_answers_ends_a_loop_at_its_time_limit(ralph, checkout, iterations) -> None:
    iterations()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        checkout.git("remote", "set-url", "origin", f"http://127.0.0.1:{silent.getsockname()[1]}/x.git")
        ran = ralph("loop", "go", "--commit", "--push", "--max-time", "2s")
    assert (ran.code, "the time limit (--max-time) is used up" in ran.last_line) == (124, True), ran.stderr
    assert processes_of(ralph) == {}


@linux_only
@pytest.mark.parametrize("options", [(), ("--commit",), ("--commit", "--push")], ids=str)
def test_a_stop_gives_a_git_that_does_not_answer_three_seconds(
    ralph, checkout, iterations, tmp_path, options
) -> None:
    """As on a dead mount. Without a limit of its own, the look after the signal would take five minutes."""
    hangs = f"[ -e {tmp_path}/blocked ] && echo $$ >> {tmp_path}/waiting && exec sleep 1000000"
    before_git(ralph.environment, tmp_path / "programs", f'case " $* " in *" status "*) {hangs};; esac')
    iterations([bash(f"echo new > new; touch {tmp_path}/blocked")])
    process = ralph.start("loop", "go", *options)
    wait_until((tmp_path / "waiting").exists)
    ran = ralph.stopped_by(process, signal.SIGTERM, code=143)
    if options:
        assert "git status took longer than 3 s and was stopped" in "\n".join(loop_lines(ran))
    assert processes_of(ralph) == {}
    assert (checkout.top / "new").read_text() == "new\n"
