"""Tests which settings of a repository a push follows, how they are recorded, and where they direct a push."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from ralph.git.push import local_path, tracking_refs
from ralph.git.settings import (
    BrokenPinsError,
    PinnedSetting,
    Pins,
    RemoteSettings,
    changed_names,
    guarded_settings,
    pins_of,
    pins_text,
    read_pins,
    remote_settings,
    settings_from,
)
from tests.rows import every_row

if TYPE_CHECKING:
    from tests.git.repositories import Repository

CANARY = "ghs_canary0123456789abcdefghijklmnopqrst"
SALT = "0" * 32


def listed(*settings: tuple[str, str, str]):
    return settings_from(
        b"".join(f"{scope}\0file:x\0{name}\n{value}\0".encode() for scope, name, value in settings)
    )


def pins(*settings: tuple[str, str]) -> Pins:
    return Pins(tuple(PinnedSetting(name, value) for name, value in settings))


FOLLOWED = [
    ("remote.origin.url", "https://h/x"),
    ("remote.a.b.pushurl", "h:x"),
    ("remote.origin.proxy", "http://p"),
    ("url.https://h/.insteadof", "gh:"),
    ("http.proxy", "http://p"),
    ("http.https://h/.extraheader", "Authorization: x"),
    ("credential.https://h.username", "me"),
    ("branch.main.pushremote", "fork"),
    ("remote.pushdefault", "fork"),
    ("push.default", "upstream"),
]
NOT_FOLLOWED = [
    ("core.sshcommand", "sh"),
    ("core.gitproxy", "sh"),
    ("core.askpass", "sh"),
    ("core.alternaterefscommand", "sh"),
    ("core.hookspath", "x"),
    ("credential.helper", "!sh"),
    ("credential.https://h.helper", "!sh"),
    ("remote.origin.receivepack", "sh"),
    ("remote.origin.uploadpack", "sh"),
    ("remote.origin.vcs", "ext"),
    ("protocol.ext.allow", "always"),
    ("protocol.allow", "always"),
    ("http.cookiefile", "/home/me/.bashrc"),
    ("http.savecookies", "true"),
    ("http.https://h/.savecookies", "true"),
    ("include.path", "x"),
    ("gpg.program", "sh"),
    ("push.gpgsign", "true"),
    ("push.recursesubmodules", "on-demand"),
    ("a.new.setting", "x"),
]


@every_row(("name", "value"), FOLLOWED)
@every_row("scope", ["local", "worktree"])
def test_the_repository_says_where_a_push_goes_and_how(scope: str, name: str, value: str) -> None:
    assert pins_of(listed((scope, name, value))).settings == (PinnedSetting(name, value),)


@every_row(("name", "value"), NOT_FOLLOWED)
def test_a_program_of_the_repositorys_or_what_nobody_has_thought_of_is_not_followed(name, value) -> None:
    settings = listed(("local", name, value), ("global", name, "the user's"))
    assert pins_of(settings).settings == ()
    assert remote_settings(settings, Pins(())).values.get(name) == "the user's"


def test_pins_stand_over_the_users_files_and_below_the_command_line() -> None:
    settings = listed(
        ("system", "http.proxy", "s"),
        ("global", "http.proxy", "g"),
        ("local", "http.proxy", "planted"),
        ("command", "http.proxy", "c"),
    )
    told = remote_settings(settings, pins(("http.proxy", "pinned")))
    assert told.all_of("http.proxy") == ["s", "g", "pinned", "c"]


def test_what_changed_is_named_once_also_where_only_the_order_of_many_did_not() -> None:
    before = pins(("remote.o.url", "a"), ("remote.o.url", "b"), ("http.proxy", "p"))
    assert changed_names(before, before) == []
    assert changed_names(before, pins(("remote.o.url", "a"), ("remote.o.url", "c"))) == [
        "http.proxy",
        "remote.o.url",
    ]


def test_guarded_is_what_the_repository_sets_but_an_agents_daily_settings() -> None:
    settings = [("core.fsmonitor", "sh"), ("branch.x.remote", "origin"), ("user.email", "a@b")]
    found = guarded_settings(listed(*(("local", *one) for one in settings), ("global", "core.pager", "less")))
    assert list(found) == ["core.fsmonitor"]
    changed = guarded_settings(listed(("local", "core.fsmonitor", "other")))
    assert changed["core.fsmonitor"] != found["core.fsmonitor"]


# --- the record

WITH_CREDENTIALS = [
    ("remote.origin.url", f"https://x-access-token:{CANARY}@h/x"),
    ("remote.b.url", f"https://{CANARY}@h/x"),
    (f"url.https://me:{CANARY}@h/.insteadof", "https://h/"),
    ("http.https://h/.extraheader", f"AUTHORIZATION: basic {CANARY}"),
    ("http.proxy", f"http://me:{CANARY}@p"),
]
PLAIN = [("remote.c.url", "git@h:x"), ("branch.main.remote", "origin"), ("remote.c.url", "/a \udcff b")]


def test_the_record_holds_no_credential_and_gives_back_all_that_the_repository_still_says() -> None:
    began = Pins(pins(*WITH_CREDENTIALS, *PLAIN).settings, frozenset({"1:2"}))
    text = pins_text(began, SALT)
    assert CANARY not in text
    assert "git@h:x" in text
    assert read_pins(text, began) == (began, False)


def test_what_held_a_credential_and_was_changed_is_lost_and_nothing_new_comes_in_its_place() -> None:
    began = pins(*WITH_CREDENTIALS, *PLAIN)
    now = pins(
        ("remote.origin.url", "https://thief/"), ("http.proxy", "http://thief"), *WITH_CREDENTIALS[1:4]
    )
    restored, has_lost = read_pins(pins_text(began, SALT), now)
    assert has_lost
    assert restored == pins(*WITH_CREDENTIALS[1:4], *PLAIN)


@every_row("text", ["", "{", "[]", "{}", '{"salt": 1, "settings": [1], "places": []}', "[" * 100_000])
def test_a_record_that_cannot_be_read_is_damaged(text: str) -> None:
    with pytest.raises(BrokenPinsError, match=r"^is damaged: "):
        read_pins(text, Pins(()))


def test_a_setting_without_its_value_is_named_by_its_place_in_the_record() -> None:
    text = '{"salt": "s", "settings": [{"digest": "d"}, {"name": "push.default"}], "places": []}'
    with pytest.raises(BrokenPinsError, match=r"^is damaged: .* - at `\$\.settings\[1\]`$"):
        read_pins(text, Pins(()))


def test_each_record_has_digests_of_its_own() -> None:
    one, other = (
        json.loads(pins_text(pins(*WITH_CREDENTIALS), salt))["settings"] for salt in (SALT, "1" * 32)
    )
    assert not {entry["digest"] for entry in one} & {entry["digest"] for entry in other}


# --- where a push goes

ADDRESSES = [
    [("remote.o.url", "https://h/x")],
    [("remote.o.url", "https://h/x"), ("remote.o.pushurl", "h:x"), ("remote.o.pushurl", "k:x")],
    [("remote.o.url", "gh:x"), ("url.https://github.com/.insteadof", "gh:")],
    [("remote.o.url", "gh:x"), ("url.https://h/.insteadof", "gh:"), ("url.ssh://h/.pushinsteadof", "gh:")],
    [("remote.o.url", "gh:x"), ("remote.o.pushurl", "gh:y"), ("url.ssh://h/.pushinsteadof", "gh:")],
    [("remote.o.url", "gh:x"), ("remote.o.pushurl", "gh:y"), ("url.https://h/.insteadof", "gh:")],
    [("remote.o.url", "a:x"), ("url.one/.insteadof", "a:"), ("url.two/.insteadof", "a:")],
    [("remote.o.url", "abc:x"), ("url.one/.insteadof", "a"), ("url.two/.insteadof", "abc:")],
    [("remote.o.url", "a:x"), ("url.b:.insteadof", "a:"), ("url.c:.insteadof", "b:")],
    [("remote.o.url", "a:x"), ("remote.o.url", "b:x"), ("url.p:.pushinsteadof", "b:")],
    [("remote.o.url", "a:x"), ("url.p:.insteadof", "")],
    [("remote.o.url", "a:x"), ("url.a=b.c:.insteadof", "a:")],
    [("remote.o.pushurl", "only:x")],
]


@pytest.mark.parametrize("settings", ADDRESSES)
def test_a_push_goes_where_git_says(repository: Repository, settings: list[tuple[str, str]]) -> None:
    for name, value in settings:
        repository.git("config", "--add", name, value)
    theirs = repository.git("remote", "get-url", "--push", "--all", "o").splitlines()
    assert RemoteSettings(pins(*settings).settings).push_urls("o") == theirs


def test_a_name_that_is_no_remote_is_an_address_and_one_address_alone_is_told() -> None:
    rule = ("url.https://h/.insteadof", "gh:")
    for_pushes = RemoteSettings(pins(rule, ("url.ssh://h/.pushinsteadof", "gh:")).settings)
    assert for_pushes.push_urls("gh:y") == ["ssh://h/y"]
    told = RemoteSettings(pins(rule, ("remote.o.url", "gh:x"), ("http.proxy", "p")).settings)
    assert told.push_urls("gh:y") == ["https://h/y"]
    assert (
        told.with_only_url("o", "https://h/x").entries
        == pins(("http.proxy", "p"), ("remote.o.url", "https://h/x")).settings
    )


@every_row(
    ("url", "path"),
    [
        ("/a/b", "/a/b"),
        ("../b.git", "../b.git"),
        ("./a:b", "./a:b"),
        ("file:///a%20b", "/a b"),
        ("FILE:///a", "/a"),
        ("file://h/a%00", "//h/a%00"),
        ("~/a", os.path.expanduser("~/a")),  # noqa: PTH111 - as text
        ("h:x", None),
        ("git@h:x/y", None),
        ("https://h/x", None),
        ("ext::sh -c x", None),
    ],
)
def test_a_remote_on_this_machine_is_known_as_git_knows_it(url: str, path: str | None) -> None:
    assert local_path(url) == path


@every_row(
    ("refspecs", "refs"),
    [
        (["+refs/heads/*:refs/remotes/o/*"], ["refs/remotes/o/a/main"]),
        (["refs/heads/a/main:refs/remotes/o/mine"], ["refs/remotes/o/mine"]),
        (
            ["+refs/heads/a/*:refs/remotes/o/x/*", "+refs/heads/b/*:refs/remotes/o/*"],
            ["refs/remotes/o/x/main"],
        ),
        (["+refs/heads/main:refs/remotes/o/main", "+refs/tags/*:refs/remotes/o/*"], []),
        (["+refs/heads/*:refs/heads/*"], []),
        (["refs/heads/*"], []),
        ([], []),
    ],
)
def test_what_the_remote_has_is_noted_where_a_fetch_would(refspecs, refs) -> None:
    assert tracking_refs(refspecs, "refs/heads/a/main") == refs
