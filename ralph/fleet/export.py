"""Writes the jobs of a set in the form of another scheduler: a GitHub workflow, a Kubernetes Job, a Slurm array, or a
script for GNU parallel. The shell text that these share is at the end. No I/O happens here.

Each limit of the set is either kept by the scheduler or refused. What comes from a job is nowhere part of a script, of
YAML or of an expression: it is carried in Base64, because a prompt may contain anything.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import Counter
from shlex import quote
from typing import TYPE_CHECKING

from ralph.fleet.jobs import content_of, host_of
from ralph.values.outcome import UsageError
from ralph.values.servers import vendor_of
from ralph.values.setting import duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.fleet.jobs import Job, SetLimits

_KEY = "ANTHROPIC_API_KEY"
_GIT_TOKEN = "RALPH_GIT_TOKEN"  # noqa: S105 - the name of a variable
_OF_EACH_MACHINE = ("HOME", "LANG", "PATH", "SHELL", "TMPDIR", "USER")
_JOBS_DIR = 'export RALPH_JOBS_DIR="${RALPH_JOBS_DIR:-$HOME/ralph-jobs}"'
"""Not beside ralph's state: the sandbox closes what looks like a copy of that."""
_WAIT_S = 300
"""The time between two attempts at a job that ended with 75."""
_LONGEST_GITHUB_MINUTES = 360
"""The most that a job may take on a runner of GitHub's."""
_MOST_OF_MATRIX = 256
"""The most jobs that GitHub makes of a matrix."""
_LONGEST_VARIABLE = 100_000
"""Linux takes 128 KiB as one variable of the environment."""
_LARGEST_WORKFLOW = 450_000
_LARGEST_CONFIG_MAP = 700_000
"""A ConfigMap holds 1 MiB. A Base64 text is a third longer than what it stands for."""
_LARGEST_BATCH_SCRIPT = 4_000_000
"""Slurm's own default (max_script_size)."""
_MINUTES_BESIDES = 15
"""The time for a clone, an installation and a push."""


def export(jobs: Sequence[Job], limits: SetLimits, format_name: str, set_name: str) -> str:
    """The text of a file for the scheduler. `format_name` is one of `FORMATS`. Raises UsageError if the scheduler cannot keep a
    limit or express a job.
    """
    _refuse_lost_limits(jobs, limits, format_name)
    # All of these schedulers start jobs in their order.
    return FORMATS[format_name](sorted(jobs, key=lambda job: -job.priority), limits, set_name)


def _refuse_lost_limits(jobs: Sequence[Job], limits: SetLimits, format_name: str) -> None:
    """Raises UsageError if the scheduler would not keep a limit: a guard that was asked for is kept, or nothing runs."""
    lost = []
    if limits.max_budget_usd is not None:
        lost.append(("max_budget_usd", "give each job its own max_budget_usd"))
    if limits.rate is not None and format_name != "parallel":
        lost.append(("rate", "set concurrency"))
    if limits.per_host is not None and limits.per_host < min(
        max(Counter(host_of(job.repository) for job in jobs).values()), limits.concurrency or len(jobs)
    ):
        lost.append(("per_host", f"a concurrency of {limits.per_host} keeps it"))
    if lost:
        names = " and ".join(name for name, _ in lost)
        advice = "; ".join(f"{name}: {what}" for name, what in lost)
        raise UsageError(f"{format_name} cannot keep {names} ({advice})")
    if format_name != "parallel":
        for job in jobs:
            if job.after:
                raise UsageError(
                    f"{format_name} cannot express the `after` of the job {job.id}; parallel can"
                )


def _carried(job: Job) -> str:
    """The job in Base64, as `ralph fleet job` reads it. Its prompt may contain anything."""
    return b64encode(content_of(job)).decode()


def _refuse_large(size: int, most: int, subject: str, format_name: str) -> None:
    if size > most:
        raise UsageError(
            f"{subject} is too large for {format_name}: {size:,} bytes, and {most:,} are possible"
        )


def _refuse_paths(jobs: Sequence[Job], where: str) -> None:
    for job in jobs:
        if job.repository.startswith(("/", "file:")):
            raise UsageError(f"the repository of the job {job.id} is a path, and {where} has no such path")


