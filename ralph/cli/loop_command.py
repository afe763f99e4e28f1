"""The command line of `ralph loop`: its own options and those of `ralph run`, read by one parser.

A wrong option costs nothing, therefore. What is for `ralph run` is kept as it was typed, lists one word at a time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from ralph.cli.lists import keep_last_list, spread
from ralph.cli.setting_options import keep_setting_flags, lists

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from typer._click import Context, HelpFormatter, Parameter

_KEY = "ralph.for_run"

REFUSED = {
    "resume": "each iteration begins afresh; `ralph loop --continue` goes on with a loop",
    "fork_session": "each iteration begins afresh; `ralph loop --continue` goes on with a loop",
    "session_id": "each iteration has a session and an id of its own",
    "no_session_persistence": "an iteration that meets an outage is resumed, so its session is kept",
    "settings_fd": "the loop hands its settings on itself",
    "result_file": "the loop reads each result itself; `ralph loop --status --json` has them",
}
"""Why a loop does not take some options of `ralph run`, by the names of their parameters."""


class ForRun(Struct, frozen=True):
    """The part of a loop's command line that is for `ralph run`."""

    arguments: tuple[str, ...]
    given: Mapping[str, str]
    """Spelling by name of the parameters that stand on the command line."""
    values: Mapping[str, Any]
    """By name, of all parameters: texts and numbers, a choice as its text."""


class LoopCommand(TyperCommand):
    """Leaves `for_run` and the settings' flags in its context."""

    _of_run: list[Parameter] | None = None

    def get_params(self, ctx: Context) -> list[Parameter]:
        return [*super().get_params(ctx), *self._run_options(ctx)]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        words, last_list = spread(args, self.get_params(ctx), lists())
        keep_last_list(ctx, last_list)
        try:
            left = super().parse_args(ctx, [*words])
        except TyperException as error:
            near = getattr(error, "possibilities", None)
            if not near:
                raise
            # Its own message would sort them; they are more now, and the likeliest comes first.
            raise TyperException(f"{error} (Possible options: {', '.join(near)})") from None
        of_run = self._run_options(ctx)
        values = {parameter.name or "": ctx.params.pop(parameter.name or "") for parameter in of_run}
        keep_setting_flags(ctx, values)
        ctx.meta[_KEY] = ForRun(self.typed_for_run(ctx, words), _given(ctx, of_run), values)
        return left

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        own = super().get_params(ctx)
        panels = {
            "Arguments": [one for one in own if one.param_type_name == "argument"],
            "Options": [one for one in own if one.param_type_name == "option"],
            "Options of `ralph run`, for each iteration": [
                one for one in self._run_options(ctx) if one.name not in REFUSED
            ],
        }
        for title, parameters in panels.items():
            with formatter.section(title):
                formatter.write_dl([row for one in parameters if (row := one.get_help_record(ctx))])

    def given(self, context: Context) -> Mapping[str, str]:
        """Spelling by name of its own parameters that stand on the command line."""
        return _given(context, super().get_params(context))

    def _run_options(self, ctx: Context) -> list[Parameter]:
        """Those of `ralph run` that are not the loop's own."""
        if self._of_run is None:
            group = ctx.find_root().command
            assert isinstance(group, TyperGroup)  # noqa: S101 - the group that this command is in
            own = {spelling for parameter in super().get_params(ctx) for spelling in parameter.opts}
            self._of_run = [
                parameter
                for parameter in group.commands["run"].get_params(ctx)
                if parameter.param_type_name == "option" and own.isdisjoint(parameter.opts)
            ]
        return self._of_run

    def typed_for_run(self, ctx: Context, words: Sequence[str]) -> tuple[str, ...]:
        names = {parameter.name for parameter in self._run_options(ctx)}
        typed: list[str] = []
        for option, parameters in self._options(ctx, words):
            typed += _part_of(option, [parameter.name in names for parameter in parameters])
        return tuple(typed)

    def _options(self, ctx: Context, words: Sequence[str]) -> Iterator[tuple[list[str], list[Parameter]]]:
        """Each option or cluster of letters as it was typed, with its value, and the parameters that it sets.

        `words` have been read once without an error, so that an option which the parser refuses alone awaits a value.
        """
        parser = self.make_parser(ctx)
        left = deque(words)
        while left and left[0] != "--":
            option = [left.popleft()]
            if option == ["-"] or not option[0].startswith("-"):
                continue
            try:
                _, _, order = parser.parse_args([*option])
            except TyperException:
                option.append(left.popleft())
                _, _, order = parser.parse_args([*option])
            yield option, [one for one in order if one.param_type_name == "option"]


def for_run(context: Context) -> ForRun:
    """What a `LoopCommand` left in its context."""
    found = context.meta[_KEY]
    assert isinstance(found, ForRun)  # noqa: S101 - nobody else writes there
    return found


def _part_of(option: list[str], is_runs: list[bool]) -> list[str]:
    """What of an option as it was typed is for `ralph run`; `is_runs`: for each letter, where it is a cluster."""
    word, *value = option
    if all(is_runs):
        return option
    if word.startswith("--"):
        return []
    letters, rest = word[1 : len(is_runs) + 1], word[len(is_runs) + 1 :]
    of_run = "".join(letter for letter, its in zip(letters, is_runs, strict=True) if its)
    if not of_run:
        return []
    return [f"-{of_run}{rest}", *value] if is_runs[-1] else [f"-{of_run}"]


def _given(context: Context, parameters: Sequence[Parameter]) -> dict[str, str]:
    sources = {parameter: context.get_parameter_source(parameter.name or "") for parameter in parameters}
    return {
        parameter.name or "": _spelling(parameter)
        for parameter, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def _spelling(parameter: Parameter) -> str:
    longest = max(parameter.opts, key=len)
    return longest if parameter.param_type_name == "option" else longest.upper()
