"""Everything that comes from outside is decoded into types, and msgspec must be able to decode each of these types.

msgspec evaluates the annotations of a Struct only when a decoder is made. A type that is imported only under
TYPE_CHECKING would raise NameError in the middle of a run.
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ralph.output.stream_json import _EVENTS as EVENTS
from ralph.settings.tables import ALL_KEYS
from tests.rows import every_row
from tests.syntax_trees import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TOP = Path(__file__).parent.parent

# A module that decodes, and what it decodes: all Structs of a module, or one of them (`module:Type`).
DOORS: dict[str, tuple[str, ...]] = {
    "ralph.api.chat": ("ralph.api.chat:PlainChunk",),
    "ralph.api.responses": ("ralph.api.responses:_PieceEvent",),
    "ralph.api.stream_events": ("ralph.api.stream_events",),
    "ralph.conversation.journal_lines": ("ralph.conversation.journal_lines", "ralph.conversation.records"),
    "ralph.fleet.exported_job": ("ralph.fleet.exported_job:_JobRecord",),
    "ralph.fleet.jobs": ("ralph.fleet.jobs",),
    "ralph.fleet.job_file": (
        "ralph.fleet.job_file:_WrittenJob",
        "ralph.fleet.job_file:_WrittenLimits",
    ),
    "ralph.loop.agent_events": ("ralph.loop.agent_events:_OwnLine",),
    "ralph.loop.checkout": ("ralph.loop.checkout",),
    "ralph.git.settings": ("ralph.git.settings:_KeptPins",),
    "ralph.loop.processes": ("ralph.loop.processes:WrittenReport", "ralph.loop.processes:WrittenResult"),
    "ralph.loop.state": ("ralph.loop.state",),
    "ralph.mcp.configuration": ("ralph.mcp.configuration:_Entry", "ralph.mcp.configuration:_Document"),
    "ralph.mcp.wire": ("ralph.mcp.wire",),
    "ralph.mock_api.validation": (),  # shapes of requests, which are made when the module is imported
    "ralph.mock_api.scenario": tuple(
        f"ralph.mock_api.scenario:{name}"
        for name in ("FaultTable", "StepTable", "ModelTable", "ScenarioTable", "Text", "Thinking", "ToolUse")
    ),
    "ralph.output.stream_json": ("ralph.output.stream_json",),
    "ralph.sessions.looking": (
        "ralph.sessions.looking:_EventLine",
        "ralph.sessions.looking:_AnswerLine",
        "ralph.sessions.looking:_IntentLine",
        "ralph.sessions.looking:_ResultLine",
    ),
    "ralph.driven.control_lines": (
        "ralph.driven.control_lines:UserLine",
        "ralph.driven.control_lines:RequestLine",
        "ralph.driven.control_lines:_InitializeRequest",
        "ralph.driven.control_lines:HookMatcher",
    ),
    "ralph.permissions.hook_answers": ("ralph.permissions.hook_answers:HookAnswer",),
    "ralph.driven.driver": ("ralph.driven.driver",),
    "ralph.settings.handover": ("ralph.settings.handover:LoopHandover",),
    "ralph.values.setting": (),  # a type for each setting: below
}


def modules_that_decode() -> Iterator[str]:
    """The modules that use `convert` of msgspec or make a decoder for a type."""
    for file in sorted((TOP / "ralph").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if ("convert" in text or "Decoder" in text) and any(
            (isinstance(node, ast.alias) and node.name == "convert")
            or (isinstance(node, ast.Attribute) and node.attr == "convert")
            or (
                isinstance(node, ast.Call)
                and re.search(r"Decoder(?:\[|$)", ast.unparse(node.func))
                and node.args
            )
            for node in nodes_of(file)
        ):
            yield ".".join(file.relative_to(TOP).with_suffix("").parts)


def structs(place: str) -> list[type[msgspec.Struct]]:
    name, _, only = place.partition(":")
    own = [
        value
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == name
    ]
    return [one for one in own if only in {"", one.__name__}]


def test_every_module_that_decodes_is_a_row() -> None:
    assert set(modules_that_decode()) == DOORS.keys()


def test_a_decoder_can_be_made_for_every_setting_and_every_event_that_is_told_again() -> None:
    for key in ALL_KEYS:
        msgspec.json.Decoder(key.kind.type)
    for event, _names in EVENTS.values():
        msgspec.json.Decoder(event)


@every_row("place", [place for places in DOORS.values() for place in places])
def test_a_decoder_can_be_made_for_every_type_of_a_door(place: str) -> None:
    assert structs(place)
    for one in structs(place):
        msgspec.json.Decoder(one)
