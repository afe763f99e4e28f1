#!/bin/sh
# Packages: mcp 2.3.0 and 1.30.0 (PyPI); the client is always 2.3.0.
#
# One server file; only the import of the class (FastMCP, now MCPServer) differs between the versions. Its tool `deploy`
# does its work and then asks the user with ctx.elicit(); `think` asks the client's model with create_message();
# `tell` logs with ctx.info(); `count` is a plain `def` that reads a number, works for half a second and writes number + 1.
#
# One would expect: a 2.3.0 client and a 2.3.0 server together can do what either can do with the other's predecessor.
# Seen (the client has a callback for each; "auto" is its default mode):
#   server, client's mode        1.30.0, auto     2.3.0, legacy    2.3.0, auto
#   deploy                       accepted         accepted         the work IS DONE, then the call raises MCPError
#   think                        answered         answered         raises MCPError
#   tell                         message arrives  message arrives  no message, no error
#   two calls of count at once   2                1                1
# The newest protocol, which only two new sides speak, has no way from the server to the client in the middle of a
# call, and 2.3.0 runs a `def` tool in a thread, where 1.30.0 ran one after the other.
#
# For whom it matters: a server that asks before the dangerous step in the middle of its work. After the upgrade the first
# half of the work is done, the client gets an error of the protocol and no tool result, and an agent or a retry wrapper
# that calls again does that half again. The log that told what happened has gone too. And a tool that was safe because
# calls came singly (a ledger, a budget, a lock file) loses updates as soon as a model puts two calls into one message.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
for version in 2.3.0 1.30.0; do
    { python3 -m venv "$dir/$version" && "$dir/$version/bin/pip" install -q --disable-pip-version-check "mcp==$version"; } ||
        { echo "skipped: mcp $version cannot be installed"; exit 77; }
done

cat >"$dir/server.py" <<'PY'
import logging, pathlib, sys, time, warnings
try: from mcp.server.mcpserver import Context, MCPServer as Server
except ImportError: from mcp.server.fastmcp import Context, FastMCP as Server
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
folder, server = pathlib.Path(sys.argv[1]), Server("s")
class Sure(BaseModel): sure: bool


@server.tool()
async def deploy(ctx: Context) -> str:
    with (folder / "deployed").open("a") as file: file.write("x")
    return (await ctx.elicit("Keep it?", Sure)).action


@server.tool()
async def think(ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text="?"))
    return (await ctx.session.create_message([message], max_tokens=9)).content.text


@server.tool()
async def tell(ctx: Context) -> str:
    await ctx.info("told")
    return "ok"


@server.tool()
def count() -> str:
    file = folder / "count"
    number = int(file.read_text()) if file.exists() else 0
    time.sleep(0.5)
    file.write_text(str(number + 1))
    return "ok"


server.run()
PY

cat >"$dir/check.py" <<'PY'
import asyncio, logging, pathlib, sys, tempfile, warnings
from mcp import Client, MCPError, StdioServerParameters, types

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
told = []
async def elicit(context, params): return types.ElicitResult(action="accept", content={"sure": True})
async def sample(context, params):
    return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="answer"), model="m")
async def log(params): told.append(params.data)


async def main(version, mode):
    told.clear()
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as name:
        folder = pathlib.Path(name)
        server = StdioServerParameters(command=f"{sys.argv[1]}/{version}/bin/python", args=[f"{sys.argv[1]}/server.py", name])
        async with Client(server, mode=mode, elicitation_callback=elicit, sampling_callback=sample, logging_callback=log) as client:
            async def call(tool):
                try: return (await client.call_tool(tool, {})).content[0].text
                except MCPError: return "MCPError"
            deploy, think, _ = await call("deploy"), await call("think"), await call("tell")
            await asyncio.gather(call("count"), call("count"))
            await asyncio.sleep(0.5)
            return deploy, (folder / "deployed").read_text(), think, bool(told), int((folder / "count").read_text())


changed = False
for version, mode, was in [
    ("1.30.0", "auto", ("accept", "x", "answer", True, 2)),
    ("2.3.0", "legacy", ("accept", "x", "answer", True, 1)),
    ("2.3.0", "auto", ("MCPError", "x", "MCPError", False, 1)),
]:
    now = asyncio.run(main(version, mode))
    print(f"server {version:6} client {mode:6}  deploy {now[0]}, deployed {now[1]}, think {now[2]}, told {now[3]}, count {now[4]}"
          + ("" if now == was else f"   CHANGED, was: {was}"))
    changed |= now != was
sys.exit(changed)
PY
"$dir/2.3.0/bin/python" "$dir/check.py" "$dir" 2>"$dir/errors" || { cat "$dir/errors"; exit 1; }
