"""The effects of control requests on a run. Each is answered at once, whatever the run is doing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ralph.mock_api import Fault, Step, Text, Thinking, Turn
from tests.patience import PATIENCE_S
from tests.program.driver import results

STALLED = Step(Turn("slow " * 20), Fault(stall_after_events=4))
SILENT = Step(Turn("late"), Fault(stall_before_headers_s=60))
OVERLOADED_FOR_LONG = Fault(status=529, headers={"retry-after": "50"})
OVERLOADED = Fault(status=529, headers={"retry-after": "0.01"})
FIRST = "claude-sonnet-5-5"


def closings(driver) -> list[str]:
    """The events that closed chains of retries, in order."""
    names = [line.get("subtype") for line in driver.lines]
    return [name for name in names if name in ("retry_recovered", "retry_exhausted")]


def test_an_idle_run_says_so_and_has_nothing_to_interrupt(drive, serve) -> None:
    serve(Turn("Hello."))
    driver = drive()
    idle = {
        "state": "idle",
        "turn": 0,
        "queued_messages": 0,
        "auto_retry": True,
        "retry": None,
        "model": FIRST,
        "waiting_for": "the next message",
    }
    assert driver.ask("get_status") == idle
    assert driver.ask("interrupt") == {"interrupted": False, "still_queued": []}
    driver.say("hi")
    driver.result()
    assert driver.ask("get_status") == {**idle, "turn": 1}
    assert driver.ask("abort_retry") == {"aborted": False}
    assert driver.finish().code == 0


def interrupted(driver) -> None:
    assert driver.ask("interrupt") == {"interrupted": True, "still_queued": []}
    ended = driver.result()
    assert (ended["subtype"], ended["terminal_reason"]) == ("error_during_execution", "interrupted")


def ended_well(driver) -> list[dict[str, Any]]:
    """The results. The server refuses invalid requests, so an answer proves that the conversation is valid."""
    ran = driver.finish()
    assert (ran.code, [result["exit_code"] for result in results(ran)]) == (0, [130, 0])
    return results(ran)


def test_an_interrupt_ends_a_stream_and_not_the_queued_message(drive, serve) -> None:
    server = serve(STALLED, Turn("Hello."))
    driver = drive("--include-partial-messages")
    driver.say("first", "second")
    driver.delta()
    status = driver.ask("get_status")
    assert (status["state"], status["queued_messages"], status["retry"]) == ("working", 1, None)
    interrupted(driver)
    ended_well(driver)
    assert [message["role"] for message in server.requests[-1].json()["messages"]] == ["user"]


def test_an_interrupt_in_a_backoff_ends_its_message_alone_and_closes_its_chain_once(drive, serve) -> None:
    server = serve(OVERLOADED_FOR_LONG, OVERLOADED, Turn("second"))
    driver = drive()
    driver.say("first", "second")
    driver.event("api_retry")
    status = driver.ask("get_status")
    assert status["waiting_for"] == "retry 1 of 4"
    assert (status["retry"]["is_waiting"], status["retry"]["attempt"]) == (True, 1)
    assert 0 < status["retry"]["seconds_left"] <= 50
    assert "529" in status["retry"]["message"]
    interrupted(driver)
    assert ended_well(driver)[1]["retries"] == 1
    assert closings(driver) == ["retry_exhausted", "retry_recovered"]
    assert len(server.requests) == 3


@pytest.mark.parametrize("steps", [[OVERLOADED_FOR_LONG], [OVERLOADED, SILENT]], ids=["wait", "request"])
def test_a_cancelled_retry_ends_its_message_as_75_and_the_next_one_works(drive, serve, steps) -> None:
    server = serve(*steps, OVERLOADED, Turn("Hello."))
    driver = drive()
    driver.say("first", "second")
    driver.event("api_retry")
    assert server.wait_for_requests(len(steps), PATIENCE_S)
    assert driver.ask("abort_retry") == {"aborted": True}
    ended = driver.result()
    assert (ended["terminal_reason"], ended["api_error_status"]) == ("api_unavailable", 529)
    assert driver.event("retry_exhausted")["error"] == "Retry cancelled"
    ran = driver.finish()
    assert (ran.code, [result["exit_code"] for result in results(ran)]) == (0, [75, 0])
    assert [result["retries"] for result in results(ran)] == [len(steps) - 1, 1]
    assert closings(driver) == ["retry_exhausted", "retry_recovered"]
    assert [line["attempt"] for line in driver.lines if line.get("subtype") == "api_retry"] == [1, 1]
    assert "[retry] Failed after" in ran.stderr


def test_the_model_changes_with_the_next_request_and_null_goes_back(drive, serve) -> None:
    server = serve(*[Turn([Thinking("hm"), Text(word)]) for word in ("one", "two", "three", "four")])
    driver = drive()
    asked = []
    for requested in (None, "haiku", "claude-opus-5-5", None):
        name = driver.ask("set_model", model=requested)["model"]
        assert driver.ask("get_status")["model"] == name
        asked.append(name)
        driver.say("hi")
        driver.result(len(asked))
    assert driver.finish().code == 0
    assert asked == [FIRST, "claude-haiku-5-5", "claude-opus-5-5", FIRST]
    bodies = [sent.json() for sent in server.requests]
    assert [body["model"] for body in bodies] == asked
    thoughts = [json.dumps(body["messages"]).count('"type": "thinking"') for body in bodies]
    assert thoughts == [0, 0, 0, 1]  # each model sees its own


def test_a_target_that_is_not_there_is_refused_and_nothing_changes(drive, serve, ralph) -> None:
    server = serve(Turn("one"), Turn("two"))
    targets = [
        f"[[targets]]\nname = '{name}'\nmodel = '{model}'\nbase_url = '{server.base_url}'\n"
        "api_key_env = 'ANTHROPIC_API_KEY'\n"
        for name, model in (("main", "claude-sonnet-5-5"), ("spare", "claude-haiku-5-5"))
    ]
    (ralph.cwd / "own.toml").write_text("".join(targets))
    driver = drive("--config", "own.toml")
    assert driver.ask("set_model", model="opus") == "there is no target 'opus'; the targets are main, spare"
    assert driver.ask("get_status")["model"] == "main"
    driver.say("hi")
    driver.result()
    assert driver.ask("set_model", model="spare") == {"model": "spare"}
    driver.say("more")
    assert driver.finish().code == 0
    assert [sent.json()["model"] for sent in server.requests] == ["claude-sonnet-5-5", "claude-haiku-5-5"]
