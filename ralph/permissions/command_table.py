"""The table of commands that run another command, such as `timeout`, `sudo`, `uv run` and `npx`: how the other command is
found in the words of a line. What the table does not name is not understood.

Each line is one command: its name, its options without a value, its options with a value, notes, and where this is
documented. A slash separates words of a name, and a comma whole names, that have the same line. A name of several words has a
line for each of its beginnings, with the options that it takes. A word without a dash stands for several options of
one letter.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NOTES = {
    "same": "it runs the other command unchanged, in the same environment and as the same user",
    "assignments": "assignments may precede the other command",
    "more": "it adds unknown words at the end of the other command",
    "numbers": "a number with a dash is an option",
    "dashes": "the other command begins after `--`",
    "input": "without another command, it reads commands from standard input",
    "version": "the other command is named by a package, which may have a version",
    "environment": "the name of an environment and a colon may precede the other command, and words with a plus before it",
    "also": "another command may follow without one of the names of several words",
    "programs": "that command is never one of its own",
    "1": "one operand precedes the other command",
    "as": "the next words are the beginning of the other command",
}

# They count only for rules that deny: for rules that allow, only those with the note `same` are looked through. The note is
# for a command that starts exactly the program that the shell would start for the same words.
_WRAPPERS = """
time    | pvqV --portability --verbose --quiet                 | f --format                 | same   | time(1)
timeout | vfp --verbose --foreground --preserve-status         | sk --signal --kill-after   | same 1 | timeout(1)
nice    |                                                      | n --adjustment             | same numbers | nice(1)
nohup   |                                                      |                            | same   | nohup(1)
stdbuf  |                                                      | ioe --input --output --error | same | stdbuf(1)
command | p                                                    |                            | same   | bash(1)
exec    | cl                                                   | a                          |        | bash(1)
builtin | | | | bash(1)
busybox/toybox |                                               |                            |        | busybox(1)
setsid  | cfw --ctty --fork --wait                             |                            | same   | setsid(1)
ionice  | t --ignore                                           | cn --class --classdata     | same   | ionice(1)
caffeinate | dimsu                                             | tw                         | same   | caffeinate(8) of macOS
tini    | svwgl                                                | pe                         | same   | github.com/krallin/tini
dumb-init | cv --single-child --verbose                        | r --rewrite                | same   | github.com/Yelp/dumb-init
env     | - i0v --ignore-environment --null --debug            | uCa --unset --chdir --argv0 | assignments | env(1)
sudo    | AbEeHkKnPS --askpass --background --preserve-env --set-home --non-interactive --preserve-groups --stdin
        | CDghpRrTtUu --user --group --host --prompt --chdir --close-from --chroot --role --type --command-timeout
        | assignments | sudo(8)
doas    | Lns                                                  | aCu                        |        | doas(1)
xargs   | 0prtxo --null --interactive --no-run-if-empty --verbose --exit --open-tty --replace --max-lines --eof
        | aEILnPsdR --arg-file --delimiter --max-args --max-procs --max-chars --process-slot-var | more | xargs(1)
