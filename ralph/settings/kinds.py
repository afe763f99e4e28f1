"""The kinds of values that only settings have: addresses, paths, and lists of names. The kinds for numbers and plain
texts are in `values/setting.py`.

A wrong value raises ValueError with a text such as "must be ...". The caller puts the name of the setting before this
text. The text does not repeat values that may contain a secret: URLs, assignments of variables, and headers.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ralph.values.credentials import Secret
from ralph.values.servers import checked_base_url, header_table
from ralph.values.setting import TEXT, Kind, printable
from ralph.values.tool_choice import ALL_OF_THEM, TOOL_NAMES, check_tool_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@contextmanager
def about(subject: str) -> Iterator[None]:
    """A context manager that puts `subject` in front of the text of each ValueError raised inside it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{subject} {error}") from error


def decoded_table(
    raw: Mapping[str, Any], kinds: Mapping[str, Kind], needed: Sequence[str], holder: str
) -> dict[str, Any]:
    """Decodes the values of a table. `kinds` contains the `Kind` of each known key, and `needed` the required keys.
    `holder` describes the table in errors.

    Raises a ValueError that names the key if a key is unknown, wrong or missing. The error of msgspec would name
    neither the value nor the known keys.
    """
    for key in raw:
        if key not in kinds:
            raise ValueError(f"has the unknown key {key!r}; {holder} holds {', '.join(kinds)}")
    if missing := [key for key in needed if key not in raw]:
        raise ValueError(f"needs {', '.join(needed)}; missing: {', '.join(missing)}")
    values = {}
    for key, value in raw.items():
        with about(key):
            values[key] = kinds[key].decoded(value)
    return values


# --- Texts


def _target_name(text: str) -> str:
    name = printable(text)
    if "," in name:
        raise ValueError(f"must not contain a comma, which separates names in flags, not {name!r}")
    return name


def _comma_separated(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(printable(name) for name in printable(text).split(",") if name.strip()))
    if not names:
        raise ValueError("must contain at least one name")
    return names


BASE_URL = Kind(str, TEXT.says, lambda text: checked_base_url(printable(text)), is_secret=True)
PATH = Kind(str, TEXT.says, lambda text: Path(printable(text)))
TARGET_NAME = Kind(str, TEXT.says, _target_name)
COMMA_SEPARATED = Kind(str, TEXT.says, _comma_separated)
HEADERS = Kind(
    dict[str, str],
    'a table of header = "value", each value a text',
    lambda headers: Secret(header_table(headers)),
    is_secret=True,
)


# --- Lists of names


def _tool_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        check_tool_name(name)
    return tuple(dict.fromkeys(names))


def _exact_tools(names: tuple[str, ...]) -> tuple[str, ...]:
    others = tuple(dict.fromkeys(name for name in names if name != ALL_OF_THEM))
    for name in others:
        check_tool_name(name, takes_patterns=False)
    return TOOL_NAMES if ALL_OF_THEM in names else others


def _variable_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for number, name in enumerate(names, start=1):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"must contain names of variables, without values; entry {number} is not one")
    return tuple(dict.fromkeys(names))


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(printable, names)))


def _betas(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise ValueError(f"must contain names of betas, not {printable(name)!r}")
    return tuple(dict.fromkeys(names))


_SAYS_KEY_VARIABLES = "the name of a variable, or a list of such names"


def _key_variables(names: str | tuple[str, ...]) -> tuple[str, ...]:
    if not names and not isinstance(names, str):
        raise ValueError(f"must be {_SAYS_KEY_VARIABLES}")
    return _variable_names((names,) if isinstance(names, str) else names)


def _no_blank(words: tuple[str, ...]) -> tuple[str, ...]:
    if not all(word.strip() for word in words):
        raise ValueError("is empty: name a file or give a JSON object, or leave it out for none")
    return words


_NAMES = tuple[str, ...]
TOOLS = Kind(_NAMES, "a list of names", _tool_names)
PLACES_OR_JSON = Kind(_NAMES, "a list of files and JSON objects", _no_blank, is_secret=True)
SERVERS = Kind(dict[str, dict[str, Any]], "a table of MCP servers", Secret, is_secret=True)
EXACT_TOOLS = Kind(_NAMES, "a list of names", _exact_tools)
BETAS = Kind(_NAMES, "a list of names", _betas)
NAMES = Kind(_NAMES, "a list of names", _names)
VARIABLES = Kind(_NAMES, "a list of names", _variable_names, is_secret=True)
KEY_VARIABLES = Kind(str | _NAMES, _SAYS_KEY_VARIABLES, _key_variables, is_secret=True)
