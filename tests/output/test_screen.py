"""How text is fitted to a terminal that is too small for it."""

from __future__ import annotations

from ralph.output.screen import fit_to_screen
from tests.rows import every_row


@every_row(
    ("lines", "rows", "shown"),
    [
        (["abc", ""], 2, ["abc", ""]),
        (["abcdefgh", "i"], 4, ["abcd", "efgh", "i"]),
        (["ab世界c"], 2, ["ab世", "界c"]),
        (["abcdefgh", "i", "j"], 3, ["abc…", "i", "j"]),
        (["abcde", "i", "j"], 2, ["abc…", "i"]),
    ],
)
def test_lines_are_folded_if_all_of_them_fit_and_otherwise_cut(
    lines: list[str], rows: int, shown: list[str]
) -> None:
    assert fit_to_screen(lines, 4, rows) == shown
