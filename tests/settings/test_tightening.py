"""Tests which values of a repository's file replace a trusted value. None means that the value is looser and is
ignored.
"""

from __future__ import annotations

from ralph.values import setting as may
from tests.rows import every_row

ROWS = [
    (may.SMALLER, None, 5, 5),
    (may.SMALLER, 0, 5, 5),  # a clock that is off
    (may.SMALLER, 10, 5, 5),
    (may.SMALLER, 10, 10, 10),
    (may.SMALLER, 10, 10.5, None),
    (may.SMALLER, 10, 0, None),
    (may.SMALLER, None, 0, None),
    (may.FEWER_RETRIES, "patient", "standard", "standard"),
    (may.FEWER_RETRIES, "standard", "off", "off"),
    (may.FEWER_RETRIES, "standard", "patient", None),
    (may.FEWER_RETRIES, "patient", "patient", "patient"),
    (may.FEWER_RETRIES, "off", "standard", None),
    (may.FEWER_RETRIES, "custom", "standard", None),
    (may.FEWER_RETRIES, "custom", "off", "off"),
    (may.FEWER_RETRIES, "custom", "patient", None),
    (may.FEWER_RETRIES, "standard", "custom", None),
    (may.NARROWS, None, ("Bash",), ("Bash",)),
    (may.NARROWS, None, (), ()),
    (may.NARROWS, ("Bash", "Write"), ("Write", "Edit"), ("Write",)),
    (may.NARROWS, ("Bash",), ("Write",), ()),
    (may.NARROWS, ("Bash",), ("Bash", "Write"), None),
    (may.NARROWS, ("Bash",), ("Bash", "Read"), ("Bash",)),  # reading is allowed anyway
    (may.ADDS, (), ("Bash",), ("Bash",)),
    (may.ADDS, ("Write",), ("Bash",), ("Write", "Bash")),
    (may.ADDS, ("Bash",), (), None),
    (may.ADDS, ("Bash", "Write"), ("Bash",), None),
    (may.ADDS, ("Bash",), ("Bash",), ("Bash",)),
    (may.ANY, "opus", "haiku", "haiku"),
]


@every_row(("rule", "trusted", "wanted", "counts"), ROWS)
def test_a_value_counts_where_it_is_tighter(rule, trusted, wanted, counts) -> None:
    assert rule.apply(trusted, wanted) == counts
