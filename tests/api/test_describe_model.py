"""A server is asked once for the description of a model. Whatever goes wrong, the answer is None and the run goes
on.
"""

from __future__ import annotations

import gzip
import json
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.client import DESCRIPTION_BYTES, HttpSettings, TargetClients, receive_description
from ralph.conversation.target import ModelDescription, Target
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.mock_api import Fault, MockApi, Model, Scenario, Step, Turn
from ralph.values.credentials import Credential, Secret
from ralph.values.limits import ClockLimits
from ralph.values.ports import SignalReceived
from ralph.values.servers import OPENAI_CHAT, OPENAI_RESPONSES
from tests.api.harness import (
    KEY,
    START,
    RawServer,
    await_no_exchange,
    end,
    http_answer,
    read_request,
    sse,
    text_block,
)
from tests.fakes import FakeClock
from tests.rows import every_row

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator


NUMBERS = {"max_input_tokens": 200_000, "max_tokens": 64_000}
SAID = ModelDescription(context_window=200_000, max_output=64_000)
DOCUMENT = {"type": "model", "id": "claude-test", "display_name": "Test", **NUMBERS}
MESSAGE = sse(START, *text_block(0, "ok"), *end())
SHORT_S = 0.3


@pytest.fixture
def describing() -> Iterator[Callable[..., MockApi]]:
    """Starts a server that describes "claude-test", or fails to, and answers every message."""
    servers: list[MockApi] = []

    def start(fault: Fault | None = None) -> MockApi:
        numbers = {} if fault is not None and fault.replaces_answer() else NUMBERS
        models = [Model("claude-test", fault=fault, **numbers)]
        scenario = Scenario([Step(Turn("ok"), repeat="forever")], models=models, validate=False)
        servers.append(MockApi(scenario).start())
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def padded(size: int) -> bytes:
    """The document, extended to this number of bytes."""
    plain = json.dumps(DOCUMENT | {"note": ""})
    return json.dumps(DOCUMENT | {"note": "x" * (size - len(plain))}).encode()


def test_the_servers_own_numbers_come_back(describing, rig) -> None:
    server = describing()
    assert (rig(server).describe(), len(server.lookups)) == (SAID, 1)


@every_row(
    ("model", "path"),
    [
        ("claude-test", b"/v1/models/claude-test"),
        ("anthropic/claude-opus-5.5", b"/v1/models/anthropic%2Fclaude-opus-5.5"),
        ("a b?c#d%2F", b"/v1/models/a%20b%3Fc%23d%252F"),
        ("modèle:8b", b"/v1/models/mod%C3%A8le%3A8b"),
    ],
)
def test_the_question_is_a_get_with_the_id_quoted_and_the_targets_own_headers(
    raw_server, rig, model, path
) -> None:
    server = raw_server(http_answer(json.dumps(DOCUMENT).encode(), "application/json"))
    client = rig(server.base_url + "/gateway", headers=(KEY, ("X-Team", "blue"), ("Anthropic-Beta", "b1")))
    assert client.describe(model) == SAID
    [request] = server.requests
    first, *lines = request.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert first == b"GET /gateway" + path + b" HTTP/1.1"
    fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    assert len(fields) == len(lines), "a header was sent twice"
    assert (fields[b"x-api-key"], fields[b"x-team"]) == (KEY[1].encode(), b"blue")
    assert (fields[b"anthropic-beta"], fields[b"anthropic-version"]) == (b"b1", b"2026-10-21")
    assert (fields[b"accept"], fields[b"accept-encoding"]) == (b"application/json", b"identity")
    assert not {b"content-type", b"content-length", b"transfer-encoding"} & fields.keys()


@every_row(
    ("server", "model", "fields", "description"),
    [
        ("vLLM, SGLang", "Qwen/Qwen3", {"max_model_len": 32_768}, (32_768, None)),
        (
            "Groq",
            "openai/gpt-oss-120b",
            {"context_window": 131_072, "max_completion_tokens": 65_536},
            (131_072, 65_536),
        ),
        ("Mistral", "mistral-x", {"max_context_length": 262_144, "capabilities": {}}, (262_144, None)),
        (
            "OpenRouter",
            "x/y:free",
            {
                "context_length": 200_000,
                "top_provider": {"context_length": 100_000, "max_completion_tokens": 8_192},
            },
            (200_000, 8_192),
        ),
        ("OpenAI, which tells nothing", "gpt-x", {}, None),
        ("no list", "gpt-x", None, None),
        ("nonsense", "gpt-x", {"max_model_len": "32k", "context_window": 0, "top_provider": [1]}, None),
    ],
)
@every_row("speaks", [OPENAI_CHAT, OPENAI_RESPONSES])
def test_other_servers_describe_their_models_in_a_list(
    raw_server, rig, speaks, server, model, fields, description
) -> None:
    others = [{"id": "another", "object": "model", "max_model_len": 5}, "junk"]
    data = None if fields is None else [*others, {"id": model, "object": "model", **fields}]
    served = raw_server(
        http_answer(json.dumps({"object": "list", "data": data}).encode(), "application/json")
    )
    client = rig(served.base_url + "/openai/v1", speaks=speaks)
    assert client.describe(model) == (description and ModelDescription(*description)), server
    assert served.requests[0].startswith(b"GET /openai/v1/models HTTP/1.1\r\n")
    assert b"anthropic" not in served.requests[0].lower()


