#!/usr/bin/env bash
# The Ralph loop: the same prompt, a fresh context, again and again.
#
#   ./loop.sh               build, without end
#   ./loop.sh 20            build, at most 20 iterations
#   ./loop.sh plan 3        plan, at most 3 iterations
#
# The prompt is PROMPT_plan.md or PROMPT_build.md, which you write. RALPH is the command to run (default: ralph).
# It goes by exit codes alone, never by text: see "Exit codes" in README.md.
set -euo pipefail

mode=build
case "${1:-}" in
    plan | build) mode=$1; shift ;;
esac
max=${1:-0}
if ! [[ $max =~ ^[0-9]+$ ]] || (($# > 1)); then
    echo "usage: ./loop.sh [plan|build] [max-iterations]" >&2
    exit 2
fi
max=$((10#$max)) # 08 is eight, not a broken octal
prompt=PROMPT_$mode.md
if [[ ! -s $prompt ]]; then
    echo "loop: $prompt is missing or empty; write the task for each iteration into it" >&2
    exit 2
fi

child=
stopped=0
trap 'stopped=129; stop' HUP
trap 'stopped=130; stop' INT
trap 'stopped=143; stop' TERM
stop() { # a signal to the loop alone must not leave its child working
    if [[ -n $child ]]; then kill -TERM "$child" 2>/dev/null || true; fi
}

# Run a command to its end, whatever signal comes meanwhile, and keep its exit code in $code.
follow() {
    "$@" </dev/null &
    child=$!
    while :; do
        code=0
        wait "$child" || code=$?
        kill -0 "$child" 2>/dev/null || break
    done
    child=
    if ((stopped)); then exit "$stopped"; fi
}

iteration=0
while ((max == 0 || iteration < max)); do
    echo "loop: $mode, iteration $((iteration + 1))$( ((max)) && echo " of $max")" >&2
    follow "${RALPH:-ralph}" run --retry patient --prompt-file "$prompt"
    case $code in
        0 | 3 | 4 | 124) iteration=$((iteration + 1)) ;; # a fresh context may do better
        75)                                              # the API is down; that is no iteration
            echo "loop: API unavailable, trying again in 30 minutes" >&2
            follow sleep 1800
            ;;
        *)
            echo "loop: stopped by exit code $code" >&2
            exit "$code"
            ;;
    esac
done
echo "loop: $max iterations done" >&2
