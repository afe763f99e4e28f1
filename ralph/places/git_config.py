"""Reads the text of a git configuration, and says which of its settings make git run a program or look elsewhere. No I/O
happens here: git itself would follow `include.path`, and this module names such a line instead.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STANDARD_LFS = re.compile(r"git-lfs (?:(?:clean|smudge(?: --skip)?) -- %f|filter-process(?: --skip)?)|true")
"""The values that `git lfs install --local` writes. They run the user's own git-lfs, which git finds on PATH."""

LFS_STORAGE = ("lfs.storage", "lfs")
"""The setting with which git-lfs keeps its files in its own directory of the git directory, as it does without one."""

WORKTREE = "core.worktree"
ATTRIBUTES = "core.attributesfile"
UNREADABLE = "a line that is not a setting"
_SUBMODULE = "submodule."

# git-config(1). The name between the dots may be empty, and may contain any character.
_PROGRAMS = re.compile(
    r"core\.(?:fsmonitor|hookspath|sshcommand|pager|editor|askpass|gitproxy|alternaterefscommand|worktree)"
    r"|(?:pager|alias)\..*|(?:diff|merge)\.(?:gui)?tool|sequence\.editor|init\.templatedir|credential\.(?:.*\.)?helper"
    r"|gpg\.(?:.*\.)?program|gpg\.ssh\.defaultkeycommand"
    r"|diff\.external|diff\..*\.(?:command|textconv)|merge\..*\.driver|filter\..*\.(?:clean|smudge|process)"
    r"|interactive\.difffilter|hook\..*\.command|trailer\..*\.(?:command|cmd)"
    r"|remote\..*\.(?:receivepack|uploadpack|vcs)|uploadpack\.packobjectshook|gc\.recentobjectshook"
    r"|(?:mergetool|difftool|browser|man|guitool)\..*\.(?:cmd|path)|web\.browser|instaweb\..*|imap\.tunnel"
    r"|sendemail\.(?:.*\.)?(?:smtpserver|tocmd|cccmd|headercmd|sendmailcmd)"
    r"|submodule\..*\.update|tar\..*\.command|include\.path|includeif\..*\.path"
    r"|lfs\.(?:extension|customtransfer)\..*|lfs\.standalonetransferagent|protocol\.(?:.*\.)?allow"
    # Git writes the server's cookies into the file.
    r"|http\.(?:.*\.)?(?:cookiefile|savecookies)",
    re.DOTALL,
)
_SWITCHED = re.compile(r"true|false|yes|no|on|off|1|0|", re.IGNORECASE)
# Options with which these write a file, or run what another setting names. Git takes them abbreviated, and with quotes in them.
_QUOTES = r"[\"'\\]*"
_WORDS = "|".join(_QUOTES.join(one) for one in ("-ou", "-ext", "-textc"))
_NO_OPTION = rf"{_QUOTES}-(?:{_QUOTES}(?:{_WORDS})|(?![GSX])[\w\"'\\]*[oO])"
# The commands of git of which other options name no program, those of which these do not, and each without options.
_ALIAS = re.compile(
    r"(?:(?:add|blame|branch|cat-file|checkout|cherry|cherry-pick|clean|commit|count-objects|describe|diff|for-each-ref|log"
    r"|ls-files|ls-tree|merge|mv|range-diff|reflog|reset|restore|rev-list|rev-parse|revert|rm|shortlog|show|show-branch|show-ref"
    r"|stash|status|switch|tag|whatchanged)"
    rf"(?:\s+(?!{_NO_OPTION})\S+)*"
    r"|(?:fetch|pull|push|rebase|worktree)(?:\s+(?!-\w*x|--(?:upl|rece|e))[^\s\"'\\]+)*|\w[\w-]*)\s*",
    re.DOTALL,
)
# Settings that name no program with some values.
_HARMLESS = (
    (re.compile(r"filter\.lfs\.(?:clean|smudge|process)"), STANDARD_LFS),
    (re.compile(r"core\.fsmonitor|pager\..*", re.DOTALL), _SWITCHED),
    (re.compile(r"submodule\..*", re.DOTALL), re.compile(r"(?!!).*", re.DOTALL)),
    (re.compile(r"alias\..*", re.DOTALL), _ALIAS),
    # Git runs the file of that name in the directory of its own tools.
    (re.compile(r"(?:diff|merge)\.(?:gui)?tool"), re.compile(r"[^/]*")),
)
# What `git init` and `git clone` write, and an identity: names and values of settings that make git run nothing. A remote is
# another machine: of a local path git would run programs that are there.
_FRESH = (
    (
        r"core\.(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode)",
        r"[a-z0-9]+",
    ),
    (r"core\.(?:symlinks|protecthfs|protectntfs)", r"[a-z0-9]+"),
    (r"extensions\.(?:objectformat|refstorage|worktreeconfig)", r"[a-z0-9]+"),
    (r"remote\.[\w.-]+\.url", r'(?:(?:https|ssh)://\w|\w[\w.-]*@\w[\w.-]*:[^\s:"\\#;-])[^\s"\\#;]*'),
    (r"remote\.[\w.-]+\.fetch", r"\+?refs/[\w./*+@-]+:refs/[\w./*+@-]+"),
    (r"branch\.[\w./+@-]+\.remote", r"\.|\w[\w.-]*"),
    (r"branch\.[\w./+@-]+\.merge", r"refs/[\w./+@-]+"),
    (r"user\.(?:name|email)", r'[^\x00-\x1f\x7f"\\#;]+'),
)
_OF_BRANCH = re.compile(r"branch\..*\.remote", re.DOTALL)
_HEADER = re.compile(r'\[[ \t]*(?P<name>[A-Za-z0-9.-]+)(?:[ \t]+"(?P<part>(?:[^"\\\n]|\\[^\n])*)")?[ \t]*\]')
_ESCAPED = re.compile(r"\\(.)")
_KEY = re.compile(r"(?P<key>[A-Za-z][A-Za-z0-9-]*)[ \t]*(?P<equals>=?)")
_SKIPPED = re.compile(r"(?:[ \t\n\f\v]|[#;][^\n]*)+")
_VALUE = re.compile(r'(?:[^\\"\n#;]|\\(?:\n|.))+|"(?:[^\\"\n]|\\(?:\n|.))*"')


