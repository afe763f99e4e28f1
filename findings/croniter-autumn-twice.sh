#!/bin/sh
# Packages: croniter 7.0.0 and 6.0.0, cronsim 2.8, APScheduler 3.11.3 (PyPI; time zones of tzdata 2025.2).
#
# One would expect: four well-known readers of cron lines agree on when `30 2 * * *` (Europe/Berlin) runs in the two
# nights in which the clock changes, and, as cron does it, run a nightly job once in each; or at least that a newer
# croniter does not change how often a nightly job runs.
# What they do:
#   croniter 7.0.0   autumn: twice, 02:30 summer time and 02:30 winter time. Spring: 03:00
#   croniter 6.0.0   autumn: once, but the NEXT night at 03:30, an hour late; `0 3 * * *` at 04:00 in the night
#                    itself; `*/30 * * * *` leaves out a whole hour. Spring: 03:30
#   cronsim 2.8      autumn: once, 02:30 summer time. Spring: 03:00 (as Debian's cron)
#   APScheduler      autumn: twice. Spring: 03:30; the time it hands out is 02:30+01:00, which no clock shows that night
# The twice-a-night is also there in a weekly line, and comes with an upgrade from 6.0.0 (6.2.2 has it already).
#
# Seen (autumn is 26 October 2025, spring 30 March 2025; times in UTC, local 02:30 is 00:30 or 01:30):
#   croniter 7.0.0   30 2   autumn 26 00:30, 26 01:30, 27 01:30   spring 30 01:00, 31 00:30
#   croniter 6.0.0   30 2   autumn 26 00:30, 27 02:30, 28 01:30   spring 30 01:30, 31 00:30
#   cronsim 2.8      30 2   autumn 26 00:30, 27 01:30, 28 01:30   spring 30 01:00, 31 00:30
#   APScheduler      30 2   autumn 26 00:30, 26 01:30, 27 01:30   spring 30 01:30, 31 00:30
#
# For whom it matters: whoever starts agents by night, with a budget or a commit per run. Queues take their schedules
# from croniter (dbos 3.4.0 asks for 6.2.4 or newer, procrastinate and rq for any), so a nightly agent runs and pays
# twice in one night of the year, and a test that was written with 6.0.0 says otherwise. Give such lines in UTC, or
# make the date a part of the job's identity.
#
# Needs python3 3.11 or newer with venv, and a package index for pip.
# Exit: 0 as described, 1 it changed, 77 it cannot be tried here.
set -u
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
pip() { "$top/venv/bin/pip" install -q --disable-pip-version-check "$@" 2>"$top/error"; }
{ python3 -m venv "$top/venv" && pip cronsim==2.8 APScheduler==3.11.3 tzdata==2025.2 &&
    pip --target "$top/7.0.0" croniter==7.0.0 python-dateutil==2.9.0.post0 &&
    pip --target "$top/6.0.0" croniter==6.0.0 python-dateutil==2.9.0.post0 pytz==2025.2; } ||
    { cat "$top/error"; echo "the packages cannot be installed"; exit 77; }
cat >"$top/try.py" <<'END'
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

BERLIN = ZoneInfo("Europe/Berlin")
which = sys.argv[1]


def fires(line, start, count):
    """The instants, in UTC, at which the line runs after the local time START."""
    if which.startswith("croniter"):
        from croniter import croniter

        reader = croniter(line, start)
        found = [reader.get_next(datetime) for _ in range(count)]
    elif which == "cronsim":
        from cronsim import CronSim

        reader = CronSim(line, start)
        found = [next(reader) for _ in range(count)]
    else:
        from apscheduler.triggers.cron import CronTrigger

        reader, last, now, found = CronTrigger.from_crontab(line, timezone=BERLIN), None, start, []
        for _ in range(count):  # as its scheduler does: asked just after each run
            last = reader.get_next_fire_time(last, now)
            now = (last.astimezone(timezone.utc) + timedelta(milliseconds=5)).astimezone(BERLIN)
            found.append(last)
    return [instant.astimezone(timezone.utc) for instant in found]


def days(line, start, count):
    return ", ".join(f"{instant:%d %H:%M}" for instant in fires(line, start, count))


autumn, spring = datetime(2025, 10, 25, 12, tzinfo=BERLIN), datetime(2025, 3, 29, 12, tzinfo=BERLIN)
half_hours = fires("*/30 * * * *", datetime(2025, 10, 26, 0, 5, tzinfo=BERLIN), 8)
gap = max((later - earlier) // timedelta(minutes=1) for earlier, later in zip(half_hours, half_hours[1:]))
nightly = f"30 2 autumn {days('30 2 * * *', autumn, 3)}; spring {days('30 2 * * *', spring, 2)}"
print(f"{nightly}; 0 3 autumn {days('0 3 * * *', autumn, 1)}; */30 longest gap {gap}")
END
bad=0
expect() { # READER WANTED PATH
    got=$(PYTHONTZPATH="" PYTHONPATH="${3-}" "$top/venv/bin/python" "$top/try.py" "$1" 2>&1)
    printf '%-14s %s\n' "$1" "$got"
    [ "$got" = "$2" ] || { echo "CHANGED: wanted $2"; bad=1; }
}
expect croniter-7.0.0 "30 2 autumn 26 00:30, 26 01:30, 27 01:30; spring 30 01:00, 31 00:30; 0 3 autumn 26 02:00; */30 longest gap 30" "$top/7.0.0"
expect croniter-6.0.0 "30 2 autumn 26 00:30, 27 02:30, 28 01:30; spring 30 01:30, 31 00:30; 0 3 autumn 26 03:00; */30 longest gap 90" "$top/6.0.0"
expect cronsim "30 2 autumn 26 00:30, 27 01:30, 28 01:30; spring 30 01:00, 31 00:30; 0 3 autumn 26 02:00; */30 longest gap 30"
expect apscheduler "30 2 autumn 26 00:30, 26 01:30, 27 01:30; spring 30 01:30, 31 00:30; 0 3 autumn 26 02:00; */30 longest gap 30"
[ $bad = 0 ] && echo "as described: croniter 7.0.0 runs a nightly job twice, 6.0.0 the next one an hour late"
exit $bad
