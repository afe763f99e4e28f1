"""Finds the problems of a final report by a user's schema. Each is one line with the path and the expected value.

`report_check.py` starts a separate process for it: what this imports takes 100 ms, and a check may never end.
"""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from jsonschema import validators
from jsonschema.exceptions import ValidationError
from referencing import Registry

from ralph.output.standard_streams import print_lines
from ralph.values.answer import type_names
from ralph.values.report import plain_problems, problems_without_payload, shown
from ralph.values.strict_json import is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jsonschema.protocols import Validator as Checker

    from ralph.values.report import Validator

MOST_PROBLEMS = 5
LONGEST_SHOWN = 200
"""The longest path and expectation in characters."""
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
    """The main function of the process that checks.

    It reads a task from standard input, and writes the problems to standard output.
    """
    task = json.load(sys.stdin)
    print_lines([json.dumps(validator_of(task["schema"])(task["arguments"]))])


def _checker(tool_input_schema: Mapping[str, Any]) -> Checker:
    """A checker for an object whose only field is `payload`. Other code checks the other fields of a report."""
    schema = {key: tool_input_schema[key] for key in ("$schema", "properties") if key in tool_input_schema}
    known = validators.validator_for(schema, default=validators.Draft202012Validator)
    extend: Any = validators.extend  # jsonschema has no types for it
    draft = extend(known, {"multipleOf": _multiple_of})
    # An empty registry knows no other document and cannot fetch one.
    checker: Checker = draft(schema, registry=Registry(), format_checker=known.FORMAT_CHECKER)
    return checker


def _multiple_of(
    _checker: Checker, step: float, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """Checks `multipleOf` with the decimal numbers that the schema and the report contain."""
    if is_number(instance) and _exact(instance) % _exact(step):
        yield ValidationError("not a multiple")


def _exact(number: Any) -> Fraction:
    return Fraction(number if isinstance(number, int) else repr(number))


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
    return shortened("".join(parts))


def faults_of(error: ValidationError) -> Iterator[tuple[list[str | int], str]]:
    """Yields the path of each fault, with a description of what the schema expects there and what the report has."""
    path = list(error.absolute_path)
    if error.validator == "required":
        properties = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        for name in _missing(error):
            kind = properties.get(name)
            kinds = kind.get("type") if isinstance(kind, dict) else None
            yield [*path, name], "required" if kinds is None else f"required ({type_names(kinds)})"
        return
    alternatives = [_expectation(errors[0]) for errors in _alternatives(error)]
    expected = " or ".join(dict.fromkeys(alternatives)) or _expectation(error)
    yield path, f"expected {shortened(expected)}, got {_got(error)}"


def _alternatives(error: ValidationError) -> list[list[ValidationError]]:
    """One list of faults for each branch of `anyOf` or `oneOf`. Empty if the error does not concern branches."""
    return [
        list(faults) for _, faults in groupby(error.context or (), key=lambda inner: inner.schema_path[0])
    ]


def _missing(error: ValidationError) -> list[str]:
    held: Any = error.instance
    return [name for name in _value(error) if name not in held]


def _expectation(error: ValidationError) -> str:
    """Words that follow "expected". The library's own message is not used, because it may show much of the value."""
    keyword, wanted = error.validator, _value(error)
    if keyword is None:  # the library does not say which part of the schema
        return "nothing where the schema says false"
    if keyword == "type":
        return type_names(wanted)
    if keyword in {"enum", "required"}:
        values = _missing(error) if keyword == "required" else wanted
        return f"{'one of ' if keyword == 'enum' else 'an object with '}{', '.join(map(shown, values))}"
    return f"{keyword} {shown(wanted)}"


def _got(error: ValidationError) -> str:
    held: Any = error.instance
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known = error.schema.get("properties", {})
        patterns = error.schema.get("patternProperties", {})
        others = (
            name for name in held if name not in known and not any(re.search(one, name) for one in patterns)
        )
        return ", ".join(map(shown, islice(others, MOST_PROBLEMS))) or shown(held)
    return f"{len(held)}" if error.validator in {"minItems", "maxItems"} else shown(held)


def _value(error: ValidationError) -> Any:
    """The value of the violated keyword. jsonschema declares that it may be missing, but these errors have one."""
    return error.validator_value


def shortened(text: str, longest: int = LONGEST_SHOWN) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
