"""Files whose content goes to the API, and files that ralph writes. ralph judges the file that it opened, whoever
put a link there.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ralph.mock_api import Turn
from tests.conftest import may_pass_over_permissions
from tests.driven.driver_lines import user
from tests.patience import PATIENCE_S
from tests.program.conftest import KEY, first_prompt, loop_lines
from tests.program.model_answers import bash, write

# The environment of ralph, which is not dumpable, only root may open.
KERNELS_FILE = "/proc/self/environ" if may_pass_over_permissions() else "/proc/self/status"
CANARY = "canary-8c3e51"
PASSWORD = "correct/horse battery"


def sent(server: Any) -> str:
    return b"\n".join(request.body for request in server.requests).decode()


def journals(ralph: Any) -> str:
    return "\n".join(path.read_text() for path in Path(ralph.environment["HOME"]).rglob("*.jsonl"))


def forms(secret: str) -> str:
    """The secret in the forms in which people and programs write it."""
    encoded = base64.b64encode(secret.encode()).decode()
    return "\n".join(
        [secret, json.dumps(secret), quote(secret, safe=""), encoded, f"{encoded[:16]}\n{encoded[16:]}"]
    )


def remains(text: str, secret: str) -> list[str]:
    shapes = (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode()[:16])
    return [shape for shape in shapes if shape in text]


@pytest.fixture
def outside(ralph: Any) -> Path:
    """Makes a file with a secret in the home directory, outside the repository, and returns its path. Also makes the
    working directory a repository whose settings contain the same secret.
    """
    subprocess.run(["git", "init", "-q", ralph.cwd], check=True, env=ralph.environment)
    with (ralph.cwd / ".git/config").open("a") as config:
        config.write(f'[remote "origin"]\n\turl = https://x:{CANARY}@example.com\n')
        config.write("[user]\n\tname = x\n\temail = x@example.com\n")
    place = Path(ralph.environment["HOME"], ".ssh")
    place.mkdir()
    (place / "id").write_text(f"{CANARY}\n")
    return place / "id"


def test_instructions_come_from_the_repository_and_nowhere_else_exits_0(
    ralph, serve, outside, tmp_path
) -> None:
    """A link that leads out of the repository, to files of the kernel or into `.git` is left out and named. A link
    that stays inside is followed.
    """
    deep = ralph.cwd / "a/b/c"
    deep.mkdir(parents=True)
    (ralph.cwd / "AGENTS.md").symlink_to(KERNELS_FILE)
    (ralph.cwd / "a/CLAUDE.md").symlink_to(outside)
    (ralph.cwd / "a/AGENTS.md").write_text("rule of a")
    (ralph.cwd / "a/b/AGENTS.md").symlink_to("../../.git/config")
    (ralph.cwd / "docs").mkdir()
    (ralph.cwd / "docs/rules.md").write_text("rule of docs")
    (deep / "CLAUDE.md").symlink_to("../../../docs/rules.md")
    (tmp_path / "CLAUDE.md").write_text(f"above {CANARY}")
    server = serve(Turn("Done."))
    ran = ralph("go", "-C", str(deep), code=0)
    everything = sent(server) + journals(ralph)
    assert "rule of a" in everything
    assert "rule of docs" in everything
    for secret in (CANARY, KEY, "ANTHROPIC_API_KEY"):
        assert secret not in everything
    third, second, first = [line for line in ran.stderr.splitlines() if " is left out: " in line]
    assert f"{ralph.cwd}/AGENTS.md is left out: it is /proc/" in first
    why = f"it is {outside}, which is outside the repository"
    assert f"{ralph.cwd}/a/CLAUDE.md is left out: {why}" in second
    assert "git's own" in third


def test_a_home_that_is_the_repository_gives_no_key_by_a_link_inside_of_it_exits_0(
    ralph, serve, outside
) -> None:
    home = outside.parent.parent
    (home / "CLAUDE.md").symlink_to(".ssh/id")
    server = serve(Turn("Done."))
    ran = ralph("go", "-C", str(home), code=0)
    assert CANARY not in sent(server) + journals(ralph)
    assert f"{home}/CLAUDE.md is left out: it leads to {outside}: {home}/.ssh holds SSH keys" in ran.stderr


PLANTED = {"a file of the kernel": KERNELS_FILE, "a key": "home", "git's settings": ".git/config"}
OPTIONS = ("--prompt-file", "--system-prompt-file", "--append-system-prompt-file", "--json-schema")


@pytest.mark.parametrize("leads_to", PLANTED.values(), ids=PLANTED)
def test_a_planted_link_is_refused_wherever_a_file_is_named_exits_2(
    ralph, ralph_here, outside, leads_to
) -> None:
    """Links in a directory of the path are refused too, also with --cd."""
    target = str(outside) if leads_to == "home" else leads_to
    (ralph.cwd / "file.md").symlink_to(target)
    (ralph.cwd / "way").symlink_to(Path(target).parent if Path(target).is_absolute() else ".git")
    names = ("file.md", f"way/{Path(target).name}")
    for option in OPTIONS:
        for name in names:
            prompt = () if option == "--prompt-file" else ("go",)
            ran = ralph_here(*prompt, option, name, "--base-url", "http://127.0.0.1:9", code=2)
            [line] = ran.stderr.splitlines()
            assert name in line
            assert "link" in line or "it is a kernel file" in line
            assert KEY not in line
            assert CANARY not in line


def test_the_kernels_files_are_refused_by_their_own_name_and_through_standard_input_exits_2(
    ralph, ralph_here
) -> None:
    ralph.environment["ANTHROPIC_BASE_URL"] = "http://127.0.0.1:9"
    for option in OPTIONS:
        prompt = () if option == "--prompt-file" else ("go",)
        ran = ralph_here(*prompt, option, KERNELS_FILE, code=2)
        assert "it is a kernel file" in ran.stderr
    with Path(KERNELS_FILE).open("rb") as made_up:
        for arguments in ((), ("-f", "/dev/stdin")):
            process = ralph.start(*arguments, stdin=made_up)
            ran = ralph.finish(process)
            assert (ran.code, "it is a kernel file" in ran.stderr) == (2, True), ran.stderr


def test_what_the_user_names_is_read_a_pipe_and_a_file_elsewhere_too_exits_0(ralph, serve, outside) -> None:
    """The user's own links outside the repository, and links that stay inside it, are followed."""
    home = outside.parent.parent
    (home / "task.md").write_text("of the home")
    (home / "link.md").symlink_to("task.md")
    (ralph.cwd / "task.md").write_text("of the work")
    (ralph.cwd / "link.md").symlink_to("task.md")
    (home / "work").symlink_to(ralph.cwd)
    server = serve(*(Turn("Done.") for _ in range(8)))
    for named in (home / "link.md", home / "work/link.md", outside):
        assert ralph("-f", str(named)).code == 0
        assert first_prompt(server.requests[-1]) == Path(named).read_text() if named is outside else True
    assert [first_prompt(request).strip() for request in server.requests] == [
        *("of the home", "of the work", CANARY)
    ]
    command = f"{sys.executable} -m ralph -f <(echo substituted) --append-system-prompt-file <(echo appended)"
    ran = subprocess.run(
        ["bash", "-c", command], cwd=ralph.cwd, env=ralph.environment, check=False, timeout=PATIENCE_S
    )
    assert ran.returncode == 0
    assert first_prompt(server.requests[-1]) == "substituted\n"
    assert "appended" in server.requests[-1].body.decode()
    for arguments in (("-f", "/dev/stdin"), ("-f", "/dev/fd/0")):
        assert ralph(*arguments, stdin=b"piped").code == 0
        assert first_prompt(server.requests[-1]) == "piped"


