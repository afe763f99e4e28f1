"""The table of places: which files and directories are protected, from whom, and by which means. Every part of ralph that
refuses, hides, mounts, compares or lists a place reads this table. No I/O happens here. A place is a file, or a directory
with everything inside it, and need not exist. Each row has templates, which say where the places are:

* `~/x` is in each home directory. `{config}/x`, `{data}/x`, `{cache}/x` and `{runtime}/x` are in the directories of the XDG
  specification. `{root}`, `{git}` and the other names in `Bases` stand for paths of this run.
* `$NAME` and `$NAME/x` begin with the value of an environment variable. If it names a kind before its path, as Kerberos has
  it (`FILE:/x`), only the path counts.
* `**/x` is a name at any depth. `*` matches any characters but a slash. Any other template is an absolute path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Bases = Mapping[str, Sequence[str]]
    """The absolute paths for which each name in braces stands, and `~`."""

UNREAD = "unread"
UNWRITTEN = "unwritten"
UNQUOTED = "unquoted"
PRIVATE = "private"
READ_ONLY = "read-only"
COMPARED = "compared"
TOLD = "told"
EMPTY = "empty"
VISIBLE = "visible"
WRITABLE = "writable"
DEVICE = "device"
CLOSED = "closed"
SHOWN = "shown"
FILTERED = "filtered"
JUDGED = "judged"

SANDBOX_GUARDS = frozenset((READ_ONLY, COMPARED, EMPTY, VISIBLE, WRITABLE, DEVICE, CLOSED, FILTERED))
"""The guards that hold for commands alone."""


class Guard(Struct, frozen=True):
    """One effect of a row."""

    takes: tuple[str, ...]
    """The kinds of templates (`kind_of`) for which ralph can keep it. A row with another one is an error."""
    levels: tuple[str, ...]
    """Who keeps it: ralph itself (`tools`), the sandbox without namespaces (`landlock`), and the one with `namespaces`."""
    effect: str


_GUARDS = r"""
unread | path, git directory, git entry | tools, landlock, namespaces | Read, Grep, Glob, instruction files, linked prompts \
  and pages refuse it; Landlock denies it to commands and searches
unwritten | path, git directory, git entry, name, dotfiles | tools | Write and Edit refuse it
unquoted | name | tools | instruction files and linked prompts refuse it
private | name, pattern | tools | Read refuses it, and a search skips it, where the kernel makes the file's content
read-only | path, git entry, name | namespaces | a read-only mount if it exists when a command starts; the directory around \
  it cannot be replaced. Names: at the top of a root
compared | path, git entry, name | landlock, namespaces | compared after a command and a call of an MCP server; a change is \
  undone. Names: at the top of a root
told | git entry | tools | a loop says if an iteration has changed it
empty | path, sandbox path | namespaces | an empty mount
visible | path, sandbox path | namespaces | mounted again, read-only, if it is in /tmp, but what is unread
writable | path, sandbox path | landlock, namespaces | commands may write it: a Landlock rule, and a mount with namespaces
device | path, sandbox path | landlock | commands may use it: a Landlock rule. With namespaces, bubblewrap makes its own
closed | path, sandbox path | landlock, namespaces | Landlock denies to commands what no other row opens
shown | path | tools, landlock, namespaces | may be read although it is in the home, unless another row or a credential in \
  a filtered file forbids it
filtered | path | tools, landlock, namespaces | unread if it holds credentials. With namespaces, commands see a copy without \
  their lines
judged | name | tools | Read and Grep refuse a file of this name in what is shown of the home, at any depth, if it holds credentials
"""

GUARDS = {
    name: Guard(tuple(takes.split(", ")), tuple(levels.split(", ")), effect)
    for name, takes, levels, effect in (
        line.split(" | ") for line in _GUARDS.replace(" \\\n  ", " ").strip().split("\n")
    )
}

_NAME = "**/"
_KIND = re.compile(r"\A(?:(?:WR)?FILE:|DIR::?)")
_BASES = frozenset(
    (
        "~, config, data, cache, runtime, root, git, configuration, state, package, prefix, code, denied, hidden, checkout, path, "
        "editable, gitconfig, mixed, tickets, services, home in a root, closed home, named by git, named by ssh, settings of agents, "
        "mixed files, secret files, credential files, runtime directory, own code, own start, sessions, other homes, "
        "secrets of others, shown of others"
    ).split(", ")
)
_SANDBOX_BASES = ("temporary", "packages", "writable git", "programs")

_SPEC = "specs/security.md"
_CLAUDE = "Claude Code documentation, settings and MCP"
_ASK_TO_COPY = "Whoever starts ralph can put what the task needs of it into the working directory"
_ASK_TO_CHANGE = "Whoever starts ralph can change it"
_USE_GIT = "Use git itself, with Bash (git commit, git config, git remote, ...)"
_FROM_ELSEWHERE = "Whoever starts ralph can start one that is installed elsewhere"
_ASK_TO_SHOW = (
    "Whoever starts ralph can allow it (sandbox.read in the settings), or copy it into the working directory"
)
_GIT = "is git's own: its content can make git run programs"
_OBEYED = (UNWRITTEN, READ_ONLY, COMPARED)

AroundWork = Literal["whole", "itself", "entries", "rest", "unshown", "nothing"]
"""The protected part of a directory that contains a root: everything, everything if it is the root itself and otherwise only
some `entries`, only these in any case, everything but the roots in it, everything but these and what other rows show, or
nothing."""


class PlaceRow(Struct, frozen=True):
    """The places of one kind, and what holds for them."""

    where: tuple[str, ...]
    why: str
    """A description of these places. It follows a path in a sentence for the model: `PATH holds SSH keys`."""
    guards: tuple[str, ...] = (UNREAD, UNWRITTEN)
    """Keys of `GUARDS`."""
    advice: str = _ASK_TO_COPY
    around_work: AroundWork = "whole"
    entries: tuple[str, ...] = ()
    source: str = _SPEC
    """Where it is documented that something of the kind is there: in ralph's own specification, unless a row names another."""

    def __post_init__(self) -> None:
        """Raises ValueError if a guard of this row could not be kept for one of its templates."""
        for kind in {kind_of(template): None for template in self.where}:
            for guard in self.guards:
                if kind not in GUARDS[guard].takes:
                    raise ValueError(f"{', '.join(self.where)} cannot be {guard}: it is a {kind}")


