#!/bin/sh
# Packages: pydantic-ai-slim 2.68.0 (with genai-prices 0.2.3), litellm 1.110.2, langchain-anthropic 1.7.10 with
# langchain-core 1.8.3 (PyPI); ai 7.0.173 and @ai-sdk/anthropic 4.0.105 (npm).
#
# Each client asks the Messages API to compact a long conversation by itself (`context_management`, compact_20260112). The
# server did: it read 180,000 tokens for a summary of 3,500, and then 23,000 for an answer of 1,000. As the API documents
# it, the counts at the top of `usage` are those of the answer, and `usage.iterations` has both; the bill is their sum,
# 203,000 and 4,500, at 3 and 15 dollars a million $0.6765.
#
# One would expect: clients that have an option for it count it, and price it alike.
# Seen:
#   litellm        203,000 and 4,500 tokens   $0.6765
#   pydantic-ai    203,000 and 4,500 tokens   $1.31925   the sum exceeds 200,000, so all of it has the price of requests
#                                                        with a long context; neither of the two had one
#   ai             203,000 and 4,500 tokens   (no price)
#   langchain       23,000 and 1,000 tokens   (no price) $0.084 of $0.6765
#
# For whom it matters: who compacts in order to go on for a night. With LangChain the dearest request of the night is not
# in usage_metadata, and a budget goes eight times too far; with pydantic-ai a limit on cost ends the run at half of it.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check 'pydantic-ai-slim[anthropic]==2.68.0' genai-prices==0.2.3 litellm==1.110.2 \
    langchain-anthropic==1.7.10 langchain-core==1.8.3 anthropic==2.14.0 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" ai@7.0.173 @ai-sdk/anthropic@4.0.105; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import {createAnthropic} from '@ai-sdk/anthropic'; import {generateText} from 'ai';
const model = createAnthropic({apiKey: 'none', baseURL: `${process.argv[2]}/v1`})('claude-sonnet-4-5');
const edits = [{type: 'compact_20260112', trigger: {type: 'input_tokens', value: 150000}}];
const {usage} = await generateText({model, prompt: 'go', providerOptions: {anthropic: {contextManagement: {edits}}}});
console.log(JSON.stringify([usage.inputTokens, usage.outputTokens, null]));
JS

cat >"$dir/check.py" <<'PY'
import http.server, json, subprocess, sys, threading, warnings
warnings.simplefilter("ignore")
import litellm
from langchain_anthropic import ChatAnthropic
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicCompaction, AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

MODEL, ASK, asked_for = "claude-sonnet-4-5", [{"role": "user", "content": "go"}], []
COMPACT, BETA = {"edits": [{"type": "compact_20260112"}]}, "compact-2026-01-12"
ANSWER = {"input_tokens": 23_000, "output_tokens": 1_000, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
SUMMARY = ANSWER | {"input_tokens": 180_000, "output_tokens": 3_500}
USAGE = ANSWER | {"iterations": [SUMMARY | {"type": "compaction"}, ANSWER | {"type": "message"}]}
HEAD = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
BLOCKS = [{"type": "compaction", "content": "So far: nothing."}, {"type": "text", "text": "done"}]
END = {"stop_reason": "end_turn", "stop_sequence": None}
EVENTS = [
    {"type": "message_start", "message": HEAD | {"content": [], "stop_reason": None, "usage": ANSWER | {"output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "compaction_delta", "content": "So far: nothing."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "done"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": END, "usage": USAGE},
    {"type": "message_stop"},
]


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked_for.append(BETA in self.headers["anthropic-beta"] and "compact_20260112" in json.dumps(asked["context_management"]))
        stream = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in EVENTS)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
        self.end_headers()
        self.wfile.write((stream if asked.get("stream") else json.dumps(HEAD | {"content": BLOCKS, "usage": USAGE} | END)).encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"


def of_litellm():
    answer = litellm.completion(model=f"anthropic/{MODEL}", api_key="none", api_base=base, messages=ASK, context_management=COMPACT)
    return [answer.usage.prompt_tokens, answer.usage.completion_tokens, round(litellm.completion_cost(answer), 6)]


def of_pydantic():
    model = AnthropicModel(MODEL, provider=AnthropicProvider(api_key="none", base_url=base))
    usage = Agent(model, capabilities=[AnthropicCompaction()]).run_sync("go").usage
    usage = usage() if callable(usage) else usage
    return [usage.input_tokens, usage.output_tokens, float(usage.cost)]


def of_langchain():
    model = ChatAnthropic(model=MODEL, api_key="none", base_url=base, max_tokens=99, context_management=COMPACT, betas=[BETA])
    usage = model.invoke("go").usage_metadata
    return [usage["input_tokens"], usage["output_tokens"], None]


changed = False
for name, ask, was in (
    ("litellm", of_litellm, [203_000, 4_500, 0.6765]),
    ("pydantic-ai", of_pydantic, [203_000, 4_500, 1.31925]),
    ("ai", lambda: json.loads(subprocess.check_output(["node", "client.mjs", base], cwd=sys.argv[1])), [203_000, 4_500, None]),
    ("langchain", of_langchain, [23_000, 1_000, None]),
):
    now = ask()
    print(f"{name:12} {now[0]:7,} and {now[1]:5,} tokens, cost {now[2]}" + ("" if now == was else f"   CHANGED, was: {was}"))
    changed |= now != was
if asked_for != [True] * 4:
    print(f"CHANGED: not each of them asked for a compaction: {asked_for}")
    changed = True
sys.exit(changed)
PY
LITELLM_LOCAL_MODEL_COST_MAP=True NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 "$dir/venv/bin/python" "$dir/check.py" "$dir" 2>"$dir/errors" || { rc=$?; tail -5 "$dir/errors" >&2; exit "$rc"; }
