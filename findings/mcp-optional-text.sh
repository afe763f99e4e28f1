#!/bin/sh
# Packages: mcp 2.3.0 and 1.30.0, fastmcp 4.2.3 (PyPI).
#
# Four tools that take a text, as one that writes a file does. They differ only in the annotation of the parameter.
# The client sends a JSON string, as a model does that writes package.json or a list in JSON.
#
# One would expect: `str | None` takes every text that `str` takes, unchanged.
# Seen with mcp's own server (what the tool's function receives):
#   annotation         '{"a": 1}'     '["a"]'        'null'      '12'    'hello'
#   str                the text       the text       'null'      '12'    'hello'
#   str | None         REFUSED        REFUSED        None        '12'    'hello'
#   str | list[str]    REFUSED        ['a']          REFUSED     '12'    'hello'
#   str | dict         {'a': 1}       REFUSED        REFUSED     '12'    'hello'
# "REFUSED" is an error result that says the string is a dict, a list or None. The same in 2.3.0 and in 1.30.0: unless the
# annotation is exactly str, a text that can be read as JSON is read as JSON first. fastmcp 4.2.3 gives the text in all
# twenty cases.
#
# For whom it matters: a tool write_file(path: str, content: str | None = None) works in every trial with prose and code,
# and fails for each JSON file an agent writes: the model gets "Input should be a valid string" for a string, and tries
# again until its turns are used up. Worse are the cases without an error: a text `null` becomes None (a file left
# alone, a field cleared) and a text in a union with list or dict arrives as another type. Annotate with str and a
# default of "", or test each optional text with a JSON document.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
for package in mcp==2.3.0 mcp==1.30.0 fastmcp==4.2.3; do
    { python3 -m venv "$dir/$package" && "$dir/$package/bin/pip" install -q --disable-pip-version-check "$package"; } ||
        { echo "skipped: $package cannot be installed"; exit 77; }
done

cat >"$dir/check.py" <<'PY'
import asyncio, logging, sys

package = sys.argv[1].split("==")
logging.disable(logging.CRITICAL)
if package[0] == "fastmcp": from fastmcp import FastMCP as Server
elif package[1] == "2.3.0": from mcp.server.mcpserver import MCPServer as Server
else: from mcp.server.fastmcp import FastMCP as Server
got, server = [], Server("s")


def text(content: str) -> str: return got.append(content) or ""
def optional(content: str | None = None) -> str: return got.append(content) or ""
def several(content: str | list[str]) -> str: return got.append(content) or ""
def record(content: str | dict) -> str: return got.append(content) or ""


TOOLS, TEXTS = [text, optional, several, record], ['{"a": 1}', '["a"]', "null", "12", "hello"]
for tool in TOOLS: server.tool()(tool)


async def row(name, call):
    found = []
    for value in TEXTS:
        got.clear()
        try: result = await call(name, {"content": value})
        except Exception as error:
            result = None
            assert "valid string" in str(error) or "validation error" in str(error), error
        found.append(repr(got[0]) if got else "REFUSED")
        if result is not None and not got: assert "Input should be a valid string" in result.content[0].text
    return found


async def main():
    if package[0] == "fastmcp":
        from fastmcp import Client
        async with Client(server) as client: return [await row(t.__name__, client.call_tool) for t in TOOLS]
    if package[1] == "2.3.0":
        from mcp import Client
        async with Client(server) as client: return [await row(t.__name__, client.call_tool) for t in TOOLS]
    from mcp.shared.memory import create_connected_server_and_client_session
    async with create_connected_server_and_client_session(server._mcp_server) as client:
        return [await row(t.__name__, client.call_tool) for t in TOOLS]


same = [repr(value) for value in TEXTS]
stated = [same] * 4 if package[0] == "fastmcp" else [
    same,
    ["REFUSED", "REFUSED", "None", "'12'", "'hello'"],
    ["REFUSED", "['a']", "REFUSED", "'12'", "'hello'"],
    ["{'a': 1}", "REFUSED", "REFUSED", "'12'", "'hello'"],
]
changed, print_name = False, sys.argv[1]
for tool, now, was in zip(TOOLS, asyncio.run(main()), stated):
    print(f"{print_name:15} {tool.__name__:9}", *(f"{n:11}" for n in now), "" if now == was else f"   CHANGED, was: {was}")
    changed |= now != was
sys.exit(changed)
PY
bad=0
for package in mcp==2.3.0 mcp==1.30.0 fastmcp==4.2.3; do
    "$dir/$package/bin/python" "$dir/check.py" "$package" || bad=1
done
exit $bad
