"""Makes the man page `docs/ralph.1` from the tables of commands, options and settings. `make generated` writes the file;
`tests/test_man_page.py` compares it. The macros are those of man(7), which every man program knows.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING

from benchmarks.commands import commands
from benchmarks.settings_page import value_in_a_file
from ralph import __version__
from ralph.settings.tables import ALL_KEYS, KEYS
from ralph.values.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.commands import ShownCommand

PAGE = Path(__file__).parent.parent / "docs" / "ralph.1"
_DATE = "2026-11-29"
"""The day of the version. The page must not change without a change of the tables."""
_WRAPPER = TextWrapper(width=79, break_long_words=False, break_on_hyphens=False)

_DESCRIPTION = """\
ralph runs a language-model agent in a working directory with nobody watching: in a shell loop, in a CI job, or as one
command. It survives API failures, it never hangs, and it never reports a failure as success.

`ralph "fix the failing test"` is short for `ralph run "fix the failing test"`. A prompt is an argument, a file (-f) or
standard input. Standard output holds only the answer. Progress goes to standard error."""

_EXITS = {
    Outcome.COMPLETED: "The model ended its work, and nothing is pending.",
    Outcome.TASK_FAILED: "The final report says failure, or never came.",
    Outcome.USAGE: "The command line is wrong, or the prompt is empty.",
    Outcome.LIMIT_REACHED: "Turns, budget or context are used up. The session can be resumed.",
    Outcome.NO_PROGRESS: "The model refused, went in circles, or gave only empty answers.",
    Outcome.API_REJECTED: "The API rejected the request for good.",
    Outcome.INTERNAL_ERROR: "A bug in ralph.",
    Outcome.IO_ERROR: "A file that is needed cannot be read or written.",
    Outcome.API_UNAVAILABLE: "The API did not come back in time. Wait, then resume the session.",
    Outcome.AUTH: "The key or the account is not accepted.",
    Outcome.CONFIG: "The settings are wrong, or there is no key.",
    Outcome.TIMED_OUT: "The time limit (--max-time) is used up.",
    Outcome.INTERRUPTED: "Signal n ended ralph: 129 SIGHUP, 130 SIGINT, 143 SIGTERM.",
}

_VARIABLES = {
    "ANTHROPIC_API_KEY": "The key for the API.",
    "ANTHROPIC_AUTH_TOKEN": "A bearer token in place of the key.",
    "ANTHROPIC_CUSTOM_HEADERS": "Further headers for the API, one per line.",
    "HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY": "The proxy for the API and for MCP servers, and what needs none.",
    "NODE_EXTRA_CA_CERTS, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_DIR": "Further certificate authorities, unless "
    "model.ca_file is set.",
    "RALPH_STATE_DIR": "The directory for sessions and loops, in place of the user's state directory.",
    "RALPH_FLEET_DB": "The store of ralph fleet, in place of the SQLite file in the state directory.",
    "RALPH_TURN_LOCK": "A file on which ralph holds a shared lock while it changes files.",
    "RALPH_SANDBOX_READ": "Paths, separated by colons, that commands may read in addition to sandbox.read.",
    "RALPH_SANDBOX_HIDE": "Paths, separated by colons, that commands and tools must not read, but for the work in them.",
    "NO_COLOR": "If it is set, no color is used.",
}
"""Variables that belong to no setting."""

_FILES = {
    "~/.config/ralph/config.toml": "The user's settings.",
    "ralph.toml": "Settings of a repository. They can only restrict a run.",
    "~/.local/state/ralph/": "Sessions and the records of loops.",
    "CLAUDE.md, AGENTS.md": "Instructions for the model, in the working directory.",
    ".ralph/stop": "Ends a loop after its current iteration.",
}
_EXAMPLES = {
    'ralph "fix the failing test"': "Does one task.",
    "git diff | ralph -p 'review this change'": "Adds piped data below the prompt.",
    "ralph -c": "Resumes the last session of this directory.",
    "ralph loop -f PROMPT.md --gate 'make test' --plan PLAN.md --commit --max-iterations 20": "Repeats a task until a plan is done.",
    "ralph doctor": "Shows what is set and what works.",
}


def page() -> str:
    """The man page."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    shown = commands()
    yield '.\\" Made by benchmarks/man_page.py from the tables of commands, options and settings. Do not edit.'
    yield f'.TH RALPH 1 {_DATE} "ralph {__version__}" "User Commands"'
    yield from (".SH NAME", "ralph \\- run a language-model agent with nobody watching", ".SH SYNOPSIS")
    yield from _synopsis(shown)
    yield from (".SH DESCRIPTION", *_paragraphs(_DESCRIPTION))
    for command in shown:
        if not command.is_group:
            yield f".SH {_quoted(f'RALPH {command.name}'.upper())}"
            yield from _command(command)
    yield ".SH SETTINGS"
    yield from _paragraphs(
        "Flags win over environment variables, and these over files. A settings file is TOML; model.name is the key "
        "name in the table [model]. A file in the working directory may only set what is marked so."
    )
    for key in KEYS:
        places = ", ".join(key.places)
        default = value_in_a_file(key.default)
        rule = f"In a repository: {key.in_repository.says}. " if key.in_repository else ""
        also = f"Also: {places}." if places else ""
        yield from _entry(key.name, f"{_plain(key.meaning)}. Default: {default}. {rule}{also}".strip())
    yield ".SH ENVIRONMENT"
    of_settings = {key.variable: f"Sets {key.name}." for key in ALL_KEYS if key.variable}
    for name, text in sorted({**of_settings, **_VARIABLES}.items()):
        yield from _entry(name, text)
    for title, rows in (
        ("FILES", _FILES),
        ("EXIT STATUS", {_exit(outcome): f"{outcome.value}: {_EXITS[outcome]}" for outcome in Outcome}),
        ("EXAMPLES", _EXAMPLES),
    ):
        yield f".SH {_quoted(title)}"
        for name, text in rows.items():
            yield from _entry(name, text)
    yield from (".SH SEE ALSO", ".BR git (1),", ".BR bwrap (1)")


