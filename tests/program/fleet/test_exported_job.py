"""`ralph fleet job` does a job of an exported file: git runs as a worker's, without a key, a token or a program of the agent."""

from __future__ import annotations

import re
import signal
import stat
from typing import TYPE_CHECKING

import pytest

from ralph.fleet.checkouts import LARGE
from ralph.fleet.jobs import Job, content_of
from ralph.mock_api import Fault, Turn
from ralph.sandbox.kernel.landlock import support
from tests.git.http_repository import HttpRepository
from tests.git.repositories import Repository, cloned
from tests.git.test_large_files import STANDARD, identifier, kept_at
from tests.patience import PATIENCE_S, wait_until
from tests.processes.scripts import script
from tests.program.conftest import KEY
from tests.program.model_answers import bash
from tests.services.certificates import make_certificate
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.program.conftest import Finished, Ralph

TOKEN = "ghs_canary0123456789abcdefghijklmnopqrst"
SECRET = "another-secret-0123456789"
NAMED = "[loop]\ngit_filters = ['mine']\n"

# What a command of the agent plants. $P is a program that leaves a mark with its environment.
ATTACKS = {
    "a filter": "git config filter.evil.clean $P; echo '* filter=evil' >.gitattributes",
    "a filter of a nested repository": "git init -q inner; git -C inner config filter.evil.clean $P; "
    "echo '* filter=evil' >inner/.gitattributes; echo x >inner/x; git add -f inner || true",
    "a submodule that has a monitor": "git init -q inner; git -C inner -c user.name=x -c user.email=x@y commit -q --allow-empty -m x; "
    "git add inner; git -C inner config core.fsmonitor $P",
    "a monitor": "git config core.fsmonitor $P",
    "a monitor in another directory": "cp -r .git x; git config -f x/config core.fsmonitor $P; rm -rf .git; echo gitdir: x >.git",
    "hooks": "for h in pre-commit commit-msg post-commit pre-push post-index-change reference-transaction; "
    "do mkdir -p .git/hooks; cp $P .git/hooks/$h; done",
    "hooks elsewhere": "mkdir h; cp $P h/pre-push; cp $P h/pre-commit; git config core.hooksPath $PWD/h",
    "an alias": "for a in add commit diff push rev-parse update-index write-tree commit-tree; do git config alias.$a !$P; done",
    "a helper for passwords": "git config credential.helper !$P; git config core.askPass $P",
    "a program on PATH": "cp $P git; cp $P git-remote-https; mkdir -p bin; cp $P bin/git",
    "a signature": "git config commit.gpgSign true; git config gpg.program $P; git config push.gpgSign if-asked",
    "a pager and an editor": "git config core.pager $P; git config core.editor $P",
    "another address": "git config remote.origin.pushurl ext::$P; git config protocol.ext.allow always",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    cloned(tmp_path / "origin/work", tmp_path / "origin/home")
    return tmp_path


@pytest.fixture
def server(place: Path) -> Iterator[HttpRepository]:
    (place / "c").mkdir()
    certificate = make_certificate(place / "c", names="IP:127.0.0.1")
    with HttpRepository(place / "origin/remote.git", token=TOKEN, certificate=certificate) as made:
        yield made


def begin(ralph: Ralph, place: Path, server: HttpRepository) -> Repository:
    """Sets up the user's own git: its certificate, and a filter that leaves its environment and that of git."""
    seen = place / "seen"
    seen.mkdir()
    dump = script(
        place / "own-filter",
        f"tr '\\0' '\\n' </proc/$PPID/environ >{seen}/git.$$\ntr '\\0' ' ' </proc/$PPID/cmdline >{seen}/words.$$\n"
        f"env >{seen}/own.$$\n"
        f"test -e /proc/$$/fd/90 && dd bs=1024 count=1 </proc/$$/fd/90 >>{seen}/own.$$\nexec cat",
    )
    user = Repository(place / "origin/work", place / "home-of-user")
    user.environment["HOME"] = ralph.environment["HOME"]
    user.git("config", "--global", "http.sslCAInfo", str(place / "c/cert.pem"))
    user.git("config", "--global", "filter.mine.clean", str(dump))
    # It keeps each password that a server has taken.
    user.git("config", "--global", "credential.helper", f"store --file={seen}/own.kept")
    ralph.environment |= {
        "RALPH_GIT_TOKEN": TOKEN,
        "RALPH_GIT_HOST": server.host,
        "X_TOKEN": SECRET,
        "PLAIN": SECRET,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    return user


def words(place: Path, job: Job) -> list[str]:
    file = place / "job.json"
    file.write_bytes(content_of(job))
    return ["fleet", "job", "--set", "night", "--dir", str(place / "jobs"), str(file)]


def do(ralph: Ralph, place: Path, job: Job) -> Finished:
    return ralph(*words(place, job))


def job_of(server: HttpRepository, **values: object) -> Job:
    given = {"sandbox": "off", "env": ("X_TOKEN", "PLAIN"), "options": ("--retry", "off"), **values}
    return Job(id="a", repository=server.url, prompt="Do it.", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ATTACKS)
def test_git_has_no_key_and_no_token_and_runs_nothing_that_the_agent_planted(
    ralph: Ralph, iterations_of_job, place: Path, server: HttpRepository, attack: str
) -> None:
    marks = place / "marks"
    marks.mkdir()
    planted = script(place / "planted", f": >{marks}/ran; exec cat")
    user = begin(ralph, place, server)
    ralph.user_file.write_text(NAMED)
    attacked = f"P={planted}; {ATTACKS[attack]}; rm -f {marks}/*; echo '*.txt filter=mine' >>.gitattributes; echo work >work.txt"
    iterations_of_job(bash(attacked))
    ran = do(ralph, place, job_of(server))
    assert ran.code == 0, ran.stderr
    assert list(marks.iterdir()) == []
    bare = str(place / "origin/remote.git")
    assert user.git("-C", bare, "show", "ralph/a:work.txt") == "work"
    assert (
        "inner" not in user.git("-C", bare, "ls-tree", "--name-only", "ralph/a").split()
        or "submodule" in attack
    )
    seen = {path.name: path.read_text() for path in (place / "seen").iterdir()}
    assert {name.partition(".")[0] for name in seen} == {"git", "words", "own"}, "the user's own filter runs"
    for text in seen.values():
        assert not any(secret in text for secret in (KEY, TOKEN, SECRET))
    for path in (place / "jobs").rglob("*"):
        assert path.is_symlink() or not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


def test_no_job_begins_where_its_commands_may_write_the_users_git_configuration(
    ralph: Ralph, place: Path, server: HttpRepository
) -> None:
    begin(ralph, place, server).git(
        "config", "--global", "include.path", str(place / "jobs/night/a/checkout/x")
    )
    ran = do(ralph, place, job_of(server))
    assert ran.code == 78
    assert "belongs to your own git configuration" in ran.stderr


@pytest.mark.sandboxed
@pytest.mark.skipif(support().abi == 0, reason="this kernel has no Landlock")
def test_a_job_reads_no_other_job_and_its_text_controls_no_terminal(
    ralph: Ralph, serve, place: Path, server: HttpRepository
) -> None:
    begin(ralph, place, server)
    for other in ("night/b/checkout/f", "evening/c/job.json", "evening/c/checkout/f"):
        (place / "jobs" / other).parent.mkdir(parents=True, exist_ok=True)
        (place / "jobs" / other).write_text("theirs")
    reading = (
        f"cd {place}/jobs; cat night/b/checkout/f evening/c/checkout/f; cat $OLDPWD/a.txt; ls night; true"
    )

    def play(request, _index):
        done = sum(one["role"] == "assistant" for one in request.json()["messages"])
        return (
            bash(
                f"echo mine >a.txt; {reading}; cd $OLDPWD; mkdir $'n\n[ralph] m'; echo {{}} >$'n\n[ralph] m/.mcp.json'"
            )
            if not done
            else Turn("res\x1b]0;PWNED\x07ult\n[ralph] not ours")
        )

    api = serve(script=play)
    ran = do(ralph, place, job_of(server, sandbox="auto"))
    seen = api.requests[1].body.decode()
    assert "mine" in seen
    assert "theirs" not in seen
    assert "\x1b" not in ran.stderr + ran.stdout
    assert ran.stderr.count("| [ralph] not ours") == 2, "as the run said it, and as its result"
    assert "left out of the commit: n [ralph] m/.mcp.json" in ran.stderr


@pytest.mark.parametrize("whose", ["the agent", "the repository's author"])
def test_no_filter_of_the_users_runs_that_the_settings_do_not_name(
    ralph: Ralph, iterations_of_job, place: Path, server: HttpRepository, whose: str
) -> None:
    """It leaves its environment in `seen`. What the author's attributes choose is told before the job asks a model."""
    user = begin(ralph, place, server)
    if whose == "the agent":
        iterations_of_job(
            bash("echo '*.txt filter=mine' >.gitattributes; echo work >work.txt; echo 1 >work.md")
        )
    else:
        user.write(".gitattributes", "*.txt filter=mine\n")
        user.commit_all()
        user.git("push", "--quiet", str(place / "origin/remote.git"), "main")
        for file in (place / "seen").iterdir():  # the user's own git runs it
            file.unlink()
        ralph.environment["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:1"
    ran = do(ralph, place, job_of(server))
    assert not [*(place / "seen").glob("own.[0-9]*")]
    if whose == "the agent":
        assert ran.code == 0, ran.stderr
        assert "work.txt (its filter mine is not in loop.git_filters)" in ran.stderr
        names = user.git("-C", str(place / "origin/remote.git"), "ls-tree", "--name-only", "ralph/a").split()
        assert {".gitattributes", "work.md"} <= {*names}
        assert "work.txt" not in names
    else:
        assert ran.code == 78
        assert "a.txt goes through your filter 'mine'" in ran.stderr
        assert '[loop] git_filters = ["mine"]' in ran.stderr


@pytest.mark.parametrize("whose", ["the agent", "the repository's author"])
def test_no_program_of_the_users_takes_code_from_the_checkout(
    ralph: Ralph, iterations_of_job, place: Path, server: HttpRepository, whose: str
) -> None:
    user = begin(ralph, place, server)
    ralph.user_file.write_text(NAMED)
    plant = f"printf '#!/bin/sh\\n: >{place}/ran; cat' >cleaner; echo '*.txt filter=mine' >.gitattributes; echo x >x.txt"
    for key in ("clean", "smudge"):
        user.git("config", "--global", f"filter.mine.{key}", "sh cleaner")
    if whose == "the agent":
        iterations_of_job(bash(plant))
    else:
        iterations_of_job()
        user.git("-c", f"alias.x=!{plant}", "x")
        user.git("add", "-A")
        user.git("commit", "--quiet", "-m", "x")
        user.git("push", "--quiet", str(place / "origin/remote.git"), "main")
    (place / "ran").unlink(missing_ok=True)
    ran = do(ralph, place, job_of(server))
    assert not (place / "ran").exists()
    assert ran.code == 78
    assert "of your own git configuration would run what the checkout holds" in ran.stderr


@pytest.fixture
def iterations_of_job(serve):
    """Starts a server that sends these answers in turn, and then a final one."""

    def start(*steps: object) -> object:
        def play(request, _index):
            done = sum(one["role"] == "assistant" for one in request.json()["messages"])
            return steps[done] if done < len(steps) else Turn("Done.")

        return serve(script=play)

    return start


def test_an_attempt_resumes_the_session_in_the_same_checkout_with_what_is_left_of_the_budget(
    ralph: Ralph, serve, place: Path, server: HttpRepository
) -> None:
    user = begin(ralph, place, server)
    outages = [True]

    def play(request, _index):
        done = sum(one["role"] == "assistant" for one in request.json()["messages"])
        if done == 1 and outages:
            outages.pop()
            return Fault(status=529)
        return bash("echo one >one.txt") if done == 0 else Turn("Done.")

    api = serve(script=play)
    job = job_of(server, max_budget_usd=5, ref="main")
    first = do(ralph, place, job)
    assert first.code == 75, first.stderr
    assert "ralph/a" not in user.git("-C", str(place / "origin/remote.git"), "branch", "--list")
    second = do(ralph, place, job)
    assert second.code == 0, second.stderr
    asked = api.request_count
    assert asked == 3
    assert (do(ralph, place, job).code, api.request_count) == (0, asked), "what ended is not done again"
    assert user.git("-C", str(place / "origin/remote.git"), "show", "ralph/a:one.txt") == "one"


def test_work_that_the_host_refuses_is_a_bundle_and_the_same_job_again_delivers_it(
    ralph: Ralph, place: Path, server: HttpRepository, iterations_of_job
) -> None:
    user = begin(ralph, place, server)
    hook = script(place / "origin/remote.git/hooks/pre-receive", "exit 1")
    api = iterations_of_job(bash("echo one >one.txt"))
    refused = do(ralph, place, job_of(server))
    (bundle,) = (place / "jobs").glob("*/a/work.bundle")
    assert (refused.code, str(bundle) in refused.stderr) == (78, True), refused.stderr
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    hook.unlink()
    asked = api.request_count
    ran = do(ralph, place, job_of(server))
    assert (ran.code, api.request_count, bundle.exists()) == (0, asked, False), ran.stderr
    assert user.git("-C", str(place / "origin/remote.git"), "show", "ralph/a:one.txt") == "one"


def test_large_files_that_the_server_refuses_are_beside_the_bundle_and_the_same_job_again_delivers_them(
    ralph: Ralph, place: Path, server: HttpRepository, iterations_of_job
) -> None:
    program_or_skip("git-lfs")
    user = begin(ralph, place, server)
    for name, value in STANDARD.items():
        user.git("config", "--global", name, value)
    server.large.status = 403
    iterations_of_job(bash("echo '*.bin filter=lfs -text' >.gitattributes; printf large >x.bin"))
    refused = do(ralph, place, job_of(server))
    (bundle,) = (place / "jobs").glob("*/a/work.bundle")
    assert (refused.code, str(bundle) in refused.stderr) == (77, True), refused.stderr
    assert kept_at(bundle.parent, LARGE) == {identifier("large")}
    server.large.status = 200
    ran = do(ralph, place, job_of(server))
    assert (ran.code, bundle.exists(), kept_at(bundle.parent, LARGE)) == (0, False, set()), ran.stderr
    assert server.large.kept == {identifier("large"): b"large"}


def test_a_job_that_is_stopped_while_the_host_hangs_at_its_push_leaves_a_bundle(
    ralph: Ralph, place: Path, server: HttpRepository, iterations_of_job
) -> None:
    user = begin(ralph, place, server)
    hangs = place / "hangs"
    hook = script(place / "origin/remote.git/hooks/pre-receive", f": >{hangs}; exec sleep 60")
    api = iterations_of_job(bash("echo one >one.txt"))
    stopped = ralph.start(*words(place, job_of(server)))
    wait_until(hangs.exists)
    stopped.send_signal(signal.SIGTERM)
    _, said = stopped.communicate(timeout=PATIENCE_S)
    (bundle,) = (place / "jobs").glob("*/a/work.bundle")
    assert (stopped.returncode, str(bundle) in said.decode()) == (143, True), said
    hook.unlink()
    asked = api.request_count
    ran = do(ralph, place, job_of(server))
    assert (ran.code, api.request_count, bundle.exists()) == (0, asked, False), ran.stderr
    assert user.git("-C", str(place / "origin/remote.git"), "show", "ralph/a:one.txt") == "one"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"env": ("MISSING",)}, 78, "the variable MISSING is not set"),
        ({"ref": "nowhere"}, 78, "has no branch, tag or commit nowhere"),
        ({"max_budget_usd": 1e-9}, 3, ""),
    ],
)
def test_a_job_that_cannot_be_done_says_why(
    ralph: Ralph, serve, place: Path, server: HttpRepository, change: dict[str, object], code: int, says: str
) -> None:
    begin(ralph, place, server)
    serve(script=lambda _request, _index: Turn("Done."))
    ran = do(ralph, place, job_of(server, **change))
    assert ran.code == code, ran.stderr
    assert says in ran.stderr
    assert TOKEN not in ran.stderr


