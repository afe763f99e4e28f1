"""The HTML page of a fleet, without a browser, and the command that writes it as a whole process."""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.fleet.claims import Claim, Claims, ClaimWriter
from ralph.fleet.database import database_of, prepare
from ralph.fleet.jobs import Job, SetLimits
from ralph.pages.command import MARK_OF_PAGE
from ralph.pages.fleet_page import fleet_html_of
from tests.pages.fleet_rows import night_of
from tests.pages.hostile_content import HOSTILE, Walk
from tests.pages.test_page import Structure
from tests.program.conftest import ralph_in

if TYPE_CHECKING:
    from pathlib import Path

    from ralph.pages.fleet_page import FleetContent
    from tests.program.conftest import Finished


def full_night() -> FleetContent:
    """A night in which each field has a text."""
    content = night_of()
    return replace(content, notes=("use --db",), left_out=("3 more jobs",))


FULL_FLEET = full_night()


def test_texts_of_others_are_text_in_every_field() -> None:
    """The page has the same elements with the same attributes, whatever its texts say."""
    hostile, harmless = Walk(HOSTILE), Walk("harmless {}")
    structure = Structure(fleet_html_of(hostile.over(FULL_FLEET), UTC))
    assert structure.shape == Structure(fleet_html_of(harmless.over(FULL_FLEET), UTC)).shape
    structure.refuse_actions()


def test_every_text_of_a_fleet_stands_on_the_page() -> None:
    walk = Walk("{}")
    page = fleet_html_of(walk.over(FULL_FLEET), UTC).decode()
    assert {name for name, number in walk.names.items() if number not in page} == set()


def test_each_place_has_its_own_name() -> None:
    elements = Structure(fleet_html_of(night_of(), UTC)).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_the_command_writes_the_page_of_a_real_store_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    ralph = ralph_in(tmp_path)
    ralph.environment["RALPH_STATE_DIR"] = str(tmp_path / "state")
    section = ralph.cwd

    def report(*words: str) -> Finished:
        return ralph("fleet", "report", *words)

    none = report()
    assert (none.code, none.stdout) == (2, "")
    assert "there is no fleet store yet" in none.stderr
    assert not (tmp_path / "state").exists()
    database = database_of(None, {"RALPH_STATE_DIR": str(tmp_path / "state")})
    prepare(database)
    store = Claims(database)
    store.create()
    jobs = [
        Job(id=name, repository="/srv/shop.git", prompt=f"Do {name}.") for name in ("good", "bad", "later")
    ]
    store.submit("night", SetLimits(max_budget_usd=5.0), jobs)
    for name, executor, code in (("good", "east-1-a", 0), ("bad", "west-2-b", 1)):
        taken = store.claim("night", name, 1, executor=executor, machine=executor[:4], credential="k")
        assert isinstance(taken, Claim)
        held = ClaimWriter(store, taken)
        held.spend(0.5, 3)
        held.end(code, f"because of {name}", result=f"<b>{name}</b>")
    store.close()
    done = report()
    assert done.code == 0, done.stderr
    page = section / "ralph-report.html"
    assert done.stdout.splitlines() == [
        str(page),
        "set night: 1 failed, 1 open of 3 jobs; the worst: exit 1, The task failed",
    ]
    text = page.read_text()
    assert MARK_OF_PAGE in page.read_bytes()[:2048]
    assert "because of bad" in text
    assert ">west<" in text
    assert re.search(r"<b>\$1\.00</b> of \$5\b", text)
    assert "need the same --db" not in text
    other = report("night", "-o", "-", "--db", f"sqlite:///{database.file}")
    assert other.code == 0, other.stderr
    assert "need the same --db" in other.stdout
    wrong = report("nigth")
    assert wrong.code == 2
    assert "there is no set nigth" in wrong.stderr
