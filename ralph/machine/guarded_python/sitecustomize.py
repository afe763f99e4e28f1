# ruff: noqa: INP001 - a directory of PYTHONPATH is not a package
"""Keeps each Python that finds this directory in PYTHONPATH from the modules of the directory in which it starts, if it runs a
statement, a module or its standard input. PYTHONSAFEPATH does that only from Python 3.11 on, and for scripts too, which need the
modules beside them.
"""

import os
import sys


class _Nothing:
    """A finder that finds no module."""

    @staticmethod
    def find_spec(*_: object) -> None:
        return None


if getattr(sys, "argv", [""])[0] in ("", "-", "-c", "-m"):
    sys.path_importer_cache[os.getcwd()] = _Nothing
