"""Whole runs with MCP servers that answer wrongly, hang, restart, or are away for a while: a program over stdio, and a server
over streamable HTTP.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ralph.sandbox.landlock import support
from tests.patience import wait_until
from tests.program.mcp.test_mcp_servers import config, result, run
from tests.program.model_answers import DONE, calls
from tests.services.two_addresses import IN_A_PROCESS, needs_ipv6, taker

if TYPE_CHECKING:
    from collections.abc import Iterator


TOOLS = [{"name": "do", "inputSchema": {"type": "object", "additionalProperties": True}}]
INFO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "s", "version": "1"},
}
MIB = 1024 * 1024

# Does what the argument of its only tool says. Without one, it answers with the number of its process.
FAULTY = f"""
import json, os, sys, time
def put(line):
    os.write(1, line + b"\\n")
def text(words):
    return {{"content": [{{"type": "text", "text": words}}]}}
def do(how, number):
    def answer(**fields):
        put(json.dumps({{"jsonrpc": "2.0", "id": number, **fields}}).encode())
    match how:
        case "surrogate": answer(result=text("a \\ud800 b"))
        case "null": answer(result=None)
        case "neither": answer()
        case "utf8": put(json.dumps({{"jsonrpc": "2.0", "id": number, "result": text("a ! b")}}).encode().replace(b"!", b"\\xff"))
        case "broken": put(b'{{"jsonrpc":"2.0","id":%d,"result":{{"content":[' % number)
        case "no id": put(b'{{"jsonrpc":"2.0","id":null,"error":{{"code":-32700,"message":"what was that?"}}}}')
        case "batch": put(b'[{{"jsonrpc":"2.0","id":%d,"result":{{"content":[]}}}}]' % number)
        case "deep": put(b'{{"jsonrpc":"2.0","id":%d,"result":{{"x":%s}}}}' % (number, b"[" * 900 + b"]" * 900))
        case "wrong": answer(result={{"content": "words"}})
        case "long":
            for part in (b'{{"jsonrpc":"2.0","id":%d,"result":"' % number, *[b"x" * {MIB}] * 65, b'"}}\\n'):
                while part: part = part[os.write(1, part):]
        case "noise":
            put(b"just words"); put(b'{{"level":"info"'); put(b'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"\\\\ud800"}}}}')
            put(b'{{"jsonrpc":"2.0","method":"notifications/message","params":'); answer(result=text("heard"))
        case "hang": time.sleep(3600)
        case "wait": pass
        case "close output": os.close(1); time.sleep(3600)
        case "close input": answer(result=text("closed")); os.close(0); time.sleep(3600)
        case "write":
            try: open(os.path.expanduser("~/memory.json"), "w")
            except OSError as error: answer(result={{**text(str(error)), "isError": True}})
        case "die":
            with open("deaths", "a") as file: file.write("x")
            os._exit(3)
        case _: answer(result=text(str(os.getpid())))
for line in sys.stdin:
    message = json.loads(line)
    answers = {{"initialize": {INFO!r}, "tools/list": {{"tools": {TOOLS!r}}}, "ping": {{}}}}
    if message["method"] in answers:
        put(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]}}).encode())
    elif message["method"] == "tools/call":
        do(message["params"].get("arguments", {{}}).get("how"), message["id"])
