"""Loading a library without a module that it can do without (`ralph/machine/loading.py`)."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ralph.machine.loading import load_without, load_without_openssl, python_hashlib

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
assert light.sha256(b"x").hexdigest().startswith("2d711642"), "Python's own function"
assert not {"_ssl", "_hashlib"} & sys.modules.keys()
assert late.CERT_REQUIRED == 2
import hashlib, ssl
assert ssl is not late and late.SSLSocket is ssl.SSLSocket
assert hashlib is not light and "openssl" in hashlib.sha256.__name__
assert http.client.HTTPSConnection("localhost")._context.verify_mode == ssl.CERT_REQUIRED
"""


def test_libraries_load_openssl_when_they_first_use_it_and_others_as_usual() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, cwd=ROOT)


def test_where_openssl_is_loaded_libraries_get_it() -> None:
    usual = import_module("ssl")
    with load_without_openssl():
        assert import_module("ssl") is usual
    assert python_hashlib().sha256(b"x").digest() == hashlib.sha256(b"x").digest()