"""

# Commands that look after an environment, and run another command in it. A pattern that allows one of them by name allows
# what it runs. None has the note `same`, because each decides which program the name means: it puts directories of the project
# before PATH (uv, poetry, conda, pnpm, python -m), installs or builds what is missing (uv, npx, mise, corepack), takes the
# name from a file of the project (pdm, hatch, yarn, bun), runs such a file first (bundle, direnv), or adds credentials or
# another user (op, doppler, gosu).
_UV = """-q --quiet -v --verbose -n --no-cache --offline --no-progress --no-config --native-tls --system-certs --preview
    --managed-python --no-managed-python --no-python-downloads --no-preview"""
_UV_VALUES = """--cache-dir --color --config-file --directory --project --allow-insecure-host --preview-features
    --python-preference"""
_UV_RUN = f"""{_UV} --isolated --no-env-file --no-index --no-sources --no-build --no-binary --no-build-isolation -U --upgrade
    --reinstall --refresh --compile-bytecode"""
_UV_RUN_VALUES = f"""{_UV_VALUES} -w --with --with-editable --with-requirements --env-file -p --python --python-platform --index
    --default-index -i --index-url --extra-index-url -f --find-links --index-strategy --keyring-provider -P --upgrade-package
    --reinstall-package --refresh-package --no-build-package --no-binary-package --resolution --prerelease --fork-strategy
    -C --config-setting --exclude-newer --link-mode"""
_UVX_VALUES = f"{_UV_RUN_VALUES} --from -c --constraints -b --build-constraints --overrides"
_POETRY = "qvn --quiet --verbose --no-interaction --no-plugins --no-cache --ansi --no-ansi"
_PDM = "vqIn --verbose --quiet --ignore-python --non-interactive"
_NPM = """yqs --yes --no --quiet --silent --no-install --ignore-existing --prefer-offline --prefer-online --offline --ws
    --workspaces --include-workspace-root --no-audit --no-fund"""
_NPM_VALUES = """-w -C --package --workspace --prefix --cache --registry --userconfig --loglevel --node-options -c=shell
    --call=shell"""
_YARN = "sTB --silent --verbose --offline --json --no-progress --non-interactive --top-level --binaries-only"
_BUN = "b --bun --silent --watch --hot --if-present"
_MISE = """qvy --quiet --verbose --yes --silent --raw --fresh-env --no-prepare --no-deps --deny-all --deny-env --deny-net
    --deny-read --deny-write"""
_MISE_VALUES = (
    "CEj --cd --env --jobs -c=shell --command=shell --allow-env --allow-net --allow-read --allow-write"
)
_OP, _OP_VALUES = (
    "--cache --debug --iso-timestamps --no-color",
    "--account --config --encoding --format --session",
)
_DOPPLER = (
    "--debug --json --silent --no-check-version --no-read-env --no-timeout --no-verify-tls --print-config"
)
_DOPPLER_VALUES = "t --token --scope --configuration --api-host --dashboard-host --timeout --attempts"
_RUNNERS = f"""
uv, uv tool  | {_UV} | {_UV_VALUES} | | docs.astral.sh/uv/reference/cli
uv run       | {_UV_RUN} ms --module --script --gui-script --all-extras --no-all-extras --dev --no-dev --only-dev --all-groups
    --no-default-groups --editable --no-editable --inexact --exact --active --no-active --no-sync --locked --frozen
    --no-project --all-packages --show-resolution
    | {_UV_RUN_VALUES} --extra --no-extra --group --no-group --only-group --package --max-recursion-depth | |
uvx, uv tool run | {_UV_RUN} | {_UVX_VALUES} | version | docs.astral.sh/uv/reference/cli
pipx         | qv --quiet --verbose --global | | | pipx.pypa.io/stable/reference/cli
pipx run     | qv --quiet --verbose --no-cache --path --pypackages --system-site-packages
    | i --spec --with --python --pip-args --index-url | version |
poetry       | {_POETRY} | PC --project --directory | | python-poetry.org/docs/cli
poetry run   | {_POETRY} | PC --project --directory | |
pipenv       | qv --quiet --verbose --clear --bare --site-packages --no-site-packages | --python --pypi-mirror |
    | pipenv.pypa.io/en/latest/cli.html
pipenv run   | qv --quiet --verbose --clear --site-packages --system | --python --pypi-mirror | |
pdm          | {_PDM} | c --config | | pdm-project.org/latest/reference/cli
pdm run      | {_PDM} sg --site-packages --global --recreate | cpk --config --project --skip --venv | |
hatch        | vq --verbose --quiet --color --no-color --interactive --no-interactive
    | ep --env --project --data-dir --cache-dir --config | | hatch.pypa.io/latest/cli/reference
hatch run    | --force-continue --ignore-compat | ixf --include --exclude --filter | environment |
hatch env    | | | |
hatch env run | --force-continue --ignore-compat | eixf --env --include --exclude --filter | |
rye          | vq --verbose --quiet | --env-file | | rye.astral.sh/guide/commands/run
rye run      | vq --verbose --quiet | --pyproject | |
pixi         | vq --verbose --quiet --no-progress | --color | | pixi.prefix.dev/latest/reference/cli/pixi/run
pixi run/r   | vqx --verbose --quiet --no-progress --frozen --locked --as-is --no-install --clean-env --executable
    | e --environment --manifest-path --color | |
