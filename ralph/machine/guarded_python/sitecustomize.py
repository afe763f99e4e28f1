# ruff: noqa: INP001 - a directory of PYTHONPATH is not a package
"""Keeps each Python that finds this directory in PYTHONPATH from the modules of the directory in which it starts, if it runs a
statement, a module or its standard input. PYTHONSAFEPATH does that only from Python 3.11 on, and for scripts too, which need the
modules beside them. From the places in RALPH_OPEN_PLACES it takes modules last, and no `usercustomize`.
"""

import os
import sys


class _Nothing:
    """A finder that finds no module."""

    @staticmethod
    def find_spec(*_: object) -> None:
        return None


_open = [one for one in os.environ.get("RALPH_OPEN_PLACES", "").split(os.pathsep) if one]


def _is_open(path: str) -> bool:
    real = os.path.realpath(path)
    return any(f"{real}/".startswith(f"{one.rstrip('/')}/") for one in _open)


# An editable installation puts a directory of the work there: its modules count last, and none of them runs unasked.
_late = [path for path in sys.path if _open and _is_open(path)]
if _late:
    sys.path[:] = [path for path in sys.path if path not in _late] + _late
    _ends = (".py", ".pyc", "/__init__.py")
    if not any(
        os.path.exists(f"{path}/usercustomize{end}") for path in sys.path[: -len(_late)] for end in _ends
    ):
        sys.modules["usercustomize"] = type(sys)("usercustomize")
if getattr(sys, "argv", [""])[0] in ("", "-", "-c", "-m"):
    sys.path_importer_cache[os.getcwd()] = _Nothing
