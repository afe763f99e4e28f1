"""Computes what one scripted job costs with ralph and with other agents: `python -m benchmarks.job_cost`. Prints a Markdown
table. The results are in `docs/comparison.md`.

The job is 20 commands of 2 KB of output each, then an answer. The requests that a program sends are compared: what repeats the
beginning of the request before is read from the cache, the rest is written to it. Prices are those of ralph's own table. A
token is taken for 4 bytes, which is the same error for each row. What the model says costs the same in each row but for its
price, and is left out. Requests beside the conversation, such as one for a title, count.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ralph, workplace
from benchmarks.peers import CODEX_MODEL, MODEL, Program, call_of, configure, installed_peers
from ralph import __version__
from ralph.mock_api import MockApi, Turn
from ralph.values.servers import facts_of
from ralph.values.usage import TokenUsage, cost_usd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ralph.mock_api import RecordedRequest

COMMANDS = 20
BYTES_PER_TOKEN = 4
_FIRST = ("tools", "instructions", "system", "messages", "input")
"""The parts of a prompt that a cache compares, in its order. A request has some of them."""


def main() -> None:
    print("| | model | requests | first request | read from the cache | dollars |")
    print("| --- | --- | --- | --- | --- | --- |")
    gpt = ("--api", "openai-responses", "--model", CODEX_MODEL)
    ours = ((MODEL, ("--model", MODEL)), (CODEX_MODEL, gpt))
    rows = [
        (Program("ralph", __version__, ralph("run", "hi", *words), "Bash"), model) for model, words in ours
    ]
    rows += [(peer, CODEX_MODEL if peer.name == "codex" else MODEL) for peer in installed_peers()]
    for program, model in rows:
        prompts = _prompts_of(program)
        usages = list(usages_of(prompts))
        total = sum(usages, TokenUsage())
        dollars = sum(cost_usd(facts_of(model), usage) or 0 for usage in usages)
        print(
            f"| {program.name} {program.version} | {model} | {len(prompts)} | {len(prompts[0]) / 1000:.1f} KB"
            f" | {total.cache_read / total.prompt:.0%} | ${dollars:.3f} |"
        )


def usages_of(prompts: Sequence[bytes]) -> Iterator[TokenUsage]:
    """Yields the tokens of each prompt, which is compared with all before it."""
    for number, prompt in enumerate(prompts):
        known = max((len(os.path.commonprefix([prompt, old])) for old in prompts[:number]), default=0)  # noqa: RUF071 - bytes
        new = len(prompt) - known
        yield TokenUsage(cache_read=known // BYTES_PER_TOKEN, cache_write=new // BYTES_PER_TOKEN)


def _prompts_of(program: Program) -> list[bytes]:
    asked: list[RecordedRequest] = []

    def play(request: RecordedRequest, _index: int) -> Turn:
        asked.append(request)
        number = sum(message["role"] == "assistant" for message in request.messages())
        if number >= COMMANDS or not request.json().get("tools"):
            return Turn("Done.")
        return Turn([call_of(program.tool, f"echo {number}; seq 1 500")])

    with MockApi(script=play) as server, workplace(server.base_url) as place:
        configure(place)
        key = ("/usr/bin/env", "OPENAI_API_KEY=sk-benchmark-0001", f"OPENAI_BASE_URL={server.base_url}/v1")
        place.measure((*key, *program.command))
    return [_prompt_of(request.json()) for request in asked if request.body_bytes]


def _prompt_of(request: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(_unmarked(request[name])).encode() for name in _FIRST if request.get(name))


def _unmarked(value: Any) -> Any:
    """The value without the marks that say where the cache is to be written, which are no part of the prompt."""
    if isinstance(value, dict):
        return {name: _unmarked(inner) for name, inner in value.items() if name != "cache_control"}
    return [_unmarked(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
