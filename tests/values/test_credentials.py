from __future__ import annotations

import os
import re
import subprocess
import traceback

from hypothesis import given
from hypothesis import strategies as st

from ralph.api.client import Endpoint
from ralph.conversation.target import Target
from ralph.settings.tables import Settings
from ralph.settings.targets import EnvironmentAccess, TargetEntry
from ralph.values.credentials import (
    SHAPES,
    Credential,
    Headers,
    Secret,
    argument_secrets,
    child_environment,
    known_secrets,
    line_secrets,
    looks_like_credential_name,
    looks_like_credential_value,
)
from ralph.values.errors import Api, HttpError, Json, NetworkCause, StreamParse, StreamTransient
from tests.rows import every_row

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nAAAABG5vbmUAAAAE\n-----END OPENSSH PRIVATE KEY-----"


NAMES = """
    API_KEY ANTHROPIC_API_KEY OPENAI_API_KEYS apiKey x-api-key OPENAI_KEY APIKEY GITHUB_TOKEN GH_TOKEN
    npm_config__authToken ACCESSTOKEN TOKEN API_TOKENS ACTIONS_ID_TOKEN_REQUEST_TOKEN AWS_SESSION_TOKEN
    CI_JOB_TOKEN CLIENT_SECRET SECRETS MYSECRETVALUE VAULT_SECRET_ID AWS_SECRET_ACCESS_KEY DB_PASSWORD
    PGPASSWORD PASSWORD_OLD ROOT_PASSWD SSH_PASSPHRASE MYSQL_PWD DB_PASS GOOGLE_APPLICATION_CREDENTIALS
    AWS_CREDS SSHPASS ERLANG_COOKIE DEPLOY_PRIVATE_KEY AWS_ACCESS_KEY_ID TS_AUTHKEY
    AZURE_STORAGE_CONNECTION_STRING AUTH NPM_AUTH DOCKER_AUTH_CONFIG Authorization Proxy-Authorization
    OAUTH_CODE GITHUB_PAT SENTRY_DSN DATABASE_DSN SUPABASE_JWT Set-Cookie LDAP_BIND_PW NEXUS_PSW
    SLACK_WEBHOOK_URL DISCORD_WEBHOOK OPENAI_API_KEY2 GH_TOKEN2 TOKEN1 DOCKER_PAT2 DB_PASS_1 DB_PASS_PROD STRIPE_KEY_LIVE
    ENCRYPTION_KEY_BASE64 SSH_KEY_2 KEYSTORE_PASS2 WEBHOOK1 DEPLOY_KEY_OLD_2 ROOTPASS ADMINPASS MYSQLPASS LDAP_BINDPW DBPWD PRIVATEKEY
    WRITEKEY TOTP_SEED OAUTH2 ENCRYPTION_KEY_V1 SSH_KEY_ED25519 DB_PWD_RO OPENAI_KEY_FALLBACK SEED_PHRASE
""".split()


@every_row("name", NAMES)
def test_credential_is_known_by_its_name(name: str) -> None:
    assert looks_like_credential_name(name)


OTHER_NAMES = """
    _ PATH HOME PWD PW OLDPWD KEY PASS LANG COMPASS PATCH PATTERN KEYBOARD MONKEY MAPI_KEYBOARD TURKEY
    PUBLIC_KEY CACHE_KEY SSH_AGENT_PID SSH_AUTH_SOCK GPG_AGENT_INFO XAUTHORITY SSH_ASKPASS GIT_ASKPASS
    PASSWORD_STORE_DIR TOKENIZERS_PARALLELISM MAX_OUTPUT_TOKENS TOKEN_LIMIT AWS_WEB_IDENTITY_TOKEN_FILE
    ACTIONS_ID_TOKEN_REQUEST_URL GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL AUTHORS AUTH_TYPE WWW-Authenticate
    request-id content-type Idempotency-Key DBUS_SESSION_BUS_ADDRESS anthropic-ratelimit-tokens-remaining
    x-ratelimit-remaining-tokens anthropic-version GIT_CONFIG_KEY_0 PASS_1 KEY2 BYPASS TEST CI_TEST PWD2 RANDOM_SEED HOTKEY_1
    TOKEN_LIMIT_2 TOKEN_FILE_2 NUM_TOKENS_1 CTX_TOKENS API_V2
""".split()


