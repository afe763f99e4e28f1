"""Checks a final report against a user's schema in a separate process, which ralph can kill. Each problem is one line with
the path and the expected value.

A pattern such as `(a+)+$`, or alternatives that refer to themselves, can keep a checker busy almost for ever. In
ralph's own process nothing could interrupt such a check, neither a signal nor the time limit.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from ralph.agent.report_tool import has_payload, report_tool
from ralph.machine.own_programs import own_python
from ralph.machine.starting import protect_this_process, start_process, start_thread
from ralph.values.ports import TIMED_OUT, Clock, Waiter
from ralph.values.report import ReportForm, plain_problems, problems_without_payload
from ralph.values.shortage import ShortageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from subprocess import Popen

    from ralph.values.answer import ToolDefinition


CHECKED_WITHIN_S = 5.0
"""The time limit for one check, in seconds. A check takes milliseconds, and its process takes 0.2 s to start."""

TOO_SLOW = "payload: could not be checked within {seconds:g} s; send it in a plainer form"
NOT_NOW = "payload: could not be checked: {shortage}; nothing is wrong with it: send the same report again"
BROKEN = "payload: could not be checked; send it in a plainer form"

_WORKER = "from ralph.run.report_problems import answer; answer()"


class ReportCheck:
    """A `Validator` that checks all arguments of the report tool. A separate process checks the payload, because the
    schema of the payload comes from the user.
    """

    def __init__(
        self,
        tool_input_schema: Mapping[str, Any],
        *,
        waiter: Waiter,
        clock: Clock,
        environment: Mapping[str, str],
        within_s: float = CHECKED_WITHIN_S,
    ) -> None:
        """`tool_input_schema` is the schema that the model received. `environment` is the environment of the separate
        process, and `within_s` is the time limit for one check, in seconds.
        """
        self._schema = dict(tool_input_schema)
        self._waiter = waiter
        self._clock = clock
        self._environment = dict(environment)
        self._within_s = within_s

    def __call__(self, arguments: Mapping[str, Any]) -> list[str]:
        """The problems with the arguments, one text each. If the machine is short of a resource for the check, that
        is reported as a problem. Raises `Interrupted` after the separate process has been stopped.
        """
        if "payload" not in arguments:  # the user's schema is only for the payload
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
            process.wait()  # `communicate` in the thread may wait too, which Popen permits
            mailbox.close()
        if said is TIMED_OUT:
            return [TOO_SLOW.format(seconds=self._within_s)]
        try:
            found: list[str] = json.loads(said)
        except ValueError:  # the process died, for example because memory ran out
            return [BROKEN]
        return found

    def _started(self) -> Popen[bytes]:
        protect_this_process()
        return start_process(
            own_python(_WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )


def report_form(
    offered: ToolDefinition | None,
    payload_schema: dict[str, Any] | None,
    *,
    waiter: Waiter,
    clock: Clock,
    environment: Mapping[str, str],
) -> ReportForm:
    """The report tool and its validator. `offered` is the tool of an old session that this run keeps; without one, the tool is
    made for `payload_schema`.
    """
    tool = offered or report_tool(payload_schema)
    if not has_payload(tool):
        return ReportForm(tool, plain_problems, has_payload=False)
    check = ReportCheck(tool.input_schema, waiter=waiter, clock=clock, environment=environment)
    return ReportForm(tool, check, has_payload=True)
