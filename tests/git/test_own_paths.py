"""Files that ralph or its caller writes are not the agent's work: which paths these are, and that all functions
leave them out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.git.look import Changes, OwnPaths, own_output_files
from ralph.loop.checkout import check_checkout, open_checkout
from tests.git.repositories import Repository
from tests.git.test_commit import files_of
from tests.git.test_snapshot import nested
from tests.rows import every_row

OWN = ("loop.log", "sess", "tracked.prom", "inner/log")


@pytest.mark.parametrize(
    ("places", "directory", "paths"),
    [
        ((), ".", ".ralph"),
        ((), "part", "part/.ralph"),
        (("loop.log", "no/such/yet", "sess"), ".", ".ralph loop.log no/such/yet sess"),
        (("part/../part/x", "part/"), ".", ".ralph part part/x"),
        (("link", "linked/x"), ".", ".ralph link part part/x"),
        (("outward", "circle"), ".", ".ralph circle outward"),
        (("../beside", "../work2", "/", "/dev/null"), ".", ".ralph"),
        ((".", "..", "part", "part/in", "linked"), "part/in", "linked part/in/.ralph"),
    ],
)
def test_places_in_the_checkout_are_known_by_their_path_from_its_top(
    tmp_path: Path, places: tuple[str, ...], directory: str, paths: str
) -> None:
    top = tmp_path / "work"
    (top / "part/in").mkdir(parents=True)
    for name, target in (
        ("link", "part"),
        ("linked", "part"),
        ("outward", "/dev/null"),
        ("circle", "circle"),
    ):
        (top / name).symlink_to(target)
    assert OwnPaths(top, top / directory, [top / place for place in places]).paths == tuple(paths.split())


def test_links_that_lead_to_the_checkout_make_no_difference(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "link").symlink_to("work")
    real, link = tmp_path / "work", tmp_path / "link"
    assert (
        OwnPaths(real, link, [link / "a"]).paths
        == OwnPaths(link, real, [real / "a"]).paths
        == (".ralph", "a")
    )


@every_row(
    ("path", "is_held"),
    [("sess", True), ("sess/x/y", True), ("sess/", True), ("session", False), ("x/sess", False), ("", False)],
)
def test_a_place_holds_what_is_below_it_and_nothing_beside_it(path: str, is_held: bool) -> None:
    assert OwnPaths(Path("/w"), Path("/w"), [Path("/w/sess")]).hold(path) == is_held


@pytest.fixture
def written(repository: Repository) -> Repository:
    """A repository with a changed file in each of these paths. One file is tracked, and one is in an inner
    repository.
    """
    repository.write("tracked.prom")
    repository.commit_all()
    nested(repository).commit_all()
    for path in ("loop.log", "sess/1/journal", "tracked.prom", "inner/log"):
        repository.write(path, "1")
    return repository


def opened(repository: Repository):
    return open_checkout(
        repository.top, "PLAN.md", repository.seams(), own_paths=tuple(repository.top / path for path in OWN)
    )


def test_in_git_they_are_no_progress_and_in_no_commit_but_one_that_somebody_staged(
    written: Repository,
) -> None:
    checkout = opened(written)
    before = checkout.snapshot()
    for path in ("loop.log", "sess/1/journal", "sess/2/journal", "tracked.prom", "inner/log"):
        written.write(path, "12")
    Repository.empty(written.top / "sess/repository", written.top.parent / "home").write("f")
    assert (checkout.snapshot(), check_checkout(checkout, commits=True, pushes=False)) == (before, [])
    assert not checkout.commit("nothing")
    written.git("add", "tracked.prom", "loop.log")
    assert not checkout.commit("nothing but what is not ours")
    written.git("reset", "-q")
    written.write("work")
    assert checkout.commit("work")
    assert checkout.changes(before, checkout.snapshot()) == Changes(1, ("work",))
    assert files_of(written) == {".gitignore", "a.txt", "dir/b.txt", "tracked.prom", "work"}
    assert written.git("show", "HEAD:tracked.prom") == "text"
    written.git("add", "loop.log")
    written.write("more")
    assert checkout.commit("staged")
    assert "loop.log" in files_of(written)


def test_a_commit_of_somebody_else_names_no_file_of_theirs(written: Repository) -> None:
    checkout = opened(written)
    before = checkout.snapshot()
    written.git("commit", "-q", "-m", "log", "tracked.prom")
    assert checkout.changes(before, checkout.snapshot()) == Changes(1, ())


def test_outside_of_git_they_are_no_progress(tmp_path: Path, monkeypatch) -> None:
    repository = Repository(tmp_path / "work", tmp_path / "home")
    repository.write("loop.log")
    monkeypatch.chdir(repository.top)
    checkout = opened(repository)
    before = checkout.snapshot()
    for path in ("loop.log", "sess/1/journal", ".ralph/x"):
        repository.write(path, "12")
    assert checkout.snapshot() == before
    repository.write("session")
    assert checkout.changes(before, checkout.snapshot()).files == ("session",)


def output_files_of(tmp_path: Path, redirected: str) -> list[str]:
    """The names of the output files that a process finds if a shell started it with these redirections."""
    script = (
        "import os, pathlib; from ralph.git.look import own_output_files as files; "
        "pathlib.Path('said').write_text(' '.join(os.path.basename(path) for path in files()))"
    )
    command = f'"$0" -c "$1" {redirected}'
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, script],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
    )
    return (tmp_path / "said").read_text().split()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.parametrize(
    ("redirected", "files"),
    [
        ("> log 2>&1", ["log"]),
        (">> log 2> errors", ["log", "errors"]),
        ("> link", ["log"]),
        ("2> errors | cat > piped", ["errors"]),
        ("> /dev/null 2>&1", []),
        (">&- 2>&-", []),
    ],
)
def test_the_files_that_a_shell_sends_output_to_are_known(
    tmp_path: Path, redirected: str, files: list[str]
) -> None:
    (tmp_path / "link").symlink_to("log")
    assert output_files_of(tmp_path, redirected) == files


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.parametrize("comes_after", [None, "log", "log (deleted)"])
def test_a_file_that_was_deleted_is_none(tmp_path: Path, monkeypatch, comes_after: str | None) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        monkeypatch.setattr("ralph.git.look._OUTPUT_AND_ERRORS", (file.fileno(),))
        assert own_output_files() == (log,)
        log.unlink()
        if comes_after is not None:
            (tmp_path / comes_after).touch()
        assert own_output_files() == ()
