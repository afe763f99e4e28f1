"""Commands whose options are fields of Structs: one parser reads them and decodes them into these Structs.

A field is annotated with `typer.Option` or `typer.Argument`, or with `FlagsOf` for the flags of settings. Checks
only a value's type.
The parser is typer's with two additions: options that take several words, and a record of each option as it was
typed. `--tools Read Bash` means `--tools=Read --tools=Bash`, as in scripts for Claude Code. A list takes all words
up to the next option, `--`, or a lone `-` (standard input). The record has one entry per word of a list. typer's
options take a fixed number of words, so two steps of its parser are extended here.
"""

from __future__ import annotations

import gc
import inspect
from copy import copy
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.structs import fields
from typer._click.parser import _OptionParser, _ParsingState
from typer.core import TyperCommand
from typer.exceptions import TyperException
from typer.main import get_click_param
from typer.models import ParameterInfo, ParamMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from typer._click import Context, Parameter

_LINES, _TYPED = "ralph.lines", "ralph.typed"


class TypedOption(Struct, frozen=True):
    """An option, or a cluster of short options, as it was typed."""

    words: tuple[str, ...]
    """The option and its value."""
    parameters: tuple[Parameter, ...]
    """The parameters that it sets; for a cluster, one per letter."""


class LineParser(_OptionParser):
    def __init__(self, ctx: Context, lists: Collection[str]) -> None:
        super().__init__(ctx)
        self._lists = lists
        """Names of the parameters that take all words up to the next option."""
        self.typed: list[TypedOption] = []
        self.last_list: str | None = None
        """The list option that extends to the end of the line, as it was typed, and so could contain a prompt;
        None: there is none."""

    def _process_opts(self, arg: str, state: _ParsingState) -> None:
        words, count = list(state.rargs), len(state.order)
        super()._process_opts(arg, state)
        set_here = tuple(state.order[count:])
        values = words[: len(words) - len(state.rargs)]
        is_list = set_here[0].name in self._lists and "=" not in arg
        typed = [f"{arg}={word}" for word in values] if is_list else [arg, *values]
        self.typed.append(TypedOption(tuple(typed), set_here))

    def _match_long_opt(self, opt: str, explicit_value: str | None, state: _ParsingState) -> None:
        option = self._long_opt.get(opt)
        if option is None or option.obj.name not in self._lists or explicit_value is not None:
            super()._match_long_opt(opt, explicit_value, state)
            return
        if not state.rargs or state.rargs[0].startswith("-"):
            raise TyperException(f'{opt} needs a word at least; {opt} "" is an empty list')
        while state.rargs and not state.rargs[0].startswith("-"):
            option.process(state.rargs.pop(0), state)
        self.last_list = None if state.rargs else opt


class FlagsOf(Struct, frozen=True):
    """Annotates a field that gets the values of settings' flags, by the settings' names; a value None: not given."""

    only: str | None = None
    """The table whose flags the field gets; None: all tables."""
    but: str | None = None
    """A table that is left out; None: no table is."""


class Slot(Struct, frozen=True):
    """One parameter, and the field that gets its value."""

    parameter: Parameter
    field: str
    setting: str | None = None
    """The setting that the parameter belongs to; None: it belongs to none."""
    read: Callable[[Any], object] = lambda value: value
    takes_words: bool = False
    """The parameter takes all words up to the next option."""

    @property
    def name(self) -> str:
        return self.parameter.name or ""


class Typed(Struct, frozen=True):
    """A command line as it was typed, in addition to the options' values."""

    options: tuple[TypedOption, ...]
    """All options, in order."""
    given: Mapping[str, str]
    """The spelling of each parameter on the command line, by the parameter's name."""
    last_list: str | None
    """The list option that extends to the end of the line, and so could contain a prompt; None: there is none."""
    is_command_inserted: bool
    """The user named no command, so `run` was inserted."""


