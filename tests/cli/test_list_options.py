"""Which words belong to a list, and which could be a prompt."""

from __future__ import annotations

import pytest

from ralph.cli.list_options import EmptyListError, spread_lists
from tests.rows import every_row

OPTIONS = {"--tools": True, "--dir": True, "--model": True, "-f": True, "-q": False, "-p": False}
LISTS = {"--tools", "--dir"}

# Typed, spread, the list that reaches to the end.
ROWS = {
    "no list": ("x --model y -q", "x --model y -q", None),
    "up to the next option": ("--tools A B -p x", "--tools=A --tools=B -p x", None),
    "to the end": ("x --tools A B", "x --tools=A --tools=B", "--tools"),
    "with =, one word": ("--tools=A x", "--tools=A x", None),
    "repeated": ("--tools A --tools B", "--tools=A --tools=B", "--tools"),
    "two lists": ("--tools A --dir b c", "--tools=A --dir=b --dir=c", "--dir"),
    "ended by --": ("--tools A -- x y", "--tools=A -- x y", None),
    "ended by standard input": ("--tools A -", "--tools=A -", None),
    "behind --": ("-- --tools A B", "-- --tools A B", None),
    "value of another option": ("--model --tools A", "--model --tools A", None),
    "value of a short option": ("-f --tools A", "-f --tools A", None),
    "value of a cluster": ("-qf --tools A", "-qf --tools A", None),
    "short option with its value": ("-fx --tools A", "-fx --tools=A", "--tools"),
    "flags before it": ("-qp --tools A -q", "-qp --tools=A -q", None),
    "unknown option": ("--what --tools A", "--what --tools=A", "--tools"),
}


@every_row(("typed", "spread", "last"), ROWS.values())
def test_all_words_up_to_the_next_option_are_the_lists(typed, spread, last) -> None:
    found = spread_lists(typed.split(), OPTIONS, LISTS)
    assert (" ".join(found.words), found.last_list) == (spread, last)


def test_an_empty_word_is_an_empty_list() -> None:
    assert spread_lists(["--tools", "", "-q"], OPTIONS, LISTS).words == ("--tools=", "-q")


@every_row("typed", ["--tools", "--tools -q", "--tools -- x", "--tools -"])
def test_a_list_without_a_word_is_refused_by_name(typed) -> None:
    with pytest.raises(EmptyListError, match="--tools"):
        spread_lists(typed.split(), OPTIONS, LISTS)
