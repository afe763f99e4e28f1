"""No commit of ralph's publishes what agents may not read: secrets of the user, the rest of the home, and what rules deny."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.loop.directory.preflight import check_checkout
from tests.git.repositories import Repository, committed
from tests.rows import every_row
from tests.sandbox.boxes import box_of, means_of

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

CREDENTIALS = "gha-creds-1.json"


def committed_files(repository: Repository) -> set[str]:
    return set(repository.git("diff", "--name-only", "HEAD~1", "HEAD").split())


def test_what_agents_may_not_read_is_left_out_and_named_once(repository: Repository) -> None:
    repository.write("keys/old")
    repository.commit_all()
    for path in ("keys/old", "keys/new", "keys/staged", "keys/intended", "work"):
        repository.write(path, "more")
    repository.git("add", "keys/staged")
    repository.git("add", "-N", "keys/intended")
    asked: list[str] = []

    def unpublished_in(top: str):
        asked.append(top)
        return lambda path, is_in_head: path.startswith(f"{top}/keys/") and not is_in_head

    lines: list[str] = []
    checkout = repository.checkout(warn=lines.append, unpublished_in=unpublished_in)
    told = check_checkout(checkout, commits=True, pushes=False)
    assert told == ["keys/old, work are uncommitted already: the loop's first commit will include them"]
    assert checkout.commit("one", checkout.snapshot())
    assert committed_files(repository) == {"keys/old", "work"}
    assert lines == [
        "agents may not read these: keys/intended, keys/new, keys/staged; commits leave them out"
    ]
    assert repository.git("status", "--porcelain").split("\n") == [
        "A keys/intended",
        "?? keys/new",
        "?? keys/staged",
    ]
    assert not checkout.commit("again")
    assert checkout.commit_aside("red", earlier=None, has_work=True, pushes=False, limit_s=99) is None
    assert (len(lines), asked) == (1, [str(repository.top)])


@every_row(
    ("path", "is_published"),
    [
        (".aws/credentials", (False, False)),
        (".bashrc", (False, False)),  # the home is closed, but for the work
        ("elsewhere/file", (False, False)),
        ("proj/x/file", (True, True)),
        ("proj/added/file", (True, True)),
        ("proj/given/file", (True, True)),
        (
            f"proj/x/{CREDENTIALS}",
            (False, True),
        ),  # commands may change it if HEAD has it, and no commit loses that
        ("proj/x/.env", (False, False)),  # a command could commit this name without what the file holds
        ("proj/x/sub/.env", (True, True)),
        (".gitconfig", (True, True)),  # it is shown
        ("proj/given.txt", (True, True)),
        ("proj/denied/file", (False, False)),
        ("proj/given/key", (False, False)),
        ("proj/given/rule", (False, False)),
    ],
)
def test_the_places_table_and_the_rules_say_what_is_published(
    tmp_path_factory: pytest.TempPathFactory, path: str, is_published: tuple[bool, bool]
) -> None:
    """For a home that is a repository, as for dotfiles. The two values are those without and with the file in HEAD."""
    home = tmp_path_factory.mktemp("home")
    roots = [home / "proj" / name for name in ("x", "added")]
    for root in roots:
        root.mkdir(parents=True)
    with box_of(
        means_of("landlock"),
        roots,
        {"HOME": str(home), "GOOGLE_APPLICATION_CREDENTIALS": f"{roots[0]}/{CREDENTIALS}"},
        read=(f"{home}/proj/given", f"{home}/proj/given.txt"),
        read_deny=(f"{home}/proj/denied", f"{home}/proj/given/key"),
        rules_deny=(f"{home}/proj/given/rule",),
        masked=(f"{roots[0]}/.env",),
    ) as box:
        is_unpublished = box.unpublished_in(str(home))
        found = tuple(not is_unpublished(f"{home}/{path}", is_in_head) for is_in_head in (False, True))
    assert found == is_published


def test_a_place_that_must_not_be_read_around_the_work_keeps_no_work_out(tmp_path: Path) -> None:
    work = tmp_path / "src/work"
    work.mkdir(parents=True)
    with box_of(means_of("landlock"), [work], {"HOME": "/none"}, read_deny=(f"{tmp_path}/src",)) as box:
        is_unpublished = box.unpublished_in(f"{tmp_path}/src")
        assert not is_unpublished(f"{work}/new", False)
        assert is_unpublished(f"{tmp_path}/src/other", False)


def test_a_name_that_a_command_has_committed_publishes_no_content(tmp_path: Path) -> None:
    """Git takes the id of any object for a file that is there, without reading the file."""
    repository = committed(tmp_path / "home/work", tmp_path / "home")
    repository.write("other/key", "KEY")
    root = repository.top / "proj"
    root.mkdir()
    empty = repository.git("hash-object", "-w", "--stdin")
    repository.git("update-index", "--add", "--cacheinfo", f"100644,{empty},other/key")
    repository.git("commit", "-q", "-m", "planted")
    repository.write("proj/new")
    with box_of(
        means_of("landlock"), [root], repository.environment, read_deny=(f"{repository.top}/other",)
    ) as box:
        assert repository.checkout("proj", unpublished_in=box.unpublished_in).commit("work")
    assert committed_files(repository) == {"proj/new"}
    assert repository.git("show", "HEAD:other/key") == ""
