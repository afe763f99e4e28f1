"""The tables and examples in docs/ must agree with the code."""

from __future__ import annotations

import itertools
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ralph.api.error_body import stream_error
from ralph.cli.command_line import with_command
from ralph.cli.sessions import list_
from ralph.cli.typer_command import HELP_OPTIONS, named_command
from ralph.loop.events import iteration_prompt
from ralph.loop.rules import MOST_IDLE
from ralph.loop.state import IterationRecord, LoopState
from ralph.loop.values import CheckResult, LoopLimits, LoopPlan
from ralph.output.narration import Narration
from ralph.output.stream_json import journal_fields, result_object, system_fields
from ralph.sessions.story import DAMAGED, EMPTY, KILLED, NEWER_FORMAT, NOT_DELIVERED, RUNNING, UNREADABLE
from ralph.values.answer import ToolCall
from ralph.values.errors import Api, ErrorClass, HttpError, NetworkCause, classify_error, failure_kind
from ralph.values.events import (
    AttemptEnded,
    ContextCompacted,
    DeadEnd,
    FinalTurnEntered,
    GuardTripped,
    MalformedCallRefused,
    ModelFallback,
    ModelFallbackRecovered,
    ModelFallbackSucceeded,
    ReportAccepted,
    ResponseDiscarded,
    RetryExhausted,
    RetryRecovered,
    RetryScheduled,
    RunEnded,
    SyntheticRetry,
    TurnAsked,
    TurnsCollapsed,
)
from ralph.values.outcome import Outcome
from ralph.values.report import Report, synthetic_report
from ralph.values.usage import ModelUsage, RunUsage, TokenUsage
from tests.agent_sdks import page as agent_sdk_page
from tests.rows import every_row
from tests.sandbox import sandbox_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.values.events import Event

DOCS = Path(__file__).parent.parent / "docs"
ROOT = DOCS.parent
PAGES = sorted(DOCS.rglob("*.md"))


def table(page: Path, first_header: str) -> list[list[str]]:
    """The cells of the table whose first column has this header."""
    rows: list[list[str]] = []
    inside = False
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(f"| {first_header} |"):
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside and not line.startswith("| ---"):
            rows.append(cells)
    assert rows, f"no table {first_header!r} in {page.name}"
    return rows


def documented_statuses() -> dict[int, tuple[str, str]]:
    """The error class and the failure kind of each status. Rows with "other" apply to the statuses that no other
    row names.
    """
    named: dict[int, tuple[str, str]] = {}
    others: dict[int, tuple[str, str]] = {}
    for status, error_class, kind in table(DOCS / "retry.md", "Status"):
        for part in status.split(", "):
            numbers = [int(number) for number in re.findall(r"\d+", part)]
            into = others if "other" in part else named
            into.update(dict.fromkeys(range(numbers[0], numbers[-1] + 1), (error_class, kind)))
    return others | named


def test_the_status_table_of_the_retry_page_is_what_classify_does() -> None:
    documented = documented_statuses()
    for status in range(300, 600):
        error = HttpError(status, None, "")
        assert documented[status] == (classify_error(error).value, failure_kind(error).value), status


