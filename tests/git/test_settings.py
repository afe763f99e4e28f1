"""The arguments in front of every git command, depending on the configuration."""

from __future__ import annotations

import pytest

from ralph.git.answer import CheckoutError
from ralph.git.settings import settings_from
from tests.rows import every_row


def listing(*settings: tuple[str, str, str]) -> bytes:
    return b"".join(f"{scope}\0file:x\0{name}\n{value}\0".encode() for scope, name, value in settings)


def overridden(*settings: tuple[str, str, str]) -> list[str]:
    """The settings that ralph's git gets if the user has named the filters `f` and `g`."""
    always = settings_from(b"").arguments
    made = settings_from(listing(*settings), filters=("f", "g"))
    return [pair for pair in made.arguments[len(always) :] if pair != "-c"]


def dropped(name: str) -> list[str]:
    return [f"filter.{name}.{key}" for key in ("clean=", "smudge=", "process=", "required=false")]


@every_row(
    ("settings", "expected"),
    [
        ([("local", "core.sshcommand", "x")], ["core.sshcommand=ssh"]),
        ([("worktree", "core.sshcommand", "x")], ["core.sshcommand=ssh"]),
        ([("global", "core.sshcommand", "mine")], []),
        (
            [("global", "core.sshcommand", "mine"), ("local", "core.sshcommand", "x")],
            ["core.sshcommand=mine"],
        ),
        ([("local", "core.sshcommand", "x"), ("command", "core.sshcommand", "env")], ["core.sshcommand=env"]),
        ([("global", "credential.helper", "store")], []),
        (
            [
                ("system", "credential.helper", "a"),
                ("global", "credential.https://h.helper", "b"),
                ("local", "credential.helper", "x"),
            ],
            ["credential.helper=", "credential.helper=a", "credential.https://h.helper=b"],
        ),
        ([("local", "credential.https://a=b.helper", "x")], ["credential.helper="]),
        ([("local", "filter.lfs.process", "git-lfs filter-process")], []),
        (
            [("local", "filter.lfs.process", "git-lfs filter-process; x")],
            dropped("lfs"),
        ),
        (
            [("local", "filter.f.clean", "x"), ("global", "filter.f.clean", "mine")],
            ["filter.f.clean=mine"],
        ),
        ([("global", "filter.f.clean", "mine")], []),
        ([("global", "filter.h.clean", "mine")], dropped("h")),
        ([("system", "filter.h.smudge", "mine")], dropped("h")),
        ([("command", "filter.h.process", "mine")], dropped("h")),
        ([("local", "filter.h.clean", "x"), ("global", "filter.h.clean", "mine")], dropped("h")),
        ([("global", "filter.h.clean", ""), ("global", "filter.h.required", "true")], []),
        ([("global", "filter..clean", "x")], dropped("")),
        ([("local", "filter.g.clean", "x")], dropped("g")),
        (
            [
                ("global", "filter.lfs.clean", "git-lfs clean -- %f"),
                ("global", "filter.lfs.required", "true"),
            ],
            [],
        ),
        ([("global", "filter.lfs.clean", "git-lfs clean -- %f | x")], dropped("lfs")),
        ([("global", "filter.other.clean", "git-lfs clean -- %f")], dropped("other")),
        (
            [("global", "filter.lfs.clean", "git-lfs clean -- %f"), ("global", "lfs.extension.x.clean", "x")],
            dropped("lfs"),
        ),
        ([("local", "hook.x.command", "x")], ["hook.x.enabled=false"]),
        ([("local", "lfs.storage", "/x")], ["lfs.storage=lfs"]),
        ([("global", "lfs.storage", "/mine"), ("local", "lfs.storage", "/x")], ["lfs.storage=/mine"]),
        ([("local", "user.name", "x")], []),
    ],
)
def test_the_repositorys_programs_are_set_back_to_the_users(settings, expected) -> None:
    assert overridden(*settings) == expected


@every_row("value", ["never", "user"])
def test_the_user_decides_about_commands_as_remotes(value: str) -> None:
    both = [("global", "protocol.ext.allow", value), ("local", "protocol.ext.allow", "always")]
    assert f"protocol.ext.allow={value}" in settings_from(listing(*both)).arguments
    assert "protocol.ext.allow=never" in settings_from(listing(both[1])).arguments


def test_a_name_that_no_option_can_carry_is_refused() -> None:
    with pytest.raises(CheckoutError, match=r"filter\.a=b\.clean"):
        settings_from(listing(("local", "filter.a=b.clean", "x")))


def test_a_filter_that_the_user_does_not_define_whole_is_dropped() -> None:
    process = [("global", "filter.c.clean", "y"), ("local", "filter.c.process", "x")]
    assert settings_from(listing(*process), filters=("c",)).dropped_filters == {"c"}
    settings = settings_from(
        listing(
            ("local", "filter.a.clean", "x"),
            ("local", "filter.b.clean", "x"),
            ("global", "filter.b.clean", "y"),
        ),
        filters=("a", "b"),
    )
    assert settings.dropped_filters == {"a"}
    assert settings.left_out == ("filter.a.clean", "filter.b.clean")


def test_a_filter_that_the_user_has_not_named_is_dropped_and_is_no_setting_that_ralph_leaves_out() -> None:
    """A worker would end each job for a setting that it leaves out, whether or not a file needs the filter."""
    one = listing(("global", "filter.a.clean", "make clean"))
    for named, unnamed, left_out in (((), {"a"}, ()), (("a",), set(), ("filter.a.clean",))):
        settings = settings_from(one, names_writable=lambda value: value.startswith("make"), filters=named)
        assert settings.dropped_filters == {"a"}
        assert settings.unnamed_filters == unnamed
        assert settings.left_out == left_out


def test_a_setting_without_a_value_is_true() -> None:
    assert settings_from(b"local\0file:x\0core.bare\0global\0file:/y\0a.b\nc\0").values == {
        "core.bare": "true",
        "a.b": "c",
    }


def test_a_file_of_the_users_that_an_agent_can_write_counts_as_the_repositorys() -> None:
    text = (
        b"global\0file:/w/shared\0filter.x.clean\nevil\0global\0file:/home/.gitconfig\0filter.y.clean\nmine\0"
        b"system\0file:/w/system\0core.sshcommand\nevil\0"
    )
    settings = settings_from(text, lambda file: file.startswith("/w/"), filters=("x", "y"))
    assert settings.dropped_filters == {"x"}
    assert "core.sshcommand=ssh" in settings.arguments
    assert not settings_from(text, filters=("x", "y")).dropped_filters
    assert settings_from(text).advice == "set it by git config --global"
    assert settings.advice.startswith("set it in a file elsewhere")
    assert "/w/shared, /w/system leads through" in settings.advice
