"""Tests which words belong to an option, what value they give, which word may be a prompt, how options are kept to be
passed on, and what is said about words that do not fit.
"""

from __future__ import annotations

import pytest

from ralph.cli.commands import LineError
from ralph.cli.line_command import LineCommand, Section, Typed
from ralph.cli.line_reader import ReadLine, read_line
from tests.cli.lines import ExampleLine
from tests.rows import every_row


def call(_line: ExampleLine, _typed: Typed) -> int:
    return 0


[PARAMETERS] = LineCommand("example", call, (Section(ExampleLine),)).parameters()


def reading(*words: str) -> ReadLine:
    return read_line(words, PARAMETERS)


# Typed, options as they are handed on, the word that belongs to none, the list that reaches to the end.
ROWS = {
    "no list": ("x --model y -q", "--model y -q", "x", None),
    "up to the next option": ("--tools A B -p x", "--tools=A --tools=B -p", "x", None),
    "to the end": ("x --tools A B", "--tools=A --tools=B", "x", "--tools"),
    "with =, one word": ("--tools=A x", "--tools=A", "x", None),
    "repeated": ("--tools A --tools B", "--tools=A --tools=B", "", "--tools"),
    "two lists": ("--tools A --dir b c", "--tools=A --dir=b --dir=c", "", "--dir"),
    "ended by --": ("--tools A -- x", "--tools=A", "x", None),
    "ended by standard input": ("--tools A -", "--tools=A", "-", None),
    "behind --": ("-- --tools", "", "--tools", None),
    "value of another option": ("--model --tools A", "--model --tools", "A", None),
    "value of a short option": ("-f --tools A", "-f --tools", "A", None),
    "value of a cluster": ("-qf --tools A", "-qf --tools", "A", None),
    "short option with its value": ("-fx --tools A", "-fx --tools=A", "", "--tools"),
    "flags before it": ("-qp --tools A -q", "-qp --tools=A -q", "", None),
}


@every_row(("typed", "options", "word", "last"), ROWS.values())
def test_all_words_up_to_the_next_option_are_the_lists(typed, options, word, last) -> None:
    read = reading(*typed.split())
    words = [word for option in read.options for word in option.words]
    assert (" ".join(words), read.values.get("word", ""), read.last_list) == (options, word, last)


@every_row(
    ("typed", "word"),
    [
        ("-d api -p x", "x"),
        ("--debug api,hooks x", "x"),
        ("x --debug api", "x"),
        ("-d x", "x"),
        ("--debug -p x", "x"),
        ("--debug=api x", "x"),
    ],
)
def test_a_word_too_many_behind_an_option_that_may_have_a_value_is_its_value(typed, word) -> None:
    values = reading(*typed.split()).values
    assert (values["word"], values["debug"]) == (word, True)


def test_an_empty_word_is_an_empty_list() -> None:
    assert [option.words for option in reading("--tools", "", "-q").options] == [("--tools=",), ("-q",)]


VALUES = {
    "value that begins with a dash": (["--turns", "-5"], {"turns": -5}),
    "value that is an option": (["--model", "--quiet"], {"model": "--quiet"}),
    "value that is --": (["--model", "--", "x"], {"model": "--", "word": "x"}),
    "empty value": (["--model="], {"model": ""}),
    "value with =": (["--model=a=b"], {"model": "a=b"}),
    "short option with =": (["-f=x"], {"file": "=x"}),
    "cluster that ends with a value": (["-qpn7"], {"quiet": True, "plain": True, "turns": 7}),
    "letters of a value": (["-fqp"], {"file": "qp"}),
    "the last of several counts": (["-n1", "--turns=2", "--turns", "3"], {"turns": 3}),
    "a wrong value that another replaces": (["--turns=x", "--turns=2"], {"turns": 2}),
    "another spelling": (["--Tools=A", "--tools=B"], {"tools": ("A", "B")}),
    "number": (["--price=1e3"], {"price": 1000.0}),
    "choice": (["--form=json"], {"form": "json"}),
    "word between options": (["-q", "x", "-p"], {"quiet": True, "word": "x", "plain": True}),
    "standard input": (["-"], {"word": "-"}),
    "empty word": ([""], {"word": ""}),
}


@every_row(("words", "values"), VALUES.values())
def test_values_have_the_types_of_their_options(words, values) -> None:
    assert reading(*words).values == values


REFUSED = {
    "unknown": (["--quick"], "No such option: --quick (Possible options: --quiet)"),
    "the most similar first": (["--forme"], "No such option: --forme (Possible options: --form, --file)"),
    "unlike any": (["--zzz=1"], "No such option: --zzz"),
    "abbreviated": (["--qui"], "No such option: --qui"),
    "unknown word, like a letter": (["--n=2"], "No such option: --n (Possible options: --turns, --plain"),
    "unknown letter": (["-qz"], "No such option: -z"),
    "a dash too many": (["---quiet"], "No such option: ---quiet (Possible options: --quiet)"),
    "an unknown option before the help": (["--zzz", "--help"], "No such option: --zzz"),
    "unprintable": (["-\x1b"], r"No such option: -\x1b"),
    "no value": (["--model"], "Option '--model' requires an argument"),
    "no value, short": (["-qf"], "Option '-f' requires an argument"),
    "a value too many": (["--quiet=yes"], "Option '--quiet' does not take a value"),
    "no whole number": (["-n", "1.5"], "Invalid value for '--turns' / '-n': '1.5' is not a whole number"),
    "no number": (["--price", "x"], "Invalid value for '--price': 'x' is not a number"),
    "no choice": (["--form=xml"], "Invalid value for '--form': 'xml' is not one of 'text', 'json'"),
    "the first wrong value": (["--price=x", "--turns=x", "y", "z"], "Invalid value for '--price': 'x'"),
    "words too many": (["x", "y", "--", "-q"], "Got unexpected extra argument(s) (y -q)"),
    "words too many after --": (["--", "x", "y", "-q"], "Got unexpected extra argument(s) (y -q)"),
    "no word of a list of tools": (["--tools"], '--tools needs a word at least; --tools "" is an empty list'),
    "no word of another list": (["--dir"], "--dir needs a word at least; leave it out to name none"),
    "option instead of a word": (["--tools", "-q"], "--tools needs a word at least"),
    "-- instead of a word": (["--tools", "--", "x"], "--tools needs a word at least"),
    "standard input instead of a word": (["--tools", "-"], "--tools needs a word at least"),
}


@every_row(("words", "says"), REFUSED.values())
def test_words_that_do_not_fit_are_refused_by_name(words, says) -> None:
    with pytest.raises(LineError) as refused:
        reading(*words)
    assert str(refused.value).startswith(says)
