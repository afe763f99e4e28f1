"""Recognises credentials by name and by value, and chooses the environment that a tool's process may see.

A value of fewer than eight characters never counts as a known secret, so that "1" or "true" is not cut out of texts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct

from ralph.values.endpoint import header_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

T = TypeVar("T")

MIN_SECRET_CHARS = 8
"""The least length of a secret: shorter values occur in ordinary text by accident, and nobody hands out keys this
short.
"""


class Secret(Generic[T]):
    """A value that never shows itself: its `repr` hides it, and so do errors and log lines.

    Two secrets are equal if their values are.
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


Headers = Secret[tuple[tuple[str, str], ...]]
"""Header names and values, sent in this order; latin-1. Any of them may be a credential."""
NO_HEADERS: Headers = Secret(())


class Credential(Struct, frozen=True):
    """The key or token that identifies the sender to the endpoint."""

    header: str
    """The HTTP header's name, lower case."""
    value: Secret[str]
    """The header's whole value, `Bearer ` included; latin-1."""
    source: str
    """The environment variable it came from."""

    @property
    def secret(self) -> str:
        """The part that must never be shown."""
        return self.value.plain.removeprefix("Bearer ")


def credential_from(variable: str, environment: Mapping[str, str]) -> Credential | None:
    """The key in a variable; None when it is not set or empty. The variable's name tells how the key is sent.

    Raises ValueError, without the value, for a value that a header cannot carry.
    """
    text = environment.get(variable, "").strip()
    if not text:
        return None
    try:
        key = header_value(text)
    except ValueError as error:
        raise ValueError(f"{variable} {error}") from error
    if variable.endswith("_AUTH_TOKEN"):
        return Credential("authorization", Secret(f"Bearer {key}"), variable)
    return Credential("x-api-key", Secret(key), variable)


# A single word that is enough, anywhere in a word of the name (PGPASSWORD, SECRETS).
_ANYWHERE = ("SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY")
# Neighbouring words that are enough anywhere (AWS_ACCESS_KEY_ID).
_TOGETHER = ("_API_KEY_", "_PRIVATE_KEY_", "_ACCESS_KEY_", "_CONNECTION_STRING_")
# Not a prefix: GIT_AUTHOR_NAME is no credential, and WWW-Authenticate asks for one.
_AUTH_WORDS = frozenset({"AUTH", "AUTHN", "AUTHZ", "OAUTH", "OAUTH2", "AUTHORIZATION", "AUTHENTICATION"})
_LAST_WORDS = frozenset({"DSN", "PAT", "JWT", "CREDS", "COOKIE", "COOKIES", "SSHPASS"})
# Alone these are a directory, a word and a variable of every shell script.
_LAST_OF_SEVERAL = frozenset({"KEY", "PASS", "PWD"})
# Names of a place, not of its content: SSH_AUTH_SOCK, AWS_WEB_IDENTITY_TOKEN_FILE.
_PLACES = frozenset({"SOCK", "SOCKET", "FILE", "PATH", "DIR", "HOME"})
# Settings about credentials: TOKEN_LIMIT, AUTH_TYPE.
_ABOUT = frozenset(
    {"LIMIT", "COUNT", "TYPE", "BUDGET", "TTL", "URL", "URI", "HOST", "PORT", "ENDPOINT", "ENABLED", "METHOD"}
    | {"MODE", "LENGTH", "SIZE", "NAME", "REMAINING", "RESET"}
)
# MAX_OUTPUT_TOKENS and x-ratelimit-remaining-tokens count what a model reads and writes.
_COUNTED = frozenset(
    {"MAX", "MIN", "NUM", "INPUT", "OUTPUT", "THINKING", "CONTEXT", "TOTAL", "LIMIT", "REMAINING", "RESET"}
)
_KEYS_NOT_SECRET = frozenset({"PUBLIC", "CACHE", "SORT", "PRIMARY", "FOREIGN", "PARTITION", "IDEMPOTENCY"})


def looks_like_credential_name(name: str) -> bool:
    """Whether the name of a variable or a header means that its value is secret. Matches whole words."""
    words = _words(name)
    if not words or words[-1] in _PLACES:
        return False
    if is_header_list(name):
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
    return last not in _ABOUT and any(word in _AUTH_WORDS or word.endswith("TOKEN") for word in words)


def is_header_list(name: str) -> bool:
    """Whether a variable lists headers, as OTEL_EXPORTER_OTLP_HEADERS does: `name=value` pairs, the value most
    often a key.
    """
    words = _words(name)
    return words[:1] == ["OTEL"] and words[-1:] == ["HEADERS"]


def is_endpoint_name(name: str) -> bool:
    """Whether a variable names a server for requests: HTTPS_PROXY, npm_config_proxy, OPENAI_BASE_URL."""
    words = _words(name)
    return words[-1:] in (["PROXY"], ["ENDPOINT"]) or words[-2:] == ["BASE", "URL"]


