"""All settings by name, collected from the tables, and where to set those that a repository may not set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.settings.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct

    from ralph.values.setting import Key

TARGETS = "targets"
"""The name of the list of targets, in order of preference."""


def _rows(table: str, kind: type[Struct]) -> Iterator[Key]:
    """The table's keys in the order of its fields, inherited fields included."""
    # As `Annotated` keeps them: `typing.get_type_hints` would take a millisecond for each table.
    annotations: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        annotations |= getattr(one, "__annotations__", {})
    defaults = kind()
    for field in kind.__struct_fields__:
        (row,) = annotations[field].__metadata__
        yield replace(row, name=f"{table}.{field}", default=getattr(defaults, field))


ALL_KEYS = tuple(row for table, kind in TABLES.items() for row in _rows(table, kind))
KEYS = tuple(key for key in ALL_KEYS if key.is_in_files)
"""Settings that files may contain. All other settings have only a flag."""
BY_NAME = {key.name: key for key in ALL_KEYS}
ALLOWED = {
    table: tuple(key.name.removeprefix(f"{table}.") for key in KEYS if key.name.startswith(f"{table}."))
    for table in TABLES
}
CUSTOM_ONLY = ("retry.max_retries", "retry.base_delay_s", "retry.max_delay_s")

# A repository may say these nowhere, at any depth, and is told where they can stand. `sandbox*`, which goes with them,
# does not exist yet: such a file is told why it may not, and not that it is unknown.
_AT_ANY_DEPTH: dict[str, tuple[str, ...]] = {
    "base_url": BY_NAME["model.base_url"].places[::-1],
    "ca_file": BY_NAME["model.ca_file"].places[::-1],
    "pass_env": BY_NAME["tools.pass_env"].places[::-1],
    "headers": ("ANTHROPIC_CUSTOM_HEADERS",),
    "api_key_env": ("ANTHROPIC_API_KEY",),
    "price": (),
}


def other_places(key: str, whole_name: str) -> tuple[str, ...] | None:
    """The variable and the flag of a key that a file in the working directory may not set.

    None: such a file may set the key, or there is no such key. `key`: the key's own name. `whole_name`: the name with
    its tables.
    """
    known = BY_NAME.get(whole_name)
    if known is not None and known.is_in_files and known.in_repository is None:
        return known.places[::-1]
    if key in _AT_ANY_DEPTH:
        return _AT_ANY_DEPTH[key]
    return () if whole_name == TARGETS or key.startswith("sandbox") else None
