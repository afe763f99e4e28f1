"""A typer command that shares its command line with `ralph run`.

What is not its own is read by run's parser at once, so that a wrong option costs nothing, and kept as it was typed,
lists one word at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from ralph.cli.lists import keep_last_list, spellings, spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typer._click import Command, Context, Parameter

_KEY = "ralph.passed_on"


class PassedOn(Struct, frozen=True):
    """What is for `ralph run`."""

    arguments: tuple[str, ...]
    given: Mapping[str, str]
    """Spelling by name of the parameters that the arguments name."""
    values: Mapping[str, Any]
    """By name, of all parameters: texts and numbers, a choice as its text."""


class SharingCommand(TyperCommand):
    """Leaves `passed_on` in its context."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        from ralph.cli.passed_on import UnknownOptionError, split_arguments  # noqa: PLC0415 - for a loop alone

        run = _run_command(ctx)
        own, others = spellings(self.get_params(ctx)), spellings(run.params)
        args, last_list = spread(args, (*self.get_params(ctx), *run.params))
        try:
            split = split_arguments(args, own, others)
        except UnknownOptionError as error:
            raise TyperException(_unknown(str(error), sorted({*own, *others}))) from None
        left = super().parse_args(ctx, list(split.own))
        of_run = run.make_context("run", list(split.passed_on), parent=ctx)
        keep_last_list(ctx, last_list)  # of what was typed: the parser of `run` has seen a part of it
        ctx.meta[_KEY] = PassedOn(split.passed_on, given(of_run), of_run.params)
        return left


def passed_on(context: Context) -> PassedOn:
    """Of a `SharingCommand`'s context."""
    found = context.meta[_KEY]
    assert isinstance(found, PassedOn)  # noqa: S101 - nobody else writes there
    return found


def given(context: Context) -> dict[str, str]:
    """Spelling by name of the parameters that stand on the command line."""
    sources = {
        parameter: context.get_parameter_source(parameter.name or "") for parameter in context.command.params
    }
    return {
        parameter.name or "": _spelling(parameter)
        for parameter, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def _spelling(parameter: Parameter) -> str:
    longest = max(parameter.opts, key=len)
    return longest if parameter.param_type_name == "option" else longest.upper()


def _run_command(context: Context) -> Command:
    group = context.find_root().command
    assert isinstance(group, TyperGroup)  # noqa: S101 - the group that this command is in
    return group.commands["run"]


def _unknown(option: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only after a mistake

    near = get_close_matches(option, known)
    return f"No such option: {option}" + (f" (Possible options: {', '.join(near)})" if near else "")
