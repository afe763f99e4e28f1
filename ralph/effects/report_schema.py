"""A user's JSON Schema for the final report: read it, refuse what could not be checked, check reports by it.

jsonschema is imported when the first schema is there, and never fetches anything: a schema stands on its own.
"""

from __future__ import annotations

import json
import os
import re
import stat
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.core.report import (
    DEFAULT_DRAFT,
    direct_subschemas,
    is_draft_4,
    leads_to,
    own_fragment,
    payload_is_missing,
    plain_problems,
    schemas_within,
    shown,
)
from ralph.core.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator as Checker

    from ralph.core.report import Validator

MOST_SCHEMA_BYTES = 1_000_000
MOST_PROBLEMS = 5
_MOST_ERRORS_LOOKED_AT = 200  # a list of a million wrong items is as wrong after these
_LONGEST_PATH = 200
_LONGEST_EXPECTATION = 200

_DRAFTS = (
    DEFAULT_DRAFT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)


# -- Reading one. ------------------------------------------------------------------------------------------------


def read_schema(text_or_path: str, cwd: Path | str) -> dict[str, Any]:
    """Text that begins with `{` is the schema itself, all else the path of its file, relative to `cwd`.

    Raises ValueError with one line that says what is wrong and where.
    """
    if text_or_path.lstrip().startswith("{"):
        where, text = "the schema", text_or_path
        if len(text) > MOST_SCHEMA_BYTES:
            raise ValueError(f"the schema is longer than {MOST_SCHEMA_BYTES} bytes")
    else:
        where = _cut(text_or_path, _LONGEST_PATH) if text_or_path.isprintable() else shown(text_or_path)
        text = _text_of(Path(cwd) / text_or_path, where)
    try:
        schema = strict_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{where} is no JSON: {error.msg} ({place})") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{where} is no JSON that can be used: {why}") from None
    if not isinstance(schema, dict):
        raise ValueError(  # noqa: TRY004 - the value of an option is wrong, not the caller's type
            f"{where} must be a JSON object, got {shown(schema)}"
        )
    fault = _fault_of(schema)
    if fault is not None:
        raise ValueError(f"{where} is no JSON Schema that can be used: {fault}")
    return schema


