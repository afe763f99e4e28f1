from __future__ import annotations

from ralph.places.home import without_credentials
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
        ("config.toml", '[env]\nMY_TOKEN = "a"\nHF_TOKEN = \'\'\'\na1\n\'\'\'\nMODE = "x"\n', '"env" = {"MODE" = "x"}\n'),
        ("uv.toml", '[[index]]\nurl = "https://me:word@h/"\nname = "x"\n', '"index" = [{"name" = "x"}]\n'),
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
        ("config.toml", 'a = "b', ""),
        (".gitconfig", "[a]\n\tb = c\n=\n", ""),
        (".yarnrc.yml", "a: [x,\n  {npmAuthToken:\n b}]\n", ""),
        ("settings.xml", "<!DOCTYPE s [<!ENTITY a 'b'>]><s>&a;</s>", ""),
        ("settings.xml", "<s><?a password=b?></s>", ""),
        ("config.toml", 'a = 1.5 # token = x\nb = [true, 1979-05-27T07:32:00Z, nan, "\\u00e9\\u007f\\n"]\n', '"a" = 1.5\n"b" = [true, 1979-05-27 07:32:00+00:00, nan, "\u00e9\\u007f\\n"]\n'),
        ("more", '[alias "x y\\"z"]\n\tco = "a\\tb" c ; token = x\n', '[alias "x y\\"z"]\n\tco = "a\\tb" c\n'),
    ],
)  # fmt: skip
def test_what_has_the_name_or_the_form_of_a_credential_is_cut(name, text, kept) -> None:
    assert without_credentials(name, text) == kept


@every_row(
    ("name", "text"),
    [
        (".gitconfig", "[github] token = CUT\n"),
        (".gitconfig", "[http] extraHeader = Authorization: Token CUT\n"),
        (".gitconfig", '[credential]\n\thelper = "!f() { echo username=me; echo password=CUT; }; f"\n'),
        (".gitconfig", "[http]\n\tproxy = user:CUT@proxy.example:3128\n"),
        (".gitconfig", '[remote "o"]\n\turl = https://u:p\\"CUT@h/x\n'),
        (".gitconfig", '[url "https://u:CUT@h"]\n\tinsteadOf = x\n'),
        (".gitconfig", "[core]\n\tsshCommand = sshpass -p CUT ssh\n[alias]\n\tx = !curl -u me:CUT https://h\n"),
        (".gitconfig", "[user]\n\tname = x ; password CUT\n"),
        (".gitconfig", "[gitlab]\n\tpersonal-access = CUT\n\tpat = CUT\n"),
        (".gitconfig", "[alias]\n\tx = !curl -uCUT: https://h\n\ty = !curl --oauth2-bearer CUT https://h\n"),
        (".npmrc", "https-proxy=CUT12345@proxy.example:3128\n"),
        ("more", "[github] token = CUT\n"),
        (".gitconfig", "[alias]\n\tp = !glab --token CUT x\n"),
        ("config.toml", '[alias]\np = "publish --token CUT"\nq = ["publish", "--token", "CUT"]\n'),
        ("env", "export MY_TOKEN=\\\nCUT\n"),
        ("env", 'MY_TOKEN="\nCUT"\n'),
        ("env", "MY_TOKEN=$(cat <<E\nCUT\nE\n)\n"),
        (".yarnrc.yml", 'npmAuthToken: "S3\\\nCUT"\n'),
        ("config", "[github] token = CUT\n"),
        ("config", '[registries]\nx = { index = "https://h", token = "CUT" }\n'),
        ("config.toml", '[tasks.x]\nenv = { DB_PASSWORD = "CUT" }\n'),
        ("config.toml", '[http-basic]\nfoo = { username = "x", password = "CUT" }\n'),
        ("config.toml", '[http-basic.foo]\nx = """\nCUT"""\n'),
        ("config.toml", '[env]\nX = """\na\n"""\nDB_PASSWORD = [\n"CUT"\n]\n"DB.PASS\\u0057ORD" = "CUT"\n'),
        ("config.toml", '[env]\nX = { value = "CUT", redact = true }\n'),
        ("uv.toml", 'index = [{ name = "x", url = "https://u:CUT@h" }]\n'),
        (".yarnrc.yml", "npmRegistries: { '//r': { npmAuthToken: CUT } }\n"),
        (".yarnrc.yml", "npmAuthToken:\nCUT\n"),
        (".yarnrc.yml", "npmAuthToken: >-\n\n  CUT\n"),
        ("NuGet.Config", '<c><clientCertificates><fileCert path="c" clearTextPassword="CUT"/></clientCertificates></c>'),
        ("NuGet.Config", '<c><packageSources><add key="x" value="https://www.myget.org/F/f/auth/CUTCUT/api"/></packageSources></c>'),
        (".condarc", "channels:\n  - https://conda.anaconda.org/t/CUTCUT/chan\n"),
        (".condarc", "proxy_servers: {https: 'https://u:CUT@h'}\n"),
        ("pip.conf", "[global]\nproxy = user:CUT@proxy.example:3128\n"),
        ("pip.conf", "[global]\nindex-url = https://h/simple?token=CUT\n  https://h/simple?sig=CUT\n"),
        ("pip.conf", "[global]\nindex-url = https://dl.cloudsmith.io/CUT/o/r/python/simple\n"),
        ("env", "GOFLAGS=-ldflags=-X=main.apiKey=CUT\nGOAUTH=netrc; CUT\n"),
        (".npmrc", "otp=CUT\n"),
        (".npmrc", "fund=false\n//r/:_authToken\n=CUT\n"),
        ("gradle.properties", "org.gradle.jvmargs=-Xmx2g -Dhttp.proxyPassword=CUT\nnexus CUT\n"),
        ("settings.xml", '<s><p><property name="db.password" value="CUT"/></p></s>'),
        ("settings.xml", "<s><p><property><name>Private-Token</name><value>CUT</value></property></p></s>"),
        ("settings.xml", "<s><p><sonar.login>CUT</sonar.login><url>https://h/x?apikey=CUT</url></p></s>"),
    ],
)  # fmt: skip
def test_nothing_of_a_credential_is_left(name, text) -> None:
    assert "CUT" not in without_credentials(name, text)


