"""Makes the commands `ralph run`, `ralph loop` and `ralph doctor`, whose options are fields of Structs. Their field
`settings` stands for one option per flag in the tables of settings. typer checks only types. `check_settings`, or
the run, checks the ranges.
"""

from __future__ import annotations

import inspect
import re
from copy import copy
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import typer
from msgspec import Struct
from typer.core import TyperCommand, TyperOption
from typer.exceptions import TyperException
from typer.main import get_click_param
from typer.models import ParamMeta

from ralph.cli.command_line import with_repeated_options
from ralph.cli.typer_command import absolute, line_error, option, spell
from ralph.settings.tables import ALL_KEYS, BY_NAME
from ralph.values.outcome import UsageError
from ralph.values.setting import Arity, Flag, Key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence


_SETTINGS = "settings"
"""The field with the values of settings' flags, by the names of the settings. None means that the flag was not given."""


class GivenParameter(Struct, frozen=True):
    """A parameter that the user gave a value."""

    name: str
    spelling: str
    """The longest spelling of an option, or the name of an argument in capitals. Error messages show it."""
    words: tuple[str, ...]
    """The words that give an option the same value again."""


class TypedLine(Struct, frozen=True):
    """The command line as the user typed it, for commands that need more than the values."""

    given: tuple[GivenParameter, ...] = ()
    last_list: str | None = None
    """As `with_repeated_options` returns it."""
    is_command_inserted: bool = False
    """True if the user named no command and ralph inserted `run`."""


