from __future__ import annotations

from ralph.places.filtered_copy import without_credentials
from tests.rows import every_row


@every_row(
    ("name", "text", "kept"),
    [
        (".npmrc", "fund=false\n//h/:_authToken=a1\n@x:registry=https://h/\n_auth = b\n", "fund=false\n@x:registry=https://h/\n"),
        (".npmrc", "; //h/:_password=a1\n# a word\nproxy=http://me:word@h\n", "# a word\n"),
        (".npmrc", 'registry=https://h/\nkey="-----BEGIN PRIVATE KEY-----"\n', "registry=https://h/\n"),
        ("pip.conf", "[global]\nextra-index-url =\n  https://a/\n  https://me:word@b/\n", "[global]\nextra-index-url =\n  https://a/\n"),
        (".npmrc", "a=1\n-----BEGIN PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END PRIVATE KEY-----\n", "a=1\n"),
        ("pip.conf", "[x]\npassword =\n   one\n   two\ntimeout = 3\n", "[x]\ntimeout = 3\n"),
        (".gitconfig", "[user]\n\tname = A\n\temail = a@b.c\n\tsigningkey = K\n", "[user]\n\tname = A\n\temail = a@b.c\n\tsigningkey = K\n"),
        (".gitconfig", "[http]\n\textraHeader = a\\\n b\n\tproxy = x\n", "[http]\n\tproxy = x\n"),
        (".gitconfig", '[url "https://word@h/"]\n\tinsteadOf = https://h/\n[alias]\n\tco = x\n', "[alias]\n\tco = x\n"),
        (".gitconfig", "[credential]\n\thelper = store\n[author]\n\tname = B\n", "[credential]\n\thelper = store\n[author]\n\tname = B\n"),
        (".yarnrc.yml", "npmAuthToken: >-\n  a1\nnpmScopes:\n  x:\n    npmAuthIdent: b\nnodeLinker: y\n", "npmScopes:\n  x:\nnodeLinker: y\n"),
        (".yarnrc", 'registry "https://h/"\n"//h/:_authToken" a1\n', 'registry "https://h/"\n'),
        ("config.toml", '[env]\nMY_TOKEN = "a"\nHF_TOKEN = \'\'\'\na1\n\'\'\'\nMODE = "x"\n', '[env]\nMODE = "x"\n'),
        ("uv.toml", '[[index]]\nurl = "https://me:word@h/"\nname = "x"\n', '[[index]]\nname = "x"\n'),
        ("gradle.properties", "org.gradle.daemon=false\nnexusUser=me\nsystemProp.https.proxyPassword=x\nsystemProp.https.proxyHost=h\n", "org.gradle.daemon=false\nsystemProp.https.proxyHost=h\n"),
        ("env", "GOPROXY=https://me:word@h\nGOFLAGS=-x\n", "GOFLAGS=-x\n"),
        (
            "settings.xml",
            "<settings xmlns='u'><!-- <password>a</password> --><offline>true</offline><servers><server/></servers></settings>",
            "<settings><offline>true</offline></settings>",
        ),
        (
            "settings.xml",
            "<s><m><id>a</id><url>https://me:word@h/</url></m><m><url>https://h/</url></m><p><my.token>x</my.token></p></s>",
            "<s><m><url>https://h/</url></m><p /></s>",
        ),
        (
            "NuGet.Config",
            "<c><config><add key='x' value='y'/><add key='ClearTextPassword' value='z'/></config></c>",
            '<c><config><add key="x" value="y" /></config></c>',
        ),
        ("settings.xml", "<settings><password>x", ""),
    ],
)  # fmt: skip
def test_what_has_the_name_or_the_form_of_a_credential_is_cut(name: str, text: str, kept: str) -> None:
    assert without_credentials(name, text) == kept


@every_row("name", [".npmrc", "settings.xml", "config.toml"])
def test_a_file_without_credentials_stays_as_it_is(name: str) -> None:
    text = (
        "<settings  xmlns='u'><!-- words --><offline>true</offline></settings>"
        if "xml" in name
        else "# words\na = 1\n"
    )
    assert without_credentials(name, text) == text