def test_known_credentials_are_cut_out_of_every_word_for_the_api_exits_0(ralph, serve) -> None:
    ralph.environment["DATABASE_PASSWORD"] = PASSWORD
    both = f"{forms(KEY)}\n{forms(PASSWORD)}"
    (ralph.cwd / "CLAUDE.md").write_text(f"instructions {both}")
    (ralph.cwd / "prompt.md").write_text(f"prompt file {both}")
    (ralph.cwd / "system.md").write_text(f"system {both}")
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": f"schema {both}"}}}
    (ralph.cwd / "schema.json").write_text(json.dumps(schema))
    server = serve(*(Turn("Done.") for _ in range(20)))
    ralph(
        "-f", "prompt.md", "--append-system-prompt-file", "system.md", stdin=f"piped {both}".encode(), code=0
    )
    words = ("--system-prompt", f"replaced {both}", "--json-schema", "schema.json", "--max-turns", "1")
    ralph(f"argument {both}", *words)
    options = ("--input-format", "stream-json", "--output-format", "stream-json")
    assert ralph(*options, stdin=user(f"message {both}")).code == 0
    everything = sent(server)
    given = ("instructions", "prompt file", "system", "piped", "argument", "replaced", "schema", "message")
    for word in given:
        assert f"{word} [redacted]" in everything, word
    for text in (everything, journals(ralph)):
        assert [remains(text, secret) for secret in (KEY, PASSWORD)] == [[], []]