def _names(jobs: Sequence[Job], format_name: str) -> list[str]:
    """The names of the secrets that jobs need, without those that each job gets and those that each machine has. Raises
    UsageError for a name that the file uses itself.
    """
    names = {name for job in jobs for name in _needs(job)} - {_KEY, _GIT_TOKEN, *_OF_EACH_MACHINE}
    own = sorted(name for name in names if name == "JOB" or name.startswith(("RALPH_", "GITHUB_", "RUNNER_")))
    if own:
        raise UsageError(f"{format_name} cannot pass on a variable {own[0]}: another one has this name there")
    return sorted(names)


def _needs(job: Job) -> tuple[str, ...]:
    """The variables of the job, and the one with the key of the vendor that its model names."""
    vendor = vendor_of(job.model or "") if job.base_url is None else None
    return job.env if vendor is None else tuple(dict.fromkeys((*job.env, vendor.key_variable)))


def _minutes(job: Job) -> int | None:
    return None if job.max_time is None else math.ceil(duration_s(job.max_time) / 60)


def _longest_minutes(jobs: Sequence[Job]) -> int | None:
    times = [minutes for job in jobs if (minutes := _minutes(job)) is not None]
    return max(times) if len(times) == len(jobs) else None


def _indented(text: str, spaces: int) -> str:
    return "\n".join(" " * spaces + line if line else "" for line in text.strip("\n").split("\n"))


# --- GNU parallel


def _parallel(jobs: Sequence[Job], limits: SetLimits, set_name: str) -> str:
    options, delay_s = [], 0.0
    if limits.concurrency is not None:
        options.append(f"--jobs {limits.concurrency}")
    if limits.rate is not None:
        delay_s = math.ceil(1000 * limits.rate.period_s / limits.rate.starts) / 1000
        options.append(f"--delay {delay_s:g}")
    after = [f"  {job.id}) echo {quote(' '.join(job.after))} ;;" for job in jobs if job.after]
    return "\n".join(
        [
            "#!/bin/sh",
            f"# The jobs of the set {set_name}, by GNU parallel: sh THIS_FILE. Needs parallel, and ralph and its git on PATH.",
            "# Run it again to continue: jobs that ended are left alone. `ralph fleet export` wrote it.",
            f"set_name={quote(set_name)}",
            f"ids={quote(' '.join(job.id for job in jobs))}",
            f"options={quote(' '.join(options))}",
            f"delay_s={delay_s:g}",
            _JOBS_DIR,
            f"RALPH_ATTEMPTS={limits.max_attempts}",
            f"RALPH_WAIT_S=${{RALPH_WAIT_S:-{_WAIT_S}}}",
            "job_after() {",
            *(["  case $1 in", *after, "  esac"] if after else ["  :"]),
            "}",
            *_definitions([(job.id, job) for job in jobs]),
            ONE_JOB + PARALLEL,
        ]
    )


def _definitions(jobs: Sequence[tuple[str, Job]]) -> list[str]:
    """The lines of a shell function that prints a job in Base64. The texts are names of cases."""
    lines = ["job_definition() {", "  case $1 in"]
    for case, job in jobs:
        carried = _carried(job)
        lines += [
            f"  {case})",
            f"    # {job.id}",
            "    cat <<'END_OF_JOB'",
            *(carried[at : at + 100] for at in range(0, len(carried), 100)),
            "END_OF_JOB",
            "    ;;",
        ]
    return [*lines, "  esac", "}"]


# --- Slurm