class LineCommand(TyperCommand):
    """A command that calls `call` with one instance of each Struct in `lines`, and with the `Typed`."""

    def __init__(
        self, name: str, call: Callable[..., int], *lines: type[Struct], epilog: str | None = None
    ) -> None:
        super().__init__(name, help=inspect.getdoc(call), epilog=epilog, rich_markup_mode=None)
        self._call = call
        self._lines = lines
        self._slots: list[list[Slot]] = []

    def slots(self) -> list[list[Slot]]:
        """The slots of each Struct in `lines`, made when first needed.

        A parameter that two of these Structs share belongs to the first.
        """
        if not self._slots:
            taken: set[str] = set()
            for line in self._lines:
                slots = [one for one in _slots_of(line) if taken.isdisjoint((one.name, *one.parameter.opts))]
                taken |= {word for one in slots for word in (one.name, *one.parameter.opts)}
                self._slots.append(slots)
        return self._slots

    def get_params(self, ctx: Context) -> list[Parameter]:
        self.params = [slot.parameter for slots in self.slots() for slot in slots]
        return super().get_params(ctx)

    def make_parser(self, ctx: Context) -> LineParser:
        parser = LineParser(ctx, {slot.name for slots in self.slots() for slot in slots if slot.takes_words})
        for parameter in self.get_params(ctx):
            parameter.add_to_parser(parser, ctx)
        ctx.meta[_TYPED] = parser
        return parser

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, args)
        parser = ctx.meta[_TYPED]
        pairs = zip(self._lines, self.slots(), strict=True)
        ctx.meta[_LINES] = [_decoded(line, slots, ctx.params) for line, slots in pairs]
        ctx.meta[_TYPED] = Typed(
            tuple(parser.typed), self._given(ctx), parser.last_list, is_command_inserted=ctx.obj is True
        )
        return left

    def _given(self, ctx: Context) -> dict[str, str]:
        sources = {one: ctx.get_parameter_source(one.name or "") for one in self.get_params(ctx)}
        return {
            parameter.name or "": _spelling(parameter)
            for parameter, source in sources.items()
            if source is not None and source.name == "COMMANDLINE"
        }

    def invoke(self, ctx: Context) -> Any:
        gc.enable()  # off since the process began, see `ralph/__main__.py`
        return ctx.invoke(self._call, *ctx.meta[_LINES], ctx.meta[_TYPED])


def _spelling(parameter: Parameter) -> str:
    longest = max(parameter.opts, key=len)
    return longest if parameter.param_type_name == "option" else longest.upper()


def _slots_of(line: type[Struct]) -> Iterator[Slot]:
    for info in fields(line):
        field, annotation = info.name, line.__annotations__[info.name]
        (row,) = annotation.__metadata__
        if isinstance(row, FlagsOf):
            from ralph.cli.setting_options import slots_of  # noqa: PLC0415 - few commands need the table

            yield from slots_of(field, row)
            continue
        kind = annotation.__origin__
        takes_words = kind == tuple[str, ...]
        parameter = made_parameter(
            field, list[str] if takes_words else kind, row, ... if info.required else info.default
        )
        yield Slot(parameter, field, takes_words=takes_words)


def made_parameter(name: str, kind: Any, row: ParameterInfo, default: object = None) -> Parameter:
    """The parameter that typer makes for an annotated argument of a function."""
    row = copy(row)
    if row.default is not ...:  # in `Annotated`, the first spelling stands where a default would
        row.param_decls = (str(row.default), *(row.param_decls or ()))
    row.default = default
    parameter, _ = get_click_param(ParamMeta(name=name, default=row, annotation=kind))
    return parameter


def _decoded(line: type[Struct], slots: list[Slot], params: Mapping[str, Any]) -> Struct:
    values: dict[str, Any] = {}
    for slot in slots:
        raw = params[slot.name]
        if slot.setting is not None:
            values.setdefault(slot.field, {})[slot.setting] = slot.read(raw)
        elif raw is not None:
            values[slot.field] = raw
    return convert(values, line)
