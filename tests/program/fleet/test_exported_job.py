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
from ralph.sandbox.landlock import support
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
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ralph.mock_api import MockApi, Playable, RecordedRequest
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


class Scheduler:
    """Does a job as another scheduler does. Its repository is on an HTTPS server that demands the token. The user's git has a
    filter `mine`, which leaves its environment and that of git in `seen`.
    """

    def __init__(
        self, ralph: Ralph, serve: Callable[..., MockApi], place: Path, server: HttpRepository
    ) -> None:
        self.ralph, self.serve, self.place, self.server = ralph, serve, place, server
        self.seen, self.jobs = place / "seen", place / "jobs"
        self.seen.mkdir()
        dump = script(
            place / "own-filter",
            f"tr '\\0' '\\n' </proc/$PPID/environ >{self.seen}/git.$$\n"
            f"tr '\\0' ' ' </proc/$PPID/cmdline >{self.seen}/words.$$\nenv >{self.seen}/own.$$\n"
            f"test -e /proc/$$/fd/90 && dd bs=1024 count=1 </proc/$$/fd/90 >>{self.seen}/own.$$\nexec cat",
        )
        self.user = Repository(place / "origin/work", place / "home-of-user")
        self.user.environment["HOME"] = ralph.environment["HOME"]
        self.set("http.sslCAInfo", str(place / "c/cert.pem"))
        self.set("filter.mine.clean", str(dump))
        # It keeps each password that a server has taken.
        self.set("credential.helper", f"store --file={self.seen}/own.kept")
        ralph.environment |= {
            "RALPH_GIT_TOKEN": TOKEN,
            "RALPH_GIT_HOST": server.host,
            "X_TOKEN": SECRET,
            "PLAIN": SECRET,
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def set(self, name: str, value: str) -> None:
        """Changes the user's own git configuration."""
        self.user.git("config", "--global", name, value)

    def git(self, *words: str) -> str:
        """Runs git in the job's repository."""
        return self.user.git("-C", str(self.place / "origin/remote.git"), *words)

    def hook(self, text: str) -> Path:
        return script(self.place / "origin/remote.git/hooks/pre-receive", text)

    def answers(self, *steps: Playable) -> MockApi:
        """Lets the model give these answers in turn, and then a final one."""

        def play(request: RecordedRequest, _index: int) -> Playable:
            done = sum(one["role"] == "assistant" for one in request.json()["messages"])
            return steps[done] if done < len(steps) else Turn("Done.")

        return self.serve(script=play)

    def words(self, **values: object) -> list[str]:
        given = {"sandbox": "off", "env": ("X_TOKEN", "PLAIN"), "options": ("--retry", "off"), **values}
        job = Job(id="a", repository=self.server.url, prompt="Do it.", **given)  # type: ignore[arg-type]
        (self.place / "job.json").write_bytes(content_of(job))
        return ["fleet", "job", "--set", "night", "--dir", str(self.jobs), str(self.place / "job.json")]

    def do(self, **values: object) -> Finished:
        return self.ralph(*self.words(**values))

    @property
    def bundle(self) -> Path:
        return self.jobs / "night/a/work.bundle"


@pytest.fixture
def scheduler(ralph: Ralph, serve: Callable[..., MockApi], tmp_path: Path) -> Iterator[Scheduler]:
    cloned(tmp_path / "origin/work", tmp_path / "origin/home")
    (tmp_path / "c").mkdir()
    certificate = make_certificate(tmp_path / "c", names="IP:127.0.0.1")
    with HttpRepository(tmp_path / "origin/remote.git", token=TOKEN, certificate=certificate) as server:
        yield Scheduler(ralph, serve, tmp_path, server)


@pytest.mark.parametrize("attack", ATTACKS)
def test_git_has_no_key_and_no_token_and_runs_nothing_that_the_agent_planted(
    scheduler: Scheduler, attack: str
) -> None:
    marks = scheduler.place / "marks"
    marks.mkdir()
    planted = script(scheduler.place / "planted", f": >{marks}/ran; exec cat")
    scheduler.ralph.user_file.write_text(NAMED)
    attacked = f"P={planted}; {ATTACKS[attack]}; rm -f {marks}/*; echo '*.txt filter=mine' >>.gitattributes; echo work >work.txt"
    scheduler.answers(bash(attacked))
    ran = scheduler.do()
    assert ran.code == 0, ran.stderr
    assert list(marks.iterdir()) == []
    assert scheduler.git("show", "ralph/a:work.txt") == "work"
    listed = scheduler.git("ls-tree", "--name-only", "ralph/a").split()
    assert "inner" not in listed or "submodule" in attack
    seen = {path.name: path.read_text() for path in scheduler.seen.iterdir()}
    assert {name.partition(".")[0] for name in seen} == {"git", "words", "own"}, "the user's own filter runs"
    for text in seen.values():
        assert not any(secret in text for secret in (KEY, TOKEN, SECRET))
    for path in scheduler.jobs.rglob("*"):
        assert path.is_symlink() or not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


@pytest.mark.sandboxed
@pytest.mark.skipif(support().abi == 0, reason="this kernel has no Landlock")
def test_a_job_reads_no_other_job_and_its_text_controls_no_terminal(scheduler: Scheduler) -> None:
    for other in ("night/b/checkout/f", "evening/c/job.json", "evening/c/checkout/f"):
        (scheduler.jobs / other).parent.mkdir(parents=True, exist_ok=True)
        (scheduler.jobs / other).write_text("theirs")
    reading = (
        f"cd {scheduler.jobs}; cat night/b/checkout/f evening/c/checkout/f; cat $OLDPWD/a.txt; ls night; true"
    )
    hostile = "cd $OLDPWD; mkdir $'n\n[ralph] m'; echo {} >$'n\n[ralph] m/.mcp.json'"
    api = scheduler.answers(
        bash(f"echo mine >a.txt; {reading}; {hostile}"), Turn("res\x1b]0;PWNED\x07ult\n[ralph] not ours")
    )
    ran = scheduler.do(sandbox="auto")
    seen = (api.requests[1].body or b"").decode()
    assert "mine" in seen
    assert "theirs" not in seen
    assert "\x1b" not in ran.stderr + ran.stdout
    assert ran.stderr.count("| [ralph] not ours") == 2, "as the run said it, and as its result"
    assert "left out of the commit: n [ralph] m/.mcp.json" in ran.stderr


@pytest.mark.parametrize("whose", ["the agent", "the repository's author"])
def test_no_program_of_the_users_takes_code_from_the_checkout(scheduler: Scheduler, whose: str) -> None:
    ran_at = scheduler.place / "ran"
    plant = f"printf '#!/bin/sh\n: >{ran_at}; cat' >cleaner; echo '*.txt filter=mine' >.gitattributes; echo x >x.txt"
    scheduler.ralph.user_file.write_text(NAMED)
    for key in ("clean", "smudge"):
        scheduler.set(f"filter.mine.{key}", "sh cleaner")
    if whose == "the agent":
        scheduler.answers(bash(plant))
    else:
        scheduler.answers()
        scheduler.user.git("-c", f"alias.x=!{plant}", "x")
        scheduler.user.git("add", "-A")
        scheduler.user.git("commit", "--quiet", "-m", "x")
        scheduler.user.git("push", "--quiet", str(scheduler.place / "origin/remote.git"), "main")
    ran_at.unlink(missing_ok=True)
    ran = scheduler.do()
    assert not ran_at.exists()
    assert ran.code == 78
    assert "of your own git configuration would run what the checkout holds" in ran.stderr


def test_an_attempt_resumes_the_session_in_the_same_checkout_with_what_is_left_of_the_budget(
    scheduler: Scheduler,
) -> None:
    outages = [Fault(status=529)]

    def play(request: RecordedRequest, _index: int) -> Playable:
        done = sum(one["role"] == "assistant" for one in request.json()["messages"])
        if done == 0:
            return bash("echo one >one.txt")
        return outages.pop() if outages else Turn("Done.")

    api = scheduler.serve(script=play)
    job = {"max_budget_usd": 5, "ref": "main"}
    first = scheduler.do(**job)
    assert first.code == 75, first.stderr
    assert "ralph/a" not in scheduler.git("branch", "--list")
    second = scheduler.do(**job)
    assert (second.code, api.request_count) == (0, 3), second.stderr
    assert (scheduler.do(**job).code, api.request_count) == (0, 3), "what ended is not done again"
    assert scheduler.git("show", "ralph/a:one.txt") == "one"


def test_large_files_that_the_server_refuses_are_beside_the_bundle_and_the_same_job_again_delivers_them(
    scheduler: Scheduler,
) -> None:
    program_or_skip("git-lfs")
    large, bundle = scheduler.server.large, scheduler.bundle
    for name, value in STANDARD.items():
        scheduler.set(name, value)
    large.status = 403
    scheduler.answers(bash("echo '*.bin filter=lfs -text' >.gitattributes; printf large >x.bin"))
    refused = scheduler.do()
    assert (refused.code, str(bundle) in refused.stderr) == (77, True), refused.stderr
    assert kept_at(bundle.parent, LARGE) == {identifier("large")}
    large.status = 200
    ran = scheduler.do()
    assert (ran.code, bundle.exists(), kept_at(bundle.parent, LARGE)) == (0, False, set()), ran.stderr
    assert large.kept == {identifier("large"): b"large"}


@pytest.mark.parametrize("how", ["refused", "stopped while the host hangs"])
def test_work_that_is_not_delivered_is_a_bundle_and_the_same_job_again_delivers_it(
    scheduler: Scheduler, how: str
) -> None:
    hangs, bundle = scheduler.place / "hangs", scheduler.bundle
    hook = scheduler.hook("exit 1" if how == "refused" else f": >{hangs}; exec sleep 60")
    api = scheduler.answers(bash("echo one >one.txt"))
    first = scheduler.ralph.start(*scheduler.words())
    if how != "refused":
        wait_until(hangs.exists)
        first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == (78 if how == "refused" else 143)
    assert str(bundle) in said.decode()
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    hook.unlink()
    asked = api.request_count
    ran = scheduler.do()
    assert (ran.code, api.request_count, bundle.exists()) == (0, asked, False), ran.stderr
    assert scheduler.git("show", "ralph/a:one.txt") == "one"


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"env": ("MISSING",)}, 78, "the variable MISSING is not set"),
        ({"ref": "nowhere"}, 78, "has no branch, tag or commit nowhere"),
        ({"max_budget_usd": 1e-9}, 3, ""),
    ],
)
def test_a_job_that_cannot_be_done_says_why(
    scheduler: Scheduler, change: dict[str, object], code: int, says: str
) -> None:
    scheduler.answers()
    ran = scheduler.do(**change)
    assert ran.code == code, ran.stderr
    assert says in ran.stderr
    assert TOKEN not in ran.stderr


