"""Sends one small request to each target, with each of its keys, and reports what came back (`ralph doctor --probe`).
Client and classification are those of a run. Nothing is retried. Also tries actions in the sandbox (`--sandbox`).
"""

from __future__ import annotations

import os
import stat
import sys
from email.utils import parsedate_to_datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING

from msgspec import Struct

from ralph.agent.run_end import hint_in_words
from ralph.api.client import ApiClient, HttpSettings, endpoint_of
from ralph.api.transport import build_transport, httpx
from ralph.cli.checks import Finding, fail, ok, short, warn
from ralph.conversation.messages import Conversation, user_message
from ralph.machine.files.paths import is_within_any
from ralph.machine.own_programs import search_around
from ralph.places.gather import files_in, gather_places
from ralph.places.table import FILTERED
from ralph.sandbox import probe
from ralph.sandbox.detection import find_means
from ralph.sandbox.planning import about_git, may_have_overlays, opened_by_settings
from ralph.sandbox.sandbox_settings import SandboxSettings, absolute_place
from ralph.sandbox.self_test import ProbeError, ProbeResult, SelfTest
from ralph.values.answer import Answer, ToolCall, ToolDefinition
from ralph.values.errors import (
    AgentError,
    Api,
    FailureKind,
    HttpError,
    NetworkCause,
    failure_kind,
    is_shortage,
    outcome_of,
)
from ralph.values.events import Event, StreamReceived
from ralph.values.limits import ClockLimits
from ralph.values.outcome import Outcome, ShortageError, shortage_of
from ralph.values.servers import API_NAMES, KEY_VARIABLES, requests_url
from ralph.values.usage import TokenUsage, cost_usd, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from ralph.conversation.target import Target
    from ralph.sandbox.box_plan import BoxLevel, Net
    from ralph.values.ports import Clock

MOST_TOKENS = 128
"""The `max_tokens` of each request. A call of the tool takes about 40 tokens, and a model may think before it."""
LIMITS = ClockLimits(connect_s=10, first_byte_s=60, bytes_idle_s=30, progress_idle_s=30, response_s=90)
"""The time limits of one request. A local server may load its model first."""
MOST_SKEW_S = 60.0
"""More than a slow answer and the whole seconds of the header can explain."""
_TOOL = ToolDefinition(
    "tell_word",
    "Tells a word to the program that checks this connection.",
    {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    },
)
_SYSTEM = "You are being checked by a program. Answer with one call of the tool tell_word and with no text."
_PROMPT = "Call the tool tell_word with the word ready."
_ADVICE_BY_KIND = {
    FailureKind.RATE_LIMIT: "try again later; a run waits by itself, and --fallback-model names a spare one",
    FailureKind.USAGE_LIMIT: "add credit to the account of this key or raise its limit, or use another key",
    FailureKind.OVERLOADED: "try again later; a run waits by itself, and --fallback-model names a spare one",
    FailureKind.SERVER: "try again later, or look at the server's own log",
    FailureKind.TIMEOUT: "see whether the server is busy or still loads its model; else check network and HTTPS_PROXY",
    FailureKind.STREAM: "try again; if it persists, look at the server's own log and at proxies on the way",
    FailureKind.PROTOCOL: "correct the base URL or the API: this server does not speak the {api} API (`ralph help other-servers`)",
    FailureKind.BILLING: "add credit to the account of this key or raise its limit, or use another key",
    FailureKind.INVALID_REQUEST: "correct what the server names: model, max_tokens, effort, thinking or headers",
    FailureKind.CONTEXT_OVERFLOW: "start the server with a larger context, or choose another model",
}
_ADVICE_BY_CAUSE = {
    NetworkCause.TIMEOUT: "check network, firewall and HTTPS_PROXY; clocks.connect_s gives it more time",
    NetworkCause.REFUSED: "nothing listens there: start the server, or correct host and port",
    NetworkCause.RESET: "the other side hung up: check host, port, and whether it speaks TLS",
    NetworkCause.UNREACHABLE: "check the network; a proxy is named by HTTPS_PROXY",
    NetworkCause.DNS_TEMPORARY: "check the network and the name server; a proxy is named by HTTPS_PROXY",
    NetworkCause.DNS_UNKNOWN_HOST: "check the host's name, and whether this machine is online",
    NetworkCause.NOT_PERMITTED: "look at firewalls, the rules of a container, a sandbox",
    NetworkCause.CERTIFICATE: "add the authority to this machine's store, or name its PEM file by NODE_EXTRA_CA_CERTS (only that "
    "file: model.ca_file or SSL_CERT_FILE); check host and date",
}
_OTHER_ADVICE = (
    "check host and port, and that https:// is said to a server that speaks TLS and http:// to others"
)
_BY_ITS_WORDS = frozenset({FailureKind.INVALID_REQUEST, FailureKind.SERVER, FailureKind.AUTH})
"""The kinds of failure for which the server's words may say what to do."""
ONE_PIECE_S = 0.5
"""A stream that took less is too short to tell whether something on the way has held it back."""
ONE_PIECE_SHARE, ONE_PIECE_LASTS_S = 0.05, 0.1
"""If all events of a stream came within this share of its time, and this time, they came in one piece. A server that reads its
prompt for ten seconds writes its short answer for longer."""