class SettingsCommand(TyperCommand):
    """A command whose options are the fields of Structs and the flags of settings. It passes one Struct per type in
    `lines`, and a `TypedLine`, to `call`: these are the parameters of its context. The help does not show the parameters in `unlisted`. With `first`, `--help` shows
    these parameters alone, and `--help-all` the others too. Options in `ignored` have no effect; each has the name of its value.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., int],
        *lines: type[Struct],
        epilog: str | None = None,
        unlisted: Collection[str] = (),
        first: Collection[str] = (),
        ignored: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        fields = {field for line in lines for field in line.__struct_fields__}
        self.lines, self._first, self._ignored = lines, first, ignored
        self._parameters = tuple(inspect.signature(call).parameters)
        names = {key.spelling.removeprefix("--").replace("-", "_"): key for key in ALL_KEYS if key.flag}
        self.flags = {parameter: key for parameter, key in names.items() if parameter not in fields}
        declared: dict[str, ParamMeta] = {}
        for line in lines:
            for one in self._declared(line):
                declared.setdefault(one.name, one)
        parameters = [
            get_click_param(one)[0]
            for one in (*declared.values(), *map(_ignored, ignored.items()), *([_HELP_ALL] if first else []))
        ]
        for parameter in parameters:
            parameter.hidden = parameter.hidden or parameter.name in unlisted
        help_text = inspect.getdoc(call)
        super().__init__(
            name, callback=call, params=[*parameters], help=help_text, epilog=epilog, rich_markup_mode=None
        )

    def _declared(self, line: type[Struct]) -> Iterator[ParamMeta]:
        for field, default in zip(line.__struct_fields__, line.__struct_defaults__, strict=True):
            if field == _SETTINGS:
                yield from (_flag(name, key, key.flag) for name, key in self.flags.items() if key.flag)
                continue
            annotation = line.__annotations__[field]
            (info,) = annotation.__metadata__
            spell(info, field)
            info.default = default
            kind = annotation.__origin__
            yield ParamMeta(
                name=field, default=info, annotation=list[str] if kind == tuple[str, ...] else kind
            )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if not self._first:
            super().format_options(ctx, formatter)
            return
        short = copy(self)
        shows_all = ctx.meta.get("shows all")
        if not shows_all:
            short.params = [one for one in self.params if one.name in (*self._first, "prompt", "help_all")]
        TyperCommand.format_options(short, ctx, formatter)
        if shows_all:
            formatter.write_paragraph()
            spelled = ", ".join(("-p, --print", *self._ignored))
            text = f"Accepted without effect, for scripts: {spelled}."
            formatter.write(fill(text, formatter.width, break_on_hyphens=False) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, TyperOption) and not one.is_flag]
        valued = {word: one.metavar or "" for one in options for word in one.opts}
        words, ctx.meta["last list"] = with_repeated_options(args, valued)
        left = super().parse_args(ctx, words)
        ctx.params = dict(zip(self._parameters, self._decoded(ctx), strict=True))
        return left

    def read(self, words: Sequence[str]) -> tuple[list[Struct], TypedLine]:
        """Decodes the words behind the command. Raises UsageError if they do not fit, or ask for the help."""
        try:
            *lines, typed = self.make_context(self.name, [*words], help_option_names=[]).params.values()
        except TyperException as error:
            raise line_error(error, self.name or "") from None
        return lines, typed

    def _decoded(self, context: Any) -> tuple[Struct | TypedLine, ...]:
        values = dict(context.params)
        values[_SETTINGS] = {key.name: _setting(key, values.pop(name)) for name, key in self.flags.items()}
        lines = [
            line(**{name: values.pop(name) for name in line.__struct_fields__ if name in values})
            for line in self.lines
        ]
        is_given = {
            one.name: context.get_parameter_source(one.name).name == "COMMANDLINE" for one in self.params
        }
        given = tuple(_given(one, context.params[one.name]) for one in self.params if is_given[one.name])
        return *lines, TypedLine(given, context.meta["last list"], bool(context.obj))


def _show_all(context: typer.Context, is_asked: bool) -> None:
    if is_asked and not context.help_option_names:
        raise UsageError("--help-all shows the help, and is not an option of a run")
    if is_asked:
        context.meta["shows all"] = True
        typer.echo(context.get_help())
        raise typer.Exit


_HELP_ALL = ParamMeta(
    name="help_all",
    default=option(
        "Show all options and exit.",
        spelled="--help-all",
        default=False,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
    ),
    annotation=bool,
)


def _ignored(row: tuple[str, str]) -> ParamMeta:
    spelling, metavar = row
    default = option("Accepted without effect.", metavar or None, spelling, default=None, hidden=True)
    return ParamMeta(
        name=spelling[2:].replace("-", "_"), default=default, annotation=str | None if metavar else bool
    )


def _given(parameter: Any, value: Any) -> GivenParameter:
    spelling = max(parameter.opts, key=len)
    if not isinstance(parameter, TyperOption):
        return GivenParameter(parameter.opts[0], spelling.upper(), ())
    if parameter.is_flag:
        words = [spelling if value else parameter.secondary_opts[0]]
    else:
        one = ",".join(sorted(value)) if isinstance(value, frozenset) else value
        words = [f"{spelling}={one}" for one in (value if parameter.multiple else [one])]
    return GivenParameter(str(parameter.name), spelling, tuple(words))


# --- The flags of settings


def _flag(name: str, key: Key, flag: Flag) -> ParamMeta:
    plain = key.kind.plain_type
    if flag.takes is not Arity.ONE:
        kind: Any = list[str]
    elif flag.choices:
        kind = Literal[flag.choices]
    else:
        kind = plain if plain in {bool, int, float} else str
    # What only the command line can switch on needs no option that switches it off.
    is_switch = plain is bool and key.is_in_files
    spelling = f"{flag.spelling}/--no-{flag.spelling[2:]}" if is_switch else flag.spelling
    spellings = " ".join((spelling, *flag.other_spellings))
    default = option(flag.help, flag.metavar, spellings, default=None)
    return ParamMeta(name=name, default=default, annotation=kind | None)


def _setting(key: Key, value: Any) -> object:
    if key.flag is None or key.flag.takes is Arity.ONE:
        return value
    if not value:
        return None
    match key.flag.takes:
        case Arity.JOINED:
            return ",".join(value)
        case Arity.PLACES:
            return tuple(
                word if not word.strip() or word.lstrip().startswith("{") else absolute(word)
                for word in value
            )
    return tuple(name for word in value for name in split_names(word))


def split_names(word: str) -> list[str]:
    """Splits a word into names at commas and white space. `Bash(git add:*)` is one name."""
    return re.findall(r"[^\s,(]*\([^)]*\)?|[^\s,]+", word)


def check_settings(flags: Mapping[str, object]) -> None:
    """Raises UsageError for a flag's value that a run would refuse. None is a flag that was not given."""
    for name, value in flags.items():
        if value is None:
            continue
        try:
            BY_NAME[name].kind.decoded(value)
        except ValueError as error:
            raise UsageError(f"{BY_NAME[name].spelling} {error}") from None
