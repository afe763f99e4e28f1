from __future__ import annotations

import pytest

from ralph.sandbox.network.allowed_hosts import allowed_hosts
from tests.rows import every_row

LIST = allowed_hosts(["Example.org", "*.pypi.example", "git.example.net:8443", "10.1.0.0/16", "fd00::5"])


@every_row(
    "host, port, reason",
    [
        ("example.org", 443, ""),
        ("EXAMPLE.org.", 80, ""),
        ("files.pypi.example", 443, ""),
        ("a.b.pypi.example", 443, ""),
        ("git.example.net", 8443, ""),
        ("git.example.net", 443, "port 443"),
        ("example.org", 22, "port 22"),
        ("pypi.example", 443, "not on the list"),
        ("evilpypi.example", 443, "not on the list"),
        ("sub.example.org", 443, "not on the list"),
        ("example.org.evil.example", 443, "not on the list"),
        ("10.1.0.5", 443, "an address"),
        ("127.1", 80, "an address"),
        ("0x7f000001", 80, "an address"),
        ("2130706433", 80, "an address"),
        ("[::1]", 443, "an address"),
        ("::1", 443, "an address"),
        ("1.2.3.4.", 443, "an address"),
        ("", 443, "not the name"),
        ("example.org\0.evil", 443, "not the name"),
        ("user@example.org", 443, "not the name"),
        ("ex\u00e4mple.org", 443, "not the name"),
        ("-x.pypi.example", 443, "not the name"),
        ("..pypi.example", 443, "not the name"),
        (".pypi.example", 443, "not the name"),
    ],
)
def test_only_listed_names_on_their_ports_may_be_reached(host, port, reason) -> None:
    found = LIST.why_not(host, port)
    assert reason in found
    assert bool(found) is bool(reason)


@every_row(
    "address, may",
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.1.2.3", True),
        ("fd00::5", True),
        ("10.2.0.1", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::6", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.1.2.3", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("2001:0:a9fe:a9fe::1", False),
        ("not an address", False),
    ],
)
def test_a_name_may_lead_to_public_and_to_listed_addresses_only(address, may) -> None:
    assert LIST.may_be_at(address) is may


@every_row(
    "entry",
    [
        "*",
        "*.",
        "",
        "a.*.b",
        "*example.org",
        "http://example.org",
        "example.org/path",
        "example.org:",
        "example.org:0",
        "example.org:65536",
        "example.org:https",
        "127.1",
        "10.0.0.1/8",
    ],
)
def test_an_entry_of_another_form_is_an_error(entry) -> None:
    with pytest.raises(ValueError, match=r"neither|port"):
        allowed_hosts([entry])


def test_an_empty_list_allows_nothing() -> None:
    assert allowed_hosts([]).why_not("example.org", 443)
