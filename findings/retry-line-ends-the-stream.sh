#!/bin/sh
# Packages: openai 3.57.0, litellm 1.110.2, anthropic 2.14.0 (PyPI); openai 7.59.0 (npm).
#
# An event stream may hold a block of nothing but `retry: 3000`: it tells a browser how long to wait
# before it connects again, and the standard says that a block without data is no event. Gateways and
# stream libraries send it first. Here it stands before an ordinary Chat Completions stream.
#
# Expected: clients skip it. At the least LiteLLM, whose work is to hide the habits of servers.
# Seen: OpenAI's Python SDK hands the empty block to its JSON parser: a plain json.JSONDecodeError (no
# openai.OpenAIError, so a handler of API errors does not catch it), not asked again, not one token.
# LiteLLM makes a MidStreamFallbackError of it, which its users take for a fault of the network.
# OpenAI's npm SDK skips the block, but breaks at `event: ping` without data (SyntaxError), which the
# Python one cannot read either. Anthropic's Python SDK, made by the same generator, skips both.
# (The Python half has been reported to its makers more than once; it is still so in this version.)
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 litellm==1.110.2 anthropic==2.14.0 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" openai@7.59.0; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import OpenAI from 'openai';
const [base, ...names] = process.argv.slice(2), answer = {};
console.error = () => {};
for (const name of names) {
  const client = new OpenAI({apiKey: 'none', baseURL: `${base}/${name}`, maxRetries: 0});
  try {
    let text = '';
    const messages = [{role: 'user', content: 'go'}];
    for await (const chunk of await client.chat.completions.create({model: 'm', messages, stream: true}))
      text += chunk.choices[0].delta.content ?? '';
    answer[name] = text;
  } catch (error) { answer[name] = error.constructor.name; }
}
console.log(JSON.stringify(answer));
JS

cat >"$dir/check.py" <<'PY'
import http.server, json, logging, subprocess, sys, threading
import anthropic, litellm, openai

logging.disable(logging.CRITICAL)
litellm.suppress_debug_info = True
BEFORE = {"plain": "", "comment": ": hello\n\n", "retry": "retry: 3000\n\n", "ping": "event: ping\n\n"}
POSTS, ASK = [], [{"role": "user", "content": "go"}]


def chat():
    for delta, reason in ({"role": "assistant", "content": "one "}, None), ({"content": "two"}, "stop"):
        yield "", {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                   "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def messages():
    yield "event: message_start\n", {"type": "message_start", "message": {
        "id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    yield "event: message_stop\n", {"type": "message_stop"}


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        POSTS.append(self.path)
        name, events = self.path.split("/")[1], messages() if "messages" in self.path else chat()
        body = BEFORE[name] + "".join(f"{head}data: {json.dumps(e)}\n\n" for head, e in events) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body.encode())


def claude(url):
    client = anthropic.Anthropic(api_key="none", base_url=url, max_retries=0)
    events = client.messages.create(model="m", max_tokens=9, messages=ASK, stream=True)
    return "one two" if [event.type for event in events] == ["message_start", "message_stop"] else "other"


def text(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks)


CLIENTS = {
    "openai, Python": lambda url: text(openai.OpenAI(api_key="none", base_url=url).chat.completions.create(
        model="m", messages=ASK, stream=True)),
    "litellm": lambda url: text(litellm.completion("openai/m", messages=ASK, base_url=url, api_key="none", stream=True)),
    "anthropic, Python": claude,
}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base, seen = f"http://127.0.0.1:{server.server_port}", {}
for name, ask in CLIENTS.items():
    seen[name] = {}
    for before in BEFORE:
        POSTS.clear()
        try:
            seen[name][before] = ask(f"{base}/{before}")
        except Exception as error:
            seen[name][before] = type(error).__name__
            if name == "openai, Python" and (isinstance(error, openai.OpenAIError) or len(POSTS) != 1):
                seen[name][before] += f" ({type(error).__mro__[1].__name__}, {len(POSTS)} requests)"
seen["openai, npm"] = json.loads(subprocess.check_output(["node", "client.mjs", base, *BEFORE], cwd=sys.argv[1]))
BROKEN = {"openai, Python": "JSONDecodeError", "litellm": "MidStreamFallbackError", "openai, npm": "SyntaxError"}
changed = False
for name, row in seen.items():
    broken = ("ping",) if name == "openai, npm" else ("retry", "ping")
    stated = {b: BROKEN.get(name, "one two") if b in broken else "one two" for b in BEFORE}
    print(f"{name:18} {row}" + ("" if row == stated else f"   CHANGED, was: {stated}"))
    changed |= row != stated
sys.exit(changed)
PY
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 LITELLM_LOCAL_MODEL_COST_MAP=True
"$dir/venv/bin/python" "$dir/check.py" "$dir"
