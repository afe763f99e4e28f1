"""Both output streams of a run: what each contains in which form, and that the result is valid and the last
object.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ralph.machine.waiter import Heartbeats, InboxWaiter, SystemClock
from ralph.output.result_file import write_result_file
from ralph.output.writer import LAST_CHANCE_S, MOST_UNANSWERED_BYTES, OutputOptions, Writer
from ralph.values import events as ev
from ralph.values.outcome import Outcome
from ralph.values.report import Report
from tests.output.ended import ended
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CLOCK = SystemClock()
SECRET = "sk-secret"


def ended_with(result: str = "the answer", outcome: Outcome = Outcome.COMPLETED, **more: Any) -> ev.RunEnded:
    return ended(outcome, result=result, **more)


def answer(*texts: str) -> ev.AnswerAccepted:
    return ev.AnswerAccepted({"id": "m1", "content": [{"type": "text", "text": text} for text in texts]})


def finish(writer: Writer, last: ev.Event, waiter: InboxWaiter) -> None:
    """Ends the output as a run does: first the result, then the last lines for people."""
    writer.deliver(waiter, CLOCK)
    writer.tell(last if isinstance(last, ev.RunEnded) else ended())
    writer.conclude(waiter, CLOCK)


class Output:
    """A writer whose two streams are files."""

    def __init__(self, folder: Path, options: OutputOptions, **settings: Any) -> None:
        self._paths = (folder / "out", folder / "err")
        self._fds = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for path in self._paths]
        self.waiter = InboxWaiter(CLOCK)
        self.writer = Writer(
            options,
            "session-1",
            "1.2.3",
            redact=lambda text: text.replace(SECRET, "[redacted]"),
            stdout_fd=self._fds[0],
            stderr_fd=self._fds[1],
            **settings,
        )

    def after(self, *events: ev.Event) -> tuple[str, str]:
        for event in events:
            self.writer.emit(event)
        finish(self.writer, events[-1], self.waiter)
        out, err = (path.read_bytes().decode() for path in self._paths)
        return out, err

    def objects(self, *events: ev.Event) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.after(*events)[0].removesuffix("\n").split("\n")]

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def output(tmp_path) -> Iterator[Callable[..., Output]]:
    made: list[Output] = []

    def build(
        output_format: Any = "text", *, settings: dict[str, Any] | None = None, **options: Any
    ) -> Output:
        made.append(Output(tmp_path, OutputOptions(output_format, **options), **(settings or {})))
        return made[-1]

    yield build
    for one in made:
        one.close()


@every_row("payload", [{"files": 3}, [1, 2], False, "", {"type": "result", "word": "é"}])
def test_the_payload_of_a_report_is_the_answer_whatever_kind_of_json_it_is(output, tmp_path, payload) -> None:
    for status, outcome in ("success", Outcome.COMPLETED), ("failure", Outcome.TASK_FAILED):
        last = ended_with("Counted.", outcome, report=Report(status, "Counted.", payload, "tool_call"))
        for terminal in {}, {"is_on_terminal": True, "is_one_terminal": True}:
            assert json.loads(output(settings=terminal).after(last)[0]) == payload
    assert output("json").objects(last)[0]["structured_output"] == payload


@every_row(("source", "is_shown"), [("tool_call", False), ("text", True), ("synthetic", True)])
def test_one_terminal_shows_the_summary_of_a_report_that_nothing_has_told_yet(
    output, source, is_shown
) -> None:
    last = ended_with("It is so.", report=Report("failure", "It is so.", None, source))
    assert output(settings={"is_one_terminal": True}).after(last)[0] == ("It is so.\n" if is_shown else "")
    quiet = output(is_quiet=True, settings={"is_one_terminal": True})
    out, err = quiet.after(last)
    assert (out, "It is so." in err) == ("It is so.\n", False)


def test_one_terminal_need_not_show_the_answer_twice(output) -> None:
    assert output(settings={"is_one_terminal": True}).after(answer("the answer"), ended_with())[0] == ""


@pytest.mark.parametrize("text", ["\ud83d", "\udc80 x", "\ud83d\ude00", "a\u2028b\x00\x1b\x7f", "🙂ü"])
def test_strange_characters_make_valid_json_lines(output, text) -> None:
    assistant, result = output("stream-json").objects(answer(text), ended_with(text))
    assert assistant["message"]["content"][0]["text"] in {text, "😀"}
    assert result["result"] in {text, "😀"}


def test_secrets_are_redacted_everywhere(output) -> None:
    events = [ev.Notice(SECRET), answer(SECRET), ended_with(SECRET)]
    notice, assistant, result = output("stream-json").objects(*events)
    assert notice["text"] == result["result"] == "[redacted]"
    assert assistant["message"]["content"][0]["text"] == "[redacted]"
    out, err = output("text").after(*events)
    assert SECRET not in out + err


def test_p10_the_result_is_the_last_line_whatever_comes_while_a_reader_is_waited_for(output) -> None:
    made = output("stream-json")
    made.waiter = InboxWaiter(CLOCK, events=made.writer, heartbeats=Heartbeats(CLOCK, 1e-9))
    time.sleep(0.01)
    objects = made.objects(ev.Notice("n"), ended())
    assert objects[-1]["type"] == "result"


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that is full and that nobody reads."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    while True:
        try:
            os.write(write_fd, b"x" * 65536)
        except BlockingIOError:
            break
    os.set_blocking(write_fd, True)
    yield read_fd, write_fd
    # The writing end stays open: a writer's thread may still write, and the next file would have the same number.
    os.close(read_fd)


def stuck_writer(full_pipe: tuple[int, int], last_chance_s: float) -> Writer:
    _, fd = full_pipe
    return Writer(
        OutputOptions("stream-json"),
        "s",
        "v",
        redact=str,
        stdout_fd=fd,
        stderr_fd=fd,
        last_chance_s=last_chance_s,
    )


def test_p10_a_reader_that_never_reads_is_waited_for_no_longer_than_its_last_chance(full_pipe) -> None:
    writer = stuck_writer(full_pipe, 0.2)
    for _ in range(100):
        writer.emit(ev.Notice("x" * 1000))
    writer.emit(ended())
    started_s = time.monotonic()
    finish(writer, ended(), InboxWaiter(CLOCK))
    assert time.monotonic() - started_s >= 0.2
    assert LAST_CHANCE_S == 5.0


def test_p10_a_signal_shortens_even_that(full_pipe) -> None:
    writer = stuck_writer(full_pipe, 1e6)
    writer.emit(ended())
    waiter = InboxWaiter(CLOCK)
    threading.Timer(0.05, waiter.inbox.note_signal, [15]).start()
    finish(writer, ended(), waiter)


def test_signals_that_came_before_the_end_do_not_take_the_result_from_a_healthy_reader(output) -> None:
    for _ in range(20):
        made = output("json")
        made.waiter.inbox.note_signal(15)
        made.waiter.inbox.note_signal(2)
        out, _ = made.after(ended())
        assert json.loads(out)["type"] == "result"


def test_the_result_file_holds_the_result_object(output, tmp_path) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")
    output(result_file=str(path)).writer.write_result_file(ended_with())
    result = json.loads(path.read_text())
    assert (result["type"], result["result"], result["session_id"]) == ("result", "the answer", "session-1")
    assert result["uuid"]
    assert [entry.name for entry in tmp_path.iterdir() if "tmp" in entry.name] == []


def test_a_result_file_that_is_a_pipe_is_written_to(output, tmp_path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    output(result_file=str(path)).writer.write_result_file(ended())
    assert json.loads(os.read(read_fd, 65536))["type"] == "result"
    os.close(read_fd)
    assert path.is_fifo()


def test_data_larger_than_a_pipe_is_written_to_it_as_a_whole(tmp_path) -> None:
    """A page of `ralph report` has megabytes, and a pipe takes 64 KB at once."""
    path, data = tmp_path / "fifo", b"x" * 300_000
    os.mkfifo(path)
    read_fd, held_fd = (os.open(path, flags | os.O_NONBLOCK) for flags in (os.O_RDONLY, os.O_WRONLY))
    os.set_blocking(read_fd, True)
    read: list[bytes] = []
    with os.fdopen(read_fd, "rb") as pipe:
        reader = threading.Thread(target=lambda: read.append(pipe.read()))
        reader.start()
        write_result_file(str(path), data)
        os.close(held_fd)
        reader.join()
    assert read == [data]


def test_a_result_file_that_is_a_pipe_nobody_reads_fails_at_once(output, tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device"):
        output(result_file=str(tmp_path / "fifo")).writer.write_result_file(ended())


@pytest.mark.parametrize("name", ["missing/result.json", "folder"])
def test_a_result_file_that_cannot_be_written_raises_os_error(output, tmp_path, name) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder|missing"):
        output(result_file=str(tmp_path / name)).writer.write_result_file(ended())
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_driver_that_reads_no_answers_is_told_from_one_that_does() -> None:
    read_fd, write_fd = os.pipe()
    options = OutputOptions("stream-json")
    writer = Writer(
        options, "s1", "0", redact=str, stdout_fd=write_fd, stderr_fd=os.open(os.devnull, os.O_WRONLY)
    )
    answers = 0
    while writer.has_room:
        writer.respond({"answer": "x" * 100_000})
        answers += 1
    assert answers * 100_000 < MOST_UNANSWERED_BYTES * 2
    received = 0
    while received < answers:
        received += os.read(read_fd, 1 << 20).count(b"\n")
    writer.deliver(InboxWaiter(CLOCK), CLOCK)
    assert writer.has_room