def test_a_prompt_file_that_an_iteration_makes_a_link_says_what_it_said_before_exits_0(
    ralph, iterations, outside
) -> None:
    prompt = ralph.cwd / "PROMPT.md"
    prompt.write_text(f"the task, and a pasted {KEY}\n")
    server = iterations(
        [bash(f"ln -sf {KERNELS_FILE} PROMPT.md; echo 1 > one")],
        [bash(f"ln -sf {outside} PROMPT.md; echo 2 > two")],
        [write("three", "3\n")],
    )
    ran = ralph("loop", "-f", "PROMPT.md", "--max-iterations", "3", code=0)
    prompts = {first_prompt(request) for request in server.requests}
    assert len(prompts) == 3
    assert all("the task, and a pasted [redacted]" in prompt for prompt in prompts)
    kept = "\n".join(path.read_text() for path in (ralph.cwd / ".ralph").iterdir())
    for text in (sent(server), journals(ralph), ran.stderr, kept):
        assert KEY not in text
        assert CANARY not in text
    warned = [line for line in loop_lines(ran) if "the iteration gets its earlier content" in line]
    assert len(warned) == 2
    assert "it is a kernel file" in warned[0]
    assert "is a link that leads out of" in warned[1]
    assert prompt.is_symlink()


SOURCES = ("--add-dir", "additionalDirectories", "sandbox.write")


@pytest.fixture(params=SOURCES)
def extra(request, ralph: Any, tmp_path: Path) -> tuple[Path, tuple[str, ...]]:
    """A directory besides the working directory that commands may write, and the options that say so."""
    place = tmp_path / "extra"
    (place / "sub").mkdir(parents=True)
    if request.param == "--add-dir":
        return place, ("--add-dir", str(place))
    if request.param == "sandbox.write":
        ralph.user_file.write_text(f"[sandbox]\nwrite = ['{place}']\n")
        return place, ()
    own = Path(ralph.environment["HOME"], ".claude/settings.json")
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"permissions": {"additionalDirectories": [str(place)]}}))
    return place, ()


def test_a_prompt_file_elsewhere_that_an_iteration_makes_a_link_says_what_it_said_before_exits_0(
    ralph, iterations, outside, extra
) -> None:
    place, words = extra
    prompt = ("-f", str(place / "PR.md"))
    (place / "PR.md").write_text("the task")
    outside.write_text(f"- [x] {CANARY}\n")
    server = iterations([bash(f"ln -sf {outside} {place}/PR.md; echo 1 > one")], [write("two", "2")])
    ran = ralph("loop", *prompt, "--max-iterations", "2", *words, code=0)
    assert all("the task" in first_prompt(request) for request in server.requests)
    asked = len(server.requests)
    again = ralph("loop", *prompt, "--max-iterations", "1", *words, code=2)
    planned = ralph("loop", "go", "--plan", prompt[1], "--max-iterations", "1", *words)
    assert planned.code != 0, "a plan that cannot be read is not done"
    assert len(server.requests) == asked
    for one in (ran, again, planned):
        assert f"{place}/PR.md is a link that leads out of its repository" in one.stderr
    for text in (sent(server), journals(ralph), ran.stderr, planned.stderr):
        assert CANARY not in text