"""

UNUSABLE = "its answer to the call cannot be used, and what the call did is done: "
WRONG_ANSWERS = {
    "surrogate": f"{UNUSABLE}Invalid JSON: ",
    "null": f"{UNUSABLE}it does not have the form of an answer",
    "neither": f"{UNUSABLE}it does not have the form of an answer",
    "utf8": f"{UNUSABLE}Invalid JSON: ",
    "broken": f"{UNUSABLE}Invalid JSON: EOF",
    "no id": f"{UNUSABLE}what was that?",
    "batch": f"{UNUSABLE}it does not have the form of an answer",
    "deep": f"{UNUSABLE}Invalid JSON: recursion limit exceeded",
    "wrong": f"{UNUSABLE}ValidationError: ",
    "long": f"{UNUSABLE}it has 68,157,4",
}


@pytest.fixture
def faulty() -> tuple[str, str]:
    return "--mcp-config", config(f={"command": "python3", "args": ["-c", FAULTY]})


def do(how: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    return "mcp__f__do", {"how": how, **more}


def notices(ran: Any) -> list[str]:
    return [line for line in ran.stderr.splitlines() if line.startswith("[notice] the MCP server")]


def test_an_answer_that_cannot_be_used_is_an_error_at_once_and_the_server_is_kept(
    ralph, serve, faulty
) -> None:
    """The limit of a call is ten minutes, as long as a test may last."""
    asked = [do(), *map(do, WRONG_ANSWERS), do("noise"), do(end=1)]
    server = serve(*map(calls, asked), DONE)
    ran = run(ralph, *faulty).having(0)
    told = [result(server, nth) for nth in range(1, len(asked) + 1)]
    for (how, says), (text, is_error) in zip(WRONG_ANSWERS.items(), told[1:-2], strict=True):
        assert is_error, how
        assert says in text, how
    assert told[-2] == ("heard", False)
    assert told[-1] == told[0], "the same process has answered"
    assert not notices(ran)


@pytest.mark.parametrize(("how", "is_kept"), [("hang", False), ("wait", True)])
def test_a_server_is_pinged_after_a_call_that_timed_out_and_restarted_if_it_hangs(
    ralph, serve, faulty, how, is_kept
) -> None:
    ralph.environment["MCP_TOOL_TIMEOUT"] = "2000"
    server = serve(calls(do()), calls(do(how)), calls(do(end=1)), DONE)
    ran = run(ralph, *faulty).having(0)
    assert "took longer than 2 s" in result(server, 2)[0]
    (before, _), (after, is_error) = result(server, 1), result(server, 3)
    assert not is_error, after
    assert (before == after) is is_kept
    lost = "[notice] the MCP server 'f' was lost (it did not answer a ping within 10 s): connected again"
    assert notices(ran) == ([] if is_kept else [lost])


@pytest.mark.parametrize("how", ["close output", "close input"])
def test_a_server_that_closes_its_output_or_input_is_noticed_at_once(ralph, serve, faulty, how) -> None:
    server = serve(calls(do(how)), *(calls(do(nth=nth)) for nth in range(2)), DONE)
    ran = run(ralph, *faulty).having(0)
    lost = result(server, 1 if how == "close output" else 2)
    assert lost[1]
    assert "ended during this call" in lost[0]
    assert not result(server, 3)[1]
    assert [line.rpartition(": ")[2] for line in notices(ran)] == ["connected again"]


# Answers only the first request, and the others with an error of the code in its argument.
NO_LIST = f"""
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    answer = {{"result": {INFO!r}}}
    if message["method"] != "initialize":
        answer = {{"error": {{"code": int(sys.argv[1]), "message": "no list"}}}}
    if "id" in message:
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], **answer}}), flush=True)
"""


@pytest.mark.parametrize(("code", "exit_code"), [(-32601, 0), (-32603, 78)])
def test_a_server_of_resources_alone_is_connected_and_has_no_tools(ralph, serve, code, exit_code) -> None:
    serve(DONE)
    ran = run(
        ralph, "--mcp-config", config(r={"command": "python3", "args": ["-c", NO_LIST, str(code)]})
    ).having(exit_code)
    assert ("the MCP server 'r' did not start: no list" in ran.stderr) == bool(exit_code)


@pytest.mark.sandboxed
@pytest.mark.skipif(support().abi == 0, reason="this kernel has no Landlock")
@pytest.mark.parametrize("variables", [{}, {"TOKEN": "${FAULTY_TOKEN}"}])
def test_what_the_sandbox_denied_to_a_server_is_told_with_its_error(ralph, serve, faulty, variables) -> None:
    """The server "memory" of the protocol's authors writes beside its own program."""
    server = serve(calls(do("write")), DONE)
    ralph.environment["FAULTY_TOKEN"] = "secret-of-the-server"
    servers = json.loads(faulty[1])
    servers["mcpServers"]["f"]["env"] = variables
    run(ralph, faulty[0], json.dumps(servers))
    said, is_error = result(server, 1)
    place = Path(ralph.environment["HOME"], "memory.json")
    assert is_error
    assert f"[the sandbox denies writing {place}; allowed for writing: the working directory, $TMPDIR" in said
    assert "; the user can open more to the server (sandbox.write)]" in said


