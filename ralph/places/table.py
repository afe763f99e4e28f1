"""The table of places: which files and directories are protected, from whom, and by which means. Every part of ralph
that refuses, hides, mounts, compares or lists a place reads this table. No I/O happens here.

Each row has templates, which say where the places are:

* `~/x` is in each home directory. `{config}/x`, `{data}/x`, `{cache}/x` and `{runtime}/x` are in the directories of the
  XDG specification. `{root}`, `{git}` and the other names in `Bases` stand for paths of this run.
* `$NAME` and `$NAME/x` begin with the value of an environment variable.
* `**/x` is a name at any depth. `*` matches any characters but a slash.
* Any other template is an absolute path.

A place is a file, or a directory with everything inside it. It need not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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

GUARDS = {
    UNREAD: "Read, Grep, Glob, instruction files, linked prompts and pages refuse it; Landlock denies it to commands and searches",
    UNWRITTEN: "Write and Edit refuse it",
    UNQUOTED: "instruction files and linked prompts refuse it",
    PRIVATE: "Read refuses it, and a search skips it, where the kernel makes the file's content",
    READ_ONLY: "with namespaces, a read-only mount if it exists when a command starts; the directory around it cannot be replaced",
    COMPARED: "at each level, compared after a command and a call of an MCP server; a change is undone",
    TOLD: "a loop says if an iteration has changed it",
    EMPTY: "with namespaces, an empty mount",
    VISIBLE: "with namespaces, mounted again, read-only, if it lies in /tmp",
    WRITABLE: "commands may write it: a Landlock rule, and a mount with namespaces",
    DEVICE: "commands may use it: a Landlock rule; with namespaces, bubblewrap makes its own",
    CLOSED: "Landlock denies to commands what no other row opens",
}
"""The effect of each guard: to whom and at which level of the sandbox."""

_ASK_TO_COPY = "Whoever starts ralph can put what the task needs of it into the working directory"
_ASK_TO_CHANGE = "Whoever starts ralph can change it"
_USE_GIT = "Use git itself, with Bash (git commit, git config, git remote, ...)"
_FROM_ELSEWHERE = "Whoever starts ralph can start one that is installed elsewhere"
_GIT = "is git's own: what stands there can make git run programs"
_OBEYED = (UNWRITTEN, READ_ONLY, COMPARED)

AroundWork = Literal["whole", "entries", "rest", "nothing"]
"""The protected part of a directory that contains a root: everything, only some `entries`, everything but the roots in it,
or nothing."""


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
    source: str = ""
    """Where this is documented, or why it must be so."""


# Entries that git itself uses in a git directory. The directory of a bare repository may also contain other files,
# such as working trees.
_GIT_ENTRIES = """
HEAD FETCH_HEAD ORIG_HEAD config config.worktree hooks info objects refs reftable packed-refs logs index worktrees modules
commondir gitdir branches remotes shallow lfs rebase-merge rebase-apply sequencer description
"""

_DEVICES = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/pts"
# Each line is a kind of secret and its places. Places are separated by two spaces, because some names contain one.
_SECRETS = """
SSH keys:  ~/.ssh  /etc/ssh/ssh_host_dsa_key  /etc/ssh/ssh_host_ecdsa_key  /etc/ssh/ssh_host_ed25519_key
  /etc/ssh/ssh_host_rsa_key
GnuPG and age keys:  ~/.gnupg  $GNUPGHOME  {config}/sops/age  {config}/age
AWS credentials:  ~/.aws  $AWS_SHARED_CREDENTIALS_FILE  $AWS_CONFIG_FILE  ~/.s3cfg  ~/.boto
Azure credentials:  ~/.azure  $AZURE_CONFIG_DIR
Google Cloud credentials:  {config}/gcloud  $CLOUDSDK_CONFIG  $GOOGLE_APPLICATION_CREDENTIALS
Kubernetes credentials:  ~/.kube  $KUBECONFIG  /etc/kubernetes
credentials of container registries:  ~/.docker  $DOCKER_CONFIG/config.json  {config}/containers/auth.json
  {runtime}/containers/auth.json  $REGISTRY_AUTH_FILE  {config}/helm/registry
credentials of cloud providers and hosts:  ~/.oci  ~/.aliyun  ~/.bluemix  ~/.fly  ~/.databrickscfg  ~/.snowflake  ~/.snowsql
  {config}/doctl  {config}/hcloud  {config}/scw  {config}/openstack  {config}/linode-cli  {config}/netlify
  {data}/com.vercel.cli  {config}/.wrangler  ~/.wrangler  {config}/rclone  {config}/configstore  {config}/stripe
  {config}/heroku
