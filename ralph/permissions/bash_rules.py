"""Judges a shell command by the patterns for Bash. `bash_paths.py` judges the paths in the command.

A command may run if each simple command in it matches an allowed pattern and none matches a denied one. A part in which other
commands may be hidden matches no allowed pattern, and a denied one if it has all of the pattern's words. A command whose name is
known only at run time matches every denied pattern.

A closed table names the commands that are harmless beside allowed ones: they print, and read no file that Read may not read. What
is not in it is an ordinary command: another program, another option, a word that is known only when the command runs, an assignment
before the command, and each command of a line that writes a file.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from itertools import takewhile
from typing import TYPE_CHECKING

from ralph.permissions.bash_paths import directories_of
from ralph.permissions.command_table import WITH_VALUE, forms
from ralph.permissions.patterns import ANY, UNKNOWN, WORD_END, Element, Wildcard, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.permissions.command_table import Form
    from ralph.permissions.judge import Broken, KnownRule, RulePlaces
    from ralph.permissions.patterns import Word
    from ralph.permissions.shell import ParsedLine
    from ralph.permissions.shell_syntax import SimpleCommand

_PIECE = re.compile(r"[\w.+@%:*-]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SET_VARIABLES = frozenset("export declare typeset local readonly env sudo doas".split())
_OPERATORS = re.compile(r"\s*(?:&&|\|\||\|&|[|;\n]|(?<![<>&\d])&(?![>&\d]))\s*")


class BashPattern:
    """The pattern of a rule for Bash. One with an operator, such as `curl * | sh`, has several parts, and denies a call in which
    each part matches a command.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in _OPERATORS.split(pattern) if part.strip()]
        self._parts = [_Part(part) for part in parts]
        self.has_operator = len(self._parts) != 1
        self.names_path = re.search(r"[./]", pattern) is not None
        """Whether a word in the pattern may be the path of a file."""

    def denies(self, line: ParsedLine) -> bool:
        return all(part.denies(line) for part in self._parts)

    def occurs_in(self, words: frozenset[str], names: frozenset[str]) -> bool:
        """Whether all words of the pattern are among `words`, and those that begin its commands among `names`."""
        return all(part.occurs_in(words, names) for part in self._parts)

    def is_named_in(self, words: frozenset[str]) -> bool:
        """Whether all command names of the pattern are among `words`."""
        return all(part.is_named_in(words) for part in self._parts)

    def allows(self, words: Sequence[Word]) -> bool:
        return not self.has_operator and self._parts[0].surely_matches(words)


