"""Makes the loading of modules cheap. While ralph loads them, Python rarely searches for cyclic garbage (`gc`), and
libraries do not load modules that ralph never uses.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_USUAL_THRESHOLDS = gc.get_threshold()
_CONTAINERS_OF_A_START = 200_000
"""The number of new containers after which Python searches for garbage while ralph loads its modules. A run of one
turn makes 60,000 containers before its request, and nearly all of them are parts of modules. With the usual
threshold, searches took a tenth of such a run's CPU time and found nothing."""


def put_off_garbage_collection() -> None:
    """Makes searches for garbage rare until `begin_garbage_collection`. Not off: an unusually long start could grow without limit."""
    gc.set_threshold(_CONTAINERS_OF_A_START)


def begin_garbage_collection() -> None:
    """Restores the usual thresholds. What exists now, mainly modules, is never searched again: modules do not become garbage."""
    gc.freeze()
    gc.set_threshold(*_USUAL_THRESHOLDS)


@contextmanager
def load_without(*names: str) -> Iterator[None]:
    """Loads libraries as if `names` were not installed: modules that a library can do without. One that is already loaded stays.
    Afterwards, each can be imported again.
    """
    # None is the import system's own way to forbid a module.
    with _replaced(dict.fromkeys(names)):
        yield


def load_typer() -> None:
    """Loads typer without modules of which ralph uses nothing, or only after a mistake: a third of its time. It uses them for
    shells' completion, `launch`, suggestions, and translations, which it does not have. `uuid` asks `platform` for the system's
    name, `inspect` reads source code with `ast` and `tokenize`, and `shutil` packs archives.
    """
    gettext, platform = ModuleType("gettext"), ModuleType("platform")
    vars(gettext)["gettext"] = str
    vars(platform)["system"] = lambda: os.uname().sysname
    late = {
        "ast": "NodeVisitor",
        "difflib": "get_close_matches",
        "subprocess": "",
        "tokenize": "",
        "typer.completion": "get_completion_inspect_parameters",
    }
    replaced = _replaced({"gettext": gettext, "platform": platform})
    with replaced, load_late(late), load_without("bz2", "lzma"):
        importlib.import_module("typer")


@contextmanager
def load_late(modules: Mapping[str, str]) -> Iterator[None]:
    """While this context is open, `import` of one of `modules` gives a placeholder, which loads the module when it is first used.
    If the module is loaded already, `import` gives the module itself.

    `modules` maps the name of a module to the names, separated by spaces, that libraries import from it (`from NAME import ...`).
    These are placeholders too, and load the module when first called.
    """
    stand_ins = {name: _LazyModule(name, taken.split()) for name, taken in modules.items()}
    with _replaced(stand_ins):
        for name, module in stand_ins.items():  # `import email.message` makes it an attribute of its package
            package, _, part = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).setdefault(part, module)
        yield


@contextmanager
def load_without_openssl() -> Iterator[None]:
    """Libraries that are loaded inside do without the 5 MB of OpenSSL: they load `ssl` and `hashlib` when they first use them.
    Changes nothing if OpenSSL is already loaded. Outside, everybody imports the usual modules.
    """
    if "_ssl" in sys.modules or "_hashlib" in sys.modules:
        yield
    else:
        # httpcore asks of each connection whether its socket is an `SSLSocket`. Without the module there is none.
        with load_late({"ssl": "SSLContext SSLSocket", "hashlib": "md5 sha1 sha256 sha512"}):
            yield


class _LazyModule(ModuleType):
    """Has the attributes of a module, which it loads for the first of them. Until then, the attributes `taken` are stand-ins too."""

    def __init__(self, name: str, taken: Iterable[str]) -> None:
        super().__init__(name)
        self._stand_ins = {one: _late(name, one) for one in taken}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = sys.modules.get(self.__name__)
        if name in self._stand_ins and module in (None, self):
            return self._stand_ins[name]
        if module is self:  # another version of the library takes more out of it: all are loaded as usual
            for one in [key for key, value in sys.modules.items() if isinstance(value, _LazyModule)]:
                del sys.modules[one]
        return getattr(importlib.import_module(self.__name__), name)


def _late(module: str, name: str) -> type:
    """A stand-in for a class or function of a module that is not loaded. A call of it calls the real one. A subclass gets the
    real class as its base when its first object is made.
    """

    def call(cls: type, *arguments: Any, **keywords: Any) -> Any:
        real = getattr(importlib.import_module(module), name)
        if cls is stand_in:
            return real(*arguments, **keywords)
        # Python keeps the constructor of a class whose bases change.
        for attribute, value in (
            ("__bases__", (real,)),
            ("__new__", lambda own, *_, **__: object.__new__(own)),
        ):
            setattr(cls, attribute, value)
        return object.__new__(cls)

    stand_in = type(name, (), {"__new__": call})
    return stand_in


def python_sha256(data: bytes) -> str:
    """The hexadecimal SHA-256 without OpenSSL: loaded sooner, and four times as slow for large data. The usual function, if this
    Python was built without one of its own, as on some distributions.
    """
    try:
        own = importlib.import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    except ModuleNotFoundError:
        own = importlib.import_module("hashlib")
    digest: str = own.sha256(data).hexdigest()
    return digest


def short_digest(data: bytes, digits: int) -> str:
    """The first `digits` (at most 64) of the hexadecimal SHA-256 of `data`, for names made from paths of any length."""
    return python_sha256(data)[:digits]


@contextmanager
def _replaced(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    added = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(added)  # type: ignore[arg-type]  # see `load_without`
    try:
        yield
    finally:
        for name, module in added.items():
            if sys.modules.get(name) is module:
                sys.modules.pop(name, None)
