#!/bin/sh
# Package: freezegun 1.5.5 (PyPI).
#
# One would expect: under `freeze_time("2030-01-01")` the clock is frozen in a worker thread too, or it is not.
# What it does: in a thread datetime.now() is frozen, while time.time() depends on how many calls lie between it and
# the function that started the thread: at the top it gives the real time, a few calls deeper the frozen one.
# freezegun leaves the clock real for the modules `threading` and `queue` and looks for them only among the five
# nearest callers, so whatever runs near the top of a thread is taken for the thread machinery itself, and the same
# function gives 2026 or 2030 depending on its caller. A ThreadPoolExecutor and asyncio.to_thread behave alike.
#
# Seen (the thread's function calls itself N times, then time.time()):
#   thread:   real for N = 0, 1, 2; frozen for N = 3 and more
#   executor: real for N = 0, 1;    frozen for N = 2 and more
#   in the same thread: datetime.now() frozen, created of a log record frozen, time.localtime() real
#   to_thread(time.time) real, in the main thread frozen
#
# For whom it matters: tests of deadlines, leases, back-off and rate limits that run in threads. Two time stamps of
# one thread lie years apart, an "is it expired?" passes or fails with a refactoring that adds a helper function, and
# a decorator in between is enough to turn a red test green.
#
# Needs python3 3.11 to 3.13 with venv, and a package index for pip.
# Exit: 0 as described, 1 it changed, 77 it cannot be tried here.
set -u
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { echo "needs Python 3.11 to 3.13"; exit 77; }
{ python3 -m venv "$top/venv" && "$top/venv/bin/pip" install -q --disable-pip-version-check freezegun==1.5.5 2>"$top/error"; } ||
    { cat "$top/error"; echo "freezegun 1.5.5 cannot be installed"; exit 77; }
cat >"$top/try.py" <<'END'
import asyncio
import concurrent.futures
import datetime
import logging
import sys
import threading
import time

import freezegun

FROZEN = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc).timestamp()
wrong = []


def which(stamp):
    return "frozen" if stamp == FROZEN else "real"


def check(label, wanted, got):
    print(f"{label:44} {got}")
    if wanted != got:
        wrong.append(f"CHANGED: {label}: wanted {wanted}")


def deeper(calls):
    return which(time.time()) if calls == 0 else deeper(calls - 1)


class Keep(logging.Handler):
    def emit(self, record):
        self.record = record


keep = Keep()
logging.getLogger().addHandler(keep)
year = time.localtime().tm_year
with freezegun.freeze_time("2030-01-01"):
    check("main thread, time.time()", "frozen", which(time.time()))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = [pool.submit(deeper, calls).result() for calls in range(6)]
    check("executor, 0 to 5 calls deep", "real real frozen frozen frozen frozen", " ".join(found))

    results = []

    def top():
        results.extend([deeper(0), deeper(1), deeper(2), deeper(3), deeper(9)])
        results.append(which(datetime.datetime.now(datetime.timezone.utc).timestamp()))
        logging.warning("now")
        results.append(which(keep.record.created))
        results.append("real" if time.localtime().tm_year == year else "frozen")

    thread = threading.Thread(target=top)
    thread.start()
    thread.join()
    check("thread, 0 1 2 3 9 calls deep", "real real real frozen frozen", " ".join(results[:5]))
    check("thread, datetime.now()", "frozen", results[5])
    check("thread, a log record's time", "frozen", results[6])
    check("thread, time.localtime()", "real", results[7])
with freezegun.freeze_time("2030-01-01", real_asyncio=True):

    async def main():
        return which(await asyncio.to_thread(time.time)), await asyncio.to_thread(deeper, 6), which(time.time())

    check("to_thread at the top, deep, event loop", "real frozen frozen", " ".join(asyncio.run(main())))
print("\n".join(wrong) or "as described: the depth of the call decides")
sys.exit(bool(wrong))
END
"$top/venv/bin/python" "$top/try.py"
