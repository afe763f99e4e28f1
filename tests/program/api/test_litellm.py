"""LiteLLM's proxy, which nobody here wrote, between ralph and a scripted server of another API, in each direction."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ralph.mock_api import MockApi, Text, Thinking, ToolUse, Turn
from tests.patience import wait_until
from tests.rows import every_row
from tests.services.outside_programs import LITELLM, folder_or_skip
from tests.services.ports import free_port, is_answering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ralph.mock_api import Playable, RecordedRequest

pytestmark = pytest.mark.outside

KEY = "sk-proxy-0123456789abcdef0123456789abcdef"
"""The proxy refuses to start with a shorter one."""
CONFIG = """
model_list:
  - model_name: behind-anthropic
    litellm_params: {{model: anthropic/claude-sonnet-5-5, api_base: "{url}", api_key: sk-fake}}
  - model_name: behind-openai
    litellm_params: {{model: openai/gpt-4.1, api_base: "{url}/v1", api_key: sk-fake}}
general_settings: {{master_key: {key}}}
"""
WORK = Turn(
    [
        Thinking("Both at once.", "c2ln"),
        Text("I write."),
        ToolUse("Bash", {"command": "echo one >> notes"}),
        ToolUse("Bash", {"command": "echo two >> notes; echo 'ä\\n\"'"}),
    ]
)


class Proxy(NamedTuple):
    url: str
    behind: MockApi


def work_then_end(request: RecordedRequest, _index: int) -> Playable:
    has_results = any(
        isinstance(message["content"], list)
        and any(one["type"] == "tool_result" for one in message["content"])
        for message in request.messages()
    )
    return Turn("Both are written.") if has_results else WORK


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    home = folder_or_skip(LITELLM)
    directory: Path = tmp_path_factory.mktemp("litellm")
    port = free_port()
    with MockApi(script=work_then_end) as behind, (directory / "log").open("w+") as log:
        config = directory / "config.yaml"
        config.write_text(CONFIG.format(url=behind.base_url, key=KEY))
        program = str(home / "bin" / "litellm")
        line = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        environment = {"PATH": f"{home / 'bin'}:/usr/bin:/bin", "HOME": str(directory)}
        with subprocess.Popen(
            line, cwd=directory, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process:
            try:
                wait_until(lambda: is_answering(port) or process.poll() is not None, 120)
                log.seek(0)
                assert process.poll() is None, log.read()
                yield Proxy(f"http://127.0.0.1:{port}", behind)
            finally:
                process.terminate()


@every_row(
    ("api", "model", "behind"),
    [
        ("openai-chat", "behind-anthropic", "anthropic"),
        ("openai-responses", "behind-anthropic", "anthropic"),
        ("anthropic", "behind-openai", "openai-responses"),
        ("openai-chat", "behind-openai", "openai-chat"),
    ],
)
def test_two_calls_and_their_results_pass_through_in_each_direction(ralph, proxy, api, model, behind) -> None:
    before, notes = len(proxy.behind.requests), ralph.cwd / "notes"
    notes.unlink(missing_ok=True)
    ralph.environment |= {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}
    ran = ralph("-p", "Write both.", "--api", api, "--base-url", proxy.url, "--model", model)
    assert (ran.code, ran.stdout) == (0, "Both are written.\n"), ran.stderr
    assert notes.read_text() == "one\ntwo\n"
    requests = proxy.behind.requests[before:]
    assert [request.api for request in requests] == [behind] * 2
    results = [one for one in requests[1].messages()[-1]["content"] if one["type"] == "tool_result"]
    assert len(results) == 2
    assert "ä" in str(results[1]["content"])
