"""typer's parser with two additions: lists of several words, and a record of each option as it was typed.

`--tools Read Bash` is `--tools=Read --tools=Bash`, as scripts for Claude Code write it. All words up to the next option
belong to the list; `--` and a lone `-`, which is standard input, end it too. The record has lists one word at a time.

typer has no such option (each takes a fixed number of words), so that two steps of its parser are extended here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from typer._click.parser import _OptionParser, _ParsingState
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from collections.abc import Collection

    from typer._click import Context, Parameter


class TypedOption(Struct, frozen=True):
    """An option, or a cluster of letters, as it was typed."""

    words: tuple[str, ...]
    """With its value."""
    parameters: tuple[Parameter, ...]
    """The parameters that it sets: one for each letter of a cluster."""


class LineParser(_OptionParser):
    def __init__(self, ctx: Context, lists: Collection[str]) -> None:
        super().__init__(ctx)
        self._lists = lists
        """Names of the parameters that take all words up to the next option."""
        self.typed: list[TypedOption] = []
        self.last_list: str | None = None
        """The list that reaches to the end of the line, as it was typed: a prompt could be among its words."""

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
