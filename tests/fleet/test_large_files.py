"""Tests that what pointers of the real git-lfs stand for is delivered with a job's commits, or kept."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from ralph.fleet.checkouts import LARGE, Delivered, GitCalls, Repositories, trailer_of
from ralph.git.answer import CheckoutError
from ralph.machine.files.trees import remove_tree
from tests.fleet.checked_out import checked_out, source_with
from tests.fleet.refusing_host import refusing
from tests.fleet.scripted import SET
from tests.git.http_repository import HttpRepository
from tests.git.repositories import Repository
from tests.git.test_large_files import STANDARD, identifier, kept_at
from tests.processes.one_supervisor import SUPERVISOR
from tests.services.outside_programs import program_or_skip

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.fleet.checkouts import JobCheckout

ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
BRANCH, CHECKPOINT = "ralph/job", "refs/ralph/job/1"
BY_AGENT, LEFT = "committed\n" * 99, "left\n" * 99


@pytest.fixture
def source(tmp_path: Path) -> Repository:
    """A clone of the job's repository `remote.git`, which is beside it."""
    program_or_skip("git-lfs")
    made = source_with(ATTRIBUTES, tmp_path)
    for name, value in STANDARD.items():
        made.git("config", "--global", name, value)
    return made


@pytest.fixture
def checkout(source: Repository) -> JobCheckout:
    """A checkout in which the agent has committed a large file and left another."""
    made = checked_out(source, ATTRIBUTES)
    agent = Repository(made.directory, source.top.parent / "home")
    agent.write("a.bin", BY_AGENT)
    agent.git("add", "-A")
    agent.git("-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "by the agent")
    agent.write("b.bin", LEFT)
    return made


def finished(checkout: JobCheckout) -> str:
    return checkout.finish("Job", trailer_of("set", "job", 1, 1)).commit


def repositories(source: Repository, name: str) -> Repositories:
    return Repositories(source.top.parent / name, GitCalls(source.environment, SUPERVISOR))


def test_a_branch_brings_the_large_files_of_agent_and_worker(
    source: Repository, checkout: JobCheckout, tmp_path: Path
) -> None:
    commit = finished(checkout)
    assert checkout.push_branch(commit, BRANCH, None) == Delivered(commit)
    assert kept_at(tmp_path / "remote.git") == {identifier(BY_AGENT), identifier(LEFT)}
    source.git("clone", "-q", "-b", BRANCH, str(tmp_path / "remote.git"), str(tmp_path / "fresh"))
    assert [(tmp_path / "fresh" / name).read_text() for name in ("a.bin", "b.bin")] == [BY_AGENT, LEFT]


def test_a_checkpoint_is_whole_on_another_machine(
    source: Repository, checkout: JobCheckout, tmp_path: Path
) -> None:
    made = checkout.snapshot(None, "Checkpoint")
    assert made is not None
    assert checkout.push_checkpoint(made.commit, CHECKPOINT) == Delivered(made.commit)
    there = repositories(source, "elsewhere").restore(
        str(tmp_path / "remote.git"), CHECKPOINT, made.commit, tmp_path / "other/checkout", BRANCH
    )
    assert [(there.directory / name).read_text() for name in ("a.bin", "b.bin")] == [BY_AGENT, LEFT]
    (there.directory / "c.txt").write_text("more")
    commit = finished(there)
    assert there.push_branch(commit, BRANCH, None) == Delivered(commit)


def test_a_bundle_has_the_large_files_beside_it(
    source: Repository, checkout: JobCheckout, tmp_path: Path
) -> None:
    commit, base, kept = finished(checkout), checkout.commit, tmp_path / "kept"
    checkout.keep_large_files([commit], base, kept)
    with (kept / "work.bundle").open("wb") as file:
        checkout.bundle({f"refs/heads/{BRANCH}": commit}, base, file.fileno())
    remove_tree(checkout.directory.parent)
    assert kept_at(kept, LARGE) == {identifier(BY_AGENT), identifier(LEFT)}
    (tmp_path / "again").mkdir()
    again = repositories(source, "mirrors").unbundle(
        str(tmp_path / "remote.git"), kept / "work.bundle", base, tmp_path / "again/checkout"
    )
    assert again.push_branch(commit, BRANCH, None) == Delivered(commit)
    assert kept_at(tmp_path / "remote.git") == {identifier(BY_AGENT), identifier(LEFT)}


@pytest.mark.parametrize("planted", ["a link", "a link above", "other content", "a pipe"])
def test_what_an_agent_put_in_the_place_of_a_large_file_is_not_published(
    checkout: JobCheckout, tmp_path: Path, planted: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(BY_AGENT)
    (file,) = checkout.directory.glob(f".git/lfs/objects/*/*/{identifier(BY_AGENT)}")
    match planted:
        case "a link":
            file.unlink()
            file.symlink_to(secret)
        case "a link above":
            shutil.move(file.parent, tmp_path / "moved")
            file.parent.symlink_to(tmp_path / "moved")
        case "other content":
            file.chmod(0o600)
            file.write_text("other")
        case "a pipe":
            file.unlink()
            os.mkfifo(file)
    (
        checkout.directory / "a.bin"
    ).unlink()  # the worker would have its pointer made again, and its file with it
    commit = finished(checkout)
    with pytest.raises(CheckoutError, match=r"pointers of git-lfs at a\.bin"):
        checkout.push_branch(commit, BRANCH, None)
    assert kept_at(tmp_path / "remote.git") == set()


def test_a_server_that_only_the_repository_names_gets_nothing(
    source: Repository, checkout: JobCheckout, tmp_path: Path
) -> None:
    with HttpRepository(tmp_path / "remote.git") as elsewhere:
        (checkout.directory / ".lfsconfig").write_text(f"[lfs]\n\turl = {elsewhere.url}/info/lfs\n")
        commit = finished(checkout)
        with pytest.raises(CheckoutError, match=r"\.lfsconfig says where large files go \(lfs\.url\)"):
            checkout.push_branch(commit, BRANCH, None)
        source.git("config", "--global", "lfs.url", str(tmp_path / "remote.git"))
        assert (checkout.push_branch(commit, BRANCH, None), elsewhere.asked) == (Delivered(commit), [])
        source.git("config", "--global", "--unset", "lfs.url")
        calls = repositories(source, "elsewhere")
        with pytest.raises(CheckoutError, match=r"\.lfsconfig says"):  # before the job begins
            calls.check_out(str(tmp_path / "remote.git"), BRANCH, tmp_path / "new/checkout", "x")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_worker_keeps_large_files_that_the_server_refuses_and_a_retry_delivers_them(tmp_path: Path) -> None:
    program_or_skip("git-lfs")
    with refusing(tmp_path) as refused:
        place, host = refused.place, refused.host
        home = place.environment("a")["HOME"]
        for name, value in STANDARD.items():
            place.git("config", "--file", f"{home}/.gitconfig", name, value)
        refused.command = f"echo '{ATTRIBUTES}' >.gitattributes; printf large >x.bin"
        refused.at_the_end = lambda: setattr(host.large, "status", 403)
        assert place.worst("a") == 77, place.log("a")
        (bundle,) = refused.bundles()
        assert kept_at(bundle.parent, LARGE) == {identifier("large")}
        asked, host.large.status = refused.requests, 200
        assert place.store.retry(SET, ["paid"]) == 1
        assert place.worst("a") == 0, place.log("a")
        assert (set(host.large.kept), refused.requests) == ({identifier("large")}, asked)
        assert refused.bundles() == []