def _synopsis(shown: Sequence[ShownCommand]) -> Iterator[str]:
    for command in shown:
        if command.is_group:
            continue
        words = " ".join(command.command.collect_usage_pieces(command.context))
        if command is not shown[0]:
            yield ".br"
        yield f".B {_escaped(f'ralph {command.name}')}"
        yield _escaped(words)


def _command(command: ShownCommand) -> Iterator[str]:
    yield from _paragraphs(inspect.cleandoc(command.command.help or ""))
    own = command.own_parameters
    for one in own:
        yield from _entry(*one.get_help_record(command.context))
    others = sorted(max(one.opts, key=len) for one in command.parameters if one not in own)
    if others:
        yield '.SS "Options of ralph run, for each iteration"'
        yield from _text(", ".join(others) + ".")


def _exit(outcome: Outcome) -> str:
    return "128+n" if outcome is Outcome.INTERRUPTED else str(outcome.exit_code())


def _entry(name: str, text: str) -> Iterator[str]:
    yield from (".TP", f".B {_escaped(name)}", *_text(text))


def _paragraphs(text: str) -> Iterator[str]:
    for at, paragraph in enumerate(text.strip().split("\n\n")):
        if at:
            yield ".PP"
        yield from _text(_plain(paragraph.replace("\b", "")))


def _text(text: str) -> list[str]:
    return [f"\\&{line}" if line.startswith(".") else line for line in _WRAPPER.wrap(_escaped(text))]


def _plain(text: str) -> str:
    """A text without the marks of Markdown."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "")


def _quoted(text: str) -> str:
    return '"' + _escaped(text) + '"'


def _escaped(text: str) -> str:
    """The text as roff shows it literally. A dash is one that can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return escaped.replace("`", "\\(ga").replace("'", "\\(aq").replace('"', "\\(dq").replace("…", "...")


if __name__ == "__main__":
    PAGE.write_text(page())
