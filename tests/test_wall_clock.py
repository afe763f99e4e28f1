"""No test asserts that something took less than some time of a real clock, because the machine may be busy."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rows import every_row
from tests.syntax_trees import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

TESTS = Path(__file__).parent
CLOCKS = ("monotonic()", "perf_counter()", "time.time()")


def is_duration(expression: ast.expr, names: Iterable[str] = ()) -> bool:
    """Whether a reading of a clock minus something is part of the expression, or one of the names for that."""
    return any(
        (
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Sub)
            and ast.unparse(part.left).endswith(CLOCKS)
        )
        or (isinstance(part, ast.Name) and part.id in names)
        for part in ast.walk(expression)
    )


def upper_bounds(nodes: Iterable[ast.AST]) -> set[int]:
    """The lines of assertions with an upper bound on a duration, among all nodes of a file."""
    found = set()
    for function in nodes:
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = [*ast.walk(function)]
        names = {
            ast.unparse(target)
            for node in inside
            if isinstance(node, ast.Assign) and is_duration(node.value)
            for target in node.targets
        }
        for compared in [
            part for node in inside if isinstance(node, ast.Assert) for part in ast.walk(node.test)
        ]:
            if isinstance(compared, ast.Compare):
                sides = [compared.left, *compared.comparators]
                for left, order, right in zip(sides, compared.ops, sides[1:], strict=False):
                    smaller = left if isinstance(order, ast.Lt | ast.LtE) else right
                    if not isinstance(order, ast.Eq | ast.NotEq) and is_duration(smaller, names):
                        found.add(compared.lineno)
    return found


def test_no_assertion_has_an_upper_bound_on_wall_clock_time() -> None:
    assert not [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if any(clock in path.read_text() for clock in CLOCKS)
        for line in sorted(upper_bounds(nodes_of(path)))
    ]


@every_row(
    ("code", "is_wrong"),
    [
        ("assert time.monotonic() - began_s < 20", True),
        ("assert 1 < time.perf_counter() - began_s <= 2", True),
        ("assert (code, 20 > time.time() - began_s) == (0, True)", True),
        ("took_s = monotonic() - began_s\n assert took_s < 20", True),
        ("took_s = monotonic() - began_s\n assert took_s >= 20", False),
        ("assert 20 < time.monotonic() - began_s", False),
        ("assert time.process_time() - began_s < 2", False),
        ("assert clock.seconds - began_s < 2", False),
        ("assert time.monotonic() < until_s", False),
    ],
)
def test_an_upper_bound_is_seen(code: str, is_wrong: bool) -> None:
    assert bool(upper_bounds(ast.walk(ast.parse(f"def test():\n {code}")))) is is_wrong
