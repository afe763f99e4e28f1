"""Claude models on Bedrock, on Google Cloud and on Vertex AI: requests are those of the official clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anthropic

from ralph.conversation.messages import RequestBody, RequestHead
from ralph.values.credentials import credential_from
from tests.api.harness import MESSAGE, START, RawServer, end, http_answer, sse, text_block
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "token-0123456789"
PROJECT = "/v1/projects/p/locations/global"
AS_SENT = {"max_tokens": 100, "messages": [json.loads(MESSAGE)]}


def mantle(base_url: str) -> anthropic.AnthropicBedrockMantle:
    return anthropic.AnthropicBedrockMantle(
        api_key=TOKEN, base_url=base_url, aws_region="us-east-1", max_retries=0
    )


def managed_by_anthropic(base_url: str) -> anthropic.AnthropicGoogleCloud:
    return anthropic.AnthropicGoogleCloud(token_provider=lambda: TOKEN, base_url=base_url, max_retries=0)


def vertex(base_url: str) -> anthropic.AnthropicVertex:
    above = base_url.removesuffix("/projects/p/locations/global/publishers/anthropic/models")
    return anthropic.AnthropicVertex(
        access_token=TOKEN, base_url=above, project_id="p", region="global", max_retries=0
    )


def told(request: bytes) -> tuple[bytes, bytes, Any]:
    """The first line, the key and the body of a request."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    assert b"x-api-key" not in fields
    return first, fields[b"authorization"], json.loads(body)


@every_row(
    ("client", "path", "model", "expected"),
    [
        (mantle, "/anthropic", "anthropic.claude-opus-5-5", "/anthropic/v1/messages"),
        (
            managed_by_anthropic,
            f"{PROJECT}/workspaces/w/invoke",
            "claude-opus-5-5",
            f"{PROJECT}/workspaces/w/invoke/v1/messages",
        ),
        (
            vertex,
            f"{PROJECT}/publishers/anthropic/models",
            "claude-sonnet-4-5@20250929",
            f"{PROJECT}/publishers/anthropic/models/claude-sonnet-4-5@20250929:",
        ),
    ],
)
@every_row("is_whole", [False, True])
def test_a_request_to_a_cloud_is_that_of_its_official_client(
    raw_server: Callable[..., RawServer], rig, monkeypatch, client, path, model, expected, is_whole
) -> None:
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"}
    answers = {
        False: http_answer(sse(START, *text_block(0, "ok"), *end())),
        True: http_answer(
            json.dumps({**message, "usage": {"input_tokens": 1, "output_tokens": 1}}).encode(),
            "application/json",
        ),
    }
    server = raw_server(answers[is_whole])
    credential = credential_from("CLOUD_AUTH_TOKEN", {"CLOUD_AUTH_TOKEN": TOKEN})
    assert credential is not None
    ours = rig(server.base_url + path, headers=credential.headers)
    head = RequestHead.of_fields({"model": model, "max_tokens": 100, "stream": not is_whole})
    ours.api.send_message(RequestBody(head, loose=(MESSAGE,)), ours.events, is_whole=is_whole)
    assert ours.describe(model) is None
    made = client(server.base_url + path).messages.create(model=model, stream=not is_whole, **AS_SENT)
    if not is_whole:
        list(made)
    own, *_, official = (told(request) for request in server.requests if request.startswith(b"POST"))
    assert own == official
    assert own[0].split()[1].startswith(expected.encode())
    assert own[1] == f"Bearer {TOKEN}".encode()
    assert ("model" in own[2]) is (client is not vertex)


@every_row("model", ["../../../../../projects/other/endpoints/1:rawPredict?x=", "a#b", "a?b", "%2e%2e/a"])
def test_no_name_of_a_model_leads_to_another_place_of_vertex(
    raw_server: Callable[..., RawServer], rig, model
) -> None:
    server = raw_server(http_answer(sse(START, *text_block(0, "ok"), *end())))
    ours = rig(f"{server.base_url}{PROJECT}/publishers/anthropic/models")
    body = RequestBody(RequestHead.of_fields({"model": model, "stream": True}), loose=(MESSAGE,))
    ours.api.send_message(body, ours.events)
    path = server.requests[0].split()[1].decode()
    assert path == f"{PROJECT}/publishers/anthropic/models/{quote(model, safe='')}:streamRawPredict"
