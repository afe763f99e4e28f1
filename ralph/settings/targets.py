"""Makes the targets of a run, from the `[[targets]]` in a settings file or from a model and its fallbacks.

A target is a model at a server, with the keys for that server. If an entry sets a base URL, the target gets the key
from the environment only if the URL is that of the vendor. So no key is sent to a server that it is not meant for. And
nobody is billed by a vendor that the user has not named, by its API or by a model.
Errors are ValueErrors whose texts contain no secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from ralph.conversation.target import THINKING_CHOICES, Target
from ralph.machine.connecting import proxy_in_words
from ralph.settings import kinds as must_be
from ralph.settings.files import login_of_another_program, why_not_asked
from ralph.settings.kinds import about, decoded_table
from ralph.settings.tables import ModelSettings, Remark
from ralph.values.credentials import (
    NO_HEADERS,
    Credential,
    Headers,
    KeyProgram,
    Secret,
    credential_from,
    secret_header_values,
)
from ralph.values.servers import (
    ALIASES,
    ANTHROPIC,
    APIS,
    DEFAULT_BASE_URL,
    OPENAI,
    OTHER_MODELS,
    VENDORS,
    NamedModel,
    Price,
    checked_base_url,
    is_claude,
    is_default,
    is_loopback,
    named_model,
    normal_base_url,
    vendor_at,
    vendor_of,
)
from ralph.values.setting import DOLLARS, SECONDS, TEXT, Kind, at_least, one_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ralph.values.servers import Vendor

API_KEY_COMMAND = "api_key_command"
PRICE_KEYS = ("input", "output", "cache_write", "cache_read")


class TargetEntry(Struct, frozen=True):
    """One decoded entry of the list of targets. A field that is None or empty was not set."""

    name: str
    model: str
    api: str | None = None
    base_url: str | None = None
    """As the user wrote it."""
    api_key_env: tuple[str, ...] = ()
    """The variables that hold the target's keys. The keys are tried in this order."""
    api_key_command: Secret[str] | None = None
    api_key_ttl_s: float | None = None
    headers: Headers = NO_HEADERS
    max_tokens: int | None = None
    context_window: int | None = None
    thinking: str | None = None
    price: Price | None = None


class EnvironmentAccess(Struct, frozen=True):
    """The key, headers and model aliases from environment variables. All of them are for the same server."""

    credential: Credential | None
    headers: Headers
    aliases: Mapping[str, NamedModel]


class ChosenServer(Struct, frozen=True):
    """Where the requests for a model go, and the access that the environment has for that server."""

    api: str
    base_url: str
    access: EnvironmentAccess
    variable: str | None = None
    """The environment variable that has decided the base URL. None if it comes from elsewhere."""


class ServerChoice(Struct, frozen=True):
    """Chooses the server for each model. What the user has not set is None."""

    environment: Mapping[str, str]
    access: EnvironmentAccess
    """The access to Anthropic's API, or to another server that speaks it."""
    api: str | None = None
    base_url: str | None = None
    deciding: Mapping[str, str] = {}
    """The model of the user's by which the vendor is chosen, in place of a model that only a file in the working directory names."""

    def of(self, model: str) -> ChosenServer:
        """The server for a model. Without an API and a base URL, the vendor of the model decides. Raises ValueError if the base URL
        or a key in the environment is unusable.
        """
        model = self.deciding.get(model, model)
        vendor = None if is_claude(model) else vendor_of(model)
        if self.api == ANTHROPIC or (self.api is None and (vendor is None or self.base_url is not None)):
            return ChosenServer(ANTHROPIC, normal_base_url(self.base_url or DEFAULT_BASE_URL), self.access)
        return self._of_another_vendor(vendor)

    def _of_another_vendor(self, vendor: Vendor | None) -> ChosenServer:
        vendor = vendor or OPENAI
        named = self.environment.get(_OPENAI_BASE_URL, "").strip()
        variable = None
        chosen = self.base_url
        if chosen is None and named and (self.api is not None or vendor is OPENAI):
            variable = _OPENAI_BASE_URL
            with about(variable):
                chosen = checked_base_url(named)
        api = self.api or vendor.api
        base_url = normal_base_url(chosen or vendor.base_url, api)
        owner = vendor_at(base_url) or OPENAI  # the variable of OpenAI's clients, which other servers share
        credential = credential_from(owner.key_variable, self.environment, api)
        return ChosenServer(api, base_url, EnvironmentAccess(credential, NO_HEADERS, ALIASES), variable)


_OPENAI_BASE_URL = "OPENAI_BASE_URL"


# --- The keys of an entry


def _price(table: dict[str, Any]) -> Price:
    """The price in an entry. Raises ValueError unless all four numbers are given."""
    prices = decoded_table(table, dict.fromkeys(PRICE_KEYS, DOLLARS), PRICE_KEYS, "a price")
    return Price(**prices, cache_write_1h=prices["cache_write"])  # ralph writes 5-minute caches only