@pytest.mark.parametrize(
    ("extra", "option"),
    [*zip(SOURCES, ("--config", "--settings", "--mcp-config"), strict=True)],
    indirect=["extra"],
)
def test_a_settings_file_is_not_read_behind_a_link_that_a_command_can_make_exits_2(
    ralph, ralph_here, serve, tmp_path, extra, option
) -> None:
    place, words = extra
    there = tmp_path / "there"
    there.write_text("" if option == "--config" else "{}" if option == "--settings" else '{"mcpServers": {}}')
    server = serve(Turn("Done."), Turn("Done."), Turn("Done."))
    for link in (place / "file", ralph.cwd / "file"):
        link.symlink_to(there)
        for command in ((), ("loop", "--max-iterations", "1")):
            ran = ralph_here(*command, "go", option, str(link), *words, code=2)
            assert f"cannot read {link}: {link} is a link that leads out of its repository" in ran.stderr
        link.unlink()
        link.write_bytes(there.read_bytes())
    assert not server.requests
    mine = tmp_path / "mine"
    mine.symlink_to(there)
    assert ralph("go", option, str(mine), *words).code == 0
    assert ralph("loop", "go", "--max-iterations", "1", option, str(mine), *words).code == 0


@pytest.mark.parametrize(
    ("extra", "option"),
    [*zip(SOURCES, ("--system-prompt-file", "--append-system-prompt-file", "--json-schema"), strict=True)],
    indirect=["extra"],
)
def test_a_file_elsewhere_that_a_command_makes_a_link_is_not_read_again_exits_2(
    ralph, serve, iterations, outside, extra, option
) -> None:
    place, words = extra
    outside.write_text(json.dumps({"type": "object", "description": CANARY}))
    file = place / "sub" / "file"
    file.write_text('{"type": "object"}')
    there = outside.with_name("file")
    there.write_bytes(outside.read_bytes())
    replaced = bash(f"cd {place} && rm -r sub && ln -s {there.parent} sub")
    server = iterations([replaced, write("one", "1")])
    ran = ralph("loop", "go", option, str(file), "--max-iterations", "2", *words, code=2)
    assert f"{place}/sub is a link that leads out of its repository" in ran.stderr
    again = serve(Turn("Done."))
    ran = ralph("go", option, str(file), *words, code=2)
    assert f"{place}/sub is a link that leads out of its repository" in ran.stderr
    assert CANARY not in sent(server)
    assert not again.requests


def test_files_of_a_directory_elsewhere_that_a_command_makes_a_link_are_not_written(
    ralph, serve, iterations, outside, extra
) -> None:
    place, words = extra
    home = outside.parent.parent
    replaced = bash(f"cd {place} && rm -r sub && ln -s {home} sub")
    for option, code in (("--result-file", 74), ("--metrics-file", 0)):
        serve(replaced, Turn("Done."))
        ran = ralph("go", option, str(place / "sub/f.made"), *words, code=code)
        assert f"{place}/sub is a link that leads out of its repository, to {home}" in ran.stderr
        (place / "sub").unlink()
        (place / "sub").mkdir()
    ralph.environment["GITHUB_STEP_SUMMARY"] = str(place / "sub/s.made")
    iterations([replaced])
    options = ("--report", str(place / "sub/r.made"), "--debug-file", str(place / "sub/d.made"))
    ran = ralph("loop", "go", *options, "--max-iterations", "2", *words)
    assert ran.stderr.count(f"{place}/sub is a link that leads out of its repository, to {home}") >= 2
    assert not [*home.rglob("*.made")]


