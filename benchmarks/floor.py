"""The floor, to compare ralph with: the smallest useful program that talks to the API in the same way.

    ANTHROPIC_BASE_URL=http://127.0.0.1:8080 python benchmarks/floor.py "Say one"

Uses only the standard library. It prints the answer as it arrives, runs calls of Bash and Read, and sends their
results, until an answer contains no call. Its commands run in bash, as ralph's do. It has no retries, no journal, no
limits and no guards, so the difference to ralph is the cost of these.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS = [
    {
        "name": "Bash",
        "description": "Runs a command in a shell.",
        "input_schema": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
    {
        "name": "Read",
        "description": "Reads lines of a text file.",
        "input_schema": {
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "offset": {"type": "integer"},
                "limit": {"type": "integer"},
            },
            "required": ["file_path"],
        },
    },
]


def main() -> None:
    url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port)
    messages: list[dict[str, Any]] = [{"role": "user", "content": sys.argv[1]}]
    while True:
        content = ask(connection, messages)
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block["type"] == "tool_use"]
        if not calls:
            return
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": run(call["name"], call["input"])}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


def ask(connection: http.client.HTTPConnection, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends the messages and returns the content of the answer. Prints its text as it arrives."""
    body = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 8192,
        "stream": True,
        "system": "You work in the current directory.",
        "tools": TOOLS,
        "messages": messages,
    }
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": os.environ["ANTHROPIC_API_KEY"],
    }
    connection.request("POST", "/v1/messages", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"status {response.status}: {response.read()!r}")
    blocks: dict[int, dict[str, Any]] = {}
    arguments: dict[int, str] = {}
    for line in lines_of(response):
        if not line.startswith(b"data:"):
            continue
        event = json.loads(line[5:])
        match event["type"]:
            case "content_block_start":
                blocks[event["index"]] = event["content_block"]
                arguments[event["index"]] = ""
            case "content_block_delta" if event["delta"]["type"] == "text_delta":
                blocks[event["index"]]["text"] += event["delta"]["text"]
                sys.stdout.write(event["delta"]["text"])
                sys.stdout.flush()
            case "content_block_delta" if event["delta"]["type"] == "input_json_delta":
                arguments[event["index"]] += event["delta"]["partial_json"]
            case "content_block_stop" if blocks[event["index"]]["type"] == "tool_use":
                blocks[event["index"]]["input"] = json.loads(arguments[event["index"]] or "{}")
            case "error":
                raise SystemExit(str(event))
    return [blocks[index] for index in sorted(blocks)]


def lines_of(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yields the lines of the response. Each read takes all bytes that have arrived, because `for line in
    response` takes twice as much CPU time.
    """
    rest = b""
    while piece := response.read1(65_536):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def run(tool: str, arguments: dict[str, Any]) -> str:
    if tool == "Bash":
        return subprocess.run(
            ["bash", "-c", arguments["command"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        ).stdout.decode(errors="replace")
    first = arguments.get("offset", 1) - 1
    with Path(arguments["file_path"]).open(encoding="utf-8") as file:
        return "".join(islice(file, first, first + arguments.get("limit", 2000)))


if __name__ == "__main__":
    main()