def kind_of(template: str) -> str:
    """The kind of a template. A `sandbox path` begins with a place that exists only in a sandbox, and a `pattern` is a name at
    any depth with a `*` before its last part. Raises ValueError for an unknown base, or a `*` where patterns are not allowed.
    """
    if template[0] in "/$~" and "*" not in template:
        return "path"
    if template.startswith(_NAME):
        if "*" in template[3:].rpartition("/")[0]:
            return "pattern"
        if template.count("*") > 3:
            raise ValueError(f"{template}: the last part of a name may have one *")
        return "name"
    first, _, rest = template.partition("/")
    base = first.strip("{}")
    if base not in _BASES and base not in _SANDBOX_BASES:
        raise ValueError(f"{template}: nobody says where {first} is")
    if template.endswith("/.*"):
        return "dotfiles"
    if "*" in template:
        raise ValueError(f"{template}: a path has no pattern")
    if base == "git":
        return "git entry" if rest else "git directory"
    return "sandbox path" if base in _SANDBOX_BASES else "path"


# Entries that git itself uses in a git directory. The directory of a bare repository may also contain other files,
# such as working trees.
GIT_ENTRIES = tuple(
    """
HEAD FETCH_HEAD ORIG_HEAD config config.worktree hooks info objects refs reftable packed-refs logs index worktrees modules
commondir gitdir branches remotes shallow lfs rebase-merge rebase-apply sequencer description
""".split()
)

