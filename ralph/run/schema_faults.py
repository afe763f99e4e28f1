"""Describes the errors of jsonschema in sentences. Each sentence says what the schema expects, and gives a short form
of the report's value.
"""

from __future__ import annotations

import re
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from ralph.values.report import shown
from ralph.values.tool_calls import type_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsonschema.exceptions import ValidationError

MOST_NAMED = 5
LONGEST_PATH = 200
_LONGEST_EXPECTATION = 200


def faults_of(error: ValidationError) -> Iterator[tuple[list[str | int], str]]:
    """Yields the path of each fault, with a description of what the schema expects there and what the report has."""
    closest = _closest(error)
    path = list(closest.absolute_path)
    note = "" if closest is error else " (in the closest alternative)"
    if closest.validator == "required":
        properties = closest.schema.get("properties", {}) if isinstance(closest.schema, dict) else {}
        for name in _missing(closest):
            kind = properties.get(name)
            kinds = kind.get("type") if isinstance(kind, dict) else None
            yield [*path, name], ("required" if kinds is None else f"required ({type_names(kinds)})") + note
        return
    alternatives = [_expectation(errors[0]) for errors in _alternatives(closest)]
    expected = " or ".join(dict.fromkeys(alternatives)) or _expectation(closest)
    yield path, f"expected {shortened(expected, _LONGEST_EXPECTATION)}, got {_got(closest)}{note}"


def _closest(error: ValidationError) -> ValidationError:
    """Finds the alternative of `anyOf` or `oneOf` that the report fits best, and returns the first fault in that
    alternative.

    If the alternative contains alternatives itself, they are searched in the same way, as long as one of them fits
    better than all others. An error without alternatives is returned unchanged.
    """
    while alternatives := sorted(_alternatives(error), key=_distance):
        if len(alternatives) > 1 and _distance(alternatives[0]) == _distance(alternatives[1]):
            break
        error = alternatives[0][0]
    return error


def _alternatives(error: ValidationError) -> list[list[ValidationError]]:
    """One list of faults for each branch of `anyOf` or `oneOf`. Empty if the error does not concern branches."""
    return [
        list(faults) for _, faults in groupby(error.context or (), key=lambda inner: inner.schema_path[0])
    ]


def _distance(faults: Sequence[ValidationError]) -> tuple[bool, bool, int]:
    """A sort key that says how far a report is from one alternative."""
    return (
        any(fault.validator == "type" and not fault.path for fault in faults),
        any(fault.validator in {"const", "enum"} for fault in faults),
        len(faults),
    )


def _missing(error: ValidationError) -> list[str]:
    held: Any = error.instance
    return [name for name in _value(error) if name not in held]


_EXPECTED = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "a text that matches {}",
    "format": "a text of the format {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
    "items": "no more items",
    "additionalItems": "no more items",
    "unevaluatedItems": "no more items",
    "uniqueItems": "items that are all different",
    "contains": "an item of the kind that must be there",
    "not": "a value that the schema does not exclude",
    "oneOf": "a value that fits exactly one of the alternatives",
    "anyOf": "a value that fits one of the alternatives",
    "const": "{}",
}
_COUNTED = {"minItems", "maxItems", "minProperties", "maxProperties"}
_NO_OTHERS = {"additionalProperties", "unevaluatedProperties"}


def _expectation(error: ValidationError) -> str:
    keyword, wanted = error.validator, _value(error)
    if keyword == "type":
        return type_names(wanted)
    if keyword == "enum":
        return ("" if len(wanted) == 1 else "one of ") + ", ".join(map(shown, wanted))
    if keyword == "required":
        return f"an object with {', '.join(map(shown, _missing(error)))}"
    if keyword in _NO_OTHERS and wanted is False:
        return "no other properties than the schema's"
    if keyword in _EXPECTED:
        return _EXPECTED[keyword].format(shown(wanted))
    # The keyword is None if the schema is `false`; the library does not say which part of the schema. For keywords
    # without a sentence in `_EXPECTED`, the library's own message is not used, because it may show much of the value.
    return "nothing where the schema says false" if keyword is None else f"a value that fits {keyword}"


def _got(error: ValidationError) -> str:
    held: Any = error.instance
    if error.validator in _COUNTED:
        return str(len(held))
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known = error.schema.get("properties", {})
        patterns = error.schema.get("patternProperties", {})
        others = (
            name for name in held if name not in known and not any(re.search(one, name) for one in patterns)
        )
        return ", ".join(map(shown, islice(others, MOST_NAMED))) or shown(held)
    return shown(held)


def _value(error: ValidationError) -> Any:
    """The value that the schema gives for the violated keyword.

    jsonschema declares that the value may be missing, but these errors always have one.
    """
    return error.validator_value


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
