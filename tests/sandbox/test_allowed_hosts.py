from __future__ import annotations

import pytest

from ralph.sandbox.allowed_hosts import allowed_hosts
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


PUBLIC_OR_LISTED = "93.184.216.34 2606:2800:220:1::1 10.1.2.3 fd00::5 ::ffff:10.1.2.3"
OTHERS = """
10.2.0.1 127.0.0.1 0.0.0.0 169.254.169.254 192.168.1.1 100.64.0.1 224.0.0.1 255.255.255.255 ::1 :: fe80::1%eth0 fd00::6
::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2001:0:a9fe:a9fe::1 not-an-address
"""


def test_a_name_may_lead_to_public_and_to_listed_addresses_only() -> None:
    assert [one for one in PUBLIC_OR_LISTED.split() if not LIST.may_be_at(one)] == []
    assert [one for one in OTHERS.split() if LIST.may_be_at(one)] == []


@every_row(
    "entry",
    [
        "",
        *"* *. a.*.b *example.org http://example.org example.org/path example.org: example.org:0".split(),
        *"example.org:65536 example.org:https 127.1 10.0.0.1/8".split(),
    ],
)
def test_an_entry_of_another_form_is_an_error(entry) -> None:
    with pytest.raises(ValueError, match=r"neither|port"):
        allowed_hosts([entry])


def test_an_empty_list_allows_nothing() -> None:
    assert allowed_hosts([]).why_not("example.org", 443)
