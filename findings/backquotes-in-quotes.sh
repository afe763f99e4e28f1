#!/bin/sh
# Packages: sh-syntax 0.7.0 (npm; the parser and printer of shfmt), bashlex 0.18 (PyPI), tree-sitter 0.26.1 and
# tree-sitter-bash 0.25.1 (PyPI). The same rewriting is seen with shfmt 3.6.0 of Debian 12.
#
# One would expect: a formatter leaves what a script does as it is, and three parsers that know backquotes read the
# same words as the shell.
# What they do: in "`printf '<%s>' \"a b\"`" the shell (bash and dash alike) takes the backslashes away first,
# because of the outer double quotes, so printf gets ONE word: a b. All three parsers, none of them reporting an
# error, read TWO words, "a and b", with the quotation marks as letters. The formatter prints its reading: "$(printf
# '<%s>' \"a b\")", and the formatted script passes two words with quotation marks in them. Without the outer quotes
# everything agrees.
#
# Seen:
#   bash, dash, before formatting   <a b>
#   formatted                       echo "$(printf '<%s>' \"a b\")"
#   bash, dash, after formatting    <"a><b">
#   words read by bashlex           printf <%s> "a b"            (four words)
#   words read by tree-sitter-bash  printf '<%s>' \"a b\"        (four words)
#
# For whom it matters: agents format what they edit, and hooks do it for them, so a change of one line elsewhere
# changes this command (old release scripts are full of it: tag="`git log -1 --format=\"%h %s\"`"), with green syntax
# checks before and after. Whoever splits commands with these parsers to show or log them names arguments that the
# command never gets. Rewrite backquotes by hand first, and compare what the script prints.
#
# Needs bash, dash, node and npm, python3 with venv, and package indexes for pip and npm.
# Exit: 0 as described, 1 it changed, 77 it cannot be tried here.
set -u
for tool in bash dash node npm python3; do command -v $tool >/dev/null || { echo "$tool is missing"; exit 77; }; done
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
cd "$top" || exit 1
{ npm install --silent --no-audit --no-fund --no-save --cache "$top/npm" --prefix "$top" sh-syntax@0.7.0 >error 2>&1 &&
    python3 -m venv venv &&
    venv/bin/pip install -q --disable-pip-version-check bashlex==0.18 tree-sitter==0.26.1 tree-sitter-bash==0.25.1 2>error; } ||
    { cat error; echo "the packages cannot be installed"; exit 77; }
bad=0
expect() { # LABEL WANTED GOT
    printf '%-34s %s\n' "$1" "$3"
    [ "$2" = "$3" ] || { echo "CHANGED: wanted $2"; bad=1; }
}
cat >format.mjs <<'END'
import { readFileSync } from "node:fs";
import { print } from "sh-syntax";
const text = readFileSync(process.argv[2], "utf8");
process.stdout.write(await print(text, { originalText: text, filepath: process.argv[2] }));
END
cat >words.py <<'END'
import sys

import bashlex
import tree_sitter
import tree_sitter_bash

text = open(sys.argv[2]).read().rstrip("\n")


def inner(node):  # the words of the command within the command substitution
    if node.kind == "commandsubstitution":
        return [part.word for part in node.command.parts]
    return next((found for part in getattr(node, "parts", []) if (found := inner(part))), None)


def within(node):
    if node.type == "command_substitution":
        return [part.text.decode() for part in node.named_children[0].children]
    return next((found for part in node.children if (found := within(part))), None)


if sys.argv[1] == "bashlex":
    words = inner(bashlex.parse(text)[0])
else:
    root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language())).parse(text.encode()).root_node
    words = ["ERROR"] if root.has_error else within(root)
print(" | ".join(words))
END

cat >quoted.sh <<'END'
echo "`printf '<%s>' \"a b\"`"
END
cat >plain.sh <<'END'
echo `printf '<%s>' "a b"`
END
for name in quoted plain; do node format.mjs $name.sh >$name-formatted.sh || { echo "CHANGED: not formatted"; exit 1; }; done
for shell in bash dash; do
    expect "$shell, quoted, before" "<a b>" "$($shell quoted.sh)"
    expect "$shell, quoted, after formatting" '<"a><b">' "$($shell quoted-formatted.sh)"
    expect "$shell, plain, before" "<a b>" "$($shell plain.sh)"
    expect "$shell, plain, after formatting" "<a b>" "$($shell plain-formatted.sh)"
done
expect "the formatted line" "echo \"\$(printf '<%s>' \\\"a b\\\")\"" "$(cat quoted-formatted.sh)"
expect "bashlex, quoted" 'printf | <%s> | "a | b"' "$(venv/bin/python words.py bashlex quoted.sh)"
expect "bashlex, plain" 'printf | <%s> | a b' "$(venv/bin/python words.py bashlex plain.sh)"
expect "tree-sitter, quoted" "printf | '<%s>' | \\\"a | b\\\"" "$(venv/bin/python words.py tree-sitter quoted.sh)"
expect "tree-sitter, plain" "printf | '<%s>' | \"a b\"" "$(venv/bin/python words.py tree-sitter plain.sh)"
[ $bad = 0 ] && echo "as described: one word for the shell is two for all three parsers, and the formatter writes that down"
exit $bad