def _words(name: str) -> list[str]:
    """The words of a name: `npm_config__authToken` -> NPM CONFIG AUTH TOKEN."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    return ["KEY" if word == "KEYS" else word for word in re.split(r"[^A-Z0-9]+", apart) if word]


@cache
def credential_shapes() -> re.Pattern[str]:
    """A pattern for everything that looks like a credential inside a text.

    The group `password` is set for a URL's password. The time is linear even for hostile texts, because no run of
    characters is searched twice.
    """
    return re.compile(
        r"""
          (?<![A-Za-z0-9]) (?:
              sk-ant-[\w-]{4,}
            | sk-(?=[\w-]{0,64}\d)[\w-]{20,}                # a digit: "sk-learn-..." is a package
            | gh[oprsu]_[A-Za-z0-9]{20,} | github_pat_\w{20,} | glpat-[\w-]{16,}
            | xox[abeprs]-[\w-]{10,}
            | (?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])
            | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{32,} | AIza[\w-]{30,} | hf_[A-Za-z0-9]{30,}
            | [rs]k_(?:live|test)_[A-Za-z0-9]{16,}
            | (?i:bearer|basic)\ (?=[^\s\d]{0,64}\d)[\w.~+/-]{16,}={0,2}
          )
        | (?<![\w-]) eyJ[\w-]{8,}\.[\w-]{8,}\.[\w.-]*
        | -----BEGIN\ [A-Z0-9 ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----
            [\s\S]*? (?: -----END\ [A-Z0-9 ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?----- | \Z )
        | (?<=://) [^\s/:@"'<>]{0,256} : (?P<password> [^\s/?#"'<>]{1,1024} ) @
        """,
        re.VERBOSE | re.ASCII,
    )


def looks_like_credential_value(value: str) -> bool:
    """Whether a value holds a key of a known shape, or a URL with a password."""
    return credential_shapes().search(value) is not None


def secret_header_values(headers: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The values of headers that look like a credential, by name or value."""
    for name, value in headers:
        if looks_like_credential_name(name) or looks_like_credential_value(value):
            yield from filter(None, (value, value.rpartition(" ")[2]))  # `Bearer x`: x alone is secret too


def child_environment(
    environment: Mapping[str, str],
    pass_env: Collection[str],
    secrets: Collection[str],
    withheld: Collection[str] = (),
) -> dict[str, str]:
    """The environment of a tool's process.

    It lacks all variables whose names begin with ANTHROPIC_ or are in `withheld`, and every variable that looks like a
    credential by name or value, or that contains one of `secrets`. Variables named in `pass_env` are passed in any
    case.
    """
    login_names = _login_names(environment)

    def is_harmless(name: str, value: str) -> bool:
        return not (
            name in withheld
            or name.upper().startswith("ANTHROPIC_")
            or looks_like_credential_name(name)
            or looks_like_credential_value(value)
            or (is_endpoint_name(name) and _endpoint_credential(value, login_names))
            or any(secret in value for secret in secrets)
        )

    return {
        name: value for name, value in environment.items() if name in pass_env or is_harmless(name, value)
    }


def known_secrets(environment: Mapping[str, str], extra: Iterable[str] = ()) -> frozenset[str]:
    """The values to redact: those of variables that look like a credential, and `extra` (settings, headers).

    If a value is a longer text that contains a credential (a URL, a JSON text), only the credential is redacted.
    """
    found: set[str] = set()
    login_names = _login_names(environment)
    for name, value in environment.items():
        if is_endpoint_name(name):
            found.update(_endpoint_credential(value, login_names))
        if is_header_list(name):
            found.update(_header_list_values(value))
        elif looks_like_credential_name(name):
            found.add(value.strip())
        found.update(_secret_parts(value))
    for value in extra:
        found.add(value.strip())
        found.update(_secret_parts(value))
    return frozenset(secret for secret in found if len(secret) >= MIN_SECRET_CHARS)


def _header_list_values(value: str) -> Iterator[str]:
    """The values in a list of headers, each as it is written and with percent escapes resolved, with and without its
    scheme.
    """
    for pair in value.split(","):
        sent = pair.partition("=")[2].strip()
        for form in (sent, _unquoted(sent)):
            yield from (form, form.rpartition(" ")[2])


def _login_names(environment: Mapping[str, str]) -> frozenset[str]:
    return frozenset({environment.get("USER", ""), environment.get("LOGNAME", "")})


def _endpoint_credential(url: str, login_names: Collection[str]) -> list[str]:
    """The credential inside an endpoint's address, in all its forms: `TOKEN@host`, `user:password@host`, with or
    without a scheme.

    Empty if there is none, or if it is only the user's own login name, which also occurs in the paths of the user's
    files.
    """
    found = re.match(r"(?:[a-z][a-z0-9+.-]*://)?([^/?#]*)@", url.strip(), re.IGNORECASE)
    if found is None or found[1] in login_names:
        return []
    user, _, password = found[1].partition(":")
    # With `x` or nothing for a password, the name is the token.
    secret = password if len(password) >= MIN_SECRET_CHARS else user
    return [found[1], _unquoted(found[1]), secret, _unquoted(secret)]


def _secret_parts(value: str) -> Iterator[str]:
    for match in credential_shapes().finditer(value):
        password = match["password"]
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
    """The text with percent escapes resolved, as a program that uses the URL would see it."""
    raw = text.encode("utf-8", "surrogateescape")
    plain = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), raw)
    return plain.decode("utf-8", "surrogateescape")
