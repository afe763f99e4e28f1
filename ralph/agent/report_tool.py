"""The definition of the tool `final_report` for the model, with the user's schema embedded. Pure."""

from __future__ import annotations

import json
from typing import Any

from ralph.agent.schema_references import DEFAULT_DRAFT, is_draft_4, own_fragment, schemas_within
from ralph.values.report import STATUSES
from ralph.values.tool_calls import FINAL_REPORT, ToolDefinition


def report_tool(payload_schema: dict[str, Any] | None) -> ToolDefinition:
    """The tool. `payload` is optional even with a schema: a failed task has no valid one.

    If the schema's draft is not the default, it is kept as `$schema` at the top, so that a resumed session can check
    reports with the recorded tool alone.
    """
    once = "Call this exactly once, as your very last action, when the task is done or cannot be done."
    properties: dict[str, Any] = {
        "status": {"type": "string", "enum": list(STATUSES)},
        "summary": {
            "type": "string",
            "minLength": 1,
            "description": "what was done, or why it could not be done",
        },
    }
    draft: dict[str, str] = {}
    how = 'Use status "failure" when the task could not be done.'
    if payload_schema is not None:
        properties["payload"] = _embedded(payload_schema)
        how = (
            'Use status "success" with the payload, or "failure", for which the payload may be left out, when the '
            "task could not be done."
        )
        named = payload_schema.get("$schema", DEFAULT_DRAFT)
        draft = {} if named.rstrip("#") == DEFAULT_DRAFT else {"$schema": named}
    schema = {**draft, "type": "object", "properties": properties, "required": ["status", "summary"]}
    return ToolDefinition(FINAL_REPORT, f"{once} {how}", schema)


def has_payload(tool: ToolDefinition) -> bool:
    return "payload" in tool.input_schema["properties"]


def _embedded(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema below `properties.payload`, with its references to itself adjusted."""
    inside: dict[str, Any] = json.loads(json.dumps(schema))
    # Find all references first: a pointer is followed through the original schema.
    for _, one in schemas_within(inside):
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            one["$ref"] = f"#/properties/payload{fragment}"
    named = {"$schema", "id" if is_draft_4(schema) else "$id"}
    return {key: value for key, value in inside.items() if key not in named}
