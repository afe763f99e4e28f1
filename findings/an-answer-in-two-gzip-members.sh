#!/bin/sh
# Packages: openai 3.57.0, anthropic 2.14.0, both with httpx2 2.16.2 (PyPI); openai 7.59.0, @anthropic-ai/sdk 1.14.0 (npm).
#
# A gateway compresses a streamed answer and closes a gzip member where it flushes, so the body is two members, one
# behind the other. RFC 1952 allows that ("a gzip file consists of a series of members"), and `gzip -d` reads both.
#
# One would expect: the official clients read the whole answer, or those that cannot read it raise an error.
# Seen (the answer is "Do not delete it."):
#   openai, npm          Do not delete it.   finish_reason stop
#   openai, Python       Do not delete       no finish_reason, no error
#   anthropic, npm       Do not delete it.   stop_reason end_turn
#   anthropic, Python    Do not delete       stop_reason None, no error, also from get_final_message()
# httpx2 stops at the end of the first member, throws the rest of the body away and reports a complete response. httpx
# 0.28.1, from which it descends, does the same.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 anthropic==2.14.0 httpx2==2.16.2 httpx==0.28.1 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" openai@7.59.0 @anthropic-ai/sdk@1.14.0; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import OpenAI from 'openai';
import Anthropic from '@anthropic-ai/sdk';
const base = process.argv[2], messages = [{role: 'user', content: 'go'}], common = {apiKey: 'none', maxRetries: 0};
let text = '', reason = null;
const chat = new OpenAI({...common, baseURL: base}).chat.completions;
for await (const chunk of await chat.create({model: 'm', messages, stream: true})) {
  text += chunk.choices[0].delta.content ?? '';
  reason ??= chunk.choices[0].finish_reason;
}
const client = new Anthropic({...common, baseURL: base});
const message = await client.messages.stream({model: 'm', max_tokens: 9, messages}).finalMessage();
console.log(JSON.stringify({
  'openai, npm': [text, reason], 'anthropic, npm': [message.content[0].text, message.stop_reason]}));
JS

cat >"$dir/check.py" <<'PY'
import gzip, http.server, json, subprocess, sys, threading
import anthropic, httpx, openai

ASK = [{"role": "user", "content": "go"}]


def chat():
    for delta, reason in ({"content": "Do not delete "}, None), ({"content": "it."}, None), ({}, "stop"):
        yield "", {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                   "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def messages():
    yield "message_start", {"message": {
        "id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    for text in "Do not delete ", "it.":
        yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}
    yield "content_block_stop", {"index": 0}
    yield "message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}}
    yield "message_stop", {}


def body(path):
    """The first member ends behind the first piece of the text."""
    if "messages" in path:
        events, first = [f"event: {k}\ndata: {json.dumps({'type': k, **e})}\n\n" for k, e in messages()], 3
    else:
        events, first = [f"data: {json.dumps(e)}\n\n" for _, e in chat()] + ["data: [DONE]\n\n"], 1
    return b"".join(gzip.compress("".join(part).encode()) for part in (events[:first], events[first:]))


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-encoding", "gzip")
        self.end_headers()
        self.wfile.write(body(self.path))


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"

seen = json.loads(subprocess.run(["node", sys.argv[1], base], check=True, capture_output=True, text=True).stdout)
chunks = list(openai.OpenAI(api_key="none", base_url=base, max_retries=0).chat.completions.create(
    model="m", messages=ASK, stream=True))
seen["openai, Python"] = ["".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0].finish_reason]
with anthropic.Anthropic(api_key="none", base_url=base, max_retries=0).messages.stream(
        model="m", max_tokens=9, messages=ASK) as stream:
    message = stream.get_final_message()
seen["anthropic, Python"] = [message.content[0].text, message.stop_reason]
seen["httpx"] = httpx.post(f"{base}/chat", content=b"").text.count("data: ")
whole = gzip.decompress(body("/chat")).decode()
assert whole.count("data: ") == 4 and "it." in whole

for name, value in seen.items():
    print(f"{name:18} {value}")
expected = {
    "openai, npm": ["Do not delete it.", "stop"], "anthropic, npm": ["Do not delete it.", "end_turn"],
    "openai, Python": ["Do not delete ", None], "anthropic, Python": ["Do not delete ", None], "httpx": 1}
changed = [name for name in expected if seen[name] != expected[name]]
print(f"CHANGED: {', '.join(changed)}" if changed else "as described: the Python clients lose all but the first member")
sys.exit(bool(changed))
PY
(cd "$dir" && "$dir/venv/bin/python" check.py "$dir/client.mjs")