def _slurm(jobs: Sequence[Job], limits: SetLimits, set_name: str) -> str:
    longest = _longest_minutes(jobs)
    slots = "" if limits.concurrency is None else f"%{limits.concurrency}"
    script = "\n".join(
        [
            "#!/bin/sh",
            f"#SBATCH --job-name=ralph-{set_name}",
            f"#SBATCH --array=0-{len(jobs) - 1}{slots}",
            f"#SBATCH --output=ralph-{set_name}-%A_%a.txt",
            *("#SBATCH --requeue", "#SBATCH --open-mode=append", "#SBATCH --export=ALL"),
            *([] if longest is None else [f"#SBATCH --time={longest + _MINUTES_BESIDES}"]),
            f"# The jobs of the set {set_name}, as a Slurm array: sbatch THIS_FILE. Each node needs ralph and its git on PATH.",
            "# RALPH_JOBS_DIR must be a directory that all nodes share. `ralph fleet export` wrote this file.",
            f"set_name={quote(set_name)}",
            _JOBS_DIR,
            f"RALPH_ATTEMPTS={limits.max_attempts}",
            *_definitions([(str(index), job) for index, job in enumerate(jobs)]),
            ONE_JOB + SLURM,
        ]
    )
    _refuse_large(len(script), _LARGEST_BATCH_SCRIPT, "the script", "slurm")
    return script


# --- Kubernetes


def _kubernetes(jobs: Sequence[Job], limits: SetLimits, set_name: str) -> str:
    """YAML is written as JSON texts and blocks of our own lines: JSON is YAML."""
    _refuse_paths(jobs, "a pod")
    name = f"ralph-{set_name.lower().replace('_', '-').replace('.', '-')[:40]}".rstrip("-")
    maps = _config_maps(jobs, set_name)
    documents = [
        _config_map(f"{name}-{number}", number, entries, set_name) for number, entries in enumerate(maps)
    ]
    documents.append(_indexed_job(name, jobs, limits, len(maps)))
    head = (
        f"# The jobs of the set {set_name}, as a Job of Kubernetes 1.29 or newer: kubectl create -f THIS_FILE.\n"
        f"# Jobs by index: {' '.join(f'{index}={job.id}' for index, job in enumerate(jobs))}\n"
    )
    return head + "\n---\n".join(documents) + "\n"


def _config_map(name: str, number: int, entries: Sequence[tuple[int, str]], set_name: str) -> str:
    lines = ["apiVersion: v1", "kind: ConfigMap", "metadata:", f"  name: {name}", "immutable: true"]
    if number == 0:
        lines += ["data:", "  run.sh: |", _indented(_pod_script(set_name), 4)]
    if entries:
        lines += ["binaryData:", *(f'  "{index}": {carried}' for index, carried in entries)]
    return "\n".join(lines)


def _indexed_job(name: str, jobs: Sequence[Job], limits: SetLimits, maps: int) -> str:
    """A Job that has a pod for each index. `maps` is the number of ConfigMaps with the definitions."""
    longest = _longest_minutes(jobs)
    slots = len(jobs) if limits.concurrency is None else min(limits.concurrency, len(jobs))
    deadline = (
        "" if longest is None else f"      activeDeadlineSeconds: {60 * (longest + _MINUTES_BESIDES)}\n"
    )
    secrets = "\n".join(
        f'            - {{name: "{one}", valueFrom: {{secretKeyRef: {{name: ralph, key: "{one}", optional: true}}}}}}'
        for one in (_KEY, _GIT_TOKEN, *_names(jobs, "kubernetes"))
    )
    sources = ", ".join(f"{{configMap: {{name: {name}-{number}}}}}" for number in range(maps))
    return _JOB_OF_KUBERNETES.format(
        name=name,
        completions=len(jobs),
        slots=slots,
        retries=limits.max_attempts - 1,
        deadline=deadline,
        key=_KEY,
        secrets=secrets,
        sources=sources,
    )


def _pod_script(set_name: str) -> str:
    return f"set_name={quote(set_name)}\n{ONE_JOB}{KUBERNETES}"


def _config_maps(jobs: Sequence[Job], set_name: str) -> list[list[tuple[int, str]]]:
    """The definitions of the jobs with their indexes, a part for each ConfigMap. The first one also has the script."""
    maps: list[list[tuple[int, str]]] = [[]]
    size = len(_pod_script(set_name))
    for index, job in enumerate(jobs):
        carried = _carried(job)
        _refuse_large(len(carried), _LARGEST_CONFIG_MAP, f"the job {job.id}", "kubernetes")
        if size + len(carried) > _LARGEST_CONFIG_MAP:
            maps.append([])
            size = 0
        maps[-1].append((index, carried))
        size += len(carried) + 20
    return maps


