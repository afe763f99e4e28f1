"""Makes real checkouts with the real git, with no settings but those of the tests."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.git.checkout import GitCheckout
from ralph.git.runner import GitSeams
from ralph.machine.waiter import InboxWaiter, SystemClock
from tests.processes.one_supervisor import SUPERVISOR

if TYPE_CHECKING:
    from ralph.git.look import Changes

CLOCK = SystemClock()


class Repository:
    def __init__(self, top: Path, home: Path) -> None:
        self.top = top
        home.mkdir(exist_ok=True)
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
        self.waiter = InboxWaiter(CLOCK)
        self.filters: tuple[str, ...] = ()
        """The filters that the user's settings for ralph name."""

    @classmethod
    def empty(cls, top: Path, home: Path) -> Repository:
        """A repository without commits on the branch `main`, with a committer's name and address."""
        made = cls(top, home)
        top.mkdir(parents=True)
        # Without the files that git gives as samples, a copy is a fraction of the work.
        made.git("init", "-q", "--template=", "-b", "main")
        for folder in ("hooks", "info"):
            (top / ".git" / folder).mkdir(exist_ok=True)
        with (top / ".git" / "config").open("a") as config:
            config.write("[user]\n\tname = Tester\n\temail = tester@example.com\n")
        return made

    def git(self, *arguments: str, fails: bool = False) -> str:
        command = ["git", "-c", "protocol.file.allow=always", "-c", "maintenance.auto=false", *arguments]
        ran = subprocess.run(
            command, cwd=self.top, env=self.environment, capture_output=True, text=True, check=False
        )
        assert bool(ran.returncode) == fails, ran.stderr
        return ran.stdout.strip()

    def write(self, path: str, text: str = "text\n") -> Path:
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def commit_all(self, message: str = "work") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def seams(self, **environment: str) -> GitSeams:
        return GitSeams(self.environment | environment, SUPERVISOR, self.waiter, CLOCK, filters=self.filters)

    def checkout(self, directory: str = ".", plan_file: str = "PLAN.md", **options: Any) -> GitCheckout:
        return GitCheckout(self.top, self.top / directory, plan_file=plan_file, seams=self.seams(), **options)


def committed(top: Path, home: Path) -> Repository:
    """A repository with one commit of `a.txt`, `dir/b.txt` and `.gitignore`."""
    shutil.copytree(Path(_prepared().name, "work"), top)
    return Repository(top, home)


def cloned(top: Path, home: Path) -> Repository:
    """A repository as `committed` makes it, with a bare repository beside it as `origin` that has this commit
    too.
    """
    shutil.copytree(Path(_prepared().name, "remote.git"), top.with_name("remote.git"))
    shutil.copytree(Path(_prepared().name, "fetched"), top)
    config = top / ".git" / "config"
    config.write_text(config.read_text().replace(_prepared().name, str(top.parent)))
    return Repository(top, home)


@functools.cache
def _prepared() -> tempfile.TemporaryDirectory[str]:
    """The repositories that the functions above copy. They are made once, because that takes a dozen calls of
    git.
    """
    place = tempfile.TemporaryDirectory()
    made = Repository.empty(Path(place.name, "work"), Path(place.name, "home"))
    made.write("a.txt")
    made.write("dir/b.txt")
    made.write(".gitignore", "ignored*\n")
    made.commit_all()
    made.git("clone", "-q", "--bare", "--template=", ".", "../remote.git")
    shutil.copytree(made.top, Path(place.name, "fetched"))
    fetched = Repository(Path(place.name, "fetched"), Path(place.name, "home"))
    fetched.git("remote", "add", "origin", str(Path(place.name, "remote.git")))
    fetched.git("fetch", "-q")
    return place


class Watch:
    """Compares each snapshot of a checkout with the one before."""

    def __init__(self, checkout: GitCheckout) -> None:
        self._checkout = checkout
        self._before = checkout.snapshot()

    def changes(self) -> Changes | None:
        """The changes since the last call, or None if there was no progress."""
        before, self._before = self._before, self._checkout.snapshot()
        if before.digest == self._before.digest:
            return None
        return self._checkout.changes(before, self._before)


def changes_by(repository: Repository, act, **where: str) -> Changes | None:
    watch = Watch(repository.checkout(**where))
    act()
    return watch.changes()
