"""Several models, endpoints and keys, as a user meets them: which target is asked, how often, and how the run
ends.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.mock_api import Fault, Step, Text, Thinking, ToolUse, Turn
from tests.api.harness import http_answer, sse
from tests.program.faulty import DONE, HELLO, stream
from tests.program.kept_sessions import only_journal
from tests.program.several import (
    DOWN,
    at,
    keys_of,
    refusal,
    run,
    settings,
)

if TYPE_CHECKING:
    import socket

ECHO = Turn([ToolUse("Read", {"file_path": "."})])
"""A turn with a call that needs no process."""


def everything_kept(ralph) -> str:
    """The text of all files that the runs left in their home directory."""
    home = Path(ralph.environment["HOME"])
    return "".join(path.read_text(errors="replace") for path in home.rglob("*") if path.is_file())


# --- Moving on


def test_a18_another_target_answers_during_an_outage_exits_0(ralph, serve) -> None:
    first, second = serve(DOWN), serve(ECHO, DONE)
    path = settings(
        ralph, at("main", first.base_url), at("spare", second.base_url), policy="custom", base_delay_s=100
    )
    ran = run(ralph, path)
    assert (ran.code, len(first.requests), len(second.requests)) == (0, 1, 2)
    assert ran.result["result"] == "All done."
    assert ran.result["retries"] == 0
    assert "[retry]" not in ran.stderr
    assert "[target] main -> spare (" in ran.stderr
    assert "[target] spare answers" in ran.stderr
    assert ran.result["modelUsage"].keys() == {"model-spare"}


def test_the_events_of_a_change_have_their_fields(ralph, serve) -> None:
    """The first target is usable again after its cooldown, and a retry of the second target brings ralph back to
    it.
    """
    first = serve(Fault(status=529, headers={"retry-after": "0.05"}), DONE)
    second = serve(Turn([ToolUse("Bash", {"command": "sleep 0.1"})]))
    ran = run(ralph, settings(ralph, at("main", first.base_url), at("spare", second.base_url))).having(0)
    (init,) = ran.of("init")
    assert (init["model"], init["targets"]) == ("model-main", ["main", "spare"])
    known = {"type", "subtype", "uuid", "session_id"}
    told = {
        name: [{key: value for key, value in one.items() if key not in known} for one in ran.of(name)]
        for name in ("model_fallback", "model_fallback_succeeded", "model_fallback_recovered", "api_retry")
    }
    assert told == {
        "model_fallback": [{"turn": 1, "attempt": 1, "from": "main", "to": "spare", "reason": "overloaded"}],
        "model_fallback_succeeded": [{"turn": 1, "attempt": 2, "target": "spare"}],
        "model_fallback_recovered": [{"turn": 2, "attempt": 1, "target": "main"}],
        "api_retry": [],
    }


def test_the_events_of_a_retry_name_turn_and_target(ralph, serve) -> None:
    server = serve(ECHO, Fault(status=529), Fault(status=529), DONE)
    path = settings(ralph, at("main", server.base_url), at("spare", server.base_url))
    ran = run(ralph, path)
    (retry,) = ran.of("api_retry")
    assert (retry["turn"], retry["attempt"], retry["target"], retry["max_retries"]) == (2, 1, "spare", 2)
    assert (retry["error_status"], retry["kind"], retry["retry_delay_ms"]) == (529, "overloaded", 10)
    (recovered,) = ran.of("retry_recovered")
    assert (recovered["turn"], recovered["attempt"], recovered["retries"]) == (2, 3, 1)
    assert ran.objects.index(retry) < ran.objects.index(recovered)


def test_a12_where_all_targets_answer_with_damage_the_first_is_asked_once_more_exits_0(
    ralph, serve, answer_with
) -> None:
    garbled = http_answer(sse() + b"data: {oops\n\n")
    first = answer_with(garbled, stream(DONE))
    second = answer_with(garbled)
    ran = run(ralph, settings(ralph, at("main", first.base_url), at("spare", second.base_url)))
    assert (ran.code, len(first.requests), len(second.requests)) == (0, 2, 1)
    assert [one["reason"] for one in ran.of("model_fallback")][:1] == ["protocol"]
    assert [one["reason"] for one in ran.of("synthetic_retry")] == ["damaged"]


def test_a12_a_damaged_answer_is_asked_for_again_where_the_other_target_cannot_help_exits_0(
    ralph, serve, answer_with
) -> None:
    """The failure of the other target must not decide how the run ends."""
    first = answer_with(http_answer(sse() + b"data: {oops\n\n"), stream(DONE))
    second = serve(Step(fault=Fault(status=401), repeat="forever"))
    ran = run(ralph, settings(ralph, at("main", first.base_url), at("spare", second.base_url)))
    assert (ran.code, len(first.requests), len(second.requests)) == (0, 2, 1)


def test_a13_a_redirect_moves_on_to_the_next_target_and_is_not_followed_exits_0(ralph, serve) -> None:
    elsewhere = serve(HELLO)
    redirect = Fault(status=307, headers={"location": f"{elsewhere.base_url}/v1/messages"})
    first, server = serve(Step(fault=redirect, repeat="forever")), serve(DONE)
    ran = run(ralph, settings(ralph, at("main", first.base_url), at("spare", server.base_url)))
    assert (ran.code, len(first.requests), len(elsewhere.requests)) == (0, 1, 0)


def test_fallback_models_of_the_command_line_are_asked_at_one_server(ralph, serve) -> None:
    server = serve(Fault(status=529), Fault(status=529), Turn([Thinking("hm"), Text("I answer.")]))
    ran = ralph(
        "hi", "--model", "opus", "--fallback-model", "sonnet,qwen3", "--output-format", "stream-json", code=0
    )
    asked = [request.json()["model"] for request in server.requests]
    assert asked == ["claude-opus-5-5", "claude-sonnet-5-5", "qwen3"]
    (init,) = ran.of("init")
    assert init["targets"] == ["claude-opus-5-5", "sonnet", "qwen3"]


# --- Keys

GOOD, BAD = "sk-good-0123456789", "sk-bad-0123456789"


def test_a_key_that_is_refused_gives_way_to_the_next_one(ralph, answer_with) -> None:
    refused = refusal("401 Unauthorized", "authentication_error", says=f"unknown: {BAD}")
    finished: list[bytes] = [stream(ECHO), stream(ECHO), stream(DONE)]

    def answer(sock: socket.socket) -> None:
        sock.sendall(refused if keys_of(server.requests)[-1] == BAD else finished.pop(0))

    server = answer_with(answer)
    ralph.environment |= {"FIRST_KEY": BAD, "SECOND_KEY": GOOD}
    ran = run(
        ralph,
        settings(ralph, at("main", server.base_url, api_key_env=["FIRST_KEY", "SECOND_KEY"])),
        "--verbose",
    ).having(0)
    assert keys_of(server.requests) == [BAD, GOOD, GOOD, GOOD]
    assert "[notice] main: using the key of SECOND_KEY" in ran.stderr
    for secret in (GOOD, BAD):
        assert secret not in ran.stdout + ran.stderr + everything_kept(ralph)


def test_keys_that_are_all_refused_end_the_run_and_name_the_variable(ralph, answer_with) -> None:
    server = answer_with(refusal("401 Unauthorized", "authentication_error", says=f"{BAD} and {GOOD}"))
    ralph.environment |= {"FIRST_KEY": BAD, "SECOND_KEY": GOOD}
    path = settings(ralph, at("main", server.base_url, api_key_env=["FIRST_KEY", "SECOND_KEY"]))
    ran = run(ralph, path).having(77)
    assert keys_of(server.requests) == [BAD, GOOD]
    assert "Check the key: SECOND_KEY." in ran.stderr
    for secret in (GOOD, BAD):
        assert secret not in ran.stdout + ran.stderr + everything_kept(ralph)


def test_what_the_environment_says_of_model_and_server_does_not_reach_targets_of_their_own(
    ralph, serve, answer_with
) -> None:
    server = serve(DONE)
    foreign = serve(HELLO)
    ralph.environment["ANTHROPIC_BASE_URL"] = foreign.base_url
    ralph.environment["ANTHROPIC_MODEL"] = "another-model"
    ran = run(ralph, settings(ralph, at("main", server.base_url, "own-model")))
    assert (ran.code, len(foreign.requests)) == (0, 0)
    [request] = server.requests
    assert request.json()["model"] == "own-model"
    assert "x-api-key" not in request.headers, "the environment's key is for another server"


def test_one_that_may_answer_later_tells_the_end_though_another_is_refused_exits_75(ralph, serve) -> None:
    later = serve(Fault(status=529, headers={"x-should-retry": "false", "retry-after": "90"}))
    refused = serve(Fault(status=401))
    ran = run(ralph, settings(ralph, at("main", later.base_url), at("spare", refused.base_url)))
    assert (ran.code, ran.result["retry_after_s"]) == (75, 90)


# --- Going on


def heads(server) -> list[bytes]:
    return [request.body.partition(b',"messages":')[0] for request in server.requests]


def test_a_session_continues_with_the_head_that_each_target_was_sent(ralph, serve) -> None:
    first = serve(Fault(status=529, headers={"retry-after": "3600"}), HELLO)
    second = serve(Turn([Thinking("hm"), Text("I answer.")]), DONE)
    path = settings(ralph, at("main", first.base_url), at("spare", second.base_url))
    assert run(ralph, path).code == 0
    (ralph.cwd / "AGENTS.md").write_text("Instructions that came later.")
    again = ralph("and now?", "--continue", "--config", str(path))
    assert (again.code, again.stdout) == (0, "All done.\n")
    assert len(first.requests) == 1, "it asked to be left alone for an hour"
    assert heads(second)[0] == heads(second)[1]
    forked = serve(DONE)
    path = settings(ralph, at("main", first.base_url), at("spare", forked.base_url))
    assert ralph("and now?", "--continue", "--fork-session", "--config", str(path)).code == 0
    assert heads(forked) == heads(second)[:1]
    assert len(first.requests) == 1


def test_a_model_that_a_driver_chose_is_sent_the_same_head_by_the_next_run(ralph, serve) -> None:
    server = serve(HELLO, DONE)
    lines: list[dict[str, Any]] = [
        {
            "type": "control_request",
            "request_id": "r1",
            "request": {"subtype": "set_model", "model": "haiku"},
        },
        {"type": "user", "message": {"role": "user", "content": "hi"}},
        {"type": "user", "message": {"role": "user", "content": "again"}},
    ]
    ralph(
        *("--input-format", "stream-json", "--output-format", "stream-json"),
        stdin="".join(json.dumps(line) + "\n" for line in lines).encode(),
        code=0,
    )
    assert [request.json()["model"] for request in server.requests] == ["claude-haiku-5-5"] * 2
    (ralph.cwd / "AGENTS.md").write_text("Instructions that came later.")
    later = serve(DONE)
    assert ralph("and now?", "--continue", "--base-url", later.base_url).code == 0
    assert heads(later) == heads(server)[:1]
    assert only_journal(ralph).exists()
