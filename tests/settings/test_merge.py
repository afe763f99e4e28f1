from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from benchmarks import settings_page
from ralph.settings.merge import SettingsError, load_settings
from ralph.settings.tables import ALL_KEYS, KEYS, TABLES, Settings
from ralph.settings.toml_file import MAX_BYTES, user_settings_path
from ralph.values.setting import MAX_SECONDS
from tests.rows import every_row
from tests.settings.settings_world import KEY, World

ROOT = Path(__file__).parents[2]


def value_of(settings: Settings, name: str) -> Any:
    table, _, key = name.partition(".")
    return getattr(getattr(settings, table), key)


# --- Defaults, precedence, origins


def test_without_anything_given_all_is_default(world: World) -> None:
    settings = world.load()
    assert replace(settings, credential=None, targets=(), origins={}) == Settings(origins={})
    assert settings.model.name == "claude-sonnet-5-5"
    assert settings.model.max_tokens == 32_000
    assert settings.model.base_url == "https://api.anthropic.com"
    assert astuple(settings.clocks) == (10, 180, 90, 300, 1800, 30, 60, 3600)
    assert astuple(settings.retry) == (*("standard", "fallback", "cooldown-expiry"), *(True, 4, 2, 300))
    assert astuple(settings.tools) == (None, None, (), 120, 600, 30_000, ())
    assert settings.origins == dict.fromkeys([*(key.name for key in KEYS), "tools", "targets"], "default")
    assert settings.warnings == ()


def test_stronger_source_wins_and_its_origin_is_kept(world: World) -> None:
    def model(**kwargs: Any) -> tuple[str, str]:
        settings = world.load(**kwargs)
        return settings.model.name, settings.origins["model.name"]

    files = {"user": 'model.name = "user"'}
    assert model(**files) == ("user", str(world.user_file))
    files["local"] = 'model.name = "local"'
    assert model(**files) == ("local", str(world.local_file))
    nothing = {"flags": {"model.name": None}, "ANTHROPIC_MODEL": ""}
    assert model(**files, **nothing) == ("local", str(world.local_file))
    files["named"] = 'model.name = "named"'
    assert model(**files) == ("named", str(world.named_file))
    files["ANTHROPIC_MODEL"] = "variable"
    assert model(**files) == ("variable", "ANTHROPIC_MODEL")
    assert model(**files, flags={"model.name": "flag"}) == ("flag", "flag --model")


def test_files_merge_key_by_key(world: World) -> None:
    settings = world.load(
        user='[model]\nname = "a"\nmax_tokens = 1\n[clocks]\nconnect_s = 1',
        local="[model]\nmax_tokens = 2\n[clocks]\nfirst_byte_s = 2",
        named="[clocks]\nfirst_byte_s = 3",
    )
    assert (settings.model.name, settings.model.max_tokens) == ("a", 2)
    assert (settings.clocks.connect_s, settings.clocks.first_byte_s) == (1, 3)