def classes_of(header: str) -> list[list[str]]:
    """The rows of the table of the retry page that gives each class what is in it."""
    page = (DOCS / "retry.md").read_text()
    rows = page.split(f"| Class | {header} |\n| --- | --- |\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_stream_error_table_is_what_classify_does() -> None:
    for error_class, types in classes_of("error.type"):
        for error_type in re.findall(r"\w+_\w+", types):
            error = stream_error({"error": {"type": error_type, "message": "m"}})
            assert classify_error(error).value == error_class, error_type
    assert classify_error(stream_error({"error": {"message": "m"}})) is ErrorClass.TRANSIENT


def test_the_cause_table_is_what_classify_does() -> None:
    documented = {
        cause: error_class for error_class, causes in classes_of("Cause") for cause in causes.split(", ")
    }
    assert documented == {cause.value: classify_error(Api(cause)).value for cause in NetworkCause}


CHAIN_EVENTS: list[Event] = [
    RetryScheduled(1, 4, 2.0, 529, "HttpError", "overloaded", "Overloaded"),
    RetryRecovered(1, 2.0),
    RetryExhausted(1, 2.0, "Overloaded"),
    ModelFallback("main", "spare", "overloaded", 1, 1),
    ModelFallbackSucceeded("spare", 1, 2),
    ModelFallbackRecovered("main", 2, 1),
    ResponseDiscarded("msg_1"),
]
JOURNAL_EVENTS: list[Event] = [
    AttemptEnded(1, 1, "main", "claude-opus-5-5", 0.5, TokenUsage()),
    TurnAsked(1, 1, 0.5),
]


@every_row(
    ("header", "events", "fields_of"),
    [("Event", CHAIN_EVENTS, system_fields), ("Record", JOURNAL_EVENTS, journal_fields)],
)
def test_the_event_tables_of_the_retry_page_list_the_fields_that_are_written(
    header, events, fields_of
) -> None:
    written = {}
    for event in events:
        fields = fields_of(event)
        written[fields["subtype"]] = set(fields) - {"subtype"}
    documented = {
        name.strip("`"): set(fields.strip("`").split())
        for name, fields, _ in table(DOCS / "retry.md", header)
    }
    assert documented == written


BUSH = "There is no tool 'Bush'. The tools are: Bash."
TURN_EVENTS: list[Event] = [
    SyntheticRetry(1, 1, "thinking_only"),
    MalformedCallRefused(1, "Bush", BUSH),
    GuardTripped(1, "repetition", ToolCall("a", "Bash", {"command": "make test"}), 1),
    FinalTurnEntered(1, "max_turns"),
    TurnsCollapsed(4, "report_failed", 30, 5),
    ReportAccepted("tool_call", "success", 1, 1),
    ContextCompacted("threshold", "model", 160_400, 9_120),
]


def test_the_event_table_of_the_page_of_turns_has_the_fields_and_the_lines_that_are_written() -> None:
    narration = Narration(is_quiet=False, has_color=False)
    written = {}
    for event in TURN_EVENTS:
        fields = system_fields(event)
        assert fields is not None
        inner = [name for value in fields.values() if isinstance(value, dict) for name in value]
        names = {*fields, *(inner if "compact_metadata" in fields else ())} - {"subtype"}
        written[fields["subtype"]] = (names, *narration.lines(event))
    documented = {
        name.strip("`"): (set(re.findall(r"\w+", fields)), line.strip("`"))
        for name, fields, line in table(DOCS / "turns.md", "Event")
    }
    assert documented == written


def test_the_table_of_the_result_lists_its_fields_and_those_within() -> None:
    """The fields must be listed in the order in which they are written."""
    everything = RunEnded(
        outcome=Outcome.API_UNAVAILABLE,
        exit_code=75,
        result="x",
        errors=("x",),
        stop_reason=None,
        num_turns=1,
        duration_s=1,
        api_s=1,
        usage=RunUsage(by_model={"m": ModelUsage(TokenUsage(), None, None)}),
        api_error_status=529,
        retry_after_s=1,
        is_short=True,
        hints=("x",),
        notices=("x",),
        report=Report("success", "x", {"a": 1}, "tool_call"),
        dead_end=DeadEnd("cycle", ToolCall("a", "Bash", {}), "x"),
        background_stopped=1,
        sandbox="landlock",
    )
    fields = result_object(everything, "session")
    rows = {name.strip("`"): what for name, what in table(DOCS / "output.md", "Field")}
    assert list(rows) == [*fields, "dropped_events", "uuid"]  # the last two are the writer's
    never_sent = synthetic_report(
        reason="max_turns", turns=1, turns_completed=1, attempts=0, last_stop_reason=None, last_error=None
    )
    within = {
        "usage": fields["usage"],
        "modelUsage": fields["modelUsage"]["m"],
        "guard": fields["guard"],
        "final_report": never_sent.as_object(),
    }
    for name, inner in within.items():
        assert [key for key in inner if f"`{key}`" not in rows[name]] == [], name


@every_row("page", [DOCS / "output.md", DOCS / "loop.md"])
def test_exit_code_tables_name_real_outcomes(page: Path) -> None:
    for code, name, *_ in table(page, "Exit"):
        outcome = Outcome(name)
        if outcome is not Outcome.INTERRUPTED:
            assert outcome.exit_code() == int(code)


def test_the_page_of_the_loop_has_every_code_that_it_ends_with() -> None:
    """A loop never ends with the outcome of a failed task, because it begins another iteration then."""
    names = [name for _, name, *_ in table(DOCS / "loop.md", "Exit")]
    assert set(names) == {outcome.value for outcome in Outcome} - {Outcome.TASK_FAILED.value}


def iteration(outcome: Outcome) -> IterationRecord:
    """The record of an iteration with the placeholders of the page."""
    return IterationRecord(
        number=1,
        session_id="x",
        outcome=outcome,
        exit_code=outcome.exit_code(),
        turns=1,
        cost_usd=0.0,
        duration_s=1.0,
        commits=0,
        files=("{files}",),
        file_count=1,
        made_progress=True,
        check=None,
        reason="{reason}",
        last_words="{words}",
    )


def told_in_front(
    until: str | None = "{command}", gate: str | None = None, plan_named: str | None = None, **state: Any
) -> str:
    """The text in front of the user's prompt, with the placeholders of the page."""
    limits = LoopLimits(max_iterations=7)
    plan = LoopPlan("/x", "/x", until=until, gate=gate, plan=plan_named, limits=limits)
    prompt = iteration_prompt(LoopState(plan, "", 1, **state), "{prompt}")
    for value, placeholder in {
        r"`*\n{output}\n`*": "",
        r"\[ralph loop \d of 7\]": "[ralph loop {n} of {max}]",
        r"failed \(exit 2\)": "{failed}",
        r"limit_reached \(": "{outcome} (",
        r"> {words}": "",
    }.items():
        prompt = re.sub(value, placeholder, prompt)
    return prompt


FAILED = CheckResult(2, tail="{output}")
LOOP_STATES: list[dict[str, Any]] = [
    {"until": None},
    {"last_check": FAILED},
    {"last_check": FAILED, "iterations": (iteration(Outcome.COMPLETED),), "idle": MOST_IDLE},
    {"last_check": CheckResult(2), "iterations": (iteration(Outcome.TASK_FAILED),)},
    {"iterations": (iteration(Outcome.LIMIT_REACHED),)},
    {"until": None, "gate": "{command}", "last_gate": FAILED, "has_removed_stop_file": True},
    {"until": None, "plan_named": "{file}", "open_tasks": 3},
    {"gate": "{command}", "last_gate": CheckResult(0), "plan_named": "{file}", "open_tasks": 3},
]


def test_the_page_of_the_loop_has_what_prompts_are_told_word_for_word_and_nothing_else() -> None:
    rows = {
        words.replace("`[", "[").replace("}]`", "}]")
        for _, words in table(DOCS / "loop-reference.md", "When")
    }
    told = "\n\n".join(told_in_front(**state) for state in LOOP_STATES)
    paragraphs = {" ".join(paragraph.split()) for paragraph in told.split("\n\n")}
    assert paragraphs - {"", "---", "{prompt}"} == rows


CALL = re.compile(r"(?:^|(?<=\s))ralph (?:(?:loop|run|sessions|doctor|demo|mock-api)(?= |$)|-|\").*")
OPERATORS = set("<>|&;()")


def commands(page: Path) -> Iterator[tuple[str, ...]]:
    """The words of each call of `ralph` on the page, without redirections and other words for the shell."""
    text = page.read_text().replace("\\\n", " ")
    fenced = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(ralph [^`\n]+)`", text)
    for line in [*inline, *(line for block in fenced for line in block.splitlines())]:
        if (call := CALL.search(line)) is not None:
            lexer = shlex.shlex(call[0], posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            yield tuple(itertools.takewhile(lambda word: word[0] not in OPERATORS, lexer))


COMMANDS = sorted({call for page in [*DOCS.glob("loop*.md"), ROOT / "README.md"] for call in commands(page)})


@every_row("command", COMMANDS)
def test_the_command_lines_of_the_loops_pages_and_of_the_readme_are_read(command: tuple[str, ...]) -> None:
    """The command lines are only read, not run."""
    name, *words = with_command([*command[1:]])
    if name in {"-h", "--help", "--version"}:
        return
    with suppress(typer.Exit):  # of --help
        named_command(name).make_context(name, words, help_option_names=HELP_OPTIONS)


def test_there_are_command_lines_of_each_kind() -> None:
    assert {"-f", "--until", "--commit", "--push", "--status", "--continue"} <= {
        word for command in COMMANDS for word in command
    }


def test_every_page_that_the_docs_name_exists() -> None:
    for page in [ROOT / "README.md", *PAGES, *(ROOT / "specs").glob("*.md")]:
        for name in re.findall(r"`((?:docs|specs|ralph|tests|benchmarks)/[\w./-]+)`", page.read_text()):
            if "*" not in name:
                assert (ROOT / name).exists(), f"{page.name} names {name}"
        for link in links_of(page):
            name, _, section = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name} links {link}"
            assert not section or section in sections_of(target), f"{page.name} links {link}"


def links_of(page: Path) -> list[str]:
    """The targets of the links on a page, except links to other sites."""
    return re.findall(r"\]\((?!http)([^)]+)\)", page.read_text())


def sections_of(page: Path) -> set[str]:
    """The names of the sections of a page, in the form that links use after `#`."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_documentation_pages_stay_under_260_lines() -> None:
    for page in PAGES:
        assert len(page.read_text().splitlines()) < 260, page.name


HARD_TO_READ = re.compile(r"(Of|What|The same|Likewise|None:)(?!\w)")
"""Beginnings that leave a stranger guessing what is meant."""
HARD_TO_READ_DOCSTRING = re.compile(rf'^\s*"""\s*{HARD_TO_READ.pattern}', re.MULTILINE)


def test_no_page_begins_with_words_that_leave_one_guessing() -> None:
    for page in PAGES:
        paragraphs = page.read_text().split("\n\n")
        assert not HARD_TO_READ.match(paragraphs[1]), page.name


def test_no_docstring_begins_with_words_that_leave_one_guessing() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {docstring[0]}"
        for folder in ("ralph", "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for docstring in HARD_TO_READ_DOCSTRING.finditer(path.read_text())
    ]
    assert not found


def test_the_page_of_the_sandbox_is_made_from_the_probe() -> None:
    assert sandbox_table.PAGE.read_text() == sandbox_table.page(), "run what the page says in its first lines"


def test_the_page_about_the_agent_sdks_is_made_from_the_rows_that_they_try() -> None:
    assert agent_sdk_page.PAGE.read_text() == agent_sdk_page.page(), "run what the page says"


def test_the_index_names_every_page() -> None:
    index = DOCS / "README.md"
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links_of(index)}
    assert [page.name for page in PAGES if page != index and page not in linked] == []


def test_every_state_of_a_session_is_in_the_help_and_on_the_page() -> None:
    states = {RUNNING, KILLED, NOT_DELIVERED, DAMAGED, EMPTY, NEWER_FORMAT, UNREADABLE}
    shown = {"help": " ".join(str(list_.__doc__).split()), "page": (DOCS / "sessions.md").read_text()}
    assert {name: [state for state in states if state not in text] for name, text in shown.items()} == {
        "help": [],
        "page": [],
    }
