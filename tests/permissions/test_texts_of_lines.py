"""Patterns for Bash that begin with `*` or with a variable, beside lines that they are about and everyday lines that they are not."""

from __future__ import annotations

from tests.permissions.worlds import denies, permissions, verdict
from tests.rows import every_row

DENIED = [
    ("AWS_PROFILE=prod *", "AWS_PROFILE=prod aws s3 ls"),
    ("AWS_PROFILE=prod *", "export AWS_PROFILE=prod && aws s3 ls"),
    ("AWS_PROFILE=prod *", "AWS_PROFILE=prod; aws s3 ls"),
    ("AWS_PROFILE=prod *", "env AWS_PROFILE=prod aws s3 ls"),
    ("AWS_PROFILE=prod *", "AWS_PROFILE=$P aws s3 ls"),
    ("AWS_PROFILE=prod *", "A=1 AWS_PROFILE=prod timeout 5 aws s3 ls"),
    ("AWS_PROFILE=prod *", "sudo AWS_PROFILE=prod aws s3 ls"),
    ("AWS_PROFILE=prod *", "AWS_PROFILE=prod timeout --unknown 5 aws s3 ls"),
    ("AWS_PROFILE=p* *", "AWS_PROFILE=prod aws s3 ls"),
    ("FOO=1 git push:*", "FOO=1 git push"),
    ("FOO=1 git push:*", "FOO=1 BAR=2 git -C x push origin"),
    ("FOO=1 git push:*", "ssh dev 'FOO=1 git push'"),
    ("NODE_ENV=production npm run:*", "NODE_ENV=production npm run build"),
    ("*prod*", "AWS_PROFILE=prod aws s3 ls"),
    ("*DROP*", "psql -c DROP"),
    ("*DROP TABLE*", "psql -c DROP TABLE x"),
    ("*DROP TABLE*", "psql -c 'DROP TABLE x'"),
    ("*DROP TABLE x", "psql -c 'DROP TABLE x'"),
    ("*DROP TABLE*", "echo 'DROP TABLE x' | psql"),
    ("*DROP TABLE*", "psql <<< 'DROP TABLE x'"),
    ("*DROP TABLE*", "psql <<'EOF'\nDROP TABLE x;\nEOF"),
    ("*DROP TABLE*", 'psql x -tAc "DROP TABLE $T"'),
    ("*DROP TABLE*", "Q='DROP TABLE x'; psql -c \"$Q\""),
    ("psql *DROP TABLE*", "psql -c 'DROP TABLE x'"),
    ("*/etc/passwd*", "cat /etc/passwd"),
    ("*/etc/passwd*", "F=/etc/passwd; cat $F"),
    ("*/etc/passwd*", "sudo cat /etc/passwd"),
    ("*/etc/passwd*", "bash -c 'cat /etc/passwd'"),
    ("*.aws/credentials*", "cat ~/.aws/credentials"),
    ("*https://evil.com*", "curl https://evil.com/x"),
    ("*origin/main*", "git reset --hard origin/main"),
    ("*secrets/*", "cat secrets/key"),
    ("*secrets/*", "for f in secrets/*; do cat $f; done"),
    ("*secrets/*", "F=secrets; cat $F/key"),
    ("*secrets/*", "secrets/run --all"),
    ("*.ssh/*", "cat ~/.ssh/id"),
    ("*/dev/tcp/*", "echo x > /dev/tcp/h/80"),
    ("*/rm *", "/bin/rm x"),
    ("*/rm *", "rm x"),
    ("./scripts/*", "./scripts/a.sh"),
    ("./scripts/*", "bash ./scripts/a.sh"),
    ("./scripts/*", "timeout --unknown 5 ./scripts/a.sh"),
    ("*> /etc/*", "echo x > /etc/hosts"),
    ("*.env*", "cat < .env"),
    ("*.env*", "cat .en$X"),
    ("*.env*", "f=.env; cat $f"),
    ("*prod*", "p=prod; deploy $p"),
    ("*.env*", "echo x > .env"),
    ("*> .env", "echo x > .env"),
    ("*.env*", "while read l; do echo $l; done < .env"),
    ("*.env*", "for f in .env; do echo a; done"),
    ("git push:*", "eval -- git push"),
    ("git push:*", "eval -- 'git push'"),
    ("git push:*", "source -- git push"),
]

