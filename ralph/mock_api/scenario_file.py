"""Reads scenario files in TOML or JSON. An unknown key or a wrong type is an error that names the path."""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import ValidationError, convert
from msgspec.structs import asdict

from ralph.mock_api.fault import Fault, ScenarioError
from ralph.mock_api.scenario import Block, Model, Scenario, Step, Text, Thinking, ToolUse, Turn

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class FaultTable(Fault, frozen=True, forbid_unknown_fields=True):
    """A fault in a scenario file. No value in it has the type bytes, because a scenario file cannot contain bytes."""

    body: str | dict[str, Any] | list[Any] | None = None
    garbage: str | None = None


class StepTable(Turn, frozen=True, forbid_unknown_fields=True):
    """A step in a scenario file. One table contains the keys of the step and the keys of its turn."""

    content: str | tuple[dict[str, Any], ...] = ()
    fault: FaultTable | None = None
    repeat: int | Literal["forever"] = 1


class ModelTable(Model, frozen=True, forbid_unknown_fields=True):
    fault: FaultTable | None = None


class ScenarioTable(Scenario, frozen=True, forbid_unknown_fields=True):
    steps: tuple[StepTable, ...] = ()
    models: tuple[ModelTable, ...] = ()


_KEYS_OF_A_STEP = {"fault", "repeat"}


def load_scenario(path: Path | str) -> Scenario:
    """A `.json` file contains JSON, any other one TOML. Raises `ScenarioError`."""
    file = Path(path)
    try:
        text = _text_of(file)
    except OSError as error:
        raise ScenarioError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ScenarioError(f"{file}: {error}") from error
    return parse_scenario(text, name=str(file), is_json=file.suffix == ".json")


def _text_of(file: Path) -> str:
    """Raises OSError also for a pipe or a device: reading it may never end."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding="utf-8") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return opened.read()


def example_names() -> list[str]:
    """The names of the scenarios that come with ralph."""
    return sorted(entry.name.removesuffix(".toml") for entry in _examples().iterdir())


def load_example(name: str) -> Scenario:
    """Reads a scenario that comes with ralph. `name` is one of `example_names`. Raises `ScenarioError`."""
    if name not in example_names():
        raise ScenarioError(f"no example scenario {name!r}; there are: {', '.join(example_names())}")
    return parse_scenario((_examples() / f"{name}.toml").read_text(encoding="utf-8"), name=name)


def _examples() -> Traversable:
    return resources.files("ralph.mock_api") / "scenarios"


def parse_scenario(text: str, *, name: str = "scenario", is_json: bool = False) -> Scenario:
    """Parses the text of a scenario. Raises `ScenarioError`. The message of the error begins with `name`."""
    try:
        raw = json.loads(text) if is_json else tomllib.loads(text)
        table: ScenarioTable = _decoded(raw, ScenarioTable)
        steps = zip(raw.get("steps", ()), table.steps, strict=True)
        parts = {
            "steps": tuple(_step(*step, f"$.steps[{index}]") for index, step in enumerate(steps)),
            "models": tuple(
                Model(**asdict(model) | {"fault": _fault(model.fault)}) for model in table.models
            ),
        }
        return Scenario(**asdict(table) | parts)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{name}: {error}") from None


def _step(raw: dict[str, Any], table: StepTable, path: str) -> Step:
    content = table.content
    blocks = content if isinstance(content, str) else _blocks(content, f"{path}.content")
    turn = Turn(**{name: getattr(table, name) for name in Turn.__struct_fields__} | {"content": blocks or ()})
    try:
        return Step(turn if raw.keys() - _KEYS_OF_A_STEP else None, _fault(table.fault), table.repeat)
    except ScenarioError as error:
        raise ScenarioError(f"{error} - at `{path}`") from None


def _blocks(tables: tuple[dict[str, Any], ...], path: str) -> tuple[Block, ...]:
    return tuple(
        _decoded(table["raw"], dict[str, Any], f"{path}[{index}].raw")
        if list(table) == ["raw"]
        else _decoded(table, Text | Thinking | ToolUse, f"{path}[{index}]")
        for index, table in enumerate(tables)
    )


def _fault(table: FaultTable | None) -> Fault | None:
    return None if table is None else Fault(**asdict(table))


def _decoded(value: object, kind: Any, path: str = "$") -> Any:
    """Raises ScenarioError, one line that names the path of the wrong value."""
    try:
        return convert(value, kind)
    except ValidationError as error:
        sentence, _, inside = str(error).partition(" - at `$")
        line = "".join(character if character.isprintable() else " " for character in sentence)
        raise ScenarioError(f"{line} - at `{path}{inside.removesuffix('`')}`") from None
