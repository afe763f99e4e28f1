"""The places where credentials are commonly stored. File tools must not read them. No I/O happens here.

A place is a file, or a directory with everything inside it. A template describes a place. `~/x` is in each home
directory. `{config}/x`, `{data}/x`, `{cache}/x` and `{runtime}/x` are in the directories of the XDG specification.
`$NAME` and `$NAME/x` begin with the value of an environment variable. Any other template is an absolute path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class SecretPlaces(NamedTuple):
    holds: str
    templates: tuple[str, ...]


SECRET_PLACES = (
    SecretPlaces(
        "SSH keys",
        (
            "~/.ssh",
            *(f"/etc/ssh/ssh_host_{kind}_key" for kind in ("dsa", "ecdsa", "ed25519", "rsa")),
        ),
    ),
    SecretPlaces("GnuPG and age keys", ("~/.gnupg", "$GNUPGHOME", "{config}/sops/age", "{config}/age")),
    SecretPlaces(
        "AWS credentials",
        ("~/.aws", "$AWS_SHARED_CREDENTIALS_FILE", "$AWS_CONFIG_FILE", "~/.s3cfg", "~/.boto"),
    ),
    SecretPlaces("Azure credentials", ("~/.azure", "$AZURE_CONFIG_DIR")),
    SecretPlaces(
        "Google Cloud credentials",
        ("{config}/gcloud", "$CLOUDSDK_CONFIG", "$GOOGLE_APPLICATION_CREDENTIALS"),
    ),
    SecretPlaces("Kubernetes credentials", ("~/.kube", "$KUBECONFIG", "/etc/kubernetes")),
    SecretPlaces(
        "credentials of container registries",
        (
            "~/.docker",
            "$DOCKER_CONFIG/config.json",
            "{config}/containers/auth.json",
            "{runtime}/containers/auth.json",
            "$REGISTRY_AUTH_FILE",
            "{config}/helm/registry",
        ),
    ),
    SecretPlaces(
        "credentials of cloud providers and hosts",
        (
            *(
                "~/.oci",
                "~/.aliyun",
                "~/.bluemix",
                "~/.fly",
                "~/.databrickscfg",
                "~/.snowflake",
                "~/.snowsql",
            ),
            *(
                "{config}/doctl",
                "{config}/hcloud",
                "{config}/scw",
                "{config}/openstack",
                "{config}/linode-cli",
            ),
            *("{config}/netlify", "{data}/com.vercel.cli", "{config}/.wrangler", "~/.wrangler"),
            *("{config}/rclone", "{config}/configstore", "{config}/stripe", "{config}/heroku"),
        ),
    ),
    SecretPlaces(
        "credentials of infrastructure tools",
        (
            "~/.terraform.d/credentials.tfrc.json",
            "~/.terraformrc",
            "~/.pulumi/credentials.json",
            "~/.vault-token",
        ),
    ),
    SecretPlaces(
        "git credentials",
        (
            *("~/.git-credentials", "{config}/git/credentials", "{cache}/git/credential"),
            *("{config}/gh", "$GH_CONFIG_DIR", "{config}/hub", "{config}/glab-cli", "{config}/tea"),
        ),
    ),
    SecretPlaces("passwords of hosts", ("~/.netrc", "~/_netrc", "$NETRC", "~/.authinfo", "~/.authinfo.gpg")),
    SecretPlaces(
        "passwords of databases",
        ("~/.pgpass", "$PGPASSFILE", "~/.my.cnf", "~/.mylogin.cnf", "~/.mongorc.js", "~/.dbshell"),
    ),
    SecretPlaces(
        "credentials of package registries",
        (
            *("~/.npmrc", "$NPM_CONFIG_USERCONFIG", "~/.yarnrc", "~/.yarnrc.yml", "{config}/pnpm/rc"),
            *("~/.pypirc", "~/.pip", "{config}/pip", "$PIP_CONFIG_FILE", "{config}/pypoetry/auth.toml"),
            *("{data}/uv/credentials", "~/.cargo/credentials", "~/.cargo/credentials.toml"),
            *(
                "$CARGO_HOME/credentials",
                "$CARGO_HOME/credentials.toml",
                "~/.gem/credentials",
                "~/.bundle/config",
            ),
            *("~/.m2/settings.xml", "~/.m2/settings-security.xml", "~/.gradle/gradle.properties"),
            *("~/.nuget/NuGet/NuGet.Config", "{config}/NuGet/NuGet.Config"),
            *("~/.composer/auth.json", "{config}/composer/auth.json", "~/.hex/hex.config"),
        ),
    ),
    SecretPlaces(
        "credentials of other agents and models",
        (
            *("~/.claude.json", "~/.claude/.credentials.json", "~/.codex/auth.json", "~/.gemini"),
            *("{config}/github-copilot", "~/.huggingface", "{cache}/huggingface/token", "$HF_TOKEN_PATH"),
            "~/.kaggle",
        ),
    ),
    SecretPlaces(
        "keyrings and passwords",
        (
            *("{data}/keyrings", "{data}/kwalletd", "~/.gnome2/keyrings", "~/.pki", "~/.password-store"),
            *(
                "$PASSWORD_STORE_DIR",
                "{data}/gopass",
                "{config}/op",
                "{config}/Bitwarden CLI",
                "{config}/Bitwarden",
            ),
            *("{config}/1Password", "{config}/keepassxc", "~/Library/Keychains", "/Library/Keychains"),
            *("~/Library/Application Support/1Password", "~/Library/Application Support/Bitwarden"),
        ),
    ),
    SecretPlaces(
        "a browser's passwords and sessions",
        (
            *("~/.mozilla", "{config}/google-chrome", "{config}/google-chrome-beta", "{config}/chromium"),
            *("{config}/BraveSoftware", "{config}/microsoft-edge", "{config}/vivaldi", "{config}/opera"),
            *("~/snap/firefox", "~/snap/chromium", "~/.var/app/org.mozilla.firefox", "~/.thunderbird"),
            *("~/.var/app/com.google.Chrome", "~/.var/app/org.chromium.Chromium", "~/Library/Cookies"),
            *("~/Library/Safari", "~/Library/Containers/com.apple.Safari", "~/Library/Thunderbird"),
            *(
                f"~/Library/Application Support/{browser}"
                for browser in ("Firefox", "Google/Chrome", "Chromium", "BraveSoftware", "Microsoft Edge")
            ),
        ),
    ),
    SecretPlaces(
        "messages and their sessions",
        (
            *("{config}/Slack", "{config}/discord", "{config}/Signal", "{data}/TelegramDesktop"),
            *("~/Library/Messages", "~/Library/Mail"),
            *(f"~/Library/Application Support/{program}" for program in ("Slack", "discord", "Signal")),
        ),
    ),
    SecretPlaces(
        "commands as they were typed, passwords among them",
        (
            *("~/.bash_history", "~/.zsh_history", "~/.history", "~/.sh_history", "$HISTFILE"),
            *("{data}/fish/fish_history", "~/.python_history", "~/.node_repl_history"),
            *("~/.psql_history", "~/.mysql_history", "~/.rediscli_history", "~/.sqlite_history"),
        ),
    ),
    SecretPlaces(
        "secrets of this machine",
        (
            *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/krb5.keytab"),
            *("/etc/ssl/private", "/etc/pki/tls/private", "/etc/NetworkManager/system-connections"),
            *("/run/secrets", "/var/run/secrets", "/run/credentials", "/private/etc/master.passwd"),
        ),
    ),
)


class Bases(NamedTuple):
    """The absolute directories that stand for the beginning of a template, such as `~` or `{config}`. One beginning
    may stand for several directories.
    """

    homes: Sequence[str]
    config: Sequence[str]
    data: Sequence[str]
    cache: Sequence[str]
    runtime: Sequence[str]
    variables: Mapping[str, str]


def expanded(template: str, bases: Bases) -> Iterator[str]:
    """Yields the absolute paths that a template describes. Yields nothing if the template's environment variable is
    not set or is not an absolute path.
    """
    if template.startswith("/"):
        yield template
        return
    first, slash, rest = template.partition("/")
    if first.startswith("$"):
        # KUBECONFIG is a list. In the other variables a colon is part of a name.
        value = bases.variables.get(first[1:], "")
        found: Sequence[str] = value.split(":") if first == "$KUBECONFIG" else [value]
    else:
        found = bases.homes if first == "~" else getattr(bases, first.strip("{}"))
    yield from (f"{base.rstrip('/')}{slash}{rest}" for base in found if base.startswith("/"))
