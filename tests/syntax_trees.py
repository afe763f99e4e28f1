"""The syntax trees of Python files, parsed once for all tests of a process. Nobody may change a tree."""

from __future__ import annotations

import ast
import functools
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file, the module first. The garbage collector pauses meanwhile: of the time to parse ralph, it
    would take two thirds.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [*ast.walk(ast.parse(path.read_bytes()))]
    finally:
        if was_enabled:
            gc.enable()


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    return module
