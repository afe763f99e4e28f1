"""Variables of an environment for Claude Code must not mislead ralph: names of models, cloud providers and
logins.
"""

from __future__ import annotations

import pytest

from ralph.settings.files import ALIAS_VARIABLES, aims_requests
from ralph.values.servers import ALIASES
from tests.fakes import roster_of
from tests.rows import every_row

OPUS, SONNET, HAIKU = (f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("OPUS", "SONNET", "HAIKU"))


UNDERSTOOD = [
    ("default", {}, "claude-sonnet-5-5", None),
    ("sonnet[1m]", {}, "claude-sonnet-5-5", None),
    ("opus[1m]", {}, "claude-opus-5-5", None),
    ("claude-opus-4-6[1m]", {}, "claude-opus-4-6", None),
    ("claude-opus-4-6-20260205[1m]", {}, "claude-opus-4-6-20260205", None),
    ("default[1m]", {SONNET: "gateway-sonnet"}, "gateway-sonnet", 1_000_000),
    ("default", {SONNET: "gateway-sonnet"}, "gateway-sonnet", None),
    ("opus", {OPUS: "gateway-opus"}, "gateway-opus", None),
    ("opus", {OPUS: "gateway-opus[1m]"}, "gateway-opus", 1_000_000),
    ("haiku", {HAIKU: "opus", OPUS: "gateway-opus"}, "claude-opus-5-5", None),
    ("opus", {SONNET: "gateway-sonnet", HAIKU: " "}, "claude-opus-5-5", None),
    ("qwen3[1m]", {}, "qwen3", 1_000_000),
    ("Opus", {OPUS: "gateway-opus"}, "gateway-opus", None),
    ("SONNET[1M]", {}, "claude-sonnet-5-5", None),
    ("Default", {}, "claude-sonnet-5-5", None),
    ("Qwen3", {}, "Qwen3", None),
    ("haiku", {}, "claude-haiku-5-5", None),
    ("claude-opus-5-5", {OPUS: "gateway-opus"}, "claude-opus-5-5", None),
]


@every_row(("name", "environment", "model", "window"), UNDERSTOOD)
def test_names_of_models_become_ids_wherever_they_are_given(world, name, environment, model, window) -> None:
    (target,) = world.load({"model.name": name}, **environment).targets
    assert (target.name, target.model, target.context_window) == (model, model, window)
    for settings in (
        world.load(ANTHROPIC_MODEL=name, **environment),
        world.load(local=f'model.name = "{name}"', **environment),
    ):
        assert (settings.model.name, settings.targets[0].model) == (model, model)
    _, fallback = world.load({"model.name": "other", "model.fallback": name}, **environment).targets
    assert (fallback.name, fallback.model, fallback.context_window) == (name, model, window)
    (target,) = world.load(user=f'[[targets]]\nname = "t"\nmodel = "{name}"', **environment).targets
    assert (target.model, target.context_window) == (model, window)


REFUSED = [
    ("opusplan", "opusplan"),
    ("OpusPlan[1m]", "opusplan"),
    ("[1m]", "before [1m]"),
    ("claude-haiku-4-5[1m]", "200,000 tokens"),
]


@every_row(("name", "says"), REFUSED)
def test_names_that_ralph_cannot_keep_are_refused_wherever_they_are_given(world, name, says) -> None:
    typed = world.error({"model.name": name})
    assert typed.from_flag
    assert str(typed).startswith("--model must ")
    spare = world.error({"model.fallback": name})
    assert spare.from_flag
    assert str(spare).startswith("--fallback-model must ")
    places = {
        "ANTHROPIC_MODEL must ": world.error(ANTHROPIC_MODEL=name),
        f"{OPUS} must ": world.error(**{OPUS: name}),
        f"{world.user_file}: model.name must ": world.error(user=f'model.name = "{name}"'),
        f"{world.user_file}: targets 't': model must ": world.error(
            user=f'[[targets]]\nname = "t"\nmodel = "{name}"'
        ),
    }
    for begins, error in places.items():
        assert not error.from_flag
        assert str(error).startswith(begins), begins
    for error in (typed, spare, *places.values()):
        assert says in str(error)