@every_row(
    ("environment", "expected"),
    [
        ({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, Path("/x/ralph/config.toml")),
        ({"XDG_CONFIG_HOME": "", "HOME": "/h"}, Path("/h/.config/ralph/config.toml")),
        (
            {"XDG_CONFIG_HOME": ".", "HOME": "/h"},
            Path("/h/.config/ralph/config.toml"),
        ),  # would be the clone's
        ({"HOME": "."}, None),
        ({}, None),
    ],
)
def test_user_file_is_where_xdg_says(environment: dict[str, str], expected: Path | None) -> None:
    assert user_settings_path(environment) == expected


# --- What a value must be

SECONDS_KEYS = [key.name for key in KEYS if key.name.startswith("clocks.")]


@every_row("name", SECONDS_KEYS)
@every_row("text", ["0", "0.0", "0.5", "1", str(MAX_SECONDS)])
def test_clock_can_be_any_number_of_seconds_or_off(world: World, name: str, text: str) -> None:
    assert value_of(world.load(user=f"{name} = {text}"), name) == float(text)


@every_row("name", SECONDS_KEYS)
@every_row(
    "text",
    [
        "-1",
        "-0.1",
        "nan",
        "inf",
        "-inf",
        "true",
        "false",
        '"1"',
        "[1]",
        str(MAX_SECONDS + 1),
        "1" + 400 * "0",
    ],
)
def test_clock_that_is_no_number_of_seconds_is_refused(world: World, name: str, text: str) -> None:
    error = world.error(local=f"{name} = {text}")
    assert str(error).startswith(f"{world.local_file}: {name} must be")
    assert not error.from_flag


CUSTOM = 'retry.policy = "custom"\n'


@every_row(
    ("toml", "name", "value"),
    [
        ("model.max_tokens = 1", "model.max_tokens", 1),
        ('model.effort = "xhigh"', "model.effort", "xhigh"),
        ("retry.enabled = false", "retry.enabled", False),
        ('retry.policy = "off"', "retry.policy", "off"),
        ('retry.strategy = "round_robin"', "retry.strategy", "round_robin"),
        ('retry.revert = "never"', "retry.revert", "never"),
        (CUSTOM + "retry.max_retries = 0", "retry.max_retries", 0),
        (CUSTOM + "retry.base_delay_s = 0", "retry.base_delay_s", 0),
        (CUSTOM + "retry.base_delay_s = 0.5", "retry.base_delay_s", 0.5),
        (CUSTOM + "retry.max_delay_s = -1", "retry.max_delay_s", 0),
        (CUSTOM + "retry.max_delay_s = 0.5", "retry.max_delay_s", 0.5),
        ("tools.allowed = []", "tools.allowed", ()),
        ('tools.allowed = ["Read", "Grep", "Read"]', "tools.allowed", ("Read", "Grep")),
        ('tools.disallowed = ["Bash"]', "tools.disallowed", ("Bash",)),
        ("tools.max_output_bytes = 1", "tools.max_output_bytes", 1),
        ("tools.bash_timeout_s = 0.5", "tools.bash_timeout_s", 0.5),
        ("tools.bash_timeout_s = 600", "tools.bash_timeout_s", 600),
        ("limits.max_time_s = 90", "limits.max_time_s", 90),
        ('limits.max_time_s = "1h30m"', "limits.max_time_s", 5400),
    ],
)
def test_allowed_value_is_taken(world: World, toml: str, name: str, value: object) -> None:
    settings = world.load(user=toml)
    assert value_of(settings, name) == value
    assert settings.origins[name] == str(world.user_file)


@every_row(
    ("toml", "names"),
    [
        ("model.max_tokens = 0", "model.max_tokens"),
        ("model.max_tokens = 1.0", "model.max_tokens"),
        ("model.max_tokens = true", "model.max_tokens"),
        ('model.name = ""', "model.name"),
        ('model.name = "a\\u001Bb"', "model.name"),
        ("model.name = 5", "model.name"),
        ('model.effort = "huge"', "low, medium, high, xhigh, max"),
        ("model.effort = ['low']", "model.effort"),
        ('retry.policy = "Patient"', "standard, patient, off, custom"),
        ("retry.enabled = 1", "retry.enabled"),
        ('retry.strategy = "random"', "fallback, round_robin"),
        ("retry.revert = 60", "cooldown-expiry, never"),
        (CUSTOM + "retry.max_retries = -1", "retry.max_retries"),
        (CUSTOM + "retry.base_delay_s = -0.1", "retry.base_delay_s"),
        (CUSTOM + "retry.max_delay_s = nan", "retry.max_delay_s"),
        (CUSTOM + "retry.max_delay_s = true", "retry.max_delay_s"),
        ("tools.bash_timeout_s = 0", "tools.bash_timeout_s"),
        ("tools.bash_max_timeout_s = 0", "tools.bash_max_timeout_s"),
        ("tools.max_output_bytes = 0", "tools.max_output_bytes"),
        ('tools.allowed = "Read"', "tools.allowed"),
        ("tools.allowed = [1]", "tools.allowed"),
        ('tools.allowed = ["read"]', "'read'"),
        ('tools.allowed = ["Read "]', "'Read '"),
        ('tools.disallowed = ["Launch"]', "Read, Write, Edit, Bash, BashOutput, KillBash, Glob, Grep"),
        ('tools.disallowed = ["bash"]', "did you mean Bash?"),
        ("tools = 3", "[tools]"),
        ("limits.max_time_s = 0", "limits.max_time_s"),
        ('limits.max_time_s = "soon"', "90s, 30m or 1h30m"),
    ],
)
def test_value_that_is_not_allowed_is_refused_by_name(world: World, toml: str, names: str) -> None:
    message = str(world.error(user=toml))
    assert message.startswith(f"{world.user_file}: ")
    assert names in message


def test_a_name_that_stands_twice_in_a_list_counts_once(world: World) -> None:
    flags: dict[str, object] = {"tools.allowed": ("Read", "Edit", "Read"), "tools.pass_env": ("A", "B", "A")}
    settings = world.load(flags)
    assert settings.tools.allowed == ("Read", "Edit")
    assert settings.tools.pass_env == ("A", "B")
    assert settings.origins["tools.allowed"] == "flag --allowed-tools"


@every_row(
    ("name", "value", "flag"),
    [
        ("model.max_tokens", 0, "--max-tokens"),
        ("model.effort", "huge", "--effort"),
        ("model.base_url", "localhost:8080", "--base-url"),
        ("model.name", " ", "--model"),
        ("retry.policy", "never", "--retry"),
        ("tools.pass_env", ("A=b",), "--pass-env"),
    ],
)
def test_wrong_flag_is_a_usage_error_that_names_it(world: World, name: str, value: object, flag: str) -> None:
    error = world.error({name: value})
    assert error.from_flag
    assert str(error).startswith(f"{flag} must ")


@every_row("entry", ["A=ghp_pa55word", "", "A B", "1A", "A-B"])
def test_passed_variable_must_be_a_name_and_is_not_repeated(world: World, entry: str) -> None:
    message = str(world.error(user=f'tools.pass_env = ["OK", "{entry}"]'))
    assert "entry 2" in message
    assert "pa55word" not in message


@pytest.mark.parametrize(
    "toml",
    ['tools.pass_env = "A=pa55word"', 'tools.pass_env = [["pa55word"]]', 'model.base_url = ["pa55word"]'],
)
def test_value_that_may_be_secret_is_not_repeated_where_its_type_is_wrong(world: World, toml: str) -> None:
    message = str(world.error(user=toml))
    assert message.startswith(f"{world.user_file}: {toml.partition(' =')[0]} must be ")
    assert "pa55word" not in message


# --- Unknown keys and unreadable files


@every_row(
    ("toml", "unknown", "allowed"),
    [
        ("[model]\nnam = 1", "model.nam", "name, max_tokens, effort, api, base_url, ca_file"),
        ("[limits]\nmax_turn = 1", "limits.max_turn", "max_turns, max_budget_usd, max_time_s"),
        ("timeout = 1", "timeout", "[model], [retry], [limits], [clocks], [sessions], [tools]"),
        ("timeout = 1", "timeout", "[loop], [notify], [[targets]]"),
        ("[model]\nfallback = 'a'", "model.fallback", "name, max_tokens, effort, api, base_url, ca_file"),
        ("[model.name]\nx = 1", "model.name", ""),
        ('"model.name" = "x"', "model.name", "[model]"),
        ('"a\\nb" = 1', "a\\nb", "[model]"),
    ],
)
@every_row("source", ["user", "local", "named"])
def test_unknown_key_is_an_error_that_names_it(
    world: World, source: str, toml: str, unknown: str, allowed: str
) -> None:
    error = world.error(**{source: toml})
    assert str(getattr(world, f"{source}_file")) in str(error)
    assert unknown in str(error)
    assert allowed in str(error)
    assert not error.from_flag


@every_row(
    ("toml", "is_foreign"),
    [
        ("[project]\nname = 'x'\n[claude]\nbase_url = 'x'\nmodel = 'y'", True),
        ("top = 1\n[build]\nx = 1", True),
        ("[project]\nname = 'x'\n[limits]\nmax_turns = 3", False),
        ("[project]\nname = 'x'\n[limit]\nmax_turns = 3", False),
        ("[project]\nname = 'x'\n[headers]\nx = 'y'", False),
    ],
)
def test_a_local_file_without_a_table_of_ralphs_is_another_programs(
    world: World, toml: str, *, is_foreign: bool
) -> None:
    if is_foreign:
        [remark] = world.load(local=toml).remarks
        assert remark.text.startswith(
            f"{world.local_file} has none of ralph's tables, so ralph takes it for another program's"
        )
    else:
        error = str(world.error(local=toml))
        assert (
            "rename it, or start ralph elsewhere (-C DIR)" in error
            or "'headers' does not count here" in error
        )
    assert "unknown key" in str(world.error(user=toml))


@every_row(
    ("content", "line"),
    [
        (b"[model]\nname = \n", 2),
        (b"[model]\n\nname", 3),
        (b'a = """\n\n\n', 1),
        (b"[model]\nname = '\xff'\n", 2),
        (b"[model\n", 1),
    ],
)
def test_file_that_is_not_toml_is_named_with_its_line(world: World, content: bytes, line: int) -> None:
    world.local_file.write_bytes(content)
    assert str(world.error()).startswith(f"{world.local_file}:{line}: not valid TOML: ")


@pytest.mark.parametrize("content", ["a = " + "[" * 5000, "a = " + "1" * 5000])
def test_toml_that_overwhelms_the_parser_is_one_line(world: World, content: str) -> None:
    assert str(world.error(local=content)).startswith(f"{world.local_file}: not valid TOML: ")


@every_row(
    ("content", "why"),
    [
        ("[limits]\n" + "a." * 101 + "b = 1\n", ":2: more than 100 dots in a line"),
        ("a = 1\n[" + "a." * 101 + "b]\n", ":2: more than 100 dots in a line"),
        ("a." * 50 + "b = 1\n", ": tables and lists are nested deeper than 50 levels"),
        ("a = " + "[" * 60 + "{ b = 1 }" + "]" * 60, ": tables and lists are nested deeper than 50 levels"),
        ("a." * 45 + "b = 1\n", ": unknown key 'a'; a settings file holds"),
        ('[model]\nname = "' + "." * 100 + '"\n', None),
    ],
)
def test_a_key_has_a_bounded_number_of_parts(world: World, content: str, why: str | None) -> None:
    world.user_file.write_text(content)
    if why is None:
        world.load()
    else:
        assert str(world.error()).startswith(f"{world.user_file}{why}")


def test_byte_order_mark_is_ignored(world: World) -> None:
    world.local_file.write_bytes(b'\xef\xbb\xbfmodel.name = "x"')
    assert world.load().model.name == "x"


def test_directory_and_pipe_are_no_settings_files(world: World) -> None:
    world.user_file.mkdir()
    assert str(world.error()) == f"{world.user_file}: cannot be read: it is not a regular file"
    world.user_file.rmdir()
    os.mkfifo(world.local_file)
    assert str(world.error()) == f"{world.local_file}: cannot be read: it is not a regular file"


@pytest.mark.parametrize(("size", "fits"), [(MAX_BYTES, True), (MAX_BYTES + 1, False)])
def test_settings_file_has_a_largest_size(world: World, size: int, fits: bool) -> None:
    world.local_file.write_bytes(b"\n" * size)
    if fits:
        world.load()
    else:
        assert "larger than" in str(world.error())


@pytest.mark.ordinary_user
def test_unreadable_file_is_an_error(world: World) -> None:
    world.local_file.write_text("")
    world.local_file.chmod(0)
    assert str(world.error()) == f"{world.local_file}: cannot be read: Permission denied"


def test_missing_config_file_is_an_error_and_not_one_of_usage(world: World) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, world.environment, world.cwd, Path("absent.toml"))
    assert str(caught.value) == f"{world.cwd / 'absent.toml'}: no such file"
    assert not caught.value.from_flag


