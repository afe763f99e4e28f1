#!/bin/sh
# Packages: openai 3.57.0, anthropic 2.14.0 (PyPI); openai 7.59.0, @anthropic-ai/sdk 1.14.0 (npm).
#
# A connection is lost: (a) before the answer's head, (b) in the middle of a plain JSON answer, (c) in the middle of a
# stream; or (d), in Python, a stream goes silent for longer than `timeout`.
#
# One would expect: each of them raises the package's own APIConnectionError (APITimeoutError for d), as a connection that
# cannot be made does, and all four packages agree, since one generator writes them.
# Seen (own: a subclass of the package's APIError; requests in brackets):
#   package             (a)       (b)                (c)                              (d)
#   openai, Python      own (3)   own (3)            own, APIConnectionError (1)      own, APITimeoutError (1)
#   anthropic, Python   own (3)   own (3)            httpx2.RemoteProtocolError (1)   httpx2.ReadTimeout (1)
#   openai, npm         own (3)   TypeError (1)      TypeError "terminated" (1)
#   anthropic, npm      own (3)   TypeError (1)      TypeError "terminated" (1)
#   and with .stream()                               AnthropicError, no APIError (1)
# Nothing tries (c) or (d) again, whatever max_retries says.
#
# For whom it matters: long answers are streamed, so (c) is the common fault of a night. `except anthropic.APIError` and
# a retry rule on APIConnectionError cover the faults that the package tries again by itself, and not this one: the run
# ends with an exception of a package that one has not imported. Code that catches httpx.HTTPError beside it does not
# catch this either, since httpx2 is another package; and code that moves from openai to anthropic, or from Python to
# npm, loses its retry there.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 anthropic==2.14.0 httpx2==2.16.2 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" openai@7.59.0 @anthropic-ai/sdk@1.14.0; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import OpenAI from 'openai'; import Anthropic from '@anthropic-ai/sdk';
const base = process.argv[2], answer = {}, messages = [{role: 'user', content: 'go'}], all = async s => { for await (const _ of s); };
const open = path => new OpenAI({apiKey: 'none', baseURL: `${base}/openai/npm/${path}`}).chat.completions;
const claude = path => new Anthropic({apiKey: 'none', baseURL: `${base}/anthropic/npm/${path}`}).messages;
const one = {model: 'm', messages}, two = {...one, max_tokens: 9};
const kind = error => error instanceof OpenAI.APIError || error instanceof Anthropic.APIError ? `own ${error.constructor.name}` : error.constructor.name;
for (const [name, ask] of Object.entries({
  'openai, npm head': () => open('head').create(one), 'openai, npm body': () => open('body').create(one),
  'openai, npm stream': async () => all(await open('stream').create({...one, stream: true})),
  'anthropic, npm head': () => claude('head').create(two), 'anthropic, npm body': () => claude('body').create(two),
  'anthropic, npm stream': async () => all(await claude('stream').create({...two, stream: true})),
  'anthropic, npm .stream()': () => claude('helper').stream(two).finalMessage(),
})) answer[name] = await ask().then(() => 'no error', kind);
console.log(JSON.stringify(answer));
process.exit(0);
JS

cat >"$dir/check.py" <<'PY'
import collections, http.server, json, subprocess, sys, threading, time
import anthropic, openai

ASK, counts = [{"role": "user", "content": "go"}], collections.Counter()
CHAT = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": None}]}
START = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [],
         "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}}
done = threading.Event()


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        _, package, language, fault = self.path.split("/")[:4]
        counts[f"{package}, {language} {fault}"] += 1
        self.close_connection = True
        if fault == "head": return self.connection.shutdown(2)
        event = CHAT if package == "openai" else START
        stream = f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n"
        self.send_response(200)
        self.send_header("content-type", "application/json" if fault == "body" else "text/event-stream")
        self.send_header("content-length", "9999")
        self.end_headers()
        self.wfile.write(b'{"id": "half' if fault == "body" else stream.encode())
        if fault == "silent": done.wait(30)
        else:
            time.sleep(0.2)
            self.connection.shutdown(2)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base, seen = f"http://127.0.0.1:{server.server_port}", {}
def chat(fault, **options): return openai.OpenAI(api_key="none", base_url=f"{base}/openai/Python/{fault}", **options).chat.completions
def claude(fault, **options): return anthropic.Anthropic(api_key="none", base_url=f"{base}/anthropic/Python/{fault}", **options).messages
for name, ask in {
    "openai, Python head": lambda: chat("head").create(model="m", messages=ASK),
    "openai, Python body": lambda: chat("body").create(model="m", messages=ASK),
    "openai, Python stream": lambda: list(chat("stream").create(model="m", messages=ASK, stream=True)),
    "openai, Python silent": lambda: list(chat("silent", timeout=1).create(model="m", messages=ASK, stream=True)),
    "anthropic, Python head": lambda: claude("head").create(model="m", max_tokens=9, messages=ASK),
    "anthropic, Python body": lambda: claude("body").create(model="m", max_tokens=9, messages=ASK),
    "anthropic, Python stream": lambda: list(claude("stream").create(model="m", max_tokens=9, messages=ASK, stream=True)),
    "anthropic, Python silent": lambda: list(claude("silent", timeout=1).create(model="m", max_tokens=9, messages=ASK, stream=True)),
}.items():
    try: ask(); seen[name] = "no error"
    except (openai.APIError, anthropic.APIError) as error: seen[name] = f"own {type(error).__name__}"
    except Exception as error: seen[name] = f"{type(error).__module__}.{type(error).__name__}"
done.set()
seen |= json.loads(subprocess.check_output(["node", "client.mjs", base], cwd=sys.argv[1]))
LOST, changed = "own APIConnectionError", False
stated = {name: LOST for name in seen} | {
    "openai, npm body": "TypeError", "anthropic, npm body": "TypeError",
    "openai, Python silent": "own APITimeoutError",
    "anthropic, Python stream": "httpx2.RemoteProtocolError", "anthropic, Python silent": "httpx2.ReadTimeout",
    "openai, npm stream": "TypeError", "anthropic, npm stream": "TypeError", "anthropic, npm .stream()": "AnthropicError",
}
for name, now in seen.items():
    requests = counts[name.replace(".stream()", "helper")]
    was = (stated[name], 3 if name.endswith(("head", "Python body")) else 1)
    print(f"{name:26} {now} ({requests})" + ("" if (now, requests) == was else f"   CHANGED, was: {was}"))
    changed |= (now, requests) != was
sys.exit(changed)
PY
NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 "$dir/venv/bin/python" "$dir/check.py" "$dir"
