"""The context that all parts of one run share: its options, its settings and the ports."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ralph.machine.own_programs import search_around, without_unsafe_loads
from ralph.run.options import RunOptions
from ralph.settings.merge import SettingsError
from ralph.values.controls import RunControls
from ralph.values.credentials import TURN_LOCK, child_environment, known_secrets
from ralph.values.outcome import CannotError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ralph.api.target_clients import Keys
    from ralph.machine.own_programs import ProgramSearch
    from ralph.sandbox.sandbox_limits import SandboxLimits
    from ralph.sessions.turn_lock import FileTurnLock
    from ralph.settings.key_programs import ProgramKeys
    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock, Events, Waiter
    from ralph.values.redaction import Redactor


class RunContext(Struct, frozen=True, dict=True):
    settings: Settings
    environment: Mapping[str, str]
    cwd: Path
    waiter: Waiter
    clock: Clock
    events: Events
    redactor: Redactor
    options: RunOptions = RunOptions()
    controls: RunControls = field(default_factory=RunControls)
    keys: Keys | None = None
    """The keys that programs print. None if no target has such a program, or if none has been run yet."""

    @cached_property
    def secrets(self) -> frozenset[str]:
        return known_secrets(self.environment, self.settings.secrets)

    @cached_property
    def tools_environment(self) -> dict[str, str]:
        """The environment variables that a tool's process gets."""
        return child_environment(
            {**self.environment, **self.settings.command_variables.plain},
            self.settings.tools.pass_env,
            self.secrets,
            self.settings.key_variables,
        )

    @property
    def home(self) -> str:
        return self.environment.get("HOME", "")

    def roots(self, writable: Sequence[str] | None = None) -> tuple[Path, ...]:
        """The directories that commands may write, the working directory first. `writable` are those besides it; None
        means those of the options.
        """
        return (self.cwd, *map(Path, self.options.writable if writable is None else writable))

    def search(self, writable: Sequence[str] | None = None) -> ProgramSearch:
        """Where the run looks for ralph's own programs. `writable` is as in `roots`."""
        written = self.settings.sandbox.written(self.environment)
        return search_around(self.environment, self.roots(writable), written)

    def safe_environment(self, writable: Sequence[str] | None = None) -> dict[str, str]:
        """The variables for processes of ralph's own. `writable` is as in `roots`."""
        return without_unsafe_loads(self.tools_environment, self.search(writable))

    def with_sandbox_limits(self, limits: Sequence[tuple[str, SandboxLimits]]) -> RunContext:
        """The context with the restrictions of settings files for Claude Code, each with the name of its file. Raises
        SettingsError if a restriction cannot be kept.
        """
        if not limits:
            return self
        from ralph.sandbox.box_plan import CannotConfineError  # noqa: PLC0415 - few runs have such a file
        from ralph.sandbox.sandbox_limits import restricted  # noqa: PLC0415 - few runs have such a file

        closing = ", ".join(name for name, one in limits if one.read_deny)
        origins = {**self.settings.origins, **({"sandbox.read_deny": closing} if closing else {})}
        try:
            wanted = restricted(self.settings.sandbox, limits)
        except CannotConfineError as error:
            raise SettingsError(str(error)) from error
        return replace(self, settings=replace(self.settings, sandbox=wanted, origins=origins))


def program_keys(context: RunContext) -> ProgramKeys:
    """Runs the programs that print keys."""
    from ralph.settings.key_programs import ProgramKeys  # noqa: PLC0415 - few users have one

    return ProgramKeys(
        context.environment,
        context.tools_environment,
        context.search(),
        waiter=context.waiter,
        clock=context.clock,
        events=context.events,
        redactor=context.redactor,
    )


def open_turn_lock(context: RunContext) -> FileTurnLock | None:
    """Opens the lock that another program shares with this run (RALPH_TURN_LOCK). None if no program shares one.
    Raises CannotError if the lock is unusable, because the other program relies on it.
    """
    path = context.environment.get(TURN_LOCK)
    if not path:
        return None
    from ralph.sessions.turn_lock import FileTurnLock, TurnLockError  # noqa: PLC0415 - few runs share a lock

    try:
        return FileTurnLock(path, context.waiter)
    except TurnLockError as error:
        raise CannotError(str(error)) from error