def test_a_server_that_dies_again_and_again_comes_back_after_waits_that_grow(ralph, serve, faulty) -> None:
    server = serve(
        *(calls(do("die", nth=nth)) for nth in range(3)), calls(do()), calls(do("die")), calls(do()), DONE
    )
    ran = run(ralph, *faulty).having(0)
    for nth in (1, 2, 3, 5):
        assert "ended during this call" in result(server, nth)[0], nth
        assert "effects are unknown" in result(server, nth)[0], nth
    assert [result(server, nth)[1] for nth in (4, 6)] == [False, False]
    assert (ralph.cwd / "deaths").read_text() == "xxxx", "no call is repeated by itself"
    assert len(notices(ran)) == 4


def test_a_server_that_cannot_be_started_again_is_tried_again_and_a_call_says_when(
    ralph, serve, tmp_path
) -> None:
    """The program is a file that the first call removes, and that the answer to the last call brings back."""
    program = tmp_path / "server.py"
    program.write_text(FAULTY)
    ralph.environment["MCP_TIMEOUT"] = "4000"

    def play(_request: Any, index: int) -> Any:
        if index == 1:
            program.unlink()
        return calls(do("die")) if index == 0 else calls(do(nth=index)) if index < 3 else DONE

    server = serve(script=play)
    ran = run(ralph, "--mcp-config", config(f={"command": "python3", "args": [str(program)]})).having(0)
    for nth in (2, 3):
        text, is_error = result(server, nth)
        assert is_error
        assert text.startswith(
            "The call was not made: the MCP server 'f' is unavailable (Connection closed; its last words: "
        )
        assert "tries to reach it again. Do without its tools until then." in text
    waits = [line.partition("next try after ")[2].partition(" s")[0] for line in notices(ran)]
    assert waits == ["1", "2", "4", "8"][: len(waits)]
    assert len(waits) >= 2


# --- Streamable HTTP


class Server:
    """A server over streamable HTTP that can forget its sessions, fail, and be away."""

    def __init__(self) -> None:
        self.port = 0
        self.sessions = 0
        self.calls: list[str] = []
        self.unknown: tuple[int, str] = (404, "")
        """The status and the body of the answer to a request of an unknown session."""
        self.failures: list[int] = []
        """The statuses of the answers to the next requests."""
        self.paths: list[tuple[str, str | None]] = []
        """The targets of the POST requests, each with what it tells a proxy of its user."""
        self.encodings: list[str] = []
        """The content encodings that requests for a stream accept."""
        self.open: list[socket.socket] = []
        self.keeps_connections = True
        self._known: set[str] = set()
        self._http: ThreadingHTTPServer | None = None

    def start(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.open.append(self.connection)

            def do_POST(self) -> None:
                outer.paths.append((self.path, self.headers["proxy-authorization"]))
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.answer(self, message)
                self.close_connection = self.close_connection or not outer.keeps_connections

            def do_GET(self) -> None:
                outer.encodings.append(self.headers["accept-encoding"])
                if self.path == "/sse":
                    event = gzip.compress(b"event: endpoint\ndata: /messages\n\n")
                    _reply(self, 200, event, "text/event-stream", **{"content-encoding": "gzip"})
                else:
                    self.send_error(405)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            for connection in self.open:
                with suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)
            self._http = None
        self._known.clear()

    def forget(self) -> None:
        self._known.clear()

    def answer(self, to: BaseHTTPRequestHandler, message: dict[str, Any]) -> None:
        method = message["method"]
        session = to.headers.get("mcp-session-id")
        if self.failures:
            _reply(to, self.failures.pop(0), b"away", "text/plain")
        elif method == "initialize":
            self.sessions += 1
            session = f"session-{self.sessions}"
            self._known.add(session)
            _reply(to, 200, _result(message, INFO), **{"mcp-session-id": session})
        elif session not in self._known:
            status, body = self.unknown
            _reply(to, status, body.encode(), "application/json" if body else "text/plain")
        elif "id" not in message:
            _reply(to, 202, b"")
        elif method == "tools/call":
            self.calls.append(str(message["params"]["arguments"]["how"]))
            self._call(to, message, self.calls[-1], session)
        else:
            _reply(to, 200, _result(message, {"tools": TOOLS} if method == "tools/list" else {}))

    def _call(self, to: BaseHTTPRequestHandler, message: dict[str, Any], how: str, session: str) -> None:
        told = _result(message, {"content": [{"type": "text", "text": session}]})
        if how in {"long", "long, in another case"}:
            kind = "application/json" if how == "long" else "Application/JSON"
            _reply(to, 200, told.replace(b"session", b"x" * 65 * MIB), kind)
        elif how == "long event":
            _reply(to, 200, b"data: " + b"x" * 65 * MIB + b"\n\n", "text/event-stream")
        elif how == "gzip":
            _reply(to, 200, gzip.compress(told), **{"content-encoding": "gzip"})
        elif how == "gzip event":
            event = gzip.compress(b"data: " + told + b"\n\n")
            _reply(to, 200, event, "text/event-stream", **{"content-encoding": "gzip"})
        elif how == "cut":
            _reply(to, 200, b"event: other\ndata: x\n\n", "text/event-stream")
        elif how == "refuse":
            error = {"code": -32602, "message": "no such thing"}
            _reply(to, 400, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())
        else:
            _reply(to, 200, told)


