"""Scenario files, TOML or JSON. Refuses unknown keys and wrong types, and says where they are."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from ralph.mock_api.fault import ErrorEvent, Fault, Framing, LineEnding, ScenarioError
from ralph.mock_api.scenario import FOREVER, Block, Model, Scenario, Step, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.resources.abc import Traversable

    from msgspec import Struct

_T = TypeVar("_T")
_BLOCKS: Mapping[str, type[Text | Thinking | ToolUse]] = {
    "text": Text,
    "thinking": Thinking,
    "tool_use": ToolUse,
}


def load_scenario(path: Path | str) -> Scenario:
    """The scenario in a `.json` file, or in a TOML file of any other name. Raises `ScenarioError`."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    return parse_scenario(text, name=str(file), is_json=file.suffix == ".json")


def example_names() -> list[str]:
    """The scenarios that come with ralph."""
    return sorted(entry.name.removesuffix(".toml") for entry in _examples().iterdir())


def load_example(name: str) -> Scenario:
    """One of `example_names`. Raises `ScenarioError`."""
    if name not in example_names():
        raise ScenarioError(f"no example scenario {name!r}; there are: {', '.join(example_names())}")
    return parse_scenario((_examples() / f"{name}.toml").read_text(encoding="utf-8"), name=name)


def _examples() -> Traversable:
    return resources.files("ralph.mock_api") / "scenarios"


def parse_scenario(text: str, *, name: str = "scenario", is_json: bool = False) -> Scenario:
    """`name` opens the line of every error."""
    try:
        table = json.loads(text) if is_json else tomllib.loads(text)
        return _scenario(table)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{name}: {error}") from None


def _scenario(value: Any) -> Scenario:
    table = _table(value, "the scenario")
    settings = _settings(Scenario, table, "the scenario", apart={"steps", "models"})
    steps = _list(table.get("steps", []), "steps")
    models = _list(table.get("models", []), "models")
    return Scenario(
        steps=tuple(_step(step, f"step {number}") for number, step in enumerate(steps, 1)),
        models=tuple(_model(model, f"model {number}") for number, model in enumerate(models, 1)),
        **settings,
    )


def _model(value: Any, where: str) -> Model:
    table = _table(value, where)
    settings = _settings(Model, table, where, apart={"fault"})
    if "fault" in table:
        settings["fault"] = _fault(table["fault"], f"{where}, fault")
    return _build(Model, settings, where)


def _step(value: Any, where: str) -> Step:
    table = _table(value, where)
    about_step = {key: table[key] for key in ("fault", "repeat") if key in table}
    about_turn = {key: table[key] for key in table if key not in about_step}
    repeat = about_step.get("repeat", 1)
    if repeat != FOREVER and not _is_integer(repeat):
        raise ScenarioError(f'{where}: repeat must be an integer or "{FOREVER}"')
    turn = _turn(about_turn, where) if about_turn else None
    fault = _fault(about_step["fault"], f"{where}, fault") if "fault" in about_step else None
    return _build(Step, {"turn": turn, "fault": fault, "repeat": repeat}, where)


def _turn(table: dict[str, Any], where: str) -> Turn:
    settings = _settings(Turn, table, where, apart={"content"})
    content = table.get("content", "")
    if not isinstance(content, str):
        blocks = _list(content, f"{where}, content")
        settings["content"] = tuple(
            _block(block, f"{where}, content {n}") for n, block in enumerate(blocks, 1)
        )
    elif content:
        settings["content"] = content
    return _build(Turn, settings, where)


def _fault(value: Any, where: str) -> Fault:
    table = _table(value, where)
    settings = _settings(Fault, table, where, apart={"headers", "error_event"})
    if "headers" in table:
        settings["headers"] = _headers(table["headers"], f"{where}, headers")
    if "error_event" in table:
        inside = f"{where}, error_event"
        event = _settings(ErrorEvent, _table(table["error_event"], inside), inside)
        settings["error_event"] = _build(ErrorEvent, event, inside)
    return _build(Fault, settings, where)


def _block(value: Any, where: str) -> Block:
    table = _table(value, where)
    if list(table) == ["raw"]:
        return _table(table["raw"], f"{where}, raw")
    kind = _BLOCKS.get(str(table.get("type")))
    if kind is None:
        raise ScenarioError(
            f"{where}: type must be one of {', '.join(_BLOCKS)} (any other block: raw = {{...}})"
        )
    settings = _settings(kind, {key: table[key] for key in table if key != "type"}, where)
    return _build(kind, settings, where)


def _headers(value: Any, where: str) -> dict[str, str]:
    """Numbers are welcome: `retry-after = 1` reads better without quotes."""
    for name, text in _table(value, where).items():
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            raise ScenarioError(f"{where}: {name} must be a string or a number")
    return {name: str(text) for name, text in value.items()}


def _build(kind: type[_T], settings: dict[str, Any], where: str) -> _T:
    try:
        return kind(**settings)
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from None


def _settings(
    kind: type[Struct], table: dict[str, Any], where: str, *, apart: frozenset[str] | set[str] = frozenset()
) -> dict[str, Any]:
    """The table's values for the fields of this value, checked; those `apart` are the caller's."""
    known = kind.__annotations__
    required = kind.__struct_fields__[: -len(kind.__struct_defaults__) or None]
    for key in table:
        if key not in known:
            raise ScenarioError(f"{where}: unknown key {key!r}")
    for name in required:
        if name not in table:
            raise ScenarioError(f"{where}: {name} is missing")
    for key in table.keys() - apart:
        is_right, expected = _KINDS[str(known[key]).removesuffix(" | None")]
        if not is_right(table[key]):
            raise ScenarioError(f"{where}: {key} must be {expected}")
    return {key: table[key] for key in table if key not in apart}


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScenarioError(f"{where} must be a table")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ScenarioError(f"{where} must be a list")
    return value


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _choice(kind: Any) -> tuple[Callable[[Any], bool], str]:
    choices = get_args(kind)
    return (lambda value: value in choices), f"one of {', '.join(map(json.dumps, choices))}"


# What each annotation of these values means in a file.
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (_is_integer, "an integer"),
    "float": (_is_number, "a number"),
    "str": (_is_string, "a string"),
    "str | bytes": (_is_string, "a string"),
    "Mapping[str, Any]": (_is_table, "a table"),
    "Body": (lambda value: isinstance(value, (str, dict, list)), "a string, a table or a list"),
    "Framing": _choice(Framing),
    "LineEnding": _choice(LineEnding),
}