pixi exec/x  | vq --verbose --quiet --no-progress --force-reinstall | swcp --spec --with --channel --platform | version |
npx          | {_NPM} | {_NPM_VALUES} pn --node-arg | version input | docs.npmjs.com/cli/commands/npx
npm          | {_NPM} p | {_NPM_VALUES} | | docs.npmjs.com/cli/commands/npm-exec
npm exec/exe/x | {_NPM} p | {_NPM_VALUES} | version input |
pnpm         | rsw --recursive --parallel --stream --silent --workspace-root --offline --prefer-offline --bail --no-bail
    --report-summary --no-reporter-hide-prefix
    | CF --dir --filter --filter-prod --resume-from --workspace-concurrency --loglevel --reporter | also | pnpm.io/cli/exec
pnpm exec    | | | |
pnpm dlx     | s --silent | --package --allow-build | version |
pnpx         | s --silent | --package --allow-build | version | pnpm.io/cli/dlx
corepack     | | | also version | github.com/nodejs/corepack
yarn/yarnpkg | {_YARN} | --cwd | also | yarnpkg.com/cli and classic.yarnpkg.com/en/docs/cli
yarn/yarnpkg run | {_YARN} --inspect --inspect-brk | --require --cwd | |
yarn/yarnpkg exec | {_YARN} | --cwd | |
yarn dlx     | q --quiet | p --package | version |
yarn workspace | {_YARN} | | 1 as yarn |
yarn workspaces | | | |
yarn workspaces run | | | as yarn |
yarn workspaces foreach | ARWpivt --all --recursive --worktree --parallel --interlaced --verbose --topological
    --topological-dev --no-private --dry-run | j --jobs --include --exclude --from --since | as yarn |
bun          | {_BUN} | F --cwd --filter --env-file | also | bun.sh/docs/cli/run
bun run      | {_BUN} | F --cwd --filter --env-file | |
bunx, bun x  | --bun --no-install --verbose --silent | p --package | version | bun.sh/docs/cli/bunx
cross-env    | | | assignments | github.com/kentcdodds/cross-env
bundle/bundler | V --verbose --no-color | r --retry | | bundler.io/man/bundle-exec.1.html
bundle/bundler exec/e/ex/exe | --keep-file-descriptors --no-keep-file-descriptors --verbose --no-color | --gemfile | |
conda/mamba/micromamba | v --verbose --no-plugins | r --root-prefix | | docs.conda.io/projects/conda/en/latest/commands/run.html
conda/mamba/micromamba run | vsd --verbose --dev --debug-wrapper-scripts --no-capture-output --live-stream --detach --clean-env
    | nprea --name --prefix --cwd --root-prefix --env --attach --label | |
mise/rtx     | {_MISE} | {_MISE_VALUES} | | mise.jdx.dev/cli/exec.html
mise/rtx exec/x | {_MISE} | {_MISE_VALUES} | dashes |
asdf         | | | | asdf-vm.com/manage/commands.html
pyenv/rbenv/nodenv/goenv/jenv/plenv | | | | github.com/pyenv/pyenv/blob/master/COMMANDS.md
asdf/pyenv/rbenv/nodenv/goenv/jenv/plenv exec | | | |
rustup       | qv --quiet --verbose | | | rust-lang.github.io/rustup/overrides.html
rustup run   | --install | | 1 |
volta        | --verbose --quiet | | | docs.volta.sh/reference/run
volta run    | --bundled-npm --no-yarn --no-pnpm | --node --npm --yarn --pnpm --env | |
direnv       | | | | direnv.net/man/direnv.1.html
direnv exec  | | | 1 |
coverage     | | | | coverage.readthedocs.io/en/latest/cmd.html
coverage run | ampL --append --module --parallel-mode --pylib --branch --timid
    | d --concurrency --context --data-file --debug --include --omit --rcfile --save-signal --source | |
python/pypy/py | bBdEiIOPqRsSuvVx? | WX --check-hash-based-pycs -m=command | | docs.python.org/3/using/cmdline.html
node/nodejs/tsx/ts-node | --no-warnings --trace-warnings --enable-source-maps --test --watch --inspect --inspect-brk
    | rC --require --import --conditions --loader --experimental-loader --env-file --max-old-space-size
    | | nodejs.org/api/cli.html