class _Part:
    def __init__(self, text: str) -> None:
        text = text.strip()
        is_open, has_colon = text.endswith((":*", " *")), text.endswith(":*")
        text = text[:-2] if is_open else text
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()
        self._exact = _wildcard(words, is_open=is_open)
        self._set = [_wildcard([word], is_open=False) for word in takewhile(_ASSIGNMENT.match, words)]
        set_first, words = words[: len(self._set)], words[len(self._set) :]
        first = words[0] if words else "*"
        self._is_anywhere = first.startswith("*") and not set_first
        """Whether the pattern begins with any text, so that it is about the text of the line."""
        directory, _, name = first.rpartition("/")
        # In `*secrets/*` and `./scripts/*`, what is behind the slash is no name of a command.
        self._is_path = bool(directory) and "*" in name and (first[0] == "*" or not name.strip("*"))
        self._name = (first if self._is_path else name).lower()
        self._named = [*_pieces_of(set_first), self._name]
        self._pieces = _pieces_of([*set_first, self._name, *words[1:]])
        is_text = self._is_anywhere or bool(words and words[-1].endswith("*"))
        self._text = _wildcard(words, is_open=is_open, is_text=is_text)
        # People do not expect that `/bin/rm` or `RM` gets past a rule for `rm`.
        loose = [self._name, *words[1:]]
        self._loose = [_wildcard(loose, is_open=is_open, is_text=is_text)]
        # The colon may be a part of the word: `npm run deploy:*` is about `npm run deploy:prod` too.
        self._has_colon = has_colon and len(loose) > 1
        if self._has_colon:
            self._loose.append(_wildcard([*loose[:-1], f"{loose[-1]}:*"], is_open=False, is_text=is_text))

    def surely_matches(self, words: Sequence[Word]) -> bool:
        return self._exact.surely_matches(_joined(words))

    def denies(self, line: ParsedLine) -> bool:
        occurs = self.occurs_in(line.everywhere, line.everywhere)
        words = [*line.other_words] if self._set else []
        words += [word for one in line.commands if one.name in _SET_VARIABLES for word in one.words[1:]]
        unset = [one for one in self._set if not _may_be_among(one, words)]
        return self._is_beside(line) or any(
            self._may_match(command, line, occurs)
            for command in line.commands
            if all(_may_be_among(one, command.assignments) for one in unset)
        )

    def _may_match(self, command: SimpleCommand, line: ParsedLine, occurs: bool) -> bool:
        """`occurs` says whether the line has all words of the pattern."""
        words = command.words
        name = plain((command.name or "").lower())
        if (self._is_anywhere or self._is_path) and self._is_in_text(command, line, occurs):
            return True
        if command.name is None or self._is_path or ("*" not in self._name and name.known != self._name):
            return False
        return self._may_match_words((name, *words[1:]), line, is_named=occurs)

    def _may_match_words(self, words: Sequence[Word], line: ParsedLine, *, is_named: bool) -> bool:
        return any(one.may_match_words(words, line.options, is_named=is_named) for one in self._loose)

    def _is_in_text(self, command: SimpleCommand, line: ParsedLine, occurs: bool) -> bool:
        """Whether the pattern matches the text of a command. An unknown part counts if the line has all words of the pattern."""
        if not command.words:
            return False
        first, *rest = command.words
        words = [first if first.text is not None else plain(first.parts[-1] or ""), *rest]
        if self._is_anywhere:
            words = [*command.assignments, *words]
        return self._text.surely_matches(_joined(words)) or (
            occurs and self._text.may_match_words(words, line.options, is_named=True)
        )

    def _is_beside(self, line: ParsedLine) -> bool:
        """Whether a pattern that begins with any text matches what the line has beside its commands, such as `< .env`."""
        if not self._is_anywhere:
            return False
        beside: list[tuple[Word, ...]] = [(plain(one.operator), one.target) for one in line.redirections]
        beside += [(word,) for word in (*line.other_words, *line.given_texts)]
        return any(self._text.surely_matches(_joined(words)) for words in beside)

    def occurs_in(self, words: frozenset[str], names: frozenset[str]) -> bool:
        *first, last = self._pieces or [""]
        begins = f"{last}:"
        return (
            bool(self._pieces)
            and (self._is_anywhere or _is_among(names, self._pieces[0]))
            and all(_is_among(words, piece) for piece in first)
            and (
                _is_among(words, last)
                or (
                    self._has_colon and any(one.lower().startswith(begins) and one != begins for one in words)
                )
            )
        )

    def is_named_in(self, words: frozenset[str]) -> bool:
        return all(_is_among(words, one) for one in self._named)


def _pieces_of(words: Sequence[str]) -> list[str]:
    return [piece.lower() for word in words for piece in _PIECE.findall(word)]


def _may_be_among(pattern: Wildcard, words: Sequence[Word]) -> bool:
    return any(pattern.may_match(_joined([word])) for word in words)


def _is_among(words: frozenset[str], piece: str) -> bool:
    """Whether a part of a pattern's word is one of `words`, alone or as the value of an option in the same word."""
    texts = piece.split("*")
    if len(texts) > 1:
        return any(all(text in word.lower() for text in texts) for word in words)
    return any(piece in (word.lower(), word[2:].lower() if word[:1] == "-" else "") for word in words)


