#!/bin/sh
# Packages: mcp 2.3.0 (PyPI), @modelcontextprotocol/sdk 1.32.2 (npm): the two official MCP client libraries.
#
# A tool that has an outputSchema must return structuredContent that fits it, and both official clients
# check that. The schema's dialect is the one its $schema names, and JSON Schema 2020-12 without one.
#
# Expected: both clients refuse the same results; surely so where the schema names its dialect.
# Seen: in six of eight cases they decide differently, in both directions.
#   case                                                        Python    npm
#   $schema 2020-12, prefixItems [integer], value ["x"]         refuses   ACCEPTS
#   $schema 2020-12, unevaluatedProperties false, a spare key   refuses   ACCEPTS
#   no $schema, dependentRequired not met                       refuses   ACCEPTS
#   format date-time, value "tomorrow"                          ACCEPTS   refuses
#   wrong type, called before tools/list                        refuses   ACCEPTS
#   wrong type on page 1, called after page 2 was listed        refuses   ACCEPTS
#   wrong type                                                  refuses   refuses
#   $schema draft-07, items [integer], value ["x"]              refuses   refuses
# The npm client compiles every schema as draft-07: a schema that says it is 2020-12 raises no error,
# its newer keywords are just not looked at, while every `format` is. And it keeps only the checks of the
# page listed last (each tools/list forgets the ones before), so with a server that pages its tools most
# are never checked; the Python client lists by itself when it meets an unknown tool, after the call.
# A server tested with one client is not tested for the other.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check mcp==2.3.0 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" @modelcontextprotocol/sdk@1.32.2; } ||
    { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/server.py" <<'PY'
import json, sys
NEW, OLD = "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"
INTEGER = {"type": "integer"}
TOOLS = {  # name: (schema without its type, structured content)
    "tuple": ({"$schema": NEW, "properties": {"v": {"type": "array", "prefixItems": [INTEGER]}}}, {"v": ["x"]}),
    "spare": ({"$schema": NEW, "properties": {"v": INTEGER}, "unevaluatedProperties": False}, {"v": 1, "w": 2}),
    "depends": ({"properties": {"v": INTEGER}, "dependentRequired": {"v": ["w"]}}, {"v": 1}),
    "date": ({"properties": {"v": {"type": "string", "format": "date-time"}}}, {"v": "tomorrow"}),
    "type": ({"properties": {"v": INTEGER}}, {"v": "x"}),
    "old tuple": ({"$schema": OLD, "properties": {"v": {"type": "array", "items": [INTEGER]}}}, {"v": ["x"]}),
}
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask: continue
    params, method = ask.get("params") or {}, ask["method"]
    tools = [{"name": n, "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"} | s}
             for n, (s, _) in TOOLS.items()]
    result = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": [tools[0] | {"name": "other"}]} if params.get("cursor")
        else {"tools": tools, "nextCursor": "page 2"},
        "tools/call": {"content": [], "structuredContent": TOOLS.get(params.get("name"), (0, {}))[1]},
    }.get(method, {})
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], "result": result}), flush=True)
PY

cat >"$dir/client.mjs" <<'JS'
import {Client} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport} from '@modelcontextprotocol/sdk/client/stdio.js';
const [python, ...names] = process.argv.slice(2), seen = {};
const client = new Client({name: 'c', version: '1'});
await client.connect(new StdioClientTransport({command: python, args: ['server.py']}));
const call = async (label, name) => {
  try { await client.callTool({name, arguments: {}}); seen[label] = 'accepts'; }
  catch (error) { seen[label] = /Structured content does not match/.test(error.message) ? 'refuses' : error.message; }
};
await call('before tools/list', 'type');
const {nextCursor} = await client.listTools();
for (const name of names) await call(name, name);
await client.listTools({cursor: nextCursor});
await call('after page 2', 'type');
await client.close();
console.log(JSON.stringify(seen));
JS

cat >"$dir/check.py" <<'PY'
import asyncio, json, logging, os, subprocess, sys
from mcp import Client, StdioServerParameters, stdio_client

logging.disable(logging.CRITICAL)
os.chdir(sys.argv[1])
NAMES, python = ["tuple", "spare", "depends", "date", "type", "old tuple"], {}


async def main():
    server = StdioServerParameters(command=sys.executable, args=["server.py"])
    async with Client(stdio_client(server), mode="legacy") as client:
        async def call(label, name):
            try:
                await client.call_tool(name, {})
                python[label] = "accepts"
            except RuntimeError as error:
                python[label] = "refuses" if "Invalid structured content" in str(error) else str(error)
        await call("before tools/list", "type")
        page = await client.list_tools()
        for name in NAMES: await call(name, name)
        await client.list_tools(cursor=page.next_cursor)
        await call("after page 2", "type")

asyncio.run(main())
npm = json.loads(subprocess.check_output(["node", "client.mjs", sys.executable, *NAMES]))
changed = False
for label, now in python.items():
    was = ("accepts" if label == "date" else "refuses",
           "refuses" if label in ("date", "type", "old tuple") else "accepts")
    print(f"{label:18} Python {now}, npm {npm[label]}" + ("" if (now, npm[label]) == was else f"   CHANGED, was: {was}"))
    changed |= (now, npm[label]) != was
sys.exit(changed)
PY
"$dir/venv/bin/python" "$dir/check.py" "$dir"
