"""A repository's `sandbox` block restricts commands, or nothing runs. It never widens what commands may do."""

from __future__ import annotations

from typing import Any

import pytest

from ralph.permissions.claude_settings import GuardError, read_settings
from ralph.sandbox.box_plan import CannotConfineError
from ralph.sandbox.planning import restricted
from ralph.sandbox.sandbox_settings import SandboxSettings
from ralph.values.claude_file import ClaudeFile
from tests.rows import every_row

PROJECT = ClaudeFile("f.json", "project", "", "")


def sandbox_with(*blocks: dict[str, Any], **users: Any) -> SandboxSettings:
    limits = [("f.json", read_settings({"sandbox": block}, PROJECT).sandbox) for block in blocks]
    return restricted(SandboxSettings(**users), limits)


@every_row(
    ("network", "users", "net", "hosts"),
    [
        ({"allowedDomains": ["x.org", "*.y.org"]}, {}, "proxy", ("x.org", "*.y.org")),
        ({"allowedDomains": []}, {}, "off", ()),
        ({"allowedDomains": ["x.org"]}, {"net": "off"}, "off", ()),
        ({"allowedDomains": ["x.org"]}, {"allow_hosts": ("z.org",)}, "off", ()),
        ({"allowedDomains": ["*.y.org"]}, {"allow_hosts": ("a.y.org", "z.org")}, "proxy", ("a.y.org",)),
        ({"allowedDomains": ["a.y.org"]}, {"allow_hosts": ("*.y.org", "10.0.0.0/8")}, "proxy", ("10.0.0.0/8", "a.y.org")),
        ({"allowedDomains": ["x.org:443", "Y.org"]}, {"allow_hosts": ("x.org", "y.org:443")}, "proxy", ("y.org:443", "x.org:443")),
        ({"allowedDomains": ["x.org:8443"]}, {"allow_hosts": ("x.org",)}, "off", ()),
        ({"deniedDomains": ["z.org"]}, {"allow_hosts": ("x.org",)}, "proxy", ("x.org",)),
        ({"deniedDomains": ["z.org"]}, {"net": "off"}, "off", ()),
    ],
)  # fmt: skip
def test_commands_reach_what_both_the_user_and_the_repository_allow(network, users, net, hosts) -> None:
    found = sandbox_with({"enabled": True, "network": network}, **users)
    assert (found.asked_net, found.allow_hosts) == (net, hosts)


def test_the_blocks_of_two_files_hold_together_in_any_order() -> None:
    denies = {"network": {"deniedDomains": ["z.org"]}}
    allows, narrower = (
        {"network": {"allowedDomains": hosts.split()}} for hosts in ("x.org y.org", "y.org z.org")
    )
    for blocks in ((denies, allows, narrower), (narrower, allows, denies)):
        found = sandbox_with(*blocks)
        assert (found.asked_net, found.allow_hosts) == ("proxy", ("y.org",))


def test_a_block_adds_to_what_commands_must_not_read_and_may_ask_for_a_strict_sandbox() -> None:
    block = {"failIfUnavailable": True, "filesystem": {"denyRead": ["~/plans"]}}
    found = sandbox_with(block, read_deny=("/etc/x",))
    assert (found.mode, found.read_deny, found.asked_net) == ("strict", ("/etc/x", "~/plans"), "full")


@every_row(
    ("block", "users", "says"),
    [
        ({"network": {"deniedDomains": ["z.org"]}}, {}, "deniedDomains: z.org cannot be denied alone"),
        ({"network": {"deniedDomains": ["*.org"]}}, {"allow_hosts": ("x.org",)}, "cannot be denied alone"),
        ({"network": {"deniedDomains": ["X.ORG"]}}, {"allow_hosts": ("x.org",)}, "X.ORG cannot be denied"),
        (
            {"network": {"deniedDomains": ["x.org:443"]}},
            {"allow_hosts": ("x.org",)},
            "cannot be denied alone",
        ),
        ({"network": {"deniedDomains": ["*"]}}, {"allow_hosts": ("x.org",)}, "cannot be denied alone"),
        ({"network": {"deniedDomains": ["1.2.3.4"]}}, {"allow_hosts": ("x.org",)}, "cannot be denied alone"),
        ({"network": {"allowedDomains": ["no host"]}}, {}, "allowedDomains cannot be kept"),
        ({"network": {"allowedDomains": []}}, {"mode": "off"}, "cannot be kept with --sandbox off"),
        ({"failIfUnavailable": True}, {"mode": "off"}, "cannot be kept with --sandbox off"),
    ],
)
def test_a_restriction_that_this_run_cannot_keep_is_an_error(block, users, says) -> None:
    with pytest.raises(CannotConfineError, match=r"^f[.]json: sandbox") as raised:
        sandbox_with(block, **users)
    assert says in str(raised.value)


@every_row(
    ("block", "says"),
    [
        ({"filesystem": {"denyWrite": ["x"]}}, "sandbox.filesystem.denyWrite cannot be honoured"),
        ({"filesystem": {"denyRead": ["secrets"]}}, "sandbox.filesystem.denyRead cannot be honoured"),
        ({"filesystem": {"denyRead": ["~/*/x"]}}, "sandbox.filesystem.denyRead cannot be honoured"),
        ({"credentials": {"files": [{"path": "x"}]}}, "sandbox.credentials cannot be honoured"),
        ({"network": {"deniedDomain": ["x"]}}, "deniedDomain is not known, and is perhaps meant as deniedDomains"),
        ({"network": "off"}, "sandbox.network must be an object"),
        ({"network": {"allowedDomains": "x"}}, "allowedDomains must be a list of texts"),
        (True, "sandbox must be an object"),
        ([], "sandbox must be an object"),
        ({"network": []}, "sandbox.network must be an object"),
        ({"filesystem": False}, "sandbox.filesystem must be an object"),
    ],
)  # fmt: skip
def test_a_restriction_that_ralph_never_keeps_is_an_error(block, says) -> None:
    with pytest.raises(GuardError) as raised:
        read_settings({"sandbox": block}, PROJECT)
    assert str(raised.value).startswith("f.json: ")
    assert says in str(raised.value)


def test_what_widens_is_named_and_has_no_effect() -> None:
    block = {
        "enabled": True,
        "excludedCommands": ["git"],
        "network": {"allowedDomains": ["x.org"], "allowLocalBinding": True},
        "filesystem": {"allowWrite": ["/"]},
    }
    found = read_settings({"sandbox": block}, PROJECT)
    assert found.sandbox.keys == ("sandbox.network.allowedDomains",)
    assert found.idle_sandbox == (
        "sandbox.excludedCommands",
        "sandbox.network.allowLocalBinding",
        "sandbox.filesystem.allowWrite",
    )
    off = read_settings({"sandbox": {"enabled": False, "network": {"deniedDomains": ["x"]}}}, PROJECT)
    assert (off.sandbox.keys, off.idle_sandbox) == ((), ("sandbox.enabled", "sandbox.network"))