# --- Trust

TRUSTED_ONLY = {
    "model.base_url": 'model.base_url = "https://evil.example"',
    "model.ca_file": 'model.ca_file = "ca.pem"',
    "tools.pass_env": 'tools.pass_env = ["ANTHROPIC_API_KEY"]',
}


@every_row(("name", "toml"), TRUSTED_ONLY.items())
def test_key_that_could_leak_counts_from_trusted_files(world: World, name: str, toml: str) -> None:
    assert world.load(user=toml).origins[name] == str(world.user_file)
    assert world.load(named=toml).origins[name] == str(world.named_file)


@every_row(
    "toml",
    [
        "[headers]\nx = 'y'",
        "[model]\nheaders = {}",
        "[[targets]]\nx = [[{base_url = 'https://evil.example'}]]",
        "[sandbox]\nnetwork = true",
        "[tools]\nsandbox_paths = ['/']",
    ],
)
def test_key_that_will_be_trusted_only_is_refused_with_the_same_advice(world: World, toml: str) -> None:
    assert "--config" in str(world.error(local=toml))
    assert "unknown key" in str(world.error(user=toml))


def test_local_file_passed_by_config_is_trusted(world: World) -> None:
    world.local_file.write_text('model.base_url = "http://localhost:1"')
    for path in (Path("ralph.toml"), world.local_file, Path("../work/ralph.toml")):
        settings = load_settings({}, world.environment, world.cwd, path)
        assert settings.model.base_url == "http://localhost:1"


