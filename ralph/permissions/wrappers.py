"""Finds the commands that another command runs. For example, `timeout 5 make` and `sh -c 'make'` run `make`."""

from __future__ import annotations

import re
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ralph.permissions.command_table import BUILT_IN, FORMS, WITH_VALUE, Form
from ralph.permissions.patterns import ANY, UNKNOWN, Word, name_of, plain

if TYPE_CHECKING:
    from collections.abc import Sequence


class InnerCommands(Struct, frozen=True):
    """The commands and scripts that another command, the wrapper, runs."""

    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    """The texts that the wrapper runs as shell commands."""
    is_transparent: bool = False
    """True if the wrapper runs the commands unchanged, in the same environment and as the same user. Then only those
    commands must be allowed, and not the wrapper."""
    is_runner: bool = False
    """True if a pattern that allows the wrapper by name allows what it runs."""
    not_understood: str = ""
    """A description of a part that cannot be understood, so that no pattern allows it. Empty if there is none."""
    by_name: bool = False
    """True if the words of the line do not say what that part may run, so that the name of a command is enough to deny it."""
    suspect: str = ""
    """A description of a part that may run what is neither in `commands` nor in `scripts`. Empty if there is none."""
    behind: int = 0
    """How many words the one command in `commands` has at the end of the wrapper's. The words before it, and its first, say what
    runs. If nothing is known, this is 0."""
    runs_unknown: bool = False
    """True if the wrapper runs something that cannot be known, such as a shell that reads commands from standard
    input. With `suspect`, only what words of the line name counts as that."""


def _opaque(description: str, *, by_name: bool = False) -> InnerCommands:
    """No pattern allows what cannot be understood, and it may run what a pattern denies."""
    return InnerCommands(not_understood=description, by_name=by_name, suspect=description)


NOTHING = InnerCommands()
_FROM_INPUT = InnerCommands(runs_unknown=True)
_UNKNOWN_OPTIONS = "a command that runs others, with options that ralph does not know,"
_ASKING = ("--help", "--version")
_FAMILIES = frozenset(name.rpartition(" ")[0] for name in FORMS)
"""The beginnings of names of several words, such as `uv` for `uv run`."""


SHELLS = frozenset("sh bash dash zsh ksh ash mksh yash fish csh tcsh rbash".split())
# The words of a shell that runs nothing but its input. Others than options may follow only `-s`.
_READS_ONLY_INPUT = re.compile(
    r"(?: [-+][aefhuvxl]+| [-+][aefhuvxl]*o \w+| --(?:login|norc|noprofile|posix))*"
    r"(?: -[aefhuvxl]*s(?: --.*| [^-+\0].*)?)?",
    re.DOTALL,
)
_INPUTS = re.compile(r"-|/dev/stdin|/dev/fd/.*|/proc/.*/fd/.*")

