"""No test asserts that something took less than some time of a real clock, because the machine may be busy. No limit
on a wait ignores RALPH_TEST_PATIENCE.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rows import every_row
from tests.syntax_trees import nodes_below, nodes_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

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
    nodes = nodes_below(function)
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


WAITS = ("wait", "join", "settimeout")
"""The functions whose first argument is a limit in seconds. So is every argument `timeout=`."""
_MAY_WAIT = re.compile(rf"timeout=|\.({'|'.join(WAITS)})\([^)]|select\(")
RUNS_OUT = re.compile(r"(pytest\.raises|suppress)\(.*(TimeoutExpired|TimeoutError|Empty)")
"""A block in which a wait is meant to run out, so that no patience makes it safer."""
LONGEST_POLL_S = 1.0
OF_THE_SUBJECT = ("ok", "error", "hooks", "hooked")
"""Calls with a `timeout=` that is a setting of ralph, and no wait of the test."""
KNOWN = {
    "api/harness.py: self._thread.join(2.0)": "the thread may hang in a test's own function, and is a daemon",
    "machine/test_waiter.py: event.wait(0.05)": "it is meant to run out",
    "machine/test_starting.py: job.join(0.01)": "the join must end although the job goes on",
    "program/run/test_driver_conventions.py: subprocess.run(timeout=60)": "as long as the SDKs wait",
    "services/otlp_collector.py: one.join(5)": "a thread that tries to deliver to nobody ends on its own",
}
"""The limits that may ignore the patience, and why."""


def _limit_of(call: ast.Call) -> tuple[str, ast.expr] | None:
    """The name of the called function and its limit on a wait, if it has one."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    named = [each.value for each in call.keywords if each.arg == "timeout" and name not in OF_THE_SUBJECT]
    given = call.args[:1] if name in WAITS else call.args[3:4] if name == "select" else []
    return next(((name, limit) for limit in [*named, *given]), None)


def _seconds(limit: ast.expr, constants: Mapping[str, float]) -> float | None:
    if isinstance(limit, ast.Name):
        return constants.get(limit.id)
    is_number = isinstance(limit, ast.Constant) and isinstance(limit.value, int | float)
    return limit.value if is_number else None  # type: ignore[attr-defined]  # it is a constant


def impatient(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The calls that wait for a fixed number of seconds, given there or in a constant of the same file. A
    limit of 0 is no wait. One below `LONGEST_POLL_S` is a poll inside a loop or an argument of `wait_until`.
    """
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    constants = {
        ast.unparse(node.targets[0]): seconds
        for node in assigned
        if (seconds := _seconds(node.value, {})) is not None
    }
    repeated = [
        node
        for node in nodes
        if isinstance(node, ast.While | ast.For)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "wait_until")
    ]
    polls = {part for node in repeated for part in nodes_below(node)}
    running_out = {
        part
        for node in nodes
        if isinstance(node, ast.With) and any(RUNS_OUT.search(ast.unparse(item)) for item in node.items)
        for part in nodes_below(node)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and node not in running_out and (limit := _limit_of(node)):
            seconds = _seconds(limit[1], constants)
            if seconds and not (seconds < LONGEST_POLL_S and node in polls):
                function = ast.unparse(node.func)
                yield f"{function}({seconds})" if limit[0] in WAITS else f"{function}(timeout={seconds})"


def test_every_limit_on_a_wait_heeds_the_patience() -> None:
    found = {
        f"{path.relative_to(TESTS)}: {call}"
        for path in TESTS.rglob("*.py")
        if _MAY_WAIT.search(path.read_text())
        for call in impatient(nodes_of(path))
    }
    assert found == set(KNOWN)


@every_row(
    ("code", "calls"),
    [
        ("process.wait(10)", ["process.wait(10)"]),
        ("AT_MOST_S = 5\ndriver.join(AT_MOST_S)", ["driver.join(5)"]),
        ("connection.settimeout(0.5)", ["connection.settimeout(0.5)"]),
        ("items.get(timeout=2)", ["items.get(timeout=2)"]),
        ("select.select([fd], [], [], 5)", ["select.select(timeout=5)"]),
        ("while not over.wait(0.01):\n    pass", []),
        ("wait_until(lambda: over.wait(0.01))", []),
        ("while not over.wait(10):\n    pass", ["over.wait(10)"]),
        ("with pytest.raises(subprocess.TimeoutExpired):\n    process.wait(1.1)", []),
        ("select.select([fd], [], [], 0)", []),
        ("process.wait(PATIENCE_S), run(timeout=within_s(8)), ', '.join(words)", []),
        ("tools.error('Bash', command='sleep 9', timeout=300)", []),
    ],
)
def test_a_limit_that_ignores_the_patience_is_seen(code: str, calls: list[str]) -> None:
    assert [*impatient([*ast.walk(ast.parse(code))])] == calls
