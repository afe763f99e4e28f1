"""Finds the commands that another command runs. For example, `timeout 5 make` and `sh -c 'make'` run `make`."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.permissions.shell_words import UNKNOWN, Word, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class Within(Struct, frozen=True):
    """The commands and scripts that another command, the wrapper, runs."""

    commands: tuple[tuple[Word, ...], ...] = ()
    """The words of each command that the wrapper runs."""
    scripts: tuple[str, ...] = ()
    """The texts that the wrapper runs as shell commands."""
    is_transparent: bool = False
    """True if the wrapper runs the commands unchanged, in the same environment and as the same user. Then only those
    commands must be allowed, and not the wrapper."""
    not_understood: str = ""
    """A description of a part that cannot be understood. Empty if there is none."""
    suspect: str = ""
    """A description of a part of an ordinary command that may run other commands. Empty if there is no such part."""
    runs_unknown: bool = False
    """True if the wrapper runs something that cannot be known, such as a shell that reads commands from standard
    input."""


NOTHING = Within()


class _Form(Struct, frozen=True):
    """The syntax of a command that runs another command. Options come first, then operands, then the other command."""

    flags: str = ""
    """The letters of options without a value."""
    valued: str = ""
    """The letters of options with a value."""
    long_valued: str = ""
    """The long options whose value is the next word, without dashes. Every other long option is assumed to have no
    value."""
    operands: int = 0
    takes_assignments: bool = False
    is_transparent: bool = False
    adds_words: bool = False
    """True if the command adds unknown words at the end, as xargs does."""


_FORMS = {
    "time": _Form("pvqaV", "fo", "format output", is_transparent=True),
    "timeout": _Form("vf", "sk", "signal kill-after", operands=1, is_transparent=True),
    "nice": _Form("", "n", "adjustment", is_transparent=True),
    "nohup": _Form(is_transparent=True),
    "stdbuf": _Form("", "ioe", "input output error", is_transparent=True),
    "command": _Form("p", is_transparent=True),
    # Reserved words, which the parser takes for names behind `time` and `!`.
    **dict.fromkeys(
        "builtin coproc busybox toybox ! { ( then do else elif if while until".split(),
        _Form(),
    ),
    "exec": _Form("cl", "a"),
    "setsid": _Form("cfw"),
    "ionice": _Form("t", "cn", "class classdata"),
    "caffeinate": _Form("dimsu", "tw"),
    "env": _Form("i0v", "uC", "unset chdir", takes_assignments=True),
    "sudo": _Form(
        "AbEeHkKnPS",
        "CDghpRrTtUu",
        "user group host prompt chdir close-from chroot",
        takes_assignments=True,
    ),
    "doas": _Form("Lns", "aCu"),
    "xargs": _Form(
        "0prtxo",
        "aEILnPsdR",
        "arg-file delimiter max-args max-procs max-chars replace max-lines",
        adds_words=True,
    ),
}

SHELLS = frozenset("sh bash dash zsh ksh ash mksh yash fish csh tcsh rbash".split())
_INPUTS = re.compile(r"-|/dev/stdin|/dev/fd/.*|/proc/.*/fd/.*")

# Commands that run other commands in ways that have too many forms to know.
_RUN_OTHERS = frozenset(
    """
    su runuser pkexec chroot unshare nsenter setpriv capsh bwrap firejail flock watch script strace ltrace gdb lldb
    valgrind perf taskset chrt numactl systemd-run parallel entr chronic ts unbuffer expect rlwrap socat ssh at batch
    crontab tmux screen dtach xvfb-run dbus-run-session hyperfine awk gawk mawk nawk sed gsed ed ex vi vim nvim view
    emacs tclsh osascript fd fdfind start-stop-daemon faketime fakeroot proot ld.so run-parts logsave choom uclampset
    prlimit setarch linux32 linux64 pipexec nix-shell docker podman kubectl lxc-attach machinectl vagrant multitime
    stap
    """.split()
)
# Builtins that change what later words mean, or run their words later.
_CHANGE_SHELL = frozenset("alias trap complete compgen mapfile readarray bind enable hash fc shopt".split())
# Those of them that run their words as commands. With a word that is not known, they may run anything.
_RUN_WORDS = frozenset("trap alias parallel watch script su runuser flock entr expect".split())
# Commands of the shell that evaluate arithmetic and subscripts in their words, and run what `$(...)` in them names.
_EVALUATE = frozenset(
    """
    [[ [ test let declare typeset local readonly export unset printf read mapfile readarray wait getopts set compgen
    complete
    """.split()
)
# Options of ordinary programs that run a command, too short to be known by themselves.
_SHORT_RUNNING = {
    "make": r"-f.*|--eval.*|--file.*|--makefile.*|-E.*|SHELL=.*",
    "tar": r"-[a-zA-Z]*[IF].*",
    "bsdtar": r"-[a-zA-Z]*I.*",
    "rsync": r"-[a-zA-Z]*e.*",
    "zip": r"-TT.*|-[a-zA-Z]*TT",
}
# Interpreters, and the letters of options with which they run code from a word.
_INTERPRETERS = {
    **dict.fromkeys(("python", "pypy", "guile"), "c"),
    **dict.fromkeys("ruby lua Rscript R ghc".split(), "e"),
    "perl": "eEn",
    "node": "epr",
    "bun": "ep",
    "deno": "ep",
    "php": "rBRE",
    "julia": "eE",
}
# Options of ordinary programs by which they run a command.
_RUNNING_OPTION = re.compile(
    r"--(?:exec|exec-batch|to-command|checkpoint-action|use-compress-program|rsh|pre|unzip-command|upload-pack|"
    r"receive-pack|run|command|open-files-in-pager|ext-diff|compress-program|shell|call)(?:=.*)?"
)
_FIND_EXECUTES = ("-exec", "-execdir", "-ok", "-okdir")
_GIT_RUNS = frozenset("bisect foreach filter-branch -c -x --exec --config-env difftool mergetool".split())


def within(words: Sequence[Word], *, has_heredoc: bool = False) -> Within:
    """The commands that a command such as `sudo` or `bash -c` runs. The result also says whether some of them are
    unknown.
    """
    name = name_of(words)
    if name is None:
        return Within(runs_unknown=True)
    if name in _FORMS:
        return _wrapped(name, _FORMS[name], words)
    if name in SHELLS:
        return _of_shell(words[1:])
    if name in ("eval", "source", "."):
        return _evaluated(name, words[1:])
    if name == "find":
        return _of_find(words[1:])
    return _suspected(name, words, has_heredoc=has_heredoc)


def _suspected(name: str, words: Sequence[Word], *, has_heredoc: bool) -> Within:
    """The commands that an ordinary command may run because of its options and arguments. An ordinary command is one
    that is not a known wrapper.
    """
    texts = [word.text for word in words[1:]]
    if name in _RUN_WORDS and None in texts:
        return Within(runs_unknown=True)
    if name in _EVALUATE and any(re.search(r"\$\(|`", text) for text in texts if text):
        return Within(not_understood=f"a text that `{name}` evaluates")
    if name in _CHANGE_SHELL:
        return Within(not_understood=f"`{name}`, which changes the meaning of later words,")
    short = _SHORT_RUNNING.get(name, "(?!)")
    if any(re.fullmatch(short, text) or _RUNNING_OPTION.fullmatch(text) for text in texts if text):
        return Within(not_understood=f"an option of `{name}` that runs another command")
    if name == "git" and _GIT_RUNS.intersection(text for text in texts if text):
        return Within(not_understood="an option of `git` that can run another command")
    if name in _RUN_OTHERS:
        return Within(suspect=f"`{name}`, which can run other commands,")
    if _is_code(name, words[1:], has_heredoc=has_heredoc):
        return Within(suspect=f"code for `{name}`")
    return NOTHING


def _wrapped(name: str, form: _Form, words: Sequence[Word]) -> Within:
    rest = _after_options(form, [*words[1:]])
    if rest is None:
        if name == "command" and any(word.text in ("-v", "-V") for word in words[1:2]):
            return NOTHING
        return Within(not_understood=f"`{name}` with these options")
    if not rest:
        return Within(runs_unknown=True) if name == "exec" and len(words) > 1 else NOTHING
    if form.adds_words:
        replaced = _replaced_by_xargs(words)
        rest = [UNKNOWN if replaced and replaced in word.known else word for word in rest] + [UNKNOWN]
    if name == "coproc":  # a name and a whole block may follow
        return Within(commands=(tuple(rest), tuple(rest[1:])), not_understood="`coproc`")
    return Within(commands=(tuple(rest),), is_transparent=form.is_transparent)


def _after_options(form: _Form, rest: list[Word]) -> list[Word] | None:
    """Skips the options and operands of a command that runs another command. Returns the words of the other command,
    or None if an option is unknown.
    """
    if any(word.known.startswith("--split-string") for word in rest):
        return None
    while rest and (text := rest[0].text or rest[0].known).startswith("-"):
        if text == "-" and not form.takes_assignments:  # for env it is an option
            break
        if rest[0].text is None:
            return None
        rest = rest[1:]
        if text == "--":
            break
        takes = _takes_next(form, text)
        if takes is None:
            return None
        rest = rest[1:] if takes else rest
    while form.takes_assignments and rest and re.match(r"[A-Za-z_]\w*=", rest[0].known):
        rest = rest[1:]
    if form.operands and rest and rest[0].text is None:
        return None
    return rest[form.operands :]


def _takes_next(form: _Form, option: str) -> bool | None:
    """Whether the next word is the value of the option. None if the option is unknown."""
    if option.startswith("--"):
        if "=" in option or option[2:] in form.long_valued.split():
            return "=" not in option
        return False if form.long_valued or form.flags else None
    if form is _FORMS["nice"] and option[1:].lstrip("-+").isdigit():
        return False
    for at, letter in enumerate(option[1:], start=1):
        if letter in form.valued:
            return at == len(option) - 1
        if letter not in form.flags:
            return None
    return False


def _replaced_by_xargs(words: Sequence[Word]) -> str:
    """The placeholder that xargs replaces by words from its input. An empty text if there is no placeholder."""
    texts = [word.text or "" for word in words]
    for at, text in enumerate(texts):
        if text in ("-I", "--replace"):
            return (texts[at + 1] if at + 1 < len(texts) and text == "-I" else "") or "{}"
        if text.startswith(("-I", "--replace=")):
            return text.removeprefix("--replace=").removeprefix("-I")
        if text.startswith("-i"):
            return text[2:] or "{}"
    return ""


def _of_shell(words: Sequence[Word]) -> Within:
    """The commands that a shell runs: `sh -c TEXT`, `sh FILE`, or a shell that reads its standard input."""
    has_text = False
    for at, word in enumerate(words):
        text = word.text
        if text is None:
            return Within(runs_unknown=True)
        if text in ("--version", "--help"):
            return NOTHING
        if len(text) > 1 and text[0] in "-+":
            if "s" in text and not text.startswith("--"):
                return Within(runs_unknown=True)
            has_text = has_text or ("c" in text and not text.startswith("--"))
        elif not at or words[at - 1].text not in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            if has_text:
                return Within(scripts=(text,))
            return Within(runs_unknown=True) if _INPUTS.fullmatch(text) else NOTHING
    return Within(runs_unknown=True)


def _evaluated(name: str, words: Sequence[Word]) -> Within:
    known = [word.text for word in words if word.text is not None]
    if len(known) < len(words):
        return Within(runs_unknown=True)
    if name == "eval":
        return Within(scripts=(" ".join(known),), not_understood="`eval`")
    is_input = bool(known) and _INPUTS.fullmatch(known[0]) is not None
    return Within(not_understood=f"`{name}`", runs_unknown=is_input)


def _of_find(words: Sequence[Word]) -> Within:
    commands: list[tuple[Word, ...]] = []
    rest = iter(words)
    for word in rest:
        if word.text in _FIND_EXECUTES:
            inner = takewhile(lambda one: one.text not in (";", "+"), rest)
            commands.append(tuple(UNKNOWN if one.text is None or "{}" in one.text else one for one in inner))
    return Within(commands=tuple(commands))


def _is_code(name: str, words: Sequence[Word], *, has_heredoc: bool) -> bool:
    """Whether an interpreter gets its program in an argument or on standard input."""
    plain_name = re.sub(r"[0-9.]+[a-z]*$", "", name)
    letters = _INTERPRETERS.get(plain_name)
    if letters is None:
        return False
    texts = [word.text for word in words]
    has_option = any(
        text is not None and re.match(rf"-[a-zA-Z]*[{letters}]|--(?:eval|print|run|require|exec)", text)
        for text in texts
    )
    has_file = any(text is None or (not text.startswith("-") and text != "-") for text in texts)
    is_asking = any(text in ("--version", "-V", "--help") for text in texts)
    return has_option or has_heredoc or "-" in texts or not (has_file or is_asking)
