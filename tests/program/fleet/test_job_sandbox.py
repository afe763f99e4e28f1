"""Commands of a job of the fleet use git in a checkout that borrows the objects of the worker's mirror. They read nothing
else of the worker's state directory.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ralph.fleet.checkouts import GitCalls, Repositories
from ralph.fleet.database import database_of
from ralph.fleet.job_process import child_environment
from ralph.sandbox.planning import plan_box
from ralph.sandbox.sandbox_settings import SandboxSettings
from tests.git.repositories import committed
from tests.processes.one_supervisor import SUPERVISOR
from tests.program.model_answers import DONE, bash, calls, results
from tests.program.namespaces import forbidding_namespaces

LEVEL = plan_box(SandboxSettings(), dict(os.environ), ()).level

pytestmark = [
    pytest.mark.sandboxed,
    pytest.mark.skipif(LEVEL.name == "none", reason="this kernel has no Landlock"),
]

WORK = "git log --format=%s && git status --short && echo 2 > new && git add new && git commit -qm second"


class Job:
    """A checkout and a state directory in the places where a worker makes them, and the files of another job."""

    def __init__(self, ralph, state: Path, place: Path) -> None:
        home = Path(ralph.environment["HOME"])
        environment = ralph.environment | {"GIT_CONFIG_NOSYSTEM": "1", "RALPH_STATE_DIR": str(state)}
        database = database_of(None, environment)
        mirrors = Repositories(database.folder / "repositories", GitCalls(environment, SUPERVISOR))
        ours, theirs = committed(place / "ours", home), committed(place / "theirs", home)
        theirs.write("secret", "private\n")
        theirs.commit_all()
        self.secret = theirs.git("rev-parse", "HEAD:secret")
        work = database.folder / "work"
        other = mirrors.check_out(str(theirs.top), None, work / "E2/set/other/checkout", "ralph/other")
        checkout = mirrors.check_out(str(ours.top), None, work / "E1/set/job/checkout", "ralph/job")
        (state / "sessions").mkdir()
        self.private = (
            other.directory / "secret",
            state / "sessions/journal",
            database.folder / "fleet.sqlite",
            checkout.directory.parent / "git/HEAD",
        )
        for path in self.private[1:3]:
            path.write_text("private\n")
        self.mirror, self.other_mirror = checkout.objects, other.objects
        self.directory = ralph.cwd = checkout.directory
        own = checkout.directory.parent / "state"
        own.mkdir()
        lock = own.with_name("turn.lock")
        lock.touch()
        ralph.environment = child_environment(
            environment, own, lock, objects=checkout.objects, hidden=database.private_places
        )


@pytest.fixture
def job(ralph, serve, tmp_path, request):
    with ExitStack() as stack:
        state = Path(ralph.environment["HOME"], ".local/state/ralph")
        if request.param == "/tmp":
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")), "state")
        yield Job(ralph, state, tmp_path)


@pytest.mark.parametrize("job", ["home", "/tmp"], indirect=True)
def test_a_job_and_its_check_use_git_below_the_home_directory_and_below_tmp(ralph, serve, job) -> None:
    server = serve(bash(WORK), bash(f"touch {job.mirror}/x; env"), DONE)
    check = "test $(git log --format=%s | wc -l) = 2"
    ran = ralph("loop", "go", "--until", check, "--max-iterations", "1", code=0)
    [(told, is_error)] = results(server, 1)
    assert (told, is_error) == ("work", False)
    assert "RALPH_SANDBOX" not in results(server, 2)[0][0]
    assert "RALPH_SANDBOX" not in ran.stderr, "no notice calls it a credential"
    assert not (job.mirror / "x").exists()


@pytest.mark.parametrize("level", ["default", "landlock"])
@pytest.mark.parametrize("job", ["home"], indirect=True)
def test_a_job_opens_nothing_of_another_by_its_own_file_of_alternates(ralph, serve, job, level) -> None:
    name = ".git/objects/info/alternates"
    hostile = f"echo {job.other_mirror} > {name}; git cat-file -p {job.secret}; cat {' '.join(map(str, job.private))}"
    read = calls(*(("Read", {"file_path": str(path)}) for path in (*job.private, job.directory / "a.txt")))
    server = serve(bash(WORK), bash(hostile), read, bash("git log"), DONE)
    ran = ralph.finish(ralph.start("go", "--output-format", "json", **starting(level))).having(0)
    assert json.loads(ran.stdout)["sandbox"] == (LEVEL.name if level == "default" else level)
    assert results(server, 1)[0][1] is False
    told, is_error = results(server, 2)[0]
    assert is_error
    assert "private" not in told
    assert "refs/" not in told
    *refused, own = results(server, 3)
    assert [is_error for _, is_error in refused] == [True] * len(job.private)
    assert own[1] is False, "the checkout itself is not hidden"


def starting(level: str) -> dict[str, Any]:
    return forbidding_namespaces() if level == "landlock" else {}