_DEVICES = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx"
# Each line is a kind of secret, the source, and the places. Places are separated by two spaces, because some names contain one.
_SECRETS = """
SSH keys [ssh(1), sshd(8)]:  ~/.ssh  /etc/ssh/ssh_host_dsa_key  /etc/ssh/ssh_host_ecdsa_key  /etc/ssh/ssh_host_ed25519_key
  /etc/ssh/ssh_host_rsa_key
GnuPG and age keys, certificates [gpg(1), sops's README, mise and .NET documentation]:  ~/.gnupg  $GNUPGHOME  {config}/sops/age  {config}/age  {config}/mise/age.txt  ~/.dotnet/corefx/cryptography
AWS credentials [AWS CLI user guide, s3cmd(1), boto's documentation]:  ~/.aws  $AWS_SHARED_CREDENTIALS_FILE  $AWS_CONFIG_FILE  ~/.s3cfg  ~/.boto  $BOTO_CONFIG
Azure credentials [Azure CLI documentation]:  ~/.azure  $AZURE_CONFIG_DIR
Google Cloud credentials [gcloud topic configurations]:  {config}/gcloud  $CLOUDSDK_CONFIG  $GOOGLE_APPLICATION_CREDENTIALS
Kubernetes credentials [kubectl documentation]:  ~/.kube  $KUBECONFIG  /etc/kubernetes
credentials of container registries [docker login, containers-auth.json(5), helm registry login]:  ~/.docker  $DOCKER_CONFIG/config.json  {config}/containers/auth.json
  {runtime}/containers/auth.json  $REGISTRY_AUTH_FILE  {config}/helm/registry  $HELM_REGISTRY_CONFIG
credentials of cloud providers and hosts [each tool's documentation]:  ~/.oci  ~/.aliyun  ~/.bluemix  ~/.fly  ~/.databrickscfg  ~/.snowflake  ~/.snowsql
  {config}/doctl  {config}/hcloud  {config}/scw  {config}/openstack  {config}/linode-cli  {config}/netlify
  {data}/com.vercel.cli  {config}/.wrangler  ~/.wrangler  {config}/rclone  {config}/configstore  {config}/stripe
  {config}/heroku  $OCI_CLI_CONFIG_FILE  $RCLONE_CONFIG  $DATABRICKS_CONFIG_FILE
credentials of infrastructure tools [Terraform CLI configuration, Pulumi and Vault documentation]:  ~/.terraform.d/credentials.tfrc.json  ~/.terraformrc  ~/.pulumi/credentials.json
  ~/.vault-token  $TF_CLI_CONFIG_FILE  $PULUMI_HOME/credentials.json
git credentials [git-credential-store(1), git-credential-cache(1), gh auth login]:  ~/.git-credentials  {config}/git/credentials  {cache}/git/credential  {config}/gh  $GH_CONFIG_DIR
  {config}/hub  {config}/glab-cli  {config}/tea
passwords of hosts [netrc(5), Emacs auth-source manual]:  ~/.netrc  ~/_netrc  $NETRC  ~/.authinfo  ~/.authinfo.gpg
passwords of databases [libpq's password file, MySQL option files]:  ~/.pgpass  $PGPASSFILE  $PGSERVICEFILE  ~/.my.cnf  ~/.mylogin.cnf  ~/.mongorc.js  ~/.dbshell
credentials of package registries [each package manager's documentation of its configuration]:  ~/.npmrc  $NPM_CONFIG_USERCONFIG  ~/.yarnrc  ~/.yarnrc.yml  {config}/pnpm/rc  ~/.pypirc
  ~/.pip/pip.conf  {config}/pip/pip.conf  $PIP_CONFIG_FILE  {config}/pypoetry/auth.toml  {data}/uv/credentials  ~/.cargo/credentials
  ~/.cargo/credentials.toml  $CARGO_HOME/credentials  $CARGO_HOME/credentials.toml  ~/.gem/credentials  ~/.bundle/config
  {config}/pnpm/auth.ini  ~/.cabal/config  ~/.julia/servers  ~/.julia/logs  ~/.npm/_logs  ~/.pub-cache/credentials.json  $PUB_CACHE/credentials.json  ~/.composer/config.json
  {config}/composer/config.json  ~/.m2/settings.xml  ~/.m2/settings-security.xml  ~/.gradle/gradle.properties  ~/.nuget/NuGet/NuGet.Config
  {config}/NuGet/NuGet.Config  ~/.composer/auth.json  {config}/composer/auth.json  ~/.hex/hex.config  $HEX_HOME/hex.config  {data}/gem/credentials
  ~/.stack/upload  ~/.rye/credentials  ~/.nimble/github_api_token  ~/.gradle/develocity  ~/.gradle/enterprise
  $COMPOSER_HOME/auth.json  $BUNDLE_USER_CONFIG  $npm_config_userconfig
  $GRADLE_USER_HOME/develocity  $GRADLE_USER_HOME/enterprise  ~/.m2/.develocity  ~/.m2/.gradle-enterprise
  ~/.gradle/.gradle-enterprise  ~/.gradle/.develocity  $GRADLE_USER_HOME/.gradle-enterprise  $GRADLE_USER_HOME/.develocity
credentials of claude [Claude Code documentation]:  ~/.claude.json  ~/.claude/.credentials.json  $CLAUDE_CONFIG_DIR/.claude.json  $CLAUDE_CONFIG_DIR/.credentials.json
credentials of codex [its configuration reference]:  ~/.codex/auth.json  $CODEX_HOME/auth.json
credentials of opencode [its documentation of providers and MCP servers]:  {data}/opencode/auth.json  {data}/opencode/mcp-auth.json
credentials of pi [its documentation of providers]:  ~/.pi/agent/auth.json  $PI_CODING_AGENT_DIR/auth.json
credentials of other agents and models [each tool's documentation]:  ~/.gemini  {config}/github-copilot  ~/.huggingface  {cache}/huggingface/token  $HF_TOKEN_PATH  $HF_HOME/token  ~/.kaggle  $KAGGLE_CONFIG_DIR
keyrings and passwords [pass(1), each password manager's documentation]:  {data}/keyrings  {data}/kwalletd  ~/.gnome2/keyrings  ~/.pki  ~/.password-store
  $PASSWORD_STORE_DIR  {data}/gopass  {config}/op  {config}/Bitwarden CLI  {config}/Bitwarden  {config}/1Password
  {config}/keepassxc  ~/Library/Keychains  /Library/Keychains  ~/Library/Application Support/1Password
  ~/Library/Application Support/Bitwarden
a browser's passwords and sessions [each browser's documentation of its profile directory]:  ~/.mozilla  {config}/google-chrome  {config}/google-chrome-beta  {config}/chromium
  {config}/BraveSoftware  {config}/microsoft-edge  {config}/vivaldi  {config}/opera  ~/snap/firefox  ~/snap/chromium
  ~/.var/app/org.mozilla.firefox  ~/.thunderbird  ~/.var/app/com.google.Chrome  ~/.var/app/org.chromium.Chromium
  ~/Library/Cookies  ~/Library/Safari  ~/Library/Containers/com.apple.Safari  ~/Library/Thunderbird
  ~/Library/Application Support/Firefox  ~/Library/Application Support/Google/Chrome
  ~/Library/Application Support/Chromium  ~/Library/Application Support/BraveSoftware
  ~/Library/Application Support/Microsoft Edge
messages and their sessions [each program's own data directory]:  {config}/Slack  {config}/discord  {config}/Signal  {data}/TelegramDesktop  ~/Library/Messages
  ~/Library/Mail  ~/Library/Application Support/Slack  ~/Library/Application Support/discord
  ~/Library/Application Support/Signal
commands as they were typed, passwords among them [bash(1), zshparam(1), each shell's documentation]:  ~/.bash_history  ~/.zsh_history  ~/.history  ~/.sh_history  $HISTFILE
  {data}/fish/fish_history  ~/.python_history  ~/.node_repl_history  ~/.psql_history  ~/.mysql_history
  ~/.rediscli_history  ~/.sqlite_history
tickets and tokens of a login [krb5.conf(5): default_ccache_name, kerberos(7), grid-proxy-init and WLCG bearer token discovery, each cloud's documentation of workload identity]:  {tickets}
  $KRB5CCNAME  $KRB5_KTNAME  $KRB5_CLIENT_KTNAME  /etc/krb5/user  /var/kerberos/krb5/user  $X509_USER_PROXY  $X509_USER_KEY
  $BEARER_TOKEN_FILE  $AWS_WEB_IDENTITY_TOKEN_FILE  $AZURE_FEDERATED_TOKEN_FILE  $XAUTHORITY  $ICEAUTHORITY
mail [mail(1), login(1)]:  /var/mail  /var/spool/mail  $MAIL  $MAILDIR
secrets of this machine [shadow(5), sshd(8), NetworkManager(8), systemd.exec(5)]:  /etc/shadow  /etc/shadow-  /etc/gshadow  /etc/gshadow-  /etc/krb5.keytab  /etc/ssl/private
  /etc/pki/tls/private  /etc/NetworkManager/system-connections  /run/secrets  /var/run/secrets  /run/credentials
  /private/etc/master.passwd
jobs for later, with the environment of whoever made them [at(1), crontab(5)]:  /var/spool/at  /var/spool/cron
secrets of a cloud's workspace [GitHub Codespaces documentation]:  /workspaces/.codespaces/shared
data of Windows programs, with passwords and sessions [known folders of Windows]:  ~/AppData
credentials of this machine's services [each service's documentation]:  {services}
"""
# Files with configuration and credentials, and the settings of each format that hold none (`filtered` in `home.py`). Some are
# denied above too: a new one must not be read either.
_FILTERED = """
~/.npmrc  $NPM_CONFIG_USERCONFIG  $npm_config_userconfig  ~/.yarnrc  ~/.yarnrc.yml  {config}/pnpm/rc  ~/.pip/pip.conf  {config}/pip/pip.conf
$PIP_CONFIG_FILE  ~/.m2/settings.xml  ~/.gradle/gradle.properties  ~/.nuget/NuGet/NuGet.Config
{config}/NuGet/NuGet.Config  {config}/uv/uv.toml  {config}/pypoetry/config.toml  {config}/mise/config.toml
{config}/go/env  ~/.condarc  ~/.cargo/config.toml  ~/.cargo/config  $CARGO_HOME/config.toml
~/.gitconfig  {config}/git/config  $GIT_CONFIG_GLOBAL  {gitconfig}
$CARGO_HOME/config  ~/.rye/config.toml  $VIRTUAL_ENV/pip.conf  {config}/pnpm/config.yaml  ~/.npm-global/etc/npmrc
$N_PREFIX/etc/npmrc  ~/.stack/config.yaml  ~/.conda/.condarc  ~/.conda/condarc  $CONDA_PREFIX/.condarc
$CONDA_ROOT/.condarc  $MAMBA_ROOT_PREFIX/.condarc  ~/miniconda3/.condarc  ~/anaconda3/.condarc  ~/miniforge3/.condarc
~/mambaforge/.condarc  $GRADLE_USER_HOME/gradle.properties  $GRADLE_HOME/gradle.properties  ~/.gradle/init.gradle
~/.gradle/init.gradle.kts  $MAVEN_HOME/conf/settings.xml  $M2_HOME/conf/settings.xml  ~/.n/etc/npmrc  ~/.bun/install/global/.npmrc
{config}/yarn/global/.npmrc  {config}/yarn/global/.yarnrc  ~/.yarn/.npmrc  ~/.deno/.npmrc  ~/.dotnet/NuGet/NuGet.Config  ~/.pixi/config.toml
~/.linuxbrew/etc/gitconfig  ~/.virtualenvs/postactivate  $WORKON_HOME/postactivate  {data}/virtualenvs/postactivate
"""
# Conda documentation: `conda env config vars set`, saving environment variables, and the places of `.condarc`.
_CONDA = "  ".join(
    f"{above}/{prefix}{name}"
    for above in "~/miniconda3 ~/anaconda3 ~/miniforge3 ~/mambaforge ~/micromamba ~/.conda $CONDA_PREFIX $CONDA_ROOT $MAMBA_ROOT_PREFIX".split()
    for prefix in ("", "envs/*/")
    for name in ".condarc condarc condarc.d/* pip.conf conda-meta/state etc/conda/activate.d/env_vars.*".split()
)
# Names of such files, in whatever directory of a toolchain they are. Files of programs may have names such as `credentials.py`.
_JUDGED = """
pip.conf npmrc .npmrc .yarnrc .yarnrc.yml .condarc condarc .pypirc .netrc settings*.xml NuGet.Config .env .env.* *.token auth.json* auth.toml*
credentials credentials.json* credentials.toml* credentials.xml* credentials.yml* credentials.yaml* credentials.ini* .git-credentials*
"""
# Patterns of more such files, and of files with credentials only, at places that depend on a version or a name. Each tool's
# documentation of its configuration; playwright.dev/mcp/configuration/user-profile.
PATTERNS = {
    "mixed files": _CONDA
    + """
{config}/mise/*.toml  {config}/mise/conf.d/*.toml  ~/.gradle/init.d/*  $GRADLE_USER_HOME/init.d/*  ~/.virtualenvs/*/pip.conf
$WORKON_HOME/*/pip.conf  ~/.pyenv/versions/*/pip.conf  ~/.pyenv/versions/*/envs/*/pip.conf  $PYENV_ROOT/versions/*/pip.conf
{data}/virtualenvs/*/pip.conf  {cache}/pypoetry/virtualenvs/*/pip.conf  ~/.nvm/versions/node/*/etc/npmrc
$NVM_DIR/versions/node/*/etc/npmrc  {data}/fnm/node-versions/*/installation/etc/npmrc  ~/.volta/tools/image/node/*/etc/npmrc
{data}/mise/installs/node/*/etc/npmrc  ~/.asdf/installs/nodejs/*/etc/npmrc  ~/.sdkman/candidates/maven/*/conf/settings.xml
{data}/mise/installs/maven/*/conf/settings.xml
~/.asdf/installs/maven/*/conf/settings.xml  ~/.m2/settings*.xml  ~/.sdkman/candidates/gradle/*/init.d/*  ~/.nodenv/versions/*/etc/npmrc
{data}/pnpm/global/*/.npmrc  {data}/uv/tools/*/pip.conf  {data}/pipx/venvs/*/pip.conf  ~/.local/pipx/venvs/*/pip.conf
{data}/hatch/env/virtual/*/*/*/pip.conf  {data}/pdm/venvs/*/pip.conf  {data}/mise/installs/python/*/pip.conf
~/.asdf/installs/python/*/pip.conf  ~/.virtualenvs/*/bin/postactivate  $WORKON_HOME/*/bin/postactivate  {data}/virtualenvs/*/bin/postactivate
{config}/mise/.env  {config}/uv/.env  ~/.claude/commands/.env  ~/.claude/skills/*/.env  ~/.claude/plugins/*/.env  ~/.claude/plugins/*/*/.env
~/.claude/plugins/*/*/*/.env  ~/.claude/plugins/*/*/*/*/.env  ~/.claude/plugins/marketplaces/*/.git/config  {cache}/pre-commit/repo*/.git/config
~/.cargo/git/db/*/config  $CARGO_HOME/git/db/*/config  ~/go/pkg/mod/cache/vcs/*/config  $GOPATH/pkg/mod/cache/vcs/*/config
{data}/virtualenvs/*/src/*/.git/config  ~/.virtualenvs/*/src/*/.git/config  $WORKON_HOME/*/src/*/.git/config  $VIRTUAL_ENV/src/*/.git/config
~/.pyenv/.git/config  ~/.rbenv/.git/config  ~/.nvm/.git/config  ~/.asdf/.git/config  {cache}/uv/git-v0/checkouts/*/*/.git/config
~/.pyenv/versions/*/src/*/.git/config  ~/.pyenv/versions/*/envs/*/src/*/.git/config  $PYENV_ROOT/versions/*/src/*/.git/config
{cache}/pypoetry/virtualenvs/*/src/*/.git/config  ~/miniconda3/envs/*/src/*/.git/config  {data}/hatch/env/virtual/*/*/*/src/*/.git/config
~/.bundle/cache/git/*/config  ~/.rbenv/versions/*/lib/ruby/gems/*/cache/bundler/git/*/config  {data}/gem/ruby/*/cache/bundler/git/*/config
~/.ccache/ccache.conf  {cache}/ccache/ccache.conf
{data}/pipx/venvs/*/pipx_metadata.json  ~/.local/pipx/venvs/*/pipx_metadata.json
~/.nuget/NuGet/config/*  $GOMODCACHE/cache/vcs/*/config  {cache}/uv/git-v0/db/*/config  ~/.composer/cache/vcs/*/config  {cache}/composer/vcs/*/config
""",
    "secret files": """
{cache}/ms-playwright/mcp-*  ~/.claude/plugins/*/.mcp.json  ~/.claude/plugins/*/*/.mcp.json  ~/.claude/plugins/*/*/*/.mcp.json
~/.claude/plugins/*/*/*/*/.mcp.json  ~/.cargo/credentials*  $CARGO_HOME/credentials*  ~/.m2/settings-security*
~/.opam/plugins/opam-publish/*.token  $OPAMROOT/plugins/opam-publish/*.token  {config}/git/*cred*  ~/.gradle/daemon/*/*.log
$GRADLE_USER_HOME/daemon/*/*.log  {cache}/deno/location_data
""",
    # What user id 0 alone may read. Each place divides the directories above it, which costs each command time.
    "services": """
/etc/letsencrypt/accounts  /etc/letsencrypt/archive  /etc/letsencrypt/keys  /etc/letsencrypt/live  /etc/wireguard  /etc/ceph/*.keyring
/var/lib/tailscale  /etc/rancher  /var/lib/rancher/k3s/server/token  /var/lib/jenkins/secrets  /opt/actions-runner/.credentials*
/etc/gitlab-runner  /var/backups/*shadow*  /etc/security/opasswd  /etc/apt/auth.conf*  /etc/mysql/debian.cnf  /etc/ppp/*-secrets
/etc/cryptsetup-keys.d  /etc/postfix/sasl_passwd*  /etc/exim4/passwd.client  /var/lib/samba/private  /var/lib/rabbitmq/.erlang.cookie
/var/lib/cloud/instances/*/user-data*  /vault/secrets  /mnt/secrets-store  /kaniko/.docker/config.json
""",
    # A ticket of this user at least has the user id in the place of the `*`. There may be more letters behind it.
    "tickets": "/tmp/krb5cc_*  /tmp/x509up_u*  /tmp/bt_u*",  # noqa: S108 - nothing is made there
}
# What programs need of a home directory. Each line is a kind, the source, and the places, as above.
_SHOWN = """
Python and its tools [pyenv's README, uv, pipx, Poetry, conda, mamba, Triton and Ansible documentation, site(1)]:  ~/.pyenv  $PYENV_ROOT  ~/.python-version
  {data}/uv  $UV_CACHE_DIR  $UV_PYTHON_INSTALL_DIR  $UV_TOOL_DIR  {config}/uv  {cache}/uv  {data}/pipx  ~/.local/pipx  $PIPX_HOME
  {cache}/pip  $PIP_CACHE_DIR  {config}/pypoetry  {data}/pypoetry  {cache}/pypoetry  $POETRY_HOME  {data}/virtualenv
  {data}/virtualenvs  ~/.virtualenvs  $WORKON_HOME  $VIRTUAL_ENV  {cache}/virtualenv  {cache}/pre-commit  {data}/hatch  {cache}/hatch
  {data}/pdm  {cache}/pdm  ~/.rye  ~/.conda  ~/.condarc  $CONDA_PREFIX  $CONDA_ROOT  $MAMBA_ROOT_PREFIX  ~/miniconda3  ~/anaconda3
  ~/miniforge3  ~/mambaforge  ~/micromamba  {data}/mamba  ~/.pixi  {cache}/rattler  ~/.local/lib  {data}/jupyter/kernels
  {cache}/matplotlib  {config}/matplotlib  ~/nltk_data  {cache}/torch  {cache}/huggingface/hub  {config}/ruff  {cache}/ruff
  ~/.triton/cache  $TRITON_CACHE_DIR  ~/.ansible/collections  ~/.ansible/roles  $HF_HUB_CACHE  $HF_HOME/hub  $TORCH_HOME
Node and its package managers [nvm, fnm, Volta, npm, pnpm, Yarn, Bun and Deno documentation]:  ~/.nvm  $NVM_DIR  ~/.nvmrc  ~/.fnm  {data}/fnm
  $FNM_DIR  ~/.nodenv  ~/.n  $N_PREFIX  ~/.volta  $VOLTA_HOME  ~/.npm  $npm_config_cache  ~/.npm-global  ~/.node_modules  {cache}/node
  {cache}/node-gyp  {data}/pnpm  $PNPM_HOME  {cache}/pnpm  {config}/pnpm  ~/.local/state/pnpm  ~/.pnpm-store  ~/.yarn  {cache}/yarn
  {config}/yarn  ~/.bun  $BUN_INSTALL  ~/.deno  $DENO_INSTALL  $DENO_DIR  {cache}/deno  {cache}/ms-playwright  {cache}/puppeteer
  {cache}/Cypress  {cache}/prisma
Rust and Go [rustup, Cargo and Go documentation]:  ~/.rustup  $RUSTUP_HOME  ~/.cargo  $CARGO_HOME  {cache}/sccache  ~/go/bin  ~/go/pkg
  $GOPATH/bin  $GOPATH/pkg  $GOROOT  ~/sdk  {cache}/go-build  $GOCACHE  $GOMODCACHE  {config}/go  {cache}/golangci-lint
Java and what runs on it [Maven, Gradle, SDKMAN, jenv, sbt and Coursier documentation]:  ~/.m2  ~/.gradle  $GRADLE_USER_HOME  $GRADLE_HOME
  $M2_HOME  $MAVEN_HOME  $JAVA_HOME  ~/.sdkman  $SDKMAN_DIR  ~/.jenv  ~/.jdks  ~/.jabba  ~/.ivy2/cache  ~/.ivy2/local  ~/.sbt/boot
  ~/.sbt/launchers  {cache}/coursier  {data}/coursier  ~/.konan  ~/.kotlin  ~/.skiko  ~/Android/Sdk  $ANDROID_HOME  $ANDROID_SDK_ROOT
Ruby, Perl and PHP [rbenv, RVM, RubyGems, Bundler, local::lib and Composer documentation]:  ~/.rbenv  $RBENV_ROOT  ~/.rvm  ~/.gem  $GEM_HOME
  {data}/gem  ~/.bundle  {cache}/bundle  ~/.plenv  ~/perl5  ~/.cpan/build  ~/.cpanm  ~/.phpenv  ~/.composer  {config}/composer  {cache}/composer
Haskell, OCaml, Elixir, Julia, .NET and others [each tool's documentation]:  ~/.ghcup  ~/.cabal  {cache}/cabal  ~/.stack  ~/.opam  $OPAMROOT  ~/.elan
  ~/.mix  $MIX_HOME  ~/.hex  $HEX_HOME  ~/.kiex  {cache}/rebar3  ~/.julia  ~/.juliaup  ~/.dotnet  $DOTNET_ROOT  ~/.nuget/packages  $NUGET_PACKAGES  ~/.swiftpm
  ~/.pub-cache  $PUB_CACHE  ~/.nuget/NuGet  ~/.zvm  {cache}/zig  ~/.nimble  ~/.choosenim  ~/.terraform.d/plugin-cache  ~/.tfenv  ~/.pulumi/bin  ~/.pulumi/plugins
managers of many toolchains [mise, asdf, Nix, Homebrew and Bazelisk documentation]:  {data}/mise  $MISE_DATA_DIR  {config}/mise  {cache}/mise
  ~/.local/state/mise  ~/.asdf  $ASDF_DATA_DIR  $ASDF_DIR  ~/.asdfrc  ~/.tool-versions  ~/.nix-profile  ~/.local/state/nix
  ~/.linuxbrew/bin  ~/.linuxbrew/sbin  ~/.linuxbrew/Cellar  ~/.linuxbrew/Homebrew  ~/.linuxbrew/Library  ~/.linuxbrew/opt  ~/.linuxbrew/lib
  ~/.linuxbrew/libexec  ~/.linuxbrew/include  ~/.linuxbrew/share  ~/.linuxbrew/etc/ca-certificates  ~/.linuxbrew/etc/openssl@3
  ~/.linuxbrew/etc/fonts  ~/.linuxbrew/etc/gitconfig  {cache}/Homebrew  ~/.proto  {cache}/bazel  {cache}/bazelisk  {cache}/ccache  ~/.ccache  {cache}/golangci-lint  {cache}/pre-commit
programs and what they look at [systemd.directories(7), fonts-conf(5), terminfo(5), git-config(1), Claude Code documentation]:  ~/bin  ~/.local/bin
  ~/.terminfo  ~/.fonts  {data}/fonts  {config}/fontconfig  {cache}/fontconfig  ~/.editorconfig  ~/.gitconfig  {config}/git  ~/.gitignore  ~/.gitattributes
  $GIT_CONFIG_GLOBAL  {gitconfig}  {data}/git-lfs
  ~/.claude/CLAUDE.md  ~/.claude/commands  ~/.claude/skills  ~/.claude/agents  ~/.claude/hooks  ~/.claude/plugins  ~/.claude/rules
"""
# What Read could get out of kernel file systems: it runs in ralph's own process, outside the sandbox.
_PRIVATE = (
    (
        "shows the environment or memory of a process",
        "proc(5)",
        "environ mem maps smaps smaps_rollup numa_maps map_files pagemap auxv syscall stack proc/*/stat task/*/stat",
    ),
    (
        "shows the command line of a process",
        "proc(5): arguments may hold credentials",
        "proc/*/cmdline task/*/cmdline",
    ),
    (
        "shows memory, addresses or messages of the kernel",
        "proc(5), and sysfs-module, sysfs-kernel-notes and pstore in the kernel's list of its interfaces",
        """
        kcore vmcore kmsg kallsyms kpagecount kpageflags kpagecgroup vmallocinfo iomem slabinfo timer_list sched_debug
        proc/modules sys/module/*/sections sys/kernel/notes sys/kernel/debug sys/kernel/tracing sys/fs/pstore
        """,
    ),
    (
        "holds keys or data of the firmware",
        "keyrings(7); EFI variables and qemu_fw_cfg may hold what a machine was given at its start",
        "keys key-users sys/firmware",
    ),
)