_JOB_OF_KUBERNETES = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {completions}
  parallelism: {slots}
  backoffLimitPerIndex: {retries}
  podFailurePolicy:
    rules:
      # The node was drained or lost: that is not an attempt.
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget}}]
      # 75: again later. Kubernetes waits longer each time.
      - action: Count
        onExitCodes: {{containerName: ralph, operator: In, values: [75]}}
      # The other outcomes of ralph are final for this job, and the other jobs continue.
      - action: FailIndex
        onExitCodes: {{containerName: ralph, operator: In, values: [1, 2, 3, 4, 69, 70, 74, 77, 78, 124]}}
  template:
    spec:
      restartPolicy: Never
{deadline}\
      automountServiceAccountToken: false
      securityContext: {{runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000, seccompProfile: {{type: RuntimeDefault}}}}
      containers:
        - name: ralph
          image: python:3.12
          command: [sh, /jobs/run.sh]
          securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
          resources: {{requests: {{cpu: 500m, memory: 512Mi}}}}
          env:
            - {{name: HOME, value: /work}}
            - {{name: RALPH_JOBS_DIR, value: /state}}
            # From where pip installs ralph, such as git+https://HOST/OWNER/ralph@COMMIT. The index has no such package.
            - {{name: RALPH_INSTALL, value: ""}}
            # The values of the secret `ralph`: kubectl create secret generic ralph --from-literal={key}=...
{secrets}
          volumeMounts:
            - {{name: jobs, mountPath: /jobs, readOnly: true}}
            - {{name: work, mountPath: /work}}
            - {{name: state, mountPath: /state}}
      volumes:
        - name: jobs
          projected:
            sources: [{sources}]
        - name: work
          emptyDir: {{}}
        # Checkouts and sessions, by which a new pod resumes. The claim must exist, and all nodes must be able to write.
        # With an emptyDir in its place, each pod begins anew, and its budget too.
        - name: state
          persistentVolumeClaim: {{claimName: ralph-state}}"""


# --- GitHub


def _github_matrix(jobs: Sequence[Job], limits: SetLimits, set_name: str) -> str:
    _refuse_paths(jobs, "a runner")
    if len(jobs) > _MOST_OF_MATRIX:
        raise UsageError(f"github-matrix can hold {_MOST_OF_MATRIX} jobs, and the set has {len(jobs)}")
    names = _names(jobs, "github-matrix")
    slots = "" if limits.concurrency is None else f"      max-parallel: {limits.concurrency}\n"
    variables = "".join(
        f"          '{name}': ${{{{ contains(matrix.needs, ',{name},') && secrets.{name} || '' }}}}\n"
        for name in names
    )
    parts = (ONE_JOB, AGAIN, GITHUB)
    script = f"set_name={quote(set_name)}\n{''.join(parts)}"
    workflow = _WORKFLOW.format(
        set_name=set_name,
        secrets="".join(f"; {name}" for name in names),
        name=json.dumps(f"ralph {set_name}"),
        slots=slots,
        entries="\n".join(_matrix_entry(job, limits) for job in jobs),
        attempts=limits.max_attempts,
        wait_s=_WAIT_S,
        key=_KEY,
        variables=variables,
        script=_indented(script, 10),
    )
    _refuse_large(len(workflow), _LARGEST_WORKFLOW, "the workflow", "github-matrix")
    return workflow


def _matrix_entry(job: Job, limits: SetLimits) -> str:
    carried = _carried(job)
    _refuse_large(len(carried), _LONGEST_VARIABLE, f"the job {job.id}", "github-matrix")
    waits = (limits.max_attempts - 1) * _WAIT_S // 60
    minutes = (_minutes(job) or _LONGEST_GITHUB_MINUTES) + waits + _MINUTES_BESIDES
    entry = {
        "id": job.id,
        "minutes": min(_LONGEST_GITHUB_MINUTES, minutes),
        "needs": f",{','.join(_needs(job))},",
        "job": carried,
    }
    return f"          - {json.dumps(entry)}"


_WORKFLOW = """\
# The jobs of the set {set_name}, as a workflow: put it into .github/workflows/. `ralph fleet export` wrote it.
# Secrets: ANTHROPIC_API_KEY; RALPH_GIT_TOKEN, which may push to the repositories (default: the token of this
# workflow, for its own repository){secrets}. The input `install` says what
# pip installs.
name: {name}
on:
  workflow_dispatch:
    inputs:
      install:
        description: from where pip installs ralph, with the commit
        required: true
