"""Loading a library without a module that it can do without (`ralph/machine/loading.py`)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from ralph.machine.loading import load_without, load_without_openssl, python_sha256

ROOT = Path(__file__).parents[2]


def test_a_module_is_missing_only_while_the_library_is_loaded() -> None:
    sys.modules.pop("colorsys", None)
    with pytest.raises(ModuleNotFoundError), load_without("colorsys"):
        import_module("colorsys")
    assert import_module("colorsys").rgb_to_hsv


def test_a_module_that_is_loaded_already_stays() -> None:
    before = import_module("colorsys")
    with load_without("colorsys"):
        assert import_module("colorsys") is before
    assert import_module("colorsys") is before


ALONE = """
import sys
from ralph.machine.loading import load_without_openssl

with load_without_openssl():
    import hashlib as light, http.client, ssl as late
    assert not isinstance(object(), late.SSLSocket)
    functions = light.md5, light.sha1, light.sha256, light.sha512
assert not {"_ssl", "_hashlib"} & sys.modules.keys()
assert functions[2](b"x").hexdigest().startswith("2d711642")
assert late.CERT_REQUIRED == 2
import hashlib, ssl
assert ssl is not late and late.SSLSocket is ssl.SSLSocket
assert hashlib is not light and "openssl" in hashlib.sha256.__name__
assert http.client.HTTPSConnection("localhost")._context.verify_mode == ssl.CERT_REQUIRED
"""


def test_libraries_load_openssl_when_they_first_use_it_and_others_as_usual() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, cwd=ROOT)


WITH_COOKIES = """
import os, sys
from ralph.api.transport import httpx

late = {"certifi", "email", "http.client", "http.cookiejar", "httpcore._async", "idna", "mimetypes", "urllib.request"}
assert not late & sys.modules.keys(), late & sys.modules.keys()
with httpx.Client() as client:
    answers = [client.get(os.environ["URL"]) for _ in range(2)]
assert [answer.text for answer in answers] == ["ä", "ä"]
assert dict(answers[0].cookies) == {"a": "b"}
assert httpx.URL("http://müller.de").raw_host == b"xn--mller-kva.de"
import email.message, httpcore, urllib.request
assert httpcore.AsyncConnectionPool().connections == []
assert urllib.request.Request("http://x").host == "x" and email.message.Message().keys() == []
"""


class Baker(BaseHTTPRequestHandler):
    """Answers with a cookie and a letter beyond ASCII."""

    cookies: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.cookies.append(self.headers["cookie"])
        self.send_response(200)
        self.send_header("set-cookie", "a=b")
        self.send_header("content-type", "text/plain; charset=latin-1")
        self.end_headers()
        self.wfile.write("ä".encode("latin-1"))


MORE = """
import sys
from ralph.machine.loading import load_late

with load_late({"colorsys": "", "email": "", "email.message": "", "urllib.request": "Request"}):
    from urllib.request import Request, urlopen
    assert Request("http://x").host == "x" and callable(urlopen)
    import email.message, colorsys
    assert email.message.Message().keys() == []
assert sys.modules["email.message"] is email.message and colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
"""


def test_a_library_that_takes_more_out_of_a_module_than_is_known_gets_the_usual_ones() -> None:
    subprocess.run([sys.executable, "-c", MORE], check=True, cwd=ROOT)


def test_what_httpx_loads_late_works_when_it_is_used() -> None:
    """Cookies, sets of characters, names of hosts beyond ASCII: ralph uses none of them, another user of httpx may."""
    with HTTPServer(("127.0.0.1", 0), Baker) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        environment = {**os.environ, "URL": f"http://127.0.0.1:{server.server_port}/"}
        subprocess.run([sys.executable, "-c", WITH_COOKIES], check=True, cwd=ROOT, env=environment)
        server.shutdown()
    assert Baker.cookies == [None, "a=b"]


def test_where_openssl_is_loaded_libraries_get_it() -> None:
    usual = import_module("ssl")
    with load_without_openssl():
        assert import_module("ssl") is usual
    assert python_sha256(b"x") == hashlib.sha256(b"x").hexdigest()
