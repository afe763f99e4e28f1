"""Checks a request body strictly against the request types of the official SDK.

Pydantic itself would miss errors in these types: it ignores unknown keys of a TypedDict, checks an `Iterable` only
when somebody consumes it, and accepts a response model, which allows any field, as a block of a request.
"""

from __future__ import annotations

import functools
import os
import typing
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import IO, TYPE_CHECKING, Any

import typing_extensions as te

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (int, float),
    bool: (bool,),
    NoneType: (NoneType,),
}
_LISTS = (list, Iterable, Sequence)
# An answer's citation has a `file_id` that the type of a request's citation does not; the API wants citations
# back as they came, and the SDK says so too: it takes an answer's own blocks for a request.
_ECHOED = {
    f"{prefix}Citation{where}LocationParam": frozenset({"file_id"})
    for prefix in ("", "Beta")
    for where in ("Char", "Page", "ContentBlock")
}
_UNIONS = (typing.Union, UnionType)
_MARKS = (te.Annotated, te.Required, te.NotRequired)


def request_problems(body: object, *, with_betas: bool = False) -> list[str]:
    """The reasons for which a streaming request does not fit the SDK's types, as sentences. Empty if the request is
    valid.
    """
    return type_problems(body, _request_type(with_betas=with_betas))


def type_problems(body: object, kind: Any) -> list[str]:
    """The reasons for which a value does not fit a type of an SDK, which may be that of another vendor."""
    return list(_problems(body, kind, "body"))


@functools.cache
def _request_type(*, with_betas: bool) -> Any:
    from anthropic.types import message_create_params
    from anthropic.types.beta import message_create_params as beta_message_create_params

    module: Any = beta_message_create_params if with_betas else message_create_params
    return module.MessageCreateParamsStreaming


def _problems(value: object, expected: Any, where: str) -> Iterator[str]:
    expected = _unmarked(expected)
    origin = te.get_origin(expected)
    if expected in (object, Any):
        return
    if te.is_typeddict(expected):
        yield from _object_problems(value, expected, where)
    elif origin in _UNIONS:
        yield from _union_problems(value, expected, where)
    elif origin is te.Literal:
        if not any(type(value) is type(choice) and value == choice for choice in te.get_args(expected)):
            yield f"{where}: {value!r} is none of {te.get_args(expected)}"
    elif origin in _LISTS:
        yield from _list_problems(value, te.get_args(expected)[0], where)
    elif origin is dict:
        yield from _dict_problems(value, te.get_args(expected)[1], where)
    elif expected in _PLAIN:
        # bool is an int to Python and none to JSON.
        if not isinstance(value, _PLAIN[expected]) or (isinstance(value, bool) and expected is not bool):
            yield f"{where}: {value!r} is no {expected.__name__}"
    else:
        raise TypeError(f"{where}: this oracle does not know {expected!r}")


def _unmarked(hint: Any) -> Any:
    while te.get_origin(hint) in _MARKS:
        hint = te.get_args(hint)[0]
    return hint


def _list_problems(value: object, item: Any, where: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where}: {value!r} is not a list"
        return
    for index, one in enumerate(value):
        yield from _problems(one, item, f"{where}.{index}")


def _dict_problems(value: object, item: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is not an object"
        return
    for name, one in value.items():
        yield from _problems(one, item, f"{where}.{name}")


def _object_problems(value: object, expected: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r} is not an object"
        return
    fields, required = _fields_of(expected)
    yield from (f"{where}: {name} is missing" for name in sorted(required - value.keys()))
    allows_extra = getattr(expected, "__pydantic_config__", {}).get("extra") == "allow"
    for name, one in value.items():
        if name in fields:
            yield from _problems(one, fields[name], f"{where}.{name}")
        elif not allows_extra and name not in _ECHOED.get(expected.__name__, ()):
            yield f"{where}: {name} is not a field of {expected.__name__}"


def _union_problems(value: object, expected: Any, where: str) -> Iterator[str]:
    """Yields nothing if one alternative fits. Otherwise yields the problems of the alternative that fits best."""
    choices = [choice for choice in te.get_args(expected) if not _is_never_sent(choice)]
    if any(te.is_typeddict(choice) for choice in choices):
        # `Dict[str, object]` beside a typed schema is there for type checkers, and would allow anything.
        choices = [choice for choice in choices if te.get_origin(choice) is not dict]
    found = []
    for choice in choices:
        found.append(list(_problems(value, choice, where)))
        if not found[-1]:
            return
    yield from min(found, key=_distance)


def _distance(problems: list[str]) -> tuple[int, int]:
    """Sorts problems by how close they are to a fit: few problems first, and among these the ones deepest inside
    the value.
    """
    return len(problems), -sum(problem.partition(": ")[0].count(".") for problem in problems)


def _is_never_sent(choice: Any) -> bool:
    """Whether a Python program may pass a value of this type although the SDK never sends it as it is, such as a
    file or a response model.
    """
    choice = _unmarked(choice)
    kind: Any = te.get_origin(choice) or choice
    if kind in _UNIONS:
        return all(map(_is_never_sent, te.get_args(choice)))
    return kind in (IO, os.PathLike) or hasattr(kind, "model_fields")


@functools.cache
def _fields_of(expected: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The fields of a TypedDict, and the names of the required ones.

    They are computed here, because `__required_keys__` alone is wrong for annotations that are strings.
    """
    fields = te.get_type_hints(expected, include_extras=True)
    marks: dict[str, Any] = {name: te.get_origin(hint) for name, hint in fields.items()}
    marked = {name for name, mark in marks.items() if mark is te.Required}
    unmarked = {name for name, mark in marks.items() if mark not in (te.Required, te.NotRequired)}
    return fields, frozenset(marked | unmarked & expected.__required_keys__)
