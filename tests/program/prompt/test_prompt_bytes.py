"""A prompt that is not UTF-8 ends a run before any money is spent, wherever it comes from."""

from __future__ import annotations

import pytest

from ralph.mock_api import Turn

LATIN_1 = "fix the caf\xe9\n".encode("latin-1")


@pytest.mark.parametrize("name", ["argument", "file", "standard input", "beside", "loop file", "loop input"])
def test_a_prompt_that_is_no_text_is_exit_2_and_says_which_byte(ralph, ralph_here, serve, name) -> None:
    server = serve(Turn("Hello."))
    (ralph.cwd / "PROMPT.md").write_bytes(LATIN_1)
    given: dict[str, tuple[list[str], bytes | None, str]] = {
        "argument": ([LATIN_1.decode("utf-8", "surrogateescape")], None, "the prompt"),
        "file": (["-f", "PROMPT.md"], None, "the prompt file "),
        "standard input": (["-p"], LATIN_1, "standard input"),
        "beside": (["review this"], LATIN_1, "standard input"),
        "loop file": (["loop", "-f", "PROMPT.md"], None, "the prompt file "),
        "loop input": (["loop", "-"], LATIN_1, "standard input"),
    }
    arguments, stdin, subject = given[name]
    ran = ralph_here(*arguments) if stdin is None else ralph(*arguments, stdin=stdin)
    assert (ran.code, ran.stdout, len(server.requests)) == (2, "", 0)
    assert "is not UTF-8 text: byte 12 (0xe9, in line 1)" in ran.last_line
    assert subject in ran.last_line
    assert "iconv" in ran.last_line


@pytest.mark.parametrize("option", ["--system-prompt", "--append-system-prompt"])
@pytest.mark.parametrize("command", [(), ("loop",)], ids=["run", "loop"])
def test_a_system_prompt_that_is_no_text_is_exit_2_and_says_which_byte(
    ralph_here, ralph, serve, command, option
) -> None:
    server = serve(Turn("Hello."))
    file = ralph.cwd / "style.md"
    file.write_bytes(LATIN_1)
    for given in ([option, LATIN_1.decode("utf-8", "surrogateescape")], [f"{option}-file", str(file)]):
        ran = ralph_here(*command, "go", *given)
        assert (ran.code, ran.stdout, server.request_count) == (2, "", 0)
        assert given[0] in ran.last_line
        assert "is not UTF-8 text: byte 12 (0xe9, in line 1)" in ran.last_line


def test_a_loop_s_prompt_that_breaks_says_what_it_said_before(ralph, iterations) -> None:
    (ralph.cwd / "PROMPT.md").write_text("do the task")

    def broken() -> Turn:
        (ralph.cwd / "PROMPT.md").write_bytes(b"do \0")
        return Turn("Broken.")

    server = iterations([broken], [Turn("And on.")])
    ran = ralph("loop", "-f", "PROMPT.md", "--max-iterations", "2", code=0)
    assert "PROMPT.md is not UTF-8 text: byte 4 (0x00, in line 1)" in ran.stderr
    prompts = [str(request.json()["messages"][0]["content"]) for request in server.requests]
    assert len(prompts) == 2
    assert all("do the task" in prompt for prompt in prompts)
