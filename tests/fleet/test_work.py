"""`ralph fleet work` as whole processes: what becomes of a job and of its branch, whoever works on it. Kills, outages of
the store and many workers at once are in tests/nemesis.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from ralph.fleet.job_process import unpack_state
from ralph.fleet.jobs import Rate, SetLimits
from ralph.mock_api import Fault, Step, Turn
from tests.fleet.refusing_host import children_of, ends_after_another_signal
from tests.fleet.scripted import DONE, KEY, NEVER, SET, Asked, Place, bash, job_of
from tests.git.http_repository import HttpRepository
from tests.patience import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ralph.mock_api import Playable
    from tests.services.postgres import PostgresServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

PASSWORD = "canary-password-9876543210"
BYTES = re.compile(r"\\\\x((?:[0-9a-f]{2})+)")
"""A value of bytes in a dump."""
VARIABLES = {"PGPASSWORD": PASSWORD, "PGUSER": "nobody"}


def handed_over(asked: Asked) -> Playable:
    """Changes files in the first turn. The second turn's answer ends only on the second machine."""
    match asked:
        case Asked(said=0):
            return bash("echo line >> kept.txt; rm doomed.txt; echo x > left.ignored; env > environment.txt")
        case Asked(said=1, times=1):
            return NEVER
        case Asked(said=1):
            return bash(
                "test -e left.ignored && echo carried >> kept.txt; test -e doomed.txt || echo gone >> kept.txt"
            )
    return DONE


def test_a_drained_job_is_resumed_on_another_machine_and_leaves_no_credential_anywhere(
    tmp_path: Path,
) -> None:
    with Place(tmp_path, {"moved": handed_over}) as place:
        before = os.umask(0)
        try:
            place.submit(place.job("moved"))
            first = place.work("a", "--drain", "1s", **VARIABLES)
        finally:
            os.umask(before)
        wait_until(lambda: place.asked("moved", 1))
        folder = place.state("a") / "fleet"
        files = [folder, *folder.iterdir()]
        assert {"fleet.db", "fleet.db-wal", "work"} <= {path.name for path in files}
        assert [path for path in files if path.lstat().st_mode & 0o077] == []
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 0
        assert "refs/ralph/night/moved/1" in place.refs()
        assert place.git("show", "refs/ralph/night/moved/1:kept.txt") == "kept\nline"
        handed_back = place.row("moved")
        assert (handed_back.state.value, handed_back.attempt, handed_back.tries) == ("queued", 2, 0)
        checkpoint = place.checkpoint("moved")
        assert checkpoint is not None
        unpack_state(checkpoint.state, tmp_path / "unpacked", 1 << 20)
        place.finish("b", **VARIABLES)
        row = place.row("moved")
        assert (row.exit_code, row.tries, row.generation) == (0, 1, 2)
        assert set(place.refs()) == {"refs/heads/main", "refs/heads/ralph/moved"}
        assert place.git("show", "ralph/moved:kept.txt").split() == ["kept", "line", "gone"]
        assert place.git("ls-tree", "--name-only", "ralph/moved").split() == [
            ".gitignore",
            "environment.txt",
            "kept.txt",
        ]
        assert (place.asked("moved", 0), place.asked("moved", 1)) == (1, 2)
        told = place.api.requests[2].json()
        assert all(f"{place.state(machine)}/fleet/work/" in str(told["messages"]) for machine in "ab")
        environment = place.git("show", "ralph/moved:environment.txt")
        assert f"HOME={place.folder}" in environment
        names = {line.partition("=")[0] for line in environment.splitlines()}
        assert not [name for name in names if name.startswith(("RALPH_FLEET", "PG", "ANTHROPIC_API"))]
        assert (holders(KEY, tmp_path), holders(PASSWORD, tmp_path)) == ([], [])


