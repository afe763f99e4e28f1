# The playbook's loop works as it is, if `claude` is a script that starts ralph. ralph's own loop also waits for outages, and ends
# when a check passes:
while [ ! -e DONE ]; do cat PROMPT.md | claude -p --dangerously-skip-permissions --output-format=stream-json --model opus --verbose; done
ralph loop -f PROMPT.md --until 'test -e DONE' --max-iterations 20

# A program that calls `claude`, such as ralph-orchestrator 1.2.3, finds ralph if such a script is first on PATH. Its Python SDK
# brings a `claude` of its own, which must be out of the way; its own command is called `ralph` too, so it needs an environment
# of its own. Its loop ends when an answer contains LOOP_COMPLETE, or at once if PROMPT.md contains that word: tell the model by
# other means, such as CLAUDE.md.
python3 -m venv orchestrator && orchestrator/bin/pip install ralph-orchestrator==1.2.3
rm -r orchestrator/lib/python3*/site-packages/claude_agent_sdk/_bundled
mkdir -p shim && printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v ralph)" > shim/claude && chmod +x shim/claude
PATH="$PWD/shim:$PATH" orchestrator/bin/ralph run -a claude -i 10
