"""Runs the programs that print keys: `api_key_command` of a target, and `apiKeyHelper` of Claude Code's settings.

They are the user's own, so they run outside the sandbox, but without credentials, and only if commands can replace none of
their files. A program is run when a run begins, again before a request when its key has become old, and after the server has
refused the key. A loop runs each once at its start, so that it knows the keys before its first check can print one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.command_supervisor import CommandSupervisor
from ralph.machine.own_programs import ProgramSearch, own_environment, own_program
from ralph.machine.running_command import EndCause, KeptErrors, MemoryCapture, RunningCommand
from ralph.machine.starting import environment_for_commands
from ralph.places.own_commands import ADVICE, why_changeable
from ralph.settings.merge import SettingsError
from ralph.settings.toml_file import user_settings_path
from ralph.values.credentials import MIN_SECRET_CHARS, Credential, KeyProgram, Secret
from ralph.values.events import Notice
from ralph.values.redaction import Redactor
from ralph.values.servers import header_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ralph.settings.tables import Settings
    from ralph.values.ports import Clock, Events, Waiter

WITHIN_S = 30.0
_MOST_SHOWN = 200
_MOST_BYTES = 65_536
_GRACE_S = 0.5


class ProgramKeys:
    """The keys that programs have printed in this run. Implements the port `Keys` of the clients."""

    def __init__(
        self,
        environment: Mapping[str, str],
        given: Mapping[str, str],
        search: ProgramSearch,
        *,
        waiter: Waiter,
        clock: Clock,
        events: Events,
        redactor: Redactor,
    ) -> None:
        """`environment` is the user's, and `given` what tools get of it. `search` knows what commands may write. `redactor` learns
        the keys.
        """
        self._environment = environment
        self._given = own_environment(given, search)
        self._search = search
        self._waiter = waiter
        self._clock = clock
        self._events = events
        self._redactor = redactor
        self._keys: dict[KeyProgram, str] = {}
        self._ran_s: dict[KeyProgram, float] = {}
        self._refused: set[KeyProgram] = set()

    def begin(self, settings: Settings) -> Settings:
        """Runs each program once. Returns the settings whose targets have the keys. Raises SettingsError and Interrupted."""
        targets = (
            replace(one, credentials=tuple(map(self._with_key, one.credentials))) for one in settings.targets
        )
        return replace(settings, targets=tuple(targets))

    def _with_key(self, credential: Credential) -> Credential:
        program = credential.program
        if program is None:
            return credential
        if program not in self._keys:
            self._run(program)
        return replace(credential, value=Secret(self._keys[program]))

    def current(self, credential: Credential) -> Credential:
        """The credential with the key for the next request. If the program fails, that is the last key, with a
        notice. Raises Interrupted.
        """
        program = credential.program
        if program is not None and self._is_old(program):
            try:
                self._run(program)
            except SettingsError as error:
                self._ran_s[program] = self._clock.now_s()
                self._events.emit(Notice(f"{error}; its last key is used"))
            self._refused.discard(program)
        return self._with_key(credential)

    def _is_old(self, program: KeyProgram) -> bool:
        age_s = self._clock.now_s() - self._ran_s.get(program, 0.0)
        return program in self._refused or 0 < program.ttl_s <= age_s

    def refuse(self, credential: Credential) -> None:
        """Stores that the server has refused the key, so that the program is run again before the next request."""
        if credential.program is not None:
            self._refused.add(credential.program)

    def _run(self, program: KeyProgram) -> None:
        key = self._key_of(program)
        self._redactor.learn([key])
        self._keys[program] = key
        self._ran_s[program] = self._clock.now_s()

    def _key_of(self, program: KeyProgram) -> str:
        home = self._environment.get("HOME", "")
        settings_file = user_settings_path(self._environment)
        places = ("" if settings_file is None else str(settings_file.parent), home, os.sep)
        cwd = next(place for place in places if os.path.isdir(place))  # noqa: PTH112 - strings throughout
        subject = f"{program.origin}: {program.setting}"
        why = why_changeable(program.command.plain, cwd, self._environment, self._search)
        if why:
            raise SettingsError(f"{subject} is not run: {why}; {ADVICE}")
        shell = [own_program("sh", self._search) or "/bin/sh", "-c", program.command.plain]
        status, said, errors = self._ended(shell, cwd, program.setting)
        if status is None:
            raise SettingsError(f"{subject} did not end within {WITHIN_S:g} s")
        if status != 0:
            # What it printed may be the key, which its message may repeat. The message is cut afterwards.
            printed = Redactor(word for word in said.split() if len(word) >= MIN_SECRET_CHARS)
            last = self._redactor.redact_all(printed.redact(errors.strip().rpartition("\n")[2]))[:_MOST_SHOWN]
            raise SettingsError(f"{subject} ended with exit {status}" + (f": {last}" if last else ""))
        key = said.strip()
        if len(key) < MIN_SECRET_CHARS or len(key.split()) != 1:
            raise SettingsError(f"{subject} must print the key and nothing else")
        try:
            return header_value(key)
        except ValueError as error:
            raise SettingsError(f"{subject}: its output {error}") from error

    def _ended(self, words: list[str], cwd: str, waiting_for: str) -> tuple[int | None, str, str]:
        """The exit code of a program, or None if its time was over, its output and the end of its errors."""
        said = MemoryCapture(_MOST_BYTES)
        supervisor = CommandSupervisor(self._given, makes_group=False)  # that of commands is not made yet
        try:
            with KeptErrors() as errors:
                process = supervisor.start(
                    words,
                    cwd=Path(cwd),
                    environment=environment_for_commands(self._given),
                    grace_s=_GRACE_S,
                    errors_to=errors.fileno,
                    is_confined=False,
                )
                running = RunningCommand(process, said, waiter=self._waiter, clock=self._clock)
                ending = running.run(WITHIN_S, waiting_for)
                complaint = errors.read().decode("utf-8", "replace")
        except OSError as error:
            raise SettingsError(f"{words[0]} cannot be started: {error.strerror}") from error
        finally:
            supervisor.close()
        if ending.how is EndCause.TOO_MUCH_OUTPUT:
            return 0, "", complaint
        status = None if ending.how is EndCause.TIMED_OUT else ending.status
        return status, said.data.decode("utf-8", "replace"), complaint
