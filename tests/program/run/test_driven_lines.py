"""Invalid lines of a driver have no effect, and an error message must not repeat secrets from them."""

from __future__ import annotations

import json
import threading

import pytest

from ralph.mock_api import Turn
from tests.driven.driver_lines import request, user
from tests.patience import PATIENCE_S
from tests.program.driver import errors, results
from tests.program.model_answers import DONE

# tests/driven/test_control_lines.py tests what is wrong with many more lines.
NO_USE = [
    b"{",
    b"[" * 100_000,
    b"\x00\x01",
    b'{"type": 1}',
    b'{"type": "user", "message": {"role": "user", "content": " "}}',
    b'{"type": "control_request", "request_id": 7, "request": {"subtype": "interrupt"}}',
    request("reboot"),
    request("set_model", model=7),
    request("set_auto_retry", enabled="yes"),
    b'{"type": "user", "x": "' + b"x" * 32 * 2**20 + b'"}',
]


def test_a_line_that_cannot_be_taken_is_an_error_each_and_the_task_is_done(drive, serve) -> None:
    may_go = threading.Event()

    def script(_request, _number):
        assert may_go.wait(PATIENCE_S)
        return Turn("Hello.")

    server = serve(script=script)
    driver = drive()
    driver.say("hi")
    assert server.wait_for_requests(1, PATIENCE_S)
    before = driver.ask("get_status")
    driver.send(*NO_USE)
    assert driver.ask("get_status") == before
    may_go.set()
    ran = driver.finish()
    assert (ran.code, len(results(ran)), len(errors(ran))) == (0, 1, len(NO_USE))
    assert "longer than 32 MiB" in errors(ran)[-1]
    assert max(map(len, errors(ran))) < 400


@pytest.mark.parametrize("key", ["sk-ant-test-0123456789abcdef", "sk-ant-api03-" + "0123456789ab" * 8])
def test_a_key_in_the_wrong_place_never_comes_back(drive, serve, ralph, key) -> None:
    ralph.environment["ANTHROPIC_API_KEY"] = key
    serve(Turn("Hello."))
    driver = drive()
    for line in (
        request("set_model", "r1", model=key),
        request(key, "r2"),
        request("set_auto_retry", "r3", enabled=key),
        request("interrupt", key * 8),
        json.dumps({"type": key}).encode(),
        json.dumps({"type": "user", "message": {"role": key}}).encode(),
        key.encode(),
    ):
        driver.send(line)
    assert driver.answer("r1") == '"model" holds a credential, not a model\'s name'
    driver.send(user(f"what is {key} for?"))
    ran = driver.finish()
    assert (ran.code, len(errors(ran))) == (0, 7)
    assert key[:20] not in ran.stdout + ran.stderr


def test_a_driver_gets_its_messages_back_when_work_on_them_begins(drive, serve) -> None:
    serve(DONE, DONE)
    driver = drive("--replay-user-messages")
    own = {"type": "user", "uuid": "mine-1", "message": {"role": "user", "content": "first"}}
    driver.send(json.dumps(own).encode())
    driver.say("second")
    driver.result(2)
    told = [line for line in driver.lines if line["type"] == "user"]
    assert [(line["message"], line["isReplay"]) for line in told] == [
        ({"role": "user", "content": text}, True) for text in ("first", "second")
    ]
    assert told[0]["uuid"] == "mine-1"
    assert told[1]["uuid"] != "mine-1"
    kinds = [line["type"] for line in driver.lines if line["type"] in ("user", "result")]
    assert kinds == ["user", "result", "user", "result"]
