"""Plays the night and the recipes of docs/loop.md: real loops in real checkouts."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import Fault, Text, ToolUse, Turn
from ralph.retry.backoff import PATIENT_SCHEDULE_S
from ralph.values.screen_text import time_limit
from tests.patience import PATIENCE_S
from tests.processes.scripts import script
from tests.program.conftest import loop_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ralph.mock_api import Playable
    from tests.program.conftest import Ralph

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="the pages' check is `make test`")

DOCS = Path(__file__).parents[3] / "docs"
SETTINGS = """
[retry]
policy = "custom"
max_retries = 0

[loop]
outage_waits_s = [0.01]
"""
OUTAGES = 2
AWAY = Fault(status=529)
TICK = "sed -i 's/- \\[ ]/- [x]/' IMPLEMENTATION_PLAN.md"
MAKEFILE = "test:\n\t@grep -q fast app.py || { echo 'app.py: too slow'; exit 1; }\n"


def bash(command: str) -> Turn:
    return Turn([Text("On it."), ToolUse("Bash", {"command": command})])


def night() -> Iterator[Playable]:
    """The server's answers, one for each request."""
    yield bash("echo 'print(1)' > app.py && git add app.py && git commit -qm 'Read the file once'")
    yield Turn("It reads the file once.")
    yield bash("echo '# words' >> app.py && mv ../origin.git ../away.git")
    yield from [AWAY] * OUTAGES
    yield Turn("The words are counted.")
    for number in (3, 4, 5):
        yield bash("mv ../away.git ../origin.git") if number == 3 else bash("git log")
        yield Turn("Nothing is left to do.")
    yield bash("echo 'print(2) # fast' >> app.py")
    yield Turn("A table instead of a search.")