SAYS_NOTHING: dict[str, Fault] = {
    "401": Fault(status=401),
    "404 with a description": Fault(status=404, body=DOCUMENT),
    "500 in HTML": Fault(status=500, body="<h1>oops</h1>"),
    "200 in HTML": Fault(body="<!doctype html><title>Sign in</title>"),
    "empty": Fault(body=""),
    "OpenAI's shape": Fault(body={"id": "m", "object": "model", "created": 1, "owned_by": "me"}),
    "a list": Fault(body=[DOCUMENT]),
    "no field": Fault(body={"type": "model", "id": "m"}),
    "nonsense numbers": Fault(body={"type": "model", "max_input_tokens": 0, "max_tokens": "many"}),
    "a number of 5000 digits": Fault(body=f'{{"type": "model", "max_tokens": {"9" * 5000}}}'),
    "deeper than anybody means it": Fault(body='{"type": "model", "x": ' + "[" * 50_000),
    "invalid UTF-8": Fault(body=b'{"type": "model", "max_tokens": 5, "id": "\xff"}'),
    "half": Fault(cut_after_bytes=40),
    "half that looks whole": Fault(cut_after_bytes=40, framing="close"),
    "3 MB": Fault(body=padded(3_000_000)),
    "compressed twice": Fault(
        body=gzip.compress(gzip.compress(padded(100))), headers={"content-encoding": "gzip, gzip"}
    ),
    "compressed, and huge": Fault(body=gzip.compress(padded(10**7)), headers={"content-encoding": "gzip"}),
    "not compressed as it says": Fault(body=b"no gzip", headers={"content-encoding": "gzip"}),
    "reset": Fault(reset_before_headers=True),
    "no HTTP": Fault(garbage="SSH-2.0-OpenSSH_9.6\r\n"),
}


@every_row("fault", SAYS_NOTHING.values())
def test_whatever_is_no_description_is_none_asked_for_once_and_breaks_no_message(
    describing, rig, fault
) -> None:
    server = describing(fault)
    client = rig(server)
    assert client.describe(within_s=1e6) is None
    assert (len(server.lookups), [*client.events.events], client.send().text) == (1, [], "ok")


def test_one_nonsense_number_does_not_take_the_other_with_it(describing, rig) -> None:
    fault = Fault(body={"type": "model", "max_input_tokens": 32_768, "max_tokens": 1e30})
    assert rig(describing(fault)).describe() == ModelDescription(32_768, None)


def test_a_model_that_the_server_does_not_know_is_none(describing, rig) -> None:
    assert rig(describing()).describe("another") is None


