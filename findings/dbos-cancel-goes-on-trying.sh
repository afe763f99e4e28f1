#!/bin/sh
# Package: dbos 3.4.0 (PyPI), with its SQLite system database.
#
# A workflow has one step that may be retried (max_attempts=5, one second between the tries) and that fails. While it
# waits for its third try the workflow is cancelled, or its time-out passes.
#
# One would expect: the status CANCELLED means that no further try begins; surely so after a time-out.
# Seen:
#   cancelled after 2 tries      status CANCELLED at once, tries in the end: 5
#   time-out of 1.5 s            status CANCELLED, tries in the end: 5, the last one 2.5 s after the time-out
#   cancelled after 2 tries, the 4th succeeds: no step is recorded, and resuming the workflow runs the step once more,
#                                though it has done its work
# A cancelled workflow is stopped only where it begins its next step; the tries of one step are no such place.
#
# For whom it matters: steps that cost money or change the world (a model request, a deployment, a message). After
# a cancel the spending goes on for as long as the retries and their growing waits last, under a status that says it is
# over; and what the last try achieved is done a second time after a resume. A step has to look at its own workflow's
# status before each try, or must not use DBOS's retries.
#
# Takes about 20 seconds beside the installation.
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check dbos==3.4.0 || { echo "skipped: dbos cannot be installed"; exit 77; }

cat >"$dir/check.py" <<'PY'
import logging, sys, threading, time
from dbos import DBOS, SetWorkflowTimeout

logging.disable(logging.CRITICAL)
DBOS(config={"name": "tries", "system_database_url": f"sqlite:///{sys.argv[1]}/tries.sqlite", "run_admin_server": False})
tries, second = [], threading.Event()


@DBOS.step(retries_allowed=True, max_attempts=5, interval_seconds=1.0, backoff_rate=1.0)
def pay(good: int) -> str:
    tries.append(time.monotonic())
    if len(tries) == 2: second.set()
    if len(tries) >= good: return "paid"
    raise ValueError("not yet")


@DBOS.workflow()
def order(good: int) -> str: return pay(good)


def wait(ready, seconds=60):
    end = time.monotonic() + seconds
    while not ready() and time.monotonic() < end: time.sleep(0.05)


def quiet(): return time.monotonic() - tries[-1] > 4
def start(good, **_):
    tries.clear(), second.clear()
    return DBOS.start_workflow(order, good)
def check(label, now, was):
    global changed
    print(f"{label:40}", *now, "" if now == was else f"   CHANGED, was: {was}")
    changed |= now != was


changed = False
DBOS.launch()
handle = start(99)
second.wait(60)
DBOS.cancel_workflow(handle.workflow_id)
at_once = handle.get_status().status
wait(quiet)
check("cancelled after the second try", (at_once, len(tries)), ("CANCELLED", 5))

with SetWorkflowTimeout(1.5): handle = start(99)
wait(lambda: handle.get_status().status == "CANCELLED")
wait(quiet)
check("time-out of 1.5 s", (handle.get_status().status, len(tries)), ("CANCELLED", 5))

handle = start(4)
second.wait(60)
DBOS.cancel_workflow(handle.workflow_id)
wait(quiet)
steps = len(DBOS.list_workflow_steps(handle.workflow_id))
check("success after the cancel: tries, steps", (handle.get_status().status, len(tries), steps), ("CANCELLED", 4, 0))
result = DBOS.resume_workflow(handle.workflow_id).get_result()
check("after a resume", (result, len(tries)), ("paid", 5))
DBOS.destroy()
sys.exit(changed)
PY
"$dir/venv/bin/python" "$dir/check.py" "$dir"
