from __future__ import annotations

from ralph.sandbox.kernel.landlock import Support
from ralph.sandbox.levels import STRICT, Means, box_level
from tests.rows import every_row

FULL = Means(Support(9), bwrap="/usr/bin/bwrap", has_network_namespace=True)
CLOSED = Means(Support(0, "no Landlock"), "no rights", "no filter", None, "no namespaces")


def unreached(means: Means, net="full", **options: bool) -> set[str]:
    return {*box_level(means, net, **options).missing()}


def test_a_machine_with_everything_reaches_everything() -> None:
    level = box_level(FULL, "off")
    assert level.name == "namespaces"
    assert level.missing() == {}


def test_a_machine_with_nothing_says_so_of_each_protection() -> None:
    level = box_level(CLOSED, "off")
    assert level.name == "none"
    assert level.missing() == level.reaches
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
def test_older_landlock_misses_what_it_does_not_know(abi: int, missing: set[str]) -> None:
    level = box_level(Means(Support(abi), why_no_namespaces="no namespaces"), "full")
    assert level.name == "landlock"
    assert {*level.missing()} & {*STRICT} == missing


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


def test_one_socket_given_back_opens_all_before_landlock_9() -> None:
    assert "sockets in the file system" in unreached(Means(Support(8)), gives_sockets=True)
    assert "sockets in the file system" not in unreached(Means(Support(9)), gives_sockets=True)


def test_abstract_sockets_are_closed_by_the_filter_or_by_scopes() -> None:
    assert "abstract sockets" not in unreached(Means(Support(3)))
    assert "abstract sockets" in unreached(Means(Support(3), why_no_filter="no filter"))
    assert "abstract sockets" not in unreached(Means(Support(6), why_no_filter="no filter"))