@pytest.mark.parametrize("link", [".config", ".config/ralph", ".config/ralph/config.toml"])
def test_the_users_file_does_not_count_where_an_added_directory_decides_what_it_says(
    world: World, tmp_path: Path, link: str
) -> None:
    home, added = tmp_path / "home", tmp_path / "dotfiles"
    world.user_file.write_text('sandbox.mode = "off"')
    (home / link).rename(added)
    if link.endswith(".toml"):
        file, added = added, tmp_path / "folder"
        added.mkdir()
        file.rename(added / "config.toml")
        (home / link).symlink_to(added / "config.toml")
    else:
        (home / link).symlink_to(added)
    assert load_settings({}, world.environment, world.cwd, None).sandbox.mode == "off"
    with pytest.raises(SettingsError, match=r"'sandbox\.mode' does not count here, as an agent"):
        load_settings({}, world.environment, world.cwd, None, reach=(added,))
    assert (
        load_settings({}, world.environment, world.cwd, world.user_file, reach=(added,)).sandbox.mode == "off"
    )
    writable = {"sandbox.write": (str(added),)}
    with pytest.raises(SettingsError, match="does not count, as an agent"):
        load_settings(writable, world.environment, world.cwd, None)
    assert load_settings(writable, world.environment, world.cwd, world.user_file).sandbox.mode == "off"


