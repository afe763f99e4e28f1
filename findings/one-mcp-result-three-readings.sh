#!/bin/sh
# Packages: openai-agents 0.24.0, pydantic-ai-slim 2.68.0 with mcp 2.3.0 (PyPI);
#           ai 7.0.173, @ai-sdk/mcp 2.0.99, @ai-sdk/openai-compatible 3.0.92 (npm).
#
# One MCP server, four answers to a tool call, three agent frameworks: what does the model read in the
# tool message of the next Chat Completions request?
#   failed    isError true, text "no such file"
#   quiet     isError true, content [], structuredContent {"code": 7}
#   only      content [], structuredContent {"rows": 3}
#   refused   a JSON-RPC error, -32602 "no such table"
#
# Expected: a failure is told as a failure, and a result that has only its structured half arrives.
# Seen:     openai-agents and AI SDK                              pydantic-ai
#   failed   [{"type":"text","text":"no such file"}]              {"error":"no such file"}
#   quiet    []                                                   {"error":"{\"code\":7}"}
#   only     []                                                   {"rows":3}
#   refused  An error occurred while running the tool. Please     {"error":"no such table"}
#            try again. / MCPClientError: no such table
# In two of three isError is gone: the model sees the text alone, and a failure with structured details
# reads exactly like a success without output (openai-agents' use_structured_content, off by default,
# is only about "only"). A server must say "Error" and repeat its structured content in its text.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai-agents==0.24.0 mcp==2.3.0 \
    'pydantic-ai-slim[openai,mcp]==2.68.0' &&
    npm install --silent --no-audit --no-fund --prefix "$dir" ai@7.0.173 @ai-sdk/mcp@2.0.99 \
    @ai-sdk/openai-compatible@3.0.92 zod@4.6.7; } || { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/server.py" <<'PY'
import json, sys
ANSWER = {
    "failed": {"content": [{"type": "text", "text": "no such file"}], "isError": True},
    "quiet": {"content": [], "structuredContent": {"code": 7}, "isError": True},
    "only": {"content": [], "structuredContent": {"rows": 3}}, "refused": None,
}
TOOLS = [{"name": name, "description": name, "inputSchema": {"type": "object", "properties": {}}} for name in ANSWER]
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask: continue
    result = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": TOOLS}, "tools/call": ANSWER.get((ask.get("params") or {}).get("name")),
    }.get(ask["method"])
    answer = {"result": result} if result else {"error": {"code": -32602, "message": "no such table"}}
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], **answer}), flush=True)
PY

cat >"$dir/client.mjs" <<'JS'
import {generateText, isStepCount} from 'ai';
import {createMCPClient} from '@ai-sdk/mcp';
import {Experimental_StdioMCPTransport as Stdio} from '@ai-sdk/mcp/mcp-stdio';
import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
const [python, base, ...names] = process.argv.slice(2);
const tools = await (await createMCPClient({transport: new Stdio({command: python, args: ['server.py']})})).tools();
for (const name of names) {
  const model = createOpenAICompatible({name: 'x', baseURL: `${base}/ai/${name}`, apiKey: 'none'})('m');
  await generateText({model, tools, prompt: 'go', stopWhen: isStepCount(2)});
}
process.exit(0);
JS

cat >"$dir/check.py" <<'PY'
import asyncio, http.server, json, logging, subprocess, sys, threading
import agents, agents.mcp, openai, pydantic_ai
from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
logging.disable(logging.CRITICAL)
agents.set_tracing_disabled(True)
NAMES, read = ["failed", "quiet", "only", "refused"], {}
class Model(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        ask, (_, who, name, *_) = json.loads(self.rfile.read(int(self.headers["content-length"]))), self.path.split("/")
        results, message, end = [m["content"] for m in ask["messages"] if m["role"] == "tool"], {"content": "done"}, "stop"
        if results:
            read.setdefault(who, {})[name] = results[0] if isinstance(results[0], str) else json.dumps(results[0])
        else:
            call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
            message, end = {"content": None, "tool_calls": [call]}, "tool_calls"
        choice = {"index": 0, "finish_reason": end, "message": {"role": "assistant"} | message}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                                     "choices": [choice]}).encode())
async def main(base):
    async with agents.mcp.MCPServerStdio(params={"command": sys.executable, "args": ["server.py"]}) as server:
        for name in NAMES:
            client = openai.AsyncOpenAI(api_key="none", base_url=f"{base}/agents/{name}")
            model = agents.OpenAIChatCompletionsModel("m", client)
            await agents.Runner.run(agents.Agent("a", model=model, mcp_servers=[server]), "go")
    for name in NAMES:
        model = OpenAIChatModel("m", provider=OpenAIProvider(api_key="none", base_url=f"{base}/pydantic/{name}"))
        await pydantic_ai.Agent(model, toolsets=[MCPToolset(StdioTransport(sys.executable, ["server.py"]))]).run("go")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
asyncio.run(main(base := f"http://127.0.0.1:{server.server_port}"))
subprocess.run(["node", "client.mjs", sys.executable, base, *NAMES], check=True)
TEXT = '[{"type":"text","text":"no such file"}]'
STATED = {
    "agents": [TEXT, "[]", "[]", "An error occurred while running the tool. Please try again."],
    "ai": [TEXT, "[]", "[]", "MCPClientError: no such table"],
    "pydantic": ['{"error":"no such file"}', r'{"error":"{\"code\":7}"}', '{"rows":3}', '{"error":"no such table"}']}
changed = False
for who, name, was in [(who, *pair) for who, stated in STATED.items() for pair in zip(NAMES, stated)]:
    now = read[who].get(name, "").replace('": ', '":').replace('", ', '",')
    print(f"{who:9} {name:8} {now}" + ("" if now == was else f"   CHANGED, was: {was}"))
    changed |= now != was
sys.exit(changed)
PY
cd "$dir" && NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 venv/bin/python check.py