ruby         | wWdvsSU012 | rIC | | ruby(1)
perl         | wWTtsS | IMm | | perlrun(1)
php          | qC | cd -f=command | | php(1)
op           | {_OP} | {_OP_VALUES} | | developer.1password.com/docs/cli/reference/commands/run
op run       | {_OP} --no-masking | {_OP_VALUES} --env-file --environment | |
doppler      | {_DOPPLER} | {_DOPPLER_VALUES} | | docs.doppler.com/docs/cli
doppler run  | {_DOPPLER} --fallback-only --fallback-readonly --no-fallback --no-cache --no-exit-on-write-failure --watch
    --no-liveness-ping --preserve-env --forward-signals
    | {_DOPPLER_VALUES} pc --project --config --command=shell --fallback --passphrase --mount --mount-format --mount-template
    --mount-max-reads --name-transformer --only-secrets | |
infisical    | --silent --telemetry | --domain --log-level | | infisical.com/docs/cli/commands/run
infisical run | --expand --include-imports --recursive --secret-overriding --silent --watch
    | et --env --path --projectId --token --tags --command=shell --domain --log-level | |
dotenv/dotenv-cli | oi --override --no-expand --debug --ignore | fqevpt --file --quote --export --templates | also programs
    | pypi.org/project/python-dotenv, npmjs.com/package/dotenv-cli and rubygems.org/gems/dotenv
dotenv run   | --override --no-override | | |
dotenvx      | vqd --verbose --quiet --debug | l --log-level | | dotenvx.com/docs/cli/run
dotenvx run  | oqvd --overload --override --strict --quiet --verbose --debug
    | fel --env-file --env --env-vault-file --env-keys-file --convention --ignore --log-level | |
aws-vault    | --debug | --backend --prompt | | github.com/99designs/aws-vault
aws-vault exec | njs --no-session --json --server --ec2-server --ecs-server --lazy --stdout
    | dt --duration --mfa-token --region --prompt | 1 |
foreman/honcho | | efdp --env --procfile --root --port | | honcho.readthedocs.io, ddollar.github.io/foreman
foreman/honcho run | | efdp --env --procfile --root --port | |
gosu/su-exec/envchain | | | 1 | github.com/tianon/gosu, github.com/sorah/envchain
git          | pP --paginate --no-pager --no-replace-objects --no-lazy-fetch --no-optional-locks --no-advice --bare
    --literal-pathspecs --glob-pathspecs --noglob-pathspecs --icase-pathspecs --exec-path
    | Cc --git-dir --work-tree --namespace --super-prefix --config-env --attr-source | | git(1)