def _result(message: dict[str, Any], result: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()


def _reply(
    to: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json", **headers: str
) -> None:
    to.send_response(status)
    for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
        to.send_header(name, value)
    to.end_headers()
    to.wfile.write(body)


@pytest.fixture
def remote() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


def at(remote: Server) -> tuple[str, str]:
    return "--mcp-config", config(f={"type": "http", "url": f"http://127.0.0.1:{remote.port}/mcp"})


UNKNOWN = '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}'


@pytest.mark.parametrize("unknown", [(404, ""), (404, UNKNOWN), (400, UNKNOWN)])
def test_a_server_that_does_not_know_the_session_gets_a_new_one_and_the_call(
    ralph, serve, remote, unknown
) -> None:
    remote.unknown = unknown

    def play(_request: Any, index: int) -> Any:
        if index in {1, 2}:
            remote.forget()
        return calls(do(str(index))) if index < 3 else DONE

    server = serve(script=play)
    ran = run(ralph, *at(remote)).having(0)
    assert [result(server, nth) for nth in (1, 2, 3)] == [(f"session-{nth}", False) for nth in (1, 2, 3)]
    assert remote.calls == ["0", "1", "2"]
    assert len(notices(ran)) == 2
    assert f"HTTP {unknown[0]}" in notices(ran)[0]


def test_a_call_waits_for_a_server_that_is_away_and_is_sent_once(
    ralph, serve, remote, tmp_path: Path
) -> None:
    def play(_request: Any, index: int) -> Any:
        if index == 1:
            remote.stop()
        return calls(do(str(index))) if index < 2 else DONE

    server, errors = serve(script=play), tmp_path / "stderr"
    with errors.open("wb") as stderr:
        process = ralph.start(
            "go", "--output-format", "stream-json", *at(remote), stdout=subprocess.DEVNULL, stderr=stderr
        )
    wait_until(lambda: b"next try after 2 s" in errors.read_bytes())
    remote.start()
    ralph.finish(process)
    assert process.returncode == 0
    assert result(server, 2) == ("session-2", False)
    assert remote.calls == ["0", "1"]
    told = [line for line in errors.read_text().splitlines() if "the MCP server" in line]
    assert len(told) >= 3
    assert told[0].endswith("next try after 1 s (ConnectError: All connection attempts failed)")
    assert told[-1].endswith(": connected again")


def test_a_server_that_answers_with_failures_is_pinged_and_comes_back(ralph, serve, remote) -> None:
    def play(_request: Any, index: int) -> Any:
        if index == 1:
            remote.failures = [503, 503, 502]
        return calls(do(str(index))) if index < 3 else DONE

    server = serve(script=play)
    ran = run(ralph, *at(remote)).having(0)
    assert "(HTTP 503). Its effects are unknown" in result(server, 2)[0]
    assert result(server, 3) == ("session-2", False)
    assert remote.calls == ["0", "2"]
    assert len(notices(ran)) == 2
    assert "it answered a ping with HTTP 503" in notices(ran)[0]


def test_an_answer_over_http_that_cannot_be_used_is_an_error_and_the_session_is_kept(
    ralph, serve, remote
) -> None:
    """Compressed, an answer could be of any size, and is not looked at."""
    asked = ["long", "long event", "gzip", "gzip event", "cut", "refuse", "long, in another case", "echo"]
    server = serve(*(calls(do(how)) for how in asked), DONE)
    ran = run(ralph, *at(remote)).having(0)
    says = (
        "it has 68,157,",
        "SSE stream failed: ",
        "it is compressed (gzip), which is not taken",
        "SSE stream failed: it is compressed (gzip), which is not taken",
        "SSE stream ended without a response",
        "no such thing (HTTP 400)",
        "it has 68,157,",
    )
    for nth, words in enumerate(says, 1):
        text, is_error = result(server, nth)
        assert is_error
        assert words in text
        assert ("effects are unknown" in text) is (nth in {2, 4, 5})
    assert result(server, 8) == ("session-1", False)
    assert remote.calls == asked
    assert not notices(ran)


def test_a_compressed_stream_of_a_server_is_not_read(ralph, serve, remote) -> None:
    serve()
    ran = run(
        ralph, "--mcp-config", config(f={"type": "sse", "url": f"http://127.0.0.1:{remote.port}/sse"})
    ).having(78)
    assert ran.result["errors"] == [
        "the MCP server 'f' did not start: SSEError: it is compressed (gzip), which is not taken"
    ]
    assert remote.encodings == ["identity"]


def test_a_server_elsewhere_is_reached_through_the_proxy_with_its_password(ralph, serve, remote) -> None:
    ralph.environment |= {
        "HTTP_PROXY": f"http://me:pw-of-proxy@127.0.0.1:{remote.port}",
        "NO_PROXY": "other.test",
    }
    serve(calls(do("1")), DONE)
    run(ralph, "--mcp-config", config(f={"type": "http", "url": "http://tools.test/mcp"})).having(0)
    assert remote.calls == ["1"]
    user = f"Basic {base64.b64encode(b'me:pw-of-proxy').decode()}"
    assert set(remote.paths) == {("http://tools.test/mcp", user)}


@pytest.mark.parametrize(
    ("host", "exempt", "code"),
    [("127.0.0.1", "", 0), ("10.1.2.3", "10.0.0.0/8", 78), ("tools.invalid", "x  *.invalid", 78)],
)
def test_a_server_on_loopback_or_in_no_proxy_is_reached_without_the_proxy(
    ralph, serve, remote, host, exempt, code
) -> None:
    """The last two are not there, which is the proof that nobody asks the proxy for them."""
    server = serve(DONE)
    ralph.environment |= {
        "HTTP_PROXY": "http://127.0.0.1:9" if code == 0 else f"http://127.0.0.1:{remote.port}"
    }
    ralph.environment |= {"NO_PROXY": exempt}
    ralph.user_file.write_text("[mcp]\nstart_s = 1\n")
    url = f"http://{host}:{remote.port if code == 0 else 80}/mcp"
    run(ralph, "--mcp-config", config(f={"type": "http", "url": url})).having(code)
    assert len(server.requests) == (1 if code == 0 else 0)
    assert (remote.paths != []) is (code == 0)


def test_a_command_that_listens_at_the_other_address_of_a_server_gets_no_header(ralph, serve, remote) -> None:
    needs_ipv6()
    ralph.run_first(IN_A_PROCESS)
    remote.keeps_connections = False
    serve(calls(*taker(remote.port)), calls(do("1")), DONE)
    server = {
        "type": "http",
        "url": f"http://two.localhost:{remote.port}/mcp",
        "headers": {"x-key": "a-word"},
    }
    ran = run(ralph, "--mcp-config", config(f=server))
    assert not (ralph.cwd / "taken").exists()
    assert ran.code == 0, ran.stderr
    assert (ralph.cwd / "listening").exists()
    assert remote.calls == ["1"]