# Commands that run other commands in ways that have too many forms to know.
_RUN_OTHERS = frozenset(
    """
    su sg runuser pkexec chroot unshare nsenter setpriv capsh bwrap firejail flock watch script strace ltrace gdb lldb
    valgrind perf taskset chrt numactl systemd-run parallel entr chronic ts unbuffer expect rlwrap socat ssh at batch
    crontab tmux screen dtach xvfb-run dbus-run-session hyperfine ed ex vi vim nvim view
    emacs tclsh osascript fd fdfind start-stop-daemon faketime fakeroot proot ld.so run-parts logsave choom uclampset
    prlimit setarch linux32 linux64 pipexec nix-shell docker docker-compose podman sshpass pwsh kubectl lxc-attach machinectl vagrant multitime
    stap tox nox nvm nix devbox chamber sops concurrently nodemon watchexec mpirun mpiexec srun torchrun accelerate py-spy
    scalene kernprof memray retry setuidgid chpst cross-env-shell softlimit lerna nx turbo env-cmd
    cprofile pdb runpy timeit trace opam stack cabal composer fnm jobs ssh-agent gpg-agent
    sqlite3 duckdb psql pgcli mysql mariadb mycli litecli sqlplus gnuplot octave octave-cli lftp ftp sftp m4 dc
    """.split()
)
# What programs for awk and sed contain that run a command or read a file which is no operand.
_RUNS_BY_CODE = {
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), re.compile(r"system|(?<!\|)\|(?!\|)|getline|@|ARG[VC]")),
    **dict.fromkeys(
        ("sed", "gsed"),
        re.compile(r"(?:^|[^\w\s\\.])\s*[\dgpiIMm]*[erRwW](?:[\s}./~;]|$)|(?:^|[;{}])\s*[\d$]*[sy]\w"),
    ),
}
_LOADERS = ("ld-linux", "ld-musl-", "ld64.so")  # ld.so(8)
# Builtins that change what later words mean, or run their words later.
_CHANGE_SHELL = frozenset("alias complete compgen mapfile readarray bind enable hash fc shopt".split())
# Those of them whose words may be texts that the shell runs.
_RUN_LATER = frozenset("alias complete compgen mapfile readarray".split())
# Commands that run their words as commands. With a word that is not known, they may run anything.
_RUN_WORDS = frozenset("alias parallel watch script su sg runuser flock entr expect".split())
_SUBSTITUTES = re.compile(r"\$\(|`")
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
    "tar": r"-[a-zA-Z]*[IF].*|--(?:checkpoint-a|info-|new-v|rsh|rmt|to-c|use).*",
    "split": r"--fil.*",
    "sort": r"--com.*",
    "bsdtar": r"-[a-zA-Z]*I.*",
    "rsync": r"-[a-zA-Z]*e.*",
    "zip": r"-TT.*|-[a-zA-Z]*TT",
}
# Interpreters, and the letters of options with which they run code from a word.
INTERPRETERS = {
    **dict.fromkeys(("python", "pypy", "guile"), "c"),
    **dict.fromkeys("ruby lua Rscript R ghc".split(), "e"),
    "perl": "eEn",
    **dict.fromkeys(("node", "nodejs", "tsx", "ts-node"), "epr"),
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
# Environment variables whose value a program runs as a command of the shell, and those by which git reads configuration and
# bash takes functions and the places of programs.
_COMMAND_VARIABLE = re.compile(
    r"\w*(?:EDITOR|PAGER|_RSH|_COMMAND|_ASKPASS)|VISUAL|BROWSER|LESSOPEN|LESSCLOSE|GIT_SSH|GIT_EXTERNAL_DIFF"
)
_CONFIGURATION = re.compile(
    r"GIT_CONFIG(?!_NOSYSTEM)\w*|GIT_TEMPLATE_DIR|GIT_EXEC_PATH|BASH_(?:ENV|FUNC_.*|(?:CMDS|ALIASES)\b.*)"
)
# The GNU programs that package managers of macOS install with a `g` before their names.
_WITH_G = frozenset("env find nice nohup sort split stdbuf tar time timeout xargs".split())
_FIND_EXECUTES = ("-exec", "-execdir", "-ok", "-okdir")
_GIT_RUNS = frozenset("bisect foreach filter-branch -c -x --exec difftool mergetool for-each-repo".split())
# Settings by which git runs nothing.
_GIT_TEXTS = re.compile(
    r"(?i:(?:user|author|committer|color|advice|safe|commit|tag|pull|fetch|push|rebase|branch|http|log|status)\.[\w.-]+"
    r"|init\.defaultbranch|core\.(?:quotepath|autocrlf|abbrev|longpaths|filemode))(?:=.*)?",
    re.DOTALL,
)
# Settings by which git may take an unknown name for another command, or reads further settings.
_GIT_CHOOSES = re.compile(r"(?i:help\.autocorrect|include(?:if\..*)?\.path)(?:=.*)?", re.DOTALL)
# Options by which git's own commands run one: the commands, and the option. Git takes each unique beginning of a long
# option, and several letters in one word (gitcli(7)).
_GIT_OPTIONS = r"""
.*                      | --config-env.*
rebase                  | -[a-zA-Z]*x.*|--ex.*
clone ls-remote         | -[a-zA-Z0-9]*u.*|--u.*|--ex.*
clone                   | -[a-zA-Z0-9]*c.*|--conf.*
fetch-pack              | --u.*|--ex.*
fetch pull              | --upl.*
push send-pack          | --rece.*|--ex.*
grep                    | -[a-zA-Z]*O.*|--op.*
diff log show whatchanged range-diff format-patch diff-tree diff-index diff-files stash reflog | --ext.*
send-email              | --smtp-server.*|--sendmail-cmd.*|--to-cmd.*|--cc-cmd.*|--header-cmd.*
archive                 | --exec.*
config                  | (?i:alias\..*)
"""
_GIT_RUNNING = [
    (re.compile("|".join(commands.split())), re.compile(option.strip(), re.DOTALL))
    for commands, option in (line.split(" | ", 1) for line in _GIT_OPTIONS.strip().split("\n"))
]


def inner_commands(
    words: Sequence[Word], *, has_heredoc: bool = False, document: str | None = None
) -> InnerCommands:
    """The commands that a command such as `sudo` or `bash -c` runs, and whether some of them are unknown. `document` is the text
    that it reads from its input, if that is known.
    """
    name = name_of(words)
    if name is None:
        return InnerCommands(runs_unknown=True)
    if name not in INTERPRETERS:  # some file systems do not tell upper from lower case
        name = name.lower()
    name = name[1:] if name[:1] == "g" and name[1:] in _WITH_G else name
    if name in SHELLS:
        found = _of_shell(words[1:])
        given = " ".join(["", *(word.text or f"{word.known}\0" for word in words[1:])])
        if document is not None and found == _FROM_INPUT and _READS_ONLY_INPUT.fullmatch(given):
            return InnerCommands(scripts=(document,))
        return found
    if name in ("eval", "trap", "source", "."):
        return _evaluated(name, words[1:])
    if name == "find":
        return _of_find(words[1:])
    if name.startswith("git-"):
        return InnerCommands(((plain("git"), plain(name.removeprefix("git-")), *words[1:]),), is_runner=True)
    if name == "command" and any(word.text in ("-v", "-V") for word in words[1:2]):
        return NOTHING
    kind = name if name in FORMS else re.sub(r"-?[0-9.]+[a-z]*$", "", name)
    found = _by_form(kind, FORMS[kind], words[1:]) if kind in FORMS else NOTHING
    if kind in FORMS and not FORMS[kind].is_runner:
        return found
    others = _suspected(name, words, has_heredoc=has_heredoc)
    return replace(
        found,
        scripts=(*found.scripts, *others.scripts),
        not_understood=found.not_understood or others.not_understood,
        by_name=found.by_name or others.by_name,
        suspect=found.suspect or others.suspect,
        runs_unknown=found.runs_unknown or others.runs_unknown,
    )


def commands_in_assignment(word: Word) -> InnerCommands:
    """The command that a program may run because a variable names it, as with `GIT_EDITOR=COMMAND`."""
    name, equals, value = word.known.partition("=")
    if not equals or word.text in (f"{name}=", f"{name}=/dev/null"):
        return NOTHING
    if _CONFIGURATION.fullmatch(name):
        return _opaque(f"`{name}`, by which a program gets configuration,", by_name=True)
    if not _COMMAND_VARIABLE.fullmatch(name):
        return NOTHING
    return _opaque(f"the value of `{name}`") if word.text is None else InnerCommands(scripts=(value,))


def _suspected(name: str, words: Sequence[Word], *, has_heredoc: bool) -> InnerCommands:
    """The commands that an ordinary command, which is not a known wrapper, may run because of its options and arguments."""
    texts = [word.text for word in words[1:]]
    if name in _RUN_WORDS and None in texts:
        is_any = any(word.parts[:1] == (ANY,) and not word.is_glob for word in words[1:])
        named = "" if is_any else f"a word of `{name}` that is known only when it runs"
        return InnerCommands(runs_unknown=True, suspect=named)
    if name in _EVALUATE and any(_SUBSTITUTES.search(text) for text in texts if text):
        found = _opaque(f"a text that `{name}` evaluates")
        return found if _takes_names(name, words) else replace(found, suspect="")
    if name in _CHANGE_SHELL:
        run = (re.match(r"(?:-C|[^\s=]+=)?(.*[\s>].*)", text, re.DOTALL) for text in texts if text)
        scripts = tuple(one[1] for one in run if one and name in _RUN_LATER)
        return replace(_opaque(f"`{name}`, which changes the meaning of later words,"), scripts=scripts)
    short = _SHORT_RUNNING.get(name, "(?!)")
    if any(re.fullmatch(short, text, re.DOTALL) or _RUNNING_OPTION.fullmatch(text) for text in texts if text):
        return _opaque(f"an option of `{name}` that runs another command")
    known = [text for text in texts if text]
    # Of an option or a command of git, or what may be one.
    running = [option for of, option in _GIT_RUNNING if any(map(of.fullmatch, known))]
    if name == "git" and (
        not _GIT_RUNS.isdisjoint(known) or any(any(map(one.fullmatch, known)) for one in running)
    ):
        settings = [after.text or "" for word, after in pairwise(words) if word.text == "-c"]
        only_sets = bool(settings) and all(map(_GIT_TEXTS.fullmatch, settings))
        is_bisect = not {"run", None} & set(texts)
        left = _GIT_RUNS - {"-c" if only_sets else "", "bisect" if is_bisect else ""}
        hides = bool(left & set(known)) or any(any(map(one.fullmatch, known)) for one in running)
        chooses = any(map(_GIT_CHOOSES.fullmatch, settings)) or any(
            one.startswith("--config-e") for one in known
        )
        found = _opaque("an option of `git` that can run another command", by_name=chooses)
        return found if hides else replace(found, suspect="")
    if name in _RUN_OTHERS or name.startswith(_LOADERS):
        return InnerCommands(suspect=f"`{name}`, which can run other commands,")
    runs = _RUNS_BY_CODE.get(name)
    has_program = runs and any(text is None or _INPUTS.fullmatch(text) or runs.search(text) for text in texts)
    if has_program or _is_code(name, words[1:], has_heredoc=has_heredoc):
        return InnerCommands(suspect=f"code for `{name}`")
    return NOTHING


def _by_form(name: str, form: Form, words: Sequence[Word]) -> InnerCommands:
    """The commands that one of the table runs. `words` are those after its name."""
    rest = _after_options(form, words)
    if isinstance(rest, InnerCommands):
        inner = {word for path in FORMS if path.startswith(f"{name} ") for word in path.split()}
        may_be_run = [word for word in words if word.text is None or not word.text.startswith("-")]
        is_family = name in _FAMILIES and ("also" not in form.notes or not may_be_run)
        may_be_inner = any(word.text is None or word.text in inner for word in words)
        is_other = name in INTERPRETERS or (is_family and not may_be_inner)
        return NOTHING if rest.not_understood and is_other else rest
    following = rest[0].text if rest else ""
    if f"{name} {following}" in FORMS:
        return _by_form(f"{name} {following}", FORMS[f"{name} {following}"], rest[1:])
    if following is None and (name in _FAMILIES or name in INTERPRETERS):
        return InnerCommands(suspect=f"`{name}` with a word that is known only when it runs,")
    has_own = "programs" not in form.notes and following in BUILT_IN
    if name in _FAMILIES and ("also" not in form.notes or has_own):
        return NOTHING
    if "1" in form.notes:
        if following is None:
            return _opaque(f"`{name}` with a word that is known only when it runs,")
        rest = rest[2:] if len(rest) > 1 and rest[1].text == "--" else rest[1:]
    before = words[: len(words) - len(rest)]
    # A word that is known only when it runs may be several, and the other command begin in it.
    may_begin = any(word.is_any and word.text is None and not word.is_one for word in before)
    split = f"a word of `{name}` that is known only when it runs" if may_begin else ""
    if not rest and not form.beginning:
        is_asking = any(word.text in _ASKING for word in words)
        reads_input = "input" in form.notes or (name == "exec" and words)
        reads_input = bool(reads_input and not is_asking)
        return InnerCommands(runs_unknown=reads_input, suspect="" if reads_input else split)
    behind = len(rest)
    if "more" in form.notes:
        replaced = _replaced_by_xargs(words)
        rest = [_filled(word, replaced) for word in rest] + [UNKNOWN]
    command = (*map(plain, form.beginning), *(_program_of(form, word) for word in rest[:1]), *rest[1:])
    is_known = all(word.text is not None for word in before)
    return InnerCommands(
        (command,),
        is_transparent=is_known and "same" in form.notes,
        is_runner=form.is_runner,
        behind=behind,
        suspect=split,
    )


def _program_of(form: Form, word: Word) -> Word:
    """The name of the program that a word means, such as `eslint` for the package `eslint@9`."""
    if word.text is None:
        return word
    if "version" in form.notes:
        return plain(re.sub(r"(?<=[\w.-])[@=<>~!\[].*", "", word.text))
    return plain(word.text.rpartition(":")[2]) if "environment" in form.notes else word


def _after_options(form: Form, words: Sequence[Word]) -> list[Word] | InnerCommands:
    """The words behind the options of a command that runs another one. Or what it runs if an option says that, or is not understood."""
    rest = list(words)
    unknown = _opaque(_UNKNOWN_OPTIONS, by_name=True)
    while rest and (rest[0].known.startswith("-") or "dashes" in form.notes):
        word, rest = rest[0], rest[1:]
        text = word.text
        if text == "--":
            break
        if not word.known.startswith("-") and rest:
            continue
        if text == "-" and "-" not in form.options:
            return [word, *rest]
        first = word.parts[0] or ""
        found = (("flag",), None) if first in _ASKING else form.read(first)
        if found is None or (text is None and "=" not in first) or first[:1] != "-":
            return unknown
        meaning, value = "".join(found[0][-1:]), found[1]
        if meaning in WITH_VALUE and value is None and not rest:
            return unknown
        if meaning == "shell":
            script = rest[0] if value is None else Word((value, *word.parts[1:]))
            return _of_text([script], f"a text for `{word.known}`")
        if meaning == "command":
            return rest if value is None else [plain(value), *rest]
        rest = rest[1:] if meaning == "value" and value is None else rest
    while "environment" in form.notes and rest and rest[0].known.startswith("+"):
        rest = rest[1:]
    while "assignments" in form.notes and rest and "=" in rest[0].known:  # `env` and `sudo` take any name
        rest = rest[1:]
    return rest


def _filled(word: Word, placeholder: str) -> Word:
    """The word after xargs or find has put names of files in place of `placeholder`. Of a longer word, the other parts count."""
    if not placeholder or placeholder not in word.known:
        return word
    if word.text is None or re.search(rf"(?:^|[=@:,]){re.escape(placeholder)}", word.text):
        return UNKNOWN
    parts = [piece for text in word.text.split(placeholder) for piece in (text, ANY)][:-1]
    return Word(tuple(parts), is_one=True)


def _replaced_by_xargs(words: Sequence[Word]) -> str:
    """The placeholder that xargs replaces by words from its input, or an empty text."""
    found = re.search(r" (?:-I *(\S+)|--replace(?:=(\S+))?)", "".join(f" {word.known}" for word in words))
    return (found[1] or found[2] or "{}") if found else ""


def _of_shell(words: Sequence[Word]) -> InnerCommands:
    """The commands that a shell runs: `sh -c TEXT`, `sh FILE`, or a shell that reads its standard input."""
    has_text, is_value = False, False
    for at, word in enumerate(words):
        text = word.text
        if text is None and not has_text and not is_value:
            return _of_file(words[at:])
        if text in ("--version", "--help"):
            return NOTHING
        if is_value:
            is_value = False
        elif text and len(text) > 1 and text[0] in "-+":
            letters = "" if text.startswith("--") else text[1:].lower()
            if "s" in letters:
                return _FROM_INPUT
            # zsh takes what follows the letter in the word, bash the next word; `--command` is fish's.
            if "o" in letters[:-1] or text.startswith(("--command", "--init-command")):
                return _opaque("a shell with such options")
            is_value = letters.endswith("o") or text in ("--rcfile", "--init-file")
            has_text = has_text or "c" in letters
        elif has_text:
            found = _of_text([word], "a text for a shell")
            may_read = any(
                re.match("-[A-Za-z]*i", one.known) for one in words[:at]
            )  # behind an error in the text
            return replace(found, suspect=found.suspect or "an interactive shell") if may_read else found
        else:
            return _of_file(words[at:])
    return _FROM_INPUT


def _evaluated(name: str, words: Sequence[Word]) -> InnerCommands:
    """The commands that the shell itself runs from a text or a file."""
    if words and words[0].text == "--":
        words = words[1:]
    if name == "trap":
        words = words[:1]
        if not words or words[0].known.startswith("-"):
            return InnerCommands(not_understood="`trap`")
    found = _of_file(words) if name in ("source", ".") else _of_text(words, f"a text for `{name}`")
    return replace(found, not_understood=f"`{name}`")


def _of_text(words: Sequence[Word], description: str) -> InnerCommands:
    """The commands of a text that a shell runs. A part that is known only when it runs is read as a variable."""
    text = " ".join("".join("$_" if part is ANY else part for part in word.parts) for word in words)
    if all(word.text is not None for word in words):
        return InnerCommands(scripts=(text,))
    return InnerCommands(
        scripts=(text,), runs_unknown=True, suspect=f"{description} that is known only when it runs"
    )


def _of_file(words: Sequence[Word]) -> InnerCommands:
    """The command that a shell runs if it is given a file, and words for it."""
    if not words or words[0].is_stream or _INPUTS.fullmatch(words[0].text or ""):
        return InnerCommands(runs_unknown=True)
    if words[0].text is not None:
        return InnerCommands(commands=(tuple(words),), is_runner=True, behind=len(words))
    return InnerCommands(
        commands=() if name_of(words) is None else (tuple(words),),
        runs_unknown=True,
        suspect="a script that is known only when it runs",
    )


def _of_find(words: Sequence[Word]) -> InnerCommands:
    commands: list[tuple[Word, ...]] = []
    rest = iter(words)
    for word in rest:
        if word.text in _FIND_EXECUTES:
            inner = takewhile(lambda one: one.text not in (";", "+"), rest)
            commands.append(tuple(UNKNOWN if one.text is None else _filled(one, "{}") for one in inner))
    is_hidden = any(choice in _FIND_EXECUTES for word in words for choice in word.choices)
    is_hidden |= any(map(_may_execute, words))
    return _opaque("`find` with an option in parts") if is_hidden else InnerCommands(tuple(commands))


def _may_execute(word: Word) -> bool:
    """Whether a word of which a part is known may be an option by which `find` runs a command."""
    shape = "".join(".*" if part is ANY else re.escape(part) for part in word.parts)
    is_known_in_part = word.text is None and word.known not in ("", "-")
    return is_known_in_part and any(re.fullmatch(shape, one) for one in _FIND_EXECUTES)


def evaluates_values(words: Sequence[Word]) -> bool:
    """Whether a command of the shell may evaluate the value of a variable as arithmetic or as a subscript."""
    name = name_of(words) or ""
    is_sure = name in ("[[", "[", "test", "let", "declare", "typeset", "local", "unset")
    is_given = any(word.text is None or _SUBSTITUTES.search(word.text) for word in words[1:])
    return _takes_names(name, words) and (is_sure or is_given)


def _takes_names(name: str, words: Sequence[Word]) -> bool:
    """Whether a command of the shell takes names of variables, the subscripts of which it evaluates."""
    if name in ("printf", "test", "["):
        return any(re.search(r"(?<!\S)-v", word.known) for word in words)
    return name in _EVALUATE


def _is_code(name: str, words: Sequence[Word], *, has_heredoc: bool) -> bool:
    plain_name = re.sub(r"[0-9.]+[a-z]*$", "", name)
    letters = INTERPRETERS.get(plain_name)
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