permissions:
  contents: write
jobs:
  job:
    name: ${{{{ matrix.id }}}}
    runs-on: ubuntu-latest
    timeout-minutes: ${{{{ matrix.minutes }}}}
    strategy:
      fail-fast: false
{slots}\
      matrix:
        include:
{entries}
    steps:
      - uses: actions/setup-python@v6
        with:
          python-version: "3.12"
      - name: Install ralph
        env:
          RALPH_INSTALL: ${{{{ inputs.install }}}}
        run: python -m pip install --quiet "$RALPH_INSTALL"
      - name: Do the job
        shell: sh {{0}}
        env:
          JOB: ${{{{ matrix.job }}}}
          RALPH_ATTEMPTS: {attempts}
          RALPH_WAIT_S: {wait_s}
          {key}: ${{{{ secrets.{key} }}}}
          RALPH_GIT_TOKEN: ${{{{ secrets.RALPH_GIT_TOKEN || github.token }}}}
{variables}\
        run: |
{script}
      - name: Keep what was not delivered
        if: always()
        uses: actions/upload-artifact@v7
        with:
          name: undelivered ${{{{ matrix.id }}}}
          path: |
            ${{{{ runner.temp }}}}/ralph/*/*/work.bundle
            ${{{{ runner.temp }}}}/ralph/*/*/large
          if-no-files-found: ignore
"""


FORMATS = {
    "github-matrix": _github_matrix,
    "kubernetes": _kubernetes,
    "slurm": _slurm,
    "parallel": _parallel,
}


# --- The shell text that runs one job without the engine, which all formats share. It is POSIX sh.

ONE_JOB = r"""
# ralph_job FILE does one job. FILE is the job. Exit code 75 means: again later. Another attempt finds the checkout and the
# session in $RALPH_JOBS_DIR and resumes. The command has the token RALPH_GIT_TOKEN for https://$RALPH_GIT_HOST (github.com).
umask 077
if [ -n "${RALPH_GIT_TOKEN:-}" ]; then export RALPH_GIT_TOKEN; fi
ralph_job() { ralph fleet job --set "$set_name" --dir "$RALPH_JOBS_DIR" "$1" </dev/null; }
"""
"""The function `ralph_job`. The file that it reads is what `jobs.content_of` makes."""

AGAIN = r"""
# ralph_again FILE repeats a job that ended with 75.
ralph_again() {
  attempt=1
  while :; do
    code=0
    ralph_job "$1" || code=$?
    if [ "$code" -ne 75 ] || [ "$attempt" -ge "$RALPH_ATTEMPTS" ]; then return "$code"; fi
    attempt=$((attempt + 1))
    echo "ralph: again in $RALPH_WAIT_S s (attempt $attempt of $RALPH_ATTEMPTS)" >&2
    sleep "$RALPH_WAIT_S"
  done
}
"""

PARALLEL = r"""
tried() { cat "$RALPH_JOBS_DIR/$set_name/$1/$2" 2>/dev/null || echo "$3"; }

if [ "${1:-}" = --job ]; then
  dir=$RALPH_JOBS_DIR/$set_name/$2
  mkdir -p "$dir" || exit 74
  echo $(($(tried "$2" tries 0) + 1)) >"$dir/tries"
  job_definition "$2" | base64 -d >"$dir/exported.json" || exit 74
  code=0
  ralph_job "$dir/exported.json" || code=$?
  echo "$code" >"$dir/exit"
  exit "$code"
fi

parallel --version 2>/dev/null | grep -q '^GNU parallel' || { echo "GNU parallel is not installed" >&2; exit 78; }
self=$(cd -- "$(dirname -- "$0")" && pwd)/$(basename -- "$0")
mkdir -p "$RALPH_JOBS_DIR/$set_name" || exit 74
for one in $ids; do
  rm -f "$RALPH_JOBS_DIR/$set_name/$one/tries"
  # Its work was not delivered the last time. No model is asked for that.
  if [ -e "$RALPH_JOBS_DIR/$set_name/$one/work.bundle" ]; then rm -f "$RALPH_JOBS_DIR/$set_name/$one/exit"; fi
