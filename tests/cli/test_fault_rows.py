"""Rows of the list of faults as a user meets them: a real process, a real server, and the exit code (A1-A24).

The name of a test is its line in docs/faults.md: the row, what happens, the exit code.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.mock_api import ErrorEvent, Fault, Step, Text, ToolUse, Turn, as_events, encode_events
from tests.certificates import make_certificate
from tests.cli.conftest import KEY
from tests.effects.messages_api.harness import (
    START,
    RawServer,
    end,
    http_answer,
    read_request,
    sse,
    text_block,
    tool_block,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ralph.mock_api import Playable

HELLO = Turn("Hello there.")
DONE = Turn("All done.")
# A call whose effect can be counted; a broken answer that holds it must not leave a line.
APPEND = Turn([Text("Let me write."), ToolUse("Bash", {"command": "echo line >> effects"})])


@pytest.fixture
def answer_with(ralph) -> Iterator[Callable[..., RawServer]]:
    """A server that answers each request with these bytes, the last of them for ever; or with a function."""
    servers: list[RawServer] = []

    def start(*answers: bytes | Callable[[socket.socket], None]) -> RawServer:
        def serve(sock: socket.socket) -> None:
            server.requests.append(read_request(sock))
            answer = answers[min(len(server.requests), len(answers)) - 1]
            if isinstance(answer, bytes):
                sock.sendall(answer)
            else:
                answer(sock)

        server = RawServer(serve)
        servers.append(server)
        ralph.environment["ANTHROPIC_BASE_URL"] = server.base_url
        return server

    yield start
    for server in servers:
        server.close()


def stream(turn: Turn) -> bytes:
    return http_answer(encode_events(as_events(turn)))


def effects(ralph) -> list[str]:
    path = ralph.cwd / "effects"
    return path.read_text().splitlines() if path.exists() else []


def run_with(ralph, serve, *steps: Playable, **options: object) -> tuple[int, int, str]:
    """Exit code, number of requests, standard error of a run that waits for nothing."""
    ralph.retry_quickly()
    server = serve(*steps, **options)
    ran = ralph("hi")
    return ran.code, len(server.requests), ran.stderr


# --- No answer at all


def test_a1_a_server_that_stays_away_is_asked_five_times_exits_75(ralph) -> None:
    ralph.retry_quickly()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        ran = ralph("hi", "--base-url", f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert ran.code == 75
    assert ran.stderr.count("[error] connection refused") == 5


def test_a2_a_host_that_cannot_exist_is_named_and_not_asked_again_exits_69(ralph) -> None:
    name = "x" * 64 + ".invalid"  # longer than a label may be: no resolver needs to be asked
    ran = ralph("hi", "--base-url", f"http://{name}")
    assert ran.code == 69
    assert name in ran.last_line
    assert "[retry]" not in ran.stderr


@pytest.fixture
def tls_server(tmp_path, ralph) -> Iterator[Path]:
    """A server with a certificate that nobody signed; the certificate."""
    certificate = make_certificate(tmp_path, names="DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(sock: socket.socket) -> None:
        with suppress(ssl.SSLError), context.wrap_socket(sock, server_side=True) as secure:
            read_request(secure)
            secure.sendall(stream(HELLO))

    server = RawServer(serve)
    ralph.environment["ANTHROPIC_BASE_URL"] = f"https://localhost:{server.port}"
    yield tmp_path / "cert.pem"
    server.close()


def test_a3_a_certificate_that_nobody_signed_is_refused_and_the_way_out_named_exits_69(
    ralph, tls_server
) -> None:
    ran = ralph("hi")
    assert ran.code == 69
    assert "certificate not trusted" in ran.last_line
    assert "SSL_CERT_FILE" in ran.stderr
    assert "[retry]" not in ran.stderr


def test_a3_with_its_certificate_in_a_ca_file_the_server_is_trusted_exits_0(ralph, tls_server) -> None:
    ralph.environment["SSL_CERT_FILE"] = str(tls_server)
    assert ralph("hi").code == 0


@pytest.mark.parametrize("fault", [Fault(reset_before_headers=True), Fault(close_before_headers=True)])
def test_a4_a_connection_that_ends_before_any_byte_is_asked_again_exits_0(ralph, serve, fault) -> None:
    code, requests, _ = run_with(ralph, serve, fault, HELLO)
    assert (code, requests) == (0, 2)


def test_a4_a_server_that_always_hangs_up_is_asked_five_times_exits_75(ralph, serve) -> None:
    fault = Step(fault=Fault(close_before_headers=True), repeat="forever")
    code, requests, _ = run_with(ralph, serve, fault)
    assert (code, requests) == (75, 5)


def test_a5_a_reset_inside_the_headers_is_asked_again_exits_0(ralph, serve) -> None:
    code, requests, _ = run_with(ralph, serve, Fault(partial_headers_bytes=30), HELLO)
    assert (code, requests) == (0, 2)


def test_a5_garbage_instead_of_http_is_asked_five_times_and_shown_exits_75(ralph, serve) -> None:
    fault = Step(fault=Fault(garbage="SSH-2.0-OpenSSH_9.9\r\n"), repeat="forever")
    code, requests, stderr = run_with(ralph, serve, fault)
    assert (code, requests) == (75, 5)
    assert "not an HTTP answer" in stderr


# --- An answer that breaks off


@pytest.mark.parametrize("framing", ["close", "chunked", "reset"])
def test_a6_a7_an_answer_cut_in_a_tool_call_runs_nothing_and_is_asked_again_exits_0(
    ralph, serve, framing
) -> None:
    cut = Step(APPEND, Fault(cut_after_events=len(as_events(APPEND)) - 3, framing=framing))
    code, requests, stderr = run_with(ralph, serve, cut, APPEND, DONE)
    assert (code, requests) == (0, 3)
    assert effects(ralph) == ["line"]
    assert "[retry] Retrying from beginning of response..." in stderr


def test_a7_a_reset_after_the_whole_message_is_ignored_exits_0(ralph, serve) -> None:
    code, requests, _ = run_with(ralph, serve, Step(APPEND, Fault(framing="reset")), DONE)
    assert (code, requests) == (0, 2)
    assert effects(ralph) == ["line"]


def peak_mb(ralph, *arguments: str) -> tuple[int, float]:
    """Exit code, and the most memory that the process held."""
    process = ralph.start(*arguments)
    peak_kib = 0
    status = Path(f"/proc/{process.pid}/status")
    reader = threading.Thread(target=process.communicate)
    reader.start()
    while reader.is_alive():
        with suppress(OSError, IndexError):
            peak_kib = max(peak_kib, int(status.read_text().split("VmHWM:")[1].split()[0]))
        time.sleep(0.01)
    return process.returncode, peak_kib / 1024


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")


@linux_only
def test_a10_a_line_of_100_mb_is_refused_in_bounded_memory_exits_69(ralph, answer_with) -> None:
    def flood(sock: socket.socket) -> None:
        sock.sendall(http_answer(b"data: "))
        for _ in range(100):
            sock.sendall(b"x" * 1_000_000)

    answer_with(flood)
    code, mb = peak_mb(ralph, "hi")
    assert code == 69
    assert mb < 100


# --- An answer that makes no sense


def test_a12_json_that_does_not_parse_is_shown_redacted_and_not_asked_again_exits_69(
    ralph, answer_with
) -> None:
    server = answer_with(http_answer(sse(START) + f'data: {{"type": "oops {KEY}\n\n'.encode()))
    ran = ralph("hi")
    assert (ran.code, len(server.requests)) == (69, 1)
    assert "undecodable JSON in the stream" in ran.last_line
    assert "oops [redacted]" in ran.last_line


def test_a13_a_captive_portal_is_shown_by_type_title_and_text_exits_69(ralph, serve) -> None:
    page = "<html><title>Please log in</title><body>Hotel Wi-Fi</body></html>"
    code, requests, stderr = run_with(ralph, serve, Fault(status=200, body=page, content_type="text/html"))
    assert (code, requests) == (69, 1)
    for shown in ("Please log in", "text/html", "Hotel Wi-Fi"):
        assert shown in stderr


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a13_a_redirect_is_not_followed_and_takes_no_key_along_exits_69(ralph, serve, status) -> None:
    elsewhere = serve(HELLO)
    redirect = Fault(status=status, headers={"location": f"{elsewhere.base_url}/v1/messages"})
    code, requests, stderr = run_with(ralph, serve, redirect)
    assert (code, requests, len(elsewhere.requests)) == (69, 1, 0)
    assert "redirect" in stderr


@linux_only
def test_a14_an_error_body_of_1_gb_is_neither_read_nor_held_exits_0(ralph, serve) -> None:
    ralph.retry_quickly()
    server = serve(Fault(status=502, body="<h1>Bad gateway</h1>", huge_body_bytes=1_000_000_000), HELLO)
    started_s = time.monotonic()
    code, mb = peak_mb(ralph, "hi")
    assert (code, len(server.requests)) == (0, 2)
    assert mb < 60
    assert time.monotonic() - started_s < 5


def test_a15_an_overload_sent_with_200_is_asked_again_exits_0(ralph, serve) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    code, requests, _ = run_with(ralph, serve, Fault(status=200, body=error), HELLO)
    assert (code, requests) == (0, 2)


def test_a15_a_rejection_sent_with_200_is_not_asked_again_exits_77(ralph, serve) -> None:
    error = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    code, requests, _ = run_with(ralph, serve, Fault(status=200, body=error))
    assert (code, requests) == (77, 1)


def test_a15_json_of_some_other_kind_is_shown_and_not_asked_again_exits_69(ralph, serve) -> None:
    code, requests, stderr = run_with(ralph, serve, Fault(status=200, body={"hello": "world"}))
    assert (code, requests) == (69, 1)
    assert '{"hello": "world"}' in stderr


def test_a15_a_whole_message_with_an_empty_error_beside_it_is_an_answer_exits_0(ralph, serve) -> None:
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello."}],
        "stop_reason": "end_turn",
        "error": None,
    }
    code, requests, _ = run_with(ralph, serve, Fault(status=200, body=message))
    assert (code, requests) == (0, 1)


def test_a16_an_overload_inside_the_stream_is_asked_again_exits_0(ralph, serve) -> None:
    broken = Step(APPEND, Fault(error_event=ErrorEvent(after_events=5)))
    code, requests, stderr = run_with(ralph, serve, broken, APPEND, DONE)
    assert (code, requests) == (0, 3)
    assert effects(ralph) == ["line"]
    assert "overloaded_error" in stderr


def test_a16_a_billing_error_inside_the_stream_is_not_asked_again_exits_77(ralph, serve) -> None:
    broken = Step(APPEND, Fault(error_event=ErrorEvent(type="billing_error", message="pay", after_events=5)))
    code, requests, _ = run_with(ralph, serve, broken)
    assert (code, requests) == (77, 1)
    assert effects(ralph) == []


# --- Statuses


def test_a17_the_wait_is_the_servers_wish_to_the_millisecond_exits_0(ralph, serve) -> None:
    server = serve(Fault(status=429, headers={"retry-after": "0.25"}), HELLO)
    ran = ralph("hi")
    assert ran.code == 0
    first, second = server.requests
    assert 0.25 <= second.monotonic_s - first.monotonic_s < 1.5
    assert "[retry] Using retry-after: 0.25s" in ran.stderr


@pytest.mark.parametrize("wish", ["soon", "nan", "-5", "inf", "9" * 35])
def test_a17_a_wish_that_is_no_time_is_not_believed_exits_124(ralph, serve, wish) -> None:
    server = serve(Fault(status=429, headers={"retry-after": wish}), HELLO)
    ran = ralph("hi", "--max-time", "1")
    assert (ran.code, len(server.requests)) == (124, 1)
    waits = "leaves no time to wait " + ("60s" if wish[0] == "9" else "2s")
    assert waits in ran.last_line


def test_a17_a_wish_beyond_the_patient_budget_ends_at_once_and_names_the_time_exits_75(ralph, serve) -> None:
    server = serve(Fault(status=429, headers={"retry-after": "40000"}))
    ran = ralph("hi", "--retry", "patient", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 1)
    assert ran.result["retry_after_s"] == 40000
    assert "the server asks for 40000s" in ran.stderr


@pytest.mark.parametrize("status", [500, 503, 529])
def test_a18_an_outage_that_lasts_is_recorded_in_the_result_exits_75(ralph, serve, status) -> None:
    ralph.retry_quickly()
    server = serve(Step(fault=Fault(status=status), repeat="forever"))
    ran = ralph("hi", "--output-format", "json")
    assert (ran.code, len(server.requests)) == (75, 5)
    assert (ran.result["retries"], ran.result["api_error_status"]) == (4, status)
    assert "[retry] Failed after 4 retries" in ran.stderr


def test_a20_a_history_of_33_mb_that_is_refused_as_too_large_is_not_sent_again_exits_3(ralph, serve) -> None:
    (ralph.cwd / "large.txt").write_text(("x" * 120 + "\n") * 2000)
    reads = Turn([ToolUse("Read", {"file_path": "large.txt"}) for _ in range(8)])
    server = serve(Step(reads, repeat="forever"))  # the mock refuses what the API would: over 32 MB
    ran = ralph("hi", "--output-format", "json")
    assert ran.code == 3
    assert server.requests[-1].body_bytes > 32 * 1024 * 1024
    assert server.requests[-2].body_bytes < 32 * 1024 * 1024
    assert ran.result["api_error_status"] == 413
    assert ran.result["num_turns"] == len(server.requests) - 1


# --- Streams that break the protocol, and streams from the future


BROKEN_PROTOCOLS = {
    "second message_start": (sse(START, *text_block(0, "a"), START, *end()), "second message_start"),
    "index that jumps": (sse(START, *text_block(1, "a"), *end()), "index 1, expected 0"),
    "block twice": (sse(START, *text_block(0, "a"), *text_block(0, "a"), *end()), "index 0, expected 1"),
}


@pytest.mark.parametrize(("body", "says"), BROKEN_PROTOCOLS.values(), ids=BROKEN_PROTOCOLS.keys())
def test_a21_events_of_two_answers_or_out_of_order_are_refused_exits_69(
    ralph, answer_with, body, says
) -> None:
    server = answer_with(http_answer(body))
    ran = ralph("hi")
    assert (ran.code, len(server.requests)) == (69, 1)
    assert says in ran.last_line


def test_a23_a_damaged_tool_input_is_asked_again_and_never_run_exits_0(ralph, answer_with) -> None:
    command = json.dumps({"command": "echo line >> effects"})
    whole = sse(START, *tool_block(0, command), *end("tool_use"))
    damaged = whole.replace(b"effects", b"eff\xff\xfects")
    ralph.retry_quickly()
    server = answer_with(http_answer(damaged), http_answer(whole), stream(DONE))
    ran = ralph("hi")
    assert (ran.code, len(server.requests)) == (0, 3)
    assert effects(ralph) == ["line"]
    assert [path.name for path in ralph.cwd.iterdir()].count("effects") == 1
    assert "invalid UTF-8 inside a tool's input" in ran.stderr


def test_a23_damaged_text_is_shown_with_a_warning_exits_0(ralph, answer_with) -> None:
    answer_with(http_answer(sse(START, *text_block(0, "caf?"), *end()).replace(b"caf?", b"caf\xe9")))
    ran = ralph("hi")
    assert (ran.code, ran.stdout) == (0, "caf\ufffd\n")
    assert "invalid UTF-8" in ran.stderr


def test_a24_a_proxy_that_wants_a_password_ends_the_run_exits_77(ralph) -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 4\r\n\r\nnope"

    def refuse(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(refusal)

    proxy = RawServer(refuse)
    ralph.environment["HTTPS_PROXY"] = proxy.base_url
    ran = ralph("hi", "--base-url", "https://api.example.test")
    proxy.close()
    assert (ran.code, proxy.connections) == (77, 1)
    assert "407" in ran.last_line


# --- Text that was shown and does not count


def test_a6_text_of_a_broken_answer_is_marked_and_never_in_the_result_exits_0(ralph, serve) -> None:
    ralph.retry_quickly()
    half = Step(Turn("Half of it is wrong", id="broken"), Fault(cut_after_events=4, framing="close"))
    serve(half, HELLO)
    ran = ralph("hi", "--output-format", "stream-json", "--include-partial-messages")
    assert ran.code == 0
    kinds = [entry.get("subtype") or entry["type"] for entry in ran.objects]
    discarded = kinds.index("response_discarded")
    assert ran.objects[discarded]["message_id"] == "broken"
    assert kinds.index("stream_event") < discarded < kinds.index("assistant")
    said = [entry for entry in ran.objects if entry["type"] in {"assistant", "result"}]
    assert "Half" not in json.dumps(said)
    assert ran.stderr.index("Half of it") < ran.stderr.index("[discarded]") < ran.stderr.index("Hello there.")


def test_a6_in_text_mode_standard_output_holds_the_whole_answer_alone_exits_0(ralph, serve) -> None:
    ralph.retry_quickly()
    serve(Step(Turn("Half of it is wrong"), Fault(cut_after_events=4, framing="reset")), HELLO)
    ran = ralph("hi")
    assert (ran.code, ran.stdout) == (0, "Hello there.\n")
