#!/bin/sh
# Resumes a loop that was interrupted by a reboot, a `systemctl stop` or an outage; `night.sh begin` starts one if there is
# none. After a power cut the record has no end (null), after an orderly shutdown it has 143. Needs jq.
set -eu
cd /home/me/project
case $(ralph loop --status --json 2>/dev/null | jq .ended.exit_code) in
    null | 75 | 129 | 143) exec ralph loop --continue </dev/null ;;
esac
[ "${1:-}" = begin ] || exit 0
exec ralph loop -f PROMPT_build.md --gate 'make test' --plan IMPLEMENTATION_PLAN.md --commit --push \
    --max-iterations 30 --max-budget-usd 40 --max-time 9h </dev/null