def test_a_users_file_that_came_with_the_checkout_above_does_not_count(world: World) -> None:
    sub, config = world.cwd / "sub", world.cwd / ".config"
    for directory in (sub, world.cwd / ".git", config / "ralph"):
        directory.mkdir(parents=True)
    (config / "ralph/config.toml").write_text('sandbox.mode = "off"')
    environment = {**world.environment, "XDG_CONFIG_HOME": str(config)}
    with pytest.raises(SettingsError, match=f"does not count here, as .* may write {world.cwd}, through"):
        load_settings({}, environment, sub, None)


# Where the file is, as it is named, what else commands may write, and whether its servers get a credential.
SERVER_FILES = {
    "elsewhere": ("named/m.json", "", "", "", True),
    "in an added directory": ("added/m.json", "", "added", "", False),
    "a link into one": ("named/m.json", "added/m.json", "added", "", False),
    "in sandbox.write": ("added/m.json", "", "", "added", False),
    "in the checkout above": ("work/m.json", "", "", "", False),
    "of the repository": ("", "", "", "", False),
}


@pytest.mark.parametrize(
    ("name", "target", "added", "written", "is_given"), SERVER_FILES.values(), ids=SERVER_FILES
)
def test_a_server_gets_a_credential_only_from_a_file_that_nobody_else_writes(
    world: World, tmp_path: Path, name: str, target: str, added: str, written: str, is_given: bool
) -> None:
    sub = world.cwd / "sub"
    for directory in (sub, world.cwd / ".git", tmp_path / "added"):
        directory.mkdir()
    text = json.dumps({"mcpServers": {"m": {"command": "x", "env": {"K": "${ANTHROPIC_API_KEY}"}}}})
    file = tmp_path / (name or "work/.mcp.json")
    (tmp_path / target if target else file).write_text(text)
    if target:
        file.symlink_to(tmp_path / target)
    flags: dict[str, object] = {"mcp.config": (str(file),)} if name else {}
    if written:
        flags["sandbox.write"] = (str(tmp_path / written),)
    reach = (tmp_path / added,) if added else ()
    world.user_file.write_text("" if name else "mcp.repository = true")
    if is_given:
        [server] = load_settings(flags, world.environment, sub, None, reach=reach).mcp_servers
        assert server.environment.plain == {"K": KEY}
    else:
        with pytest.raises(SettingsError, match="needs the variable ANTHROPIC_API_KEY") as caught:
            load_settings(flags, world.environment, sub, None, reach=reach)
        place = world.cwd if "work" in str(file) else tmp_path / "added"
        assert f"gets no credential, as an agent or a repository's author may write {place}," in str(
            caught.value
        )


