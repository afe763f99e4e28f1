"""JSON values as frozen dataclasses, by the annotations of their fields. Refuses whatever does not fit one."""

from __future__ import annotations

import enum
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read_as(kind: type[T], value: object, where: str = "") -> T:
    """Unknown keys are dropped, missing ones take their default. Raises ValueError that names the place."""
    if not isinstance(value, dict):
        raise ValueError(f"{where or 'it'} must be an object")  # noqa: TRY004 - one kind of error for any misfit
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # T is a dataclass, which no type says
        name = f"{where}.{one.name}" if where else one.name
        if one.name in value:
            given[one.name] = _read(hints[one.name], value[one.name], name)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{name} is missing")
    return kind(**given)


def _read(hint: Any, value: object, where: str) -> Any:
    if get_origin(hint) is types.UnionType:
        return _read_one_of(get_args(hint), value, where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{where} must be a list")
        return tuple(_read(get_args(hint)[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if is_dataclass(hint) and isinstance(hint, type):
        return read_as(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError:
            raise ValueError(f"{where} cannot be {value!r}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:  # bool is an int, but not meant
        raise ValueError(f"{where} must be of type {hint.__name__}")
    return value


def _read_one_of(hints: tuple[Any, ...], value: object, where: str) -> Any:
    """`X | None`: nothing else occurs."""
    if value is None and type(None) in hints:
        return None
    [hint] = [one for one in hints if one is not type(None)]
    return _read(hint, value, where)
