"""A client of models' APIs over HTTP: of one endpoint, and of all targets of a run. The API is the Messages API, or one that
a dialect translates.

It sends a request once, and returns a complete answer or raises one of the five errors in `values/errors.py`. It
never retries and never follows a redirect. `Exchange` carries the bytes, and `Reception` parses the answer. The
client can also ask the server for its description of a model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from ralph import __version__
from ralph.api.reception import Reception, ResponseClocks
from ralph.api.transport import (
    BodyEnd,
    Exchange,
    Failed,
    ResponseHead,
    Wire,
    build_transport,
    httpx,
    shortage_error,
)
from ralph.conversation.messages import RequestBody, RequestHead
from ralph.conversation.target import ModelDescription, description_in_list, description_of
from ralph.machine.connecting import proxy_in_words
from ralph.values.credentials import Credential, Secret
from ralph.values.errors import AgentError, Api, HttpError, NetworkCause, is_bad_key
from ralph.values.events import RequestSent
from ralph.values.outcome import ShortageError, shortage_of
from ralph.values.ports import TIMED_OUT, Clock, Events
from ralph.values.servers import (
    ANTHROPIC,
    API_VERSION,
    DEFAULT_BASE_URL,
    OPENAI_CHAT,
    OPENAI_RESPONSES,
    host_in,
    is_vertex,
    requests_url,
)
from ralph.values.strict_json import strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ralph.conversation.target import Target
    from ralph.values.answer import Answer
    from ralph.values.credentials import Headers
    from ralph.values.limits import ClockLimits
    from ralph.values.ports import Waiter

# The HTTP library's time limit for connecting exceeds ralph's own limit by this much, so that ralph's limit is always
# reached first.
_CONNECT_GRACE_S = 1.0
DESCRIPTION_S = 5.0
"""The time limit in seconds for a request for a model's description, from the name lookup to the last byte. It is
short, because a run can work without it."""
DESCRIPTION_BYTES = 2 * 1024 * 1024
"""The maximum size of a description, or of a list of them: OpenRouter's has several hundred. A longer one is ignored."""


class Endpoint(Struct, frozen=True):
    """The base URL of a server, the API that it serves, and the headers that ralph adds to each request to it. One
    of the headers contains the key.
    """

    base_url: str
    headers: Headers
    api: str = ANTHROPIC


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


