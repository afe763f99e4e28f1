"""The closed table of commands that are harmless beside allowed ones. They print, and read no file that Read may not read.

Everything that is not in the table is an ordinary command: another program, another option, a word that is known only
when the command runs, an assignment before the command, and each command of a line that writes a file.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from ralph.permissions.bash_paths import directories_of
from ralph.permissions.command_table import WITH_VALUE, forms
from ralph.permissions.shell_words import UNKNOWN, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ralph.permissions.command_table import Form
    from ralph.permissions.judge import RulePlaces
    from ralph.permissions.shell import ParsedLine
    from ralph.permissions.shell_syntax import SimpleCommand
    from ralph.permissions.shell_words import Word

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