def _command(text: str) -> Secret[str]:
    if not text.strip() or "\0" in text:
        raise ValueError("must be a shell command that prints the key")
    return Secret(text.strip())


_LIST = Kind(
    Annotated[list[dict[str, Any]], Meta(min_length=1)],
    "a list of tables, each under its own [[targets]]; without any, leave it out",
    is_secret=True,
)
KINDS: dict[str, Kind] = {
    "name": must_be.TARGET_NAME,
    "model": TEXT,
    "api": one_of(*APIS),
    "base_url": must_be.BASE_URL,
    "api_key_env": must_be.KEY_VARIABLES,
    API_KEY_COMMAND: Kind(str, "a shell command that prints the key", _command, is_secret=True),
    "api_key_ttl_s": SECONDS,
    "headers": must_be.HEADERS,
    "max_tokens": at_least(1),
    "context_window": at_least(1),
    "thinking": one_of(*THINKING_CHOICES),
    "price": Kind(dict[str, Any], f"a table of {', '.join(PRICE_KEYS)}, in USD per million tokens", _price),
}


def read_entries(raw: object) -> tuple[TargetEntry, ...]:
    """Decodes the list of targets. If an entry is wrong, raises ValueError with the entry's name, or with its
    number, counted from 1.
    """
    entries = tuple(_entry(table, number) for number, table in enumerate(_LIST.decoded(raw), start=1))
    numbers: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        first = numbers.setdefault(entry.name, number)
        if first != number:
            raise ValueError(f"entries {first} and {number} have the same name {entry.name!r}")
    return entries


def _entry(table: dict[str, Any], number: int) -> TargetEntry:
    try:
        label = repr(must_be.TARGET_NAME.decoded(table.get("name")))
    except ValueError:
        label = f"entry {number}"
    with about(f"{label}:"):
        return TargetEntry(**decoded_table(table, KINDS, ("name", "model"), "a target"))


# --- The entries in use


def with_first(entries: tuple[TargetEntry, ...], name: str) -> tuple[TargetEntry, ...]:
    """The entry called `name`, followed by the other entries in their order. Raises ValueError if no entry has this
    name.
    """
    first = _named(entries, name)
    return (first, *(entry for entry in entries if entry is not first))


def with_fallbacks(entries: tuple[TargetEntry, ...], names: Iterable[str]) -> tuple[TargetEntry, ...]:
    """The first entry, followed by the entries called `names`, in the order of `names`. All others are dropped.
    Raises ValueError if a name is unknown.
    """
    chosen = (entries[0], *(_named(entries, name) for name in names))
    return tuple({entry.name: entry for entry in chosen}.values())


def _named(entries: tuple[TargetEntry, ...], name: str) -> TargetEntry:
    for entry in entries:
        if entry.name == name:
            return entry
    listed = ", ".join(sorted(entry.name for entry in entries))
    raise ValueError(f"must name a target ({listed}), not {name!r}")


# --- The targets that are made from the entries


def implicit_targets(
    model: ModelSettings, first: NamedModel, fallbacks: Iterable[str], servers: ServerChoice
) -> tuple[Target, ...]:
    """The targets of a run without `[[targets]]`: one for the model `first`, then one for each fallback model,
    under the name that the user wrote. A model that occurs twice gets only one target.

    If the user has named an API or a server, all targets are there.
    """
    chosen = {first.id: (first.id, first)}
    for name in fallbacks:
        fallback = named_model(name, servers.access.aliases)
        chosen.setdefault(fallback.id, (name, fallback))
    return tuple(_implicit(name, named, model, servers.of(named.id)) for name, named in chosen.values())


def _implicit(name: str, named: NamedModel, model: ModelSettings, server: ChosenServer) -> Target:
    return Target(
        name=name,
        model=named.id,
        base_url=server.base_url,
        credentials=(server.access.credential,) if server.access.credential else (),
        headers=server.access.headers,
        max_tokens=model.max_tokens,
        effort=model.effort,
        context_window=named.context_window,
        api=server.api,
    )


def explicit_target(entry: TargetEntry, model: ModelSettings, servers: ServerChoice) -> Target:
    """The target of an entry of `[[targets]]`. Raises ValueError if a variable in `api_key_env` contains no key, or if the
    name of a model is invalid. The error names the target.
    """
    uses_access = entry.base_url is None and not entry.api_key_env and entry.api_key_command is None
    with about(f"{entry.name!r}: model"):
        # The environment's aliases are meant for the environment's server only.
        named = named_model(entry.model, servers.access.aliases if entry.base_url is None else ALIASES)
    if entry.api not in {None, servers.api or ANTHROPIC}:
        servers = replace(servers, base_url=None)  # it is that of a server with another API
    servers = replace(servers, api=entry.api or servers.api, base_url=entry.base_url or servers.base_url)
    with about(f"{entry.name!r}:"):
        server = servers.of(named.id)
    inherited = server.access.headers.plain if uses_access else ()
    own = {name.lower() for name, _ in entry.headers.plain}
    return Target(
        name=entry.name,
        model=named.id,
        base_url=server.base_url,
        credentials=tuple(_keys(entry, server, servers.environment)),
        headers=Secret(
            (*(header for header in inherited if header[0].lower() not in own), *entry.headers.plain)
        ),
        max_tokens=entry.max_tokens or model.max_tokens,
        effort=model.effort,
        context_window=entry.context_window or named.context_window,
        thinking=entry.thinking,
        price=entry.price,
        api=server.api,
    )


