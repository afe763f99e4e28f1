#!/bin/sh
# Packages: openai 3.57.0, openai-agents 0.24.0, pydantic-ai-slim 2.68.0, litellm 1.110.2 (PyPI);
#           openai 7.59.0, ai 7.0.173 with @ai-sdk/openai-compatible 3.0.92 (npm).
#
# A Chat Completions server dies in the middle, and a proxy ends the body properly (HTTP/1.0 upstreams
# make this of any death). The client gets some chunks and a clean end: no finish_reason, no [DONE].
# Two bodies: a text that stops after "The tests", and one complete tool call {"cmd": "make"} of which
# nobody knows whether more calls were to follow.
#
# Expected: all clients behave alike: either all of them take what there is, or all of them raise.
# Seen: they are split in the middle.
#   openai (Python): no error, also not from the .stream() helper, which returns finish_reason None
#   openai (npm):    no error from the plain stream, but its .stream() helper raises for the same bytes
#   openai-agents:   the cut text is the run's final output; the tool IS RUN
#   pydantic-ai:     the same; the tool IS RUN
#   litellm:         raises (MidStreamFallbackError), the text before it has been handed out
#   AI SDK:          an error part, finishReason "error"; the tool is NOT run
# So the same agent stops, or goes on after half an answer, according to the library beneath it.
# An agent's own loop must look for finish_reason itself.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 openai-agents==0.24.0 \
    'pydantic-ai-slim[openai]==2.68.0' litellm==1.110.2 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" openai@7.59.0 ai@7.0.173 \
    @ai-sdk/openai-compatible@3.0.92 zod@4.6.7; } || { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import OpenAI from 'openai'; import {streamText, tool} from 'ai'; import {z} from 'zod';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
const base = process.argv[2], answer = {}, ask = {model: 'm', messages: [{role: 'user', content: 'go'}]};
for (const name of ['text', 'call']) {
  const url = `${base}/${name}`, chat = new OpenAI({apiKey: 'none', baseURL: url, maxRetries: 0}).chat.completions;
  try { for await (const _ of await chat.create({...ask, stream: true})); answer[`openai, npm ${name}`] = 'silent'; }
  catch { answer[`openai, npm ${name}`] = 'error'; }
  try { await chat.stream(ask).finalChatCompletion(); answer[`openai, npm .stream() ${name}`] = 'silent'; }
  catch { answer[`openai, npm .stream() ${name}`] = 'error'; }
  let ran = '', error = 'silent';
  const make = tool({description: 'd', inputSchema: z.object({cmd: z.string()}), execute: async () => { ran = ', tool run'; return 'ok'; }});
  const model = createOpenAICompatible({name: 'x', baseURL: url, apiKey: 'none'})('m');
  const run = streamText({model, prompt: 'go', tools: {make}, onError: () => {}});
  for await (const part of run.fullStream) if (part.type === 'error') error = 'error';
  answer[`ai ${name}`] = error + ran;
}
console.log(JSON.stringify(answer));
process.exit(0);
JS

cat >"$dir/check.py" <<'PY'
import asyncio, http.server, json, logging, subprocess, sys, threading
import agents, litellm, openai, pydantic_ai
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

logging.disable(logging.CRITICAL)
litellm.suppress_debug_info = True
agents.set_tracing_disabled(True)
CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "make", "arguments": '{"cmd": "make"}'}}
BODY = {"text": {"content": "The tests"}, "call": {"tool_calls": [CALL]}}
ASK, ran = [{"role": "user", "content": "go"}], []


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        after = b"tool_call_id" in self.rfile.read(int(self.headers["content-length"]))
        delta = {"role": "assistant"} | ({"content": "after"} if after else BODY[self.path.split("/")[1]])
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                 "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: %s\n\n" % json.dumps(chunk).encode())


def make(cmd: str) -> str: return ran.append(cmd) or "ok"
async def openai_agents(url):
    model = agents.OpenAIChatCompletionsModel("m", openai.AsyncOpenAI(api_key="none", base_url=url))
    run = agents.Runner.run_streamed(agents.Agent("a", model=model, tools=[agents.function_tool(make)]), "go")
    async for _ in run.stream_events(): pass


async def pydantic(url):
    model = OpenAIChatModel("m", provider=OpenAIProvider(api_key="none", base_url=url))
    async with pydantic_ai.Agent(model, tools=[make]).run_stream("go") as run: await run.get_output()
def chat(url): return openai.OpenAI(api_key="none", base_url=url).chat.completions
def helper(url):
    with chat(url).stream(model="m", messages=ASK) as stream:
        assert stream.get_final_completion().choices[0].finish_reason is None


CLIENTS = {
    "openai, Python": lambda url: list(chat(url).create(model="m", messages=ASK, stream=True)),
    "openai, Python .stream()": helper,
    "openai-agents": lambda url: asyncio.run(openai_agents(url)), "pydantic-ai": lambda url: asyncio.run(pydantic(url)),
    "litellm": lambda url: list(litellm.completion("openai/m", messages=ASK, base_url=url, api_key="none", stream=True)),
}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
base, seen = f"http://127.0.0.1:{server.server_port}", {}
for name, ask in CLIENTS.items():
    for body in BODY:
        ran.clear()
        try: ask(f"{base}/{body}"); result = "silent"
        except Exception: result = "error"
        seen[f"{name} {body}"] = result + (", tool run" if ran else "")
seen |= json.loads(subprocess.check_output(["node", "client.mjs", base], cwd=sys.argv[1]))
ERROR, RUN = ("litellm", "ai ", "openai, npm .stream()"), ("openai-agents call", "pydantic-ai call")
stated = {k: "error" if k.startswith(ERROR) else "silent, tool run" if k in RUN else "silent" for k in seen}
for name, result in seen.items():
    print(f"{name:30} {result}" + ("" if result == stated[name] else f"   CHANGED, was: {stated[name]}"))
sys.exit(seen != stated)
PY
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 LITELLM_LOCAL_MODEL_COST_MAP=True
"$dir/venv/bin/python" "$dir/check.py" "$dir"
