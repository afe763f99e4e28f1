"""Finds what may be a path in a command or in a value of git's configuration, from its text alone."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from shlex import shlex
from typing import TYPE_CHECKING

from ralph.machine.files.paths import git_installation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_WORD = re.compile(r"[^\s\"'`;|&()<>$=!]+")
# Of `${NAME...}` the value counts, or what stands there in its place (bash(1), Parameter Expansion).
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*)|(?::?\?|[%#/^,@]|: *\d)[^{}]*)?\})")
_WORKING_DIRECTORY = re.compile(
    r"(?:\$\(|`)(?:pwd|realpath \.|git rev-parse --show-toplevel)(?: 2> ?/dev/null)?[)`]|(?<!\S)~\+(?=/)"
)
_MOST_ROUNDS = 5
_ASSIGNED = re.compile(r"(?<![\w$])(\w+)\+?=([^\s;|&()<>]*)")
_QUOTES = re.compile(r"[\"'`\\]")
# A word that may be the name of a variable that the line sets, such as that of `read`, `for` or an assignment.
_MAY_BE_SET = re.compile(r"(?<![\w$/.{~-])[A-Za-z_]\w*(?![\w/.])")
# A variable of which `_ASSIGNED` does not give the value: it gets longer, or has what quotes keep from the shell.
_NOT_READ = re.compile(
    r"(?<![\w$])(\w+)(?:\+=|=[^\s;|&()<>]*\\|=[^\s;|&()<>\"']*([\"'])(?:(?!\2).)*[\s;|&()<>])", re.DOTALL
)
# Where an absolute path or one of a home begins, and where it may end: at white space, at a quote, or with the text.
_PATH_BEGINS = re.compile(r"(?:(?<![^\s\"'`;|&()<>=,:!{])|(?<=\s-[A-Za-z]))[/~]")
_PATH_ENDS = tuple(map(re.compile, (r"[\s;|&()<>:,]", r"[\"'`]", r"\Z")))
# Characters of a path that mean something else to a shell. A character for private use stands for each in texts with values.
_SPECIAL = " \t\n'\"`\\;|&()<>$=![]{}*?#~,:%"
_HIDDEN = {ord(char): 0xE000 + ord(char) for char in _SPECIAL}
_KEPT = {char: hidden for char, hidden in _HIDDEN.items() if chr(char) not in " \t\n"}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
_OF_INSTALLATION = "%(prefix)/"


def shown(text: str) -> str:
    """A text with the characters of paths that `with_values` has hidden."""
    return text.translate(_SHOWN)


def assigned(text: str) -> list[tuple[str, str]]:
    """The variables that a text sets, each with a value as it is written, without quotes."""
    return _ASSIGNED.findall(_QUOTES.sub("", text))


def with_values(text: str, known: Mapping[str, str], *, only_sure: bool = False) -> str:
    """A text with the values of variables, also of those that it sets. With `only_sure`, no value stands for a variable that may have
    another one.
    """
    text = _WORKING_DIRECTORY.sub("$PWD", text)
    for _ in range(_MOST_ROUNDS):
        given = assigned(text)
        values = {**dict(given), **known}
        if only_sure:
            set_again = {*_MAY_BE_SET.findall(_QUOTES.sub("", text))}
            set_again -= {name for name, value in given if f"${name}" in value}
            times = Counter(name for name, _ in {*given})
            times.update(found[1] for found in _NOT_READ.finditer(text))
            sure = {name: one for name, one in given if times[name] == 1 and "$" not in one}
            values = {name: value for name, value in known.items() if name not in set_again} | sure
        text = _VARIABLE.sub(partial(_value, values, hidden=only_sure), text)
    return text


def _value(values: Mapping[str, str], found: re.Match[str], *, hidden: bool) -> str:
    value = values.get(found[1] or found[2])
    if value:
        is_path = value.startswith("/") and os.path.exists(value)
        return value.translate(_HIDDEN) if is_path else value.translate(_KEPT) if hidden else value
    return found[0] if found[3] is None else found[3]


def paths_in(text: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yields what may be a path in a command or another value: absolute paths, with `~` and variables replaced, and every word
    that could be a relative one. A path may have spaces or be quoted, so there are several for each place where one begins, of
    which the longest may have more behind it.
    """
    home, text = variables.get("HOME", ""), with_values(text, variables)
    for form in dict.fromkeys((text, _QUOTES.sub("", text))):
        for begin in _PATH_BEGINS.finditer(form):
            ends = (one.search(form, begin.start()) for one in _PATH_ENDS)
            found = (absolute_path(form[begin.start() : end.start()], "/", home) for end in ends if end)
            yield from map(shown, found)
        yield from (shown(word) for word in _WORD.findall(form) if word[0] not in "/~")
        words = shlex(form, posix=True, punctuation_chars=True)
        words.whitespace_split, words.commenters = True, ""
        with suppress(ValueError):  # a quote without its end
            yield from (absolute_path(shown(word), "", home) for word in words if word)


def absolute_path(value: str, directory: str, home: str) -> str:
    """An absolute path as git reads it (git-config(1), pathname). `%(prefix)` is the directory in which git is installed."""
    if value.startswith(_OF_INSTALLATION):
        return os.path.normpath(f"{git_installation()}/{value.removeprefix(_OF_INSTALLATION)}")
    if value == "~" or value.startswith("~/"):
        return f"{home}{value[1:]}"
    return os.path.join(directory, os.path.expanduser(value) if value.startswith("~") else value)