def test_it_needs_no_library_of_the_fleet(scheduler: Scheduler) -> None:
    scheduler.ralph.run_first(
        "import sys\nfor name in ('dbos', 'sqlalchemy', 'psycopg'): sys.modules[name] = None\n"
    )
    ran = scheduler.do(ref="nowhere")
    assert (ran.code, "has no branch, tag or commit nowhere" in ran.stderr) == (78, True), ran.stderr


def test_a_wrong_token_is_told_and_not_shown(scheduler: Scheduler) -> None:
    scheduler.ralph.environment["RALPH_GIT_TOKEN"] = f"{TOKEN}x"
    api = scheduler.answers()
    ran = scheduler.do()
    assert (ran.code, api.request_count) == (77, 0)
    assert TOKEN not in ran.stderr
    scheduler.ralph.environment["RALPH_GIT_TOKEN"] = "two words"
    assert scheduler.do().code == 78


def test_what_a_variable_names_as_credentials_is_not_published(scheduler: Scheduler) -> None:
    """Git itself does not get the variable."""
    named = str(scheduler.jobs / "night/a/checkout/gcp.json")
    scheduler.ralph.environment["GOOGLE_APPLICATION_CREDENTIALS"] = named
    scheduler.answers(bash("echo FAKE >gcp.json; echo one >one.txt"))
    ran = scheduler.do()
    assert "gcp.json (agents may not read it)" in ran.stdout + ran.stderr
    listed = scheduler.git("ls-tree", "--name-only", "ralph/a")
    assert listed.split() == [".gitignore", "a.txt", "dir", "one.txt"]


def test_what_the_agent_left_beside_the_branch_is_pushed_too(scheduler: Scheduler) -> None:
    scheduler.answers(
        bash(
            "git switch -qc aside; echo x > aside.txt; git add aside.txt; git commit -qm aside; git switch -q -"
        )
    )
    earlier = scheduler.git("rev-parse", "main")
    scheduler.git("update-ref", "refs/ralph/night/a/1-rest", earlier)
    ran = scheduler.do()
    pushed = re.search(r"as (refs/ralph/night/a/1-rest-[0-9a-f]{12})$", ran.stdout + ran.stderr, re.MULTILINE)
    assert ran.code == 0, ran.stderr
    assert pushed is not None, ran.stderr
    assert scheduler.git("show", f"{pushed[1]}^2:aside.txt") == "x"
    assert scheduler.git("rev-parse", "refs/ralph/night/a/1-rest") == earlier, "it is kept"
