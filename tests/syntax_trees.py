"""The syntax trees of Python files, parsed once for all tests of a process. Nobody may change a tree."""

from __future__ import annotations

import ast
import functools
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def nodes_below(tree: ast.AST) -> list[ast.AST]:
    """A node and all nodes below it, without `Load`, `Store` and operators, of which there are as many as names. Takes
    half as long as `ast.walk`. Comparisons keep their operators.
    """
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                nodes.append(value)
    return nodes


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """The nodes of a file (`nodes_below`), the module first. The garbage collector pauses meanwhile: of the time to
    parse ralph, it would take two thirds.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return nodes_below(ast.parse(path.read_bytes()))
    finally:
        if was_enabled:
            gc.enable()


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    return module
