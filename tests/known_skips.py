"""Lists the reasons for which a test may be skipped in CI. Every other skip makes CI fail, because a test that is
skipped for a missing program would go unnoticed. So CI needs a kernel with Landlock, and the right to make namespaces: what
keeps a run from the user's secrets is tried at both levels of the sandbox, or CI fails.
"""

from __future__ import annotations

import re

NPM = r"a program of npm or PyPI cannot be installed: .*"
DISTRIBUTION = r"a program of the distribution is not installed: .*"
"""Skips for these two reasons leave much untested, so the end of each test run names them, not only in CI."""

KNOWN = {
    NPM: ".ci/run installs these programs before the tests, and fails if it cannot",
    DISTRIBUTION: "the same",
    r"root passes over permissions: .*": "tests/test_ordinary_user.py runs these tests without root's rights",
    r"these tests run by themselves": "nobody is root",
    r"needs to mount file systems, as root on Linux": "a container gives no mounts",
    r"mounts are not allowed here": "the same",
    r"only root (may (mount|look into .*)|can become somebody .*|can give files away)": "a developer's machine is not run as root",
    r"other users may not run this Python": "it is in root's home, where pyenv and uv put it",
    r"needs the right to read the kernel's log": "a container does not give it",
    r"no limit on processes can be set here: .*": "a container's control groups are often read-only",
    r"no limit on memory can be set here: .*": "the same; only version 1 of control groups lets ralph make one",
    r"the kernel's headers are not installed": "a machine without a C compiler; the tables never change",
    r"root is bound by no limit of processes, and no control group can be made": "the same",
    r"this machine has no IPv6 loopback": "a container's network is often IPv4 alone",
    r"no extended attributes here": "tmpfs has them since Linux 6.6 only",
    r"no filter for this architecture": "the level says so; the tables of both are tested everywhere",
    r"make engine builds it": "that takes a compiler a quarter of an hour",
    r"Linux only": "macOS has none of it",
    r"systemd is not installed": "a container has none; the unit file is checked where one is",
    r"the script asks jq": "the script is an example of the docs",
    r"this git has no HTTP server": "Debian packs it apart; pushes over other ways are tested",
}


def is_known(reason: str) -> bool:
    return any(re.fullmatch(pattern, reason) for pattern in KNOWN)


def is_told(reason: str) -> bool:
    """Whether a skip is named at the end of the tests, even outside CI."""
    return re.fullmatch(f"{NPM}|{DISTRIBUTION}", reason) is not None
