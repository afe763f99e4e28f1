"""Recognises credentials by name and by value. Chooses the environment variables that a tool's process may see.

A value of fewer than eight characters is never treated as a known secret. Otherwise every "1" or "true" in a text
could be redacted.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from ralph.values.servers import ANTHROPIC, header_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

T = TypeVar("T")

MIN_SECRET_CHARS = 8
"""The minimum length of a secret. Shorter values occur in ordinary text by accident, and no service issues keys
this short."""


_RANDOM_CHARS = 20
# A list of addresses has spaces (pip, uv), commas or bars (Go) between them.
_BETWEEN_ADDRESSES = r"[\s,|]+(?=\S*://)"
# Assignments in connection strings, addresses and options of Java, in lower case.
_ASSIGNMENTS = ("password", "passwd", "pwd", "accountkey", "sharedaccesskey", "sig=", "signature=")
_ASSIGNED = r"(?:passwor|passw|;\s*pw)d|(?:account|sharedaccess)key|[?&](?:sig|x-amz-signature)"
_VALUE_ASSIGNED = (
    rf"""(?i)(?:{_ASSIGNED})\s*=\s*(?:(["'])(?!\$)(?P<quoted>.+?)\1|(?P<plain>[^\s;&'"$][^\s;&'"]*))"""
)
_WEBHOOKS = (
    r"(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks|\.webhook\.office\.com"
    r"|\.infura\.io/v3|\.alchemy\.com/v2|api\.telegram\.org)(/[^\s?#\"']+)"
)
"""Addresses of which the path is the credential (documentation of Slack, Discord, Teams, Infura, Alchemy and Telegram)."""
_PUBLIC_PASSWORDS = frozenset({"x-oauth-basic"})
"""Passwords beside a token in the place of the user's name (GitHub's documentation)."""
# These alone say little of a variable, but they say what an option's or a query's value is.
_ALONE = frozenset({"k", "key", "pass", "pw", "pwd", "sig", "signature"})
_USER_OPTIONS = frozenset({"u", "user"})
_VALUE_IN_LINE = r"""([\w.-]+)["']?[ \t]*[=: \t][ \t]*["']?([^\s"',;{}\[\]]+)"""
_WORD = r"[a-z]+|[A-Z]+-*"
_JSON_MEMBER = r'"([^"\\]+)"\s*:\s*("(?:[^"\\]|\\.)+")'
_NAMED_VALUE = r"(?s)-*(?P<name>[A-Za-z][\w.-]*)(?:=|:(?!//))(?P<value>.*)"


class Secret(Generic[T]):
    """A wrapper whose `repr` does not show the value, so that the value cannot get into errors or log lines by
    accident.

    Two secrets are equal if their values are equal.
    """

    __slots__ = ("plain",)

    def __init__(self, plain: T) -> None:
        self.plain = plain

    def __repr__(self) -> str:
        return "Secret()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.plain == other.plain

    def __hash__(self) -> int:
        return hash(self.plain)


TURN_LOCK = "RALPH_TURN_LOCK"
"""The environment variable with the path of the lock that another program shares with ralph."""
SANDBOX_READ = "RALPH_SANDBOX_READ"
"""The environment variable with paths that the program that starts ralph lets commands read."""
SANDBOX_HIDE = "RALPH_SANDBOX_HIDE"
"""The environment variable with paths that the program that starts ralph hides from commands and tools."""
CALLERS_VARIABLES = frozenset({TURN_LOCK, SANDBOX_READ, SANDBOX_HIDE})


def callers_places(variable: str, text: str) -> tuple[str, ...]:
    """The paths in the text of a variable such as `SANDBOX_READ`, separated by colons. Raises ValueError if one is
    not absolute.
    """
    places = tuple(filter(None, text.split(":")))
    for place in places:
        if not place.startswith("/"):
            raise ValueError(f"{variable} must contain absolute paths, not {place!r}")
    return places


Headers = Secret[tuple[tuple[str, str], ...]]
"""The names and values of headers (latin-1), in the order in which they are sent. Any value may be a credential."""
NO_HEADERS: Headers = Secret(())


class KeyProgram(Struct, frozen=True):
    """A shell command of the user's that prints the key for a server."""

    setting: str
    origin: str
    command: Secret[str]
    ttl_s: float = 300.0
    """The time after which it is run again before a request, in seconds. With 0, it is run again only after a refused key."""


class Credential(Struct, frozen=True):
    """The key or token that ralph sends to the endpoint."""

    header: str
    """The name of the HTTP header that carries the credential, in lower case."""
    value: Secret[str]
    """The whole value of the header (latin-1), including `Bearer `."""
    source: str
    """The name of the environment variable that holds the key or token, or of the setting that names its program."""
    program: KeyProgram | None = None
    """The program that prints the key. `value` is empty until it has run. None if the key does not change."""
    file: str | None = None
    """The settings file for Claude Code that sets the variable, or None if the environment does."""

    @property
    def place(self) -> str:
        """Where the user changes the key: `source`, and the file or the target that has it."""
        owner = self.file if self.program is None else self.program.origin
        return self.source if owner is None else f"{self.source} of {owner}"

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The headers that carry the key. That of a program is sent in both, as Claude Code does with `apiKeyHelper`."""
        own = (self.header, self.value.plain)
        return (own,) if self.program is None else (own, ("authorization", f"Bearer {self.secret}"))

    @property
    def secret(self) -> str:
        """The key or token. If the header's value begins with `Bearer `, that word is left out."""
        return self.value.plain.removeprefix("Bearer ")


def credential_from(variable: str, environment: Mapping[str, str], api: str = ANTHROPIC) -> Credential | None:
    """The credential in an environment variable. None if the variable is not set or is empty.

    The API and the variable's name decide which header carries the key. Raises ValueError if a header cannot carry
    the value. The error does not contain the value.
    """
    text = environment.get(variable, "").strip()
    if not text:
        return None
    try:
        key = header_value(text)
    except ValueError as error:
        raise ValueError(f"{variable} {error}") from error
    if api != ANTHROPIC or variable.endswith("_AUTH_TOKEN"):
        return Credential("authorization", Secret(f"Bearer {key}"), variable)
    return Credential("x-api-key", Secret(key), variable)


# A name that contains one of these texts anywhere is a credential's (PGPASSWORD, SECRETS).
_ANYWHERE = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY")
# A name that contains these neighbouring words anywhere is a credential's (AWS_ACCESS_KEY_ID).
_TOGETHER = (
    "_API_KEY_",
    "_PRIVATE_KEY_",
    "_ACCESS_KEY_",
    "_CONNECTION_STRING_",
    "_WEBHOOK_URL_",
    "_SEED_PHRASE_",
)
# These are compared as whole words, because GIT_AUTHOR_NAME is not a credential. AUTHENTICATE is missing, because the
# header WWW-Authenticate only asks for a credential.
_AUTH_WORDS = frozenset(
    {"AUTH", "AUTHN", "AUTHZ", "OAUTH", "OAUTH2", "AUTHORIZATION", "AUTHENTICATION", "TOTP"}
)
_LAST_WORDS = frozenset(
    {
        "BEARER",
        "DSN",
        "PAT",
        "JWT",
        "CREDS",
        "COOKIE",
        "COOKIES",
        "WEBHOOK",
        "MNEMONIC",
    }
)
# These words mark a credential only at the end of a longer name, such as DB_PASS, or NEXUS_PSW (Jenkins). Alone, PWD is a
# directory, and the others are ordinary names.
_LAST_OF_SEVERAL = frozenset({"KEY", "PASS", "PWD", "PW", "PSW"})
# As words of their own in one: ROOTPASS, BINDPW, PRIVATEKEY.
_BEFORE_PASS = frozenset(
    "ADMIN ROOT USER FTP PG MYSQL POSTGRES REDIS SMTP MAIL IMAP LDAP BIND DB KEY KEYSTORE STORE SUDO RPC PROXY SSH".split()
)
_BEFORE_KEY = frozenset("PRIVATE PRIV ACCESS WRITE ENCRYPTION DEPLOY OPENAI LICENSE".split())
_JOINED = {"PASS": _BEFORE_PASS, "PWD": _BEFORE_PASS, "PW": _BEFORE_PASS, "KEY": _BEFORE_KEY}
# One of several credentials may have a number or one of these behind its name: OPENAI_API_KEY2, DB_PASS_PROD, SSH_KEY_BASE64.
_QUALIFIERS = frozenset(
    {"PROD", "PRODUCTION", "DEV", "DEVELOPMENT", "TEST", "LIVE", "STAGING", "STAGE", "OLD", "NEW", "BACKUP"}
    | {"MAIN", "PRIMARY", "SECONDARY", "FALLBACK", "RO", "RW", "READONLY", "RSA", "ED25519", "ECDSA"}
    | {"B64", "BASE64", "HEX", "PEM", "RAW", "JSON", "ENC"}
)
# A name that ends with one of these says where a credential is, not the credential itself: SSH_AUTH_SOCK,
# AWS_WEB_IDENTITY_TOKEN_FILE.
_PLACES = frozenset({"SOCK", "SOCKET", "FILE", "PATH", "DIR", "HOME"})
# A name that ends with one of these is a setting about credentials: TOKEN_LIMIT, AUTH_TYPE.
_ABOUT = frozenset(
    {"LIMIT", "COUNT", "TYPE", "BUDGET", "TTL", "URL", "URI", "HOST", "PORT", "ENDPOINT", "ENABLED", "METHOD"}
    | {"MODE", "LENGTH", "SIZE", "NAME", "REMAINING", "RESET"}
)
# MAX_OUTPUT_TOKENS and x-ratelimit-remaining-tokens count the tokens of a model.
_COUNTED = frozenset(
    {
        "MAX",
        "MIN",
        "NUM",
        "CTX",
        "INPUT",
        "OUTPUT",
        "THINKING",
        "CONTEXT",
        "TOTAL",
        "LIMIT",
        "REMAINING",
        "RESET",
    }
)
# A setting of git is in two variables with a number (git-config(1), GIT_CONFIG_COUNT).
_GIT_VALUE, _NAME_FOR_GIT = "GIT_CONFIG_VALUE_", ("GIT", "CONFIG", "KEY")
# Bundler's names for the credentials of a host, with `__` for each dot (bundler.io/man/bundle-config.1.html), but not those of
# its other settings with a dot. The 1Password and Bitwarden programs keep an open vault's key in the other two.
_NAMES_OF_PROGRAMS = r"BUNDLE_(?!BUILD__|LOCAL__|MIRROR__|GEM__(?!.*__)).*__.*|OP_SESSION_.*|BW_SESSION"
_ENDPOINTS = frozenset({"PROXY", "GOPROXY", "ENDPOINT", "INDEX", "REGISTRY", "MIRROR"})
_ENDPOINTS_OF_TWO = (("BASE", "URL"), ("INDEX", "URL"), ("FIND", "LINKS"))
_KEYS_NOT_SECRET = frozenset({"PUBLIC", "CACHE", "SORT", "PRIMARY", "FOREIGN", "PARTITION", "IDEMPOTENCY"})


def looks_like_credential_name(name: str) -> bool:
    """Whether the name of a variable or a header suggests that its value is secret."""
    words = _words(name)
    # Without what tells one of several credentials from the others. At least one word is left.
    while len(words) > 1 and (words[-1] in _QUALIFIERS or words[-1].rstrip("0123456789") in ("", "V")):
        words = words[:-1]
    words = (*words[:-1], *(last.rstrip("0123456789") or last for last in words[-1:]))
    if not words or words[-1] in _PLACES or words == _NAME_FOR_GIT:
        return False
    if is_header_list(name) or (name.startswith(("B", "O")) and re.fullmatch(_NAMES_OF_PROGRAMS, name)):
        return True
    joined = f"_{'_'.join(words)}_"
    if any(part in joined for part in (*_ANYWHERE, *_TOGETHER)):
        return True
    last = words[-1]
    if last == "TOKENS":
        return _COUNTED.isdisjoint(words)
    if last in _LAST_OF_SEVERAL:
        return len(words) > 1 and words[-2] not in _KEYS_NOT_SECRET
    if last in _LAST_WORDS or last.endswith("AUTHKEY"):
        return True
    if any(last.removesuffix(end) in before for end, before in _JOINED.items() if last.endswith(end)):
        return True
    return last not in _ABOUT and any(word in _AUTH_WORDS or word.endswith("TOKEN") for word in words)


def credential_files(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields the absolute paths in variables whose name says that a credential is there: RESTIC_PASSWORD_FILE, VAULT_CLIENT_KEY."""
    for name, value in environment.items():
        *before, last = _words(name) or ("",)
        is_named = looks_like_credential_name("_".join(before) if last in _PLACES else name)
        if is_named and value.startswith("/"):
            yield value


def is_header_list(name: str) -> bool:
    """Whether a variable with this name, such as OTEL_EXPORTER_OTLP_HEADERS, holds a list of headers: `name=value`
    pairs, most of whose values are keys.
    """
    words = _words(name)
    return words[:1] == ("OTEL",) and words[-1:] == ("HEADERS",)


def is_endpoint_name(name: str) -> bool:
    """Whether a variable with this name holds addresses of servers. Examples are HTTPS_PROXY, npm_config_registry and
    OPENAI_BASE_URL. If only one word precedes the host in them, it is a key, because such a server knows no users' names.
    """
    words = _words(name)
    return not _ENDPOINTS.isdisjoint(words[-1:]) or words[-2:] in _ENDPOINTS_OF_TWO


@lru_cache(256)
def _words(name: str) -> tuple[str, ...]:
    """Splits a name into words in upper case: `npm_config__authToken` gives NPM, CONFIG, AUTH, TOKEN."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return tuple("KEY" if word == "KEYS" else word for word in re.split(r"[^A-Z0-9]+", apart) if word)


_PEM_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
SHAPES = (
    (("sk-",), r"(?<![A-Za-z0-9])sk-ant-[\w-]{4,}"),
    # a digit: "sk-learn-..." is a package
    (("sk-",), r"(?<![A-Za-z0-9])sk-(?=[\w-]{0,64}\d)[\w-]{20,}"),
    (("gho_", "ghp_", "ghr_", "ghs_", "ghu_"), r"(?<![A-Za-z0-9])gh[oprsu]_[A-Za-z0-9]{20,}"),
    (("github_pat_",), r"(?<![A-Za-z0-9])github_pat_\w{20,}"),
    (("glpat-",), r"(?<![A-Za-z0-9])glpat-[\w-]{16,}"),
    (("xox",), r"(?<![A-Za-z0-9])xox[abeprs]-[\w-]{10,}"),
    (("akia", "asia"), r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    (("npm_",), r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{30,}"),
    (("pypi-",), r"(?<![A-Za-z0-9])pypi-[\w-]{32,}"),
    (("aiza",), r"(?<![A-Za-z0-9])AIza[\w-]{30,}"),
    (("hf_",), r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{30,}"),
    (("xai-",), r"(?<![A-Za-z0-9])xai-[A-Za-z0-9]{30,}"),
    (("gsk_",), r"(?<![A-Za-z0-9])gsk_[A-Za-z0-9]{30,}"),
    (
        (
            "hvs.",
            "dop_v1_",
            "shpat_",
            "dckr_pat_",
            "gocspx-",
            "ya29.",
            "glrt-",
            "atatt3",
            "lin_api_",
            "ntn_",
            "pplx-",
        ),
        r"(?<![A-Za-z0-9])(?:hvs\.|dop_v1_|shpat_|dckr_pat_|GOCSPX-|ya29\.|glrt-|ATATT3|lin_api_|ntn_|pplx-)[\w-]{20,}",
    ),
    (("age-secret-key-1",), r"AGE-SECRET-KEY-1[A-Z0-9]{40,}"),
    (("k_live_", "k_test_"), r"(?<![A-Za-z0-9])[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    (
        ("bearer ", "basic "),
        r"(?<![A-Za-z0-9])(?i:bearer|basic) (?=[^\s\d]{0,64}\d)[\w.~+/-]{16,}={0,2}",
    ),
    (("eyj",), r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w.-]*"),
    (("-----begin ",), rf"-----BEGIN {_PEM_LABEL}[\s\S]*?(?:-----END {_PEM_LABEL}|\Z)"),
    (("@",), r"""(?<=://)[^\s/:@"'<>]{0,256}:(?P<password>[^\s/?#"'<>]{1,1024})@"""),
)
"""The forms of credentials. Each form is a regular expression with some marks, which are texts in lower case. If a
text contains none of the marks, it contains no credential of this form."""
_MARKED = [(mark, form) for marks, form in SHAPES for mark in marks]
_WITHOUT_JOINT = [(mark, form) for mark, form in _MARKED if not re.search("[-_]", mark)]
_LONG_CHARS = 500
"""From this length on, one regular expression for all marks with a hyphen or an underscore saves time."""


def credentials_in(text: str) -> Iterable[re.Match[str]]:
    """Everything in the text that looks like a credential, in order.

    A match inside a URL may have a group `password`, which contains the password. The search takes linear time even
    for hostile texts, because no run of characters is searched twice.
    """
    lowered = text.lower()
    # Compiling a form takes longer than searching many texts for its marks. A page searches 100,000 texts, so this is one
    # comprehension, and nearly all texts are searched for marks only.
    is_jointless = len(lowered) >= _LONG_CHARS and _joint_of_mark().search(lowered) is None
    forms = [form for mark, form in (_WITHOUT_JOINT if is_jointless else _MARKED) if mark in lowered]
    return _compiled(tuple(dict.fromkeys(forms))).finditer(text) if forms else ()


@cache
def _joint_of_mark() -> re.Pattern[str]:
    """Finds the first hyphen or underscore of any mark. These are rare, so the search takes a fifth of the time of
    a search for each mark.
    """
    marks = {mark for mark, _ in _MARKED} - {mark for mark, _ in _WITHOUT_JOINT}
    split = [re.split("(?<=[-_])", mark, maxsplit=1) for mark in sorted(marks)]
    return re.compile(f"[-_](?:{'|'.join(f'(?<={before}){after}' for before, after in split)})")


@lru_cache(64)
def _compiled(forms: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(forms), re.ASCII)


def looks_like_credential_value(value: str) -> bool:
    """Whether a value contains a key of a known form, or a URL with a password."""
    return any(True for _ in credentials_in(value))


def secret_header_values(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the secret values in `headers`: those that look like a credential, or whose header's name looks like
    the name of one.

    If a secret value has several words, such as `Bearer x`, its last word is yielded too.
    """
    for name, value in headers:
        if looks_like_credential_name(name) or looks_like_credential_value(value):
            yield from filter(None, (value, value.rpartition(" ")[2]))


def address_secrets(url: str) -> Iterator[str]:
    """Yields the secret parts of a server's address: user and password, and parts of the path and values of the query that look
    like credentials. A value of the query is one too if its name says so. Each also comes with percent escapes decoded.
    """
    yield from _endpoint_credential(url, ())
    address, _, fragment = url.partition("#")
    place, _, query = address.partition("?")
    parts = [part for part in place.split("/")[3:] if _looks_random(part)]
    for name, _, value in (pair.partition("=") for pair in f"{query}&{fragment}".split("&")):
        is_named = name.lower() in _ALONE or looks_like_credential_name(name)
        if is_named or looks_like_credential_value(value) or _looks_random(value):
            parts.append(value)
    for part in parts:
        yield from (part, _unquoted(part))


def _looks_random(text: str) -> bool:
    """Whether a part of an address is long and mixes letters and digits, as keys do and words do not."""
    return len(text) >= _RANDOM_CHARS and sum(map(str.isdigit, text)) > 2 and sum(map(str.isalpha, text)) > 2


def argument_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the secret parts of a program's arguments: the value of an option, a variable or a header with the name of a
    credential (`--api-key K`, `--token=K`, `API_KEY=K`, `Authorization: K`), and those of addresses, of connection strings and of
    JSON.
    """
    for argument, after in zip(arguments, (*arguments[1:], ""), strict=False):
        if "://" in argument:
            yield from address_secrets(argument[argument.rfind("=", 0, argument.index("://")) + 1 :])
        yield from _secrets_of("", argument, ())
        for name, text in re.findall(_JSON_MEMBER, argument):
            value = _unescaped(text)
            yield from secret_header_values([(name, value)])
            yield from argument_secrets(value.split("\n"))  # a list of headers
        found = re.match(_NAMED_VALUE, argument)
        if found is not None:
            yield from secret_header_values([(found["name"], found["value"].strip())])
        elif argument.startswith("-"):
            name = argument.lstrip("-")
            yield from secret_header_values([(name, after)])
            yield from [after] if name in _ALONE and any(map(str.isdigit, after)) else []
            yield from filter(None, [after.partition(":")[2] if name in _USER_OPTIONS else ""])
        elif looks_like_credential_value(argument):
            yield argument


def line_secrets(line: str) -> Iterator[str]:
    """As `argument_secrets`, for a line of shell."""
    try:
        split = shlex.shlex(line, posix=True, punctuation_chars=True)
        split.whitespace_split, split.commenters = True, ""
        words = list(split)
    except ValueError:
        words = line.split()
    return argument_secrets(words)


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def child_environment(
    environment: Mapping[str, str],
    pass_env: Collection[str],
    secrets: Collection[str],
    withheld: Collection[str] = (),
) -> dict[str, str]:
    """The environment for a tool's process: the variables named in `pass_env`, and all that are harmless.

    A variable is not harmless if its name begins with ANTHROPIC_, is in `CALLERS_VARIABLES` or `withheld`, or looks
    like a credential's, or if its value contains one of `secrets` or something else that `_secrets_of` finds.
    """
    login_names = _login_names(environment)

    def is_harmless(name: str, value: str) -> bool:
        return not (
            name in withheld
            or name in CALLERS_VARIABLES
            or name.upper().startswith("ANTHROPIC_")
            or looks_like_credential_name(name)
            or any(secret in value for secret in secrets)
            or any(True for _ in _secrets_of(name, value, login_names))
        )

    kept = {
        name: value for name, value in environment.items() if name in pass_env or is_harmless(name, value)
    }
    # Without one of them, git does not start.
    for name in environment.keys() - kept.keys():
        if name.startswith(_GIT_VALUE):
            kept |= {name: "", name.replace(_GIT_VALUE, "GIT_CONFIG_KEY_"): "ralph.withheld"}
    return kept


def known_secrets(environment: Mapping[str, str], extra: Iterable[str] = ()) -> frozenset[str]:
    """The values that must be redacted: the credentials in environment variables, and the secrets in `extra`.

    `extra` holds secrets from settings and headers. If the name of a variable looks like a credential, its whole
    value is redacted. Otherwise, only credentials inside the value are redacted, for example in a URL or a JSON text.
    Values of fewer than `MIN_SECRET_CHARS` characters are left out.
    """
    found: set[str] = set()
    login_names = _login_names(environment)
    for name, value in environment.items():
        found.update(_secrets_of(name, value, login_names))
    for value in extra:
        found.add(value.strip())
        found.update(_secret_parts(value))
    return frozenset(secret for secret in found if len(secret) >= MIN_SECRET_CHARS)


def _secrets_of(name: str, value: str, login_names: Collection[str]) -> Iterator[str]:
    if is_header_list(name):
        yield from _header_list_values(value)
    elif looks_like_credential_name(name):
        yield value.strip()
        yield from _secrets_of_file(value)
        if name.startswith("BUNDLE_"):
            yield from _endpoint_credential(f"{value}@", ())
    if "@" in value and is_endpoint_name(name):
        for address in re.split(_BETWEEN_ADDRESSES, value):
            yield from _endpoint_credential(address, login_names)
    lowered = value.lower()
    if any(mark in lowered for mark in _ASSIGNMENTS):
        for text in dict.fromkeys((value, _unquoted(value))):
            for found in re.finditer(_VALUE_ASSIGNED, text):
                whole = found["quoted"] or found["plain"]
                yield from (whole, whole.partition(",")[0])
    if "://" in value:
        yield from re.findall(_WEBHOOKS, value)
    if value.startswith(("{", "[")):
        for member, text in re.findall(_JSON_MEMBER, value):
            yield from (
                () if re.fullmatch(_WORD, text[1:-1]) else secret_header_values([(member, _unescaped(text))])
            )
    yield from _secret_parts(value)


def _secrets_of_file(text: str) -> Iterator[str]:
    """Yields what is secret in the lines of a file that is a secret as a whole, such as `.netrc` and a kubeconfig: listings and diffs
    begin each line in their own way. What every such file may have, such as a name or a word, is not.
    """
    if "\n" not in text.strip():
        return
    for name, value in re.findall(_VALUE_IN_LINE, text):
        if looks_like_credential_name(name) and not re.fullmatch(_WORD, value):
            yield value
    for word in re.findall(r"[\w+/-]{20,}={0,2}", text):
        if re.search(r"\d", word) and re.search(r"[a-z]", word) and re.search(r"[A-Z]|^[\da-f]+$", word):
            yield word


def _header_list_values(value: str) -> Iterator[str]:
    """Yields the values in a list of headers, each in four forms that may be equal."""
    for pair in value.split(","):
        sent = pair.partition("=")[2].strip()
        for form in (sent, _unquoted(sent)):
            yield from (form, form.rpartition(" ")[2])


def _login_names(environment: Mapping[str, str]) -> frozenset[str]:
    return frozenset({environment.get("USER", ""), environment.get("LOGNAME", "")})


def _endpoint_credential(url: str, login_names: Collection[str]) -> list[str]:
    """The credential in a server's address, both as written and with percent escapes decoded. The address is
    `TOKEN@host` or `user:password@host`, with or without a scheme, or has a name as in `UV_INDEX`
    (`name=https://TOKEN@host`).

    Empty if there is no credential, or if the text before the `@` is only the user's own login name, because that
    name occurs in the paths of the user's files.
    """
    if "@" not in url:
        return []
    found = re.match(r"(?:(?:[\w.-]+=)?[a-z][a-z0-9+.-]*://)?([^/?#]*)@", url.strip(), re.IGNORECASE)
    if found is None or found[1] in login_names:
        return []
    user, _, password = found[1].partition(":")
    # If the password is as short as `x`, or empty, the user name is the token.
    is_password = len(password) >= MIN_SECRET_CHARS and password not in _PUBLIC_PASSWORDS
    secret = password if is_password else user
    return [found[1], _unquoted(found[1]), secret, _unquoted(secret)]


def _secret_parts(value: str) -> Iterator[str]:
    for match in credentials_in(value):
        password = match.groupdict().get("password")
        if password is not None:
            yield password
            yield _unquoted(password)
            continue
        secret = match[0]
        yield secret
        scheme, _, token = secret.partition(" ")
        if scheme.lower() in {"bearer", "basic"}:
            yield token
        if secret.startswith("-----"):  # a diff or an indented copy shows a key line by line
            lines = secret.replace("\\n", "\n").split("\n")
            yield from (line.strip() for line in lines if "-----" not in line)


def _unquoted(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    plain = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), raw)
    return plain.decode("utf-8", "surrogateescape")