def broken_by(line: ParsedLine, rules: Sequence[KnownRule]) -> Broken | None:
    """The first rule for Bash that the line breaks, and a remark for the model. None if it breaks none."""
    hiding = list(line.hiding()) if rules else []
    for rule in rules:
        if rule.bash.denies(line):
            return rule, ""
        if line.runs_any:
            return rule, "It runs something that is known only when it runs, which may be that: write it out."
        problem = next((one for one, words, names in hiding if rule.bash.occurs_in(words, names)), "")
        if line.hides_any and rule.bash.is_named_in(line.everywhere):
            problem = line.hides_any
        if problem:
            problem = f"{problem[0].upper()}{problem[1:]}"
            return rule, f"{problem} in it cannot be judged, and it names that: write it plainly."
    return None


def why_not_allowed(line: ParsedLine, rules: Sequence[KnownRule], harmless: HarmlessCommands) -> str | None:
    """Tells the model why the rules for Bash do not allow the line. None if they allow all but what is harmless."""
    unknown = "a command that is known only when it runs" if line.runs_unknown else ""
    problem = next(iter((*line.not_understood, *line.evaluated)), line.runner or unknown)
    if problem:
        return f"{problem} in it cannot be judged"
    if line.sets_variables:
        return "it sets variables for the commands after it"
    needed = [one for one in line.commands if one.is_needed]
    is_moved = harmless.moves and any(one.name == "cd" and harmless.has(one) for one in needed)
    for one in needed:
        words = (*one.assignments, *one.words)
        if not (_is_allowed(words, rules, is_moved=is_moved) or harmless.has(one)):
            behind = (one.words for one in line.commands if one.words == words[-len(one.words) :] != words)
            inner = next((shown(one) for one in behind if _is_allowed(one, rules)), "")
            remark = f" (one allows `{inner}`, but not what `{words[0].known}` takes for it)" if inner else ""
            return f"no rule allows `{shown(words)}`{remark}"
    return None if needed else "there is no command in it"


def _is_allowed(words: Sequence[Word], rules: Sequence[KnownRule], *, is_moved: bool = False) -> bool:
    """`is_moved` says that the words may not be run in a root, where what a pattern names lies."""
    return any(rule.bash.allows(words) for rule in rules if not (is_moved and rule.bash.names_path))


def shown(words: Sequence[Word]) -> str:
    return " ".join("".join("..." if part is ANY else part for part in word.parts) for word in words)[:200]


def _joined(words: Sequence[Word]) -> list[Element]:
    return [element for word in words for element in (*word.elements(), WORD_END)]


def _wildcard(words: Sequence[str], *, is_open: bool, is_text: bool = False) -> Wildcard:
    elements: list[Element] = []
    for word in words:
        elements += [ANY if char == "*" else char for char in word]
        elements.append(WORD_END)
    if is_open or (words and words[-1].endswith("*")):
        elements.append(ANY)
    return Wildcard(elements, is_text=is_text)


NOTES = {
    "any": "it has no options, and prints its words or nothing",
    "format": "its first word is a format, and the others are any words",
    "texts": "its operands are texts",
    "text": "its first operand is a text, unless an option has given one, and the others are files",
    "none": "it has no operands",
    "one": "it has at most one operand: it would write to a second one",
    "directory": "its operand is a directory below the roots",
    "content": "it prints contents of files that it does not name",
}
# The columns are those of `command_table.py`; operands are files unless a note says otherwise. An option may mean `content`
# (as the note), `recursive`, or `pattern`, whose value is the text of the note `text`. Only options that are harmless on
# each system are here. Git takes the value of a long option behind `=`.
_GIT_LOG = """
    0123456789swbRzEFiMC --stat --shortstat --numstat --summary --name-only --name-status --no-patch --oneline --graph
    --decorate --no-decorate --all --branches --tags --remotes --format --pretty --abbrev-commit --date --author --committer
    --grep --since --until --after --before --follow --first-parent --merges --no-merges --reverse --max-count --skip
    --color --no-color --no-ext-diff --no-textconv --diff-filter --find-renames --full-history --topo-order --date-order"""
_GIT_DIFF = f"""{_GIT_LOG} Upu --patch --unified --cached --staged --check --word-diff --color-words --ignore-all-space
    --ignore-space-change --ignore-blank-lines --exit-code --quiet --minimal --histogram --patience --merge-base --raw --text
    --function-context"""
