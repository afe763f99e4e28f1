"""Makes the loading of modules cheap. While ralph loads them, Python rarely searches for cyclic garbage (`gc`), and
libraries do not load modules that ralph never uses.
"""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    left_out = [name for name in names if name not in sys.modules]
    # The import system's own way to forbid a module.
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in left_out:
            del sys.modules[name]
