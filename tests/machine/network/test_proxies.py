"""Which proxy a URL gets, and which hosts NO_PROXY names."""

from __future__ import annotations

import pytest

from ralph.machine.network.proxies import is_exempt, proxy_for, proxy_in_words
from tests.rows import every_row

P, Q = "http://p.test:3128", "http://q.test:3128"


@every_row(
    ("exemptions", "named", "others"),
    [
        ("", "", "a.test 10.1.2.3 ::1"),
        ("*", "a.test 10.1.2.3 fd00::1", ""),
        ("a.test", "a.test A.TEST a.test. b.a.test", "ba.test test a.test.com 10.1.2.3"),
        (".a.test", "a.test b.a.test", "ba.test"),
        ("*.a.test", "a.test b.a.test c.b.a.test", "ba.test"),
        ("A.Test", "a.test", ""),
        ("x.test,a.test", "a.test x.test", "y.test"),
        (" x.test ,\ta.test  b.test\n", "a.test b.test x.test", "c.test"),
        ("a.test:8443", "a.test:8443 b.a.test:8443", "a.test a.test:443"),
        ("a.test:443", "a.test", "a.test:8443"),
        ("*.a.test:8443", "b.a.test:8443", "b.a.test"),
        ("10.1.2.3", "10.1.2.3 10.1.2.3:99 ::ffff:10.1.2.3", "10.1.2.33 110.1.2.3"),
        ("10.1.2.3:99", "10.1.2.3:99", "10.1.2.3"),
        ("10.0.0.0/8", "10.1.2.3 10.255.0.1:99 ::ffff:10.1.2.3", "11.1.2.3 a.test 10.test ::10.1.2.3"),
        ("10.9.9.9/8", "10.1.2.3", "11.0.0.1"),
        ("10.0.0.0/8:99", "10.1.2.3:99", "10.1.2.3"),
        ("192.168.*", "192.168.7.7", "192.169.7.7"),
        ("fd00::/8", "fd12::1", "fe80::1 10.1.2.3"),
        ("[fd00::]/8", "fd12::1", "fe80::1"),
        ("::2", "::2 0:0:0:0:0:0:0:2", "::3"),
        ("[::2]", "::2", "::3"),
        ("[::2]:99", "[::2]:99", "::2"),
        (".", "", "a.test"),
        ("..,:,[],/,10.0.0.0/99,a:b:c,*.", "", "a.test 10.1.2.3 ::1"),
    ],
)
def test_an_exemption_names_these_hosts_and_no_others(exemptions, named, others) -> None:
    for text, expected in ((named, True), (others, False)):
        for one in text.split():
            has_port = one.count(":") == 1 or "]:" in one
            host, port = one.rsplit(":", 1) if has_port else (one, "443")
            assert is_exempt(host.strip("[]"), int(port), exemptions) is expected, one


@every_row(
    ("url", "environment", "name"),
    [
        ("https://a.test", {}, None),
        ("https://a.test", {"HTTPS_PROXY": P}, "HTTPS_PROXY"),
        ("https://a.test", {"HTTP_PROXY": P}, None),
        ("http://a.test", {"HTTP_PROXY": P, "ALL_PROXY": Q}, "HTTP_PROXY"),
        ("https://a.test", {"HTTP_PROXY": P, "ALL_PROXY": P}, "ALL_PROXY"),
        ("https://a.test", {"HTTPS_PROXY": Q, "https_proxy": P}, "https_proxy"),
        ("https://a.test", {"HTTPS_PROXY": Q, "https_proxy": ""}, None),
        ("https://a.test", {"HTTPS_PROXY": P, "NO_PROXY": "a.test"}, None),
        ("https://a.test", {"HTTPS_PROXY": P, "NO_PROXY": "a.test", "no_proxy": ""}, "HTTPS_PROXY"),
        ("https://a.test", {"HTTPS_PROXY": P, "NO_PROXY": "a.test:80"}, "HTTPS_PROXY"),
        ("http://a.test", {"HTTP_PROXY": P, "NO_PROXY": "a.test:80"}, None),
        ("http://10.1.2.3", {"HTTP_PROXY": P, "no_proxy": "10.0.0.0/8"}, None),
        ("http://[fd00::1]:99/x", {"HTTP_PROXY": P, "no_proxy": "[fd00::1]:99"}, None),
        ("http://localhost:1", {"HTTP_PROXY": P}, None),
        ("http://127.3.2.1", {"ALL_PROXY": P}, None),
        ("http://a.test", {"HTTP_PROXY": P, "REQUEST_METHOD": "POST"}, None),
        ("http://a.test", {"http_proxy": P, "REQUEST_METHOD": "POST"}, "http_proxy"),
    ],
)
def test_the_variables_decide(url, environment, name) -> None:
    found = proxy_for(url, environment)
    assert (None if found is None else (found.name, found.url.plain)) == (name and (name, P))


def test_a_proxy_is_shown_without_its_password() -> None:
    environment = {"HTTPS_PROXY": "me:secret@p.test:3128"}
    assert proxy_in_words("https://a.test", environment) == "the proxy http://p.test:3128 (HTTPS_PROXY)"
    assert "secret" not in repr(proxy_for("https://a.test", environment))


@pytest.mark.parametrize(
    "proxy", ["socks5://p.test:1", "ftp://me:secret@p.test", "http://[::g]", "http://:1", "http://p:x"]
)
def test_a_proxy_that_cannot_be_used_is_a_value_error_without_its_url(proxy) -> None:
    with pytest.raises(ValueError, match=r"prox.*HTTPS_PROXY") as caught:
        proxy_for("https://a.test", {"HTTPS_PROXY": proxy})
    assert "secret" not in str(caught.value)
    assert proxy_in_words("https://a.test", {"HTTPS_PROXY": proxy}) == ""