def _text_of(path: Path, where: str) -> str:
    """A FIFO of that name must not block, and what is no file is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ValueError(f"cannot read {where}: no such file (and a schema as text begins with {{)") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {where}: {getattr(error, 'strerror', None) or error}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{where} is no file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_SCHEMA_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot read {where}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > MOST_SCHEMA_BYTES:
        raise ValueError(f"{where} is longer than {MOST_SCHEMA_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 (byte {error.start})") from None


def _fault_of(schema: dict[str, Any]) -> str | None:
    """The first of them; None: reports can be checked by it, and always will be."""
    draft = schema.get("$schema", DEFAULT_DRAFT)
    if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
        return f"$schema is {shown(draft)}; known are {', '.join(_DRAFTS)}"
    within = schemas_within(schema)
    faults = (fault for pointer, one in within for fault in _keyword_faults(schema, pointer, one))
    # Cheap and about what people get wrong first; then what the draft itself says, then loops.
    return next(faults, None) or _draft_fault(schema, within) or _loop(schema, within)


# Each gives a schema a name of its own, which would have to stay right where it is embedded.
_NAMES = ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef")


def _keyword_faults(root: dict[str, Any], pointer: str, schema: dict[str, Any]) -> Iterator[str]:
    where = _cut(pointer, _LONGEST_PATH)
    refused = _NAMES
    if schema is not root:
        refused = (*_NAMES, "$id", "$schema", *(("id",) if is_draft_4(root) else ()))
    yield from (f"{where}: {name} is not supported here" for name in refused if name in schema)
    if "$ref" in schema:
        ref, fragment = schema["$ref"], own_fragment(root, schema["$ref"])
        if fragment is None:
            yield f"{where}: $ref {shown(ref)} leads outside the schema; nothing is fetched"
        elif not isinstance(leads_to(root, fragment), dict | bool):
            yield f"{where}: $ref {shown(ref)} leads to no schema"
    patterns = schema.get("patternProperties")
    for pattern in (schema.get("pattern"), *(patterns if isinstance(patterns, dict) else ())):
        if isinstance(pattern, str) and not _is_regular_expression(pattern):
            yield f"{where}: {shown(pattern)} is no regular expression that Python understands"


def _is_regular_expression(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _draft_fault(schema: dict[str, Any], within: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
    from jsonschema import validators  # noqa: PLC0415 - costs 100 ms

    draft = validators.validator_for(schema)
    checker = draft(draft.META_SCHEMA, format_checker=draft.FORMAT_CHECKER)
    # Where only a `$ref` leads, the draft's own schema does not look.
    places = [within[0], *_only_referred_to(within)]
    try:
        for pointer, one in places:
            error = next(checker.iter_errors(one), None)
            if error is not None:
                path, sentence = next(_faults(error))
                inside = "".join(f"/{part}" for part in path)
                return f"{_cut(pointer + inside, _LONGEST_PATH)}: {sentence}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def _only_referred_to(
    within: Sequence[tuple[str, dict[str, Any]]],
) -> Iterator[tuple[str, dict[str, Any]]]:
    by_keyword = {id(inner) for pointer, one in within for _, inner in direct_subschemas(pointer, one)}
    return ((pointer, one) for pointer, one in within[1:] if id(one) not in by_keyword)


# What applies to the same value as the schema that it stands in: a circle of these never comes to an end.
_IN_PLACE = re.compile(r"/((allOf|anyOf|oneOf)/\d+|not|if|then|else|(dependentSchemas|dependencies)/[^/]*)")


def _loop(schema: dict[str, Any], within: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
    nexts = {id(one): list(_in_place(schema, pointer, one)) for pointer, one in within}
    pointers = {id(one): pointer for pointer, one in within}
    done: set[int] = set()
    for start, first in nexts.items():
        path = {} if start in done else {start: iter(first)}
        while path:
            here = next(reversed(path))
            following = next(path[here], None)
            if following is None:
                done.add(here)
                path.popitem()
            elif following in path:
                return f"{_cut(pointers[following], _LONGEST_PATH)}: $ref leads back to itself without end"
            elif following not in done:
                path[following] = iter(nexts[following])
    return None


def _in_place(root: dict[str, Any], pointer: str, schema: dict[str, Any]) -> Iterator[int]:
    for inner_pointer, inner in direct_subschemas(pointer, schema):
        if isinstance(inner, dict) and _IN_PLACE.fullmatch(inner_pointer, len(pointer)):
            yield id(inner)
    fragment = own_fragment(root, schema.get("$ref"))
    target = None if fragment is None else leads_to(root, fragment)
    if isinstance(target, dict):
        yield id(target)


# -- Checking by one. --------------------------------------------------------------------------------------------


def validator_of(tool_input_schema: Mapping[str, Any]) -> Validator:
    """Checks whole arguments by the schema that `report_tool` made, which may come from an old session's record."""
    if "payload" not in tool_input_schema["properties"]:
        return plain_problems
    checker = _checker(tool_input_schema)

    def problems(arguments: Mapping[str, Any]) -> list[str]:
        lines = plain_problems(arguments)
        if "payload" in arguments:
            lines += _payload_problems(checker, arguments["payload"])
        elif payload_is_missing(arguments):
            lines.append('payload: required with status "success"')
        return lines if len(lines) <= MOST_PROBLEMS else [*lines[:MOST_PROBLEMS], "and more"]

    return problems


def _checker(tool_input_schema: Mapping[str, Any]) -> Checker:
    """Of `{"payload": ...}` alone: the rest has sentences of its own."""
    from jsonschema import validators  # noqa: PLC0415 - costs 100 ms
    from referencing import Registry  # noqa: PLC0415 - comes with it

    schema = {key: tool_input_schema[key] for key in ("$schema", "properties") if key in tool_input_schema}
    known = validators.validator_for(schema, default=validators.Draft202012Validator)
    extend: Any = validators.extend  # has no types
    draft = extend(known, {"uniqueItems": _unique_items})
    # An empty registry knows no document but this one and has no means to get another.
    checker: Checker = draft(schema, registry=Registry(), format_checker=known.FORMAT_CHECKER)
    return checker


