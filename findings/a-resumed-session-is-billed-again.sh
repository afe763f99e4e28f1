#!/bin/sh
# Package: claude-agent-sdk 0.2.189 (PyPI; brings Claude Code 2.1.332, about 400 MB).
#
# Each run below sends one request, which the loopback server bills with the same tokens: 0.018 dollars a run.
#
# One would expect: total_cost_usd in a run's ResultMessage is what this run has cost, like the `usage` beside it; or,
# if it is the session's, that max_budget_usd is held against the same number.
# Seen:
#   run                                        total_cost_usd   modelUsage.inputTokens   usage.input_tokens
#   a new session                              0.018            1000                     1000
#   resume=, in a process of its own           0.036            2000                     1000
#   resume= again                              0.054            3000                     1000
#   resume=, fork_session=True (a new id)      0.072            4000                     1000
#   resume= of the first id again              0.072            4000                     1000
#   resume=, max_budget_usd=0.03               0.090 and success: three times its budget, by its own figure
#   resume=, max_budget_usd=0.01               0.108, error_max_budget_usd, usage.input_tokens 0 though the request was paid
# total_cost_usd and modelUsage count the session since its beginning, and each fork its common past once more; usage
# and the budget count this process alone.
#
# For whom it matters: whoever adds up total_cost_usd of nightly runs that resume one session. Ten runs of 0.018 come
# to 0.99 instead of 0.18, so a limit on the sum stops the work at a fifth of the money; whoever takes max_budget_usd
# for a limit on the session spends it anew at each resume; and whoever reckons from `usage` misses the runs that the
# budget ended. What a run has cost is the difference to the session's last result.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check claude-agent-sdk==0.2.189 ||
    { echo "skipped: the package cannot be installed"; exit 77; }
mkdir "$dir/home" "$dir/work"

cat >"$dir/check.py" <<'PY'
import asyncio, http.server, json, os, sys, threading
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query

USAGE = {"input_tokens": 1000, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 1000}
START = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": [],
         "stop_reason": None, "stop_sequence": None, "usage": USAGE}
EVENTS = [
    {"type": "message_start", "message": START},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": USAGE},
    {"type": "message_stop"},
]
paid = []


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        self.send_response(200)
        if not ask.get("stream"):
            self.end_headers()
            return self.wfile.write(b'{"input_tokens": 1}')
        paid.append(1)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in EVENTS:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{server.server_port}"
changed = False


async def run(label, was, **options):
    """Makes one run, compares (cost, modelUsage, usage, subtype, requests) with WAS, returns the session's id."""
    global changed
    paid.clear()
    settings = ClaudeAgentOptions(model="claude-sonnet-4-5", cwd=sys.argv[1] + "/work", setting_sources=[], **options)
    try:
        async for message in query(prompt="go", options=settings):
            if isinstance(message, ResultMessage): result = message
    except Exception:  # it raises once more after an error result
        if not result.is_error: raise
    (model,) = result.model_usage.values()
    now = (round(result.total_cost_usd, 3), model["inputTokens"], result.usage["input_tokens"], result.subtype, len(paid))
    print(f"{label:32}", *now, "" if now == was else f"   CHANGED, was: {was}")
    changed |= now != was
    return result.session_id


async def main():
    one = await run("a new session", (0.018, 1000, 1000, "success", 1))
    await run("resume", (0.036, 2000, 1000, "success", 1), resume=one)
    await run("resume", (0.054, 3000, 1000, "success", 1), resume=one)
    fork = await run("resume, fork_session", (0.072, 4000, 1000, "success", 1), resume=one, fork_session=True)
    assert fork != one
    await run("resume of the first", (0.072, 4000, 1000, "success", 1), resume=one)
    await run("resume, max_budget_usd=0.03", (0.09, 5000, 1000, "success", 1), resume=one, max_budget_usd=0.03)
    budget = (0.108, 6000, 0, "error_max_budget_usd", 1)
    await run("resume, max_budget_usd=0.01", budget, resume=one, max_budget_usd=0.01)


asyncio.run(main())
sys.exit(changed)
PY
env -i PATH="$PATH" HOME="$dir/home" TMPDIR="$dir" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 ANTHROPIC_API_KEY=none \
    DISABLE_TELEMETRY=1 DISABLE_AUTOUPDATER=1 CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 \
    "$dir/venv/bin/python" "$dir/check.py" "$dir"
