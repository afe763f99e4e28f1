#!/bin/sh
# Package: Slurm 22.05.8-4+deb12u3 (Debian 12: slurmctld, slurmd, slurm-client and their libraries).
#
# One would expect: a job submitted with `sbatch --no-requeue` runs at most once. The manual of sbatch leaves no
# exception, and `scontrol requeue` does refuse such a job.
# What it does: if the cluster has `RequeueExit=75` (75 is the usual "try again later" of batch programs) and the job
# ends with 75, the job goes back into the queue all the same and its script is run from the beginning a second time,
# with Requeue=0 still shown beside Restarts=1. --no-requeue is looked at by `scontrol requeue`, not by RequeueExit.
#
# Seen:
#   scontrol requeue: Requested operation is presently disabled
#   after the first end: PENDING Requeue=0 Restarts=1 ExitCode=75:0
#   runs: 1 (SLURM_RESTART_COUNT unset), 2 (SLURM_RESTART_COUNT=1)
#
# For whom it matters: jobs whose second run would repeat what the first one did (payments, commits, messages): what
# a job's own options promise depends on a line in the cluster's configuration. A script that must run once has to
# look at SLURM_RESTART_COUNT itself, or to end with a code that no cluster requeues.
#
# Needs apt-get (Debian 12 package lists) and python3; nothing is installed. Takes about 20 seconds.
# Exit: 0 as described, 1 it changed, 77 it cannot be tried here.
set -u
VERSION=22.05.8-4+deb12u3
top=$(mktemp -d)
cleanup() {
    for pidfile in "$top/d.pid" "$top/ctl.pid"; do [ -s "$pidfile" ] && kill "$(cat "$pidfile")" 2>/dev/null; done
    sleep 1
    rm -rf "$top"
}
trap cleanup EXIT
skip() { echo "cannot be tried here: $1"; exit 77; }
changed() { echo "CHANGED: $1"; exit 1; }

{ command -v apt-get >/dev/null && command -v python3 >/dev/null; } || skip "apt-get or python3 is missing"
cd "$top" || exit 1
apt-get download -qq "slurmctld=$VERSION" "slurmd=$VERSION" "slurm-client=$VERSION" "slurm-wlm-basic-plugins=$VERSION" \
    libmunge2 libhwloc15 liblua5.1-0 2>/dev/null || skip "Slurm $VERSION is not among this system's packages"
for package in *.deb; do dpkg-deb -x "$package" root || skip "$package cannot be unpacked"; done
libraries=$top/root/usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH="$libraries:$libraries/slurm-wlm" SLURM_CONF="$top/slurm.conf" PATH="$top/root/usr/bin:$PATH"
ldd "$top"/root/usr/sbin/slurm*d-wlm | grep -q 'not found' && skip "a library of Slurm is missing"

ports=$(python3 -c 'import socket
a, b = socket.socket(), socket.socket()
a.bind(("127.0.0.1", 0)); b.bind(("127.0.0.1", 0))
print(a.getsockname()[1], b.getsockname()[1])')
mkdir state spool
cat >slurm.conf <<END
ClusterName=one
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=${ports% *}
SlurmdPort=${ports#* }
AuthType=auth/none
CredType=cred/none
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
PluginDir=$libraries/slurm-wlm
StateSaveLocation=$top/state
SlurmdSpoolDir=$top/spool
SlurmctldPidFile=$top/ctl.pid
SlurmdPidFile=$top/d.pid
SlurmctldLogFile=$top/ctl.log
SlurmdLogFile=$top/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
RequeueExit=75
NodeName=localhost NodeAddr=127.0.0.1 CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
END
"$top/root/usr/sbin/slurmctld-wlm" -c >/dev/null 2>&1
sleep 1
"$top/root/usr/sbin/slurmd-wlm" -N localhost -d "$top/root/usr/sbin/slurmstepd-wlm" >/dev/null 2>&1

try() { # SECONDS COMMAND...: repeats the command until it succeeds
    left=$1; shift
    until "$@" >/dev/null 2>&1; do left=$((left - 1)); [ $left -gt 0 ] || return 1; sleep 1; done
}
shows() { scontrol -o show job "$1" | grep -q "$2"; }
idle() { sinfo -h -o %t | grep -qx idle; }
try 20 idle || skip "no Slurm node came up"

# The control: Slurm knows the option, a running job that has it is not requeued by hand.
printf '#!/bin/sh\nsleep 60\n' >sleeper.sh
sleeper=$(sbatch --parsable --no-requeue sleeper.sh)
try 20 shows "$sleeper" JobState=RUNNING || skip "no job runs here"
refused=$(scontrol requeue "$sleeper" 2>&1) && changed "scontrol requeue accepted a job that has --no-requeue"
echo "scontrol requeue: $refused"
scancel "$sleeper"

# shellcheck disable=SC2016  # the job expands it
printf '#!/bin/sh\necho "${SLURM_RESTART_COUNT-unset}" >>%s/runs\n[ $(wc -l <%s/runs) -gt 1 ] || exit 75\n' "$top" "$top" >job.sh
job=$(sbatch --parsable --no-requeue job.sh)
try 20 shows "$job" ExitCode=75:0 || changed "the job did not end with 75"
try 20 shows "$job" JobState=PENDING || changed "the job was not put back into the queue"
line=$(scontrol -o show job "$job" | tr ' ' '\n' | grep -E '^(JobState|Requeue|Restarts|ExitCode)=' | tr '\n' ' ')
echo "after the first end: $line"
[ "$line" = "JobState=PENDING Requeue=0 Restarts=1 ExitCode=75:0 " ] || changed "another state"
scontrol update "jobid=$job" StartTime=now # otherwise it waits for two minutes
try 30 shows "$job" JobState=COMPLETED || changed "the second run did not come"
echo "SLURM_RESTART_COUNT of the runs: $(tr '\n' ' ' <runs)"
[ "$(tr '\n' ' ' <runs)" = "unset 1 " ] || changed "the script did not run exactly twice"
echo "as described: a job with --no-requeue ran twice"
