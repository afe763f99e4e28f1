"""Controls how often Python searches for cyclic garbage (`gc`). The search is rare while ralph loads its modules, and
never examines these modules later.
"""

from __future__ import annotations

import gc

_USUAL_THRESHOLDS = gc.get_threshold()
_CONTAINERS_OF_A_START = 200_000
"""The number of new containers after which a collection starts while ralph loads its modules. A run of one turn makes
60,000 containers before its request, nearly all of them parts of modules. With the usual threshold, collections took a
tenth of such a run's CPU time and found nothing."""


def put_off_garbage_collection() -> None:
    """Makes collections rare, until `begin_garbage_collection` is called.

    They are not switched off, so that the garbage of an unusually long start does not grow without limit.
    """
    gc.set_threshold(_CONTAINERS_OF_A_START)


def begin_garbage_collection() -> None:
    """Restores the usual thresholds. Objects that exist now, mainly modules, are never searched again, because modules
    are not garbage.
    """
    gc.freeze()
    gc.set_threshold(*_USUAL_THRESHOLDS)