def _kinds(text: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for line in text.replace("\n  ", "  ").strip().split("\n"):
        named, _, places = line.partition("]:  ")
        kind, _, source = named.partition(" [")
        yield kind, source, tuple(places.split("  "))


def _state_row(place: str, around_work: AroundWork) -> PlaceRow:
    return PlaceRow(
        (place,),
        "holds ralph's own state: sessions and the records of loops",
        advice="`ralph sessions show` shows a session to whoever starts ralph",
        around_work=around_work,
        entries=("sessions", "loops", "loop.key"),
    )


# The first row that covers a path is the one that is told. `--session-dir` and RALPH_STATE_DIR may
# name the work.
ROWS: tuple[PlaceRow, ...] = (
    PlaceRow(
        ("{configuration}", "{config}/ralph"),
        "is ralph's own configuration",
        (UNREAD, *_OBEYED),
        advice=_ASK_TO_CHANGE,
    ),
    _state_row("{state}", "itself"),
    _state_row("{sessions}", "entries"),
    *(PlaceRow(places, f"holds {kind}", source=source) for kind, source, places in _kinds(_SECRETS)),
    PlaceRow(("{secret files}",), "holds credentials or the sessions of a browser"),
    PlaceRow(
        ("{secrets of others}",),
        "holds keys, credentials or private data of another user, or of Windows",
        around_work="rest",
    ),
    PlaceRow(("{credential files}",), "holds a credential, as the name of a variable says"),
    PlaceRow(
        ("/run/user", "{runtime directory}"),
        "holds tickets, keys and sockets of programs of the user's login",
        (UNREAD,),
        around_work="rest",
        source="XDG Base Directory Specification, file-hierarchy(7)",
    ),
    PlaceRow(
        ("{mixed}",),
        "holds credentials beside configuration, or cannot be understood",
        advice=_ASK_TO_SHOW,
    ),
    PlaceRow((*_FILTERED.split(), "{mixed files}"), "may hold credentials beside configuration", (FILTERED,)),
    PlaceRow(
        tuple(f"**/{name}" for name in _JUDGED.split()),
        "may hold credentials beside configuration",
        (JUDGED,),
        advice=_ASK_TO_SHOW,
    ),
    PlaceRow(("{denied}",), "must not be read, as your user's settings say (sandbox.read_deny)"),
    PlaceRow(
        ("{hidden}",),
        "is hidden by the program that started ralph (RALPH_SANDBOX_HIDE)",
        around_work="rest",
    ),
    PlaceRow(
        ("{git}",),
        _GIT,
        (UNWRITTEN,),
        _USE_GIT,
        around_work="entries",
        entries=GIT_ENTRIES,
        source="gitrepository-layout(5)",
    ),
    PlaceRow(("{package}",), "is the ralph that runs", (UNWRITTEN, VISIBLE), _FROM_ELSEWHERE),
    PlaceRow(
        ("{prefix}",),
        "holds the Python that ralph runs on",
        (UNWRITTEN, VISIBLE),
        _FROM_ELSEWHERE,
        around_work="nothing",
    ),
    # Only where commands may write. Without namespaces, a command may change the rest of them.
    PlaceRow(("{own code}",), "is the ralph that runs", (READ_ONLY,), _FROM_ELSEWHERE),
    PlaceRow(("{own start}",), "is run when ralph starts", (UNWRITTEN, READ_ONLY, COMPARED), _FROM_ELSEWHERE),
    # A prefix such as /usr is not protected if it contains a root, so its code is.
    PlaceRow(
        ("{code}",),
        "holds the Python that ralph runs on",
        (UNWRITTEN,),
        _FROM_ELSEWHERE,
        around_work="nothing",
    ),
    # The rows above come first, so that they keep closed what is in a place that is shown.
    PlaceRow(
        ("{closed home}",),
        "is the home directory, of which only what programs need may be read",
        (UNREAD,),
        _ASK_TO_SHOW,
        around_work="unshown",
    ),
    PlaceRow(
        ("{other homes}",),
        "is the home directory of another user, or of Windows, of which only what programs need may be read",
        (UNREAD,),
        _ASK_TO_SHOW,
        around_work="unshown",
    ),
    *(PlaceRow(places, f"holds {kind}", (SHOWN,), source=source) for kind, source, places in _kinds(_SHOWN)),
    PlaceRow(("{shown of others}",), "is a toolchain in the home directory of another", (SHOWN,)),
    PlaceRow(
        ("{package}", "{prefix}", "{code}", "{checkout}", "{path}", "{editable}"),
        "is ralph, its Python, the checkout of a root, a directory of PATH, or a package that is installed as editable",
        (SHOWN,),
    ),
    # Names. The sandbox mounts and compares them where they are files at the top of a root.
    PlaceRow(("**/.git",), _GIT, (*_OBEYED, UNQUOTED), _USE_GIT, source="gitrepository-layout(5)"),
    PlaceRow(("**/ralph.toml",), "is ralph's own configuration", _OBEYED, _ASK_TO_CHANGE),
    PlaceRow(
        ("**/.claude/settings*.json", "{settings of agents}"),
        "says what agents may do here",
        _OBEYED,
        _ASK_TO_CHANGE,
        source=_CLAUDE,
    ),
    PlaceRow(("**/.mcp.json",), "says which programs agents start", _OBEYED, _ASK_TO_CHANGE, source=_CLAUDE),
    # The work is in the home directory, or above it.
    PlaceRow(
        ("{home in a root}/.*",),
        "is a dotfile of the home directory: programs run what is in it",
        (UNWRITTEN,),
        "Whoever starts ralph can name a project by --cd or --add-dir",
        around_work="rest",
    ),
    # `commondir` names another directory from which git reads configuration and hooks, and `gitdir` the working tree of a
    # linked worktree. `alternates` names other directories with objects. Attributes choose filters. `{git}` are also the git directories below `modules` and `worktrees`.
    PlaceRow(
        (
            *("{git}/config", "{git}/config.worktree", "{git}/commondir", "{git}/gitdir"),
            *("{git}/info/attributes", "{git}/objects/info/alternates"),
        ),
        _GIT,
        (READ_ONLY, COMPARED),
        source="gitrepository-layout(5)",
    ),
    PlaceRow(
        ("{named by git}",),
        "is read by git as its configuration: its content can make git run programs",
        _OBEYED,
        _USE_GIT,
        source="git-config(1): include.path, includeIf.*.path, core.attributesFile",
    ),
    PlaceRow(
        ("{named by ssh}",),
        "is ssh's configuration: its content can make ssh run programs",
        _OBEYED,
        _ASK_TO_CHANGE,
        source="ssh_config(5): Include, ProxyCommand, Match exec",
    ),
    PlaceRow(("{git}/hooks",), _GIT, (READ_ONLY, COMPARED, TOLD), source="githooks(5)"),
    # Of a remote that the configuration does not have, git takes the address from there.
    PlaceRow(("{git}/branches", "{git}/remotes"), _GIT, (COMPARED,), source="gitrepository-layout(5)"),
    *(
        PlaceRow(tuple(f"**/{name}" for name in names.split()), shows, (PRIVATE,), source=source)
        for shows, source, names in _PRIVATE
    ),
    PlaceRow(
        ("/run/user", "/run/dbus", "/run/docker.sock", "/run/podman", "/run/containerd", "/run/libvirt"),
        "holds sockets of programs that act for the user: agents with keys, the desktop, containers",
        (EMPTY,),
        source="file-hierarchy(7), each daemon's documentation",
    ),
    PlaceRow(
        ("{root}", "{temporary}", "{packages}", "{writable git}"),
        "is for the work and its scratch files",
        (WRITABLE,),
    ),
    PlaceRow(
        ("/dev/shm",),  # noqa: S108 - commands use it, not ralph
        "is the place of POSIX shared memory and semaphores, which `multiprocessing` uses",
        (WRITABLE,),
        source="shm_overview(7)",
    ),
    PlaceRow(
        tuple(_DEVICES.split()),
        "is a device that shells and ordinary programs use",
        (DEVICE,),
        source="null(4), random(4), tty(4), pts(4)",
    ),
    PlaceRow(
        ("/dev",),
        "holds disks, memory and other hardware, which user id 0 may open even without capabilities, and terminals, where people type passwords",
        (CLOSED,),
        source="capabilities(7)",
    ),
    PlaceRow(("{programs}",), "holds programs of PATH and what they need", (VISIBLE,)),
)

CACHES = {
    "XDG_CACHE_HOME": "",
    "PIP_CACHE_DIR": "/pip",
    "npm_config_cache": "/npm",
    "CARGO_HOME": "/cargo",
    "GOCACHE": "/go-build",
    "GOMODCACHE": "/go-mod",
    "MPLCONFIGDIR": "/matplotlib",
    "IPYTHONDIR": "/ipython",
    "JUPYTER_DATA_DIR": "/jupyter",
    "JUPYTER_RUNTIME_DIR": "/jupyter/runtime",
    "JUPYTER_CONFIG_DIR": "/jupyter/config",
    "GRADLE_USER_HOME": "/gradle",
    "ANSIBLE_HOME": "/ansible",
    "ANSIBLE_REMOTE_TEMP": "/ansible/tmp",
    "UV_TOOL_DIR": "/uv/tools",
    "UV_TOOL_BIN_DIR": "/uv/bin",
    "UV_PYTHON_INSTALL_DIR": "/uv/python",
    "UV_PYTHON_BIN_DIR": "/uv/bin",
    "WORKON_HOME": "/virtualenvs",
    "HATCH_DATA_DIR": "/hatch",
    "HATCH_CONFIG": "/hatch/config.toml",
    "PDM_LOG_DIR": "/pdm/log",
    "YARN_GLOBAL_FOLDER": "/yarn/berry",
    "PM2_HOME": "/pm2",
    "TRITON_CACHE_DIR": "/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/inductor",
    "CUDA_CACHE_PATH": "/nv",
    # Where these are without a variable, too. The user's own shell, CI or container may name a place that commands cannot write.
    "UV_CACHE_DIR": "/uv",
    "POETRY_CACHE_DIR": "/pypoetry",
    "PRE_COMMIT_HOME": "/pre-commit",
    "HF_HOME": "/huggingface",
    "HF_HUB_CACHE": "/huggingface/hub",
    "TORCH_HOME": "/torch",
    "DENO_DIR": "/deno",
    "DENO_INSTALL_ROOT": "/deno",
    "BUN_INSTALL_CACHE_DIR": "/.bun/install/cache",
    "BUN_INSTALL_GLOBAL_DIR": "/.bun/install/global",
    "BUN_INSTALL_BIN": "/.bun/bin",
    "DVC_SITE_CACHE_DIR": "/dvc",
    "WRANGLER_LOG_PATH": "/wrangler/logs",
    "__UNSAFE_EXPO_HOME_DIRECTORY": "/expo",
    # NuGet looks for its configuration there too: see LAYERS.
    "DOTNET_CLI_HOME": "/dotnet",
    "NUGET_PACKAGES": "/nuget/packages",
    "NUGET_HTTP_CACHE_PATH": "/nuget/http",
    "NUGET_PLUGINS_CACHE_PATH": "/nuget/plugins",
    "PUB_CACHE": "/pub-cache",
    "HEX_HOME": "/hex",
    "MIX_HOME": "/mix",
    "GEM_HOME": "/gem",
    "BUNDLE_USER_HOME": "/bundle",
}
"""The variables that tell programs where to keep what they have downloaded or made, and the place of each in `{packages}`. Nothing of
it is shared by checkouts: no tool here verifies all that it keeps at each read. Each tool's documentation of its environment; of Expo,
NuGet and Mix, also their sources (UserSettings, NuGetEnvironment, Mix.Utils)."""
EMPTY_FILES = (("hatch", "config.toml"),)
"""The files in `{packages}` that a program must find. The user's own may hold credentials. Each is named by its directory and name."""
PNPM_STORE = ("npm_config_store_dir", "pnpm_config_store_dir")
"""The variables for the store of pnpm up to version 10 and later. npm warns of the first, so that only work with pnpm gets them."""
MAVEN_OPTIONS = "-Dmaven.repo.local={packages}/maven -Dmaven.repo.local.tail={own}/.m2/repository"
"""Maven has no variable for its repository. Since 3.9 it reads the user's own as a second one (`tail`)."""
SBT_OPTIONS = (
    "-Dsbt.boot.directory={packages}/sbt/boot -Dsbt.global.base={packages}/sbt -Dsbt.ivy.home={packages}/ivy2"
)
"""sbt has no variables for these, and commands do not see the user's own global base, which may hold credentials."""
LAYERS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("ms-playwright", 1, ("{cache}/ms-playwright",)),
    # models--NAME/snapshots/REVISION, models--NAME/blobs/HASH, models--NAME/refs/main
    ("huggingface/hub", 3, ("$HF_HUB_CACHE", "$HF_HOME/hub", "{cache}/huggingface/hub")),
    ("torch/hub/checkpoints", 1, ("$TORCH_HOME/hub/checkpoints", "{cache}/torch/hub/checkpoints")),
    ("uv/python", 1, ("$UV_PYTHON_INSTALL_DIR", "{data}/uv/python")),
    ("uv/tools", 1, ("$UV_TOOL_DIR", "{data}/uv/tools")),
    ("virtualenvs", 1, ("$WORKON_HOME", "{data}/virtualenvs")),
    ("pypoetry/virtualenvs", 1, ("{cache}/pypoetry/virtualenvs",)),
    # PROJECT/HASH/ENVIRONMENT
    ("hatch/env/virtual", 3, ("$HATCH_DATA_DIR/env/virtual", "{data}/hatch/env/virtual")),
    # v1/NAME/VERSION
    ("node/corepack", 3, ("{cache}/node/corepack",)),
    # VERSION/Cypress, and what Cypress writes beside it
    ("Cypress", 2, ("{cache}/Cypress",)),
    ("matplotlib", 1, ("$MPLCONFIGDIR", "{config}/matplotlib", "{cache}/matplotlib")),
    ("jupyter/kernels", 1, ("$JUPYTER_DATA_DIR/kernels", "{data}/jupyter/kernels")),
    ("triton", 1, ("$TRITON_CACHE_DIR", "~/.triton/cache")),
    ("ansible/roles", 1, ("$ANSIBLE_HOME/roles", "~/.ansible/roles")),
    (
        "ansible/collections/ansible_collections",
        2,
        tuple(f"{home}/collections/ansible_collections" for home in ("$ANSIBLE_HOME", "~/.ansible")),
    ),
    ("dotnet/.nuget/NuGet", 1, ("~/.nuget/NuGet",)),
    # NAME/VERSION
    ("nuget/packages", 2, ("$NUGET_PACKAGES", "~/.nuget/packages")),
    # HOST/NAME-VERSION, HOST/NAME-VERSION.sha256
    ("pub-cache/hosted", 2, ("$PUB_CACHE/hosted", "~/.pub-cache/hosted")),
    ("pub-cache/hosted-hashes", 2, ("$PUB_CACHE/hosted-hashes", "~/.pub-cache/hosted-hashes")),
    ("pub-cache/global_packages", 1, ("$PUB_CACHE/global_packages", "~/.pub-cache/global_packages")),
    # REPOSITORY/NAME-VERSION.tar
    ("hex/packages", 2, ("$HEX_HOME/packages", "~/.hex/packages")),
    ("mix/archives", 1, ("$MIX_HOME/archives", "~/.mix/archives")),
    # VERSION/rebar3
    ("mix/elixir", 2, ("$MIX_HOME/elixir", "~/.mix/elixir")),
    # scala-VERSION/ORGANIZATION/NAME/VERSION
    ("sbt/boot", 4, ("~/.sbt/boot",)),
    ("ivy2/local", 2, ("~/.ivy2/local",)),
)
"""The user's own caches that lie under those in `{packages}`: the place there, the depth of the entries that are linked as a whole, and
where the user's is."""


