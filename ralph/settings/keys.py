"""All settings by name, collected from the tables of settings. Some settings are not allowed in a file in the working
directory. For such a setting, `other_places` says where the user can set it instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ralph.settings.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from msgspec import Struct

    from ralph.values.setting import Key

TARGETS = "targets"
"""The name of the list of targets in a settings file. The list contains the preferred target first."""


def _rows(table: str, kind: type[Struct]) -> Iterator[Key]:
    """The settings of a table in the order of its fields. Inherited fields are included."""
    # The annotations are read directly, because `typing.get_type_hints` would take a millisecond per table.
    annotations: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        annotations |= getattr(one, "__annotations__", {})
    defaults = kind()
    for field in kind.__struct_fields__:
        (row,) = annotations[field].__metadata__
        yield replace(row, name=f"{table}.{field}", default=getattr(defaults, field))


ALL_KEYS = tuple(row for table, kind in TABLES.items() for row in _rows(table, kind))
KEYS = tuple(key for key in ALL_KEYS if key.is_in_files)
"""The settings that files may contain. Every other setting can only be set by its flag."""
BY_NAME = {key.name: key for key in ALL_KEYS}
ALLOWED = {
    table: tuple(key.name.removeprefix(f"{table}.") for key in KEYS if key.name.startswith(f"{table}."))
    for table in TABLES
}
CUSTOM_ONLY = ("retry.max_retries", "retry.base_delay_s", "retry.max_delay_s")

# A file in the working directory may not contain these keys at any depth, and the error says where the user can set
# them. Keys that begin with `sandbox` do not exist yet. They get the same error, so that nobody takes them for
# unknown keys.
_AT_ANY_DEPTH: dict[str, tuple[str, ...]] = {
    "base_url": BY_NAME["model.base_url"].places[::-1],
    "ca_file": BY_NAME["model.ca_file"].places[::-1],
    "pass_env": BY_NAME["tools.pass_env"].places[::-1],
    "headers": ("ANTHROPIC_CUSTOM_HEADERS",),
    "api_key_env": ("ANTHROPIC_API_KEY",),
    "price": (),
}


def other_places(key: str, whole_name: str) -> tuple[str, ...] | None:
    """The environment variable and the flag with which the user can set a key that a file in the working directory
    may not contain. Empty if the key has neither. None if a file in the working directory may contain the key, or if
    the key does not exist.

    `key` is the last part of the key, such as `name`, and `whole_name` is its full name, such as `model.name`.
    """
    known = BY_NAME.get(whole_name)
    if known is not None and known.is_in_files and known.in_repository is None:
        return known.places[::-1]
    if key in _AT_ANY_DEPTH:
        return _AT_ANY_DEPTH[key]
    return () if whole_name == TARGETS or key.startswith("sandbox") else None
