"""`ralph report` after a real night: a loop with an outage, a fallback, a denied call and commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ralph.mock_api import Fault
from ralph.pages.command import find_subject, gather
from ralph.pages.content import MarkKind, StretchKind
from tests.program.conftest import in_turn
from tests.program.model_answers import bash
from tests.program.several import at, settings

if TYPE_CHECKING:
    from ralph.pages.content import PageContent, Section

OVERLOADED = Fault(status=529)
CHECK = "echo looked; test $(git rev-list --count HEAD) -ge 4"


def night_of(ralph) -> PageContent:
    subject = find_subject(None, ralph.cwd, ralph.environment, None)
    return gather(subject, ralph.environment, None).content


def test_the_page_of_a_night_has_its_outage_fallback_denial_checks_and_commits(
    ralph, checkout, iterations
) -> None:
    first = bash("echo 1 > done; git add done; git commit -qm 'the first <b>step</b>'")
    server = iterations(
        [
            in_turn(OVERLOADED, first),
            bash("rm -rf done"),
            bash("echo 2 > 'a b'; git add .; git commit -qm two"),
        ],
        [in_turn(OVERLOADED, OVERLOADED, bash("echo 3 > third"))],
    )
    path = settings(
        ralph,
        at("main", server.base_url, "claude-opus-5-5"),
        at("spare", server.base_url, "claude-sonnet-5-5"),
        policy="custom",
        base_delay_s=0.01,
        max_retries=0,
    )
    path.write_text(f"[loop]\noutage_waits_s = [0.3]\n{path.read_text()}")
    options = [
        "--config",
        str(path),
        "--disallowed-tools",
        "Bash(rm *)",
        "--commit",
        "--max-budget-usd",
        "5",
        "--report",
        "night.html",
    ]
    ran = ralph("loop", "do it all", "--until", CHECK, *options, code=0)
    (section,) = night_of(ralph).sections
    page = (ralph.cwd / "night.html").read_text()
    assert "the first &lt;b&gt;step&lt;/b&gt;" in page, "it was rewritten after the last iteration"
    assert "the page" not in ran.stderr
    assert checkout.git("status", "--porcelain") == "?? night.html", "it is no work of the loop"
    the_facts_are_there(section, ralph.cwd)
    the_timeline_is_in_order(section)


def the_facts_are_there(section: Section, directory: Path) -> None:
    assert (section.outcome, section.exit_code, section.is_problem, section.reason) == (
        "completed",
        0,
        False,
        "the check passes",
    )
    assert (section.title, section.task, section.budget_usd) == ("do it all", "do it all", 5.0)
    assert section.model == "claude-opus-5-5, claude-sonnet-5-5"
    assert [part.outcome for part in section.parts] == ["completed", "completed"]
    assert section.turns == sum(part.turns for part in section.parts)
    assert section.first_check is not None
    assert section.first_check.output == "looked"
    checks = [part.check for part in section.parts]
    assert [(one.words, one.output) for one in checks if one] == [
        ("failed (exit 1)", "looked"),
        ("passed", "looked"),
    ]

    commits = [(one.iteration, [file.path for file in one.files]) for one in section.commits]
    assert commits == [(1, ["done"]), (1, ["a b"]), (2, ["third"])]
    assert section.commits[0].subject == "the first <b>step</b>"
    assert section.commits[0].files[0].diff.endswith("+1")
    assert [part.commits for part in section.parts] == [2, 1]
    assert {(file.path, file.is_committed) for file in section.files} >= {("done", True), ("third", True)}
    counts = {one.name: one.number for one in section.counts}
    assert counts["denied calls"] == 1
    assert counts["waits of the loop"] == 1
    assert counts["fallbacks to another target"] >= 2
    assert section.resume_command is None
    assert Path(section.directory) == directory


def the_timeline_is_in_order(section: Section) -> None:
    marks = [[mark.kind for mark in part.marks] for part in section.parts]
    assert {MarkKind.FALLBACK, MarkKind.DENIAL, MarkKind.COMMIT, MarkKind.ENDED} <= {*marks[0]}
    assert MarkKind.FALLBACK in marks[1]
    (denial,) = [mark for mark in section.parts[0].marks if mark.kind is MarkKind.DENIAL]
    entries = {entry.id: entry for part in section.parts for entry in part.entries}
    assert denial.entry is not None
    assert entries[denial.entry].title == "Bash: rm -rf done"
    assert entries[denial.entry].is_error

    kinds = [{stretch.kind for stretch in part.stretches} for part in section.parts]
    assert {StretchKind.MODEL, StretchKind.TOOL, StretchKind.CHECK} <= kinds[0]
    assert StretchKind.OUTAGE in kinds[1]
    (outage,) = section.outages
    assert outage.ended_s - outage.began_s >= 0.3
    for part in section.parts:
        edges = [edge for one in part.stretches for edge in (one.began_s, one.ended_s)]
        assert edges == sorted(edges)
        assert part.began_s is not None
        assert part.ended_s is not None
        assert part.began_s <= edges[0]
        assert edges[-1] <= part.ended_s
