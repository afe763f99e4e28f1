#!/bin/sh
# Packages: openai-agents 0.24.0, pydantic-ai-slim 2.68.0, langchain 1.5.2 with langchain-openai 1.7.4 (PyPI);
#           ai 7.0.173 with @ai-sdk/openai-compatible 3.0.92 (npm).
#
# A Chat Completions server refuses: {"role": "assistant", "content": null, "refusal": "I cannot"}, finish_reason "stop",
# as the format has it for answers that a model declines to give; once as plain JSON, once as a stream.
#
# One would expect: agent frameworks agree on whether that is an answer, and one framework on what it is, streamed or not.
# Seen:
#                    plain JSON                                     stream
#   openai-agents    raises ModelRefusalError                       the same
#   pydantic-ai      raises ContentFilterError                      the same
#   langchain        answer "", no error; the refusal is kept       answer "", no error; the refusal is NOWHERE
#                    in additional_kwargs
#   AI SDK           text "I cannot", finishReason content-filter   the same
#
# For whom it matters: whoever commits or sends an agent's last text unseen. The same refused task is a failed run, an
# empty report, or a report that says "I cannot", by the library; and with LangChain a streamed run cannot be told from
# one in which the model had nothing to say.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 openai-agents==0.24.0 \
    'pydantic-ai-slim[openai]==2.68.0' langchain==1.5.2 langchain-openai==1.7.4 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" ai@7.0.173 @ai-sdk/openai-compatible@3.0.92; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import {generateText, streamText} from 'ai'; import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
const model = createOpenAICompatible({name: 'x', baseURL: process.argv[2], apiKey: 'none'})('m');
const plain = await generateText({model, prompt: 'go'});
let errors = 0;
const stream = streamText({model, prompt: 'go', onError: () => {}});
for await (const part of stream.fullStream) if (part.type === 'error') errors++;
console.log(JSON.stringify({plain: [plain.text, plain.finishReason], stream: errors ? ['error'] : [await stream.text, await stream.finishReason]}));
process.exit(0);
JS

cat >"$dir/check.py" <<'PY'
import asyncio, http.server, json, logging, subprocess, sys, threading
import agents, openai, pydantic_ai
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

logging.disable(logging.CRITICAL)
agents.set_tracing_disabled(True)
REFUSAL = {"role": "assistant", "content": None, "refusal": "I cannot"}


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
        base = {"id": "c", "created": 1, "model": "m"}
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if ask.get("stream") else "application/json")
        self.end_headers()
        if not ask.get("stream"):
            choice = {"index": 0, "message": REFUSAL, "finish_reason": "stop"}
            return self.wfile.write(json.dumps(base | {"object": "chat.completion", "choices": [choice]}).encode())
        for delta, finish in ((REFUSAL, None), ({}, "stop")):
            chunk = base | {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"


async def openai_agents(stream):
    model = agents.OpenAIChatCompletionsModel("m", openai.AsyncOpenAI(api_key="none", base_url=url))
    if not stream: return (await agents.Runner.run(agents.Agent("a", model=model), "go")).final_output
    run = agents.Runner.run_streamed(agents.Agent("a", model=model), "go")
    async for _ in run.stream_events(): pass
    return run.final_output


async def pydantic(stream):
    agent = pydantic_ai.Agent(OpenAIChatModel("m", provider=OpenAIProvider(api_key="none", base_url=url)))
    if not stream: return (await agent.run("go")).output
    async with agent.run_stream("go") as run: return await run.get_output()


async def langchain(stream):
    model = ChatOpenAI(model="m", base_url=url, api_key="none", streaming=stream)
    message = (await create_agent(model, []).ainvoke({"messages": [("user", "go")]}))["messages"][-1]
    return [message.content, "I cannot" in message.model_dump_json()]


seen = {}
for client in (openai_agents, pydantic, langchain):
    for kind in ("plain", "stream"):
        try: seen[f"{client.__name__} {kind}"] = asyncio.run(client(kind == "stream"))
        except Exception as error: seen[f"{client.__name__} {kind}"] = type(error).__name__
npm = json.loads(subprocess.check_output(["node", "client.mjs", url], cwd=sys.argv[1]))
seen |= {f"ai {kind}": npm[kind] for kind in npm}
stated, changed = {
    "openai_agents plain": "ModelRefusalError", "openai_agents stream": "ModelRefusalError",
    "pydantic plain": "ContentFilterError", "pydantic stream": "ContentFilterError",
    "langchain plain": ["", True], "langchain stream": ["", False],
    "ai plain": ["I cannot", "content-filter"], "ai stream": ["I cannot", "content-filter"],
}, False
for name, now in seen.items():
    print(f"{name:22} {now}" + ("" if now == stated[name] else f"   CHANGED, was: {stated[name]}"))
    changed |= now != stated[name]
sys.exit(changed)
PY
NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 LANGSMITH_TRACING=false "$dir/venv/bin/python" "$dir/check.py" "$dir"
