#!/bin/sh
# Packages: anthropic 2.14.0, openai 3.57.0, httpx2 2.16.2, respx 0.23.1, pytest-httpx 0.36.2, pytest 9.1.1, vcrpy 9.4.2,
#           opentelemetry-instrumentation-httpx 0.66b2 (PyPI).
#
# A test mocks all HTTP of httpx with respx or pytest-httpx, whose promise is that a request that nobody mocked fails,
# and calls an SDK of Anthropic or OpenAI. These SDKs send with httpx2 by now.
#
# One would expect: the mock answers, or the request is refused; and tools that hook into httpx agree on the SDKs.
# Seen:
#   respx.mock with a route for everything        the real server is asked, with the real key; the mock counts no call
#   httpx_mock without any answer                 the same, and the test passes
#   vcrpy, the second time with record_mode none  the recording answers, the server is not asked
#   HTTPXClientInstrumentor().instrument()        no span (httpx2 has an instrumentor of its own in the same package)
#   http_client=httpx.Client()                    anthropic raises TypeError and names httpx2; openai takes it, and with
#                                                 it the mock of respx answers again
# So a suite that was offline stays green and asks the paid API after an upgrade of the SDK.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check anthropic==2.14.0 openai==3.57.0 httpx2==2.16.2 respx==0.23.1 \
    pytest==9.1.1 pytest-httpx==0.36.2 vcrpy==9.4.2 opentelemetry-instrumentation-httpx==0.66b2 opentelemetry-sdk==1.45.2 ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/service.py" <<'PY'
"""A server that counts requests and answers REAL, and one request of each SDK."""
import http.server, json, threading
import anthropic, openai

ASK = [{"role": "user", "content": "go"}]
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "REAL"}],
           "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
COMPLETION = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "REAL"}, "finish_reason": "stop"}]}
SEEN = []


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        SEEN.append(self.headers.get("x-api-key") or self.headers.get("authorization"))
        data = json.dumps(MESSAGE if self.path.endswith("messages") else COMPLETION).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
BASE = f"http://127.0.0.1:{server.server_port}"


def claude(**more):
    client = anthropic.Anthropic(api_key="real-key", base_url=BASE, max_retries=0, **more)
    return client.messages.create(model="m", max_tokens=9, messages=ASK).content[0].text


def chat(**more):
    client = openai.OpenAI(api_key="real-key", base_url=BASE, max_retries=0, **more)
    return client.chat.completions.create(model="m", messages=ASK).choices[0].message.content


def asked(call, **more):
    """What the call gives, and how many requests reached the server meanwhile."""
    before = len(SEEN)
    try:
        answer = call(**more)
    except TypeError as error:
        answer = "TypeError, names httpx2" if "httpx2" in str(error) else "TypeError"
    return answer, len(SEEN) - before
PY

cat >"$dir/test_guarded.py" <<'PY'
import pytest, service

@pytest.mark.parametrize("call", [service.claude, service.chat])
def test_nothing_is_mocked(httpx_mock, call):
    assert service.asked(call) == ("REAL", 1) and "real-key" in service.SEEN[-1]
PY

cat >"$dir/check.py" <<'PY'
import subprocess, sys
import httpx, respx, vcr
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from service import asked, chat, claude

seen = {}
for name, call in ("anthropic", claude), ("openai", chat):
    with respx.mock(assert_all_called=False) as mock:
        mock.route().mock(return_value=httpx.Response(200, json={}))
        seen[name, "respx"] = (*asked(call), mock.calls.call_count)
    with respx.mock(assert_all_called=False) as mock:
        answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "MOCK"}, "finish_reason": "stop"}]}
        mock.route().mock(return_value=httpx.Response(200, json=answer))
        seen[name, "respx, http_client=httpx.Client()"] = asked(call, http_client=httpx.Client())
    seen[name, "http_client=httpx.Client()"] = asked(call, http_client=httpx.Client())
    for mode in "once", "none":
        with vcr.use_cassette(f"{name}.yaml", record_mode=mode):
            seen[name, f"vcrpy, {mode}"] = asked(call)
spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
HTTPXClientInstrumentor().instrument(tracer_provider=provider)
for name, call in ("anthropic", claude), ("openai", chat):
    spans.clear()
    call()
    seen[name, "spans"] = len(spans.get_finished_spans())
tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "test_guarded.py"], capture_output=True, text=True)
seen["both", "pytest-httpx, tests that pass"] = tests.stdout.count("2 passed") * 2

for (name, what), value in seen.items():
    print(f"{name:10} {what:36} {value}")
expected = {
    ("both", "pytest-httpx, tests that pass"): 2,
    ("anthropic", "http_client=httpx.Client()"): ("TypeError, names httpx2", 0),
    ("anthropic", "respx, http_client=httpx.Client()"): ("TypeError, names httpx2", 0),
    ("openai", "http_client=httpx.Client()"): ("REAL", 1),
    ("openai", "respx, http_client=httpx.Client()"): ("MOCK", 0)}
for name in "anthropic", "openai":
    expected |= {(name, "respx"): ("REAL", 1, 0), (name, "vcrpy, once"): ("REAL", 1),
                 (name, "vcrpy, none"): ("REAL", 0), (name, "spans"): 0}
changed = [" ".join(key) for key in expected if seen[key] != expected[key]]
print(f"CHANGED: {'; '.join(changed)}" if changed else "as described: mocks of httpx let the SDKs through to the server")
sys.exit(bool(changed))
PY
(cd "$dir" && "$dir/venv/bin/python" check.py)