def test_what_the_user_links_elsewhere_and_what_is_no_link_is_read_and_written_exits_0(
    ralph, serve, outside, extra, tmp_path
) -> None:
    place, words = extra
    server = serve(Turn("Done."))
    (tmp_path / "mine.md").symlink_to(place / "link.md")
    (place / "link.md").symlink_to("sub/real.md")
    (place / "sub/real.md").write_text("the task")
    (tmp_path / "system").symlink_to(outside)
    options = ("--append-system-prompt-file", str(tmp_path / "system"), "--result-file", str(place / "sub/r"))
    assert ralph("-f", str(tmp_path / "mine.md"), *options, *words).code == 0
    assert first_prompt(server.requests[0]) == "the task"
    assert CANARY in sent(server)
    assert (place / "sub/r").is_file()


@pytest.mark.parametrize("option", ["--result-file", "--metrics-file"])
def test_a_link_where_a_file_is_to_be_written_is_replaced_exits_0(ralph, serve, outside, option) -> None:
    home = outside.parent.parent
    mine = home / ".bashrc"
    mine.write_text("mine\n")
    (ralph.cwd / "own").mkdir()
    (ralph.cwd / "to-own").symlink_to("own")
    serve(*(Turn("Done.") for _ in range(4)))
    leads_to = {"out.json": mine, "new.json": home / "made", "device": "/dev/full", "to-own/x.json": mine}
    if option == "--metrics-file":  # written by the same function
        leads_to = {"new.json": home / "made"}
    for name, target in leads_to.items():
        (ralph.cwd / name).symlink_to(target)
        ralph("go", option, name, code=0)
        written = (ralph.cwd / name).read_text()
        assert not (ralph.cwd / name).is_symlink()
        assert ("ralph_run_exit_code" if option == "--metrics-file" else '"type":"result"') in written
    assert mine.read_text() == "mine\n"
    assert sorted(path.name for path in home.iterdir()) == [".bashrc", ".local", ".ssh"]


def test_a_directory_that_a_planted_link_leads_out_to_is_refused_exits_2(ralph, ralph_here, outside) -> None:
    home = outside.parent.parent
    (ralph.cwd / "out").symlink_to(home)
    (ralph.cwd / "deep").mkdir()
    for option in ("--result-file", "--metrics-file"):
        for arguments in ((f"{option}=out/x.json",), (f"{option}=deep/../out/x.json", "-C", "deep")):
            ran = ralph_here("go", *arguments, code=2)
            [line] = ran.stderr.splitlines()
            assert f"{ralph.cwd}/out is a link that leads out of its repository, to {home}" in line
    assert [path.name for path in home.iterdir()] == [".ssh"]


def test_a_directory_that_a_command_makes_a_link_keeps_what_it_leads_to_exits_74(
    ralph, serve, outside
) -> None:
    home = outside.parent.parent
    (home / "result.json").write_text("mine")
    (ralph.cwd / "out").mkdir()
    serve(bash(f"rmdir out && ln -s {home} out"), Turn("Done."))
    ran = ralph("go", "--result-file", "out/result.json", code=74)
    assert "is a link that leads out of its repository" in ran.stderr
    assert (home / "result.json").read_text() == "mine"


def test_system_links_and_pipes_still_take_the_result_exits_0(ralph, serve, tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    reading = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    serve(*(Turn("Done.") for _ in range(4)))
    ran = ralph("go", "--result-file", "/dev/fd/1")
    assert (ran.code, '"type":"result"' in ran.stdout) == (0, True)
    assert ralph("go", "--result-file", str(tmp_path / "fifo")).code == 0
    assert b'"type":"result"' in os.read(reading, 65536)
    os.close(reading)
    assert ralph("go", "--result-file", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


def test_a_planted_step_summary_is_not_followed_out_exits_0(ralph, iterations, outside) -> None:
    iterations([write("one", "1\n")])
    mine = outside.parent.parent / ".profile"
    mine.write_text("mine\n")
    (ralph.cwd / "summary.md").symlink_to(mine)
    ralph.environment["GITHUB_STEP_SUMMARY"] = str(ralph.cwd / "summary.md")
    ran = ralph("loop", "go", "--max-iterations", "1", code=0)
    assert "it is a link, which ralph does not follow" in ran.stderr
    assert mine.read_text() == "mine\n"
