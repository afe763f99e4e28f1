#!/bin/sh
# Packages: openai 3.57.0, anthropic 2.14.0, httpx2 2.16.2 (PyPI); openai 7.59.0, @anthropic-ai/sdk 1.14.0,
#           ai 7.0.173 with @ai-sdk/openai-compatible 3.0.92 (npm). All with their own default of two retries.
#
# A busy server answers 429 with `retry-after: SECONDS`, each time.
#
# One would expect: one maker's Python and npm clients do the same with the number, and a larger number never leads to
# more haste. The four official clients come from one generator of code.
# Seen (what the client does before each of its two retries; "own" is its own short back-off, seconds in all):
#   retry-after          59      60      61      120     121       86400
#   openai, Python       waits   waits   waits   waits   no retry  no retry
#   openai, npm          waits   waits   own     own     own       own
#   anthropic, Python    waits   waits   waits   waits   waits     waits a day, twice
#   anthropic, npm       waits   waits   waits   waits   waits     waits a day, twice
#   AI SDK               waits   own     own     own     own       own
# So a server that asks for 121 seconds is asked again after half a second by one client, after 121 by another, and
# never by a third; `timeout` bounds none of the waits, since it is for one request.
#
# For whom it matters: whoever runs agents unattended. The same outage is a failed night (openai, Python), three
# requests within seconds against a server that asked for peace (openai, npm, and AI SDK), or a process that sleeps for two days
# and looks alive (anthropic). A limit on the whole run has to be set outside of the client, and max_retries=0 with
# a reading of the header of one's own is the only conduct that is the same everywhere.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
for p in python3 node npm; do command -v "$p" >/dev/null || { echo "skipped: no $p"; exit 77; }; done
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
{ "$dir/venv/bin/pip" install -q --disable-pip-version-check openai==3.57.0 anthropic==2.14.0 httpx2==2.16.2 &&
    npm install --silent --no-audit --no-fund --prefix "$dir" openai@7.59.0 @anthropic-ai/sdk@1.14.0 ai@7.0.173 \
    @ai-sdk/openai-compatible@3.0.92; } || { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/client.mjs" <<'JS'
import OpenAI from 'openai'; import Anthropic from '@anthropic-ai/sdk';
import {generateText} from 'ai'; import {createOpenAICompatible} from '@ai-sdk/openai-compatible';
const REQUEST = 599999, messages = [{role: 'user', content: 'go'}], answer = {}, timer = globalThis.setTimeout;
for (const seconds of process.argv.slice(2)) {
  const state = {waits: [], requests: 0};
  globalThis.setTimeout = (call, ms, ...rest) => {
    if (ms === REQUEST) return timer(call, ms, ...rest);
    state.waits.push(ms / 1000);
    return timer(call, 0, ...rest);
  };
  const fetch = async () => {
    state.requests++;
    return new Response('{"error": {"message": "busy"}}', {status: 429, headers: {'retry-after': seconds, 'content-type': 'application/json'}});
  };
  const key = {apiKey: 'none', fetch, timeout: REQUEST};
  const asks = {
    'openai, npm': () => new OpenAI(key).chat.completions.create({model: 'm', messages}),
    'anthropic, npm': () => new Anthropic(key).messages.create({model: 'm', max_tokens: 9, messages}),
    'AI SDK': () => generateText({model: createOpenAICompatible({name: 'x', baseURL: 'http://x', apiKey: 'none', fetch})('m'), prompt: 'go'}),
  };
  for (const [name, ask] of Object.entries(asks)) {
    Object.assign(state, {waits: [], requests: 0});
    await ask().then(() => { throw new Error('no error'); }, () => {});
    (answer[name] ??= {})[seconds] = {...state};
  }
}
console.log(JSON.stringify(answer));
process.exit(0);
JS

cat >"$dir/check.py" <<'PY'
import json, subprocess, sys, time
import anthropic, httpx2, openai

TIMES = ["59", "60", "61", "120", "121", "86400"]
ASK, waits, seen = [{"role": "user", "content": "go"}], [], {}
time.sleep = waits.append


def conduct(seconds, waits, requests):
    if requests == 1: return "no retry"
    if waits == [float(seconds)] * 2: return "waits"
    return "own" if len(waits) == 2 and sum(waits) < 10 else f"{waits}, {requests} requests"


for seconds in TIMES:
    count = []

    def busy(request):
        count.append(1)
        return httpx2.Response(429, headers={"retry-after": seconds}, json={"error": {"message": "busy"}})

    http = httpx2.Client(transport=httpx2.MockTransport(busy))
    for name, ask in {
        "openai, Python": lambda: openai.OpenAI(api_key="none", http_client=http).chat.completions.create(model="m", messages=ASK),
        "anthropic, Python": lambda: anthropic.Anthropic(api_key="none", http_client=http).messages.create(model="m", max_tokens=9, messages=ASK),
    }.items():
        waits.clear(), count.clear()
        try: ask()
        except (openai.RateLimitError, anthropic.RateLimitError): pass
        seen.setdefault(name, {})[seconds] = conduct(seconds, list(waits), len(count))
npm = json.loads(subprocess.check_output(["node", "client.mjs", *TIMES], cwd=sys.argv[1]))
for name, times in npm.items():
    seen[name] = {s: conduct(s, t["waits"], t["requests"]) for s, t in times.items()}
stated = {
    "openai, Python": ["waits"] * 4 + ["no retry"] * 2,
    "openai, npm": ["waits"] * 2 + ["own"] * 4,
    "anthropic, Python": ["waits"] * 6,
    "anthropic, npm": ["waits"] * 6,
    "AI SDK": ["waits"] + ["own"] * 5,
}
changed = False
print(f"{'retry-after':18}", *(f"{s:>9}" for s in TIMES))
for name, was in stated.items():
    now = [seen[name][s] for s in TIMES]
    changed |= now != was
    print(f"{name:18}", *(f"{n:>9}" for n in now), "" if now == was else f"   CHANGED, was: {was}")
sys.exit(changed)
PY
"$dir/venv/bin/python" "$dir/check.py" "$dir"
