"""Who gets which argument, when two parsers share a command line."""

from __future__ import annotations

import pytest

from ralph.cli.passed_on import UnknownOptionError, split_arguments

OWN = {"--until": True, "--push": False, "-f": True, "--file": True, "-c": False, "--max": True}
OTHERS = {"--model": True, "--quiet": False, "-q": False, "-p": False, "-r": True, "--max": True, "-c": False}

ROWS = {
    "nothing": ("", "", ""),
    "arguments without a dash": ("do it", "do it", ""),
    "own": ("--push --until x", "--push --until x", ""),
    "the others'": ("--quiet --model x", "", "--quiet --model x"),
    "mixed, in their orders": ("--model a X --push --quiet", "X --push", "--model a --quiet"),
    "value with =": ("--until=x --model=y", "--until=x", "--model=y"),
    "value with a second =": ("--model=a=b", "", "--model=a=b"),
    "empty value with =": ("--model= X", "X", "--model="),
    "value that looks like an own option": ("--model --push X", "X", "--model --push"),
    "value that looks like one of the others'": ("--until --quiet X", "--until --quiet X", ""),
    "value that is --": ("--model -- X", "X", "--model --"),
    "value that is - ": ("--model - -", "-", "--model -"),
    "value missing at the end, the others'": ("X --model", "X", "--model"),
    "value missing at the end, own": ("--quiet --until", "--until", "--quiet"),
    "value for a flag": ("--push=1 --quiet=1", "--push=1", "--quiet=1"),
    "known to both": ("--max 3 -c", "--max 3 -c", ""),
    "repeated": ("--model a --model b", "", "--model a --model b"),
    "short": ("-f X -r Y -q", "-f X", "-r Y -q"),
    "short with its value": ("-fX -rY", "-fX", "-rY"),
    "short with = in its value": ("-f=X", "-f=X", ""),
    "short with a value like an option": ("-f -q -r -f", "-f -q", "-r -f"),
    "short, value missing": ("-q -f", "-f", "-q"),
    "cluster of the others'": ("-qp X", "X", "-qp"),
    "cluster of both": ("-qcp", "-c", "-qp"),
    "cluster that ends in an own value": ("-qpf X", "-f X", "-qp"),
    "cluster that ends in the others' value": ("-cqr X", "-c", "-qr X"),
    "cluster with its value": ("-qfqc", "-fqc", "-q"),
    "a lone dash": ("- --push", "- --push", ""),
    "behind --": ("--quiet -- --model x -q", "-- --model x -q", "--quiet"),
    "unknown behind --": ("-- --what", "-- --what", ""),
}


@pytest.mark.parametrize(("typed", "own", "others"), ROWS.values(), ids=ROWS.keys())
def test_each_parser_gets_its_options_with_their_values(typed, own, others) -> None:
    split = split_arguments(typed.split(), OWN, OTHERS)
    assert (list(split.own), list(split.passed_on)) == (own.split(), others.split())


def test_an_empty_argument_is_a_prompt_and_an_empty_value_a_value() -> None:
    split = split_arguments(["--model", "", ""], OWN, OTHERS)
    assert (split.own, split.passed_on) == (("",), ("--model", ""))


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("--what", "--what"),
        ("--what=secret", "--what"),
        ("X --push --mod x", "--mod"),
        ("--=x", "--"),
        ("-x", "-x"),
        ("-qx", "-x"),
        ("-push", "-u"),
        ("-fx --until -x -y", "-y"),
    ],
)
def test_an_option_that_neither_knows_is_refused_by_name(typed, named) -> None:
    with pytest.raises(UnknownOptionError) as refused:
        split_arguments(typed.split(), OWN, OTHERS)
    assert str(refused.value) == named