@every_row("name", ["", *OTHER_NAMES])
def test_ordinary_variable_or_header_is_no_credential(name: str) -> None:
    assert not looks_like_credential_name(name)


EXAMPLES = [
    "sk-ant-api03-abcdefgh",
    "sk-proj-abcdefghijklmnop1234",
    "ghp_" + "a1B2" * 9,
    "gho_" + "a1B2" * 9,
    "ghr_" + "a1B2" * 9,
    "ghs_" + "a1B2" * 9,
    "ghu_" + "a1B2" * 9,
    "github_pat_" + "a1B2_" * 9,
    "glpat-" + "a1B2-" * 4,
    "xoxb-123456789012-abcdef",
    "xoxp-123456789012-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "npm_" + "a1B2" * 9,
    "pypi-AgEIcHlwaS5vcmcCJ" + "a1B2" * 9,
    "AIzaSy" + "a1B2" * 9,
    "hf_" + "a1B2" * 9,
    "xai-" + "a1B2" * 9,
    "gsk_" + "a1B2" * 9,
    *(
        f"{begin}{'a1B2' * 9}"
        for begin in "hvs. dop_v1_ shpat_ dckr_pat_ GOCSPX- ya29. glrt- ATATT3 lin_api_ ntn_ pplx-".split()
    ),
    "AGE-SECRET-KEY-1" + "A1B2" * 12,
    "sk_live_" + "a1B2" * 6,
    "rk_test_" + "a1B2" * 6,
    "Bearer abcdefghijklmnop1234",
    "BASIC abcdefghijklmnop1234",
    JWT,
    PEM,
    "postgres://app:hunter2@db:5432/x",
    "https://:hunter2@example.com",
]


@every_row("value", EXAMPLES)
@every_row("around", ["{}", 'key = "{}", rest', "x={}\n", f"{'a-b_c ' * 200}\n{{}}\n"])
def test_credential_is_known_by_its_shape_wherever_it_stands(value: str, around: str) -> None:
    assert looks_like_credential_value(around.format(value))


def test_every_form_and_every_mark_has_an_example() -> None:
    for marks, form in SHAPES:
        examples = [example for example in EXAMPLES if re.search(form, example, re.ASCII)]
        assert all(any(mark in example.lower() for example in examples) for mark in marks), form


@every_row(
    "value",
    [
        *(
            "",
            "1",
            "true",
            "/usr/bin:/bin",
            "sk-",
            "sk-ant-",
            "sk-learn-contrib-and-many-more-words",
            "task-1234",
        ),
        *("disk-0123456789012345678901234567890", "ghp_short", "npm_config_registry", "pypi-mirror"),
        *("AKIAIOSFODNN7EXAMPL", "AKIAIOSFODNN7EXAMPLEX", "xAKIAIOSFODNN7EXAMPLE"),  # 15, 17, a word before
        *("eyJhbGciOiJIUzI1NiJ9", "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----"),
        *("https://example.com:8443/a@b", "https://user@example.com", "git@github.com:a/b.git", "a:b@c"),
        *("Bearer authentication is required", "Basic understanding of everything"),
    ],
)
def test_ordinary_value_has_no_credential_shape(value: str) -> None:
    assert not looks_like_credential_value(value)


@given(st.text())
def test_any_text_can_be_asked_about(text: str) -> None:
    assert looks_like_credential_name(text) in {True, False}
    assert looks_like_credential_value(text) in {True, False}


def test_child_gets_everything_but_credentials() -> None:
    harmless = {"PATH": "/bin", "HOME": "/home/u", "SSH_AUTH_SOCK": "/run/agent", "EMPTY": "", "LANG": "C"}
    hidden = {
        "ANTHROPIC_API_KEY": "k",
        "ANTHROPIC_BASE_URL": "http://localhost",
        "anthropic_log": "debug",
        "GITHUB_TOKEN": "t",
        "DATABASE_URL": "postgres://u:pw@h/d",
        "WRAPPED": "before the-known-secret after",
    }
    assert child_environment({**harmless, **hidden}, (), {"the-known-secret"}) == harmless


