"""Reads a user's JSON Schema for the final report. A schema with which reports cannot be checked is refused before
the run starts.

This module is imported only if there is a schema, because jsonschema is slow to load. Nothing is fetched from the
network, so a schema must contain everything that it refers to.
"""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonschema import validators

from ralph.prompt.judged_file import read_named_file
from ralph.run.report_check import (
    DEFAULT_DRAFT,
    direct_subschemas,
    is_draft_4,
    leads_to,
    own_fragment,
    schemas_within,
)
from ralph.run.report_problems import faults_of, shortened
from ralph.values.report import shown
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_SCHEMA_BYTES = 1_000_000

_DRAFTS = (
    DEFAULT_DRAFT,
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)


def read_schema(
    text_or_path: str, cwd: Path | str, directories: Sequence[Path | str] = (), *, takes_pipe: bool = True
) -> dict[str, Any]:
    """Reads a schema. If the text begins with `{`, it is the schema itself. Any other text is the path of a file,
    relative to `cwd`.

    `directories` are as in `open_named_file`. `takes_pipe` is False if the file must
    not be a pipe, because ralph will read the file again. Raises ValueError with one line that names the fault and
    its place.
    """
    if text_or_path.lstrip().startswith("{"):
        where, text = "the schema", text_or_path
        if len(text) > MOST_SCHEMA_BYTES:
            raise ValueError(f"the schema is longer than {MOST_SCHEMA_BYTES} bytes")
    else:
        where = shortened(text_or_path) if text_or_path.isprintable() else shown(text_or_path)
        text = _text_of(Path(cwd, text_or_path), where, directories, takes_pipe=takes_pipe)
    try:
        schema = strict_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{where} is not JSON: {error.msg} ({place})") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{where} is not usable JSON: {why}") from None
    if not isinstance(schema, dict):
        raise ValueError(  # noqa: TRY004 - the value of an option is wrong, not the caller's type
            f"{where} must be a JSON object, got {shown(schema)}"
        )
    fault = _fault_of(schema)
    if fault is not None:
        raise ValueError(f"{where} is not a usable JSON Schema: {fault}")
    return schema


def _text_of(path: Path, where: str, directories: Sequence[Path | str], *, takes_pipe: bool) -> str:
    if "\0" in str(path):
        raise ValueError(f"cannot read {where}: a path cannot contain a NUL byte")
    try:
        data = read_named_file(str(path), directories, MOST_SCHEMA_BYTES, takes_pipe=takes_pipe)
    except FileNotFoundError:
        raise ValueError(f"cannot read {where}: no such file (and a schema as text begins with {{)") from None
    except (OSError, ValueError) as error:
        code = getattr(error, "errno", None)
        if code == errno.EFBIG:
            raise ValueError(f"{where} is longer than {MOST_SCHEMA_BYTES} bytes") from None
        raise ValueError(f"cannot read {where}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 (byte {error.start})") from None


def _fault_of(schema: dict[str, Any]) -> str | None:
    """A sentence about the first fault in a schema. None if reports can be checked against the schema."""
    draft = schema.get("$schema", DEFAULT_DRAFT)
    if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
        return f"$schema is {shown(draft)}; known are {', '.join(_DRAFTS)}"
    within = schemas_within(schema)
    faults = (fault for pointer, one in within for fault in _keyword_faults(schema, pointer, one))
    # Cheap checks for common mistakes come first, then the draft's own rules, then loops.
    return next(faults, None) or _draft_fault(schema, within) or _loop(schema, within)


# These keywords give a schema a name, or refer to a schema by its name. The names would not be valid any more,
# because the user's schema becomes a part of the schema of the report tool.
_NAMES = ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef")


def _keyword_faults(root: dict[str, Any], pointer: str, schema: dict[str, Any]) -> Iterator[str]:
    where = shortened(pointer)
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
            yield f"{where}: {shown(pattern)} is not a regular expression that Python understands"


def _is_regular_expression(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _draft_fault(schema: dict[str, Any], within: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
    draft = validators.validator_for(schema)
    checker = draft(draft.META_SCHEMA, format_checker=draft.FORMAT_CHECKER)
    # The draft's own schema does not check places that only a `$ref` leads to.
    places = [within[0], *_only_referred_to(within)]
    try:
        for pointer, one in places:
            error = next(checker.iter_errors(one), None)
            if error is not None:
                path, sentence = next(faults_of(error))
                inside = "".join(f"/{part}" for part in path)
                return f"{shortened(pointer + inside)}: {sentence}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def _only_referred_to(within: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    by_keyword = {id(inner) for pointer, one in within for _, inner in direct_subschemas(pointer, one)}
    return ((pointer, one) for pointer, one in within[1:] if id(one) not in by_keyword)


# Keywords whose schemas apply to the same value as the schema around them: a cycle of these never ends.
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
                return f"{shortened(pointers[following])}: $ref leads back to itself without end"
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
