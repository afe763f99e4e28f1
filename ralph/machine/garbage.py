"""Controls how often Python searches for cyclic garbage (`gc`). While ralph loads its modules, Python searches
rarely. Later searches never examine these modules.
"""

from __future__ import annotations

import gc

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
