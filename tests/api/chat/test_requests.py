"""Requests of Chat Completions: OpenAI's fit the types of the official client, and other servers get what they want."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from ralph.api.chat import ChatDialect
from ralph.api.chat_requests import signature_of
from ralph.conversation.messages import Conversation, RequestShape, assistant_message, to_json, user_message
from ralph.run.report_check import report_tool
from ralph.values.answer import ToolOutput, ToolResult
from tests.conversation.request_types import type_problems
from tests.fakes import ECHO, TOUCH, call, text
from tests.rows import every_row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ralph.values.answer import Block

OPENAI = "https://api.openai.com/v1"
OTHER = "https://models.example.com/v1"
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
SHAPE = RequestShape("gpt-6-astra", "Be brief.", (ECHO, TOUCH, report_tool(None)), effort="high")


def talk(*messages: Iterable[Block], shape: RequestShape = SHAPE) -> Conversation:
    """A conversation in which the user and the model speak in turn."""
    made = Conversation.start(shape)
    for number, blocks in enumerate(messages):
        message = assistant_message(blocks) if number % 2 else user_message(blocks)
        assert message is not None
        made = made.plus(message)
    return made


def result(call_id: str, content: Any = "done", *, is_error: bool = False) -> Block:
    return ToolResult(call_id, ToolOutput(content, is_error=is_error)).as_block()


def sent(made: Conversation, base_url: str = OPENAI, **asked: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(b"".join(ChatDialect(base_url).body(made.request_body(**asked))))
    return body


WHOLE = talk(
    [text("Do it."), PICTURE, LINK],
    [text("Yes."), call("c1", text="ü"), call("c2", "Touch")],
    [result("c1", (text("here"), PICTURE)), result("c2", "no", is_error=True), text("Go on.")],
    [text("Done.")],
    [text("Thanks.")],
)


def test_a_request_to_openai_fits_the_types_of_the_official_client() -> None:
    body = sent(WHOLE, max_tokens=700)
    assert type_problems(body, CompletionCreateParamsStreaming) == []
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0="}}
    assert body["messages"] == [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Do it."},
                image,
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": "Yes.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "Echo", "arguments": '{"text":"ü"}'}},
                {"id": "c2", "type": "function", "function": {"name": "Touch", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "here"},
        {"role": "tool", "tool_call_id": "c2", "content": "Error: no"},
        {"role": "user", "content": [image, {"type": "text", "text": "Go on."}]},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ]
    assert (body["max_completion_tokens"], body["reasoning_effort"]) == (700, "high")
    assert body["stream_options"] == {"include_usage": True}
    echo, touch, report = (tool["function"] for tool in body["tools"])
    assert echo == {"name": "Echo", "description": ECHO.description, "parameters": ECHO.input_schema}
    assert "strict" not in touch
    assert report["strict"] is True
    assert report["parameters"]["additionalProperties"] is False


def test_a_whole_answer_is_asked_for_without_a_stream() -> None:
    body = sent(WHOLE, is_whole=True)
    assert body["stream"] is False
    assert "stream_options" not in body


def test_a_message_of_calls_alone_has_no_content() -> None:
    assert sent(talk([text("x")], [call("c1")], [result("c1")]))["messages"][2]["content"] is None


def test_blocks_that_this_api_does_not_have_become_text_or_are_left_out() -> None:
    page = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    used = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    made = talk([text("x"), page], [used], [text("y")], [call("c1")], [result("c1", (page, PICTURE))])
    first, second, third, fourth, fifth = sent(made, OTHER)["messages"][1:]
    assert first["content"].startswith("x\n{")
    assert "words" in first["content"]
    assert (second["role"], second["content"]) == ("user", "y"), (
        "an answer without words or calls is left out"
    )
    assert third["tool_calls"]
    assert (fourth["role"], "words" in fourth["content"]) == ("tool", True)
    assert [part["type"] for part in fifth["content"]] == ["image_url"]


@every_row(
    ("base_url", "model", "limit", "role"),
    [
        (OPENAI, "gpt-6-astra", "max_completion_tokens", "developer"),
        (OPENAI, "gpt-4.1", "max_completion_tokens", "system"),
        ("https://x.openai.azure.com/openai/v1", "prod", "max_completion_tokens", "system"),
        (OTHER, "qwen3", "max_completion_tokens", "system"),
        ("http://127.0.0.1:11434/v1", "qwen3", "max_tokens", "system"),
        ("http://127.0.0.1:4000/v1", "openai/gpt-6-astra", "max_completion_tokens", "system"),
        ("http://10.0.0.2:8000/v1", "openai/gpt-oss-120b", "max_tokens", "system"),
        ("https://api.mistral.ai/v1", "devstral", "max_tokens", "system"),
        ("https://api.deepseek.com/v1", "deepseek-chat", "max_tokens", "system"),
    ],
)
def test_each_server_gets_the_limit_and_the_role_that_it_knows(base_url, model, limit, role) -> None:
    body = sent(talk([text("x")], shape=RequestShape(model, "s", ())), base_url)
    assert {name for name in body if name.startswith("max")} == {limit}
    assert body["messages"][0]["role"] == role


def test_only_openai_gets_the_fields_that_others_may_refuse() -> None:
    assert "prompt_cache_key" in sent(WHOLE)
    body = sent(WHOLE, OTHER)
    assert "prompt_cache_key" not in body
    assert not [tool for tool in body["tools"] if "strict" in tool["function"]]
    assert "stream_options" not in sent(WHOLE, "https://api.mistral.ai/v1")


@every_row(
    ("base_url", "fields"),
    [
        (OPENAI, {"reasoning_effort": "none"}),
        ("https://api.deepseek.com/v1", {"thinking": {"type": "disabled"}}),
        ("https://api.z.ai/api/paas/v4", {"thinking": {"type": "disabled"}}),
    ],
)
def test_thinking_can_be_switched_off(base_url, fields) -> None:
    body = sent(
        talk([text("x")], shape=RequestShape("m", "", (), thinking="disabled", effort="high")), base_url
    )
    assert {name: body[name] for name in body if name in {"thinking", "reasoning_effort"}} == fields


def test_thinking_that_is_left_to_the_model_is_not_asked_for() -> None:
    body = sent(talk([text("x")], shape=RequestShape("m", "", (), thinking="adaptive")))
    assert not {"thinking", "reasoning_effort"} & body.keys()


@every_row(
    ("choice", "meant"),
    [
        ({"type": "tool", "name": "Echo"}, {"type": "function", "function": {"name": "Echo"}}),
        ({"type": "any"}, "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
    ],
)
def test_the_choice_of_a_tool_is_translated(choice, meant) -> None:
    head = {**SHAPE.head().fields, "tool_choice": choice}
    shape = RequestShape("m", "", ())
    made = talk([text("x")], shape=shape)
    request = made.request_body()
    body = json.loads(
        b"".join(
            ChatDialect(OPENAI).body(type(request)(type(request.head).of_fields(head), (), request.loose))
        )
    )
    assert (body["tool_choice"], type_problems(body, CompletionCreateParamsStreaming)) == (meant, [])


# --- Ids of calls


@every_row(
    ("base_url", "call_id", "is_kept"),
    [
        (OPENAI, "toolu_0123456789abcdefghijkl", True),
        (OPENAI, "x" * 41, False),
        ("https://api.mistral.ai/v1", "aB3dE6gH9", True),
        ("https://api.mistral.ai/v1", "toolu_0123456789abcdefghijkl", False),
    ],
)
def test_an_id_that_the_server_refuses_is_replaced_in_the_call_and_in_its_result(
    base_url, call_id, is_kept
) -> None:
    _, _, asked, told = sent(talk([text("x")], [call(call_id)], [result(call_id)]), base_url)["messages"]
    new = asked["tool_calls"][0]["id"]
    assert told["tool_call_id"] == new
    assert (new == call_id) is is_kept
    assert len(new) == 9 if "mistral" in base_url else len(new) <= 40


# --- Reasoning


def thought(words: str, signature: str) -> Block:
    return {"type": "thinking", "thinking": words, "signature": signature}


def said_back(*blocks: Block, base_url: str = OTHER, model: str = "m") -> dict[str, Any]:
    made = talk([text("x")], blocks, [text("y")], shape=RequestShape(model, "", ()))
    message: dict[str, Any] = sent(made, base_url)["messages"][1]
    return message


def test_reasoning_goes_back_and_that_of_another_api_does_not() -> None:
    own = thought("Hm.", signature_of("reasoning_content"))
    assert said_back(own, text("a"))["reasoning_content"] == "Hm."
    others = ("c2ln", '{"encrypted_content":"x"}', '{"reasoning_details":5,"extra_content":7}', "[" * 100_000)
    other = said_back(*(thought("Hm.", signature) for signature in others), text("a"))
    assert other == {"role": "assistant", "content": "a"}


@every_row(
    ("base_url", "model"),
    [
        ("https://api.deepseek.com", "any"),
        ("https://api.moonshot.ai/v1", "any"),
        (OTHER, "deepseek/deepseek-v4-pro"),
        (OTHER, "Kimi-K2.5"),
    ],
)
def test_a_server_that_needs_reasoning_gets_an_empty_one_of_other_models(base_url, model) -> None:
    assert said_back(call("c1"), base_url=base_url, model=model)["reasoning_content"] == ""


@every_row(
    ("base_url", "model"),
    [("https://api.mistral.ai/v1", "any"), (OTHER, "mistralai/Devstral-Small-2-24B-Instruct-2512")],
)
def test_mistral_gets_an_answer_between_results_and_a_user_message(base_url, model) -> None:
    shape = RequestShape(model, "s", ())
    roles = [one["role"] for one in sent(WHOLE.under(shape), base_url)["messages"]]
    assert roles[2:8] == ["assistant", "tool", "tool", "assistant", "user", "assistant"]
    calls_alone = talk([text("x")], [call("c1")], [result("c1")], shape=shape)
    assert [one["role"] for one in sent(calls_alone, base_url)["messages"]][2:] == ["assistant", "tool"]


@every_row(
    ("base_url", "model"),
    [("https://api.deepseek.com", "deepseek-flash"), (OTHER, "deepseek/deepseek-v4-pro")],
)
def test_a_model_without_eyes_gets_a_text_for_each_image(base_url, model) -> None:
    body = sent(WHOLE.under(RequestShape(model, "s", ())), base_url)
    assert "image_url" not in json.dumps(body)
    first, seen = body["messages"][1], body["messages"][3]
    assert first["content"].splitlines() == ["Do it.", *2 * ["(an image, which this model cannot see)"]]
    assert seen["content"].splitlines() == ["here", "(an image, which this model cannot see)"]


def test_gemini_gets_its_signatures_back_and_a_mark_for_calls_of_other_models() -> None:
    gemini = "https://generativelanguage.googleapis.com/v1beta/openai"
    signature = {"google": {"thought_signature": "c2ln"}}
    kept = thought("", to_json({"extra_content": [signature, None]}).decode())
    own = said_back(call("c1"), call("c2"), kept, base_url=gemini)["tool_calls"]
    assert [one.get("extra_content") for one in own] == [signature, None]
    other = said_back(call("c1"), call("c2"), base_url=gemini)["tool_calls"]
    assert [one.get("extra_content", {}).get("google") for one in other] == [
        {"thought_signature": "skip_thought_signature_validator"},
        None,
    ]


# --- Bytes


def test_each_request_begins_with_the_bytes_of_the_one_before_it() -> None:
    dialect = ChatDialect(OPENAI)
    made = talk([text("x")])
    before = b"".join(dialect.body(made.request_body()))
    for turn in range(60):
        blocks = [call(f"c{turn}", text="y" * 20_000)]
        made = made.plus(assistant_message(blocks)).plus(user_message([result(f"c{turn}")]))  # type: ignore[arg-type]
        after = b"".join(dialect.body(made.request_body()))
        assert after.startswith(before.removesuffix(b"]}"))
        json.loads(after)
        before = after
    assert before == b"".join(ChatDialect(OPENAI).body(made.request_body())), "as another process sends it"


def test_older_messages_are_the_same_objects_in_later_requests() -> None:
    dialect = ChatDialect(OPENAI)
    made = talk([text("x")])
    for turn in range(60):
        blocks = [call(f"c{turn}", text="y" * 20_000)]
        made = made.plus(assistant_message(blocks)).plus(user_message([result(f"c{turn}")]))  # type: ignore[arg-type]
    _, *before, _ = dialect.body(made.request_body())
    _, *after, _ = dialect.body(made.plus(user_message("more")).request_body())
    assert len(before) > 5
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_each_model_at_a_server_has_its_own_messages() -> None:
    """The models of one client take turns, and each keeps the form that it needs."""
    dialect = ChatDialect(OTHER)
    for model in ("m", "kimi-k2", "m"):
        made = talk([text("x")], [call("c1")], [result("c1")], shape=RequestShape(model, "", ()))
        said = json.loads(b"".join(dialect.body(made.request_body())))["messages"][1]
        assert ("reasoning_content" in said) is (model == "kimi-k2")