def _keys(entry: TargetEntry, server: ChosenServer, environment: Mapping[str, str]) -> Iterable[Credential]:
    if entry.api_key_command is not None:
        if entry.api_key_env:
            raise ValueError(f"{entry.name!r}: api_key_env and api_key_command cannot be used together")
        program = KeyProgram(API_KEY_COMMAND, f"target {entry.name!r}", entry.api_key_command)
        if entry.api_key_ttl_s is not None:
            program = replace(program, ttl_s=entry.api_key_ttl_s)
        header = "x-api-key" if server.api == ANTHROPIC else "authorization"
        return (Credential(header, Secret(""), API_KEY_COMMAND, program),)
    if not entry.api_key_env:
        is_meant_for = entry.base_url is None or _needs_key(server.api, server.base_url)
        return (server.access.credential,) if server.access.credential and is_meant_for else ()
    keys: dict[str, Credential] = {}
    for variable in entry.api_key_env:
        with about(f"{entry.name!r}:"):
            credential = credential_from(variable, environment, server.api)
        if credential is None:
            raise ValueError(f"{entry.name!r}: api_key_env names {variable}, which is not set or empty")
        keys.setdefault(credential.secret, credential)
    return keys.values()


# --- Secrets and checks of all targets


def entry_secrets(entries: Iterable[TargetEntry], environment: Mapping[str, str]) -> Iterator[str]:
    """The keys and the secret headers of all entries, including entries that are not used."""
    for entry in entries:
        yield from filter(None, (environment.get(variable, "").strip() for variable in entry.api_key_env))
        yield from secret_header_values(entry.headers.plain)


def missing_key(targets: tuple[Target, ...], environment: Mapping[str, str]) -> str | None:
    """An error message about the first target that needs a key but has none, or None. Only the vendors' own servers
    need a key.
    """
    for target in targets:
        if target.secrets or not _needs_key(target.api, target.base_url):
            continue
        variable, elsewhere, offer = (
            "ANTHROPIC_API_KEY",
            login_of_another_program(environment),
            _offer(environment),
        )
        if target.api != ANTHROPIC and (owner := vendor_at(target.base_url)) is not None:
            variable, elsewhere, offer = owner.key_variable, "", ""
        if len(targets) == 1:
            return (
                f"no API key{elsewhere}: set {variable},{offer} point --base-url at a local server, or try "
                "`ralph demo`"
            )
        return (
            f"no API key for target {target.name!r}{elsewhere}: set {variable}, name the variable that holds it in "
            "api_key_env, or point its base_url at a local server"
        )
    return None


def _needs_key(api: str, base_url: str) -> bool:
    return is_default(base_url) if api == ANTHROPIC else vendor_at(base_url) is not None


def _offer(environment: Mapping[str, str]) -> str:
    for vendor in VENDORS:
        if environment.get(vendor.key_variable, "").strip():
            model = next(name for name in OTHER_MODELS if vendor_of(name) is vendor)
            return f" ask {vendor.name}, for which {vendor.key_variable} is set, by `--model {model}`,"
    return ""


def meant_for_another_cloud(targets: Iterable[Target], environment: Mapping[str, str]) -> str | None:
    """The reason why the key of the first target with a key must not be sent to this target. None if it may be
    sent, or if no target has a key.
    """
    asked = next((target.base_url for target in targets if target.secrets and target.api == ANTHROPIC), None)
    return None if asked is None else why_not_asked(environment, asked)


def plain_http_remarks(
    sent: Iterable[tuple[str, Sequence[str]]], environment: Mapping[str, str]
) -> tuple[Remark, ...]:
    """A remark for each host to which ralph would send a key without encryption. `sent` are URLs, each with the
    keys that go there.
    """
    hosts = {
        url.split("/")[2]: proxy_in_words(url, environment)
        for url, secrets in sent
        if secrets and url.startswith("http:") and not is_loopback(url)
    }
    return tuple(
        Remark(
            f"the key is sent unencrypted: {host} is not this machine, and the base URL is not https"
            + (f"; {proxy} gets it too" if proxy else ""),
            "use an https:// URL",
        )
        for host, proxy in hosts.items()
    )