class ProbeTimes:
    """Notes when the parts of one answer arrive. As an `Events` sink, it gets the events of the stream."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_s = 0.0
        self.head_s: float | None = None
        self.first_token_s: float | None = None
        self.first_event_s = self.last_event_s = 0.0
        self.is_stream = False
        self.skew_s: float | None = None
        """The seconds by which this machine's clock is ahead of the server's. None if the server told no time."""

    def begin(self) -> None:
        self._sent_s = self._clock.now_s()

    def since_s(self) -> float:
        return self._clock.now_s() - self._sent_s

    @property
    def is_in_one_piece(self) -> bool:
        """Whether something on the way has held the stream back until it was complete."""
        took_s = self.last_event_s - self.first_event_s
        most_s = min(self.last_event_s * ONE_PIECE_SHARE, ONE_PIECE_LASTS_S)
        return self.is_stream and self.last_event_s >= ONE_PIECE_S and took_s <= most_s

    def note_head(self, response: httpx.Response) -> None:
        """Is called in the thread that reads the answer."""
        self.head_s = self.since_s()
        self.skew_s = _skew_s(response.headers.get("date", ""), self._clock.utc_now())

    def emit(self, event: Event) -> None:
        if isinstance(event, StreamReceived):
            self.last_event_s = self.since_s()
            if not self.is_stream:
                self.first_event_s = self.last_event_s
            self.is_stream = True
            if self.first_token_s is None and event.event.get("type") == "content_block_delta":
                self.first_token_s = self.since_s()


def probe_targets(targets: Sequence[Target], http: HttpSettings) -> Iterator[Finding]:
    """Yields the findings about each target and key, and a finding about the clock."""
    asked = [(target, key) for target in targets for key in range(target.key_count)]
    skews: list[float] = []
    for target, key in asked:
        seen = ProbeTimes(http.clock)
        answer, tokens = _ask(target, key, http, seen)
        cost = cost_usd(target.facts, tokens)
        if seen.skew_s is not None:
            skews.append(seen.skew_s)
        subject = _subject(target, key)
        if isinstance(answer, Finding):
            yield answer
        else:
            yield from _about(subject, target, answer, seen, cost)
    yield _clock(skews)


def _ask(
    target: Target, key: int, http: HttpSettings, seen: ProbeTimes
) -> tuple[Answer | Finding, TokenUsage]:
    subject = _subject(target, key)
    try:
        transport = build_transport(target.base_url, http.ca_file)
    except (OSError, ValueError) as error:
        lacking = shortage_of(error)
        if lacking is not None:
            return short(subject, lacking), TokenUsage()
        advice = "correct the base URL, HTTPS_PROXY, or model.ca_file"
        return fail(subject, http.redact(str(error)), advice), TokenUsage()
    client = ApiClient(endpoint_of(target, key), _NotingTransport(transport, seen.note_head), http)
    try:
        seen.begin()
        answer = client.send_message(_conversation(target).request_body(MOST_TOKENS), seen)
    except AgentError as error:
        return _failure(subject, target, key, error), error.tokens
    finally:
        client.close()
        transport.close()
    return answer, tokens_of(answer.message["usage"])


class _NotingTransport(httpx.BaseTransport):
    """A transport that passes each response to `note` when the head of the response has arrived."""

    def __init__(self, transport: httpx.BaseTransport, note: Callable[[httpx.Response], None]) -> None:
        self._transport = transport
        self._note = note

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._transport.handle_request(request)
        self._note(response)
        return response


def _conversation(target: Target) -> Conversation:
    return Conversation.start(target.shape(_SYSTEM, (_TOOL,))).plus(user_message(_PROMPT))


def _subject(target: Target, key: int) -> str:
    several = f" with {target.credentials[key].source}" if target.key_count > 1 else ""
    return f"target {target.name}{several}"


def _about(
    subject: str, target: Target, answer: Answer, seen: ProbeTimes, cost: float | None
) -> Iterator[Finding]:
    whole_s = seen.since_s()
    model = "" if target.name == target.model else f"{target.model} "
    has_called = any(isinstance(call, ToolCall) and call.name == _TOOL.name for call in answer.calls)
    tokens = tokens_of(answer.message["usage"])
    times = [f"head after {seen.head_s:.2f} s"] if seen.head_s is not None else []
    times += [f"first token {seen.first_token_s:.2f} s"] if seen.first_token_s is not None else []
    told = answer.message.get("model")
    named = (
        f" (the server names it {told})" if isinstance(told, str) and told not in {"", target.model} else ""
    )
    yield ok(
        subject,
        f"{model}answered{named}{' as a stream' if seen.is_stream else ''}"
        f"{' and called the tool' if has_called else ''}: {', '.join([*times, f'whole {whole_s:.2f} s'])}; "
        f"{tokens.prompt:,} tokens in, {tokens.output:,} out, {_dollars(cost)}",
        streamed=seen.is_stream,
        called_tool=has_called,
        head_s=_rounded(seen.head_s),
        first_token_s=_rounded(seen.first_token_s),
        whole_s=_rounded(whole_s),
        input_tokens=tokens.prompt,
        output_tokens=tokens.output,
        cost_usd=cost,
    )
    if not seen.is_stream:
        yield warn(
            subject,
            "sends the whole answer at once, no stream: a run shows nothing meanwhile, and a long answer may pass "
            "clocks.first_byte_s",
            "switch streaming on in the server or its gateway, or raise clocks.first_byte_s",
        )
    if seen.is_in_one_piece:
        yield warn(
            subject,
            "its stream arrived in one piece: a run shows nothing meanwhile, and a long answer may pass clocks.first_byte_s",
            "switch buffering off in the proxies on the way (`ralph help gateways`), or raise clocks.first_byte_s",
        )
    if not has_called:
        yield _no_call(subject, answer)


def _no_call(subject: str, answer: Answer) -> Finding:
    if answer.message.get("stop_reason") == "max_tokens":
        return warn(
            subject,
            f"called no tool within {MOST_TOKENS} tokens, which a model that thinks at length may need for its thoughts",
            "try one short task with this model first: ralph 'create the file hello.txt' --max-turns 3",
        )
    how = "called the tool wrongly" if answer.calls else "answered in words and called no tool"
    return fail(
        subject,
        f"{how}: in a run it would change no file",
        "choose a model that calls tools, or switch them on in the server (llama.cpp: --jinja; vLLM: "
        "--enable-auto-tool-choice)",
        outcome=Outcome.API_REJECTED,
    )


def _failure(subject: str, target: Target, key: int, error: AgentError) -> Finding:
    outcome = outcome_of(error)
    if is_shortage(error):
        return short(subject, shortage_of(error) or ShortageError("thread"))
    requested_s = error.retry_after
    waits = f"; the server asks for a wait of {requested_s:g} s" if requested_s is not None else ""
    text = f"{error}{waits}; a run would end with {outcome.value} (exit {outcome.exit_code()})"
    if outcome is Outcome.API_UNAVAILABLE:
        text = f"{error}{waits}; a run would wait and try again"
    return fail(subject, text, _advice(target, key, error), outcome=outcome)


def _advice(target: Target, key: int, error: AgentError) -> str:
    kind = failure_kind(error)
    if kind in _BY_ITS_WORDS and (in_words := hint_in_words(str(error))) is not None:
        return in_words
    variable = target.credentials[key].place if target.credentials else None
    if isinstance(error, Api) and kind is not FailureKind.TIMEOUT:
        if error.proxy:
            return f"start {error.proxy}, or correct the variable; NO_PROXY names the hosts that need none"
        return _ADVICE_BY_CAUSE.get(error.cause, _OTHER_ADVICE)
    if isinstance(error, HttpError) and error.status == 407:
        return f"correct the user and the password of {error.proxy or 'the proxy'}"
    if kind is FailureKind.AUTH and variable is None:
        return f"give a key: this server asks for one ({KEY_VARIABLES[target.api]}, or api_key_env of the target)"
    if kind is FailureKind.AUTH:
        return f"put a valid key into {variable}, and see whether the key may use {target.model}"
    if kind is FailureKind.NOT_FOUND:
        return f"correct the model {target.model} or the base URL, which gives {requests_url(target.base_url, target.api, target.model)}"
    return _ADVICE_BY_KIND[kind].format(api=API_NAMES[target.api])


def _clock(skews: Sequence[float]) -> Finding:
    if not skews:
        return ok("clock", "not compared: no server sent the time")
    most = max(skews, key=abs)
    if abs(most) <= MOST_SKEW_S:
        return ok("clock", f"within {abs(most):.0f} s of the servers' clocks", skew_s=most)
    how = "ahead of" if most > 0 else "behind"
    return warn(
        "clock",
        f"{abs(most):.0f} s {how} a server's clock: waits until a date that a server names are wrong, and certificates may "
        "be refused",
        "set the clock, for example by timedatectl set-ntp true",
        skew_s=most,
    )


def _skew_s(date: str, now: datetime) -> float | None:
    try:
        return (now - parsedate_to_datetime(date)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # TypeError if the date has no time zone
        return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _dollars(cost: float | None) -> str:
    return "price unknown" if cost is None else f"${cost:.4f}"


# Enough to see whether a directory of secrets can be read.
_FILES_OF_A_DIRECTORY = 5
_VERDICT_WIDTH = len(probe.ALLOWED)
_SUBJECT = "sandbox"
_ONLY_A_COPY = "  (with namespaces a copy without credentials, otherwise not)"
_NO_NAME = "nothing denies these"


# --- The sandbox


class TriedSandbox(Struct, frozen=True):
    rows: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def try_sandbox(environment: Mapping[str, str], cwd: Path | None, wanted: SandboxSettings) -> TriedSandbox:
    """Runs the probe, for some seconds, in the strongest sandbox of this machine, with the network that `wanted`
    names. It also tries to read one byte of each of the user's secrets, and shows none.
    """
    if sys.platform != "linux":
        return TriedSandbox(findings=(warn(_SUBJECT, "none: only Linux has the means", "use a container"),))
    roots = () if cwd is None else (cwd,)
    search = search_around(environment, roots, wanted.written(environment))
    means = find_means(search, has_overlays=may_have_overlays(wanted, environment, roots))
    net: Net = "off" if wanted.net is None and not wanted.allow_hosts else wanted.asked_net  # type: ignore[assignment]  # the setting allows only these names
    try:
        with SelfTest(means, net, secrets=tuple(_secrets(environment, wanted))) as test:
            results = test.run()
            level = test.level
    except (OSError, ProbeError) as error:
        return TriedSandbox(
            findings=(fail(_SUBJECT, f"the probe did not run to its end: {error}", "report this as a bug"),)
        )
    return TriedSandbox(
        (
            f"Sandbox: {level.name} with network {net}, the strongest that this machine can do",
            *_table(results),
            *_what_of_the_home(environment, cwd, wanted),
        ),
        (*_verdict(level, results), *_about_git(environment, cwd)),
    )


def _about_git(environment: Mapping[str, str], cwd: Path | None) -> Iterator[Finding]:
    for notice in () if cwd is None else about_git((os.path.realpath(cwd),), environment):
        yield warn(_SUBJECT, notice.text, notice.advice)


def _secrets(environment: Mapping[str, str], wanted: SandboxSettings) -> Iterator[str]:
    """Yields files that must not be read, as the table of places and the settings say: the first ones of each directory."""
    denied = _real(wanted.read_deny, environment)
    places = gather_places([], environment, denied=denied)
    for place in (*places.unread, *places.closed_homes):
        files = (
            one for one in files_in(place, 0) if stat.S_ISREG(_mode_of(one)) and places.why_not_read(one)
        )
        yield from islice(files, _FILES_OF_A_DIRECTORY)


def _real(given: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    return [os.path.realpath(absolute_place(place, environment.get("HOME", ""))) for place in given]


def _what_of_the_home(
    environment: Mapping[str, str], cwd: Path | None, wanted: SandboxSettings
) -> Iterator[str]:
    denied = _real(wanted.read_deny, environment)
    roots = [] if cwd is None else [os.path.realpath(cwd)]
    write, read, _ = opened_by_settings(wanted, environment, roots)
    given = (*read, *write)
    places = gather_places(roots, environment, denied=denied, given=given)
    if not places.closed_homes:
        yield "  of the home, all but secrets may be read: it is the working directory, is in it, or is needed as a whole"
        return
    in_home = [path for path in given if is_within_any(path, places.closed_homes)]
    yield f"  of {', '.join(places.closed_homes)}, besides the working directory, only this may be read"
    for path in dict.fromkeys((*filter(os.path.lexists, places.shown), *in_home)):
        yield f"    {path}"
    for path in places.guarded(FILTERED, {}):
        real = os.path.realpath(path)
        if stat.S_ISREG(_mode_of(real)) and places.why_not_read(real):
            yield f"    {path}{_ONLY_A_COPY}"


def _mode_of(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _table(results: Sequence[ProbeResult]) -> Iterator[str]:
    by_protection = sorted(results, key=lambda one: one.protection)
    for protection, rows in groupby(by_protection, key=lambda one: one.protection):
        yield f"  {protection or _NO_NAME}"
        for one in rows:
            remark = "  PROMISED TO BE DENIED" if one.is_broken else f"  ({one.detail})" if one.detail else ""
            yield f"    {one.verdict:<{_VERDICT_WIDTH}}  {one.row}{remark}"


def _verdict(level: BoxLevel, results: Sequence[ProbeResult]) -> Iterator[Finding]:
    denied = sum(one.is_promised and one.verdict == probe.DENIED for one in results)
    allowed = [one.row for one in results if not one.is_promised and one.verdict == probe.ALLOWED]
    untried = sum(one.verdict == probe.UNTRIED for one in results)
    broken = [one.row for one in results if one.is_broken]
    if broken:
        yield fail(
            _SUBJECT,
            f"{level.name} promises to deny what was allowed: {', '.join(broken)}",
            "report this as a bug, and use a container or a separate account until then",
        )
    else:
        yield ok(_SUBJECT, f"{level.name} keeps its promises: {denied} attempts denied, {untried} not tried")
    if allowed:
        yield warn(
            _SUBJECT,
            f"not protected, {len(allowed)} attempts allowed: {', '.join(allowed)}",
            "`ralph help sandbox` says what each means",
        )
    for why, names in level.reasons().items():
        yield ok(_SUBJECT, f"not in force: {', '.join(names)} ({why})")
