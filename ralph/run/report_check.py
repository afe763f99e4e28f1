"""Checks a final report against a user's schema in a separate process, which can be killed.

A pattern such as `(a+)+$`, or alternatives that refer to themselves, can keep a checker busy practically for ever. In
ralph's own process nothing could stop it: Python would handle neither a signal nor the time limit meanwhile.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ralph.machine.own_programs import own_python
from ralph.machine.starting import start_process, start_thread
from ralph.values.ports import TIMED_OUT
from ralph.values.report import problems_without_payload
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

    from ralph.values.ports import Clock, Waiter

CHECKED_WITHIN_S = 5.0
"""The longest time for one check. A check takes milliseconds; its process takes 0.2 s to start."""

TOO_SLOW = "payload: could not be checked within {seconds:g} s; send it in a plainer form"
NOT_NOW = "payload: could not be checked: {shortage}; nothing is wrong with it: send the same report again"
BROKEN = "payload: could not be checked; send it in a plainer form"

_WORKER = "from ralph.run.report_validator import answer; answer()"


class ReportCheck:
    """A `Validator` of whole arguments, by the tool's schema as the model received it."""

    def __init__(
        self,
        tool_input_schema: Mapping[str, Any],
        *,
        waiter: Waiter,
        clock: Clock,
        environment: Mapping[str, str],
        within_s: float = CHECKED_WITHIN_S,
    ) -> None:
        """`environment`: the environment of the separate process."""
        self._schema = dict(tool_input_schema)
        self._waiter = waiter
        self._clock = clock
        self._environment = dict(environment)
        self._within_s = within_s

    def __call__(self, arguments: Mapping[str, Any]) -> list[str]:
        """The problems with the arguments. A shortage of the machine is reported as a problem too. Raises
        `Interrupted`, and then leaves nothing running.
        """
        if "payload" not in arguments:  # nothing that would need the schema
            return problems_without_payload(arguments)
        try:
            return self._checked(arguments)
        except ShortageError as error:
            return [NOT_NOW.format(shortage=error)]

    def _checked(self, arguments: Mapping[str, Any]) -> list[str]:
        mailbox = self._waiter.mailbox()
        task = json.dumps({"schema": self._schema, "arguments": dict(arguments)}).encode()
        process = self._started()
        try:
            start_thread(lambda: mailbox.put(process.communicate(task)[0]), name="report check")
            until_s = self._clock.now_s() + self._within_s
            said = self._waiter.wait(mailbox, until_s=until_s, waiting_for="the check of the final report")
        finally:
            process.kill()
            process.wait()  # the thread may be at it too
            mailbox.close()
        if said is TIMED_OUT:
            return [TOO_SLOW.format(seconds=self._within_s)]
        return _problems(said)

    def _started(self) -> Popen[bytes]:
        import subprocess  # noqa: PLC0415 - 8 ms that only a run with a schema pays

        from ralph.machine.processes import protect_this_process  # noqa: PLC0415 - the same

        protect_this_process()
        return start_process(
            own_python(_WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )


def _problems(said: bytes) -> list[str]:
    try:
        found: list[str] = json.loads(said)
    except ValueError:  # the process died: of memory, for one
        return [BROKEN]
    return found
