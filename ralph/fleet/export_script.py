"""The shell text that runs one job without the engine. All formats of `export.py` share it. It is POSIX sh."""

from __future__ import annotations

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
