"""Checks final reports against a user's schema. Each problem is one line with the path and the expected value.

jsonschema is imported only if there is a schema. A validator raises no error, whatever the model sent.
"""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

from ralph.output.standard_streams import print_lines
from ralph.run.schema_faults import LONGEST_PATH, faults_of, shortened
from ralph.values.report import plain_problems, problems_without_payload, shown
from ralph.values.strict_json import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator as Checker

    from ralph.values.report import Validator

MOST_PROBLEMS = 5
_MOST_ERRORS_LOOKED_AT = 200  # more errors would add nothing, because only `MOST_PROBLEMS` are shown


def validator_of(tool_input_schema: Mapping[str, Any]) -> Validator:
    """The validator for all arguments of the report tool: a function that returns one line per problem. If there are
    more than `MOST_PROBLEMS`, the rest is replaced by the line "and more".

    `tool_input_schema` is the schema that `report_tool` made, in this run or in an earlier run of the session.
    """
    if "payload" not in tool_input_schema["properties"]:
        return plain_problems
    checker = _checker(tool_input_schema)

    def problems(arguments: Mapping[str, Any]) -> list[str]:
        lines = problems_without_payload(arguments)
        # With "failure" the payload may be left out, and some models write null for what they leave out.
        if arguments.get("payload") is not None or (
            "payload" in arguments and arguments.get("status") != "failure"
        ):
            lines += _payload_problems(checker, arguments["payload"])
        return lines if len(lines) <= MOST_PROBLEMS else [*lines[:MOST_PROBLEMS], "and more"]

    return problems


def answer() -> None:
    """The main function of the process that `report_check.py` starts.

    It reads a task from standard input, and writes the problems to standard output.
    """
    task = json.load(sys.stdin)
    print_lines([json.dumps(validator_of(task["schema"])(task["arguments"]))])


def _checker(tool_input_schema: Mapping[str, Any]) -> Checker:
    """A checker for an object whose only field is `payload`. Other code checks the other fields of a report."""
    from jsonschema import validators  # noqa: PLC0415 - costs 100 ms
    from referencing import Registry  # noqa: PLC0415 - jsonschema loads it

    schema = {key: tool_input_schema[key] for key in ("$schema", "properties") if key in tool_input_schema}
    known = validators.validator_for(schema, default=validators.Draft202012Validator)
    extend: Any = validators.extend  # jsonschema has no types for it
    draft = extend(known, {"uniqueItems": _unique_items, "multipleOf": _multiple_of})
    # An empty registry knows no other document and cannot fetch one.
    checker: Checker = draft(schema, registry=Registry(), format_checker=known.FORMAT_CHECKER)
    return checker


def _unique_items(
    _checker: Checker, wanted: object, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """Checks `uniqueItems` in linear time.

    The check in jsonschema compares all pairs of objects, which takes minutes for a list that a model can send.
    """
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - costs 100 ms

    if wanted is True and isinstance(instance, list) and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("the items are not all different")


def _multiple_of(
    _checker: Checker, step: float, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """Checks `multipleOf` with the decimal numbers that the schema and the report contain.

    The check in jsonschema divides floats: for it, 0.07 is no multiple of 0.01.
    """
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - costs 100 ms

    if is_number(instance) and _exact(instance) % _exact(step):
        yield ValidationError("not a multiple")


def _exact(number: Any) -> Fraction:
    """The number as it is written. A float would be the nearest binary fraction."""
    return Fraction(number if isinstance(number, int) else repr(number))


def _hashable(value: Any) -> object:
    """A hashable key for a JSON value.

    Values that are equal in JSON have equal keys: 1 equals 1.0, but 1 differs from true.
    """
    if isinstance(value, dict):
        return dict, frozenset((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, *map(_hashable, value)
    return (bool, value) if isinstance(value, bool) else value


def _payload_problems(checker: Checker, payload: Any) -> list[str]:
    try:
        errors = list(islice(checker.iter_errors({"payload": payload}), _MOST_ERRORS_LOOKED_AT))
        # Faults at a higher level must be corrected first.
        errors.sort(key=lambda error: len(error.absolute_path))
        faults = (fault for error in errors for fault in faults_of(error))
        return list(dict.fromkeys(f"{_path_text(path)}: {sentence}" for path, sentence in faults))
    except RecursionError:
        return ["payload: expected a value that is nested less deeply; this one could not be checked"]
    except Exception as error:  # noqa: BLE001 - a value that the library cannot handle must not end a run
        return [f"payload: could not be checked ({type(error).__name__}); send it in a plainer form"]


def _path_text(path: Sequence[str | int]) -> str:
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif re.fullmatch(r"[\w$-]{1,60}", part):
            parts.append(f".{part}" if parts else part)
        else:
            parts.append(f"[{shown(part)}]")
    return shortened("".join(parts), LONGEST_PATH)
