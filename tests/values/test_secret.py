"""A secret is shown only to code that asks for it by name."""

from __future__ import annotations

import traceback

from ralph.api.client import Endpoint
from ralph.conversation.target import Target
from ralph.settings.tables import Settings
from ralph.settings.targets import EnvironmentAccess, TargetEntry
from ralph.values.credentials import Credential, Headers, Secret
from ralph.values.errors import Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient

CANARY = "sk-canary-0123456789"
HEADERS: Headers = Secret((("x-api-key", CANARY),))
KEY = Credential("x-api-key", Secret(CANARY), "ANTHROPIC_API_KEY")


def test_no_repr_of_what_holds_a_credential_shows_it() -> None:
    target = Target("a", "m", "http://a", (KEY,), HEADERS)
    settings = Settings(
        credential=KEY, custom_headers=HEADERS, unused_secrets=Secret((CANARY,)), targets=(target,)
    )
    access = EnvironmentAccess(KEY, HEADERS, {})
    for holder in (
        settings,
        target,
        TargetEntry("a", "m", headers=HEADERS),
        access,
        Endpoint("http://a", HEADERS),
    ):
        assert CANARY not in repr(holder)
        assert CANARY not in str(holder)


def test_errors_show_their_fields_and_hold_no_headers() -> None:
    errors = {
        "HTTP 500: down": HttpError(500, None, "body", message="down"),
        "cut": StreamTransient("cut"),
        "odd": StreamParse("odd"),
        "timeout (host): too long": Api(NetworkCause.TIMEOUT, "too long", "host"),
        "undecodable JSON in the stream (bad): '{'": Json("bad", "{"),
    }
    for shown, error in errors.items():
        fields = ", ".join(map(repr, vars(error).values()))
        assert repr(error) == f"{type(error).__name__}({fields})"
        assert "headers" not in vars(error)
        assert traceback.format_exception_only(error)[-1].endswith(f"{type(error).__name__}: {shown}\n")


def test_secrets_are_equal_by_what_they_hold() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a")}) == 1