def test_passed_variable_reaches_the_child_and_no_other_does() -> None:
    environment = {
        "GITHUB_TOKEN": "t",
        "GITHUB_TOKEN_2": "t",
        "ANTHROPIC_API_KEY": "k",
        "DB_URL": "x://a:b@c",
    }
    assert child_environment(environment, ("GITHUB_TOKEN", "DB_URL", "ABSENT"), {"t"}) == {
        "GITHUB_TOKEN": "t",
        "DB_URL": "x://a:b@c",
    }


def test_a_name_that_is_withheld_stays_behind_however_short_its_value_is_unless_it_is_passed() -> None:
    environment = {"GATEWAY": "k", "GATEWAY_2": "k", "OTHER": "k"}
    assert child_environment(environment, ("GATEWAY_2",), (), {"GATEWAY", "GATEWAY_2"}) == {
        "GATEWAY_2": "k",
        "OTHER": "k",
    }


@every_row(
    ("environment", "expected"),
    [
        ({"A_TOKEN": "1234567"}, set()),  # seven characters are too few for a secret
        ({"A_TOKEN": "12345678"}, {"12345678"}),
        ({"A_TOKEN": " 12345678\n"}, {"12345678"}),
        ({"A_SECRET": "true"}, set()),
        ({"PATH": "/usr/local/bin"}, set()),
        ({"DATABASE_URL": "postgres://app:hunter2hunter2@db/x"}, {"hunter2hunter2"}),
        ({"DATABASE_URL": "postgres://app:p%40ssword@db/x"}, {"p%40ssword", "p@ssword"}),
        ({"DATABASE_URL": "postgres://app:p@ssword@db/x"}, {"p@ssword"}),
        ({"NOTE": f"use {EXAMPLES[0]} here"}, {EXAMPLES[0]}),
        ({"HEADER": "Bearer abcdefghijklmnop1234"}, {"Bearer abcdefghijklmnop1234", "abcdefghijklmnop1234"}),
        ({"DEPLOY": PEM}, {PEM, "b3BlbnNzaC1rZXktdjEAAAAA", "AAAABG5vbmUAAAAE"}),
    ],
)
def test_known_secrets_are_values_of_eight_characters_and_more(
    environment: dict[str, str], expected: set[str]
) -> None:
    assert known_secrets(environment) == expected


def test_known_secrets_take_what_settings_and_headers_add() -> None:
    assert known_secrets({}, ["short", "long-enough", "http://u:long-password@h"]) == {
        "long-enough",
        "http://u:long-password@h",
        "long-password",
    }


def test_credential_does_not_show_its_value() -> None:
    credential = Credential("authorization", Secret("Bearer s3cret"), "ANTHROPIC_AUTH_TOKEN")
    assert credential.secret == "s3cret"
    assert "s3cret" not in repr(credential)
    assert "ANTHROPIC_AUTH_TOKEN" in repr(credential)


TOKEN = "canary-proxy-token"


@every_row("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY", "npm_config_proxy", "OPENAI_BASE_URL"])
@every_row(
    ("url", "secret"),
    [
        (f"http://{TOKEN}@proxy.test:3128", TOKEN),
        (f"{TOKEN}@proxy.test:3128", TOKEN),
        (f"http://{TOKEN}:@proxy.test", TOKEN),
        (f"http://{TOKEN}:x@proxy.test/", TOKEN),
        (f"http://me:{TOKEN}@proxy.test", TOKEN),
        (f"me:{TOKEN}@proxy.test:3128", TOKEN),
        (f"http://{TOKEN.replace('c', '%63', 1)}@proxy.test", TOKEN),
        ("http://my%40token@proxy.test", "my@token"),
    ],
)
def test_what_stands_before_the_host_of_an_endpoint_is_a_credential(name: str, url: str, secret: str) -> None:
    secrets = known_secrets({name: url})
    assert secret in secrets
    assert child_environment({name: url, "OTHER": f"--proxy={url}"}, (), secrets) == {}


