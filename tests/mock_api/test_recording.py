"""Tests what the server records of a request, and what it never records."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import FOREVER, MockApi, RecordedRequest, Scenario, Step, Turn
from ralph.mock_api.server import Recorder, redact_headers, redact_path
from tests.mock_api.harness import sent
from tests.rows import every_row

if TYPE_CHECKING:
    import httpx

HELLO = Scenario(steps=(Step(Turn("Hello"), repeat=FOREVER),))
REQUEST = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "grüß dich"}]}
SECRET = "sk-do-not-keep"
SECRETS = {
    "authorization": f"Bearer {SECRET}",
    "x-api-key": SECRET,
    "cookie": f"a={SECRET}",
    "proxy-authorization": SECRET,
    "X-My-Token": SECRET,
    "api-key": SECRET,
}


def post(server: MockApi, path: str = "/v1/messages", **secrets: str) -> httpx.Response:
    headers = {"anthropic-version": "2023-06-01", **secrets}
    return sent("POST", server.base_url + path, json=REQUEST, headers=headers)


def add(recorder: Recorder, body: bytes = b"{}") -> RecordedRequest:
    return recorder.add(
        received_at="now", monotonic_s=0.0, method="POST", target="/v1/messages", headers={}, body=body
    )


def test_no_secret_is_kept_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with MockApi(HELLO, record=file) as server:
        post(server, "/v1/messages?beta=true&api_key=" + SECRET, **SECRETS)
        request = server.requests[0]
    assert SECRET not in file.read_text()
    assert SECRET not in repr(request)
    assert {request.headers[name.lower()] for name in SECRETS} == {"[redacted]"}
    assert request.path == "/v1/messages?beta=true&api_key=[redacted]"


@every_row(
    ("name", "is_secret"),
    [
        ("x-goog-api-key", True),
        ("x-amz-security-token", True),
        ("set-cookie", True),
        ("x-password", True),
        ("client-secret", True),
        ("content-type", False),
        ("anthropic-version", False),
        ("anthropic-beta", False),
        ("user-agent", False),
        ("x-stainless-retry-count", False),
    ],
)
def test_headers_that_look_like_credentials_are_replaced(name: str, is_secret: bool) -> None:
    assert redact_headers({name: "v"}) == {name: "[redacted]" if is_secret else "v"}


def test_a_query_without_secrets_stays_as_it_is() -> None:
    for path in ("/v1/messages", "/v1/messages?", "/v1/messages?beta=true&x", "/a?b=c=d"):
        assert redact_path(path) == path


def test_a_request_is_recorded_with_its_time_and_body() -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    with MockApi(HELLO) as server:
        post(server)
        post(server, "/elsewhere")
        first, second = server.requests
    assert (first.index, first.method, first.path, first.json()) == (0, "POST", "/v1/messages", REQUEST)
    assert first.body_bytes == len(first.body or b"")
    assert before < datetime.fromisoformat(first.received_at) < datetime.now(UTC)
    assert second.monotonic_s > first.monotonic_s
    assert (second.index, second.path) == (1, "/elsewhere")


def test_the_file_has_one_object_per_request_at_once_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with MockApi(HELLO, record=file) as server:
        post(server)
        sent("POST", f"{server.base_url}/v1/messages", content=b"\xff not json")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["index"] for line in lines] == [0, 1]
    assert [line["body"] for line in lines] == [REQUEST, "\ufffd not json"]
    assert lines[0].keys() == {
        *("index", "received_at", "monotonic_s", "api", "method", "path", "headers", "body_bytes", "body")
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_lookup_of_a_model_is_a_line_with_a_number_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with MockApi(HELLO, record=file) as server:
        for path in ("/v1/models/a?api_key=" + SECRET, "/v1/models/b"):
            sent("GET", server.base_url + path, headers={"x-api-key": SECRET})
            post(server)
        lookups = server.lookups
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    paths = ["/v1/models/a?api_key=[redacted]", "/v1/messages", "/v1/models/b", "/v1/messages"]
    assert ([line["path"] for line in lines], [line["index"] for line in lines]) == (paths, [0, 0, 1, 1])
    assert [line["body"] for line in lines] == ["", REQUEST, "", REQUEST]
    assert [lookup.path for lookup in lookups] == paths[::2]
    assert SECRET not in file.read_text()


def test_the_file_of_an_earlier_run_is_added_to(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    for _ in range(2):
        with MockApi(HELLO, record=file) as server:
            post(server)
    assert len(file.read_text().splitlines()) == 2


@every_row(("keep", "kept"), [(None, 5), (0, 0), (1, 1), (3, 3), (5, 5), (9, 5)])
def test_only_the_newest_bodies_are_kept(keep: int | None, kept: int) -> None:
    recorder = Recorder(keep_bodies=keep)
    for number in range(5):
        assert add(recorder, b"%d" % number).body == b"%d" % number  # a script sees it in any case
    bodies = [request.body for request in recorder.requests()]
    assert bodies == [None] * (5 - kept) + [b"%d" % n for n in range(5 - kept, 5)]
    assert [request.body_bytes for request in recorder.requests()] == [1] * 5


@every_row("keep", [0, 2])
def test_only_the_newest_requests_are_kept(keep: int) -> None:
    recorder = Recorder(keep_requests=keep, keep_bodies=1)
    for _ in range(5):
        add(recorder)
    assert [request.index for request in recorder.requests()] == list(range(5))[5 - keep :]
    assert recorder.count == 5


def test_a_body_that_was_not_kept_says_so() -> None:
    recorder = Recorder(keep_bodies=0)
    add(recorder)
    with pytest.raises(ValueError, match="not kept"):
        recorder.requests()[0].json()


def test_waiting_for_requests_ends_when_they_came_or_the_time_is_over() -> None:
    recorder = Recorder()
    add(recorder)
    assert recorder.wait_for(1, 0)
    assert not recorder.wait_for(2, 0.01)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_file_that_cannot_be_written_is_told_to_the_client() -> None:
    with MockApi(HELLO, record=Path("/dev/full")) as server:
        answer = post(server)
    assert answer.status_code == 500
    assert "cannot record" in answer.json()["error"]["message"]