@every_row(
    ("name", "text"),
    [
        (
            ".gitconfig",
            ("# mine\n[user]\n\tname = A B\n\temail = a@b.c\n[core]\n\tsshCommand = ssh -i ~/.ssh/id ; note\n[commit]\n\tgpgsign\n"
            '[url "git@github.com:"]\n\tinsteadOf = https://github.com/\n[credential "https://github.com"]\n\thelper =\n'
            "\thelper = !gh auth git-credential\n[alias]\n\tlg = log --author=me --pretty=format:%h\n[http]\n\tproxy = http://h:3128\n"),
        ),
        (".gitignore", "# passwords of nobody are here\n*.pyc\nsecrets/\n!token.txt\n.env\n"),
        ("config.toml", '[registries.x]\nindex = "sparse+https://h/i/"\n[tools]\n"npm:prettier" = "3"\nnode = ["20", "22"]\n'),
        ("pip.conf", "[global]\nindex-url = https://h/simple\n    https://i/simple\ntrusted-host = h\n"),
        (".condarc", "channels:\n  - conda-forge\n  - https://h/t/\nchannel_priority: strict\n"),
        ("settings.xml", "<?xml version='1.0'?><s><mirror><id>m</id><url>https://h/</url></mirror></s>"),
    ],
)  # fmt: skip
def test_usual_configuration_stays_as_it_is(name, text) -> None:
    assert without_credentials(name, text) == text


@every_row("name", [".npmrc", "settings.xml", "config.toml"])
def test_a_file_without_credentials_stays_as_it_is(name) -> None:
    text = (
        "<settings  xmlns='u'><!-- words --><offline>true</offline></settings>"
        if "xml" in name
        else "# words\na = 1\n"
    )
    assert without_credentials(name, text) == text
