"""Loading a library without a module that it can do without (`ralph/machine/loading.py`)."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from ralph.machine.loading import load_without


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