class ApiClient:
    """Sends requests to one endpoint.

    `redact` removes credentials from the texts in errors. `answered` is the set of hosts that have answered before,
    which all clients share. If a name lookup fails for one of them, the failure is treated as temporary.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: httpx.BaseTransport,
        http: HttpSettings,
        answered: set[str] | None = None,
    ) -> None:
        self._answered = set() if answered is None else answered
        self._endpoint = endpoint
        self._dialect: Dialect | None = None  # a run on the Messages API imports none
        if endpoint.api in _MODULES:
            self._dialect = import_module(_MODULES[endpoint.api]).dialect(endpoint.base_url)
        self._is_vertex = is_vertex(endpoint.base_url)
        self._parsed: tuple[str, httpx.URL] | None = None
        """The last URL, and what was parsed from it. None before the first request, which reports a URL that cannot be parsed."""
        # The time for the first byte begins when sending begins. It must not end before the time for connecting, when
        # the main thread looks.
        limits = http.limits
        tells_late = limits.connect_s > 0 and not 0 < limits.first_byte_s < limits.connect_s
        self._wire = Wire(transport, http.waiter, tells_late=tells_late)
        self._limits = limits
        self._clock = http.clock
        self._redact = http.redact

    def send_message(self, body: RequestBody, events: Events, *, is_whole: bool = False) -> Answer:
        """Sends `body` once and returns the answer. `is_whole` is as in `Client.send_message`. `events` receives a RequestSent, and
        then the answer's stream events while it arrives. Raises only `AgentError`, the errors of `events`, and `Interrupted` if a
        signal, a time limit or a driver ends the wait.
        """
        model = str(body.head.fields.get("model"))
        if self._is_vertex:
            fields = {name: value for name, value in body.head.fields.items() if name != "model"}
            body = replace(body, head=RequestHead.of_fields({"anthropic_version": API_VERSION, **fields}))
        pieces = body.pieces() if self._dialect is None else self._dialect.body(body)
        own = {
            "accept": "text/event-stream, application/json",
            "content-type": "application/json",
            # Without this header, httpx would send a body in pieces with chunked encoding.
            "content-length": str(sum(map(len, pieces))),
        }
        url = requests_url(self._endpoint.base_url, self._endpoint.api, model, is_whole=is_whole)
        request = self._request("POST", url, own, connect_s=self._limits.connect_s, body=pieces)
        try:
            return self._receive(request, events, is_whole=is_whole)
        except (ShortageError, MemoryError) as error:
            raise shortage_error(error) from error
        except (Api, HttpError) as error:
            error.proxy = proxy_in_words(self._endpoint.base_url)
            raise

    def _receive(self, request: httpx.Request, events: Events, *, is_whole: bool) -> Answer:
        limits = self._limits.for_whole_answer() if is_whole else self._limits
        exchange = self._wire.start(request)
        try:
            reception = Reception(
                exchange,
                ResponseClocks(limits, self._clock.now_s()),
                self._clock,
                events=events,
                redact=self._redact,
                host=host_of(request.url),
                answered=self._answered,
                dialect=self._dialect,
                is_whole=is_whole,
            )
            events.emit(RequestSent())
            answer = reception.receive()
        except BaseException:
            exchange.abort()
            raise
        exchange.leave()
        return answer

    def describe_model(self, model: str, *, within_s: float = DESCRIPTION_S) -> ModelDescription | None:
        """Asks the server once for its description of `model`, and waits at most `within_s` seconds.

        Returns None if the server sends no usable description in time. Raises only `Interrupted`.
        """
        if self._is_vertex:
            return None  # it describes models in another form
        until_s = self._clock.now_s() + within_s
        try:
            path = f"/v1/models/{quote(model, safe='')}" if self._dialect is None else "/models"
            request = self._request(
                "GET", self._endpoint.base_url + path, {"accept": "application/json"}, connect_s=within_s
            )
        except (Api, ValueError):
            return None
        waiting_for = f"what {host_of(request.url)} says of its model"
        try:
            exchange = self._wire.start(request)
        except ShortageError:
            return None
        listed = None if self._dialect is None else model
        return receive_description(
            exchange, self._clock, until_s=until_s, waiting_for=waiting_for, listed=listed
        )

    def close(self) -> None:
        self._wire.close()

    def _request(
        self,
        method: str,
        url: str,
        own_headers: dict[str, str],
        *,
        connect_s: float,
        body: tuple[bytes, ...] | None = None,
    ) -> httpx.Request:
        timeout = httpx.Timeout(None, connect=connect_s + _CONNECT_GRACE_S if connect_s > 0 else None)
        try:
            if self._parsed is None or self._parsed[0] != url:
                self._parsed = url, httpx.URL(url)
            return httpx.Request(
                method,
                self._parsed[1],
                content=body,
                headers=self._headers(own_headers),
                extensions={"timeout": timeout.as_dict()},
            )
        except httpx.InvalidURL as error:
            raise Api(NetworkCause.BAD_URL, self._redact(str(error))) from error

    def _headers(self, own: dict[str, str]) -> list[tuple[bytes, bytes]]:
        common = {
            "connection": "keep-alive",
            # Some gateways refuse requests without it, and some admit clients by name.
            "user-agent": f"ralph/{__version__}",
            # A proxy that compresses a stream also holds back its events in a buffer.
            "accept-encoding": "identity",
            **({"anthropic-version": API_VERSION} if self._dialect is None else {}),
        }
        # The endpoint's headers override ralph's own. `values/servers.py` has refused the headers with which a user
        # could break the request.
        named = {name.lower(): value for name, value in self._endpoint.headers.plain}
        # Values are encoded here, because httpx would encode them as ASCII.
        return [
            (name.encode("ascii"), value.encode("latin-1"))
            for name, value in {**common, **own, **named}.items()
        ]


def host_of(url: httpx.URL) -> str:
    """The host, with the port if the URL contains one."""
    return url.netloc.decode("ascii", "replace")


def receive_description(
    exchange: Exchange, clock: Clock, *, until_s: float, waiting_for: str, listed: str | None = None
) -> ModelDescription | None:
    """Receives a model's description from an exchange that has begun, and ends the exchange. If the answer is a
    list of models, `listed` is the model.

    None if the server sends no usable description before `until_s`, a time of `clock`. If the whole body was read,
    the connection can be used again. Raises only `Interrupted`.
    """
    try:
        body = _body_of_success(exchange, clock, until_s, waiting_for)
    finally:
        exchange.abort()
    try:
        document = None if body is None else strict_json(body.decode())
        return description_of(document) if listed is None else description_in_list(document, listed)
    except (ValueError, RecursionError):
        return None


def _body_of_success(exchange: Exchange, clock: Clock, until_s: float, waiting_for: str) -> bytes | None:
    is_success = False
    body = bytearray()
    # A wait returns an available item even after its deadline. Without this check, a server that never stops sending
    # would postpone the deadline for ever.
    while clock.now_s() < until_s:
        item = exchange.next_item(until_s, waiting_for)
        if item is TIMED_OUT or isinstance(item, Failed):
            return None
        if isinstance(item, BodyEnd):
            return bytes(body) if is_success else None
        if isinstance(item, ResponseHead):
            is_success = 200 <= item.status < 300
        if isinstance(item, bytes):
            body += item
            if len(body) > DESCRIPTION_BYTES:
                return None
    return None


class TargetClients:
    """Implements the port `Client` of the retry loop for all targets of a run. For each endpoint and key, it makes an HTTP client when
    that client is first needed.
    """

    def __init__(self, connecting: HttpSettings) -> None:
        self._connecting = connecting
        self._clients: dict[Endpoint, ApiClient] = {}
        self._endpoints: dict[tuple[str, int], Endpoint] = {}
        self._answered = {host_of(httpx.URL(DEFAULT_BASE_URL))}
        """The hosts that have answered before, and Anthropic's own host. If a name lookup fails for one of these
        hosts, the failure is treated as temporary."""

    def know_answered(self, base_urls: Iterable[str]) -> None:
        """Stores that the hosts of these URLs have answered an earlier process of this session."""
        self._answered.update(host_of(httpx.URL(url)) for url in base_urls)

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


# --- The dialects
# The dialects: APIs of models other than the Messages API, into which requests are translated, and answers back.
#
# Outside of this package, a request and an answer always have the form of the Messages API.


class Dialect(Protocol):
    """Translates for one endpoint. It keeps what it has translated, so that a later request needs only its new messages."""

    def body(self, request: RequestBody) -> tuple[bytes, ...]:
        """The JSON of a request, in pieces. Two requests with the same messages at their beginning begin with the same bytes."""

    def translator(self) -> Translator:
        """A translator for one stream."""

    def whole(self, value: dict[str, Any]) -> Sequence[dict[str, Any]] | None:
        """The events of the Messages API that an answer in one JSON object means. None if `value` is not an answer."""


class Translator(Protocol):
    def more(self, data: str) -> dict[str, Any] | None:
        """The event for a piece of the stream that only brings more of an open block. None for another piece: the
        caller must then ask `events`. Most pieces bring more of a block, so this is the short way for them.
        """

    def events(self, name: str, event: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """The events of the Messages API that an event of the stream means. An event that reports an error is
        returned as it is. Raises StreamParse or StreamTransient.
        """

    def end(self) -> Sequence[dict[str, Any]]:
        """The last events of the answer, after its stream has ended. Empty if the answer did not say that it was
        complete. May be called more than once.
        """


_MODULES = {OPENAI_CHAT: "ralph.api.chat", OPENAI_RESPONSES: "ralph.api.responses"}
"""The module of each dialect. It has a function `dialect`, which gets the base URL."""
