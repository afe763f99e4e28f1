"""No commit of ralph's publishes what agents may not read: secrets of the user, the rest of the home, and what rules deny."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ralph.git.answer import CheckoutError
from ralph.loop.checkout import check_checkout
from ralph.values.outcome import Outcome
from ralph.values.redaction import Redactor
from tests.git.repositories import Repository, cloned, committed
from tests.rows import every_row
from tests.sandbox.boxes import box_of, means_of

if TYPE_CHECKING:
    from pathlib import Path

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


SECRET = "MY-known-QWERTY-77"


def test_files_with_a_known_credential_are_left_out_and_named_once(repository: Repository) -> None:
    repository.write("fixture", f"of old: {SECRET}\n\n\n\n")
    repository.write("changed", "old\n")
    repository.write("staged", "old\n")
    repository.commit_all()
    repository.write("fixture", f"of old: {SECRET}\nmore\n")  # it is published already
    repository.write("fixtures", "sk-ant-api03-0123456789abcdef0123456789\n")  # it only looks like one
    repository.write("changed", f"key={SECRET}\n")
    repository.write("staged", f"key={SECRET}\n")
    repository.write("leak/ed.txt", f"{SECRET}\n")
    repository.write(f"name-{SECRET}", "x")
    repository.write("work", "x")
    repository.git("add", "staged", "leak")
    lines: list[str] = []
    checkout = repository.checkout(warn=lines.append, redactor=Redactor([SECRET]))
    assert checkout.commit("one", checkout.snapshot())
    assert committed_files(repository) == {"fixture", "fixtures", "work"}
    told = "these hold a credential that ralph knows: changed, leak/ed.txt, name-[redacted] and 1 more"
    assert lines == [f"{told}; commits leave them out"]
    assert not checkout.commit("again")
    assert checkout.commit_aside("red", earlier=None, has_work=True, pushes=False, limit_s=99) is None
    assert len(lines) == 1
    status = repository.git("status", "--porcelain").split("\n")
    assert status == ["M changed", " M staged", "?? leak/", f"?? name-{SECRET}"]


def test_no_first_commit_publishes_a_known_credential(tmp_path: Path) -> None:
    made = Repository.empty(tmp_path / "new", tmp_path / "home")
    made.write("leak", SECRET)
    checkout = made.checkout(redactor=Redactor([SECRET]))
    assert not checkout.commit("one")
    made.write("work")
    assert checkout.commit("one")
    assert made.git("ls-files") == "work"


@pytest.mark.parametrize("place", ["content", "name", "message", "earlier commit", ""])
def test_no_commit_of_the_model_with_a_known_credential_is_pushed(tmp_path: Path, place: str) -> None:
    made = cloned(tmp_path / "work", tmp_path / "home")
    made.write("published", f"{SECRET}\n")
    made.commit_all()
    made.git("push", "-q", "origin", "main")
    made.write("published", f"{SECRET}\nmore\n")
    made.write(
        f"x{SECRET}" if place == "name" else "x", f"a{SECRET}" if "c" in place else "sk-ant-api03-01234567"
    )
    made.git("add", "-A")
    made.git("commit", "-q", "-m", SECRET if place == "message" else "mine")
    commit = made.git("rev-parse", "--short=12", "HEAD")
    if place == "earlier commit":
        made.write("x", "gone")
        made.commit_all()
    before = made.git("-C", str(tmp_path / "remote.git"), "rev-parse", "main")
    checkout = made.checkout(redactor=Redactor([SECRET]))
    if place:
        shown_place = {"message": "its message", "name": "x\\[redacted\\]"}.get(place, "x")
        with pytest.raises(
            CheckoutError, match=f"{commit} holds a credential .*\\({shown_place}\\)"
        ) as raised:
            checkout.push()
        assert raised.value.outcome is Outcome.CONFIG
        assert SECRET not in str(raised.value)
    else:
        assert checkout.push() == 1
    after = made.git("-C", str(tmp_path / "remote.git"), "rev-parse", "main")
    assert (after == before) is bool(place)


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
    assert (committed_files(repository), repository.git("show", "HEAD:other/key")) == ({"proj/new"}, "")