@every_row(
    ("name", "value"),
    [
        ("GOPROXY", "https://go.test,https://{}@go.test,direct"),
        ("GOPROXY", "https://go.test|https://me:{}@go.test"),
        ("PIP_INDEX_URL", "https://{}@pip.test/simple"),
        ("PIP_EXTRA_INDEX_URL", "https://one.test/simple https://{}:@two.test/simple"),
        ("UV_INDEX", "one=https://one.test two=https://{}@two.test"),
        ("UV_FIND_LINKS", "https://{}@links.test"),
        ("npm_config_registry", "https://{}@npm.test/"),
        ("BUNDLE_GEM__FURY__IO", "{}"),
        ("BUNDLE_RUBYGEMS__PKG__GITHUB__COM", "me:{}"),
        ("BUNDLE_GITHUB__COM", "{}:x-oauth-basic"),
        ("OP_SESSION_my", "{}"),
        ("BW_SESSION", "{}"),
        ("BEARER", "{}"),
        ("JDBC_URL", "jdbc:postgresql://db.test/db?user=me&password={}&ssl=true"),
        ("CONN", "Server=db.test;User Id=me;Pwd={};Encrypt=true"),
        ("SAS_URL", "https://blob.test/c?sv=1&sig={}"),
        ("JAVA_TOOL_OPTIONS", "-Xmx1g -Dhttp.proxyPassword={} -Da=b"),
        ("KAFKA_JAAS", 'PlainLoginModule required username="u" password="{}";'),
        ("CONN", "Server=db.test;Password = '{}';Encrypt=true"),
        ("ODBC", "odbc_connect=DRIVER%3D%7Bx%7D%3BPWD%3D{}"),
        ("REDIS", "db.test:6380,password={},ssl=True"),
        ("BUS", "Endpoint=sb://bus.test/;SharedAccessKeyName=all;SharedAccessKey={}"),
        ("FILE_ADDRESS", "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={}"),
        ("MNEMONIC", "{}"),
    ],
)
def test_a_credential_where_programs_document_one_stays_with_ralph(name: str, value: str) -> None:
    environment = {name: value.format(TOKEN)}
    assert TOKEN in known_secrets(environment)
    assert child_environment({**environment, "OTHER": "x"}, (), ()) == {"OTHER": "x"}


@every_row(
    ("text", "secrets", "others"),
    [
        (
            "//npm.test/:_authToken=Fake-0123-abcd\nalways-auth=true\n",
            ["Fake-0123-abcd"],
            ["//npm.test/", "true"],
        ),
        (
            "machine git.test\n  login me-and-you\n  password 12345-fake\n",
            ["12345-fake"],
            ["git.test", "me-and-you"],
        ),
        (
            "apiVersion: client.authentication/v1\nuser:\n  client-key-data: TFMwdExTMUNGQUtFMTI5Zg==\n",
            ["TFMwdExTMUNGQUtFMTI5Zg=="],
            ["client.authentication/v1"],
        ),
        ('{\n "auths": {"r.test": {"auth": "bWU6RkFLRQ=="}}\n}', ["bWU6RkFLRQ=="], ["auths", "r.test"]),
        (f"{PEM}\npassword: required\n", ["b3BlbnNzaC1rZXktdjEAAAAA"], ["KEY-----", "required"]),
        ("one line\n", [], ["one line "]),
    ],
)
def test_of_a_file_that_is_a_secret_each_secret_line_is_one(text, secrets, others) -> None:
    found = known_secrets({"APP_SECRET": text})
    assert found.issuperset([text.strip(), *secrets])
    assert found.isdisjoint(others)


@every_row(
    "environment",
    [
        {"HTTPS_PROXY": "http://proxy.test:3128", "NO_PROXY": "localhost,.test"},
        {"https_proxy": "proxy.test:3128"},
        {"HTTPS_PROXY": "http://anne.smith@proxy.test", "USER": "anne.smith"},
        {"DATABASE_URL": "postgres://postgres@localhost/test", "GIT_REMOTE": "https://anne.smith@git.test/x"},
        {"S3_ENDPOINT": "https://storage.test/a@b"},
        {"GOPROXY": "https://go.test,direct", "UV_INDEX": "https://one.test b=https://two.test/@scope"},
        {"BUNDLE_BUILD__NOKOGIRI": "--use-system-libraries", "BUNDLE_LOCAL__RACK": "/home/me/rack"},
        {
            "BUNDLE_MIRROR__ALL": "https://gems.test",
            "BUNDLE_GEM__TEST": "minitest",
            "BUNDLE_PATH": "vendor/gems",
        },
        {"FORMS": '{"password": "required", "type": "service_account"}'},
        {"CI_JOB_URL": "https://ci.test/jobs/0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"},
        {"PROMPT": "cwd=/x pwd=/long/path", "BASH_FUNC_x%%": "() { login --password=$1; }"},
    ],
)
def test_a_variable_without_a_credential_reaches_commands(environment: dict[str, str]) -> None:
    secrets = known_secrets(environment)
    assert (child_environment(environment, (), secrets), secrets) == (environment, frozenset())


