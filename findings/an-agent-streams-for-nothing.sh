#!/bin/sh
# Packages: langchain 1.5.2, langchain-anthropic 1.7.10, langchain-core 1.8.3, pydantic-ai-slim 2.68.0, litellm 1.110.2,
# anthropic 2.14.0 (PyPI).
#
# In a stream of the Messages API `message_start` has the counts of the input, and `message_delta` repeats them, or, as in
# the API's own examples, in older recordings and in llama.cpp's server, has `output_tokens` alone: 2,000 tokens from the
# cache and 100 others go in, 50 come out.
#
# One would expect: a count that the last event does not have is the one of the first, 2,150 tokens in all.
# Seen: so it is in Anthropic's SDK, LiteLLM and pydantic-ai, and in LangChain where the answer is not streamed. Streamed,
# LangChain counts no input at all and nothing of the cache: 50 tokens in all.
# In an agent of LangChain `stream_mode="messages"` alone decides that: the same agent with the same server has used 2,150
# tokens with `invoke` or `stream_mode="updates"`, and 50 with `stream_mode="messages"`.
#
# For whom it matters: the input is nearly the whole bill of an agent, since each turn sends the conversation again. A
# budget or a report on usage_metadata or UsageMetadataCallbackHandler sees none of it, without a word, once somebody
# shows the answer as it comes and a gateway or a server of one's own sends the short form.
#
# Exit: 0 as described, 1 changed (says what), 77 a needed program or package is missing.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; trap 'exit 1' HUP INT TERM
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --disable-pip-version-check langchain==1.5.2 langchain-anthropic==1.7.10 langchain-core==1.8.3 \
    'pydantic-ai-slim[anthropic]==2.68.0' litellm==1.110.2 anthropic==2.14.0 || { echo "skipped: the packages cannot be installed"; exit 77; }

cat >"$dir/check.py" <<'PY'
import asyncio, http.server, json, sys, threading, warnings
warnings.simplefilter("ignore")
import anthropic, litellm
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.callbacks import UsageMetadataCallbackHandler
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

MODEL, ASK = "claude-opus-4-5", [{"role": "user", "content": "go"}]
INPUT = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2000}
HEAD = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "stop_sequence": None}
TEXT = {"type": "text", "text": "done"}


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        repeated = INPUT if self.path.startswith("/long") else {}
        events = [
            {"type": "message_start", "message": HEAD | {"content": [], "stop_reason": None, "usage": INPUT | {"output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": TEXT | {"text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "done"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": repeated | {"output_tokens": 50}},
            {"type": "message_stop"},
        ]
        whole = HEAD | {"content": [TEXT], "stop_reason": "end_turn", "usage": INPUT | {"output_tokens": 50}}
        stream = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if asked.get("stream") else "application/json")
        self.end_headers()
        self.wfile.write((stream if asked.get("stream") else json.dumps(whole)).encode())


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
here = f"http://127.0.0.1:{server.server_port}"


def sdk(base):
    with anthropic.Anthropic(api_key="none", base_url=base).messages.stream(model=MODEL, max_tokens=99, messages=ASK) as stream:
        usage = stream.get_final_message().usage
    return usage.input_tokens + usage.cache_read_input_tokens + usage.output_tokens


def lite(base):
    chunks = litellm.completion(model=f"anthropic/{MODEL}", api_key="none", api_base=base, messages=ASK, stream=True,
                                stream_options={"include_usage": True})
    return litellm.stream_chunk_builder(list(chunks), messages=ASK).usage.total_tokens


def pydantic(base):
    async def ask():
        provider = AnthropicProvider(api_key="none", base_url=base)
        async with Agent(AnthropicModel(MODEL, provider=provider)).run_stream("go") as stream:
            async for _ in stream.stream_text(): pass
            return stream.usage() if callable(stream.usage) else stream.usage
    usage = asyncio.run(ask())
    return usage.input_tokens + usage.output_tokens


def claude(base): return ChatAnthropic(model=MODEL, api_key="none", base_url=base, max_tokens=99)


def chain(base):
    total, *others = claude(base).stream("go")
    for one in others: total += one
    return total.usage_metadata["total_tokens"]


def agent(mode):
    def ask(base):
        counted = UsageMetadataCallbackHandler()
        config, task = {"callbacks": [counted]}, {"messages": ASK}
        of = create_agent(claude(base))
        of.invoke(task, config) if mode is None else list(of.stream(task, config, stream_mode=mode))
        return sum(one["total_tokens"] for one in counted.usage_metadata.values())
    return ask


changed = False
for name, ask, short in (
    ("anthropic, streamed", sdk, 2150), ("litellm, streamed", lite, 2150), ("pydantic-ai, streamed", pydantic, 2150),
    ("langchain, invoke", lambda base: claude(base).invoke("go").usage_metadata["total_tokens"], 2150),
    ("langchain, streamed", chain, 50), ("its agent, invoke", agent(None), 2150),
    ("its agent, updates", agent("updates"), 2150), ("its agent, messages", agent("messages"), 50),
):
    seen = ask(f"{here}/long"), ask(f"{here}/short")
    print(f"{name:22} counts repeated: {seen[0]:5}, output alone: {seen[1]:5}" + ("" if seen == (2150, short) else f"   CHANGED, was: 2150, {short}"))
    changed |= seen != (2150, short)
sys.exit(changed)
PY
LITELLM_LOCAL_MODEL_COST_MAP=True NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 "$dir/venv/bin/python" "$dir/check.py" 2>"$dir/errors" || { rc=$?; tail -5 "$dir/errors" >&2; exit "$rc"; }