def test_the_variable_that_chose_the_model_is_its_origin(world) -> None:
    assert world.load(**{SONNET: "mine"}).origins["model.name"] == SONNET
    assert world.load(**{OPUS: "mine"}).origins["model.name"] == "default"
    assert world.load({"model.name": "haiku"}, **{SONNET: "mine"}).origins["model.name"] == "flag --model"


def test_another_server_has_the_usual_models(world) -> None:
    """In the environment, `opus` is a name that only the environment's own server knows."""
    toml = '[[targets]]\nname = "t"\nmodel = "opus"\nbase_url = "http://localhost:1"'
    (target,) = world.load(user=toml, **{OPUS: "gateway-opus"}).targets
    assert target.model == "claude-opus-5-5"


def test_a_variable_that_cannot_be_a_name_is_an_error(world) -> None:
    assert str(world.error(**{HAIKU: "a\x1bb"})) == f"{HAIKU} must be a text of printable characters"


def test_each_alias_has_its_variable() -> None:
    assert set(ALIAS_VARIABLES) == set(ALIASES)


def test_a_driver_s_request_is_understood_and_refused_alike(world) -> None:
    aliases = world.load(**{OPUS: "gateway-opus[1m]"}).aliases
    asked = roster_of("first", can_grow=True, aliases=aliases)
    assert asked.find("opus").model == "gateway-opus"
    assert asked.find("opus").context_window == 1_000_000
    assert asked.find("sonnet[1m]").model == "claude-sonnet-5-5"
    with pytest.raises(ValueError, match=r"^the model must name one model: 'opusplan'"):
        asked.find("opusplan")


# --- Other clouds


@every_row("value", ["1", "true", " YES "])
@every_row("variable", ["CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"])
def test_an_environment_for_another_cloud_gets_no_request(world, variable, value) -> None:
    error = world.error(**{variable: value, "ANTHROPIC_BASE_URL": "https://gateway.example"})
    assert not error.from_flag
    assert variable in str(error)
    assert "it would send requests to https://gateway.example instead" in str(error)
    assert error.so_far is not None


@every_row("value", ["0", "false", "", "no"])
def test_a_cloud_that_is_switched_off_is_none(world, value) -> None:
    assert world.load(CLAUDE_CODE_USE_BEDROCK=value).targets


def test_who_types_a_base_url_or_sends_no_key_means_it(world) -> None:
    cloud = {"CLAUDE_CODE_USE_VERTEX": "1"}
    assert world.load({"model.base_url": "https://gateway.example"}, **cloud).targets
    local = {"ANTHROPIC_API_KEY": "", "ANTHROPIC_BASE_URL": "http://localhost:8080"}
    assert world.load(**cloud, **local).targets


def test_a_missing_key_names_the_login_that_is_there(world) -> None:
    message = str(world.error(ANTHROPIC_API_KEY="", CLAUDE_CODE_OAUTH_TOKEN="sk-ant-oat-canary"))
    assert "CLAUDE_CODE_OAUTH_TOKEN" in message
    assert "canary" not in message
    assert "set ANTHROPIC_API_KEY" in message
    assert "CLAUDE_CODE" not in str(world.error(ANTHROPIC_API_KEY=""))
    assert "Bedrock" in str(world.error(ANTHROPIC_API_KEY="", CLAUDE_CODE_USE_BEDROCK="1"))


@every_row(
    ("variable", "aims"),
    [
        ("ANTHROPIC_BASE_URL", True),
        ("OPENAI_API_KEY", True),
        ("GEMINI_API_KEY", True),
        ("ZAI_API_KEY", True),
        ("https_proxy", True),
        ("STRIPE_API_KEY", False),
        ("DATABASE_URL", False),
    ],
)
def test_the_variables_that_decide_who_is_asked_and_with_which_key(variable: str, *, aims: bool) -> None:
    assert aims_requests(variable) is aims
