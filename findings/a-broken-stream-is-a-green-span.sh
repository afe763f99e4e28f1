#!/bin/sh
# Packages (PyPI): opentelemetry-instrumentation-openai and -anthropic 0.62.4 (OpenLLMetry), openinference-instrumentation-openai
#                  0.1.66 and -anthropic 3.1.0, logfire 5.4.0, langfuse 5.0.4; openai 3.57.0, anthropic 2.14.0.
#
# A streamed answer ends in the middle: the server sends an error event ("overloaded"), or the connection is lost. The
# SDK raises in each case. What does the span say with which these packages record the call, with the blocking client
# and with the asynchronous one? And what is the count of the output where the usage comes twice in a stream (50, then
# 100 tokens: Anthropic documents that it counts from the beginning)?
#
# One would expect: a span with status ERROR for every call that raised, as OpenTelemetry's conventions have it, and 100.
# Seen, the same for the error event and the lost connection:
#                          chat, blocking   chat, async   messages, blocking   messages, async   output
#   opentelemetry-instr.   OK               OK            no span at all       ERROR             151
#   openinference          ERROR            ERROR         ERROR                ERROR             100
#   logfire                ERROR            ERROR         ERROR                ERROR             100
#   langfuse               UNSET            UNSET
# So an hour of answers that broke off is green in one, says nothing in another, and with Anthropic's blocking client is a gap.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 anthropic==2.14.0 logfire==5.4.0 langfuse==5.0.4 \
    opentelemetry-instrumentation-openai==0.62.4 opentelemetry-instrumentation-anthropic==0.62.4 \
    openinference-instrumentation-openai==0.1.66 openinference-instrumentation-anthropic==3.1.0 ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

# One call: prints the statuses of the spans that are about an answer, and their counts of the output.
cat >"$dir/call.py" <<'PY'
import asyncio, os, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

package, api, way, base = sys.argv[1:]
exporter, provider = InMemorySpanExporter(), TracerProvider()
processor = SimpleSpanProcessor(exporter)
provider.add_span_processor(processor)
if api == "chat":
    from openai import AsyncOpenAI as Later, OpenAI as Now
    options = {"stream_options": {"include_usage": True}}
    call = lambda client: client.chat.completions.create
else:
    from anthropic import Anthropic as Now, AsyncAnthropic as Later
    options = {"max_tokens": 200}
    call = lambda client: client.messages.create
if package == "opentelemetry" and api == "chat":
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor as Instrumentor
elif package == "opentelemetry":
    from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor as Instrumentor
elif package == "openinference" and api == "chat":
    from openinference.instrumentation.openai import OpenAIInstrumentor as Instrumentor
elif package == "openinference":
    from openinference.instrumentation.anthropic import AnthropicInstrumentor as Instrumentor
elif package == "langfuse":
    from langfuse import Langfuse
    kept = Langfuse(public_key="pk", secret_key="sk", base_url=base, tracer_provider=provider)
    from langfuse.openai import AsyncOpenAI as Later, OpenAI as Now
if package.startswith("open"):
    Instrumentor().instrument(tracer_provider=provider)
client = (Now if way == "blocking" else Later)(api_key="key", base_url=base, max_retries=0)
if package == "logfire":
    import logfire
    logfire.configure(send_to_logfire=False, console=False, additional_span_processors=[processor])
    (logfire.instrument_openai if api == "chat" else logfire.instrument_anthropic)(client)
options |= {"model": "a-model", "messages": [{"role": "user", "content": "hello"}], "stream": True}


async def later():
    async for _ in await call(client)(**options):
        pass


raised = "whole"
try:
    if way == "blocking":
        for _ in call(client)(**options):
            pass
    else:
        asyncio.run(later())
except Exception:
    raised = "raised"
spans = exporter.get_finished_spans()
# Logfire has a second span for the request, which ends before the answer begins.
spans = [one for one in spans if package != "logfire" or one.name.startswith("streaming response")]
names = "gen_ai.usage.output_tokens", "llm.token_count.completion"
counts = [str(one.attributes[name]) for one in spans for name in names if name in one.attributes]
print(raised, "+".join(one.status.status_code.name for one in spans) or "none", "+".join(counts) or "-", flush=True)
os._exit(0)
PY

cat >"$dir/check.py" <<'PY'
import http.server, json, os, subprocess, sys, threading


def chunk(delta, reason=None):
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "a-model",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def chat(how):
    parts = [chunk({"role": "assistant", "content": "One "})]
    if how == "error":
        parts.append({"error": {"message": "Overloaded", "type": "server_error", "code": None}})
    else:
        parts += [chunk({"content": "two."}), chunk({}, "stop"),
                  chunk({}) | {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 100, "total_tokens": 112}}]
    return "".join(f"data: {json.dumps(one)}\n\n" for one in parts) + "data: [DONE]\n\n" * (how != "error")


def messages(how):
    message = {"id": "m", "type": "message", "role": "assistant", "model": "a-model", "content": [], "stop_reason": None,
               "stop_sequence": None, "usage": {"input_tokens": 12, "output_tokens": 1}}
    parts = [{"type": "message_start", "message": message},
             {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
             {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "One two."}}]
    if how == "error":
        parts.append({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    else:
        ends = (None, 50), ("end_turn", 100)
        parts += [{"type": "content_block_stop", "index": 0},
                  *({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None},
                     "usage": {"output_tokens": count}} for reason, count in ends),
                  {"type": "message_stop"}]
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in parts)


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        how = self.path.split("/")[1]
        make = chat if self.path.endswith("/chat/completions") else messages if self.path.endswith("/messages") else None
        body = make(how).encode() if make else b""
        self.send_response(200 if make else 404)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if how == "lost" else body)
        self.close_connection = True


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
expected = {
    ("opentelemetry", "chat"): ("OK", "OK", "100"),
    ("opentelemetry", "messages"): ("none", "ERROR", "151"),
    ("openinference", "chat"): ("ERROR", "ERROR", "100"),
    ("openinference", "messages"): ("ERROR", "ERROR", "100"),
    ("logfire", "chat"): ("ERROR", "ERROR", "100"),
    ("logfire", "messages"): ("ERROR", "ERROR", "100"),
    ("langfuse", "chat"): ("UNSET", "UNSET", "-"),  # it counts elsewhere
}
changed = []
for (package, api), (blocking, later, count) in expected.items():
    for way, status in ("blocking", blocking), ("async", later):
        for how in "whole", "error", "lost":
            base = f"http://127.0.0.1:{server.server_port}/{how}" + "/v1" * (api == "chat")
            words = [sys.executable, "-W", "ignore", sys.argv[1], package, api, way, base]
            out = subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | {"OTEL_SDK_DISABLED": ""})
            seen = out.stdout.split()[-3:]
            if how == "whole":
                right = len(seen) == 3 and seen[0] == "whole" and seen[1] in ("OK", "UNSET") and seen[2] == count
            else:
                right = seen[:2] == ["raised", status]
            print(f"{package:14} {api:9} {way:9} {how:6} {' '.join(seen)}")
            changed += [] if right else [f"{package} {api} {way} {how}: {' '.join(seen) or out.stderr[-200:]}"]
print(f"CHANGED: {'; '.join(changed)}" if changed else "as described: a stream that broke is OK, UNSET or no span at all in two of four")
sys.exit(bool(changed))
PY
(cd "$dir" && "$dir/venv/bin/python" check.py "$dir/call.py")