def named_with(guard: str) -> tuple[tuple[str, str], ...]:
    """The names and patterns that are guarded at any depth, each with the reason."""
    return tuple(
        (template.removeprefix(_NAME), row.why)
        for row in ROWS
        if guard in row.guards
        for template in row.where
        if template.startswith(_NAME)
    )


def names_with(guard: str) -> tuple[str, ...]:
    return tuple(name for name, _ in named_with(guard))


def names_below_tops() -> tuple[str, ...]:
    """The names that are compared at the top of a root, and looked for below it. A repository is judged by its configuration there."""
    return tuple(name for name in names_with(COMPARED) if name != ".git")


def git_entries_with(guard: str) -> tuple[str, ...]:
    """The guarded entries of a git directory."""
    return tuple(path.removeprefix("/") for path in paths_with(guard, {"git": ("/",)}))


def paths_with(
    guard: str, bases: Bases, variables: Mapping[str, str] = {}, rows: Iterable[PlaceRow] | None = None
) -> tuple[str, ...]:
    """The absolute paths with a guard, as far as `bases` and `variables` have them, without names at any depth. `rows` have all
    rows with the guard, or more.
    """
    found = (
        path
        for row in (ROWS if rows is None else rows)
        if guard in row.guards
        for template in row.where
        for path in expanded(template, bases, variables)
    )
    return tuple(dict.fromkeys(found))


def expanded(template: str, bases: Bases, variables: Mapping[str, str] = {}) -> Iterator[str]:
    """Yields the absolute paths of a template, none for a name at any depth, an unknown base, or a variable without such a path."""
    if template.startswith(("/", _NAME)):
        yield from [template] if template[0] == "/" else []
        return
    first, slash, rest = template.partition("/")
    if first.startswith("$"):
        # These two are lists. In the other variables a colon is part of a name.
        value = _KIND.sub("", variables.get(first[1:], ""))
        found: Sequence[str] = value.split(":") if first in ("$KUBECONFIG", "$GOPATH") else [value]
    else:
        found = bases.get(first.strip("{}"), ())
    yield from (f"{base.rstrip('/')}{slash}{rest}" or "/" for base in found if base.startswith("/"))