@every_row(
    ("name", "value"),
    [
        ("APP_CONFIG", '{{"db": {{"password": "{}"}}}}'),
        ("DOCKER", '{{"auths": {{"r.test": {{"auth": "{}"}}}}}}'),
        ("HOOK_URL", "https://hooks.slack.com/services/T0/B0/{}"),
        ("RPC_URL", "https://mainnet.infura.io/v3/{}"),
    ],
)
def test_a_credential_in_a_member_or_a_path_is_known(name: str, value: str) -> None:
    environment = {name: value.format(TOKEN)}
    assert any(TOKEN in secret for secret in known_secrets(environment))
    assert child_environment({**environment, "OTHER": "x"}, (), ()) == {"OTHER": "x"}


def test_tools_do_not_get_what_another_program_tells_ralph() -> None:
    told = ("RALPH_TURN_LOCK", "RALPH_SANDBOX_READ", "RALPH_SANDBOX_HIDE")
    assert child_environment({**dict.fromkeys(told, "/x"), "RALPH_STATE_DIR": "/state"}, (), ()) == {
        "RALPH_STATE_DIR": "/state"
    }


@every_row(
    ("argument", "secret"),
    [
        ('--settings={"env": {"GATEWAY_TOKEN": "hunter2hunter2"}}', "hunter2hunter2"),
        ('--settings={"env": {"A_TOKEN": "hunter2\\"quoted\\\\"}}', 'hunter2"quoted\\'),
        (
            '--settings={"env":{"ANTHROPIC_CUSTOM_HEADERS":"X-Team: a\\nX-Auth-Token: hunter2hunter2"}}',
            "hunter2hunter2",
        ),
        ('{"mcpServers": {"s": {"headers": {"X-Api-Key": "hunter2hunter2"}}}}', "hunter2hunter2"),
    ],
)
def test_a_credential_in_json_on_a_command_line_is_known(argument: str, secret: str) -> None:
    assert secret in known_secrets({}, argument_secrets([argument]))


@every_row(
    "line",
    [
        "curl -H 'Authorization: Bearer hunter2hunter2' https://hooks.example/x",
        "curl -d @- https://hooks.example/T0/B0/hunter2hunter2hunter2hunter99",
        "cat >log; API_TOKEN=hunter2hunter2 tell --quietly",
        "tell --token hunter2hunter2 'and an open quote",
    ],
)
def test_a_credential_in_a_line_of_shell_is_known(line: str) -> None:
    assert any("hunter2hunter2" in secret for secret in known_secrets({}, line_secrets(line)))
    assert known_secrets({}, line_secrets("cat >~/ralph.json; notify-send 'ralph has ended'")) == frozenset()


# --- What holds a credential


CANARY = "sk-canary-0123456789"
HEADERS: Headers = Secret((("x-api-key", CANARY),))
API_KEY = Credential("x-api-key", Secret(CANARY), "ANTHROPIC_API_KEY")


def test_no_repr_of_what_holds_a_credential_shows_it() -> None:
    target = Target("a", "m", "http://a", (API_KEY,), HEADERS)
    settings = Settings(
        credential=API_KEY, custom_headers=HEADERS, unused_secrets=Secret((CANARY,)), targets=(target,)
    )
    access = EnvironmentAccess(API_KEY, HEADERS, {})
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


def test_git_starts_without_a_setting_that_holds_a_credential() -> None:
    given = {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "http.extraHeader",
        "GIT_CONFIG_VALUE_0": "Authorization: Basic dXNlcjpwYXNzd29yZDE=",
        "GIT_CONFIG_KEY_1": "core.abbrev",
        "GIT_CONFIG_VALUE_1": "9",
    }
    kept = child_environment(given, (), known_secrets(given))
    listed = subprocess.run(
        ["git", "config", "--list"],
        env=kept | {"PATH": os.defpath, "GIT_CONFIG_NOSYSTEM": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.splitlines() == ["ralph.withheld=", "core.abbrev=9"]
