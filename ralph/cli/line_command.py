"""Commands whose options are fields of Structs. One parser reads the command line and decodes it into these Structs.

A field is annotated with `typer.Option` or `typer.Argument`, or with `FlagsOf` for the flags of settings. The parser
checks only the type of a value. It is typer's parser with two additions. First, an option may take several words:
`--tools Read Bash` means `--tools=Read --tools=Bash`, as in scripts for Claude Code. Such a list option takes all
words up to the next option, `--`, or a lone `-` (standard input). Second, the parser records each option as it was
typed. The options of typer take a fixed number of words, so this module overrides two steps of typer's parser.
"""

from __future__ import annotations

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

from ralph.machine.garbage import begin_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from typer._click import Context, Parameter

_LINES, _TYPED = "ralph.lines", "ralph.typed"


class TypedOption(Struct, frozen=True):
    """One option as it was typed. It may be a cluster of short options, such as `-pc`."""

    words: tuple[str, ...]
    """The option and its value, as words of the command line. A list option has one `--option=word` for each word."""
    parameters: tuple[Parameter, ...]
    """The parameters that the option sets. A cluster sets one parameter per letter."""


class LineParser(_OptionParser):
    def __init__(self, ctx: Context, lists: Collection[str]) -> None:
        super().__init__(ctx)
        self._lists = lists
        """Names of the parameters that take all words up to the next option."""
        self.typed: list[TypedOption] = []
        self.last_list: str | None = None
        """The list option, as typed, whose words extend to the end of the line. The last of its words may have been
        meant as the prompt. None if there is no such option."""

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
    """The annotation of a field that receives the values of settings' flags, as a mapping from a setting's name to a
    value.

    A value of None means that the flag was not given.
    """

    only: str | None = None
    """The only table whose flags the field receives. None means all tables."""
    but: str | None = None
    """The one table whose flags the field does not receive. None means that no table is left out."""


class Slot(Struct, frozen=True):
    """One parameter of a command, and the field that receives its value."""

    parameter: Parameter
    field: str
    setting: str | None = None
    """The name of the setting that the parameter belongs to, or None if it belongs to no setting."""
    read: Callable[[Any], object] = lambda value: value
    takes_words: bool = False
    """True if the parameter takes all words up to the next option."""

    @property
    def name(self) -> str:
        return self.parameter.name or ""


class Typed(Struct, frozen=True):
    """The command line as it was typed. A command needs this where the decoded values do not say enough."""

    options: tuple[TypedOption, ...]
    """All typed options, in the order of the command line."""
    given: Mapping[str, str]
    """The longest spelling of each parameter that the user typed, by the parameter's name. Errors show it."""
    last_list: str | None
    """The list option, as typed, whose words extend to the end of the line. The last of its words may have been meant
    as the prompt. None if there is no such option."""
    is_command_inserted: bool
    """True if the user named no command and ralph inserted `run`."""


class LineCommand(TyperCommand):
    """A typer command that decodes its arguments into Structs.

    It calls the function `call` with one instance of each Struct in `lines`, followed by the `Typed`. If `loads_late`
    is True, the command imports much more, and begins garbage collection itself when it has done so.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., int],
        *lines: type[Struct],
        epilog: str | None = None,
        loads_late: bool = False,
    ) -> None:
        super().__init__(name, help=inspect.getdoc(call), epilog=epilog, rich_markup_mode=None)
        self._call = call
        self._lines = lines
        self._loads_late = loads_late
        self._slots: list[list[Slot]] = []

    def slots(self) -> list[list[Slot]]:
        """For each Struct class of this command, its command-line parameters with the fields that receive their values.
        Computed at the first call. If two classes declare the same parameter, only the first class has it.
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
        if not self._loads_late:
            begin_garbage_collection()
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
    """The parameter that typer would make for an argument of a function.

    `kind` is the type of the argument, and `row` is its `typer.Option` or `typer.Argument`. A `default` of `...`
    makes the parameter required.
    """
    row = copy(row)
    if row.default is not ...:  # in `Annotated`, typer takes the first spelling for a default
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
