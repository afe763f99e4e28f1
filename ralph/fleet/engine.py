"""The engine of workflows, DBOS, as the fleet uses it: one queue for each set, one workflow for each attempt. No other
module of ralph knows it. Only its public interface is used.

The workflow has no steps of the engine's own. What must survive is in the fleet's tables and in the checkpoint,
because the result of a step that was made on another machine, such as a checkout, would be false here. Nor does it take
arguments: the id of a workflow names the job, and all else comes from the fleet's tables.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dbos import DBOS, DBOSClient, DBOSConfig, DBOSPortableJSONSerializer, SetEnqueueOptions, SetWorkflowID

from ralph.fleet.database import dbos_settings, make_engine
from ralph.fleet.jobs import host_of, priority_of
from ralph.fleet.schema import PortableRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ralph.fleet.database import Database
    from ralph.fleet.jobs import SetLimits
    from ralph.fleet.schema import JobRow

APPLICATION = "ralph-fleet"
VERSION = "1"
"""The version of the workflow, not of ralph. A worker of a newer ralph takes over the jobs of an older one."""
POLL_S = 0.5
"""How often a worker without a job asks for one."""
_WORKFLOW = "attempt"
_MIDDLE_PRIORITY = 1_000_001
"""The engine's priority of a job with priority 0. The engine starts lower numbers first."""
_ACTIVE = ["PENDING"]
_LIVE = {"PENDING", "ENQUEUED"}


class Engine:
    """The engine in one process, which has one executor id and works on one job at a time. The process must have taken
    the executor's lock before: launching puts the workflows of this id back on their queue, whoever works on them.
    """

    def __init__(
        self, database: Database, executor_id: str, set_name: str, work: Callable[[str, str, int], None]
    ) -> None:
        """`work(set, job, attempt)` is called in a thread of the engine. When it returns, the workflow has ended."""
        self._rows = PortableRows(database)
        logging.getLogger("dbos").setLevel(logging.CRITICAL)
        self._queue = queue_name(set_name)
        self._set_name = set_name
        self._config: DBOSConfig = {
            "name": APPLICATION,
            "application_version": VERSION,
            "executor_id": executor_id,
            "serializer": DBOSPortableJSONSerializer(),
            "log_level": "CRITICAL",
            "use_listen_notify": False,
            **dbos_settings(database),  # type: ignore[typeddict-item] # its keys are those of DBOSConfig
        }
        self._is_launched = False

        @DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)
        def attempt(*_stored: object) -> None:  # what a row of the store says there counts for nothing
            named = _attempt_named(DBOS.workflow_id or "")
            if named is not None and named[0] == set_name:
                work(*named)

        self._workflow = attempt

    def launch(self, limits: SetLimits) -> None:
        """Begins to work. May be called again. Raises StoreError if the engine's tables have rows that could run code here."""
        self._rows.refuse_others()
        if not self._is_launched:
            DBOS(config=self._config)
            DBOS.listen_queues([self._queue])
            try:
                DBOS.launch()
            except Exception:
                DBOS.destroy()  # what has launched in part cannot launch again
                raise
            self._is_launched = True
        self._rows.keep_others_out()
        self.set_limits(limits)

    def set_limits(self, limits: SetLimits) -> None:
        """Gives the set's limits to the engine. They hold over all workers."""
        rate = limits.rate
        DBOS.register_queue(
            self._queue,
            worker_concurrency=1,
            global_concurrency=limits.concurrency,
            # The engine refuses a limit of a host that is above the one of the queue.
            partition_concurrency=limits.per_host
            and min(limits.per_host, limits.concurrency or limits.per_host),
            limiter=None if rate is None else {"limit": rate.starts, "period": rate.period_s},
            polling_interval_sec=POLL_S,
            on_conflict="always_update",
        )

    def enqueue(self, job: JobRow, limits: SetLimits) -> None:
        """Gives an attempt to the queue. Does nothing if the engine has it already."""
        options = SetEnqueueOptions(
            priority=_MIDDLE_PRIORITY - priority_of(job.content),
            queue_partition_key=None if limits.per_host is None else host_of(job.repository) or "localhost",
        )
        with SetWorkflowID(_id_of(self._set_name, job.id, job.attempt)), options:
            DBOS.enqueue_workflow(self._queue, self._workflow)

    def pending(self) -> dict[str, list[str]]:
        """The ids of the set's workflows that have begun and not ended, for each executor. Raises StoreError as `launch` does."""
        self._rows.refuse_others()
        found: dict[str, list[str]] = {}
        for status in DBOS.list_workflows(
            status=_ACTIVE, queue_name=self._queue, load_input=False, load_output=False
        ):
            found.setdefault(status.executor_id or "", []).append(status.workflow_id)
        return found

    def live(self, workflow_ids: Sequence[str]) -> set[str]:
        """Those of these workflows that the engine has and that have not ended."""
        if not workflow_ids:
            return set()
        found = DBOS.list_workflows(workflow_ids=list(workflow_ids), load_input=False, load_output=False)
        return {status.workflow_id for status in found if status.status in _LIVE}

    def resume(self, workflow_ids: Sequence[str]) -> None:
        """Puts workflows back into the queue. Call it only while holding the lock of their executor, and behind
        `pending`, which refuses rows that could run code.
        """
        for workflow_id in workflow_ids:
            DBOS.resume_workflow(workflow_id, queue_name=self._queue)

    def close(self) -> None:
        DBOS.destroy(workflow_completion_timeout_sec=0)
        self._rows.close()


def end_attempt(database: Database, set_name: str, job: str, attempt: int) -> None:
    """Ends the workflow of an attempt whose executor is gone, and that nobody is to resume. Reads no value of a row."""
    connections = make_engine(database)
    try:
        client = DBOSClient(
            system_database_engine=connections,
            serializer=DBOSPortableJSONSerializer(),
            application_name=APPLICATION,
        )
        client.cancel_workflow(_id_of(set_name, job, attempt))
        client.destroy()
    finally:
        connections.dispose()


def _id_of(set_name: str, job: str, attempt: int) -> str:
    return f"{set_name}/{job}/{attempt}"


def _attempt_named(workflow_id: str) -> tuple[str, str, int] | None:
    """The set, the job and the attempt that the id of a workflow names. None if the fleet gives no such id."""
    set_name, _, rest = workflow_id.partition("/")
    job, _, number = rest.partition("/")
    return (set_name, job, int(number)) if job and number.isascii() and number.isdigit() else None


def queue_name(set_name: str) -> str:
    return f"ralph/{set_name}"