done

# The jobs that may start now: not ended, tried less than $RALPH_ATTEMPTS times, and all jobs before them ended with 0.
ready() {
  for one in $ids; do
    code=$(tried "$one" exit none)
    if [ "$code" != none ] && [ "$code" -ne 75 ] && [ "$code" -le 128 ]; then continue; fi
    if [ "$(tried "$one" tries 0)" -ge "$RALPH_ATTEMPTS" ]; then continue; fi
    for before in $(job_after "$one"); do
      if [ "$(tried "$before" exit none)" != 0 ]; then continue 2; fi
    done
    echo "$one"
  done
}

wait_s=$RALPH_WAIT_S
while next=$(ready) && [ -n "$next" ]; do
  for one in $next; do
    if [ "$(tried "$one" exit none)" = 75 ] && [ "$(tried "$one" tries 0)" -gt 0 ]; then
      echo "ralph: some jobs ended with 75: again in $wait_s s" >&2
      sleep "$wait_s"
      wait_s=$((wait_s < 1800 ? 2 * wait_s : 3600))
      break
    fi
  done
  printf '%s\n' $next | parallel -q --joblog "+$RALPH_JOBS_DIR/$set_name/.joblog" --tag --line-buffer \
    --halt never $options sh "$self" --job '{}'
  sleep "$delay_s"
done

worst=0
rank() { # The first code of this row is the worst.
  case $1 in 70) echo 12 ;; 74) echo 11 ;; 77) echo 10 ;; 78) echo 9 ;; 69) echo 8 ;; 2) echo 7 ;; 4) echo 6 ;;
  1) echo 5 ;; 3) echo 4 ;; 124) echo 3 ;; 75) echo 2 ;; 0) echo 0 ;; *) echo 1 ;; esac
}
for one in $ids; do
  code=$(tried "$one" exit none)
  echo "$one: $code"
  if [ "$code" = none ]; then code=1; fi
  if [ "$(rank "$code")" -gt "$(rank "$worst")" ]; then worst=$code; fi
done
exit "$worst"
"""

SLURM = r"""
place=$RALPH_JOBS_DIR/$set_name
mkdir -p "$place" || exit 74
file=$place/.$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID.json
job_definition "$SLURM_ARRAY_TASK_ID" | base64 -d >"$file" || exit 74
code=0
ralph_job "$file" || code=$?
if [ "$code" -eq 75 ]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -lt "$((RALPH_ATTEMPTS - 1))" ]; then
    # Slurm ends this script and starts it again, two minutes later at the earliest.
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" && sleep 60
  else
    echo "ralph: the last of $RALPH_ATTEMPTS attempts ended with 75" >&2
    code=1 # A cluster with RequeueExit=75 would begin the job again, however often.
  fi
fi
exit "$code"
"""

KUBERNETES = r"""
if ! command -v ralph >/dev/null; then
  if [ -z "$RALPH_INSTALL" ]; then echo "RALPH_INSTALL must say from where pip installs ralph" >&2; exit 78; fi
  python3 -m venv "$HOME/venv" && "$HOME/venv/bin/pip" install -q "$RALPH_INSTALL" || exit 75
  PATH=$HOME/venv/bin:$PATH
fi
ralph_job "/jobs/$JOB_COMPLETION_INDEX"
"""

GITHUB = r"""
place=$RUNNER_TEMP/ralph
mkdir -p "$place" || exit 74
export RALPH_JOBS_DIR="$place"
printf '%s' "$JOB" | base64 -d >"$place/job.json" || exit 74
# The agent and its commands have no use for these.
unset JOB GITHUB_OUTPUT GITHUB_ENV GITHUB_PATH GITHUB_STATE GITHUB_STEP_SUMMARY
# Lines of a model or a command that look like commands to the runner are text, up to a word that nobody knows.
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "::stop-commands::$token"
code=0
ralph_again "$place/job.json" || code=$?
echo
echo "::$token::"
exit "$code"
"""