def _unique_items(
    _checker: Checker, wanted: object, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """The library compares each with each where items are objects: minutes for what a model can send at once."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - costs 100 ms

    if wanted is True and isinstance(instance, list) and len(set(map(_hashable, instance))) < len(instance):
        yield ValidationError("the items are not all different")


def _hashable(value: Any) -> object:
    """Equal for what is equal in JSON: 1 is 1.0 and is not true."""
    if isinstance(value, dict):
        return dict, frozenset((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return list, *map(_hashable, value)
    return (bool, value) if isinstance(value, bool) else value


def _payload_problems(checker: Checker, payload: Any) -> list[str]:
    try:
        errors = list(islice(checker.iter_errors({"payload": payload}), _MOST_ERRORS_LOOKED_AT))
        # What is wrong further out is to be put right first.
        errors.sort(key=lambda error: len(error.absolute_path))
        faults = (fault for error in errors for fault in _faults(error))
        return list(dict.fromkeys(f"{_path_text(path)}: {sentence}" for path, sentence in faults))
    except RecursionError:
        return ["payload: expected a value that is nested less deeply; this one could not be checked"]
    except Exception as error:  # noqa: BLE001 - a run must not end by a value that the library trips over
        return [f"payload: could not be checked ({type(error).__name__}); send it in a plainer form"]


def _faults(error: ValidationError) -> Iterator[tuple[list[str | int], str]]:
    """Where something is wrong, and what was expected there."""
    closest = _closest(error)
    path = list(closest.absolute_path)
    note = "" if closest is error else " (in the closest alternative)"
    if closest.validator == "required":
        properties = closest.schema.get("properties", {}) if isinstance(closest.schema, dict) else {}
        for name in _missing(closest):
            kind = properties.get(name)
            kinds = kind.get("type") if isinstance(kind, dict) else None
            yield [*path, name], ("required" if kinds is None else f"required ({_type_names(kinds)})") + note
        return
    alternatives = [_expectation(errors[0]) for errors in _alternatives(closest)]
    expected = " or ".join(dict.fromkeys(alternatives)) or _expectation(closest)
    yield path, f"expected {_cut(expected, _LONGEST_EXPECTATION)}, got {_got(closest)}{note}"


def _closest(error: ValidationError) -> ValidationError:
    """The fault in the alternative that the value comes closest to; where none is closer, the error itself."""
    while alternatives := sorted(_alternatives(error), key=_distance):
        if len(alternatives) > 1 and _distance(alternatives[0]) == _distance(alternatives[1]):
            break
        error = alternatives[0][0]
    return error


def _alternatives(error: ValidationError) -> list[list[ValidationError]]:
    """What is wrong with each branch of `anyOf` or `oneOf`; none where no branch is the matter."""
    return [
        list(faults) for _, faults in groupby(error.context or (), key=lambda inner: inner.schema_path[0])
    ]


def _distance(faults: Sequence[ValidationError]) -> tuple[bool, bool, int]:
    """Another type is furthest; then another constant, which often says what alternative is meant; then numbers."""
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
        return _type_names(wanted)
    if keyword == "enum":
        return ("" if len(wanted) == 1 else "one of ") + ", ".join(map(shown, wanted))
    if keyword == "required":
        return f"an object with {', '.join(map(shown, _missing(error)))}"
    if keyword in _NO_OTHERS and wanted is False:
        return "no other properties than the schema's"
    if keyword in _EXPECTED:
        return _EXPECTED[keyword].format(shown(wanted))
    # None: the schema is `false`, and the library does not say for which part. What is left is rare; the library's
    # own words may show much of the value.
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
        return ", ".join(map(shown, islice(others, MOST_PROBLEMS))) or shown(held)
    return shown(held)


def _value(error: ValidationError) -> Any:
    """The keyword's value in the schema. (The library's type has room for an error that came of no keyword.)"""
    return error.validator_value


_TYPE_NAMES = {"array": "an array", "integer": "an integer", "null": "null", "object": "an object"}


def _type_names(types: str | Sequence[str]) -> str:
    named = [types] if isinstance(types, str) else types
    return " or ".join(_TYPE_NAMES.get(name, f"a {name}") for name in named)


def _path_text(path: Sequence[str | int]) -> str:
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif re.fullmatch(r"[\w$-]{1,60}", part):
            parts.append(f".{part}" if parts else part)
        else:
            parts.append(f"[{shown(part)}]")
    return _cut("".join(parts), _LONGEST_PATH)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
