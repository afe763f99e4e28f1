#!/bin/sh
# Packages: anthropic 2.14.0 with jiter 0.19.0 (PyPI), @anthropic-ai/sdk 1.14.0 (npm).
#
# The model's tool input arrives as pieces of JSON text. Models sometimes forget to escape a quotation
# mark inside a string (fine-grained tool streaming and many compatible servers check nothing).
# The block is finished (content_block_stop, stop_reason tool_use), nothing was
# cut off, but the text is no JSON:
#     {"cmd": "git commit -m "fix" && git push", "timeout": 5}
#
# Expected: both official SDKs report the input as broken.
# Seen: the npm SDK raises. The Python SDK returns a good looking message whose input is shorter:
#     {'cmd': 'git commit -m '}
# Its accumulator reads the text with jiter's "partial" mode, and that mode treats not only an early
# end but also a missing comma or closing bracket as "the rest has not come yet": it stops there, drops
# what follows and reports nothing. So 1_000 becomes 1, [1 2 3] becomes [1], {"a":1}{"b":2} becomes
# {"a": 1}, and a file edit whose new text holds quotes becomes an edit with half the text. Other
# damage (a raw newline in a string, a wrong escape) does raise, so the SDK seems to check its input.
# Whoever runs tools from get_final_message() must parse the raw pieces strictly themselves.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check anthropic==2.14.0 jiter==0.19.0 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" @anthropic-ai/sdk@1.14.0; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import Anthropic from '@anthropic-ai/sdk';
const [base, ...names] = process.argv.slice(2), answer = {};
for (const name of names) {
  const client = new Anthropic({apiKey: 'none', baseURL: `${base}/${name}`, maxRetries: 0});
  const messages = [{role: 'user', content: 'go'}];
  try {
    const message = await client.messages.stream({model: 'm', max_tokens: 9, messages}).finalMessage();
    answer[name] = message.content[0].input;
  } catch (error) { answer[name] = 'raised'; }
}
console.log(JSON.stringify(answer));
JS

cat >"$dir/check.py" <<'PY'
import http.server, json, subprocess, sys, threading
import anthropic, jiter

TEXT = {
    "quotes": '{"cmd": "git commit -m "fix" && git push", "timeout": 5}',
    "edit": '{"old": "x", "new": "print("a")"}',
    "number": '{"n": 1_000}',
    "list": '{"l": [1 2 3]}',
    "two": '{"a":1}{"b":2}',
    "newline": '{"c":"a\nb"}',
    "good": '{"cmd": "git push", "timeout": 5}',
}
PYTHON = {
    "quotes": {"cmd": "git commit -m "}, "edit": {"old": "x", "new": "print("}, "number": {"n": 1},
    "list": {"l": [1]}, "two": {"a": 1}, "newline": "raised", "good": {"cmd": "git push", "timeout": 5},
}
NODE = {name: "raised" for name in TEXT} | {"good": PYTHON["good"]}


def events(text):
    yield {"type": "message_start", "message": {"id": "m1", "type": "message", "role": "assistant", "model": "m",
           "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    yield {"type": "content_block_start", "index": 0,
           "content_block": {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}}
    for piece in (text[:7], text[7:]):
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
           "usage": {"output_tokens": 2}}
    yield {"type": "message_stop"}


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events(TEXT[self.path.split("/")[1]]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body.encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"
python = {}
for name in TEXT:
    client = anthropic.Anthropic(api_key="none", base_url=f"{base}/{name}", max_retries=0)
    try:
        with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}]) as stream:
            python[name] = stream.get_final_message().content[0].input
    except ValueError:
        python[name] = "raised"
node = json.loads(subprocess.check_output(["node", "client.mjs", base, *TEXT], cwd=sys.argv[1]))
alone = jiter.from_json(TEXT["quotes"].encode(), partial_mode=True)
changed = 0
for name in TEXT:
    print(f"{TEXT[name]!r}\n    Python {python[name]}\n    npm    {node[name]}")
for what, seen, stated in (("Python", python, PYTHON), ("npm", node, NODE), ("jiter", alone, PYTHON["quotes"])):
    if seen != stated:
        changed = 1
        print(f"CHANGED: {what}: {seen}, was {stated}")
sys.exit(changed)
PY
NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 "$dir/venv/bin/python" "$dir/check.py" "$dir"
