"""Runs the program that prints the key (`apiKeyHelper` of Claude Code's settings).

It is the user's own, so it runs outside of the sandbox, but without credentials, and only if commands can replace none of its
files.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ralph.machine.own_programs import own_program, trusted_directories, why_unsafe_command
from ralph.machine.starting import start_process, start_thread
from ralph.run.wiring import safe_environment, search_for_programs
from ralph.settings.merge import SettingsError, with_credential
from ralph.values.credentials import MIN_SECRET_CHARS, Credential, Secret
from ralph.values.endpoint import header_value
from ralph.values.ports import TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.run.wiring import Surroundings

WITHIN_S = 10.0
"""The longest time that the program may take."""
_MOST_SHOWN = 200


def with_helpers_key(
    around: Surroundings, helper: Secret[tuple[str, str]], writable: Sequence[str]
) -> Surroundings:
    """Runs the program, and gives the key that it printed to each target that would get the environment's. `helper` is
    `Settings.key_helper`, `writable` is as in `plan_sandbox`. Raises SettingsError and Interrupted.
    """
    key = _key(around, helper, writable)
    around.redactor.learn([key])
    credential = Credential("x-api-key", Secret(key), "apiKeyHelper")
    return replace(around, settings=with_credential(around.settings, credential))


def _key(around: Surroundings, helper: Secret[tuple[str, str]], writable: Sequence[str]) -> str:
    command, origin = helper.plain
    search = search_for_programs(around, writable)
    home = around.environment.get("HOME", "")
    home = home if os.path.isdir(home) else os.sep  # noqa: PTH112 - a str
    subject = f"{origin}: apiKeyHelper"
    why = why_unsafe_command(command, home, home, search)
    if why:
        raise SettingsError(f"{subject} is not run: {why}; put its program elsewhere")
    environment = {
        **safe_environment(around, writable),
        "PATH": os.pathsep.join(trusted_directories(search)),
    }
    status, said, errors = _run(
        [own_program("sh", search) or "/bin/sh", "-c", command], home, environment, around
    )
    if status is None:
        raise SettingsError(f"{subject} did not end within {WITHIN_S:g} s")
    if status != 0:
        last = around.redactor.redact_all(errors.strip().rpartition("\n")[2][:_MOST_SHOWN])
        raise SettingsError(f"{subject} ended with exit {status}" + (f": {last}" if last else ""))
    key = said.strip()
    if len(key) < MIN_SECRET_CHARS or len(key.split()) != 1:
        raise SettingsError(f"{subject} must print one key and nothing else")
    try:
        return header_value(key)
    except ValueError as error:
        raise SettingsError(f"{subject}: its output {error}") from error


def _run(
    words: list[str], cwd: str, environment: dict[str, str], around: Surroundings
) -> tuple[int | None, str, str]:
    """The exit code of a program, or None if its time was over, and its output and errors."""
    import subprocess  # noqa: PLC0415 - 8 ms that few runs pay

    mailbox = around.waiter.mailbox()
    try:
        process = start_process(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise SettingsError(f"{words[0]} cannot be started: {error.strerror}") from error
    try:
        start_thread(lambda: mailbox.put(process.communicate()), name="key helper")
        until_s = around.clock.now_s() + WITHIN_S
        told = around.waiter.wait(mailbox, until_s=until_s, waiting_for="apiKeyHelper")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it left running
        process.wait()
        mailbox.close()
    if told is TIMED_OUT:
        return None, "", ""
    said, errors = (one.decode("utf-8", "replace") for one in told)
    return process.returncode, said, errors
