"""Commands whose options come from the table of settings: one for each flag there, in the table's order.

The table is read when a command's own options are needed, so that `ralph --help` does not load it. Refuses to judge a
value beyond its kind: the row's check does, once all sources are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import typer
from typer.core import TyperCommand
from typer.main import get_click_param
from typer.models import ParamMeta

from ralph.cli.lists import keep_last_list, spread
from ralph.settings.rows import Takes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typer._click import Context, Parameter

    from ralph.settings.rows import Flag

_KEY = "ralph.setting_flags"
_TOOLS = "tools."
_TOOLS_FOLLOW, _OTHERS_FOLLOW = "require_report", "print_"
"""Behind which of a function's own parameters the help lists the settings of that table, and all others."""


class SettingCommand(TyperCommand):
    """Takes the settings' flags beside the options of its function, and leaves them in its context."""

    _all: list[Parameter] | None = None

    def get_params(self, ctx: Context) -> list[Parameter]:
        if self._all is None:
            self._all = _with_settings(super().get_params(ctx))
        return self._all

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        words, last_list = spread(args, self.get_params(ctx), lists())
        keep_last_list(ctx, last_list)
        left = super().parse_args(ctx, words)
        keep_setting_flags(ctx, ctx.params)
        for name in _settings_by_parameter():
            del ctx.params[name]  # its function does not take them
        return left


def keep_setting_flags(context: Context, values: Mapping[str, Any]) -> None:
    """`values`: by the names of parameters."""
    context.meta[_KEY] = {
        setting: _raw(flag, values[name])
        for name, (setting, flag) in _settings_by_parameter().items()
        if name in values
    }


def setting_flags(context: Context) -> dict[str, object]:
    """Values under the names of their settings; None: not given."""
    found: dict[str, object] = context.meta[_KEY]
    return found


def list_flags() -> tuple[str, ...]:
    """Settings whose flags take all words up to the next option."""
    return tuple(name for name, flag in _settings_by_parameter().values() if flag.takes is Takes.WORDS)


def lists() -> frozenset[str]:
    """Names of the parameters that take all words up to the next option. Claude Code's other lists do not exist here."""
    of_settings = (name for name, (_, flag) in _settings_by_parameter().items() if flag.takes is Takes.WORDS)
    return frozenset(("add_dir", *of_settings))


def _settings_by_parameter() -> dict[str, tuple[str, Flag]]:
    """Name and flag of each setting that has one, by the name of its parameter."""
    from ralph.settings.keys import ALL_KEYS  # noqa: PLC0415 - not needed for `ralph --help`

    return {_parameter_name(key.flag): (key.name, key.flag) for key in ALL_KEYS if key.flag}


def _parameter_name(flag: Flag) -> str:
    return flag.spelling.removeprefix("--").replace("-", "_")


def _with_settings(own: list[Parameter]) -> list[Parameter]:
    tools: list[Parameter] = []
    others: list[Parameter] = []
    for setting, flag in _settings_by_parameter().values():
        (tools if setting.startswith(_TOOLS) else others).append(_parameter(flag))
    names = [parameter.name for parameter in own]
    first = names.index(_OTHERS_FOLLOW) + 1 if _OTHERS_FOLLOW in names else 0
    second = names.index(_TOOLS_FOLLOW) + 1 if _TOOLS_FOLLOW in names else first
    return [*own[:first], *others, *own[first:second], *tools, *own[second:]]


_TYPES: dict[Takes, Any] = {
    Takes.TEXT: str,
    Takes.WHOLE_NUMBER: int,
    Takes.NUMBER: float,
    Takes.JOINED: list[str],
    Takes.NAMES: list[str],
    Takes.WORDS: list[str],
}
_SEVERAL = (Takes.JOINED, Takes.NAMES, Takes.WORDS)


def _parameter(flag: Flag) -> Parameter:
    """As typer makes one of an annotated argument."""
    option = typer.Option(None, flag.spelling, *flag.other_spellings, metavar=flag.metavar, help=flag.help)
    kind = Literal[flag.choices] if flag.choices else _TYPES[flag.takes]
    meta = ParamMeta(name=_parameter_name(flag), default=option, annotation=kind)
    parameter, _ = get_click_param(meta)
    return parameter


def _raw(flag: Flag, value: Any) -> object:
    """What the settings' rows check. None: not given."""
    if value is None or (flag.takes in _SEVERAL and not value):
        return None
    if flag.takes is Takes.JOINED:
        return ",".join(value)
    return names(value) if flag.takes in _SEVERAL else value


def names(values: list[str]) -> tuple[str, ...]:
    """Names separated by commas or spaces, in one value or several."""
    from ralph.settings.checks import split_names  # noqa: PLC0415 - not needed for --help

    return tuple(name for value in values for name in split_names(value))
