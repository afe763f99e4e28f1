"""No test asserts that something took less than some time of a real clock, because the machine may be busy."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rows import every_row
from tests.syntax_trees import nodes_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

TESTS = Path(__file__).parent
CLOCKS = ("monotonic()", "perf_counter()", "time.time()")


def is_duration(expression: ast.expr, names: Container[str] = ()) -> bool:
    """Whether the reading of a clock minus something, or a name for that, is part of the expression."""
    return any(
        (
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Sub)
            and ast.unparse(part.left).endswith(CLOCKS)
        )
        or (isinstance(part, ast.Name) and part.id in names)
        for part in ast.walk(expression)
    )


def upper_bounds(function: ast.AST) -> Iterator[int]:
    """The lines of a function's assertions with an upper bound on a duration."""
    nodes = [*ast.walk(function)]
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and is_duration(node.value)]
    names = {ast.unparse(target) for node in assigned for target in node.targets}
    for asserted in [node.test for node in nodes if isinstance(node, ast.Assert)]:
        for part in ast.walk(asserted):
            if isinstance(part, ast.Compare):
                for left, order in zip([part.left, *part.comparators], part.ops, strict=False):
                    if isinstance(order, ast.Lt | ast.LtE) and is_duration(left, names):
                        yield part.lineno


def test_no_assertion_has_an_upper_bound_on_wall_clock_time() -> None:
    assert not [
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        if any(clock in path.read_text() for clock in CLOCKS)
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef)
        for line in upper_bounds(node)
    ]


@every_row(
    ("code", "lines"),
    [
        ("assert (code, 1 < time.monotonic() - began_s <= 20) == (0, True)", [1]),
        ("took_s = time.time() - began_s\nassert took_s < 20", [2]),
        ("took_s = perf_counter() - began_s\nassert took_s >= 20", []),
        ("assert 20 < time.monotonic() - began_s", []),
        ("assert time.process_time() - began_s < clock.seconds - began_s < 2", []),
        ("assert time.monotonic() < until_s", []),
    ],
)
def test_an_upper_bound_is_seen(code: str, lines: list[int]) -> None:
    assert [*upper_bounds(ast.parse(code))] == lines