def test_it_needs_no_library_of_the_fleet(ralph: Ralph, place: Path, server: HttpRepository) -> None:
    begin(ralph, place, server)
    ralph.run_first("import sys\nfor name in ('dbos', 'sqlalchemy', 'psycopg'): sys.modules[name] = None\n")
    ran = do(ralph, place, job_of(server, ref="nowhere"))
    assert (ran.code, "has no branch, tag or commit nowhere" in ran.stderr) == (78, True), ran.stderr


def test_a_wrong_token_is_told_and_not_shown(
    ralph: Ralph, serve, place: Path, server: HttpRepository
) -> None:
    begin(ralph, place, server)
    ralph.environment["RALPH_GIT_TOKEN"] = f"{TOKEN}x"
    api = serve(script=lambda _request, _index: Turn("Done."))
    ran = do(ralph, place, job_of(server))
    assert (ran.code, api.request_count) == (77, 0)
    assert TOKEN not in ran.stderr
    ralph.environment["RALPH_GIT_TOKEN"] = "two words"
    assert do(ralph, place, job_of(server)).code == 78


def test_what_a_variable_names_as_credentials_is_not_published(
    ralph: Ralph, iterations_of_job, place: Path, server: HttpRepository
) -> None:
    """Git itself does not get the variable."""
    user = begin(ralph, place, server)
    ralph.environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(place / "jobs/night/a/checkout/gcp.json")
    iterations_of_job(bash("echo FAKE >gcp.json; echo one >one.txt"))
    ran = do(ralph, place, job_of(server))
    assert "gcp.json (agents may not read it)" in ran.stdout + ran.stderr
    listed = user.git("--git-dir", str(place / "origin/remote.git"), "ls-tree", "--name-only", "ralph/a")
    assert listed.split() == [".gitignore", "a.txt", "dir", "one.txt"]


def test_what_the_agent_left_beside_the_branch_is_pushed_too(
    ralph: Ralph, iterations_of_job, place: Path, server: HttpRepository
) -> None:
    user = begin(ralph, place, server)
    aside = (
        "git switch -qc aside; echo x > aside.txt; git add aside.txt; git commit -qm aside; git switch -q -"
    )
    iterations_of_job(bash(aside))
    remote = str(place / "origin/remote.git")
    earlier = user.git("rev-parse", "HEAD")
    user.git("push", "-q", remote, f"{earlier}:refs/ralph/night/a/1-rest")
    ran = do(ralph, place, job_of(server))
    pushed = re.search(r"as (refs/ralph/night/a/1-rest-[0-9a-f]{12})$", ran.stdout + ran.stderr, re.MULTILINE)
    assert ran.code == 0, ran.stderr
    assert pushed is not None, ran.stderr
    user.git("fetch", "-q", remote, pushed[1])
    assert user.git("show", "FETCH_HEAD^2:aside.txt") == "x"
    assert user.git("ls-remote", remote, "refs/ralph/night/a/1-rest").split()[0] == earlier, "it is kept"
