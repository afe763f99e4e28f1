from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import STRICT, Means, box_level, unix_sockets
from tests.rows import every_row

FULL = Means(Support(9), bwrap="/usr/bin/bwrap", has_network_namespace=True)
CLOSED = Means(Support(0, "no Landlock"), "no rights", "no filter", None, "no namespaces")


def unreached(means: Means, net="full", **options: Any) -> set[str]:
    return {*box_level(means, net, **options).missing()}


def test_a_machine_with_everything_reaches_everything() -> None:
    level = box_level(FULL, "off")
    assert (level.name, level.missing()) == ("namespaces", {})


def test_a_machine_with_nothing_says_so_of_each_protection() -> None:
    level = box_level(CLOSED, "off")
    assert (level.name, level.missing()) == ("none", level.reaches)
    assert all(level.reaches.values())


@every_row(
    "abi, missing",
    [
        (1, {"write", "signals"}),
        (2, {"write", "signals"}),
        (3, {"signals"}),
        (5, {"signals"}),
        (6, set()),
        (9, set()),
    ],
)
def test_older_landlock_misses_what_it_does_not_know(abi, missing) -> None:
    level = box_level(Means(Support(abi), why_no_namespaces="no namespaces"), "full")
    assert (level.name, {*level.missing()} & {*STRICT}) == ("landlock", missing)


def test_namespaces_confine_signals_whatever_the_kernel() -> None:
    assert "signals" not in unreached(Means(Support(3), bwrap="/usr/bin/bwrap"))


def test_namespaces_confine_writing_and_not_reading() -> None:
    found = unreached(Means(Support(0, "none"), bwrap="/usr/bin/bwrap"))
    assert "read" in found
    assert "write" not in found


def test_a_limited_network_needs_a_namespace_and_full_needs_none() -> None:
    alone = Means(Support(7), why_no_namespaces="no namespaces")
    assert "network" not in box_level(alone, "full").reaches, "nothing was asked for"
    for net, reason in (("off", "loopback included"), ("proxy", "listed hosts included")):
        why = box_level(alone, net).reaches["network"]  # type: ignore[arg-type]
        assert reason in why
        assert "no namespaces" in why
    assert "network" not in unreached(FULL, "proxy")


BWRAP = "/usr/bin/bwrap"
OVERLAYS = Means(Support(6), bwrap=BWRAP, why_no_overlays="")


@every_row(
    ("means", "asked", "gives", "found"),
    [
        (OVERLAYS, "auto", False, "own"),
        (OVERLAYS, "auto", True, "own"),
        (OVERLAYS, "allow", False, "own"),
        (OVERLAYS, "deny", False, "none"),
        (replace(OVERLAYS, landlock=Support(5)), "auto", False, "none"),
        (replace(OVERLAYS, landlock=Support(5)), "allow", False, "all"),
        (replace(OVERLAYS, why_no_overlays="no such mount"), "auto", False, "none"),
        (replace(OVERLAYS, why_no_overlays="no such mount"), "auto", True, "all"),
        (Means(Support(8)), "auto", False, "none"),
        (Means(Support(8)), "auto", True, "all"),
        (Means(Support(8)), "allow", False, "all"),
        (Means(Support(9)), "auto", True, "own"),
        (Means(Support(9)), "deny", False, "none"),
        # Nothing refuses them there, so none can be denied.
        (Means(Support(8), why_no_filter="no filter"), "deny", False, "all"),
        (replace(OVERLAYS, why_no_filter="no filter"), "auto", False, "own"),
    ],
)
def test_commands_have_the_sockets_that_the_machine_can_tell_from_others(means, asked, gives, found) -> None:
    assert unix_sockets(means, asked, gives_sockets=gives) == found
    open_ = "sockets in the file system" in unreached(means, sockets=asked, gives_sockets=gives)
    assert open_ is (found == "all")


def test_the_reason_why_all_sockets_are_open_is_named() -> None:
    reasons = {
        "allow": "sandbox.unix_sockets = allow, and the kernel tells sockets of commands from others from Landlock 9 on, and",
        "auto": "a socket is given back, and the kernel",
    }
    for asked, reason in reasons.items():
        level = box_level(Means(Support(8)), "full", sockets=asked, gives_sockets=True)  # type: ignore[arg-type]
        assert level.reaches["sockets in the file system"].startswith(reason)
    for means, why in (
        (Means(Support(8)), "no namespaces"),
        (replace(OVERLAYS, landlock=Support(5)), "with overlays from 6 on"),
        (replace(OVERLAYS, why_no_overlays="no such mount"), "no overlays: no such mount"),
    ):
        assert why in means.why_not_own_sockets


def test_abstract_sockets_are_closed_by_the_filter_or_by_scopes() -> None:
    assert "abstract sockets" not in unreached(Means(Support(3)))
    assert "abstract sockets" in unreached(Means(Support(3), why_no_filter="no filter"))
    assert "abstract sockets" not in unreached(Means(Support(6), why_no_filter="no filter"))