NOT_DENIED = [
    ("AWS_PROFILE=prod *", "aws s3 ls"),
    ("AWS_PROFILE=prod *", "AWS_PROFILE=dev aws s3 ls"),
    ("AWS_PROFILE=prod *", "X=$Y git status"),
    ("AWS_PROFILE=prod *", "ssh x ls"),
    ("AWS_PROFILE=prod *", "timeout --unknown 5 ls"),
    ("AWS_PROFILE=prod *", "echo AWS_PROFILE=prod"),
    ("FOO=1 git push:*", "git push"),
    ("FOO=1 git push:*", "FOO=1 git status"),
    ("*DROP TABLE*", "psql -c 'DROP INDEX x'"),
    ("*DROP TABLE*", "grep -rn 'DROP' src"),
    ("*DROP TABLE*", 'git commit -m "$MSG"'),
    ("*DROP TABLE*", "cat > x.sql <<'EOF'\nDROP TABLE x;\nEOF"),
    ("*secrets/*", "ls"),
    ("*secrets/*", "git status"),
    ("*secrets/*", 'cat "$f"'),
    ("*secrets/*", "ls *.py"),
    ("*secrets/*", 'X=$(date); echo "$X" > "$F"'),
    ("*secrets/*", "ssh x ls"),
    ("*secrets/*", "python3 -c 'print(1)'"),
    ("*secrets/*", '"$VENV"/bin/python x.py'),
    ("*secrets/*", 'ls secrets; "$VENV"/bin/python x.py'),
    ("*secrets/*", 'for f in src/*; do wc -l "$f"; done'),
    ("*node_modules/*", "npm test"),
    ("*/etc/passwd*", "passwd -S"),
    ("*/test*", "test -f x && pytest"),
    ("*origin/main*", "git merge main"),
    ("./scripts/*", "ls && make"),
    ("./scripts/*", "cat $X"),
    ("*.env*", "cat < f > out"),
    *(
        (rule, line)
        for rule in ("*prod*", "*secret*", "*.env*", "*deploy*", "*drop*")
        for line in (
            'cat "$f"',
            "kill $PID",
            "ls *.md",
            'for f in src/*.py; do wc -l "$f"; done',
            'git checkout -b "fix/$N"',
            "make -j$(nproc)",
            'pytest "tests/test_$N.py"',
            'echo "$x"',
        )
    ),
    ("*.env*", "X=1 make"),
    ("*.env*", "export NODE_ENV=test; npm test 2>&1 | tee log"),
    ("*.env*", "python3 -m venv .venv && . .venv/bin/activate"),
    ("* --force", "git commit -m 'Say --force'"),
    ("* --no-verify*", "git commit -m 'Say that --no-verify is wrong'"),
    ("git push:*", "eval -- git status"),
]


@every_row(("rule", "line"), DENIED)
def test_a_pattern_is_about_the_text_of_a_line(rule, line) -> None:
    assert denies(permissions(deny=[f"Bash({rule})"]), "Bash", command=line)
    assert verdict(permissions(ask=[f"Bash({rule})"]), "Bash", command=line).asks


@every_row(("rule", "line"), NOT_DENIED)
def test_a_pattern_is_not_about_lines_without_its_text(rule, line) -> None:
    assert not denies(permissions(deny=[f"Bash({rule})"]), "Bash", command=line)


def test_a_pattern_that_allows_ends_words_where_the_command_does() -> None:
    judge = permissions(allow=["Bash(*make lint*)", "Bash(CI=1 npm test)"])
    assert not denies(judge, "Bash", command="make lint all")
    assert denies(judge, "Bash", command="'make lint' all")
    assert not denies(judge, "Bash", command="CI=1 npm test")
    assert denies(judge, "Bash", command="npm test")