_TABLE = f"""
cd       | | | directory | cd(1p)
pwd      | LP | | none | bash(1)
true/false/:/echo/break/continue/exit/sleep | | | any | bash(1)
printf   | | | format | bash(1)
test/[   | efdrwxsLhbcpSznauolqtgk | | texts | bash(1)
cat      | benstuvAET --number --number-nonblank --show-all --show-ends --show-tabs --squeeze-blank | | | cat(1)
head/tail | 0123456789qv --quiet --verbose | nc --lines --bytes | | head(1)
wc       | lwcmL --lines --words --bytes --chars --max-line-length | | | wc(1)
cut      | s --only-delimited --complement | dfcb --delimiter --fields --characters --bytes --output-delimiter | | cut(1)
tr       | cCds --complement --delete --squeeze-repeats | | texts | tr(1)
grep     | 0123456789ivncloqswxEFGPaHhLzb r=recursive --recursive=recursive --ignore-case --invert-match --line-number --count
    --files-with-matches --files-without-match --only-matching --quiet --silent --no-messages --word-regexp --line-regexp
    --extended-regexp --fixed-strings --basic-regexp --perl-regexp --with-filename --no-filename --text --color
    | e=pattern --regexp=pattern ABCm --after-context --before-context --context --max-count --include --exclude --exclude-dir
    | text | grep(1)
sort     | bdfgiMhnrVcCmsuz --numeric-sort --reverse --unique --ignore-case --human-numeric-sort --version-sort --stable
    | kt --key --field-separator | | sort(1)
uniq     | cdDiuz --count --repeated --unique --ignore-case | fsw --skip-fields --skip-chars --check-chars | one | uniq(1)
ls       | aAlh1trRSdFispngoGcuxmCkLqB --all --almost-all --human-readable --recursive --color --reverse --directory
    --classify --inode --size --group-directories-first --full-time --sort --time | | | ls(1)
git status | sbuzlnoarm --short --branch --porcelain --long --untracked-files --ignored --show-stash --no-renames
    | | | git-status(1)
git branch | --show-current | | none | git-branch(1)
git rev-parse | q --abbrev-ref --short --show-toplevel --git-dir --absolute-git-dir --git-common-dir --is-inside-work-tree
    --is-bare-repository --verify --quiet --show-prefix --show-cdup --symbolic-full-name | | | git-rev-parse(1)
git ls-files | cdmosutz --cached --deleted --modified --others --stage --unmerged --exclude-standard --error-unmatch
    --full-name | | | git-ls-files(1)
git diff | {_GIT_DIFF} | SG | content | git-diff(1)
git log  | {_GIT_LOG} pu=content --patch=content | nSG | | git-log(1)
git show | {_GIT_DIFF} | n | content | git-show(1)
"""
FORMS = dict(forms(_TABLE, is_runner=False))
# Commands by which a shell changes what the words after them mean, as with PATH. `printf %n` sets a variable too.
_SETTERS = frozenset(
    """
    declare typeset local readonly export unset set read mapfile readarray wait getopts let printf shopt enable hash alias
    unalias trap bind complete pushd popd exec
    """.split()
)
_FORMAT = re.compile(r"(?!-)(?:[^%]|%%|%[-+ #0]*+\d*(?:\.\d+)?[sdiouxXeEfFgGcbq])*", re.DOTALL)
# What is surely the value of the option before it. Numbers may be negative.
_VALUE = re.compile(r"-|-\d+|(?!-).*", re.DOTALL)
_NOT_BELOW = re.compile(r"-?|.*(?:^|/)\.\.(?:/|$).*|~.*", re.DOTALL)
# Git takes its settings, which may name programs, from the repository around the directory in which it runs.
_USES_GIT = re.compile(r"git(?:-.*)?|gh|glab|hub", re.IGNORECASE)


