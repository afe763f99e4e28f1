"""Checks a final report against a user's schema in a separate process, which ralph can kill. Each problem is one line with
the path and the expected value.

A pattern such as `(a+)+$`, or alternatives that refer to themselves, can keep a checker busy almost for ever. In
ralph's own process nothing could interrupt such a check, neither a signal nor the time limit.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ralph.machine.own_programs import own_python
from ralph.machine.starting import protect_this_process, start_process, start_thread
from ralph.values.answer import FINAL_REPORT, ToolDefinition
from ralph.values.outcome import ShortageError
from ralph.values.ports import TIMED_OUT, Clock, Waiter
from ralph.values.report import STATUSES, ReportForm, plain_problems, problems_without_payload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from subprocess import Popen


CHECKED_WITHIN_S = 5.0
"""The time limit for one check, in seconds. A check takes milliseconds, and its process takes 0.2 s to start."""

TOO_SLOW = "payload: could not be checked within {seconds:g} s; send it in a plainer form"
NOT_NOW = "payload: could not be checked: {shortage}; nothing is wrong with it: send the same report again"
BROKEN = "payload: could not be checked; send it in a plainer form"

_WORKER = "from ralph.run.report_problems import answer; answer()"


class ReportCheck:
    """A `Validator` that checks all arguments of the report tool. A separate process checks the payload, because the
    schema of the payload comes from the user.
    """

    def __init__(
        self,
        tool_input_schema: Mapping[str, Any],
        *,
        waiter: Waiter,
        clock: Clock,
        environment: Mapping[str, str],
        within_s: float = CHECKED_WITHIN_S,
    ) -> None:
        """`tool_input_schema` is the schema that the model received. `environment` is the environment of the separate
        process, and `within_s` is the time limit for one check, in seconds.
        """
        self._schema = dict(tool_input_schema)
        self._waiter = waiter
        self._clock = clock
        self._environment = dict(environment)
        self._within_s = within_s

    def __call__(self, arguments: Mapping[str, Any]) -> list[str]:
        """The problems with the arguments, one text each. If the machine is short of a resource for the check, that
        is reported as a problem. Raises `Interrupted` after the separate process has been stopped.
        """
        if "payload" not in arguments:  # the user's schema is only for the payload
            return problems_without_payload(arguments)
        try:
            return self._checked(arguments)
        except ShortageError as error:
            return [NOT_NOW.format(shortage=error)]

    def _checked(self, arguments: Mapping[str, Any]) -> list[str]:
        mailbox = self._waiter.mailbox()
        task = json.dumps({"schema": self._schema, "arguments": dict(arguments)}).encode()
        process = self._started()
        try:
            start_thread(lambda: mailbox.put(process.communicate(task)[0]), name="report check")
            until_s = self._clock.now_s() + self._within_s
            said = self._waiter.wait(mailbox, until_s=until_s, waiting_for="the check of the final report")
        finally:
            process.kill()
            process.wait()  # `communicate` in the thread may wait too, which Popen permits
            mailbox.close()
        if said is TIMED_OUT:
            return [TOO_SLOW.format(seconds=self._within_s)]
        try:
            found: list[str] = json.loads(said)
        except ValueError:  # the process died, for example because memory ran out
            return [BROKEN]
        return found

    def _started(self) -> Popen[bytes]:
        protect_this_process()
        return start_process(
            own_python(_WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )


def report_form(
    offered: ToolDefinition | None,
    payload_schema: dict[str, Any] | None,
    *,
    waiter: Waiter,
    clock: Clock,
    environment: Mapping[str, str],
) -> ReportForm:
    """The report tool and its validator. `offered` is the tool of an old session that this run keeps; without one, the tool is
    made for `payload_schema`.
    """
    tool = offered or report_tool(payload_schema)
    if not has_payload(tool):
        return ReportForm(tool, plain_problems, has_payload=False)
    check = ReportCheck(tool.input_schema, waiter=waiter, clock=clock, environment=environment)
    return ReportForm(tool, check, has_payload=True)


DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"

# Keywords of JSON Schema since draft 4 whose value is an object that maps names to schemas.
_NAMED_SCHEMAS = {
    "$defs",
    "definitions",
    "dependencies",
    "dependentSchemas",
    "patternProperties",
    "properties",
}
# Keywords of JSON Schema since draft 4 whose value is a schema or a list of schemas.
_SCHEMAS = (
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema", "propertyNames"}
    | {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
    | {"additionalProperties", "unevaluatedProperties"}
)


def report_tool(payload_schema: dict[str, Any] | None) -> ToolDefinition:
    """`payload_schema` is None if a report has no payload. A payload is optional, because a failed task has none.
    Another draft than the default is named at the top, so that a resumed session can check reports with the
    recorded definition alone.
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
    """A copy of the schema for `properties.payload`."""
    inside: dict[str, Any] = json.loads(json.dumps(schema))
    # `schemas_within` follows all references before it returns, so that none of them has been changed yet.
    for _, one in schemas_within(inside):
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            one["$ref"] = f"#/properties/payload{fragment}"
    named = {"$schema", "id" if is_draft_4(schema) else "$id"}
    return {key: value for key, value in inside.items() if key not in named}


def schemas_within(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """`schema` and all schemas inside it or named by a `$ref`, each with its JSON pointer."""
    found: list[tuple[str, dict[str, Any]]] = []
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        pointer, one = waiting.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        found.append((pointer, one))
        waiting.extend(reversed(list(direct_subschemas(pointer, one))))
        fragment = own_fragment(schema, one.get("$ref"))
        if fragment is not None:
            waiting.append((f"#{fragment}", leads_to(schema, fragment)))
    return found


def direct_subschemas(pointer: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly in `schema`, whose JSON pointer is `pointer`, each with its own."""
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, dict):
            for name, inner in value.items():
                yield f"{pointer}/{key}/{name.replace('~', '~0').replace('/', '~1')}", inner
        elif key in _SCHEMAS and isinstance(value, list):
            yield from ((f"{pointer}/{key}/{index}", inner) for index, inner in enumerate(value))
        elif key in _SCHEMAS:
            yield f"{pointer}/{key}", value


def own_fragment(schema: Mapping[str, Any], ref: object) -> str | None:
    """The part behind the `#` of a reference into `schema` itself, else None."""
    if not isinstance(ref, str):
        return None
    document, _, fragment = ref.partition("#")
    return fragment if document in ("", root_id(schema)) else None


def root_id(schema: Mapping[str, Any]) -> str:
    """The id without a `#` at its end. Empty if the schema states none."""
    named = schema.get("id" if is_draft_4(schema) else "$id", "")
    return named.rstrip("#") if isinstance(named, str) else ""


def is_draft_4(schema: Mapping[str, Any]) -> bool:
    return str(schema.get("$schema")).startswith("http://json-schema.org/draft-04/")


def leads_to(schema: Mapping[str, Any], fragment: str) -> Any:
    """The part of `schema` at the JSON pointer `fragment`. None if there is no such part or it is no pointer."""
    here: Any = schema
    if fragment and not fragment.startswith("/"):
        return None
    for escaped in unquote(fragment).split("/")[1:]:
        part = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and re.fullmatch("[0-9]{1,9}", part) and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here