@every_row("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(describing, rig, status) -> None:
    elsewhere = describing()
    location = f"{elsewhere.base_url}/v1/models/claude-test"
    assert rig(describing(Fault(status=status, headers={"location": location}))).describe() is None
    assert elsewhere.lookups == ()


@pytest.mark.parametrize(
    ("size", "description"), [(DESCRIPTION_BYTES, SAID), (DESCRIPTION_BYTES + 1, None)], ids=["at", "over"]
)
def test_a_document_of_2_mib_is_read_and_a_byte_more_is_not(describing, rig, size, description) -> None:
    assert rig(describing(Fault(body=padded(size)))).describe() == description


def test_a_url_that_is_none_is_none(rig, describing) -> None:
    assert rig("http://ä..b", transport=rig(describing()).transport).describe() is None


# --- The bound


@every_row(
    "fault",
    [Fault(stall_before_headers_s=math.inf), Fault(drip_s=10), Fault(status=404, body="x" * 999, drip_s=10)],
)
def test_a_slow_server_is_given_up_at_the_bound_and_leaves_no_thread(describing, rig, fault) -> None:
    client = rig(describing(fault))
    started_s = time.monotonic()
    assert client.describe(within_s=SHORT_S) is None
    assert time.monotonic() - started_s >= SHORT_S
    assert await_no_exchange()
    assert client.send().text == "ok"


# --- Whoever stops the run is heard


@pytest.mark.parametrize(
    "fault", [Fault(stall_before_headers_s=math.inf), Fault(drip_s=10)], ids=["silence", "drip"]
)
def test_a_signal_ends_the_wait_at_once_and_its_thread(describing, rig, fault) -> None:
    client = rig(describing(fault))
    timer = threading.Timer(0.1, client.waiter.inbox.note_signal, [15])
    timer.start()
    with pytest.raises(SignalReceived):
        client.describe(within_s=1e6)
    timer.join()
    assert await_no_exchange()
    assert client.send().text == "ok"


# --- The connection


def keeping_alive(status: str, document: bytes) -> Callable[[socket.socket], None]:
    """Serves all requests of one connection: messages get an answer, and questions about models get `document`."""

    def serve(sock: socket.socket) -> None:
        while request := read_request(sock):
            is_message = request.startswith(b"POST")
            body, kind = (MESSAGE, "text/event-stream") if is_message else (document, "application/json")
            line = "200 OK" if is_message else status
            head = f"HTTP/1.1 {line}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body)

    return serve


@every_row(
    ("status", "document", "description"),
    [
        ("200 OK", json.dumps(DOCUMENT).encode(), SAID),
        ("200 OK", b"<html>", None),
        ("404 Not Found", b'{"type":"error"}', None),
    ],
)
def test_questions_and_messages_take_turns_on_one_connection(
    raw_server, rig, status, document, description
) -> None:
    server = raw_server(keeping_alive(status, document))
    client = rig(server)
    for _ in range(20):
        assert (client.describe(), client.send().text) == (description, "ok")
        # A message is complete before the end of its body has been read, but a description is not.
        assert await_no_exchange()
    assert server.connections == 1


def test_a_connection_that_was_given_up_is_not_used_again(raw_server, rig) -> None:
    def serve(sock: socket.socket) -> None:
        if read_request(sock).startswith(b"POST"):
            sock.sendall(http_answer(MESSAGE))
            return
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")
        sock.recv(65536)

    server = raw_server(serve)
    client = rig(server)
    assert client.describe(within_s=0.1) is None
    assert (client.send().text, server.connections) == ("ok", 2)


# --- Each target's server is asked with its own key, or not at all


SAID_SMALL = ModelDescription(context_window=32_768, max_output=4_096)
SMALL = b'{"type": "model", "max_input_tokens": 32768, "max_tokens": 4096}'


@pytest.fixture
def clients() -> Iterator[Callable[..., TargetClients]]:
    made: list[TargetClients] = []

    def make(ca_file: str | None = None) -> TargetClients:
        clock = SystemClock()
        connecting = HttpSettings(ca_file, ClockLimits(), InboxWaiter(clock), clock, str)
        made.append(TargetClients(connecting))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def server(raw_server: Callable[..., RawServer]) -> RawServer:
    return raw_server(http_answer(SMALL, "application/json"))


def test_each_target_is_asked_about_its_own_model(clients, server) -> None:
    own = clients()
    for model in ("local", "another"):
        assert own.describe_model(Target("a", model, server.base_url), 0) == SAID_SMALL
    lines = [request.partition(b"\r\n")[0] for request in server.requests]
    assert lines == [b"GET /v1/models/local HTTP/1.1", b"GET /v1/models/another HTTP/1.1"]


@pytest.mark.parametrize(("key", "sent"), [(0, b"x-api-key: first"), (1, b"x-api-key: second")])
def test_the_key_of_the_index_is_sent_with_the_targets_headers(clients, server, key, sent) -> None:
    target = Target(
        "a",
        "local",
        server.base_url,
        credentials=(
            Credential("x-api-key", Secret("first"), "A"),
            Credential("x-api-key", Secret("second"), "B"),
        ),
        headers=Secret((("x-team", "blue"),)),
    )
    assert clients().describe_model(target, key) == SAID_SMALL
    lines = server.requests[0].lower().split(b"\r\n")
    assert [line for line in lines if line.startswith(b"x-api-key")] == [sent]
    assert b"x-team: blue" in lines


def test_a_ca_file_that_cannot_be_used_is_none(clients, tmp_path) -> None:
    target = Target("a", "local", "https://api.example.test")
    assert clients(str(tmp_path / "missing.pem")).describe_model(target, 0) is None


def test_a_base_url_that_cannot_be_used_is_none(clients) -> None:
    assert clients().describe_model(Target("a", "local", "http://[::1"), 0) is None


class Endless:
    """An exchange whose next piece is always there at once."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.was_aborted = False

    def next_item(self, until_s: float, waiting_for: str) -> bytes:
        assert self._clock.seconds < until_s, f"{waiting_for}: asked again after the deadline"
        self._clock.seconds += 0.25
        return b""  # as from a compressed body that is nearly nothing

    def abort(self) -> None:
        self.was_aborted = True


def test_pieces_that_are_always_there_do_not_put_the_deadline_off() -> None:
    clock = FakeClock()
    endless: Any = Endless(clock)
    assert receive_description(endless, clock, until_s=5.0, waiting_for="a description") is None
    assert clock.seconds == 5.0
    assert endless.was_aborted
