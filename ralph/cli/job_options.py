"""Checks the field `options` of a job, which holds words of `ralph run`'s or `ralph loop`'s command line. The fleet
sets many options itself, and those are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ralph.cli.loop import COMMAND as LOOP
from ralph.cli.options import RunLine
from ralph.cli.run import COMMAND as RUN
from ralph.cli.settings_command import check_settings
from ralph.values.outcome import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN_FIELDS = """
until model base_url max_turns max_iterations max_time max_budget_usd sandbox prompt prompt_file
""".split()
_FIELDS = {name: name for name in _OWN_FIELDS} | {"pass_env": "env"}
"""Parameters that are fields of a job, and the names of these fields."""
_FLEETS = frozenset(
    """
    resume continue_ fork_session session_id session_dir no_session_persistence result_file output_format input_format
    include_partial_messages include_hook_events replay_user_messages permission_prompt_tool directory metrics_file
    debug_file status json_ watch push report iteration
    """.split()
)
"""Parameters that the worker sets, or that make no sense where nobody looks."""


def check_job_options(words: Sequence[str], is_loop: bool) -> None:
    """Raises UsageError if a worker could not use the words as options. Whether a file exists is not checked, because
    only the worker has it.
    """
    if "--" in words:
        raise UsageError("-- ends the options, and the fleet has more to add")
    lines, typed = (LOOP if is_loop else RUN).read(words)
    for one in typed.given:
        if one.name in _FIELDS:
            raise UsageError(f"{one.spelling} is the job's field {_FIELDS[one.name]}")
        if one.name in _FLEETS:
            raise UsageError(f"{one.spelling} cannot be set for a job: the fleet sets it")
    for line in lines:
        if isinstance(line, RunLine):
            check_settings(line.flags)