class HarmlessCommands:
    """Judges which commands of a line are harmless."""

    def __init__(
        self, line: ParsedLine, places: RulePlaces, *, may_read: bool = True, has_read_rules: bool = False
    ) -> None:
        """`may_read` says whether Read may run at all, and `has_read_rules` whether rules forbid it some paths."""
        self._line, self._places = line, places
        self._may_read, self._may_print_all = may_read, may_read and not has_read_rules
        self._bases, is_lost = directories_of(line, places)
        directories = set(map(places.disk.real, self._bases))
        self.moves = not directories <= set(places.roots)
        """Whether a command of the line may run in another directory than a root."""
        self._uses_git = any(_USES_GIT.fullmatch(one.name or "") for one in line.commands)
        self._is_off = (
            is_lost
            or (line.has_loop and len(self._bases) > 1)  # each round may lead one directory further
            or not all(map(places.is_below_root, directories))
            or not all(
                one.is_harmless or (one.operator == "<" and self._may_be_read(one.target))
                for one in line.redirections
            )
            or any(one.name in _SETTERS and not self._is_in_table(one) for one in line.commands)
        )

    def has(self, command: SimpleCommand) -> bool:
        """Whether a command of the line is harmless."""
        return not self._is_off and self._is_in_table(command)

    def _is_in_table(self, command: SimpleCommand) -> bool:
        name, *rest = command.words or (None,)
        texts = [None if name is None or command.assignments else name.text]
        if texts == ["git"]:
            rest = rest[1:] if rest and rest[0].text == "--no-pager" else rest
            if self.moves or not rest or any("%G" in word.known for word in rest):  # `%G?` runs gpg
                return False
            texts.append(rest.pop(0).text)
        form = None if None in texts else FORMS.get(" ".join(map(str, texts)))
        if form is None or "any" in form.notes:
            return form is not None
        if "format" in form.notes:
            return bool(rest) and _FORMAT.fullmatch(rest[0].text or "%") is not None
        return self._is_harmless(form, rest)

    def _is_harmless(self, form: Form, words: Sequence[Word]) -> bool:
        """Whether the table has each option, and the operands are harmless. `words` are those after the command's name."""
        operands: list[Word] = []
        meanings = set(form.notes)
        rest = iter(words)
        for word in rest:
            if word.text == "--":
                operands += rest
            elif word.text == "-" or not word.known.startswith("-"):
                operands.append(word)
            else:
                found = form.read(word.text or "")
                if found is None or not found[0]:
                    return False
                if found[0][-1] in WITH_VALUE and found[1] is None:
                    value = next(rest, UNKNOWN).text
                    if value is None or not _VALUE.fullmatch(value):
                        return False
                meanings |= set(found[0])
        # A word of which no part is known at its beginning may be an option, or several words.
        if any(word.text is None and not (word.is_glob and word.parts[0]) for word in operands):
            return False
        if "content" in meanings and not self._may_print_all:
            return False
        if "texts" in meanings:
            return True
        if "directory" in meanings:
            return len(operands) == 1 and self._may_change_to(operands[0])
        files = operands[1:] if "text" in meanings and "pattern" not in meanings else operands
        if "recursive" in meanings:
            files = files or [plain(".")]
        most = 0 if "none" in meanings else 1 if "one" in meanings else len(operands)
        return len(operands) <= most and all(map(self._may_be_read, files))

    def _may_change_to(self, word: Word) -> bool:
        """Whether `cd` is harmless with this word. That it leads below a root is looked at for the whole line."""
        is_below = word.text is not None and _NOT_BELOW.fullmatch(word.text) is None
        return is_below and not (self.moves and self._uses_git)

    def _may_be_read(self, word: Word) -> bool:
        """Whether a word names files below the roots, wherever the line runs."""
        text = word.text
        if text is None and word.is_glob and word.parts[0]:
            text = word.parts[0].rpartition("/")[0] if ".." not in word.known else None
        if text is None or not self._may_read or "\0" in text or re.search(r"(?:^|[=:])~", text):
            return False
        places = self._places
        paths = [places.disk.real(posixpath.join(base, text)) for base in self._bases]
        return all(places.is_below_root(path) and not places.is_near_home(path) for path in paths)
