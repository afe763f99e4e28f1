#!/usr/bin/env bash
# The Ralph loop: the same prompt, a fresh context, again and again.
#
#   ./loop.sh                       build, without a limit
#   ./loop.sh 20                    build, at most 20 iterations (0: no limit)
#   ./loop.sh plan 3                plan, at most 3 iterations
#   ./loop.sh build 20 --commit     options of `ralph loop` and `ralph run` go last
#
# The prompt is PROMPT_plan.md or PROMPT_build.md; `ralph loop init` writes both. All that is to be decided, `ralph
# loop` decides; this maps arguments to it. RALPH is the program to run (default: ralph).
set -euo pipefail

ralph=${RALPH:-ralph}
if ! command -v -- "$ralph" >/dev/null; then
    echo "loop.sh: $ralph is not on PATH: install it as its README says, or set RALPH" >&2
    exit 127
fi
mode=build
case "${1:-}" in
    plan | build) mode=$1; shift ;;
    -h | --help | --status | -c | --continue) exec "$ralph" loop "$@" ;;
esac
max=
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    max=${1#"${1%%[!0]*}"} # 08 is eight
    shift
fi
if (($#)) && [[ $1 != -* ]]; then
    echo "usage: ./loop.sh [plan|build] [max-iterations] [options of ralph loop]" >&2
    exit 2
fi
if [[ -n $max ]]; then set -- --max-iterations "$max" "$@"; fi
prompt=PROMPT_$mode.md
if [[ ! -e $prompt ]]; then
    echo "loop.sh: $prompt is missing; \`ralph loop init\` writes one to begin with" >&2
    exit 2
fi
exec "$ralph" loop --prompt-file "$prompt" "$@" </dev/null
