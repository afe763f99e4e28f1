"""Models of other vendors: which server is asked, with which key, and that nobody is billed who was not named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ralph.api.client import endpoint_of
from tests.rows import every_row
from tests.settings.settings_world import KEY, World

if TYPE_CHECKING:
    from ralph.conversation.target import Target
    from ralph.settings.tables import Settings

OPENAI_KEY = "sk-proj-0123456789"
KEYS = {
    "OPENAI_API_KEY": OPENAI_KEY,
    "GEMINI_API_KEY": "AIza0123456789",
    "DEEPSEEK_API_KEY": "sk-deep-0123456789",
}
OPENAI = ("openai-responses", "https://api.openai.com/v1", OPENAI_KEY)
ANTHROPIC = ("anthropic", "https://api.anthropic.com", KEY)
GOOGLE = ("openai-chat", "https://generativelanguage.googleapis.com/v1beta/openai", KEYS["GEMINI_API_KEY"])
DEEPSEEK = ("openai-chat", "https://api.deepseek.com/v1", KEYS["DEEPSEEK_API_KEY"])
OWN = "http://localhost:8080"


@pytest.fixture
def world(world: World) -> World:
    world.environment.update(KEYS)
    return world


def asked(target: Target) -> tuple[str, str, str | None]:
    """The API and the base URL of a target, and the key that is sent there."""
    return target.api, target.base_url, target.credentials[0].secret if target.credentials else None


def flags(line: str) -> dict[str, Any]:
    """The flags in a line such as `--api openai-chat --model m`."""
    words = line.split()
    named = {"--api": "model.api", "--model": "model.name", "--base-url": "model.base_url"} | {
        "--fallback-model": "model.fallback"
    }
    return {named[name]: value for name, value in zip(words[::2], words[1::2], strict=True)}


@every_row(
    ("line", "environment", "targets"),
    [
        ("", {}, [ANTHROPIC]),
        ("--model gpt-6-sol", {}, [OPENAI]),
        ("--model o3", {}, [OPENAI]),
        ("--model gemini-3.8-flash", {}, [GOOGLE]),
        ("--model deepseek-v4-pro", {}, [DEEPSEEK]),
        ("--model opus --fallback-model gpt-6-sol,gemini-3.8-flash", {}, [ANTHROPIC, OPENAI, GOOGLE]),
        ("--model gpt-6-sol --fallback-model opus", {}, [OPENAI, ANTHROPIC]),
        ("--model qwen3", {}, [ANTHROPIC]),
        ("--model openai/gpt-6-sol", {}, [ANTHROPIC]),
        ("", {"ANTHROPIC_MODEL": "gpt-6-sol"}, [OPENAI]),
        # An API decides for all models.
        ("--api openai-chat --model gpt-6-sol", {}, [("openai-chat", *OPENAI[1:])]),
        ("--api openai-chat --model qwen3 --fallback-model opus", {}, [("openai-chat", *OPENAI[1:])] * 2),
        ("--api openai-chat --model deepseek-v4-pro", {}, [DEEPSEEK]),
        ("--api anthropic --model gpt-6-sol", {}, [ANTHROPIC]),
        ("--model qwen3", {"RALPH_API": "openai-responses"}, [OPENAI]),
        # A base URL without an API is that of a server which speaks the Messages API.
        (f"--base-url {OWN} --model gpt-6-sol", {}, [("anthropic", OWN, KEY)]),
        ("--model gpt-6-sol", {"ANTHROPIC_BASE_URL": OWN}, [("anthropic", OWN, KEY)]),
        # Each API has a base URL of its own.
        (f"--api openai-chat --base-url {OWN} --model m", {}, [("openai-chat", f"{OWN}/v1", OPENAI_KEY)]),
        ("--api openai-responses --model m", {"ANTHROPIC_BASE_URL": OWN}, [OPENAI]),
        ("--api openai-chat --model m", {"OPENAI_BASE_URL": OWN}, [("openai-chat", f"{OWN}/v1", OPENAI_KEY)]),
        ("--model gpt-6-sol", {"OPENAI_BASE_URL": OWN}, [("openai-responses", f"{OWN}/v1", OPENAI_KEY)]),
        ("--model gemini-3.8-flash", {"OPENAI_BASE_URL": OWN}, [GOOGLE]),
        ("--model opus", {"OPENAI_BASE_URL": OWN}, [ANTHROPIC]),
        # A vendor's own server gets only that vendor's key.
        ("--api openai-chat --base-url https://api.deepseek.com --model m", {}, [DEEPSEEK]),
        (
            "--base-url https://api.deepseek.com/anthropic --model m",
            {},
            [("anthropic", "https://api.deepseek.com/anthropic", KEY)],
        ),
    ],
)
def test_the_vendor_that_the_user_names_is_asked(world, line, environment, targets) -> None:
    assert [asked(target) for target in world.load(flags(line), **environment).targets] == targets


def test_a_model_of_the_users_own_file_names_a_vendor_and_one_of_a_repository_does_not(world) -> None:
    model = 'model.name = "gpt-6-sol"'
    assert [asked(one) for one in world.load(user=model).targets] == [OPENAI]
    assert [asked(one) for one in world.load(local=model).targets] == [ANTHROPIC]
    assert [asked(one) for one in world.load({"model.api": "openai-responses"}, local=model).targets] == [
        OPENAI
    ]


@every_row(
    ("line", "user", "targets"),
    [
        ("--api openai-chat", "", [("openai-chat", *OPENAI[1:])]),
        ("", 'model.api = "openai-chat"\nmodel.name = "gpt-6-sol"', [("openai-chat", *OPENAI[1:])]),
        ("", 'model.name = "gpt-6-sol"', [OPENAI]),
        ("", 'model.name = "opus"', [ANTHROPIC]),
        ("--fallback-model deepseek-v4-pro", "", [ANTHROPIC, DEEPSEEK]),
    ],
)
def test_the_model_of_a_repository_moves_no_run_to_another_vendor(world, line, user, targets) -> None:
    settings = world.load(flags(line), user=user, local='model.name = "gemini-3.8-flash"')
    assert settings.targets[0].model == "gemini-3.8-flash"
    assert [asked(one) for one in settings.targets] == targets


def of_entry(world: World, keys: str, general: str = "", **environment: str) -> Target:
    text = f'{general}\n[[targets]]\nname = "t"\n{keys}'
    (target,) = world.load(user=text, **environment).targets
    return target


@every_row(
    ("keys", "general", "environment", "target"),
    [
        ('model = "gpt-6-sol"', "", {}, OPENAI),
        ('model = "m"', "", {}, ANTHROPIC),
        ('model = "m"\napi = "openai-chat"', "", {}, ("openai-chat", *OPENAI[1:])),
        ('model = "m"\napi = "openai-chat"', "", {"ANTHROPIC_BASE_URL": OWN}, ("openai-chat", *OPENAI[1:])),
        ('model = "m"\napi = "openai-chat"', f'model.base_url = "{OWN}"', {}, ("openai-chat", *OPENAI[1:])),
        ('model = "m"\napi = "anthropic"', f'model.base_url = "{OWN}"', {}, ("anthropic", OWN, KEY)),
        ('model = "m"\napi = "anthropic"', 'model.api = "openai-chat"', {}, ANTHROPIC),
        (
            'model = "m"',
            f'model.base_url = "{OWN}"\nmodel.api = "openai-chat"',
            {},
            ("openai-chat", f"{OWN}/v1", OPENAI_KEY),
        ),
        # An entry's own server gets no key of the environment, unless it is the vendor's own.
        (f'model = "m"\napi = "openai-chat"\nbase_url = "{OWN}"', "", {}, ("openai-chat", f"{OWN}/v1", None)),
        ('model = "m"\napi = "openai-chat"\nbase_url = "https://api.deepseek.com"', "", {}, DEEPSEEK),
        (
            'model = "m"\nbase_url = "https://api.deepseek.com/anthropic"',
            "",
            {},
            ("anthropic", "https://api.deepseek.com/anthropic", None),
        ),
    ],
)
def test_a_target_is_at_the_server_of_its_api(world, keys, general, environment, target) -> None:
    assert asked(of_entry(world, keys, general, **environment)) == target


@every_row(
    ("written", "normal"),
    [
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1"),
        ("https://x.openai.azure.com/openai/v1/", "https://x.openai.azure.com/openai/v1"),
        ("https://openrouter.ai/api/v1/chat/completions", "https://openrouter.ai/api/v1"),
        ("https://models.github.ai/inference", "https://models.github.ai/inference"),
        ("http://LOCALHOST:11434", "http://localhost:11434/v1"),
        ("http://localhost:11434/v1/responses", "http://localhost:11434/v1"),
    ],
)
def test_a_base_url_is_written_as_the_servers_own_clients_take_it(world, written, normal) -> None:
    settings = world.load({"model.api": "openai-chat", "model.base_url": written, "model.name": "m"})
    assert settings.targets[0].base_url == settings.model.base_url == normal


@every_row("keys", ['api_key_env = "OTHER"', 'api_key_command = "echo x"'])
def test_the_key_is_a_bearer_token(world, keys) -> None:
    target = of_entry(world, f'model = "m"\napi = "openai-chat"\n{keys}', OTHER="sk-other-0123")
    assert {name for name, _ in target.credentials[0].headers} == {"authorization"}


@every_row(
    ("base_url", "names"),
    [
        ("https://x.openai.azure.com/openai/v1", {"authorization", "api-key"}),
        ("https://api.groq.com/openai/v1", {"authorization"}),
    ],
)
def test_azure_gets_the_key_in_a_header_of_its_own_too(world, base_url, names) -> None:
    (target,) = world.load(flags(f"--api openai-chat --model m --base-url {base_url}")).targets
    sent = dict(endpoint_of(target, 0).headers.plain)
    assert sent.keys() == names
    assert {value.removeprefix("Bearer ") for value in sent.values()} == {OPENAI_KEY}


def test_the_headers_and_betas_for_anthropic_go_nowhere_else(world) -> None:
    line = flags("--model opus --fallback-model gpt-6-sol") | {"model.betas": ("b-1",)}
    first, second = world.load(line, ANTHROPIC_CUSTOM_HEADERS="X-A: 1").targets
    assert [name for name, _ in first.headers.plain] == ["X-A", "anthropic-beta"]
    assert second.headers.plain == ()


def origins(settings: Settings) -> tuple[str, str]:
    return settings.origins["model.api"], settings.origins["model.base_url"]


def test_the_origin_of_the_server_is_kept(world) -> None:
    assert origins(world.load()) == ("default", "default")
    assert origins(world.load(flags("--model gpt-6-sol"))) == ("vendor of gpt-6-sol", "vendor of gpt-6-sol")
    line = flags("--api openai-chat --model m")
    assert origins(world.load(line, OPENAI_BASE_URL=OWN)) == ("flag --api", "OPENAI_BASE_URL")
    assert origins(world.load(line, ANTHROPIC_BASE_URL=OWN)) == ("flag --api", "default")


# --- Errors


@every_row(
    ("line", "environment", "says", "is_usage"),
    [
        (
            "--api openai",
            {},
            "--api must be one of anthropic, openai-chat, openai-responses, not 'openai'",
            True,
        ),
        (
            "",
            {"RALPH_API": "x"},
            "RALPH_API must be one of anthropic, openai-chat, openai-responses, not 'x'",
            False,
        ),
        ("--api openai-chat", {}, "--api needs a model of that server: name it with --model", True),
        (
            "",
            {"RALPH_API": "openai-chat"},
            "RALPH_API needs a model of that server: name it with --model",
            False,
        ),
        ("--model gpt-6-sol", {"OPENAI_BASE_URL": "ftp://x"}, "OPENAI_BASE_URL must begin with http", False),
        (
            "--model gpt-6-sol",
            {"OPENAI_API_KEY": ""},
            "no API key: set OPENAI_API_KEY, point --base-url",
            False,
        ),
        ("--model kimi-k3", {}, "no API key: set MOONSHOT_API_KEY, point --base-url", False),
    ],
)
def test_what_is_wrong_is_said_in_one_line(world, line, environment, says, is_usage) -> None:
    error = world.error(flags(line), **environment)
    assert says in str(error)
    assert error.from_flag is is_usage


@every_row(
    ("environment", "offered"),
    [
        (
            {"OPENAI_API_KEY": OPENAI_KEY},
            "ask OpenAI, for which OPENAI_API_KEY is set, by `--model gpt-6.1-sol`",
        ),
        ({"XAI_API_KEY": "xai-0123456789"}, "ask xAI, for which XAI_API_KEY is set, by `--model grok-4.6`"),
    ],
)
def test_where_only_another_vendors_key_is_set_that_vendor_is_offered_and_not_asked(
    world, environment, offered
) -> None:
    world.environment = {name: text for name, text in world.environment.items() if name == "HOME"}
    error = world.error(**environment)
    assert str(error).startswith("no API key: set ANTHROPIC_API_KEY, ")
    assert offered in str(error)
    assert not error.from_flag
    assert "ask " not in str(world.error())
