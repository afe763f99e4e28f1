#!/bin/sh
# Packages: opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http 1.45.2 (PyPI);
#           @opentelemetry/sdk-trace-base 2.12.1 and @opentelemetry/exporter-trace-otlp-http 0.223.1 (npm).
#
# A job flushes its telemetry before it ends: force_flush(1000) in Python, await forceFlush() in JavaScript. The
# collector is down and answers 503 to each request; or it is being restarted and adds `retry-after: 30`.
#
# One would expect: Python's force_flush takes a second at the most and returns True if the spans are out and False if
# not, as its documentation has it; both languages report the loss to the caller; and a collector that names the time
# of its return is asked again, or the spans are kept.
# Seen:
#                        Python                                     JavaScript
#   503                  True, after about seven seconds            rejects: "Export failed with retryable status"
#   503, retry-after 30  True at once, one request                  rejects at once, one request
#   200                  True                                       resolves
#   503, logs            True, after about seven seconds
#   503, metrics         True, after about seven seconds
# In every case but 200 what was to be flushed is gone: Python drops it after the exporter's own ten seconds whatever
# the caller's limit, and `retry-after` beyond these ten means "do not retry" in both. Only the log says so.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check opentelemetry-sdk==1.45.2 \
    opentelemetry-exporter-otlp-proto-http==1.45.2 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" @opentelemetry/sdk-trace-base@2.12.1 \
        @opentelemetry/exporter-trace-otlp-http@0.223.1; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/flush.mjs" <<'JS'
import {BasicTracerProvider, BatchSpanProcessor} from '@opentelemetry/sdk-trace-base';
import {OTLPTraceExporter} from '@opentelemetry/exporter-trace-otlp-http';
const exporter = new OTLPTraceExporter({url: process.argv[2]});
const provider = new BasicTracerProvider({spanProcessors: [new BatchSpanProcessor(exporter)]});
provider.getTracer('job').startSpan('work').end();
console.log(await provider.forceFlush().then(() => 'resolves', () => 'rejects'));
process.exit(0);
JS

cat >"$dir/check.py" <<'PY'
import http.server, json, logging, subprocess, sys, threading, time
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

logging.disable(logging.CRITICAL)
POSTS = {}


class Collector(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + 2)
        self.rfile.readline()
    def do_POST(self):
        # The JavaScript exporter sends chunks.
        self.rfile.read(int(self.headers["content-length"])) if "content-length" in self.headers else self.chunks()
        POSTS[self.path] = POSTS.get(self.path, 0) + 1
        self.send_response(200 if "good" in self.path else 503)
        if "later" in self.path:
            self.send_header("retry-after", "30")
        self.send_header("content-length", "0")
        self.end_headers()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"


def spans(url):
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    provider.get_tracer("job").start_span("work").end()
    return provider


def logs(url):
    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(url)))
    provider.get_logger("job").emit(LogRecord(body="work"))
    return provider


def metrics(url):
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(url))])
    provider.get_meter("job").create_counter("work").add(1)
    return provider


seen = {}
for name, make in ("good", spans), ("down", spans), ("later", spans), ("down logs", logs), ("down metrics", metrics):
    path = "/python/" + name.replace(" ", "/")
    provider, start = make(base + path), time.monotonic()
    answer = provider.force_flush(1000)
    took = time.monotonic() - start
    seen["Python", name] = [answer, "over 3 s" if took > 3 else "under 3 s", "retried" if POSTS[path] > 1 else "one request"]
for name in "good", "down", "later":
    path = "/js/" + name
    out = subprocess.run(["node", sys.argv[1], base + path], check=True, capture_output=True, text=True).stdout.split()[-1]
    seen["JavaScript", name] = [out, "retried" if POSTS[path] > 1 else "one request"]

for key, value in seen.items():
    print(f"{key[0]:11} {key[1]:13} {value}")
lost = [True, "over 3 s", "retried"]
expected = {
    ("Python", "good"): [True, "under 3 s", "one request"], ("Python", "down"): lost, ("Python", "down logs"): lost,
    ("Python", "down metrics"): lost, ("Python", "later"): [True, "under 3 s", "one request"],
    ("JavaScript", "good"): ["resolves", "one request"], ("JavaScript", "down"): ["rejects", "retried"],
    ("JavaScript", "later"): ["rejects", "one request"]}
changed = [" ".join(key) for key in expected if seen[key] != expected[key]]
print(f"CHANGED: {'; '.join(changed)}" if changed else "as described: Python says True for what is lost")
sys.exit(bool(changed))
PY
(cd "$dir" && "$dir/venv/bin/python" check.py "$dir/flush.mjs")
