"""`ralph fleet` for people: what its commands print, and how they end. The store is filled as workers fill it."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import typer

from ralph import fleet as ralph_fleet
from ralph.cli.fleet import _opened
from ralph.fleet import command
from ralph.fleet.claims import Claim, Claims, ClaimWriter
from ralph.fleet.database import database_of, prepare
from ralph.fleet.jobs import Job, SetLimits
from tests.patience import wait_until
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.program.conftest import Ralph

REPOSITORY = "https://git.example.org/x.git"
HOSTILE = "\x1b]0;title\x07\x1b[2Jred"


@pytest.fixture
def store(ralph: Ralph) -> Iterator[Claims]:
    database = database_of(None, ralph.environment)
    prepare(database)
    with closing(Claims(database)) as made:
        made.create()
        yield made


def job(name: str, **values: Any) -> Job:
    return Job(id=name, repository=REPOSITORY, prompt=values.pop("prompt", "Do it."), **values)


def taken(store: Claims, name: str, set_name: str = "s") -> Claim:
    found = store.claim(set_name, name, 1, executor="m-7-ff", machine="m", credential="k")
    assert isinstance(found, Claim)
    return found


def ended(store: Claims, name: str, code: int, reason: str = "") -> None:
    ClaimWriter(store, taken(store, name)).end(code, reason)


def write_jobs(ralph: Ralph, *jobs: dict[str, Any]) -> None:
    lines = [json.dumps({"repository": REPOSITORY, "prompt": "Do it.", **one}) for one in jobs]
    (ralph.cwd / "night.jsonl").write_text("\n".join(lines))


def state_directory(ralph: Ralph) -> Path:
    return Path(ralph.environment["HOME"], ".local/state/ralph")


def test_a_file_that_is_submitted_twice_is_one_set(ralph, ralph_here) -> None:
    write_jobs(ralph, {"id": "a"}, {"id": "b", "after": ["a"]})
    first = ralph_here("fleet", "submit", "night.jsonl", "--max-budget-usd", "5", "--rate", "50/min")
    assert (first.code, first.stdout) == (0, "set night: 2 new jobs\n")
    assert "ralph fleet work" in first.stderr
    write_jobs(ralph, {"id": "c", "after": ["b"]}, {"id": "a"})
    again = ralph_here("fleet", "submit", "night.jsonl", "--concurrency", "4")
    assert (again.code, again.stdout) == (0, "set night: 1 new job, 1 known\n")
    listed = json.loads(ralph_here("fleet", "ls", "--json").stdout)
    (one,) = listed["sets"]
    limits = one["limits"]
    assert (limits["max_budget_usd"], limits["concurrency"]) == (5.0, 4), "the earlier limits hold on"
    assert [found["id"] for found in listed["jobs"]] == ["a", "b", "c"]
    write_jobs(ralph, {"id": "a", "max_turns": 3})
    other = ralph_here("fleet", "submit", "night.jsonl")
    assert (other.code, other.stdout) == (2, "")
    assert "the set night has a job a with another content" in other.stderr


def test_nothing_is_made_if_the_command_line_or_the_file_is_wrong(ralph, ralph_here) -> None:
    write_jobs(ralph, {"id": "a", "max_turns": "x"})
    for words, problem in (
        ([], "night.jsonl:1: $.max_turns"),
        (["--set", "a/b"], "--set must have"),
        (["--rate", "often"], "must be a rate such as"),
        (["--concurrency", "0"], "--concurrency must be"),
        (["--max-budget-usd", "-1"], "--max-budget-usd must be"),
    ):
        if words[:1] == ["--max-budget-usd"]:
            write_jobs(ralph, {"id": "a"})
        ran = ralph_here("fleet", "submit", "night.jsonl", *words)
        assert (ran.code, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
        assert problem in ran.stderr
    assert not state_directory(ralph).exists()


def test_a_command_that_reads_makes_no_store(ralph, ralph_here) -> None:
    for words in (["ls"], ["show", "a"], ["logs", "a"], ["wait"], ["cancel", "--all"], ["retry", "--failed"]):
        ran = ralph_here("fleet", *words)
        assert (ran.code, ran.stdout) == (2, "")
        assert ran.stderr.startswith("ralph: there is no fleet store yet at ")
        assert ran.stderr.endswith("fleet.sqlite: ralph fleet submit FILE\n")
    assert not state_directory(ralph).exists()


def test_no_command_reads_a_store_that_somebody_else_may_have_written(ralph, ralph_here) -> None:
    linked = Path(ralph.environment["HOME"], "linked")
    linked.symlink_to("/dev/null")
    for file, problem in ((ralph.cwd / "jobs", "may write"), (linked, "is not a file of this user")):
        ran = ralph_here("fleet", "ls", "--db", f"sqlite:///{file}")
        assert (ran.code, problem in ran.stderr) == (78, True), ran.stderr


def test_a_worker_that_is_to_end_when_all_is_done_refuses_an_empty_store(store, ralph_here) -> None:
    empty = ralph_here("fleet", "work", "--until-done")
    assert (empty.code, "there is no fleet store yet" in empty.stderr) == (2, True)


def test_wait_ends_with_the_worst_exit_code_of_the_jobs(store, ralph_here) -> None:
    store.submit("s", SetLimits(), [job(name) for name in "abc"])
    ended(store, "a", 0)
    ended(store, "b", 4, "no progress")
    ended(store, "c", 74, f"full {HOSTILE}")
    ran = ralph_here("fleet", "wait", "s", code=74)
    assert (
        ran.stdout
        == "s: 3 jobs: 1 done, 2 failed; $0.00\n  s/b: exit 4 (no progress)\n  s/c: exit 74 (full red)\n"
    )
    told = json.loads(ralph_here("fleet", "wait", "--json").stdout)
    assert (told["exit_code"], [one["exit_code"] for one in told["jobs"]]) == (74, [0, 4, 74])
    assert (ralph_here("fleet", "retry", "--failed").stdout, store.open_sets()[0].open_jobs) == (
        "2 jobs will run again\n",
        2,
    )


def test_a_job_is_named_by_its_id_or_with_its_set(store, ralph_here) -> None:
    store.submit("s", SetLimits(), [job("port-api", prompt=f"Port {HOSTILE}.\nAll."), job("both")])
    store.submit("t", SetLimits(), [Job(id="both", repository="https://git.example.org/y.git", prompt="Go.")])
    assert ralph_here("fleet", "logs", "port-api").stderr == "[fleet] s/port-api has no log: it is queued\n"
    assert ralph_here("fleet", "logs").stderr.endswith("(see `ralph fleet logs --help`)\n")
    shown = ralph_here("fleet", "show", "port-api")
    assert shown.stdout.startswith("s/port-api: queued\n")
    assert "  prompt      Port red.\n" in shown.stdout
    for words, problem in (
        (["both"], "several sets have a job both: write s/both or t/both"),
        (["port-app"], "there is no job port-app"),
        (["u/both"], "there is no set u"),
    ):
        ran = ralph_here("fleet", "show", *words)
        assert (ran.code, ran.stdout) == (2, "")
        assert problem in ran.stderr
    assert len(ralph_here("fleet", "ls").stdout.splitlines()) == 4, "sets only, if there are several"
    assert "port-api  queued" in ralph_here("fleet", "ls", "s").stdout


def test_the_log_is_followed_until_the_job_has_ended(store, ralph) -> None:
    store.submit("s", SetLimits(), [job("a")])
    held = ClaimWriter(store, taken(store, "a"))
    held.add_log(f"first {HOSTILE}\n")
    process = ralph.start("fleet", "logs", "-f", "a")
    assert process.stdout.readline() == b"first red\n"
    held.add_log("second\n")
    held.end(0, "")
    ran = ralph.finish(process)
    assert (ran.code, ran.stdout) == (0, "second\n")


def test_cancel_waits_for_the_worker_and_names_one_that_does_not_answer(
    store, ralph_here, monkeypatch
) -> None:
    store.submit("s", SetLimits(), [job(name) for name in "abc"])
    held = ClaimWriter(store, taken(store, "a"))
    answers = threading.Thread(target=lambda: end_when_cancelled(held))
    answers.start()
    ran = ralph_here("fleet", "cancel", "a", "b")
    answers.join()
    assert (ran.code, ran.stdout) == (0, "cancelled: 1 job that had not started, 1 that ran\n")
    ended = ralph_here("fleet", "cancel", "a", "b")
    assert (ended.code, "2 had ended already" in ended.stderr) == (0, True)
    taken(store, "c")
    monkeypatch.setattr(command, "CANCEL_WITHIN_S", 0.0)
    silent = ralph_here("fleet", "cancel", "--all", code=75)
    assert "s/c is cancelled, but its worker m-7-ff does not answer" in silent.stderr
    assert ralph_here("fleet", "cancel").code == 2, "without names it needs --all"


def end_when_cancelled(held: ClaimWriter) -> None:
    wait_until(held.is_cancelled)
    held.end(143, "cancelled")


def test_ctrl_c_ends_a_command_that_waits_for_the_store(ralph) -> None:
    """Nothing listens at port 9 of this machine."""
    process = ralph.start("fleet", "wait", "--db", "postgresql://u:hidden-word@127.0.0.1:9/x")
    told = process.stderr.readline().decode()
    assert "waiting for the store at 127.0.0.1:9" in told
    ran = ralph.stopped_by(process, signal.SIGINT)
    assert (ran.code, ran.stdout) == (130, "")
    assert "hidden-word" not in told + ran.stderr


@every_row("words", [("submit", "night.jsonl"), ("logs", "a")])
def test_a_command_gives_up_on_a_store_that_does_not_answer_exits_75(
    ralph, ralph_here, monkeypatch, words: tuple[str, ...]
) -> None:
    write_jobs(ralph, {"id": "a"})
    clock = SimpleNamespace(monotonic=itertools.count(step=40).__next__)
    monkeypatch.setattr("ralph.fleet.database.time", clock)
    ran = ralph_here("fleet", *words, "--db", "postgresql://u@127.0.0.1:9/x", code=75)
    assert ran.last_line == "ralph: the store at 127.0.0.1:9 does not answer; gave up after 60 s"


def test_a_signal_that_comes_while_the_store_is_closed_ends_a_worker_before_it_begins(
    monkeypatch, ralph
) -> None:
    monkeypatch.setenv("RALPH_STATE_DIR", ralph.environment["HOME"])
    with pytest.raises(typer.Exit) as ended, _opened(None, begins_after=True):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.exit_code == 143


def test_a_worker_without_git_does_not_begin_exits_78(ralph, tmp_path) -> None:
    write_jobs(ralph, {"id": "a"})
    assert ralph("fleet", "submit", "night.jsonl").code == 0
    ran = replace(ralph, environment={**ralph.environment, "PATH": str(tmp_path)})("fleet", "work")
    assert (ran.code, ran.stderr) == (
        78,
        "ralph: there is no git program on PATH (ralph ignores directories that commands may write); install git\n",
    )


def test_without_the_extra_one_line_says_what_to_install(ralph, ralph_here, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ralph.fleet.")]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in vars(ralph_fleet).copy().items():
        if isinstance(module, ModuleType):
            monkeypatch.delattr(ralph_fleet, name)  # the import below makes another one
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    write_jobs(ralph, {"id": "a"})
    for words in (["ls"], ["submit", "night.jsonl"], ["work"], ["cancel", "a"]):
        ran = ralph_here("fleet", *words)
        assert (ran.code, ran.stdout) == (78, "")
        needed = "ralph: ralph fleet needs the extra fleet: pip install '.[fleet]' in ralph's clone, with ralph's Python\n"
        assert ran.stderr == needed
    assert ralph_here("fleet", "export", "night.jsonl", "--format", "parallel").code == 0, "needs no store"


def test_a_jobs_file_is_exported_to_a_file_or_to_standard_output(ralph, ralph_here) -> None:
    write_jobs(ralph, {"id": "a"}, {"id": "b"})
    words = ("fleet", "export", "night.jsonl", "--format", "slurm")
    to_file = ralph_here(*words, "-o", "night.sh")
    assert (to_file.code, to_file.stdout) == (0, "")
    assert ralph_here(*words).stdout == (ralph.cwd / "night.sh").read_text()
    for name in ("x\ntouch y", "../x", ""):
        refused = ralph_here(*words, "--set", name)
        assert (refused.code, refused.stdout) == (2, ""), name


def test_no_command_shows_a_key_of_a_known_form(store, ralph_here) -> None:
    key = "ghp_" + "A1b2" * 8
    lines = "MIIEabcdefghijk\nlmnopqrstuvwxyz"
    pem = f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----"
    store.submit("s", SetLimits(), [job("a", prompt=f"Use {key}.", until=f"echo {key}")])
    held = ClaimWriter(store, taken(store, "a"))
    for piece in (
        f"one {key[:9]}",
        f"{key[9:]} two\n{pem[:40]}",
        f"{pem[40:]}\nthree {key[:5]}\r",
        f"{key[5:]}",
    ):
        held.add_log(piece)
    held.end(4, f"no {key[:7]}\x1b[1m{key[7:]}", result=f"{key}\n{pem}")
    commands = [
        "ls --json",
        "ls s",
        "show s/a",
        "logs s/a",
        "report -o -",
        "wait s --json",
        "wait s",
    ]
    for words in commands:
        ran = ralph_here("fleet", *words.split())
        seen = "".join(char for char in ran.stdout + ran.stderr if char.isprintable())
        assert [part for part in (key[:12], key[-12:], "MIIEabc", "lmnopq") if part in seen] == [], words
        assert "[redacted]" in seen, words
