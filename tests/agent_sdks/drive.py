"""Runs ralph through Python's Agent SDK: reads trials from standard input, and prints the results of their runs.

    python drive.py FOLDER_OF_THE_SDK <trials.json

It is a separate program, because the tests do not import the SDK. `drive.mjs` does the same for TypeScript's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])
sdk: Any = importlib.import_module("claude_agent_sdk")

AT_ONCE = 2
"""The number of trials that run at the same time."""


def callbacks(options: dict[str, Any], ran: dict[str, Any]) -> dict[str, Any]:
    """The options with callbacks that return the answers in the trial, and with objects of the SDK instead of
    mappings.
    """

    def hook(answer: dict[str, Any]) -> Any:
        async def called(event: dict[str, Any], _tool_use_id: str | None, _context: object) -> dict[str, Any]:
            ran["called"].append(event)
            if "throws" in answer:
                raise ValueError(answer["throws"])
            return answer

        return called

    async def may_run(tool: str, arguments: dict[str, Any], _context: object) -> Any:
        ran["asked"].append([tool, arguments])
        answer = dict(options["can_use_tool"])
        kind = sdk.PermissionResultAllow if answer.pop("behavior") == "allow" else sdk.PermissionResultDeny
        return kind(**answer)

    made = dict(options)
    if "can_use_tool" in made:
        made["can_use_tool"] = may_run
    if "hooks" in made:
        made["hooks"] = {
            event: [
                sdk.HookMatcher(
                    matcher=one.get("matcher"), timeout=one.get("timeout"), hooks=[hook(one["answer"])]
                )
                for one in matchers
            ]
            for event, matchers in made["hooks"].items()
        }
    if "agents" in made:
        made["agents"] = {name: sdk.AgentDefinition(**one) for name, one in made["agents"].items()}
    if made.pop("session_store", None):
        made["session_store"] = sdk.InMemorySessionStore()
    if "mcp_servers" in made:
        made["mcp_servers"] = {name: adding_server(name, ran) for name in made["mcp_servers"]}
    made.setdefault("stderr", ran["stderr"].append)
    return made


def adding_server(name: str, ran: dict[str, Any]) -> Any:
    """An MCP server in this process. Its only tool adds two numbers."""

    async def add(arguments: dict[str, Any]) -> dict[str, Any]:
        ran["called"].append(arguments)
        return {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}

    tool = sdk.tool("add", "Adds two numbers.", {"a": int, "b": int})(add)
    return sdk.create_sdk_mcp_server(name=name, tools=[tool])


def shown(message: Any) -> dict[str, Any]:
    return {"class": type(message).__name__, **dataclasses.asdict(message)}


async def drive(run: dict[str, Any]) -> dict[str, Any]:
    """Runs ralph once, and returns the result. The steps of the run are messages and calls of the client's methods."""
    ran: dict[str, Any] = {
        "messages": [],
        "answers": [],
        "called": [],
        "asked": [],
        "stderr": [],
        "error": None,
    }
    try:
        async with sdk.ClaudeSDKClient(sdk.ClaudeAgentOptions(**callbacks(run["options"], ran))) as client:
            for step in run["steps"]:
                if "say" in step:
                    await client.query(step["say"])
                    async for message in client.receive_response():
                        ran["messages"].append(shown(message))
                else:
                    ran["answers"].append(await getattr(client, step["call"])(*step.get("with", [])))
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises is what the program sees
        ran["error"] = f"{type(error).__name__}: {error}"
    return ran


def filled(value: Any, session_id: str) -> Any:
    return json.loads(json.dumps(value).replace("$SESSION", session_id))


async def try_all(trials: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(trial: dict[str, Any]) -> list[dict[str, Any]]:
        gave: list[dict[str, Any]] = []
        async with free:
            for run in trial["runs"]:
                gave.append(await drive(filled(run, session_of(gave))))
        return gave

    return dict(zip([one["name"] for one in trials], await asyncio.gather(*map(one, trials)), strict=True))


def session_of(gave: list[dict[str, Any]]) -> str:
    ids = [m["session_id"] for ran in gave for m in ran["messages"] if m["class"] == "ResultMessage"]
    return str(ids[-1]) if ids else ""


if __name__ == "__main__":
    print(json.dumps(asyncio.run(try_all(json.load(sys.stdin))), default=repr))  # noqa: T201 - its result
