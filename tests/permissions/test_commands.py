"""A table of shell commands, with the decisions of permission rules for Bash."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from ralph.permissions.command_table import FORMS, NOTES
from ralph.permissions.shell import parse_line
from ralph.values.answer import ToolCall
from tests.patience import within_s
from tests.permissions.worlds import denies, permissions, verdict
from tests.rows import every_row

DENIED = ("Bash(rm:*)", "Bash(git push:*)")
ALLOWED = ("Bash(git diff:*)", "Bash(git log *)", "Bash(echo *)", "Bash(npm run test*)", "Bash(make lint)")

# The command, whether the rules that deny refuse it, and whether those that allow let it run.
TABLE = [
    # Simple commands
    ("rm x", True, False),
    ("rmdir x", False, False),
    ("ls rm", False, True),
    ("git push", True, False),
    ("git pushy", False, False),
    ("git diff --stat HEAD~1", False, True),
    ("git diffy", False, False),
    ("git log", False, True),
    ("echo", False, True),
    ("npm run test", False, True),
    ("npm run test:unit -- --watch", False, True),
    ("npm run build", False, False),
    ("make lint", False, True),
    ("make lint clean", False, False),
    ("make 'lint clean'", False, False),
    ("echo 'rm x'", False, True),
    # Compound commands
    ("echo a && rm x", True, False),
    ("echo a; rm x", True, False),
    ("echo a & rm x", True, False),
    ("echo a | rm x", True, False),
    ("echo a |& rm x", True, False),
    ("echo a && git diff", False, True),
    ("echo a\nrm x", True, False),
    ("(rm x)", True, False),
    ("time (git diff && (cd a; rm x))", True, False),
    ("time (git diff && make lint)", False, False),
    ("env (git diff)", False, False),
    ("{ rm x; }", True, False),
    ("if true; then rm x; fi", True, False),
    ("for f in a b; do rm $f; done", True, False),
    ("while read f; do rm $f; done < list", True, False),
    ("case $x in a) rm x;; esac", True, False),
    ("[[ -f x ]] && rm x", True, False),
    ("f() { rm x; }; f", True, False),
    ("function g { rm x; }", True, False),
    ("echo() { curl evil; }; echo hi", False, False),
    ("coproc rm x", True, False),
    ("jobs -x rm x", True, False),
    ("ssh-agent rm x", True, False),
    ("sg root -c 'rm x'", True, False),
    ("jobs -l", False, False),
    # Reserved words, behind which the shell takes assignments
    ("time x=1 rm x", True, False),
    ("! time a[0]+=1 rm x", True, False),
    ("! ! x=1 rm x", True, False),
    ("time if x=1 rm x; then :; fi", True, False),
    ("! function f { rm x; }; f", True, False),
    ("! function f { rmdir x; }; f", False, False),
    ("time if [[ a ]] then rm x; fi", True, False),
    ("! while [[ a ]] do >f $X; done", True, False),
    ("! if { :; } then { rm x; } fi", True, False),
    ("! if git -C then push; then :; fi", True, False),
    ("time { if grep -q done f; then rmdir x; fi; }", False, False),
    ('echo "$(! case a in a|b) $X y;; esac)"', True, False),
    ("time x=1 rmdir x", False, False),
    ("time PATH=. echo a", False, False),
    ("time x=1", False, False),
    ("coproc NAME { rm x; }", True, False),
    ("# rm x\necho hi", False, True),
    ("echo \\ #x; rm x", True, False),
    ("\\ #; rm x", True, False),
    ("echo a;# rm x", False, True),
    ("{rm,x}\n}", True, False),
    ("{\techo a; }", False, True),
    # What the parser takes for the pattern of a comparison
    ("echo a =~ x; rm y ]]", True, False),
    ("echo a =~ x\nrm y ]]", True, False),
    ("echo a =~ x; r''m y ]]", True, False),
    ("echo a =~ ${x:-$(rm y)} ]]", True, False),
    ("echo a =~ x >f ]]", False, False),
    ("[[ a =~ >(rm y) ]] && echo a", True, False),
    ("[[ a =~ ^x.*[0-9]$ ]] && echo a", False, False),
    ("echo ${x/<(rm y)/}", True, False),
    ("echo ${x/a/b}", False, True),
    ("[[ a == ']]' && b < $(rm y) ]]", True, False),
    ("[[ a == ']]' ]] && rm y", True, False),
    ("shopt -s extglob\n!(x) y", True, False),
    ("echo \"${x:-'}'}\" && rm y", True, False),
    ("0<&-rm x", True, False),
    ("2>&1 x=1 ", False, False),
    # Assignments of any name
    ("env a.b=1 rm x", True, False),
    ("env =~ rm x", True, False),
    # A text in a word that the parser has read as two
    ("test -v 'a[$(rm x)]' \\  b", True, False),
    # Quotes
    ('r""m x', True, False),
    (r"\rm x", True, False),
    (r"$'\x72\155' x", True, False),
    ('$"rm" x', True, False),
    ("g'i't p\"us\"h", True, False),
    ("r\\\nm x", True, False),
    ("echo a \\\n  b", False, True),
    # Paths, spelling and options in front
    ("/bin/rm x", True, False),
    ("RM x", True, False),
    ("./echo hi", False, False),
    ("git -C . push", True, False),
    ("git -c a=b --no-pager push", True, False),
    ("git commit push", False, False),
    # What is known only when the command runs
    ("$(echo rm) x", True, False),
    ("echo $(rm x)", True, False),
    ("echo `rm x`", True, False),
    ("echo $(date)", False, False),
    ("echo ${x:-$(rm y)}", True, False),
    ("a=$(rm x)", True, False),
    ("x[$(rm y)]=1", True, False),
    ("diff <(rm x) y", True, False),
    ("$X y", True, False),
    ("X=rm; $X y", True, False),
    ("${X}m y", True, False),
    ("r? x", True, False),
    ("r[m] x", True, False),
    ("{rm,x}", True, False),
    ("r{m,x} y", True, False),
    ('"$VENV"/bin/python x.py', False, False),
    ('"$BIN"/rm x', True, False),
    ("git $X", True, False),
    ("git log $X", False, True),
    ("echo $((1 + 2))", False, False),
    # Redirections
    ("echo hi > /dev/null 2>&1", False, True),
    ("echo hi >&2", False, True),
    ("echo hi > out", False, False),
    ("echo hi &> out", False, False),
    ("echo < in", False, True),
    ("2>/dev/null rm x", True, False),
    (">out rm x", True, False),
    ("{ rm x; } 2>/dev/null", True, False),
    ("> out", False, False),
    # Here-documents
    ("cat <<'EOF' | sh\nls\nEOF", True, False),
    ("bash <<'EOF'\nls '$x'\necho rm\nEOF", False, False),
    ("bash <<'EOF'\ngit diff && rm x\nEOF", True, False),
    ("bash <<'EOF'\n$X y\nEOF", True, False),
    ("bash <<EOF\nls $X\nEOF", True, False),
    ("bash <<EOF\nls \\$X\nEOF", True, False),
    ("cd a && sudo -u me bash -euo pipefail -s -- a <<'E' | tail -5\nls $1\nE", False, False),
    ("true | bash -s a <<-E >out\n\tls\n\tE", False, False),
    ("bash <<'E'\nif ls; then\n  rm x\nfi\nE", True, False),
    ("bash -s $X <<'E'\nls\nE", True, False),
    ("bash -s -c 'rm x' <<'E'\nls\nE", True, False),
    ("bash --rcfile x -i <<'E'\nls\nE", True, False),
    ("bash <<-'E'\n\tr\\\n\tm x\nE", True, False),
    ("bash <<'E' <f\nls\nE", True, False),
    ("<f bash <<'E'\nls\nE", True, False),
    ("bash <f <<'E'\nls\nE", True, False),
    ("bash <<'E' <<<x\nls\nE", True, False),
    ("bash <<'F' <<'E'\nls\nF\nls\nE", True, False),
    ("cat <<'A'\nx\nA\nbash <<'E'\ncat > f <<'X'\n$(rm x)\nX\nls\nE", False, False),
    ("bash 3<<'E'\nls\nE", True, False),
    ("bash <<'E' 0<&3\nls\nE", True, False),
    ("{ bash; } <<'E'\nls\nE", True, False),
    ("cat <<'E' | bash\nls\nE", True, False),
    ("bash <<'E'; sh <<'F'\nls\nE\nls\nF", False, False),
    ("bash <<'E'; sh <<'F'\nls\nE\nrm x\nF", True, False),
    ("echo `bash <<'E'\nrm x\nE\n`", True, False),
    ("bash <<'E' && sh\nls\nE", True, False),
    ("cat <<EOF\n$(rm x)\nEOF", True, False),
    ("cat <<'EOF'\n$(rm x)\nEOF", False, True),
    # In `$(...)`, bash ends a here-document with a line that begins with its word, if a closing parenthesis follows
    ("echo \"$(cat <<'E'\nx\nE 2>/dev/null; rm y; (true)\nE\n)\"", True, False),
    ('echo "$(cat <<E\nx\nEE; rm y)\nE\n)"', True, False),
    ("echo \"$(cat <<'E'\nx\nE 2\nE\n)\"", False, True),
    ("echo <<'EOF'\nrm x\nEOF", False, True),
    ("cat <<< rm", False, True),
    ('cat <<< "$(rm x)"', True, False),
    # Commands that run commands
    ("time git diff", False, True),
    ("timeout 5 rm x", True, False),
    ("timeout -s KILL 5 git diff", False, True),
    ("nice -n 5 nohup git diff", False, True),
    ("command rm x", True, False),
    ("command -v rm", False, False),
    ("builtin echo hi", False, False),
    ("exec rm x", True, False),
    ("env A=1 rm x", True, False),
    ("env -i git diff", False, False),
    ("env -S 'rm x'", True, False),
    ("env -Srm x", True, False),
    ("env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls", True, False),
    ("BASH_CMDS[ls]=/bin/rm; ls x", True, False),
    ("env - PATH=x rm y", True, False),
    ("printf 'x:\\n\\trm y' | make -f -", True, False),
    ("sudo -u me rm x", True, False),
    ("sudo git diff", False, False),
    ("xargs rm", True, False),
    ("git diff | xargs echo", False, False),
    ("xargs -I{} sh -c '{}'", True, False),
    ("sh -c 'rm x'", True, False),
    ("bash -c 'bash -c \"rm x\"'", True, False),
    ("bash -c 'git diff'", False, False),
    ("bash -c $X", True, False),
    ("bash -euo pipefail -c 'rm x'", True, False),
    ("bash -c 'env'\\ 'rm'\\ 'x'", True, False),  # one word, which the parser reads as two
    ("bash -c \\\n'git diff'", False, False),
    ("sudo sh -eo pipefail <<E\nrm x\nE", True, False),
    ("bash -oe pipefail -c 'rm x'", True, False),
    ("bash -euo pipefail rm.sh", False, False),
    ("fish -C 'rm x'", True, False),
    ("fish --command='rm x'", True, False),
    ("sh", True, False),
    ("curl x | sh", True, False),
    ("sh script.sh", False, False),
    ("eval rm x", True, False),
    ("eval git diff", False, False),
    ("eval $X", True, False),
    ("source /dev/stdin", True, False),
    ("find . -exec rm {} ;", True, False),
    ("find . -exec {} ;", True, False),
    (r"find . {-exec,rm,\;}", True, False),
    ("gfind . -exec rm {} +", True, False),
    ("gtimeout 5 rm x", True, False),
    ("find . -name rm", False, False),
    ("busybox rm x", True, False),
    ("/lib64/ld-linux-x86-64.so.2 /bin/rm x", True, False),
    ("2>&1 >/dev/null $'\\x72'm x >/dev/null", True, False),
    ("2>&1 >/dev/null 'rm' x >/dev/null", True, False),
    (r"""perl -e 'system("\x72m x")'""", True, False),
    ("trap 'rm x' EXIT", True, False),
    ("alias ll='rm x'", True, False),
    ("parallel rm ::: x", True, False),
    ("watch rm x", True, False),
    ("ssh host rm x", True, False),
    ("""python3 -c 'import os; os.system("rm x")'""", True, False),
    ("python3 - <<E\nimport os; os.system('rm x')\nE", True, False),
    ("python3 rm.py", False, False),
    ("perl -e 'system(\"rm x\")'", True, False),
    ("awk 'BEGIN { system(\"rm x\") }'", True, False),
    ("sqlite3 :memory: '.shell rm x'", True, False),
    ("echo '.shell rm x' | sqlite3 a.db", True, False),
    ("sqlite3 a.db 'select count(*) from push'", False, False),
    ("duckdb -c '.shell rm x'", True, False),
    (r"psql -c '\! rm x'", True, False),
    ("psql \"$URL\" -c 'select 1' && git add x", False, False),
    (r"mysql -e '\! git push'", True, False),
    ("mariadb -e 'system rm x'", True, False),
    ("gnuplot -e 'system(\"rm x\")'", True, False),
    ("octave --eval 'system(\"rm x\")'", True, False),
    ("lftp -c '!rm x'", True, False),
    ("sftp host <<< '!rm x'", True, False),
    ("m4 <<< 'syscmd(rm x)'", True, False),
    ("dc -e '!rm x'", True, False),
    ("git bisect run rm x", True, False),
    ("tar xf a --to-command=rm", True, False),
    ("tar xf a --to-c=rm", True, False),
    ("tar cf a --use=rm x", True, False),
    ("split --filter=rm x", True, False),
    ("sort --compress-prog=rm x", True, False),
    # Assignments
    ("FOO=1 rm x", True, False),
    ("PATH=. git diff", False, False),
    ("PATH=.; git diff", False, False),
    ("export PATH=.; git diff", False, False),
    ("x=1", False, False),
    # Words behind redirections, which the parser takes for further targets
    ("git 2>&1 push", True, False),
    ("git <<E push\nx\nE", True, False),
    ("git 2>/dev/null diff", False, True),
    ("echo a1>/dev/null", False, True),
    ("git >&- push", True, False),
    ("git diff <<<$\nrm x", True, False),
    ("git diff =~\nrm x", True, False),
    ("git diff\n\\\nrm x", True, False),
    ("git diff >/dev/null\n\\\n rm x", True, False),
    ("echo ``\nrm x", True, False),
    ("git diff $a/$x.py", False, True),
    ("r$a/$m.x y", True, False),
    ("echo a \n\\rm x", True, False),
    ("echo a@<<E\nE\nrm x\nE", True, False),
    ("echo <<E\nx\nE\ngit diff", False, True),
    ("echo == a \\\n $", False, True),
    ("make == lint", False, False),
    ("git diff |\n\n cat && # then\n  echo a", False, True),
    ("git 2>&-push", True, False),
    # Words of which the parser makes two
    ('<<<"a"\\echo rm x', True, False),
    ("<<<\\  rm echo", True, False),
    (">\\  rm x", True, False),
    ("x=\\  rm y", True, False),
    ("env x='y'\\  rm z", True, False),
    ("echo 'a'\\ b >/dev/null", False, True),
    ("git >&- diff", False, True),
    ("echo hi &>1", False, False),
    ("echo hi &>>-", False, False),
    ("echo hi 2>&1- 1>&- <&-", False, True),
    # Texts that the shell evaluates later, and reserved words in the place of a name
    ("! ! rm x", True, False),
    ("echo ${x:-`rm y`}", True, False),
    ("cat <<E\n`rm x`\nE", True, False),
    ('cat <<"E\nF"; rm x\ny\nE\nF', True, False),
    ("x='a[$(rm y)]'; let x", True, False),
    ("[[ -v 'a[$(rm y)]' ]]", True, False),
    ("printf -v 'a[$(rm y)]' x", True, False),
    ("PS4='$(rm x)'; set -x; true", True, False),
    ("x='$(rm y)'; echo ${x@P}", True, False),
    ("echo 'the $(date) of it'", False, True),
    ('trap "$(cat x)" EXIT', True, False),
    ("tar cf x y -I 'rm z'", True, False),
    # Syntax that the parser does not know
    ("rm x (", True, False),
    ("echo 'rm", True, False),
    ("if; then rm; fi fi", True, False),
    ("echo 'abc", False, False),
    ("echo hi\x00; rm x", True, False),
    ("cd a\x00; echo hi", False, False),
    ("", False, False),
]


@every_row(("command", "is_denied", "is_allowed"), TABLE)
def test_the_verdict_about_a_command(command, is_denied, is_allowed) -> None:
    assert denies(permissions(deny=DENIED), "Bash", command=command) is is_denied
    assert denies(permissions(allow=ALLOWED), "Bash", command=command) is not is_allowed


# Lines with which bash runs `zap`: quotes that another reader takes otherwise, and values that the shell evaluates.
ZAPPED = [
    'set -o posix\necho "${x:-\'}"; zap 1; echo "\'}"',
    'POSIXLY_CORRECT=1\necho "${x:-\'}"; zap 1; echo "\'}"',
    "echo \"${x#$'\\''}\"; zap 1; echo \"'}\"",
    '"declare" a[1; zap 1; ok]=3',
    "\\declare a[1; zap 1; ok]=3",
    "dec\\\nlare a[1; zap 1; ok]=3",
    "> f declare a[1; zap 1; b]=3",
    "x=1 > f a[1; zap 1; b]=3",
    "eval a[1; zap 1; b]=3",
    "export a[1; zap 1; b]=3",
    "x=1 export a[1; zap 1; b]=3",
    "export x=(1) a[1; zap 1; b]=3",
    "local a[1; zap 1; b]=3",
    "aé[1; zap 1; b]=3",
    "a٣[1; zap 1; b]=3",
    "RANDOM='a[$(zap 1)]'",
    "OPTIND='a[$(zap 1)]'",
    "HISTCMD='a[$(zap 1)]'",
    "read RANDOM <<< 'a[$(zap 1)]'",
    "for RANDOM in 'a[$(zap 1)]'; do ok; done",
    "x='a[$(zap 1)]'; RANDOM=$x",
    "ok {a[$(zap 1)]}> f",
    "exec {a[$(zap 1)]}>f",
    "x=abc; echo ${x:'a[$(zap 1)]'}",
    "x=abc; echo ${x:$'a[\\x24(zap 1)]'}",
    "echo ${a['$(zap 1)']}",
    "a['$(zap 1)']=1",
    "a=(1); echo ${a['a[$(zap 1)]']}",
    "(( $'a[\\x24(zap 1)]' ))",
    "x='a[`zap 1`]'; y[x]=1",
    "x='a[`zap 1`]'; y=([x]=1)",
    "x='a[`zap 1`]'; y=(1 2); unset 'y[x]'",
    "x='a[`zap 1`]'; RANDOM=x",
    "x='a[`zap 1`]'; exec {y[x]}>f",
    "read PS4 <<< '`zap 1`'; set -x; ok",
    "x=ok; read -ax <<< zap; $x 1",
    'x=za; declare "x"+=p; $x 1',
    "x='zapx1'; read IFS <<< x; $x",
    "x='zapx1'; for IFS in x; do $x; done",
    "x='zapx1'; unset IFS; : ${IFS:=x}; $x",
    "x='zapx1'; declare \"I\"FS=x; $x",
    "x=ok; declare -g -n r=x; r=zap; $x 1",
    'x=ok; declare "-n" r=x; r=zap; $x 1',
    "x=ok; typeset +x -n r=x; r=zap; $x 1",
    "x=ok; for r in x; do declare -g -n r; r=zap; done; $x 1",
    'eval a={1,"y zap 1"}',
    "cat <<'E\\'\nE\\\nzap 1",
    "i\\\nf zap 1; then ok; fi",
    "cop\\\nroc zap 1",
    "x\\\n=1 zap 1",
    "funct\\\nion f { zap 1; }; f",
    "1\\\n>f zap 1",
    "{v\\\n}>f zap 1",
    "x='a[$(zap 1)]'; y=abc; echo ${y\\\n:x}",
    "[[ a =~ (a # ) ]]; zap 1\n) ]]",
    "[[ =~ ]] && zap 1\n[[ a ]]",
    'coproc "x" { zap 1; }',
    "coproc x=1 [[ a\nzap 1\n]]",
    "ok >&'$(zap 1)'",
    "x='$(zap 1)'; ok >&\"$x\"",
    "ok >&$'\\x24(zap 1)'",
    "read x <<< '$(zap 1)'; ok >&\"$x\"",
    "ok 1>&'a[$(zap 1)]'",
    "read x <<'E'\n$(zap 1)\nE\nok >&\"$x\"",
    "read x <<'E'\na[$(zap 1)]\nE\necho $((x))",
    "<\\\n&-zap 1",
    "bash --posix -c 'echo \"${x:-'\"'\"'}\"; zap 1; echo \"'\"'\"'}\"'",
    "POSIXLY_CORRECT= bash -c 'echo \"${x:-'\"'\"'}\"; zap 1; echo \"'\"'\"'}\"'",
    "sh -c 'echo \"${x:-'\"'\"'}\"; zap 1; echo \"'\"'\"'}\"'",
    "((ok <<E\nzap 1\nE\n) )",
    "ok <<E; ((ok\nzap 1\nE\n) )",
    "ok $((ok <<E\nzap 1\nE\n) )",
    "ok $(($(case a in a) ok zap 1;; esac)))",
    "ok $(($(case a in (a) ok zap 1;; esac)))",
    "ok $(( $(ok zap 1 # )\n) ))",
    "ok $(( `ok zap 1 # )` ))",
    'ok $(( "$(ok \')\' zap 1 # ")\n)" ))',
    "$'\\x{7a}ap' 1",
    "$'\\x{7a'ap 1",
    "(( $'a[\\x{24}(zap 1)]' ))",
    "for y in '5 zap'; do nice -n $y 1; done",
    "y='5 zap 1'; timeout $y ok",
    "y='x zap 1'; sudo -u $y ok",
    "BASH_ENV=<(echo zap 1) bash -c ok",
    "BASH_ENV=f bash -c ok; ok zap",
    "y='zap 1'; GIT_EDITOR=$y git commit",
    "time x='a[$(zap 1)]'; (( x ))",
    "time -p\\\n z${x-a}p 1",
    "sh -c 'ok &>f zap 1'",
    "sh -c '[[ a || zap 1 ]]'",
    "sh -c '((zap 1))'",
    "dash -c 'a[1; zap 1; b]=3'",
    "sh <<'E'\nok $[1; zap 1; 2]\nE",
    "sh -c 'ok $'\"'a\\'; zap 1; ok '\"",
    "compgen -C 'zap 1' x",
    "ok <(>f ! zap 1)",
    "ok $(>f { zap 1; })",
    "ok $(2>f if zap 1; then ok; fi)",
    "ok <<E<(x)\nE<(x)\nzap 1\nE",
    "shopt -s extglob\nok <<E@(x)\nE@(x)\nzap 1\nE",
    'ok "$\\\n(zap 1)"',
]


@every_row("command", ZAPPED)
def test_what_bash_runs_by_quotes_subscripts_and_values_is_denied(command) -> None:
    assert denies(permissions(deny=["Bash(zap:*)"]), "Bash", command=command)
    assert denies(permissions(allow=["Bash(ok:*)"]), "Bash", command=command)


def test_a_command_whose_assignments_may_stand_anywhere_cannot_be_judged() -> None:
    for line in ("set -k; ok x=1 zap 1", "set -o keyword; ok x=1 zap 1"):
        assert denies(permissions(deny=["Bash(ok zap:*)"]), "Bash", command=line)


# Lines that run the program `see`, some of them in backquotes.
BACKQUOTED = [
    r"""echo "`see \"a b\"`" """,
    r"""echo `see \"a b\"`""",
    r"""echo "`see \$HOME`" """,
    r"""echo "`see '\$HOME'`" """,
    r"""echo "`echo \`see \\\"a b\\\"\``" """,
    r"""echo "`echo \`see \"a b\"\``" """,
    r"""echo `echo \`see "a b"\``""",
    r"""echo "$(echo `see \"a b\"`)" """,
    r"""echo "${x:-`see \"a b\"`}" """,
    r"""echo "`see a\\\\ b`" """,
    r"""echo "`see a\ b`" """,
    r"""echo `see a\\ b`""",
    r"""case "`see \"a b\"`" in x) ;; esac""",
    r"""echo "x`see \"a  b\"`y`see \"c d\"`z" """,
    r"""echo $"`see \"a b\"`" """,
    r"""echo "`see \"\\\"\"`" """,
    'cat <<E\n`see "a b"`\nE',
    'cat <<E\n`see \\"a b\\"` \\`see x\\`\nE',
    'cat <<E\n`echo \\`see "a b"\\``\nE',
]


def test_words_in_backquotes_are_those_that_bash_gives_to_the_program(tmp_path) -> None:
    program = tmp_path / "see"
    program.write_text(
        "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done >>$OUT; printf '\\n\\0' >>$OUT\n"
    )
    program.chmod(0o755)
    out = tmp_path / "out"
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": "/h", "OUT": str(out)}
    for line in BACKQUOTED:
        out.write_text("")
        subprocess.run(["bash", "-c", line], env=own, check=False, capture_output=True)
        seen = [tuple(call.split("\0")[:-1]) for call in out.read_text().split("\n\0")[:-1]]
        assert seen, line
        found = [one for one in parse_line(line).commands if one.name == "see"]
        judged = [tuple(word.text for word in one.words[1:]) for one in found]
        for words in seen:
            assert any(
                len(one) == len(words)
                and all(mine in (None, theirs) for mine, theirs in zip(one, words, strict=True))
                for one in judged
            ), f"{line}: {words} is none of {judged}"


@every_row(
    ("rule", "command"),
    [
        ("Read(./my key)", r"""echo "`cat \"my key\"`" """),
        ("Edit(./my key)", r"""echo "`touch \"my key\"`" """),
        ("Edit(./key)", r"""echo "`touch \"key\"`" """),
        ("Edit(./key)", "cat <<E\n`touch key`\nE"),
        ("Bash(git commit -m x:*)", r"""echo "`git commit -m \"x\"`" """),
    ],
)
def test_rules_judge_what_bash_reads_in_backquotes(rule, command) -> None:
    assert denies(permissions(deny=[rule]), "Bash", command=command)


OTHER_PATTERNS = [
    ("Bash", "ls", True),
    ("Bash(*)", "ls", True),
    ("Bash(:*)", "ls", True),
    ("*", "ls", True),
    ("Bash(ls)", "ls", True),
    ("Bash(ls)", "ls -l", False),
    ("Bash(docker compose up)", "docker compose $X up", True),
    ("Bash(make lint fast)", "make $X", True),
    ("Bash(make lint fast)", 'make "$X"', False),
    ("Bash(make lint fast)", "make lint fast $X$Y", True),
    ("Bash(make lint é)", "make lint $'\\xc3\\xa9'", True),
    ("Bash(make lint é)", "make lint $'\\303\\251'", True),
    ("Bash(make lint fast)", 'make "$@"', True),
    ("Bash(ls *)", "ls", True),
    ("Bash(ls*)", "lsof -i", True),
    ("Bash(* --force)", "git push --force", True),
    ("Bash(* --force)", "git push", False),
    ("Bash(git * main)", "git push origin main", True),
    ("Bash(curl *evil.com*)", "curl -s http://evil.com/x -o y", True),
    ("Bash(curl *evil.com*)", "curl -s http://good.com/x", False),
    ("Bash(rm -rf:*)", "rm -rf x", True),
    ("Bash(rm -rf:*)", "rm $FLAGS x", False),
    ("Bash(rm -rf:*)", "FLAGS=-rf; rm $FLAGS x", True),
    ("Bash(rm -rf:*)", "rm -i x", False),
    ("Bash(rm -r:*)", "grep -r x . | xargs -r rm", False),
    ("Bash(rm -r:*)", "[ -r x ] && rm $X", False),
    ("Bash(rm -r:*)", "echo -r x | xargs rm", True),
    ("Bash(rm -r:*)", "ls -r; F=-r; rm $F", True),
    ("Bash(rm -r:*)", "ls -r; for f in -r; do rm $f; done", True),
    ("Bash(rm -r:*)", "ls() { rm $1; }; ls -r", True),
    ("Bash(/usr/bin/rm:*)", "rm x", True),
    ("Bash(curl * | sh)", "curl x | sh", True),
    ("Bash(curl * | sh)", "curl x|sh", True),
    ("Bash(curl * | sh)", "curl x -o y", False),
    ("Bash(git add . && git commit:*)", "git add . && git commit -m x", True),
    ("Bash(npm:*)", "npm\tinstall", True),
    ("Bash(docker compose:*)", "docker compose up", True),
    ("Bash(sudo:*)", "sudo ls", True),
    ("Bash(sudo:*)", "timeout 5 sudo ls", True),
    ("Bash(rm:*)", "echo rm", False),
    # Options between the words
    ("Bash(kubectl config use-context:*)", "kubectl config --kubeconfig x use-context prod", True),
    ("Bash(kubectl config use-context:*)", "kubectl config --kubeconfig x view use-context", False),
    ("Bash(aws s3 rm:*)", "aws s3 --profile p rm s3://b", True),
    ("Bash(aws s3 rm:*)", "aws s3 --profile p -- ls rm", False),
    ("Bash(aws s3 rm:*)", "aws s3 --profile=p ls rm", False),
    ("Bash(aws s3 rm:*)", 'aws s3 --profile "$P" ls', False),
    ("Bash(aws s3 rm:*)", 'aws s3 --profile "$P" --region "$R" ls', False),
    ("Bash(aws s3 rm:*)", 'aws s3 --quiet "$C" x; C=rm', True),
    ("Bash(docker compose up)", 'F=--quiet; docker compose "$F" up', True),
    ("Bash(docker compose up)", 'docker compose "$F" up', False),
    ("Bash(gh pr merge:*)", "gh pr -R o/r merge 5", True),
    ("Bash(git reset --hard:*)", "git reset -q --hard", True),
    ("Bash(make lint fast)", "make -s lint -j 4 fast", True),
    ("Bash(make lint fast)", "make lint fast -s", False),
    ("Bash(git push:*)", "git log push", False),
    ("Bash(git push:*)", "git log -p push", False),
    ("Bash(cargo publish:*)", "cargo +nightly publish", True),
    ("Bash(cargo publish:*)", "cargo +nightly build publish", False),
    # A colon that may be a part of the word
    ("Bash(npm run deploy:*)", "npm run deploy:prod", True),
    ("Bash(npm run deploy:*)", "npm run deployment", False),
    ("Bash(git push:*)", "y='5 git'; timeout $y push origin", True),
    ("Bash(git push:*)", "timeout $y git status", False),
    ("Bash(git push:*)", "shopt -s nullglob; git [x] push", True),
    ("Bash(git push:*)", "shopt -s nullglob; for f in *.py; do git add $f; done", False),
    ("Bash(rm:*)", "find . -ex${x}ec rm {} +", True),
    ("Bash(rm:*)", "find . -mtime -$N; find . -name a*; echo rm", False),
    ("Bash(git push:*)", "sh -ci '}' <<'E'\ngit push\nE", True),
    ("Bash(git push:*)", "bash -ic 'nvm use 20 && git status'", False),
    ("Bash(npm run deploy *)", "npm run deploy:prod", False),
    ("Bash(npm run deploy:*)", "ssh host npm run deploy:prod", True),
    ("Bash(npm run deploy:*)", "ssh host npm run 'x deploy: y'", False),
    # An option that begins behind a wildcard
    ("Bash(*--force*)", 'echo "$x" *.py {a,b} "${y[@]}"', False),
    ("Bash(*--force*)", "F=--force; npm install $F", True),
    ("Bash(*--force*)", 'npm install "$X--force"', True),
    ("Bash(*--force*)", "npm install --fo$X", True),
    ("Bash(*--force*)", "mv a-$X-$Y a--$X", False),
    ("Bash(*-rf*)", "rm $X$Y", False),
    ("Bash(*-prod*)", "deploy $X", False),
    ("Bash(*-prod*)", "deploy x-pr$X", True),
    ("Bash(*-prod*)", "deploy $X; echo a-prod", True),
    ("Bash(* --force)", "ls **/*.py [ab]* ${X}*", False),
    ("Bash(* --force)", "F=--force; npm install $X$F", True),
]


@every_row(("rule", "command", "is_denied"), OTHER_PATTERNS)
def test_the_meaning_of_a_pattern(rule, command, is_denied) -> None:
    assert denies(permissions(deny=[rule]), "Bash", command=command) is is_denied


# Lines that run pytest, whoever looks after its environment.
RUNNERS = [
    "uv run pytest -q",
    "uv run --with pytest-xdist --extra test -p 3.12 pytest -n 2",
    "uv run --with=$X pytest",
    "uv --directory sub run pytest",
    "uv -q --project sub run --frozen pytest",
    "uv run -m pytest",
    "uvx pytest",
    "uvx --from pytest py.test; uvx 'pytest[x]'",
    "uv tool run --with x pytest",
    "pipx run pytest==8",
    "poetry run pytest",
    "poetry -C sub run pytest",
    "pipenv run pytest",
    "pdm -c x run pytest",
    "hatch run pytest",
    "hatch run test:pytest",
    "hatch run +py=3.12 test:pytest",
    "cross-env-shell A=1 'pytest -x'",
    "hatch -e test run -i py=3.12 pytest",
    "rye run pytest",
    "pixi run -e test pytest",
    "npx pytest",
    "npx --yes pytest@1 x",
    "npx -p some pytest",
    "npx -c 'pytest -x'",
    "npx --call='pytest -x'",
    "echo pytest | npx",
    "npm exec pytest",
    "npm --prefix sub exec -- pytest",
    "npm x -w one -- pytest",
    "npm exe pytest",
    "pnpm exec pytest",
    "pnpm -r --filter one exec pytest",
    "pnpm dlx --package x pytest",
    "pnpm pytest",
    "pnpx pytest",
    "pnpm -rc exec 'pytest x'",
    "corepack pnpm exec pytest",
    "corepack pnpm@9 exec pytest",
    "yarn pytest",
    "yarnpkg run pytest",
    "yarn workspaces run pytest",
    "yarn --cwd sub run pytest",
    "yarn exec pytest",
    "yarn dlx -p x pytest",
    "yarn workspace one run pytest",
    "yarn workspaces foreach -A --include x run pytest",
    "bunx --bun pytest",
    "bun x pytest",
    "bun run pytest",
    "bun --cwd sub pytest",
    "cross-env CI=1 pytest",
    "bundle exec pytest",
    "bundler ex pytest",
    "hatch env run -e one -- pytest",
    "pixi r pytest",
    "pixi exec -s one pytest@1",
    "opam exec -- pytest",
    "bundle exec --gemfile x pytest",
    "tox -e pytest",
    "tox exec -e py -- pytest",
    "tox -e py -- pytest",
    "nox -s pytest",
    "nox -s one -- pytest",
    "conda run -n env pytest",
    "conda run --no-capture-output -p /env -- pytest",
    "mamba run -n env pytest",
    "micromamba -r /root run -n env pytest",
    "mise exec python@3.12 node@20 -- pytest",
    "mise x -C sub python@3.12 -c 'pytest -x'",
    "mise exec python@3.12 pytest",
    "asdf exec pytest",
    "dotenv -e .env -- pytest",
    "npx dotenv-cli -e .env -- pytest",
    "pyenv exec pytest",
    "rustup run stable pytest",
    "direnv exec . pytest",
    "direnv exec $X pytest",
    "coverage run -m pytest",
    "coverage run --source src --branch -m pytest -q",
    "coverage3 run --module pytest",
    "python -m pytest",
    "python3.12 -X dev -W error -Im pytest",
    "python3 -mpytest",
    "py -3 -m pytest",
    "python3 -m cProfile -o x -m pytest",
    "python3 -m coverage run -m pytest",
    "python3 .venv/bin/pytest",
    "python3 $X -m pytest",
    "bash .venv/bin/pytest",
    "sh -eu ./pytest x",
    "timeout 5 bash -o pipefail pytest",
    "node node_modules/.bin/pytest",
    "nodejs --no-warnings bin/pytest",
    "tsx pytest",
    "ruby -W0 bin/pytest",
    "perl -w bin/pytest",
    "php -f pytest",
    "op run -- pytest",
    "op --account x run --env-file=.env.op --no-masking -- pytest",
    "doppler run -- pytest",
    "doppler run -p one -c dev -- pytest",
    "doppler run --command 'pytest -x'",
    "infisical run --env dev -- pytest",
    "dotenv run pytest",
    "dotenv -f x run --override pytest",
    "dotenv -e x -- pytest",
    "dotenvx run -f x -- pytest",
    "aws-vault exec me -- pytest",
    "gosu me pytest",
    "timeout 60 uv run env A=1 poetry run pytest",
    "uv run sh -c 'pytest'",
    "NPX pytest",
    "SUDO pytest",
    "xargs --replace pytest {}",
    "uv $X pytest",
    "uv run $X",
    "$X run pytest",
    # Options that nobody knows: a word may be the value of one.
    "uv run --no-such-option x pytest",
    "uv --no-such-option x run pytest",
    "npx --no-such-option x pytest",
    "pnpm --no-such-option x pytest",
    "conda run --no-such-option=x pytest",
    "sudo --no-such-option x pytest",
    "coverage run --no-such-option x -m pytest",
]


@every_row("command", RUNNERS)
def test_a_runner_does_not_hide_what_it_runs(command) -> None:
    assert denies(permissions(deny=["Bash(pytest:*)"]), "Bash", command=command)


@every_row(
    "command",
    [
        "uv sync",
        "uv pip install pytest",
        "uv --no-such-option x sync",
        "uv run ruff check pytest",
        "uv run --with pytest ruff check",
        "npm install pytest",
        "npm test -- pytest",
        "pnpm rm pytest",
        "yarn add pytest",
        "conda install -n pytest x",
        "python3 pytest.py",
        "bash pytest.sh",
        "bash -x run.sh pytest",
        "node pytest.js",
        "python3 -m pip install pytest",
        "poetry add pytest",
        "coverage report pytest",
        "mise exec pytest@1 -- ruff",
        "git commit -m pytest",
        "npx --help",
    ],
)
def test_a_word_that_is_not_run_is_no_command(command) -> None:
    assert not denies(permissions(deny=["Bash(pytest:*)"]), "Bash", command=command)


@every_row("command", ["pnpm rm lodash", "yarn link", "bun test", "pnpm -C sub rm lodash"])
def test_what_a_runner_calls_its_own_is_no_program(command) -> None:
    denied = ["Bash(rm:*)", "Bash(link:*)", "Bash(test:*)"]
    assert not denies(permissions(deny=denied), "Bash", command=command)
    assert denies(permissions(deny=denied), "Bash", command="pnpm exec rm x")


@every_row(
    ("command", "is_denied"),
    [
        ("git-push origin", True),
        ("/usr/lib/git-core/git-push origin", True),
        ("git send-pack origin main", True),
        ("git send-pack", True),
        ("git -C sub --no-pager send-pack x", True),
        ("git-send-pack x", True),
        ("git http-push x", True),
        ("git subtree push --prefix x origin main", True),
        ("git subtree -P x push origin main", True),
        ("git lfs push origin main", True),
        ("git --no-such-option x send-pack", True),
        ("poetry run git push", True),
        ("P=push git --config-env=alias.p=P p", True),
        ("git -c help.autocorrect=immediate psuh origin main", True),
        ("git -c include.path=x.cfg p", True),
        ("V=1 git --config-env=help.autocorrect=V psuh origin", True),
        ("V=1 git --config-env help.autocorrect=V psuh origin", True),
        ("git -c core.pager=cat log", False),
        ("git clone -u 'git push; git-upload-pack' . c", True),
        ("git clone '-ugit push' . c", True),
        ("git clone --u='git push' . c", True),
        ("git fetch --upload-p='git push' .", True),
        ("git rebase '-xgit push' HEAD~1", True),
        ("git rebase --exe='git push' HEAD~1", True),
        ("git rebase -ix 'git push' HEAD~1", True),
        ("git grep '-Ogit push' x", True),
        ("git config alias.p push; git p", True),
        ("GIT_EDITOR='git push' git commit --amend", True),
        ("GIT_EXTERNAL_DIFF='git push' git diff", True),
        ("export GIT_PAGER='git push'; git -p log", True),
        ("GIT_PAGER='git push'; export GIT_PAGER; git -p log", True),
        ("env PAGER='git push' git -p log", True),
        ("GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p", True),
        ("env GIT_CONFIG_PARAMETERS=\"'alias.p=push'\" git p", True),
        ("GIT_CONFIG_GLOBAL=g git p", True),
        ("git-status", False),
        ("git subtree add -P x push", False),
        ("git lfs pull", False),
        ("git log send-pack", False),
    ],
)
def test_every_way_to_push_counts_as_git_push(command, is_denied) -> None:
    assert denies(permissions(deny=["Bash(git push:*)"]), "Bash", command=command) is is_denied


@every_row(
    ("command", "is_allowed"),
    [
        ("uv run pytest -q", True),
        ("uv run --with x pytest", False),
        ("timeout 5 uv run pytest", True),
        ("uv run pytest --no-such-option x", True),
        ("uv run pytest; pytest", False),
        ("npx --yes anything", True),
        ("npx --no-such-option x anything", False),
        ("npx -c 'anything'", False),
        ("npx sh -c 'anything'", False),
        ("python3 -m pytest", True),
        ("python3 -m pip install x", False),
        ("python3 --no-such-option -m pytest", False),
        ("pytest", False),
        ("tox -e py -- -k x", True),
        ("yarn --no-such-option", True),
        ("yarn --no-such-option x", False),
        ("yarn install --no-such-option x", True),
        ("npx tsc --no-such-option x", True),
    ],
)
def test_a_pattern_allows_a_runner_by_its_own_words(command, is_allowed) -> None:
    allowed = ("uv run pytest", "npx", "python3 -m pytest", "tox", "yarn")
    judge = permissions(allow=[f"Bash({one}:*)" for one in allowed])
    assert denies(judge, "Bash", command=command) is not is_allowed


@every_row("command", RUNNERS)
def test_a_pattern_for_a_program_does_not_allow_a_runner_that_chooses_the_program(command) -> None:
    """A runner may install, build or configure what it runs, or take it from a file of the project."""
    assert denies(permissions(allow=["Bash(pytest:*)"]), "Bash", command=command)


@every_row(
    "command",
    [
        "pytest -q",
        "time pytest",
        "timeout -k 5 60 pytest -q",
        "nice -n 5 pytest",
        "nohup pytest",
        "stdbuf -oL pytest",
        "command pytest",
        "setsid -w pytest",
        "ionice -c 3 pytest",
        "caffeinate -i pytest",
        "tini -s -- pytest",
        "dumb-init -c pytest",
        "timeout 60 nice tini -- pytest",
    ],
)
def test_a_pattern_for_a_program_allows_what_runs_just_this_program(command) -> None:
    allowed, denied = permissions(allow=["Bash(pytest:*)"]), permissions(deny=["Bash(pytest:*)"])
    assert not denies(allowed, "Bash", command=command)
    assert denies(denied, "Bash", command=command)
    other = command.replace("pytest", "make")
    assert denies(allowed, "Bash", command=other)
    assert not denies(denied, "Bash", command=other)
    # Which variables there are decides which program it is.
    assert denies(allowed, "Bash", command=f"PATH=. {command}")


@every_row(
    ("rules", "command", "told"),
    [
        (
            {"allow": ["Bash(pytest:*)", "Bash(npx:*)"]},
            "timeout 9 uv run pytest -q",
            "no rule allows `uv run pytest -q` (one allows `pytest -q`, but not what `uv` takes for it).",
        ),
        ({"allow": ["Bash(pytest:*)", "Bash(npx:*)"]}, "npx pytest; make", "no rule allows `make`."),
        (
            {"allow": ["Bash(echo *)"]},
            "echo a; rm -f",
            "This call was not run: only calls that a rule allows may run, and no rule allows `rm -f`.",
        ),
        (
            {"deny": ["Bash(rm:*)"]},
            "rm x",
            "This call was not run: the rule Bash(rm:*) (the file) forbids it.",
        ),
        ({"deny": ["Bash(rm:*)"]}, "$X y", "write it out."),
        (
            {"deny": ["Bash(rm:*)"]},
            "ssh host rm x",
            "`ssh`, which can run other commands, in it cannot be judged, and it names that: write it plainly.",
        ),
    ],
)
def test_a_refusal_says_which_rule_forbids_which_part_and_what_to_do(rules, command, told) -> None:
    assert str(verdict(permissions(**rules), "Bash", command=command).denied).endswith(told)


def test_every_command_of_the_table_has_known_notes_and_a_source() -> None:
    for name, form in FORMS.items():
        assert form.notes <= set(NOTES), name
        assert set(form.options.values()) <= {"flag", "value", "shell", "command"}, name
        assert form.source or FORMS[name.split()[0]].source, name
    used = {note for form in FORMS.values() for note in form.notes}
    assert {*used, "as"} == set(NOTES)


# Commands as models write them. Rules that are about others must not be in their way.
ORDINARY = [
    "git log --oneline -5",
    'git commit -m "Remove the old parser"',
    "GIT_PAGER=cat git log --oneline",
    "GIT_EDITOR=true git rebase --continue",
    "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git status",
    "git rebase -Xours main && git clean -fd && git fetch -up --all",
    "git clone --depth 1 https://example.com/x && git config user.name x",
    "ls *.py src/*.py",
    "cat src/*.py | head -50",
    "sed -i 's/foo/bar/' src/main.py",
    'grep -rn "def main" src',
    "find . -name '*.py' -not -path './.venv/*'",
    "python3 -m pytest tests/test_main.py -k foo 2>&1 | tail -20",
    "cat > notes.md <<'EOF'\n# Notes\nCopy .env.example and fill it in. Do not use rm.\nEOF",
    "cat <<EOF > config.txt\nname=$USER\nEOF",
    "curl -s https://example.com/api | jq .name",
    "[ -d build ] || mkdir build",
    'for f in src/*.py; do echo "$f"; done',
    "tar xzf a.tgz",
    "cargo build 2>&1 | tail -5",
    'x=$(date); echo "$x"',
    "git stash && git pull --rebase && git stash pop",
    "tail -f log.txt & sleep 1; kill $!",
    "awk '{print $1}' data.txt",
    "xargs -n1 echo < names",
    "env | sort",
    "set -e; make; make install DESTDIR=/tmp/x",
]


@every_row("command", ORDINARY)
def test_rules_are_not_in_the_way_of_ordinary_commands(command) -> None:
    judge = permissions(deny=["Bash(rm:*)", "Bash(git push:*)", "Read(./.env)"])
    assert verdict(judge, "Bash", command=command).denied is None


@every_row("command", ["cat <<E\\\n\nE"])
def test_of_what_bash_takes_and_ralph_does_not_the_refusal_says_no_more_than_that(command) -> None:
    checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")
    allowed, denied = permissions(allow=["Bash(cat *)"]), permissions(deny=["Bash(rm x:*)"])
    told = str(verdict(allowed, "Bash", command=command).denied)
    assert "and syntax that ralph does not understand in it cannot be judged" in told
    told = str(verdict(denied, "Bash", command=f"{command}\n: rm x").denied)
    assert "Syntax that ralph does not understand in it cannot be judged, and it names that" in told


def test_a_rule_that_asks_is_asked_after_the_rules_that_deny() -> None:
    judge = permissions(deny=["Bash(rm:*)"], ask=["Bash(git push:*)", "Bash(rm:*)"])
    assert verdict(judge, "Bash", command="rm x").denied is not None
    asked = verdict(judge, "Bash", command="git push")
    why = "the rule Bash(git push:*) (the file) requires somebody to be asked first."
    assert (asked.denied, asked.asks) == (None, why)
    assert verdict(judge, "Bash", command="ls") == verdict(permissions(), "Bash", command="ls")


def test_output_may_be_redirected_where_a_rule_allows_to_write() -> None:
    judge = permissions(allow=["Bash(echo *)", "Edit(./out/**)"])
    assert not denies(judge, "Bash", command="echo hi > out/x")
    assert denies(judge, "Bash", command="echo hi > src/x")
    assert denies(judge, "Bash", command="echo hi > out/../src/x")
    assert denies(judge, "Bash", command='echo hi > "$X"')
    assert not denies(permissions(allow=["Bash(echo *)", "Write"]), "Bash", command="echo hi > src/x")


@every_row("command", ["printf -v 'a[$(rm y)]' x", "[[ -v 'a[$(rm y)]' ]]", "read 'a[`rm y`]' < x"])
def test_a_text_that_is_evaluated_is_not_allowed_with_its_command(command) -> None:
    judge = permissions(allow=["Bash(printf *)", "Bash([[ *)", "Bash(read *)"])
    assert denies(judge, "Bash", command=command)
    assert not denies(judge, "Bash", command="printf '%s' x")


@every_row("command", ["sed -n 1p x", "docker run y", "python3 -c 'print(1)'", "awk 1 x"])
def test_a_program_that_is_allowed_by_name_may_run_what_it_can(command) -> None:
    judge = permissions(allow=["Bash(sed *)", "Bash(docker *)", "Bash(python3 *)", "Bash(awk *)"])
    assert not denies(judge, "Bash", command=command)


def test_a_pattern_allows_none_of_the_other_tools_but_those_that_read() -> None:
    judge = permissions(allow=["Bash(echo *)"])
    assert denies(judge, "Write", file_path="x", content="")
    assert not denies(judge, "Read", file_path="x")
    assert not denies(judge, "Grep", pattern="x")


@every_row(
    "command",
    ["$(" * 30 + "rm x" + ")" * 30, "$(" * 3000 + "rm x" + ")" * 3000, "echo " + "a " * 6_000 + "; rm x"],
)
def test_a_deeply_nested_and_a_long_command_get_a_verdict(command) -> None:
    assert denies(permissions(deny=["Bash(rm:*)"]), "Bash", command=command)


@pytest.mark.parametrize(
    "text",
    [
        " ".join(["echo", *(f'"`echo \\"{number}\\"`"' for number in range(5_000))]),
        '`echo \\" $(' * 5_000 + "rm x" + ")`" * 5_000,
        "$((" * 20_000 + ")) " * 20_000,
        "$(( '()' " * 20_000 + ")) " * 20_000,
        "cat <<E\n\\",
        "((a) " * 20_000,
        "a[$(" * 20_000,
        "${x:-" * 20_000,
        '"$(echo ' * 20_000,
        "cat <<E\n" + "\\\n" * 60_000,
        "cat <<E\n" * 10_000,
        "echo " + "<(a) " * 10_000,
        "[ " * 30_000,
        "echo " + "[" * 100_000,
        "sh -c '" + "a[" * 50_000 + "'",
        "{a," * 40_000,
        "x='" + "[" * 120_000 + "'",
        "sed '1i items: " + "[a], " * 20_000 + "' f",
        "sed 's/" + "[^]" * 40_000 + "' f",
        "awk '" + "||" * 60_000 + "' f",
        "echo " + "'a'" * 40_000,
        "echo " + "$x" * 60_000,
        "find . " + "-name x " * 15_000 + "| xargs cat",
        "sed '-" + "i" * 60_000 + "\n'",
        "printf '%" + "0" * 60_000 + "z'",
        "".join(f"c{number} x;" for number in range(8_000)),
        "".join(f"cd d{number};" for number in range(8_000)),
        "".join(f"x=c{number};" for number in range(8_000)) + "$x y",
        "".join(f"cat a{number}*;" for number in range(5_000)),
        "! " * 20_000 + "a",
        "eval " * 3_000 + "a",
        "".join(f"alias a{number}='b';" for number in range(5_000)),
        "env A=1 " * 4_000 + "a",
        "x='timeout 5'; x=nice; x=nohup; " + "$x " * 30 + "a",
        "x=nice; y='$x'; " + "$x $y " * 30 + "a",
        "sh -c '" + "timeout 5 find . -exec " * 2_000 + "a'",
        "uv run " * 4_000 + "a",
        "cat $x; " * 10_000,
        "read x; cat $x; " * 6_000,
        "x=1; rm -r $x; " * 5_000,
        "A=1 b; " * 10_000,
        "cd a; " * 10_000,
        "ssh x; " * 10_000,
        "; ".join(f"a{number} --exec" for number in range(6_000)),
        "$x; " * 10_000,
        "cat \"$(cat <<'E'\n" + "x\n" * 60_000 + 'E\n)"',
    ],
)
def test_no_line_is_read_longer_than_in_proportion_to_its_length(text) -> None:
    began_s = time.process_time()
    judge = permissions(
        deny=["Bash(rm:*)", "Bash(* --x y*)", "Bash(A=2 c)", "Read(./x)", "Edit(*.y)"], allow=["Bash(a *)"]
    )
    judge.judge(ToolCall("1", "Bash", {"command": text}))
    assert time.process_time() - began_s < within_s(10)