def git(*arguments: str, cwd: Path) -> None:
    who = ("-c", "user.name=Night", "-c", "user.email=night@example.com")
    subprocess.run(["git", *who, *arguments], cwd=cwd, check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.fixture
def project(ralph: Ralph) -> Ralph:
    """A checkout with a remote beside it, a check that fails, and a committer's name and address."""
    home = Path(ralph.environment["HOME"])
    (home / ".gitconfig").write_text("[user]\n\tname = Night\n\temail = night@example.com\n")
    (home / ".config" / "ralph").mkdir(parents=True)
    (home / ".config" / "ralph" / "config.toml").write_text(SETTINGS)
    work = ralph.cwd
    (work / "Makefile").write_text(MAKEFILE)
    (work / "PROMPT_build.md").write_text("Make it fast.")
    (work / "IMPLEMENTATION_PLAN.md").write_text("- [ ] Make it fast\n")
    git("init", "-q", "-b", "main", cwd=work)
    git("add", "--all", cwd=work)
    git("commit", "-qm", "Begin", cwd=work)
    git("clone", "-q", "--bare", ".", "../origin.git", cwd=work)
    git("remote", "add", "origin", "../origin.git", cwd=work)
    return ralph


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in this language, unchanged."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


# --- The night

ADAPTED = {
    r"session \w{8}": "session ID",
    r"\$[\d.]+": "USD",
    r"\d+ turns?\b": "N turns",
    r"until \d\d:\d\d:\d\d": "until TIME",
    r"waiting \S+ \((outage \d+(?: in a row)?)(, by the schedule loop.outage_waits_s)?\)": r"waiting (\1)",
    r"\b(\d+\.\d+s|\d+s|\d+m\d\ds|\d+h\d\dm)": "LONG",
    r"tries again: .*": "tries again: WHY",
}
"""The parts that the page shortens, as a real night would print them."""


def adapted(line: str) -> str:
    for pattern, placeholder in ADAPTED.items():
        line = re.sub(pattern, placeholder, line)
    return line


def night_lines() -> list[str]:
    """The loop's lines on the page, without the time of day in front of each."""
    told = [line for block in blocks("loop.md", "") for line in block.splitlines() if "[loop]" in line]
    assert all(re.match(r"\d\d:\d\d \[loop\] ", line) for line in told)
    return [line[len("22:00 ") :] for line in told]


def test_the_night_prints_the_lines_and_opens_the_prompt_after_a_failed_check_as_the_page_shows(
    project, serve
) -> None:
    server = serve(*night())
    [command] = [
        block
        for block in blocks("loop.md", "")
        if block.startswith("ralph loop -f") and block.count("\n") == 1
    ]
    # Commands of this night take the remote away, which lies beside the checkout.
    played = project(*shlex.split(command)[1:], "--sandbox", "off", code=0)
    told = [f"[loop] {line}" for line in loop_lines(played)]
    assert [adapted(line) for line in told] == [adapted(line) for line in night_lines()]
    prompts = (request.json()["messages"][0]["content"][-1]["text"] for request in server.requests)
    sent = next(text for text in prompts if "It was run after" in text)
    [shown] = [block for block in blocks("loop.md", "") if block.startswith("It was run after")]
    flat = " ".join(re.sub(r"^```$", "", sent, flags=re.MULTILINE).split())
    assert " ".join(shown.split()) in flat


def test_the_waits_of_the_night_are_the_patient_schedule() -> None:
    shown = [found[1] for line in night_lines() if (found := re.search(r"waiting (\S+) \(outage", line))]
    assert shown == [time_limit(wait_s) for wait_s in PATIENT_SCHEDULE_S[:OUTAGES]]


# --- The recipes


@pytest.fixture
def machine(project: Ralph) -> Ralph:
    """The machine of the page, whose `/home/me` is the home directory here. The project is in `~/project`, `ralph`
    is on PATH, and the key is in its file.
    """
    home = Path(project.environment["HOME"])
    shutil.move(project.cwd, home / "project")
    shutil.move(project.cwd.parent / "origin.git", home / "origin.git")
    project.cwd = home / "project"
    starts = f'PYTHONPATH={project.environment["PYTHONPATH"]} exec {sys.executable} -m ralph "$@"'
    script(home / ".local" / "bin" / "ralph", starts)
    return project


def of_here(text: str, machine: Ralph) -> str:
    return text.replace("/home/me", machine.environment["HOME"])


@pytest.mark.skipif(shutil.which("jq") is None, reason="the script asks jq")
def test_the_cron_lines_run_in_the_environment_that_cron_gives(machine, serve) -> None:
    server = serve(bash(f"echo 'print(2) # fast' > app.py; {TICK}"), Turn("A table instead of a search."))
    home = Path(machine.environment["HOME"])
    key_file = home / ".config" / "ralph" / "night.env"
    key = machine.environment["ANTHROPIC_API_KEY"]
    key_file.write_text(f"ANTHROPIC_API_KEY={key}\nANTHROPIC_BASE_URL={server.base_url}\n")
    night = (DOCS / "examples/night.sh").read_text()
    (home / "night.sh").write_text(of_here(night, machine))
    (home / "night.sh").chmod(0o755)
    crontab = of_here((DOCS / "examples/night.cron").read_text(), machine).splitlines()
    path, begins, reboot = (line for line in crontab if not line.startswith("#"))
    for line, requests in ((begins, 2), (reboot, 2)):
        command = re.sub(r"^(@reboot|(\S+ ){5})\s*", "", line)
        cron = {"HOME": str(home), "LOGNAME": "me", "SHELL": "/bin/sh", "PATH": path.removeprefix("PATH=")}
        ran = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=home,
            env=cron,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        log = (home / "night.log").read_text()
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", ""), log
        assert len(server.requests) == requests, log
    assert (
        "[loop] completed: the gate passes and no task in IMPLEMENTATION_PLAN.md is open; 1 iteration" in log
    )


ENDS = {
    '{"ended": null}': "--continue",
    '{"ended": {"exit_code": 75}}': "--continue",
    '{"ended": {"exit_code": 129}}': "--continue",
    '{"ended": {"exit_code": 143}}': "--continue",
    '{"ended": {"exit_code": 0}}': None,
    '{"ended": {"exit_code": 3}}': None,
    '{"ended": {"exit_code": 124}}': None,
    '{"ended": {"exit_code": 130}}': None,
    "half a reco": None,
    "": None,
}


@pytest.mark.skipif(shutil.which("jq") is None, reason="the script asks jq")
@pytest.mark.parametrize(
    ("asked", "record", "option"),
    [*(("begin" if number % 2 else "", *end) for number, end in enumerate(ENDS.items())), ("", "", None)],
)
def test_the_script_continues_what_was_cut_off_and_begins_only_when_it_is_told(
    tmp_path, asked, record, option
) -> None:
    night = (DOCS / "examples/night.sh").read_text()
    (tmp_path / "project").mkdir()
    (tmp_path / "record").write_text(record)
    status = f"cat '{tmp_path}/record'; exit {0 if record else 2}"
    script(tmp_path / "ralph", f'if [ "$2 $3" = "--status --json" ]; then {status}; fi; echo $1 $2')
    ran = subprocess.run(
        ["/bin/sh", "-c", night.replace("/home/me", str(tmp_path)), "night.sh", asked],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin:{Path(shutil.which('jq') or '').parent}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    begun = "loop -f\n" if asked else ""
    assert ran.stdout == (begun if option is None else f"loop {option}\n")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say_about_the_unit(tmp_path) -> None:
    script(tmp_path / "night.sh", "")
    files = [str(tmp_path / f"ralph-night.{kind}") for kind in ("service", "timer")]
    for file in files:
        shutil.copy(DOCS / "examples" / Path(file).name, file)
    ran = subprocess.run(
        ["systemd-analyze", "--user", "verify", *files],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
