"""`[[targets]]` and `--fallback-model`: who is asked, in which order, and which key goes to which server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ralph.conversation.target import THINKING_CHOICES, Target
from ralph.machine.waiter import InboxWaiter, SystemClock
from ralph.run.parts import RunContext
from ralph.settings.merge import load_settings
from ralph.values.redaction import Redactor
from ralph.values.servers import Price
from tests.fakes import RecordingEvents
from tests.rows import every_row
from tests.settings.settings_world import KEY, World

if TYPE_CHECKING:
    from ralph.settings.tables import Settings

AB = """
[[targets]]
name = "a"
model = "opus"
[[targets]]
name = "b"
model = "qwen3:8b"
base_url = "http://localhost:8080/v1"
[[targets]]
name = "c"
model = "haiku"
"""
SECRET = "pa55word-0123456789"


def one(world: World, keys: str, **environment: str) -> Target:
    """The target that has these keys besides a name and a model."""
    (target,) = world.load(user=f'[[targets]]\nname = "t"\nmodel = "m"\n{keys}', **environment).targets
    return target


def refusal(world: World, keys: str, **environment: str) -> str:
    error = world.error(user=f'[[targets]]\nname = "t"\nmodel = "m"\n{keys}', **environment)
    assert not error.from_flag
    assert SECRET not in str(error)
    return str(error)


def names(settings: Settings) -> list[str]:
    return [target.name for target in settings.targets]


def keys_of(target: Target) -> list[tuple[str, str, str]]:
    return [(key.header, key.value.plain, key.source) for key in target.credentials]


# --- Without a list


def test_without_a_list_the_model_is_the_only_target(world: World) -> None:
    settings = world.load(
        {"model.name": "opus", "model.effort": "low", "model.max_tokens": 9},
        ANTHROPIC_CUSTOM_HEADERS="X-Team: blue",
    )
    (target,) = settings.targets
    assert target.name == target.model == "claude-opus-5-5"
    assert target.base_url == "https://api.anthropic.com"
    assert keys_of(target) == [("x-api-key", KEY, "ANTHROPIC_API_KEY")]
    assert target.headers.plain == (("X-Team", "blue"),)
    assert (target.effort, target.max_tokens) == ("low", 9)
    assert settings.origins["targets"] == "default"


@every_row(
    ("text", "expected"),
    [
        ("opus", ["claude-sonnet-5-5", "opus"]),
        ("opus,haiku", ["claude-sonnet-5-5", "opus", "haiku"]),
        (" haiku , opus ,", ["claude-sonnet-5-5", "haiku", "opus"]),
        ("opus,claude-opus-5-5,opus", ["claude-sonnet-5-5", "opus"]),
        ("sonnet", ["claude-sonnet-5-5"]),
        ("claude-sonnet-5-5,opus", ["claude-sonnet-5-5", "opus"]),
    ],
)
def test_fallback_models_follow_the_first_and_each_once(world: World, text: str, expected: list[str]) -> None:
    settings = world.load({"model.fallback": text})
    assert names(settings) == expected
    assert settings.targets[-1].credentials == settings.targets[0].credentials


def test_a_fallback_model_shares_all_but_the_model(world: World) -> None:
    first, second = world.load(
        {"model.fallback": "opus", "model.base_url": "http://localhost:1"},
        ANTHROPIC_CUSTOM_HEADERS="X-Team: blue",
    ).targets
    assert second.model == "claude-opus-5-5"
    assert (
        (second.base_url, second.headers.plain)
        == (first.base_url, first.headers.plain)
        == ("http://localhost:1", (("X-Team", "blue"),))
    )


@every_row("text", ["", " ", ",", " , "])
def test_fallback_model_without_a_name_is_a_usage_error(world: World, text: str) -> None:
    error = world.error({"model.fallback": text})
    assert error.from_flag
    assert str(error).startswith("--fallback-model must ")


# --- What an entry may hold


def test_an_entry_says_everything(world: World) -> None:
    target = one(
        world,
        """
        base_url = "https://gw.example/v1/"
        api_key_env = ["ONE", "TWO"]
        headers = { X-Team = "blue" }
        max_tokens = 1
        context_window = 1
        thinking = "none"
        price = { input = 1, output = 2.5, cache_write = 0, cache_read = 0.1 }
        """,
        ONE="first-key",
        TWO="second-key",
    )
    assert (target.name, target.model, target.base_url) == ("t", "m", "https://gw.example")
    assert keys_of(target) == [("x-api-key", "first-key", "ONE"), ("x-api-key", "second-key", "TWO")]
    assert target.headers.plain == (("X-Team", "blue"),)
    assert (target.max_tokens, target.context_window, target.thinking) == (1, 1, "none")
    assert target.price == Price(1, 2.5, 0, 0, 0.1), (
        "the 1-hour cache price, which is never paid, is the other"
    )


@every_row("choice", THINKING_CHOICES)
def test_every_way_of_thinking_can_be_set(world: World, choice: str) -> None:
    assert one(world, f'thinking = "{choice}"').thinking == choice


ALL_KEYS = "name, model, api, base_url, api_key_env, api_key_command, api_key_ttl_s, headers, max_tokens, context_window, thinking, price"
PRICE = "input = 1, output = 1, cache_write = 1"


@every_row(
    ("keys", "says"),
    [
        ("modell = 'x'", f"has the unknown key 'modell'; a target holds {ALL_KEYS}"),
        ("effort = 'low'", f"has the unknown key 'effort'; a target holds {ALL_KEYS}"),
        ("max_tokens = 0", "max_tokens must be a whole number of at least 1, not 0"),
        ("max_tokens = 1.5", "max_tokens must be a whole number of at least 1, not 1.5"),
        ("context_window = 0", "context_window must be a whole number of at least 1, not 0"),
        ("context_window = true", "context_window must be a whole number of at least 1, not True"),
        ("thinking = 'hard'", "thinking must be one of adaptive, between_tools, disabled, none, not 'hard'"),
        (f"base_url = 'https://me:{SECRET}@h'", "base_url must not contain a user or password"),
        (f"base_url = '{SECRET}'", "base_url must begin with http:// or https://"),
        (f"api_key_env = '{SECRET}'", "api_key_env must contain names of variables, without values"),
        (f"api_key_env = [['{SECRET}']]", "api_key_env must be the name of a variable, or a list"),
        (f"api_key_command = ['{SECRET}']", "api_key_command must be a shell command that prints the key"),
        ("api_key_command = ' '", "api_key_command must be a shell command that prints the key"),
        ("api_key_command = 'x'\napi_key_ttl_s = -1", "api_key_ttl_s must be a number of seconds"),
        (
            "api_key_command = 'x'\napi_key_env = 'ONE'",
            "api_key_env and api_key_command cannot be used together",
        ),
        ("api_key_env = []", "api_key_env must be the name of a variable, or a list"),
        ("api_key_env = 5", "api_key_env must be the name of a variable, or a list"),
        ("api_key_env = ''", "api_key_env must contain names of variables, without values"),
        (f"headers = '{SECRET}'", 'headers must be a table of header = "value"'),
        (f"headers = {{ X-A = ['{SECRET}'] }}", 'headers must be a table of header = "value"'),
        (
            f"headers = {{ 'X A' = '{SECRET}' }}",
            "headers must contain names that HTTP allows; entry 1 has none",
        ),
        (
            f"headers = {{ X-A = '{SECRET}\\u2026' }}".replace("'", '"'),
            "headers must contain only characters",
        ),
        (f'headers = {{ X-A = "{SECRET}\\nX-B: 1" }}', "headers must not contain line breaks"),
        (f"headers = {{ Content-Length = '{SECRET}' }}", "headers must not contain Content-Length"),
        ("price = 3", "price must be a table of input, output, cache_write, cache_read"),
        (f"price = {{ {PRICE} }}", "price needs input, output, cache_write, cache_read; missing: cache_read"),
        (f"price = {{ {PRICE}, cash = 1 }}", "price has the unknown key 'cash'; a price holds input, output"),
        (f"price = {{ {PRICE}, cache_read = -0.1 }}", "price cache_read must be a number of dollars"),
        (f"price = {{ {PRICE}, cache_read = nan }}", "price cache_read must be a number of dollars"),
        (f"price = {{ {PRICE}, cache_read = inf }}", "price cache_read must be a number of dollars"),
        (f"price = {{ {PRICE}, cache_read = 1000001 }}", "price cache_read must be a number of dollars"),
        (f"price = {{ {PRICE}, cache_read = false }}", "price cache_read must be a number of dollars"),
        (f"price = {{ {PRICE}, cache_read = '1' }}", "not '1'"),
    ],
)
def test_what_an_entry_may_not_hold_is_named(world: World, keys: str, says: str) -> None:
    message = refusal(world, keys)
    assert message.startswith(f"{world.user_file}: targets ")
    assert says in message


@every_row("cost", ["0", "0.0", "1000000"])
def test_a_price_has_bounds(world: World, cost: str) -> None:
    target = one(world, f"price = {{ {PRICE}, cache_read = {cost} }}")
    assert target.price is not None
    assert target.price.cache_read == float(cost)


@every_row(
    ("toml", "says"),
    [
        ("targets = 3", "targets must be a list of tables"),
        ("[targets]\nname = 'a'", "targets must be a list of tables"),
        ("targets = ['a']", "targets must be a list of tables"),
        ("targets = []", "targets must be a list of tables"),
        ("[[targets]]\nmodel = 'm'", "targets entry 1: needs name, model; missing: name"),
        ("[[targets]]\nname = 'a'", "targets 'a': needs name, model; missing: model"),
        ("[[targets]]\nname = 5\nmodel = 'm'", "targets entry 1: name must be a text"),
        ("[[targets]]\nname = ' '\nmodel = 'm'", "targets entry 1: name must not be empty"),
        ('[[targets]]\nname = "a\\u001Bb"\nmodel = "m"', "targets entry 1: name must be a text"),
        ("[[targets]]\nname = 'a,b'\nmodel = 'm'", "targets entry 1: name must not contain a comma"),
        ("[[targets]]\nname = 'a'\nmodel = 7", "targets 'a': model must be a text"),
        (AB + "[[targets]]\nmodel = 'm'", "targets entry 4: needs name, model; missing: name"),
        (AB + "[[targets]]\nname = 'b'\nmodel = 'm'", "targets entries 2 and 4 have the same name 'b'"),
    ],
)
def test_a_list_that_is_wrong_is_named_with_its_entry(world: World, toml: str, says: str) -> None:
    assert str(world.error(user=toml)).startswith(f"{world.user_file}: {says}")


def test_the_list_of_a_stronger_file_replaces_the_other(world: World) -> None:
    mine = '[[targets]]\nname = "mine"\nmodel = "m"'
    settings = world.load(user=AB, named=mine)
    assert names(settings) == ["mine"]
    assert settings.origins["targets"] == str(world.named_file)


def test_effort_and_largest_answer_of_the_model_count_where_a_target_has_none(world: World) -> None:
    toml = 'model.effort = "low"\nmodel.max_tokens = 9\n' + AB + "max_tokens = 5"
    targets = world.load(user=toml).targets
    assert [(target.effort, target.max_tokens) for target in targets] == [("low", 9), ("low", 9), ("low", 5)]


# --- Which key goes where

CUSTOM = "X-Team: blue\nX-Auth: pa55word-header"
GATEWAY = 'base_url = "https://gw.example"'


@every_row(
    ("keys", "sources", "headers"),
    [
        ("", ["ANTHROPIC_API_KEY"], ["X-Team", "X-Auth"]),
        ("headers = { X-Own = '1' }", ["ANTHROPIC_API_KEY"], ["X-Team", "X-Auth", "X-Own"]),
        ("headers = { x-team = 'red' }", ["ANTHROPIC_API_KEY"], ["X-Auth", "x-team"]),
        ("api_key_env = 'OWN'", ["OWN"], []),
        (GATEWAY, [], []),
        (GATEWAY + "\nheaders = { X-Own = '1' }", [], ["X-Own"]),
        (GATEWAY + "\napi_key_env = 'OWN'", ["OWN"], []),
        (GATEWAY + "\napi_key_env = 'ANTHROPIC_API_KEY'", ["ANTHROPIC_API_KEY"], []),
        ("base_url = 'https://api.anthropic.com/v1'", ["ANTHROPIC_API_KEY"], []),
        ("base_url = 'https://api.anthropic.com.evil.example'", [], []),
    ],
)
def test_a_key_continuesly_where_it_was_meant_for(
    world: World, keys: str, sources: list[str], headers: list[str]
) -> None:
    target = one(world, keys, ANTHROPIC_CUSTOM_HEADERS=CUSTOM, OWN="own-key")
    assert [key.source for key in target.credentials] == sources
    assert [name for name, _ in target.headers.plain] == headers


@every_row("source", ["flag", "variable", "file"])
def test_a_target_without_a_base_url_goes_where_the_model_does(world: World, source: str) -> None:
    url = "http://localhost:9"
    toml = (f'model.base_url = "{url}"\n' if source == "file" else "") + AB
    flags: dict[str, object] = {"model.base_url": url} if source == "flag" else {}
    settings = world.load(flags, user=toml, ANTHROPIC_BASE_URL=url if source == "variable" else "")
    assert [target.base_url for target in settings.targets] == [url, "http://localhost:8080", url]


@every_row(
    ("variable", "header", "value"),
    [
        ("ANTHROPIC_AUTH_TOKEN", "authorization", "Bearer the-key"),
        ("GATEWAY_AUTH_TOKEN", "authorization", "Bearer the-key"),
        ("GATEWAY_TOKEN", "x-api-key", "the-key"),
        ("AUTH_TOKEN", "x-api-key", "the-key"),
        ("GATEWAY_AUTH_TOKEN_2", "x-api-key", "the-key"),
    ],
)
def test_the_name_of_the_variable_says_how_its_key_is_sent(
    world: World, variable: str, header: str, value: str
) -> None:
    target = one(world, f"api_key_env = '{variable}'", **{variable: " the-key\n"})
    assert keys_of(target) == [(header, value, variable)]


def test_two_variables_with_one_key_are_one_key(world: World) -> None:
    target = one(world, "api_key_env = ['ONE', 'TWO', 'THREE', 'ONE']", ONE="k1", TWO="k2", THREE="k1 ")
    assert [key.source for key in target.credentials] == ["ONE", "TWO"]


@every_row("environment", [{}, {"TWO": ""}, {"TWO": " \n"}])
def test_a_variable_without_a_key_is_named_with_its_target(world: World, environment: dict[str, str]) -> None:
    message = refusal(world, "api_key_env = ['ONE', 'TWO']", ONE="key", **environment)
    assert message == f"{world.user_file}: targets 't': api_key_env names TWO, which is not set or empty"


@pytest.mark.parametrize("value", [f"{SECRET}\nX-Evil: 1", f"{SECRET}\u2026"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(world: World, value: str) -> None:
    message = refusal(world, "api_key_env = 'ONE'", ONE=value)
    assert message.startswith(f"{world.user_file}: targets 't': ONE must ")


# --- Which target first


@every_row(
    ("flags", "expected"),
    [
        ({}, ["a", "b", "c"]),
        ({"model.name": "a"}, ["a", "b", "c"]),
        ({"model.name": " c "}, ["c", "a", "b"]),
        ({"model.fallback": "c"}, ["a", "c"]),
        ({"model.fallback": "c,b"}, ["a", "c", "b"]),
        ({"model.fallback": "c,a,c"}, ["a", "c"]),
        ({"model.fallback": "a"}, ["a"]),
        ({"model.name": "b", "model.fallback": "c, a"}, ["b", "c", "a"]),
    ],
)
def test_flags_choose_among_the_targets(world: World, flags: dict[str, object], expected: list[str]) -> None:
    assert names(world.load(flags, user=AB)) == expected


@every_row(("key", "flag"), [("model.name", "--model"), ("model.fallback", "--fallback-model")])
@every_row("name", ["opus", "claude-opus-5-5", "A", "x"])
def test_a_name_that_no_target_has_is_a_usage_error_that_lists_them(
    world: World, key: str, flag: str, name: str
) -> None:
    error = world.error({key: name}, user=AB)
    assert error.from_flag
    assert str(error) == f"{flag} must name a target (a, b, c), not {name!r}"


def test_a_target_may_be_called_what_is_an_alias_elsewhere(world: World) -> None:
    toml = AB + '[[targets]]\nname = "opus"\nmodel = "other"'
    (first, *_) = world.load({"model.name": "opus"}, user=toml).targets
    assert (first.name, first.model) == ("opus", "other")


def test_the_model_of_environment_and_file_chooses_no_target(world: World) -> None:
    settings = world.load(user='model.name = "c"\n' + AB, ANTHROPIC_MODEL="b")
    assert names(settings) == ["a", "b", "c"]


def test_a_target_that_is_not_asked_needs_no_key(world: World) -> None:
    toml = AB + "api_key_env = 'UNSET'"
    assert "UNSET" in str(world.error(user=toml))
    assert names(world.load({"model.fallback": "b"}, user=toml)) == ["a", "b"]


# --- Keys that are missing, or go in the open


def test_without_a_key_the_default_endpoint_is_refused_by_the_name_of_its_target(world: World) -> None:
    message = str(world.error(user=AB.replace('"a"', '"first one"'), ANTHROPIC_API_KEY=""))
    assert message.startswith("no API key for target 'first one': ")
    assert "no API key: " in str(world.error({"model.name": "m"}, user="", ANTHROPIC_API_KEY=""))


@every_row(
    "keys", ["base_url = 'http://localhost:1'", GATEWAY, "headers = { Authorization = 'Bearer pa55word' }"]
)
def test_a_target_that_needs_no_key_of_the_environment_does_without(world: World, keys: str) -> None:
    assert one(world, keys, ANTHROPIC_API_KEY="").credentials == ()


@every_row(
    ("keys", "warns"),
    [
        ("base_url = 'http://gw.example'\napi_key_env = 'ONE'", True),
        ("base_url = 'http://gw.example'\nheaders = { x-api-key = 'pa55word' }", True),
        ("base_url = 'http://gw.example'", False),
        ("base_url = 'http://gw.example'\nheaders = { X-Team = 'blue' }", False),
        ("base_url = 'https://gw.example'\napi_key_env = 'ONE'", False),
        ("base_url = 'http://127.0.0.1:1'\napi_key_env = 'ONE'", False),
        ("base_url = 'http://api.anthropic.com'", True),
    ],
)
def test_a_key_in_the_open_warns_for_every_target(world: World, keys: str, warns: bool) -> None:
    toml = AB + f"[[targets]]\nname = 'd'\nmodel = 'm'\n{keys}\n[[targets]]\nname = 'e'\nmodel = 'm'\n{keys}"
    warnings = world.load(user=toml, ONE="own-key").warnings
    assert len(warnings) == warns, "one for a host"
    assert all("unencrypted" in warning for warning in warnings)


def test_a_key_in_the_open_names_the_proxy_that_gets_it(world: World) -> None:
    toml = AB + "[[targets]]\nname = 'd'\nmodel = 'm'\nbase_url = 'http://gw.example'\napi_key_env = 'ONE'\n"
    proxies = {"HTTP_PROXY": "http://me:secret@p.example:3128", "ONE": "own-key"}
    (warning,) = world.load(user=toml, **proxies).warnings
    assert warning.endswith("; the proxy http://p.example:3128 (HTTP_PROXY) gets it too")
    (warning,) = world.load(user=toml, **proxies, NO_PROXY="*.example").warnings
    assert "proxy" not in warning


# --- Secrets

SECRETIVE = """
[[targets]]
name = "a"
model = "m"
base_url = "https://one.example"
api_key_env = ["PLAIN_NAME", "OTHER_AUTH_TOKEN"]
headers = { X-Team = "blue-team", X-Auth = "Basic pa55word-of-a" }
[[targets]]
name = "b"
model = "m"
base_url = "https://two.example"
api_key_env = "GATEWAY"
"""
KEYS_IN_ENVIRONMENT = {
    "PLAIN_NAME": "plain-key-0123",
    "OTHER_AUTH_TOKEN": "token-0123456",
    "GATEWAY": "gateway-key-0123",
}
ALL_SECRETS = {KEY, *KEYS_IN_ENVIRONMENT.values(), *("Basic pa55word-of-a", "pa55word-of-a")}


def tools_environment(world: World, settings: Settings) -> dict[str, str]:
    clock = SystemClock()
    environment = {**world.environment, **KEYS_IN_ENVIRONMENT, "COLUMNS": "80"}
    waiter, events = InboxWaiter(clock), RecordingEvents()
    return RunContext(settings, environment, world.cwd, waiter, clock, events, Redactor()).tools_environment


@pytest.mark.parametrize("flags", [{}, {"model.fallback": "a"}], ids=["asked", "not asked"])
def test_every_key_and_secret_header_is_a_secret_asked_or_not(world: World, flags: dict[str, object]) -> None:
    settings = world.load(flags, user=SECRETIVE, **KEYS_IN_ENVIRONMENT)
    assert set(settings.secrets) == ALL_SECRETS
    assert len(settings.secrets) == len(ALL_SECRETS)
    assert settings.key_variables == KEYS_IN_ENVIRONMENT.keys()
    assert not [secret for secret in ALL_SECRETS if secret in repr(settings)]


def test_keys_of_a_list_that_another_file_replaced_stay_secret(world: World) -> None:
    settings = world.load(user=SECRETIVE, named='[[targets]]\nname = "x"\nmodel = "m"', **KEYS_IN_ENVIRONMENT)
    assert set(settings.secrets) == ALL_SECRETS
    assert settings.key_variables == KEYS_IN_ENVIRONMENT.keys()
    assert tools_environment(world, settings).keys() == {"HOME", "COLUMNS"}


def test_tools_do_not_see_variables_that_hold_a_key_whatever_they_are_called(world: World) -> None:
    settings = world.load(user=SECRETIVE, **KEYS_IN_ENVIRONMENT)
    assert tools_environment(world, settings).keys() == {"HOME", "COLUMNS"}


# --- Trust


@every_row(
    ("keys", "whole_name", "place"),
    [
        ("base_url = 'https://evil.example'", "targets.base_url", "--base-url"),
        ("headers = { X-A = '1' }", "targets.headers", "ANTHROPIC_CUSTOM_HEADERS"),
        ("api_key_env = 'AWS_SECRET'", "targets.api_key_env", "ANTHROPIC_API_KEY"),
        ("ca_file = 'ca.pem'", "targets.ca_file", "SSL_CERT_FILE"),
        ("pass_env = ['A']", "targets.pass_env", "--pass-env"),
        ("sandbox = 'off'", "targets.sandbox", "--config"),
        ("price = { base_url = 1 }", "targets.price.base_url", "--base-url"),
    ],
)
def test_an_entry_in_the_working_directory_cannot_lead_a_key_away(
    world: World, keys: str, whole_name: str, place: str
) -> None:
    toml = AB.replace('base_url = "http://localhost:8080/v1"', "") + keys
    message = str(world.error(local=toml))
    for part in (str(world.local_file), repr(whole_name), str(world.user_file), place, "--config"):
        assert part in message


def test_a_list_in_the_working_directory_does_not_count_whatever_it_says(world: World) -> None:
    price = f"price = {{ {PRICE}, cache_read = 0 }}"
    for keys, named in (("", "'targets'"), ("max_tokens = 5", "'targets'"), (price, "'targets.price'")):
        message = str(world.error(local=f'[[targets]]\nname = "t"\nmodel = "m"\n{keys}'))
        assert f"{named} does not count here, as an agent" in message


def test_a_list_in_the_working_directory_counts_all_keys_when_it_is_passed_by_config(world: World) -> None:
    world.local_file.write_text(AB + "api_key_env = 'ONE'")
    settings = load_settings({}, {**world.environment, "ONE": "key"}, world.cwd, Path("ralph.toml"))
    assert keys_of(settings.targets[2]) == [("x-api-key", "key", "ONE")]


def test_documentation_has_every_key_of_a_target() -> None:
    from ralph.settings.targets import KINDS, PRICE_KEYS

    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    rows = [line.split("|")[1].strip(" `") for line in page.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row in KINDS] == list(KINDS)
    assert all(f"`{key}`" in page or f"{key} =" in page for key in PRICE_KEYS)
