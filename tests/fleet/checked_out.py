"""Copies one checkout of a job, which `Repositories` has made: that takes twenty calls of git."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ralph.fleet.checkouts import GitCalls, JobCheckout, Repositories, WorkerGit
from tests.git.repositories import Repository, cloned
from tests.processes.one_supervisor import SUPERVISOR

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Prepared(NamedTuple):
    folder: Path
    commit: str
    keeper: tempfile.TemporaryDirectory[str]


def source_with(attributes: str, place: Path) -> Repository:
    """Makes `source` in a folder as `cloned` does, with one more commit of `.gitattributes`, also at the remote."""
    made = _prepared(attributes)
    _copy(made, place, ("source", "remote.git"), ("source/.git/config",))
    return Repository(place / "source", place / "home")


def checked_out(source: Repository, attributes: str = "") -> JobCheckout:
    """Makes `job/checkout` as `check_out` does, beside a source of `cloned` or of `source_with` these attributes. May be
    called once for each source, and not after `check_out`. A later `check_out` makes a mirror of its own.
    """
    made, place = _prepared(attributes), source.top.parent
    told = [
        f"job/{git}/{name}"
        for git in ("git", "checkout/.git")
        for name in ("config", "objects/info/alternates")
    ]
    _copy(made, place, ("mirrors", "job"), told)
    (mirror,) = (place / "mirrors").glob("*.git")
    calls = GitCalls(source.environment, SUPERVISOR)
    there = WorkerGit(calls, str(place / "remote.git"), mirror)
    return JobCheckout(there, place / "job/checkout", made.commit)


def _copy(made: _Prepared, place: Path, folders: Iterable[str], with_paths: Iterable[str]) -> None:
    for folder in folders:
        shutil.copytree(made.folder / folder, place / folder)
    for name in with_paths:
        text = (place / name).read_text()
        (place / name).write_text(text.replace(str(made.folder), str(place)))


@functools.cache
def _prepared(attributes: str) -> _Prepared:
    keeper = tempfile.TemporaryDirectory()
    folder = Path(keeper.name)
    source = cloned(folder / "source", folder / "home")
    if attributes:
        source.write(".gitattributes", attributes)
        source.commit_all()
        source.git("push", "-q", "origin", "main")
    repositories = Repositories(folder / "mirrors", GitCalls(source.environment, SUPERVISOR))
    made = repositories.check_out(str(folder / "remote.git"), None, folder / "job/checkout", "ralph/job")
    return _Prepared(folder, made.commit, keeper)
