"""Files that a prompt names by `@path`, in whole runs: from each source of a prompt, and under the rules of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.driven.driver_lines import user
from tests.program.conftest import first_prompt
from tests.program.model_answers import DONE, calls, told_texts
from tests.program.prompt.test_commands import OUTPUT, journal, notices, write
from tests.tools.image_files import png

TEXT = "Study @docs/plan.md, then go."
ADDED = f"{TEXT}\n\nContents of docs/plan.md:\n\n     1\tStep one."


@pytest.fixture
def plan(ralph) -> Path:
    return write(ralph.cwd / "docs/plan.md", "Step one.\n")


@pytest.mark.parametrize("source", ["argument", "file", "pipe", "driver", "resumed"])
def test_a_file_that_a_prompt_names_stands_below_it(ralph, serve, plan, source: str) -> None:
    server = serve(DONE, DONE)
    write(ralph.cwd / "PROMPT.md", TEXT)
    if source == "resumed":
        assert ralph("Begin.").code == 0
    options, stdin = {
        "argument": (["-p", TEXT], None),
        "file": (["-f", "PROMPT.md"], None),
        "pipe": (["-p"], TEXT.encode()),
        "driver": (["--input-format", "stream-json"], user(TEXT)),
        "resumed": (["--continue", TEXT], None),
    }[source]
    ran = ralph(*options, *OUTPUT, stdin=stdin, code=0)
    assert told_texts(server) == [ADDED]
    told = [one for one in ran.objects if one.get("subtype") in {"prompt_call", "prompt_result"}]
    assert [(one["command"], one["tool"], one["argument"]) for one in told] == [("", "Read", str(plan))] * 2
    assert f"[prompt] Read {plan}" in ran.stderr.splitlines()
    assert [one["kind"] for one in journal(ralph)].count("user") == (2 if source == "resumed" else 1)


def test_each_iteration_of_a_loop_gets_the_file_as_it_is_then(ralph, serve, plan) -> None:
    edit = {"file_path": "docs/plan.md", "old_string": "one", "new_string": "two"}
    server = serve(calls(("Edit", edit)), DONE, DONE)
    write(ralph.cwd / "PROMPT.md", TEXT)
    ralph("loop", "-f", "PROMPT.md", "--max-iterations", "2", code=0)
    prompts = [first_prompt(server.requests[index]) for index in (0, 2)]
    assert [prompt.partition("\n\n---\n\n")[2] for prompt in prompts] == [ADDED, ADDED.replace("one", "two")]


@pytest.mark.parametrize("source", ["argument", "file"])
def test_piped_data_below_a_prompt_names_no_file_and_is_no_argument(ralph, serve, plan, source: str) -> None:
    server = serve(DONE, DONE)
    write(ralph.cwd / ".claude/commands/fix.md", "Fix $ARGUMENTS.")
    for text, expected in (("See @this:", "See @this:"), ("/fix it", "Fix it.")):
        write(ralph.cwd / "PROMPT.md", text)
        options = ["-p", text] if source == "argument" else ["-f", "PROMPT.md"]
        ralph(*options, stdin=TEXT.encode(), code=0)
        assert first_prompt(server.requests[-1]) == f"{expected}\n\n{TEXT}"


def test_what_is_no_file_stays_text(ralph, serve, plan) -> None:
    text = "Ask @someone (me@x.org) of @types/node, `@docs/plan.md`, @gone.md and @docs/."
    server = serve(DONE)
    ran = ralph(text, *OUTPUT, code=0)
    assert first_prompt(server.requests[0]) == text
    said = "\n".join(notices(ran))
    assert "the prompt names @gone.md, which is not a file" in said
    assert (
        "the prompt names @docs/, which is a directory: ralph added none of its files to the prompt" in said
    )
    assert "@someone" not in said
    assert "@types" not in said


def test_marks_after_a_path_are_not_part_of_it(ralph, serve, plan) -> None:
    server = serve(DONE)
    (ralph.cwd / "b c.md").write_text("B.")
    text = "@docs/plan.md: **see** [it @docs/plan.md] and @b\\ c.md?!"
    assert ralph(text).code == 0
    assert first_prompt(server.requests[0]) == (
        f"{text}\n\nContents of docs/plan.md:\n\n     1\tStep one.\n\nContents of b c.md:\n\n     1\tB."
    )


def test_a_file_that_may_not_be_read_stays_out_and_is_named(ralph, serve, plan) -> None:
    server = serve(DONE, DONE, DONE)
    key = write(Path(ralph.environment["HOME"], ".ssh/id"), "canary-5d0c")
    (ralph.cwd / "link").symlink_to(key)
    write(ralph.cwd / "private/a.md", "canary-5d0c")
    settings = json.dumps({"permissions": {"deny": ["Read(./private/**)"]}})
    ran = ralph(f"See @{key}, @link and @private/a.md", "--settings", settings, *OUTPUT, code=0)
    assert "canary-5d0c" not in str(server.requests[0].body)
    said = [text for text in notices(ran) if "which is not in the prompt: " in text]
    assert [text.split()[3] for text in said] == [f"@{key},", "@link,", "@private/a.md,"]
    hook = {"type": "command", "command": "echo not this one >&2; exit 2"}
    settings = json.dumps({"hooks": {"PreToolUse": [{"matcher": "Read", "hooks": [hook]}]}})
    ran = ralph(TEXT, "--settings", settings, *OUTPUT)
    assert first_prompt(server.requests[1]) == TEXT
    assert any(
        "@docs/plan.md, which is not in the prompt: " in one and "not this one" in one for one in notices(ran)
    )
    assert ralph(TEXT, "--tools", "Bash").code == 0
    assert first_prompt(server.requests[2]) == TEXT


def test_a_prompt_has_one_megabyte_of_files_at_most(ralph, serve) -> None:
    server = serve(DONE)
    for name in "abcde":
        write(ralph.cwd / f"{name}.txt", ("x" * 150 + "\n") * 1900 if name != "e" else "short")
    ran = ralph("See @a.txt @b.txt @c.txt @d.txt @e.txt", *OUTPUT)
    prompt = first_prompt(server.requests[0])
    assert [name for name in "abcde" if f"Contents of {name}.txt:" in prompt] == ["a", "b", "c", "e"]
    why = "the files in a prompt exceed 1 MB in total"
    assert f"the prompt names @d.txt, which is not in the prompt: {why}" in notices(ran)


def test_an_image_is_an_image(ralph, serve) -> None:
    server = serve(DONE)
    (ralph.cwd / "a.png").write_bytes(png(2, 2))
    assert ralph("See @a.png").code == 0
    content: Any = json.loads(server.requests[0].body)["messages"][0]["content"]
    assert [block["type"] for block in content] == ["text", "image"]
    assert content[0]["text"] == "See @a.png"
