"""Makes the loading of modules cheap. While ralph loads them, Python rarely searches for cyclic garbage (`gc`), and
libraries do not load modules that ralph never uses.
"""

from __future__ import annotations

import gc
import importlib
import sys
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_USUAL_THRESHOLDS = gc.get_threshold()
_CONTAINERS_OF_A_START = 200_000
"""The number of new containers after which Python searches for garbage while ralph loads its modules. A run of one
turn makes 60,000 containers before its request, and nearly all of them are parts of modules. With the usual
threshold, searches took a tenth of such a run's CPU time and found nothing."""


def put_off_garbage_collection() -> None:
    """Makes searches for garbage rare, until `begin_garbage_collection` is called. The searches are not switched off.
    Otherwise the garbage of an unusually long start could grow without limit.
    """
    gc.set_threshold(_CONTAINERS_OF_A_START)


def begin_garbage_collection() -> None:
    """Restores the usual thresholds. Objects that exist at this moment, mainly modules, are never searched again,
    because modules do not become garbage.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL_THRESHOLDS)


@contextmanager
def load_without(*names: str) -> Iterator[None]:
    """Loads libraries as if the modules `names` were not installed. Only for modules that a library does without if
    they are missing. A module that is already loaded stays. Afterwards, each of these modules can be imported again.
    """
    # None is the import system's own way to forbid a module.
    with _replaced(dict.fromkeys(names)):
        yield


def load_typer() -> None:
    """Loads typer with stand-ins for four modules: it uses two of them for the shells' completion and for `launch`, which
    ralph does not use, one for translations, which it does not have, and one for suggestions, which needs it only then.
    They take a fifth of typer's time.
    """
    gettext, difflib = ModuleType("gettext"), ModuleType("difflib")
    vars(gettext)["gettext"] = str
    vars(difflib)["get_close_matches"] = _close_matches
    unused = {name: ModuleType(name) for name in ("subprocess", "shellingham")}
    with _replaced({"gettext": gettext, "difflib": difflib, **unused}):
        importlib.import_module("typer")


def _close_matches(*arguments: Any) -> list[str]:
    found: list[str] = importlib.import_module("difflib").get_close_matches(*arguments)
    return found


@contextmanager
def load_without_openssl() -> Iterator[None]:
    """Libraries that are loaded inside, and may need TLS later, do so without the 5 MB of OpenSSL. They load `ssl` when
    they first use it, and their `hashlib` is `python_hashlib()`. If OpenSSL is already loaded, this changes nothing.
    Outside, everybody imports the usual modules.
    """
    if "_ssl" in sys.modules or "_hashlib" in sys.modules:
        yield
    else:
        with _replaced({"ssl": _LateSsl("ssl"), "hashlib": python_hashlib()}):
            yield


class _LateSsl(ModuleType):
    """Stands in for the module `ssl` in libraries. It has the attributes of that module, which it loads for the first of
    them. Two classes do not load it: httpcore asks of each connection whether its socket is an `SSLSocket`, and names
    `SSLContext` as a type. Without the module there is no object of these classes.
    """

    def __getattr__(self, name: str) -> Any:
        module = sys.modules.get("ssl")
        if name in ("SSLContext", "SSLSocket") and module in (None, self):
            return _NeverMade
        if module is self:
            raise ImportError(f"a library uses ssl.{name} while it is loaded")
        return getattr(importlib.import_module("ssl"), name)


class _NeverMade:
    """The class of no object."""


@cache
def python_hashlib() -> ModuleType:
    """A `hashlib` of Python's own functions, without OpenSSL. They are loaded sooner, and take four times as long for
    large data. The usual module, if this Python was built without functions of its own, as on some distributions.
    """
    try:
        for own in ("_md5", "_sha2" if sys.version_info >= (3, 12) else "_sha256"):
            importlib.import_module(own)
    except ModuleNotFoundError:
        return importlib.import_module("hashlib")
    usual = sys.modules.pop("hashlib", None)
    try:
        with load_without("_hashlib"):
            return importlib.import_module("hashlib")
    finally:
        sys.modules.pop("hashlib", None)
        if usual is not None:
            sys.modules["hashlib"] = usual


def short_digest(data: bytes, digits: int) -> str:
    """The first hexadecimal digits of the SHA-256 digest of `data`, for the names of directories and files that are made
    from paths of any length. `digits` is their number, at most 64.
    """
    digest: str = python_hashlib().sha256(data).hexdigest()
    return digest[:digits]


@contextmanager
def _replaced(modules: dict[str, ModuleType | None]) -> Iterator[None]:
    """Replaces modules while the block runs: imports get the given ones. A module that is already loaded stays."""
    added = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(added)  # type: ignore[arg-type]  # see `load_without`
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