git send-pack/http-push | | | as git push | git-send-pack(1), git-http-push(1)
git subtree  | qdS --quiet --debug --squash --rejoin | Pmb --prefix --message --branch --annotate --onto | |
git lfs      | | | |
git subtree/lfs push | | | as git push | git-subtree(1), git-lfs-push(1)
"""
BUILT_IN = frozenset(
    "rm install i link test t start run why pack init list ls info version cache config".split()
)
"""The names of programs that commands with the note `also` use for commands of their own."""


WITH_VALUE = frozenset(["value", "shell", "command", "pattern"])
"""The meanings of options that have a value."""


class Form(Struct, frozen=True):
    """The syntax of a command that runs another command. Options come first, then operands, then the other command."""

    options: Mapping[str, str]
    """The meaning of each known option: `flag` if it has no value, `value` if it has one, `shell` if its value is a text that
    a shell runs, and `command` if the other command begins with its value."""
    notes: frozenset[str]
    """Keys of `NOTES`."""
    beginning: tuple[str, ...]
    """Words with which the other command begins."""
    source: str
    is_runner: bool
    """True if a pattern that allows the command by name allows what it runs."""

    def meaning_of(self, option: str) -> str | None:
        is_number = "numbers" in self.notes and option[1:].lstrip("-+").isdigit()
        return "flag" if is_number else self.options.get(option)

    def read(self, text: str) -> tuple[tuple[str, ...], str | None] | None:
        """The meanings of an option, or of several of one letter, and the value in the same word. None if one of them is not known."""
        option, equals, value = text.partition("=")
        whole = self.meaning_of(option)
        if whole is not None or option.startswith("--"):
            return None if whole is None else ((whole,), value if equals else None)
        meanings: list[str] = []
        for at, letter in enumerate(text[1:], start=2):
            meaning = self.meaning_of(f"-{letter}")
            if meaning is None:
                return None
            meanings.append(meaning)
            if meaning in WITH_VALUE:
                return tuple(meanings), text[at:] or None
        return tuple(meanings), None


def _options(words: str, meaning: str) -> Iterator[tuple[str, str]]:
    for word in words.split():
        option, _, given = word.partition("=")
        for one in (option,) if option.startswith("-") else (f"-{letter}" for letter in option):
            yield one, given or meaning


def forms(table: str, *, is_runner: bool) -> Iterator[tuple[str, Form]]:
    for line in re.sub(r"\n +", " ", table).strip().splitlines():
        names, flags, values, notes, source = (column.strip() for column in line.split("|"))
        options = dict((*_options(flags, "flag"), *_options(values, "value")))
        few, _, beginning = notes.partition("as ")
        form = Form(options, frozenset(few.split()), tuple(beginning.split()), source, is_runner)
        for name in names.split(", "):
            yield from (
                (" ".join(words), form) for words in product(*(word.split("/") for word in name.split()))
            )


FORMS = {**dict(forms(_WRAPPERS, is_runner=False)), **dict(forms(_RUNNERS, is_runner=True))}


# What commands do with the files that they are given. A trait with a sign of equality holds with one of these options.
# `prints`: it only prints its words, so that a path in them is a text; `shows`: it shows the content or puts it elsewhere;
# `changes`: it may change them; `below`, `tree`: it changes or reads whole directories; `to`: it does not read the last one;
# `search`: one operand may be a text; `lists`: it gives names of files; `takes`: it takes words from its input; `passes`: it
# hands on the names which it gets. Commands that are not here may show what they are given.
_ALL = r"-[a-zA-Z]*[rRa].*|--recursive|--archive"
_IN_PLACE = r"-[a-zA-Z]*i.*|--i.*|--write|--fix|-o.*|--o.*"
_TRAITS = rf"""
echo printf true false : cd pushd popd | prints
ls | lists
stat du basename dirname realpath readlink test [ md5sum sha1sum sha256sum |
mktemp date uname pwd whoami id hostname nproc seq expr |
cat tac less more nl od xxd hexdump strings base64 base32 cut paste join comm fold expand fmt pr column rev cmp zcat bat
    jq source . | shows
head tail uniq | shows passes
wc tr | passes
xargs parallel | passes takes
read mapfile readarray | takes
touch truncate chmod chown chgrp setfacl chattr | changes below=-[a-zA-Z]*R.*|--recursive
shred unlink rmdir mkdir patch emacs nano split csplit gunzip bzip2 xz sponge mkfifo prettier black gofmt rename dos2unix
    unix2dos link script fallocate objcopy strip | changes
tee vi vim nvim ed ex gzip dd wget | changes shows
curl | changes shows=-[a-zA-Z]*[FT].*|--(?:form|upload).*|.*@.*
install | changes shows to
unzip | changes below
rm | changes below={_ALL}
cp scp | changes shows to below={_ALL} tree={_ALL}
mv | changes shows to below
ln | changes shows to tree
rsync | changes shows to below tree
tar | changes shows below=-[a-zA-Z]*x.*|x[a-zA-Z]*|--(?:extr|get).* tree=-[a-zA-Z]*[cru].*|[cru][a-zA-Z]*|--(?:cr|ap|up).*
zip | changes shows tree
7z 7za bsdtar cpio pax | shows tree
ruby perl gsed shuf iconv openssl | shows changes={_IN_PLACE}
clang-format autopep8 ruff | changes={_IN_PLACE}
sed awk gawk yq | shows changes={_IN_PLACE}
sort | shows passes changes={_IN_PLACE}
diff | shows tree=-[a-zA-Z]*r.*|--recursive
grep egrep fgrep zgrep | shows lists search tree=-[a-zA-Z]*[rRd].*|--(?:dereference-)?recursive|--directories.*
rg ag ack ugrep | shows lists search tree
git | search=grep lists=grep|ls-files|diff|status changes=checkout|restore|rm|mv|apply|reset|clean|stash|am|-o.*|--output(?:=.*)? below=rm tree=grep|--no-i.*
find | changes=-delete|-fl?s|-fprintf? below=-delete|-fl?s|-fprintf?
"""
TRAITS = {
    name: {
        trait: re.compile(options, re.DOTALL)
        for trait, _, options in (one.partition("=") for one in traits.split())
    }
    for names, traits in (line.split(" |", 1) for line in re.sub(r"\n +", " ", _TRAITS).strip().splitlines())
    for name in names.split()
}