def test_with_a_limit_per_host_no_job_is_stranded_also_one_whose_worker_was_killed(tmp_path: Path) -> None:
    """The engine never takes a job without a key from such a queue (DBOS 3.4.0), and a job's path has no host."""
    models = {"killed": lambda asked: NEVER if asked.times == 1 else DONE, "other": lambda _asked: DONE}
    with Place(tmp_path, models) as place, HttpRepository(place.repository) as host:
        other = place.job("other", repository=host.url)
        place.submit(place.job("killed"), other, limits=SetLimits(per_host=1))
        # With one slot, whichever job the engine begins first would keep the other waiting.
        first = place.work("a", "-j", "2")
        wait_until(lambda: place.asked("killed", 0) and place.row("other").state.value == "done")
        for pid in (first.pid, *place.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        place.finish("a")
        assert [place.row(name).exit_code for name in models] == [0, 0]


def test_limits_that_a_later_submit_changes_hold_for_a_worker_that_runs(tmp_path: Path) -> None:
    """The slot that works gives them to its engine: with one slot, no other one would."""
    models = {"first": lambda _asked: DONE, "second": lambda _asked: DONE}
    with Place(tmp_path, models) as place:
        both = [place.job(name) for name in models]
        place.submit(*both, limits=SetLimits(rate=Rate(starts=1, period_s=86_400.0)))
        worker = place.work("a", "-j", "1")
        wait_until(lambda: "done" in {place.row(name).state.value for name in models})
        assert {place.row(name).state.value for name in models} == {"done", "queued"}
        place.submit(*both, limits=SetLimits())
        wait_until(lambda: {place.row(name).state.value for name in models} == {"done"})
        assert worker.poll() is None


def holders(secret: str, folder: Path) -> list[Path]:
    """The files below a folder that contain a text."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_no_credential_is_in_a_dump_of_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    def model(asked: Asked) -> Playable:
        return bash("echo done > done.txt") if asked.said == 0 else Turn(f"I found {KEY} and {PASSWORD}.")

    with postgres.database() as url:
        name = url.rpartition("/")[2]
        with Place(tmp_path, {"seen": model}, postgres.url(name, password=PASSWORD)) as place:
            place.submit(place.job("seen"))
            place.finish("a", **VARIABLES)
            assert place.row("seen").exit_code == 0
            dump = postgres.dump(name)
            dump += "".join(bytes.fromhex(value).decode("utf-8", "replace") for value in BYTES.findall(dump))
            assert "Job seen:" in dump
            assert KEY not in dump
            assert PASSWORD not in dump
            assert holders(KEY, tmp_path) == holders(PASSWORD, tmp_path) == []


def test_each_end_of_a_job_has_its_exit_code_and_its_reason(tmp_path: Path) -> None:
    def changed(asked: Asked) -> Playable:
        if asked.said == 0:
            return bash("echo line >> kept.txt")
        place.git("update-ref", "refs/heads/ralph/changed", foreign)
        return DONE

    models = {
        "away": lambda _asked: Step(fault=Fault(status=529, headers={"retry-after": "6"})),
        "changed": changed,
    }
    with Place(tmp_path, models) as place:
        foreign = place.commit_first("ralph/taken", {"foreign.txt": "theirs\n"})
        place.submit(
            place.job("taken"),
            place.job("lacking", env=("HOME", "NO_SUCH_TOKEN")),
            place.job("newer"),
            # Its key is another one, because a key waits for as long as its server said, with all jobs.
            place.job("away", base_url=f"http://localhost:{place.api.port}", options=("--retry", "off")),
            place.job("changed"),
            limits=SetLimits(max_attempts=2),
        )
        with sqlite3.connect(place.state("a") / "fleet" / "fleet.db") as store:
            store.execute(
                """UPDATE jobs SET content = '{"format": 99, "id": "newer", "priority": "high"}' WHERE id = 'newer'"""
            )
        store.close()
        assert place.worst("a") == 74, place.log("a")
        refs = place.refs()
        assert refs["refs/heads/ralph/taken"] == refs["refs/heads/ralph/changed"] == foreign
        taken, changed_row = place.row("taken"), place.row("changed")
        assert (
            taken.exit_code,
            "ralph/taken exists and does not belong to this job" in (taken.reason or ""),
        ) == (
            78,
            True,
        )
        assert changed_row.exit_code == 74
        found = re.search(r"; the work is at (\S+): (\S+)$", changed_row.reason or "")
        assert found is not None, place.log("a")
        assert (refs[found[1]], found[2]) == (changed_row.commit, changed_row.commit)
        assert place.git("show", f"{found[1]}:kept.txt") == "kept\nline"
        lacking, newer = place.row("lacking"), place.row("newer")
        assert (lacking.exit_code, "NO_SUCH_TOKEN" in (lacking.reason or "")) == (78, True)
        assert (newer.exit_code, "format" in (newer.reason or "")) == (78, True)
        away = place.row("away")
        assert (away.exit_code, away.tries) == (75, 2)
        assert (away.reason or "").startswith("gave up after 2 attempts: ")
        assert "night/away: again in 6 s" in place.log("a")
        requests = place.api.requests
        assert [job_of(request) for request in requests] == ["away", "changed", "changed", "away"]
        assert requests[-1].monotonic_s - requests[0].monotonic_s >= 6


def test_what_the_agent_pushed_is_continued_and_what_a_user_amended_is_never_overwritten(
    tmp_path: Path,
) -> None:
    def model(asked: Asked) -> Playable:
        match asked:
            case Asked(said=0):
                return bash("echo mine >> kept.txt && git commit -qam mine && git push -q origin HEAD")
            case Asked(said=1, times=1):
                return NEVER
            case Asked(said=1):
                return bash("echo left >> kept.txt")
        return DONE

    with Place(tmp_path, {"pushed": model}) as place:
        place.submit(place.job("pushed", "long " * 100_000))  # no word of a command line is as long
        first = place.work("a", "--drain", "1s")
        wait_until(lambda: place.asked("pushed", 1) and place.checkpoint("pushed"))
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 0
        place.finish("b")
        row = place.row("pushed")
        assert (row.exit_code, row.generation) == (0, 2), row.reason
        assert place.git("show", "ralph/pushed:kept.txt").split() == ["kept", "mine", "left"]
        message = place.git("log", "-1", "--format=%B", "ralph/pushed")
        assert "Ralph-Job: night/pushed 2 2" in message
        tree = place.git("rev-parse", "main^{tree}")
        amended = place.git("commit-tree", "-p", "ralph/pushed^", "-m", message, tree)
        place.git("update-ref", "refs/heads/ralph/pushed", amended)
        assert place.store.retry(SET, ["pushed"]) == 1
        assert place.worst("b") == 78, place.log("b")
        row = place.row("pushed")
        assert (row.exit_code, "does not belong to this job" in (row.reason or "")) == (78, True)
        assert place.refs()["refs/heads/ralph/pushed"] == amended


def test_a_machine_with_a_broken_disk_ends_no_job(tmp_path: Path) -> None:
    with Place(tmp_path, {"one": lambda _asked: DONE}) as place:
        place.submit(place.job("one"))
        mirrors = place.state("a") / "fleet" / "repositories"
        mirrors.write_text("no folder")
        worker = place.work("a")
        wait_until(lambda: "this slot pauses" in place.log("a"))
        row = place.row("one")
        assert (row.state.value, row.tries, row.exit_code) == ("queued", 1, None)
        assert str(mirrors) in (row.reason or "")
        assert row.not_before > row.created_at + 50, "another machine has time to take it"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0


def test_a_worker_without_a_key_takes_no_job_that_needs_one(tmp_path: Path) -> None:
    with Place(tmp_path, {"local": lambda _asked: DONE}) as place:
        place.submit(
            place.job("local", base_url=place.api.base_url, priority=1), place.job("one"), place.job("two")
        )
        no_key = {"ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": ""}
        assert place.worst("a", "-j", "2", **no_key) == 78, place.log("a")
        assert place.row("local").exit_code == 0
        for name in ("one", "two"):
            row = place.row(name)
            assert (row.state.value, row.tries, row.started_at) == ("queued", 0, None)
        assert "no API key" in place.log("a")
        assert "this worker ends" in place.log("a")


def test_a_worker_whose_key_is_refused_hands_its_jobs_back_and_ends(tmp_path: Path) -> None:
    is_refused = True

    def model(_asked: Asked) -> Playable:
        return Step(fault=Fault(status=401)) if is_refused else DONE

    names = ("one", "two", "three", "four")
    with Place(tmp_path, dict.fromkeys(names, model)) as place:
        place.submit(*(place.job(name) for name in names))
        assert place.worst("a", "-j", "2") == 77, place.log("a")
        rows = [place.row(name) for name in names]
        assert [(row.state.value, row.tries, row.exit_code) for row in rows] == 4 * [("queued", 0, None)]
        assert "HTTP 401" in str([row.reason for row in rows])
        is_refused = False
        place.finish("b")
        assert "all jobs have ended: 4 done; $" in place.log("b")


def test_a_key_that_is_refused_for_one_job_alone_ends_that_job_and_the_worker_does_the_others(
    tmp_path: Path,
) -> None:
    names = ("good", "bad", "last")
    models: dict[str, Callable[[Asked], Playable]] = {name: lambda _: DONE for name in names}
    models["bad"] = lambda _: Step(fault=Fault(status=403))
    with Place(tmp_path, models) as place:
        jobs = (place.job(name, priority=3 - number) for number, name in enumerate(names))
        place.submit(*jobs, limits=SetLimits(max_attempts=1))
        assert place.worst("a") == 77, place.log("a")
        assert [place.row(name).exit_code for name in names] == [0, 77, 0]
        assert [job_of(request) for request in place.api.requests] == [*names], "by their priority"
        assert "all jobs have ended: 2 done, 1 failed; $" in place.log("a")
        assert "ralph fleet retry --failed" in place.log("a")


def test_a_hangup_does_not_stop_a_worker_that_nohup_started(tmp_path: Path) -> None:
    with Place(tmp_path, {}) as place:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            worker = place.work("a")
        finally:
            signal.signal(signal.SIGHUP, before)
        wait_until(lambda: "working on" in place.log("a"))
        worker.send_signal(signal.SIGHUP)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0, "the first signal that it hears decides about its exit code"


def test_a_loop_whose_worker_is_killed_in_an_iteration_continues_that_iteration(tmp_path: Path) -> None:
    def loop(asked: Asked) -> Playable:
        iteration = place.asked("looped", 0)
        if asked.said == 0:
            return bash("true" if iteration == 1 else f"echo {iteration} >> kept.txt")
        return NEVER if iteration == 2 and place.asked("looped", 1) == 2 else DONE

    with Place(tmp_path, {"looped": loop}) as place:
        place.submit(place.job("looped", until="grep -q 3 kept.txt", max_iterations=3))
        worker = place.work("a", "--until-done")
        wait_until(lambda: place.asked("looped", 1) == 2 and place.checkpoint("looped"))
        (slot,) = children_of(worker.pid)
        os.kill(slot, signal.SIGKILL)
        assert worker.wait(PATIENCE_S) == 0, place.log("a")
        row = place.row("looped")
        assert (row.exit_code, row.generation, row.turns) == (0, 2, 6)
        assert place.git("show", "ralph/looped:kept.txt").split() == ["kept", "2", "3"]
        assert place.asked("looped", 0) == 3


def test_a_retry_of_a_loop_that_has_reached_its_limit_does_one_more_iteration(tmp_path: Path) -> None:
    def model(asked: Asked) -> Playable:
        return bash("echo x >> kept.txt") if asked.said == 0 else DONE

    with Place(tmp_path, {"looped": model}) as place:
        until = "test $(grep -c x kept.txt) -ge 4"
        place.submit(place.job("looped", until=until, max_iterations=2))
        codes = []
        for _ in range(3):
            codes.append(place.worst("a"))
            place.store.retry(SET, None)
        assert codes == [3, 3, 0], place.row("looped").reason
        assert place.asked("looped", 0) == 4, "an iteration was paid again"
        assert place.git("show", "ralph/looped:kept.txt") == "kept\nx\nx\nx\nx"


def test_after_a_kill_a_second_signal_and_a_cancellation_no_process_is_left_and_the_session_continues(
    tmp_path: Path,
) -> None:
    def model(asked: Asked) -> Playable:
        match asked:
            case Asked(said=0):
                return bash("echo line >> kept.txt")
            case Asked(said=1, times=1):
                wait_until(lambda: place.checkpoint("hard"))
                return bash("setsid sleep 997 & sleep 996")
            case Asked(times=1) | Asked(said=1, times=2 | 3):
                return NEVER
        return DONE

    with Place(tmp_path, {"hard": model}) as place:
        place.submit(place.job("hard"))
        worker = place.work("a")
        wait_until(lambda: {"996", "997"} <= set(re.findall(r"sleep (\d+)", str(place.processes()))))
        worker.kill()
        worker.wait()
        wait_until(lambda: not place.processes(), 20)
        worker = place.work("b")
        wait_until(lambda: place.asked("hard", 1) == 2)
        wait_until(lambda: ends_after_another_signal(worker))
        assert (worker.returncode, place.processes()) == (0, {})
        row = place.row("hard")
        assert (row.state.value, row.attempt, row.generation) == ("running", 1, 2), "nothing was handed back"
        worker = place.work("c", "--until-done")
        wait_until(lambda: place.asked("hard", 1) == 3)
        assert place.store.cancel(SET, ["hard"]) == 0
        assert worker.wait(PATIENCE_S) == 143, place.log("c")
        assert (place.row("hard").state.value, place.processes()) == ("cancelled", {})
        place.store.retry(SET, ["hard"])
        place.finish("c")
        row = place.row("hard")
        # On a busy machine the last checkpoint takes too long. Then the work is kept, and delivering it counts as an attempt.
        is_kept = "its work is kept on" in place.log("c")
        ended = (row.exit_code, row.attempt, row.generation)
        assert ended == ((0, 3, 6) if is_kept else (0, 2, 5)), place.log("c")
        assert place.git("show", "ralph/hard:kept.txt") == "kept\nline"
        assert (place.asked("hard", 0), place.asked("hard", 1)) == (1, 4), (
            "each worker resumed the checkpoint"
        )


def test_no_worker_begins_where_commands_of_jobs_may_write_the_users_git_configuration(
    tmp_path: Path,
) -> None:
    with Place(tmp_path, {"one": lambda _asked: DONE}) as place:
        place.submit(place.job("one"))
        included = place.state("a") / "fleet/work/x/shared"
        (place.state("a").parent / ".gitconfig").write_text(f"[include]\n\tpath = {included}\n")
        assert place.worst("a") == 78
        assert f"{included} belongs to your own git configuration" in place.log("a")