credentials of infrastructure tools:  ~/.terraform.d/credentials.tfrc.json  ~/.terraformrc  ~/.pulumi/credentials.json
  ~/.vault-token
git credentials:  ~/.git-credentials  {config}/git/credentials  {cache}/git/credential  {config}/gh  $GH_CONFIG_DIR
  {config}/hub  {config}/glab-cli  {config}/tea
passwords of hosts:  ~/.netrc  ~/_netrc  $NETRC  ~/.authinfo  ~/.authinfo.gpg
passwords of databases:  ~/.pgpass  $PGPASSFILE  ~/.my.cnf  ~/.mylogin.cnf  ~/.mongorc.js  ~/.dbshell
credentials of package registries:  ~/.npmrc  $NPM_CONFIG_USERCONFIG  ~/.yarnrc  ~/.yarnrc.yml  {config}/pnpm/rc  ~/.pypirc
  ~/.pip  {config}/pip  $PIP_CONFIG_FILE  {config}/pypoetry/auth.toml  {data}/uv/credentials  ~/.cargo/credentials
  ~/.cargo/credentials.toml  $CARGO_HOME/credentials  $CARGO_HOME/credentials.toml  ~/.gem/credentials  ~/.bundle/config
  ~/.m2/settings.xml  ~/.m2/settings-security.xml  ~/.gradle/gradle.properties  ~/.nuget/NuGet/NuGet.Config
  {config}/NuGet/NuGet.Config  ~/.composer/auth.json  {config}/composer/auth.json  ~/.hex/hex.config
credentials of other agents and models:  ~/.claude.json  ~/.claude/.credentials.json  ~/.codex/auth.json  ~/.gemini
  {config}/github-copilot  ~/.huggingface  {cache}/huggingface/token  $HF_TOKEN_PATH  ~/.kaggle
keyrings and passwords:  {data}/keyrings  {data}/kwalletd  ~/.gnome2/keyrings  ~/.pki  ~/.password-store
  $PASSWORD_STORE_DIR  {data}/gopass  {config}/op  {config}/Bitwarden CLI  {config}/Bitwarden  {config}/1Password
  {config}/keepassxc  ~/Library/Keychains  /Library/Keychains  ~/Library/Application Support/1Password
  ~/Library/Application Support/Bitwarden
a browser's passwords and sessions:  ~/.mozilla  {config}/google-chrome  {config}/google-chrome-beta  {config}/chromium
  {config}/BraveSoftware  {config}/microsoft-edge  {config}/vivaldi  {config}/opera  ~/snap/firefox  ~/snap/chromium
  ~/.var/app/org.mozilla.firefox  ~/.thunderbird  ~/.var/app/com.google.Chrome  ~/.var/app/org.chromium.Chromium
  ~/Library/Cookies  ~/Library/Safari  ~/Library/Containers/com.apple.Safari  ~/Library/Thunderbird
  ~/Library/Application Support/Firefox  ~/Library/Application Support/Google/Chrome
  ~/Library/Application Support/Chromium  ~/Library/Application Support/BraveSoftware
  ~/Library/Application Support/Microsoft Edge
messages and their sessions:  {config}/Slack  {config}/discord  {config}/Signal  {data}/TelegramDesktop  ~/Library/Messages
  ~/Library/Mail  ~/Library/Application Support/Slack  ~/Library/Application Support/discord
  ~/Library/Application Support/Signal
commands as they were typed, passwords among them:  ~/.bash_history  ~/.zsh_history  ~/.history  ~/.sh_history  $HISTFILE
  {data}/fish/fish_history  ~/.python_history  ~/.node_repl_history  ~/.psql_history  ~/.mysql_history
  ~/.rediscli_history  ~/.sqlite_history
secrets of this machine:  /etc/shadow  /etc/shadow-  /etc/gshadow  /etc/gshadow-  /etc/krb5.keytab  /etc/ssl/private
  /etc/pki/tls/private  /etc/NetworkManager/system-connections  /run/secrets  /var/run/secrets  /run/credentials
  /private/etc/master.passwd
