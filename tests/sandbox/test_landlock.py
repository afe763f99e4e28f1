"""Tests rulesets with the ABI version of this kernel, and with older ones."""

from __future__ import annotations

import os
import sys

import pytest

from ralph.sandbox import landlock
from ralph.sandbox.landlock import Rule, build_ruleset
from tests.processes.descriptors import open_descriptors, wait_until_closed
from tests.sandbox.restricted import verdicts

ABI = landlock.support().abi
pytestmark = pytest.mark.skipif(ABI == 0, reason="this kernel has no Landlock")
EVERYTHING = landlock.READ | landlock.READ_DIR


@pytest.fixture
def place(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "file").write_text("x")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "file").write_text("x")
    (tmp_path / "closed" / "link").symlink_to(tmp_path / "open" / "file")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed" / "file")
    return tmp_path


def tried(place, abi: int) -> dict[str, str]:
    rules = [
        Rule("/", EVERYTHING),
        Rule(f"{place}/open", EVERYTHING | landlock.WRITE),
        Rule(f"{place}/gone", landlock.WRITE),
        Rule("/dev/null", landlock.WRITE),
    ]
    ruleset = build_ruleset(abi, rules)
    # A TCP server, an abstract socket and a process to signal, all outside the restricted process.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0ralph-test-{os.getpid()}")
        abstract.listen()
        attempts = {
            "write inside": f"open('{place}/open/new', 'w').write('x')",
            "write outside": f"open('{place}/closed/new', 'w')",
            "write through a link": f"open('{place}/open/link', 'w')",
            "write the null device": "open('/dev/null', 'w').write('x')",
            "truncate": f"os.truncate('{place}/closed/file', 0)",
            "remove": f"os.unlink('{place}/closed/link')",
            "move out": f"os.rename('{place}/open/file', '{place}/closed/new')",
            "move within": f"os.makedirs('{place}/open/a') or os.rename('{place}/open/new', '{place}/open/a/new')",
            "read": f"open('{place}/closed/file').read()",
            "connect": f"socket.create_connection(('127.0.0.1', {server.getsockname()[1]}))",
            "abstract socket": f"socket.socket(1).connect('\\0ralph-test-{os.getpid()}')",
            "signal": f"os.kill({os.getpid()}, 0)",
        }
        try:
            return verdicts(attempts, ruleset=ruleset)
        finally:
            os.close(ruleset)


def test_this_kernels_ruleset_denies_what_no_rule_allows(place) -> None:
    support = landlock.support()
    assert tried(place, ABI) == {
        **dict.fromkeys(("write inside", "write the null device", "read"), "done"),
        **dict.fromkeys(("write outside", "write through a link", "remove"), "EACCES"),
        "move out": "EACCES" if support.abi >= 2 else "EXDEV",
        "move within": "done" if support.abi >= 2 else "EXDEV",
        "truncate": "EACCES" if support.has_truncate else "done",
        "connect": "done",
        **dict.fromkeys(("abstract socket", "signal"), "EPERM" if support.has_scopes else "done"),
    }


@pytest.mark.parametrize("abi", range(1, min(ABI, 6)))
def test_an_older_version_denies_what_it_knows(place, abi) -> None:
    found = tried(place, abi)
    support = landlock.Support(abi)
    assert found["write outside"] == "EACCES"
    assert found["truncate"] == ("EACCES" if support.has_truncate else "done")
    assert found["move within"] == ("done" if support.abi >= 2 else "EXDEV")
    assert (found["signal"], found["abstract socket"]) == ("done", "done")


def test_a_rule_for_a_link_opens_nothing(place) -> None:
    (place / "way").symlink_to(place / "closed")
    allowed = [Rule("/", EVERYTHING & ~landlock.READ_FILE), Rule(sys.prefix, EVERYTHING)]
    allowed += [
        Rule(path, EVERYTHING)
        for path in ("/usr", "/etc", "/proc", os.path.realpath("/lib64"), sys.base_prefix)
    ]
    ruleset = build_ruleset(
        ABI, [*allowed, Rule(f"{place}/way", EVERYTHING), Rule(f"{place}/open", EVERYTHING)]
    )
    attempts = {
        "beside": f"open('{place}/open/file')",
        "behind the link": f"open('{place}/way/file')",
        "itself": f"open('{place}/closed/file')",
    }
    try:
        found = verdicts(attempts, ruleset=ruleset)
    finally:
        os.close(ruleset)
    assert found == {"beside": "done", "behind the link": "EACCES", "itself": "EACCES"}


def test_a_ruleset_is_not_inherited_by_accident() -> None:
    ruleset = build_ruleset(ABI, [])
    assert not os.get_inheritable(ruleset)
    os.close(ruleset)


def test_a_failed_build_leaves_no_descriptor() -> None:
    def rules():
        yield Rule("/", EVERYTHING)
        raise InterruptedError

    before = open_descriptors()
    with pytest.raises(InterruptedError):
        build_ruleset(ABI, rules())
    wait_until_closed(before)
