#!/usr/bin/env bash
# The Ralph loop: the same prompt, a fresh context, again and again.
#
#   ./loop.sh               build, without end
#   ./loop.sh 20            build, at most 20 iterations
#   ./loop.sh plan 3        plan, at most 3 iterations
#
# The prompt is PROMPT_plan.md or PROMPT_build.md. RALPH is the command to run (default: ralph).
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
    echo "loop: $prompt is missing or empty" >&2
    exit 2
fi

iteration=0
while ((max == 0 || iteration < max)); do
    echo "loop: $mode, iteration $((iteration + 1))$( ((max)) && echo " of $max")" >&2
    code=0
    "${RALPH:-ralph}" run --retry patient --prompt-file "$prompt" </dev/null || code=$?
    case $code in
        0 | 1 | 3 | 4 | 124) iteration=$((iteration + 1)) ;; # a fresh context may do better
        75)                                                  # the API is down; that is no iteration
            echo "loop: API unavailable, trying again in 30 minutes" >&2
            sleep 1800
            ;;
        *)
            echo "loop: stopped by exit code $code" >&2
            exit "$code"
            ;;
    esac
done
echo "loop: $max iterations done" >&2