"""


def _secret_rows() -> Iterator[PlaceRow]:
    for line in _SECRETS.replace("\n  ", "  ").strip().split("\n"):
        holds, _, places = line.partition(":  ")
        yield PlaceRow(tuple(places.split("  ")), f"holds {holds}")


# The first row that covers a path is the one that is told.
ROWS: tuple[PlaceRow, ...] = (
    PlaceRow(("{configuration}", "{config}/ralph"), "is ralph's own configuration", advice=_ASK_TO_CHANGE),
    PlaceRow(
        ("{state}",),
        "holds ralph's own state: sessions and the records of loops",
        advice="`ralph sessions show` shows a session to whoever starts ralph",
        around_work="entries",
        entries=("sessions", "loops", "loop.key"),
    ),
    *_secret_rows(),
    PlaceRow(("{denied}",), "must not be read, as your user's settings say (sandbox.read_deny)"),
    PlaceRow(
        ("{hidden}",),
        "is hidden by the program that started ralph (RALPH_SANDBOX_HIDE)",
        around_work="rest",
    ),
    PlaceRow(
        ("{git}",), _GIT, (UNWRITTEN,), _USE_GIT, around_work="entries", entries=tuple(_GIT_ENTRIES.split())
    ),
    PlaceRow(("{package}",), "is the ralph that runs", (UNWRITTEN, VISIBLE), _FROM_ELSEWHERE),
    PlaceRow(
        ("{prefix}",),
        "holds the Python that ralph runs on",
        (UNWRITTEN, VISIBLE),
        _FROM_ELSEWHERE,
        around_work="nothing",
    ),
    # A prefix such as /usr is not protected if it contains a root, so its code is.
    PlaceRow(
        ("{code}",),
        "holds the Python that ralph runs on",
        (UNWRITTEN,),
        _FROM_ELSEWHERE,
        around_work="nothing",
    ),
    # Names. The sandbox mounts and compares them where they are files at the top of a root.
    PlaceRow(("**/.git",), _GIT, (*_OBEYED, UNQUOTED), _USE_GIT, source="gitrepository-layout(5)"),
    PlaceRow(("**/ralph.toml",), "is ralph's own configuration", _OBEYED, _ASK_TO_CHANGE),
    PlaceRow(("**/.claude/settings*.json",), "says what agents may do here", _OBEYED, _ASK_TO_CHANGE),
    PlaceRow(("**/.mcp.json",), "says which programs agents start", _OBEYED, _ASK_TO_CHANGE),
    # The work is in the home directory, or above it.
    PlaceRow(
        ("{home in a root}/.*",),
        "is a dotfile of the home directory: programs run what stands there",
        (UNWRITTEN,),
        "Whoever starts ralph can name a project by --cd or --add-dir",
        around_work="rest",
    ),
    # `commondir` names another directory from which git reads configuration and hooks.
    PlaceRow(
        ("{git}/config", "{git}/config.worktree", "{git}/commondir"),
        _GIT,
        (READ_ONLY, COMPARED),
        source="gitrepository-layout(5)",
    ),
    PlaceRow(("{git}/hooks",), _GIT, (READ_ONLY, COMPARED, TOLD), source="githooks(5)"),
    PlaceRow(
        ("**/environ", "**/mem", "**/kcore"),
        "shows the environment or memory of a process",
        (PRIVATE,),
        source="proc(5)",
    ),
    PlaceRow(
        ("/run/user", "/run/dbus", "/run/docker.sock", "/run/podman", "/run/containerd", "/run/libvirt"),
        "holds sockets of programs that act for the user: agents with keys, the desktop, containers",
        (EMPTY,),
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
        "is a device that shells and ordinary programs use; openpty(3) opens the last two",
        (DEVICE,),
    ),
    PlaceRow(
        ("/dev",),
        "holds disks, memory and other hardware, which user id 0 may open even without capabilities",
        (CLOSED,),
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
}
"""The variables that tell programs where to keep what they have downloaded, and the place of each in `{packages}`."""

_NAME = "**/"


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


def git_entries_with(guard: str) -> tuple[str, ...]:
    """The guarded entries of a git directory."""
    return tuple(path.removeprefix("/") for path in paths_with(guard, {"git": ("/",)}))


def paths_with(guard: str, bases: Bases) -> tuple[str, ...]:
    """The absolute paths with a guard, as far as `bases` has them. Names at any depth are not among them."""
    found = (
        path
        for row in ROWS
        if guard in row.guards
        for template in row.where
        for path in expanded(template, bases)
    )
    return tuple(dict.fromkeys(found))


def expanded(template: str, bases: Bases, variables: Mapping[str, str] = {}) -> Iterator[str]:
    """Yields the absolute paths that a template describes. Yields nothing for a name at any depth, if the template's
    base is unknown, or if its environment variable is not set or is not an absolute path.
    """
    if template.startswith(("/", _NAME)):
        yield from [template] if template[0] == "/" else []
        return
    first, slash, rest = template.partition("/")
    if first.startswith("$"):
        # KUBECONFIG is a list. In the other variables a colon is part of a name.
        value = variables.get(first[1:], "")
        found: Sequence[str] = value.split(":") if first == "$KUBECONFIG" else [value]
    else:
        found = bases.get(first.strip("{}"), ())
    yield from (f"{base.rstrip('/')}{slash}{rest}" or "/" for base in found if base.startswith("/"))