def test_every_other_key_is_refused_from_the_working_directory_with_where_it_may_stand(world: World) -> None:
    others = [key for key in KEYS if key.in_repository is None]
    assert set(TRUSTED_ONLY) < {key.name for key in others}
    for key in others:
        message = str(world.error(local=TRUSTED_ONLY.get(key.name, f"{key.name} = 1")))
        assert message.startswith(f"{world.local_file}: {key.name!r} does not count here, as an agent")
        assert all(place in message for place in (*key.places, str(world.user_file)))


# --- Retry and command timeouts


@every_row("key", ["max_retries", "base_delay_s", "max_delay_s"])
@every_row("policy", ["", 'policy = "standard"', 'policy = "patient"', 'policy = "off"'])
def test_custom_numbers_need_the_custom_policy(world: World, key: str, policy: str) -> None:
    message = str(world.error(user=f"[retry]\n{key} = 1\n{policy}"))
    assert message == f'{world.user_file}: retry.{key} needs retry.policy = "custom"'


def test_custom_policy_and_its_numbers_may_be_in_two_files(world: World) -> None:
    settings = world.load(user="retry.max_retries = 9", named=CUSTOM)
    assert (settings.retry.policy, settings.retry.max_retries) == ("custom", 9)


def test_numbers_of_an_overridden_custom_policy_do_not_count(world: World) -> None:
    settings = world.load({"retry.policy": "patient"}, user=CUSTOM + "retry.max_retries = 9")
    assert (settings.retry.policy, settings.retry.max_retries) == ("patient", 4)
    assert settings.origins["retry.max_retries"] == "default"


def test_command_timeout_over_its_maximum_names_both(world: World) -> None:
    message = str(world.error(user="tools.bash_timeout_s = 601"))
    assert message == (
        f"tools.bash_timeout_s = 601 ({world.user_file}) is larger than tools.bash_max_timeout_s = 600 (default)"
    )
    assert "BASH_MAX_TIMEOUT_MS" in str(
        world.error(user="tools.bash_timeout_s = 2", BASH_MAX_TIMEOUT_MS="1999")
    )


def test_default_command_timeout_makes_room_for_a_lower_maximum(world: World) -> None:
    settings = world.load(user="tools.bash_max_timeout_s = 60")
    assert settings.tools.bash_timeout_s == 60
    assert settings.origins["tools.bash_timeout_s"] == "default, lowered to tools.bash_max_timeout_s"


# --- Environment


def test_variables_feed_their_settings(world: World) -> None:
    settings = world.load(
        ANTHROPIC_BASE_URL="http://localhost:9/v1/",
        SSL_CERT_FILE="ca.pem",
        BASH_DEFAULT_TIMEOUT_MS="1500",
        BASH_MAX_TIMEOUT_MS="2000",
        BASH_MAX_OUTPUT_LENGTH="9",
    )
    assert settings.model.base_url == "http://localhost:9"
    assert settings.model.ca_file == world.cwd / "ca.pem"
    assert astuple(settings.tools)[3:6] == (1.5, 2, 9)
    assert settings.origins["model.ca_file"] == "SSL_CERT_FILE"


def test_path_in_a_file_starts_from_that_file(world: World) -> None:
    assert world.load(user='model.ca_file = "ca.pem"').model.ca_file == world.user_file.parent / "ca.pem"
    assert world.load(user='model.ca_file = "/ca.pem"').model.ca_file == Path("/ca.pem")


