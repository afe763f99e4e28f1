#!/bin/sh
# Package: litellm 1.110.2 with tenacity 9.1.4 (PyPI).
#
# A server answers 500 to each request. LiteLLM promises one interface for all providers.
#
# One would expect: completion(num_retries=2) sends three requests, max_retries=2 does so too, and both do the same
# whether the model is "openai/..." or "anthropic/...".
# Seen (requests that reach the server; completion and acompletion alike):
#   arguments           openai/m        anthropic/m
#   none                3               1
#   max_retries=2       3               1   (the argument is accepted and has no effect)
#   num_retries=2       5               3
#   num_retries=1       3               2
#   num_retries=0       1               1
#   max_retries=0       1               1
#   num_retries=2 through Router        3 and 3
# For "openai/" the first of the tries of num_retries is itself three requests (the OpenAI SDK's own retries, whose
# header x-stainless-retry-count says 0, 1, 2, 0, 0), the others are one each: n retries are 2n + 1 requests.
#
# For whom it matters: who turns a model over from one provider to the other by its name alone, which is what LiteLLM is
# for. With no argument an agent survives a short outage of one provider and dies at the first 500 of the other, and
# max_retries does not mend that. An allowance that is reckoned as tries (requests a minute, time until the run gives
# up, calls of a paid gateway that bills failures) is too small by two thirds, or nothing is tried again.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check litellm==1.110.2 openai==3.57.0 tenacity==9.1.4 ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/check.py" <<'PY'
import asyncio, http.server, json, logging, sys, threading
import litellm

logging.disable(logging.CRITICAL)
litellm.suppress_debug_info = True
counts = []


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        counts.append(self.headers.get("x-stainless-retry-count"))
        body = json.dumps({"error": {"message": "no", "type": "server_error"}}).encode()
        self.send_response(500)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
ASK = [{"role": "user", "content": "go"}]


def requests(model, how, **options):
    counts.clear()
    place = {"api_base": f"http://127.0.0.1:{server.server_port}", "api_key": "none"}
    try:
        if how == "completion": litellm.completion(model, messages=ASK, **place, **options)
        elif how == "acompletion": asyncio.run(litellm.acompletion(model, messages=ASK, **place, **options))
        else:
            models = [{"model_name": "one", "litellm_params": {"model": model, **place}}]
            litellm.Router(model_list=models, **options).completion("one", messages=ASK)
    except litellm.exceptions.InternalServerError: return len(counts)
    raise SystemExit("CHANGED: the 500 is not raised as InternalServerError")


changed = False
CASES = [
    ({}, "completion", (3, 1)), ({}, "acompletion", (3, 1)),
    ({"max_retries": 2}, "completion", (3, 1)), ({"max_retries": 2}, "acompletion", (3, 1)),
    ({"num_retries": 2}, "completion", (5, 3)), ({"num_retries": 2}, "acompletion", (5, 3)),
    ({"num_retries": 1}, "completion", (3, 2)), ({"num_retries": 0}, "completion", (1, 1)), ({"max_retries": 0}, "completion", (1, 1)),
    ({"num_retries": 2}, "Router", (3, 3)),
]
for options, how, was in CASES:
    now = (requests("openai/m", how, **options), requests("anthropic/m", how, **options))
    label = f"{how}({', '.join(f'{k}={v}' for k, v in options.items())})"
    print(f"{label:30} openai {now[0]}, anthropic {now[1]}" + ("" if now == was else f"   CHANGED, was: {was}"))
    changed |= now != was
requests("openai/m", "completion", num_retries=2)
print("x-stainless-retry-count:", *counts)
changed |= counts != ["0", "1", "2", "0", "0"]
sys.exit(changed)
PY
NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 LITELLM_LOCAL_MODEL_COST_MAP=True "$dir/venv/bin/python" "$dir/check.py"
