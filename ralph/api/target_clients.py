"""A client for all targets of a run. It implements the port `Client` of the retry loop. For each endpoint and key, it
makes an HTTP client when that client is first needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from ralph.api.client import ApiClient, Endpoint, host_of
from ralph.api.network_causes import shortage_error
from ralph.api.transport import build_transport, httpx
from ralph.values.classify import is_bad_key
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import AgentError, Api, NetworkCause
from ralph.values.servers.endpoint import ANTHROPIC, DEFAULT_BASE_URL, host_in
from ralph.values.shortage import shortage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ralph.api.clocks import ClockLimits
    from ralph.conversation.messages import RequestBody
    from ralph.conversation.target import ModelDescription, Target
    from ralph.values.answer import Answer
    from ralph.values.ports import Clock, Events, Waiter


class HttpSettings(Struct, frozen=True):
    """The settings and ports that all HTTP clients share. `redact` removes credentials from the texts in errors."""

    ca_file: str | None
    limits: ClockLimits
    waiter: Waiter
    clock: Clock
    redact: Callable[[str], str]
    keys: Keys | None = None
    """The keys that programs of the user print. None if there is no such program."""


class Keys(Protocol):
    def current(self, credential: Credential) -> Credential:
        """The credential as it is sent with the next request. May run a program. Raises only `Interrupted`."""

    def refuse(self, credential: Credential) -> None:
        """Is called if the server refuses the credential."""


class TargetClients:
    def __init__(self, connecting: HttpSettings) -> None:
        self._connecting = connecting
        self._clients: dict[Endpoint, ApiClient] = {}
        self._endpoints: dict[tuple[str, int], Endpoint] = {}
        self._answered = {_host_of(DEFAULT_BASE_URL)}
        """The hosts that have answered before, and Anthropic's own host. If a name lookup fails for one of these
        hosts, the failure is treated as temporary."""

    def know_answered(self, base_urls: Iterable[str]) -> None:
        """Stores that the hosts of these URLs have answered an earlier process of this session."""
        self._answered.update(map(_host_of, base_urls))

    def prepare(self, target: Target, key: int = 0) -> ApiClient:
        """The client for a target and one of its keys, made if there is none yet. `key` is the index of the key,
        counted from 0.

        Raises ValueError if the endpoint or the proxy cannot be used, and OSError if the file with certificates
        cannot be read, for example because the machine is short of file descriptors.
        """
        keys = self._connecting.keys
        if keys is not None:
            target = replace(target, credentials=tuple(map(keys.current, target.credentials)))
        endpoint = endpoint_of(target, key)
        last = self._endpoints.get((target.name, key))
        if last != endpoint and last in self._clients:  # its key is no longer used
            self._clients.pop(last).close()
        self._endpoints[target.name, key] = endpoint
        if endpoint not in self._clients:
            transport = build_transport(endpoint.base_url, self._connecting.ca_file)
            self._clients[endpoint] = ApiClient(endpoint, transport, self._connecting, self._answered)
        return self._clients[endpoint]

    def send_message(
        self, target: Target, key: int, body: RequestBody, events: Events, *, is_whole: bool = False
    ) -> Answer:
        """Sends one request, as `Client.send_message` describes. Raises `Api` if the endpoint cannot be used, so
        that ralph can ask another target.
        """
        try:
            client = self.prepare(target, key)
        except (OSError, ValueError, MemoryError) as error:
            if shortage_of(error) is not None:
                raise shortage_error(error) from error
            detail = self._connecting.redact(str(error))
            raise Api(NetworkCause.BAD_URL, detail, target.base_url) from error
        try:
            return client.send_message(body, events, is_whole=is_whole)
        except AgentError as error:
            if is_bad_key(error) and self._connecting.keys is not None:
                self._connecting.keys.refuse(target.credentials[key])
            raise

    def describe_model(self, target: Target, key: int) -> ModelDescription | None:
        try:
            client = self.prepare(target, key)
        except (OSError, ValueError):
            return None
        return client.describe_model(target.model)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def endpoint_of(target: Target, key: int) -> Endpoint:
    """The endpoint of a target, with the headers for one of its keys. `key` is the key's index, counted from 0."""
    used = target.credentials[key : key + 1]
    own = [header for credential in used for header in credential.headers]
    if target.api != ANTHROPIC and host_in(target.base_url).endswith(".azure.com"):
        # Older resources take no key as a token.
        own += (("api-key", credential.secret) for credential in used)
    return Endpoint(target.base_url, Secret((*own, *target.headers.plain)), target.api)


def _host_of(base_url: str) -> str:
    return host_of(httpx.URL(base_url))