@every_row(
    ("variable", "text"),
    [
        *(
            ("BASH_DEFAULT_TIMEOUT_MS", text)
            for text in ("0", "-1", "1.5", "1e3", "x", "²", "9" * 16, "9" * 5000)
        ),
        *(("BASH_MAX_TIMEOUT_MS", text) for text in ("0", "ten")),
        *(("BASH_MAX_OUTPUT_LENGTH", text) for text in ("0", "-1", "1k")),
        ("ANTHROPIC_BASE_URL", "api.example.com"),
        ("ANTHROPIC_MODEL", "a\tb"),
        ("ANTHROPIC_CUSTOM_HEADERS", "X-A"),
        ("ANTHROPIC_CUSTOM_HEADERS", "X A: pa55word"),
        ("ANTHROPIC_API_KEY", "pa55word\nX-Evil: 1"),
        ("ANTHROPIC_API_KEY", "pa55word\u2026"),
    ],
)
def test_malformed_variable_is_named_and_no_secret_shown(world: World, variable: str, text: str) -> None:
    error = world.error(**{variable: text})
    assert str(error).startswith(f"{variable} must ")
    assert "pa55word" not in str(error)
    assert not error.from_flag


@every_row("variable", sorted({key.variable for key in KEYS if key.variable}))
@every_row("text", ["", " "])
def test_empty_variable_is_unset(world: World, variable: str, text: str) -> None:
    world.environment[variable] = text
    assert set(world.load().origins.values()) == {"default"}


# --- Keys, headers, endpoints


@every_row(
    ("key", "token", "sent"),
    [
        (KEY, "", ("x-api-key", KEY, "ANTHROPIC_API_KEY")),
        (KEY, "tok", ("x-api-key", KEY, "ANTHROPIC_API_KEY")),
        ("", "tok", ("authorization", "Bearer tok", "ANTHROPIC_AUTH_TOKEN")),
        (" \n", " tok\r\n", ("authorization", "Bearer tok", "ANTHROPIC_AUTH_TOKEN")),
    ],
)
def test_key_wins_over_token(world: World, key: str, token: str, sent: tuple[str, str, str]) -> None:
    credential = world.load(ANTHROPIC_API_KEY=key, ANTHROPIC_AUTH_TOKEN=token).credential
    assert credential is not None
    assert (credential.header, credential.value.plain, credential.source) == sent


def test_no_key_is_an_error_with_three_ways_out(world: World) -> None:
    message = str(world.error(ANTHROPIC_API_KEY=""))
    for way in ("ANTHROPIC_API_KEY", "--base-url", "ralph demo"):
        assert way in message


def test_key_in_a_custom_header_is_a_key(world: World) -> None:
    settings = world.load(ANTHROPIC_API_KEY="", ANTHROPIC_CUSTOM_HEADERS="Authorization: Bearer abc\nX-A: 1")
    assert settings.custom_headers.plain == (("Authorization", "Bearer abc"), ("X-A", "1"))
    assert settings.secrets == ("Bearer abc", "abc")
    assert "no API key" in str(
        world.error(ANTHROPIC_API_KEY="", ANTHROPIC_CUSTOM_HEADERS="Authorization:\nX-A: 1")
    )


# --- The table itself


def test_table_of_keys_is_the_settings_that_there_are() -> None:
    fields = [f"{table}.{field}" for table, kind in TABLES.items() for field in kind.__struct_fields__]
    assert [key.name for key in ALL_KEYS] == fields
    only_flags = ["model.fallback", "model.betas", "tools.exact", "mcp.config", "mcp.strict"]
    assert [key.name for key in ALL_KEYS if not key.is_in_files] == only_flags
    assert all(key.meaning for key in KEYS)


def test_every_default_passes_its_own_check() -> None:
    for key in KEYS:
        if key.default is not None and key.default != ():
            assert key.kind.decoded(key.default) == key.default


def test_documentation_has_every_key_with_its_default_and_sources() -> None:
    page = settings_page.PAGE.read_text()
    assert settings_page.page(page) == page, "run `make generated`"
    page = settings_page.PAGE_OF_KEYS.read_text()
    assert settings_page.page_of_keys(page) == page, "run `make generated`"


def test_reading_settings_without_files_loads_no_heavy_module() -> None:
    code = "import sys, ralph.settings.merge; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"httpx", "typer", "ssl", "pydantic", "asyncio"} & set(run.stdout.split())