def programs_named(content: bytes) -> tuple[tuple[str, str], ...]:
    """The settings that make git run a program or look elsewhere, by names as git prints them, with values. A text that is no
    configuration has the setting `UNREADABLE`.
    """
    return tuple((name, value) for name, value in settings(content) if names_program(name, value))


def submodules_named(content: bytes) -> tuple[str, ...]:
    """The names of the submodules that a repository's configuration has settings of: `git submodule` makes some for each."""
    parts = (
        name.removeprefix(_SUBMODULE).rpartition(".")
        for name, _ in settings(content)
        if name.startswith(_SUBMODULE)
    )
    return tuple(dict.fromkeys(part for part, _, _ in parts if part))


def names_program(name: str, value: str) -> bool:
    """Whether a setting makes git run a program or look elsewhere."""
    if name == UNREADABLE:
        return True
    return _PROGRAMS.fullmatch(name) is not None and not any(
        of.fullmatch(name) and harmless.fullmatch(value) for of, harmless in _HARMLESS
    )


def fresh_part(content: bytes) -> bytes:
    """The configuration with only those settings that a new repository may have, written as git writes them."""
    kept = [
        (name, raw)
        for name, raw in raw_settings(content)
        if any(
            re.fullmatch(of, name, re.ASCII) and re.fullmatch(value, raw.strip(), re.ASCII)
            for of, value in _FRESH
        )
    ]
    # Git takes the name of a remote without an address for a path.
    known = {"remote...url", *(name for name, _ in kept)}
    kept = [
        (name, raw)
        for name, raw in kept
        if not _OF_BRANCH.fullmatch(name) or f"remote.{raw.strip()}.url" in known
    ]
    return text_of(kept).encode("utf-8", "surrogateescape")


def text_of(found: Iterable[tuple[str, str]]) -> str:
    """A configuration of settings, each with its raw value."""
    lines: list[str] = []
    for name, of_section in groupby(found, key=lambda setting: setting[0].rpartition(".")[0]):
        section, _, part = name.partition(".")
        quoted = part.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'[{section} "{quoted}"]' if part else f"[{section}]")
        for setting, raw in of_section:
            value = raw.replace("\\\n", "").strip()
            lines.append(f"\t{setting.rpartition('.')[2]} = {value}")
    return "".join(f"{line}\n" for line in lines)


def settings(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the settings in the order of the text, and `UNREADABLE` where git would complain."""
    return ((name, plain_value(raw)) for name, raw in raw_settings(content))


def raw_settings(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the settings as `settings` does, each with its value as the text has it: with quotes and escapes."""
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    section, at = "", 0
    while at < len(text):
        if found := _SKIPPED.match(text, at):
            at = found.end()
        elif found := _HEADER.match(text, at):
            part, section = found["part"], found["name"].lower()
            if part is not None:
                section += "." + _ESCAPED.sub(r"\1", part)
            at = found.end()
        elif section and (found := _KEY.match(text, at)):
            name, at = f"{section}.{found['key'].lower()}", found.end()
            parts = []
            while found["equals"] and (value := _VALUE.match(text, at)):
                parts.append(value[0])
                at = value.end()
            # Git reads both up to a NUL, as strings of C: `[core "fsmonitor\0"] x = y` is `core.fsmonitor`.
            name, raw = (one.partition("\0")[0] for one in (name, "".join(parts)))
            yield name, raw if found["equals"] else "true"
            if at < len(text) and not _SKIPPED.match(text, at):
                yield UNREADABLE, ""
                return
        else:
            yield UNREADABLE, ""
            return


def plain_value(value: str) -> str:
    """A value as git reads it, without quotes."""
    joined = re.sub(r"\\\n", "", value).strip()
    return re.sub(
        r'\\(.)|"', lambda found: {None: "", "n": "\n", "t": "\t", "b": "\b"}.get(found[1], found[1]), joined
    )
