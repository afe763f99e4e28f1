"""Tests that commands find what the user's own caches hold in those of the checkout, and can change neither those nor, by them,
what lies elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ralph.places.home import lay_caches
from ralph.places.places import xdg_bases
from ralph.places.table import CACHES
from tests.sandbox.boxes import LEVELS, box_of, means_of, shell_in

OWN = {
    ".cache/ms-playwright/chromium-1/chrome": "browser",
    ".cache/huggingface/hub/models--a--b/blobs/big": "x" * 100_000,
    ".cache/huggingface/hub/models--a--b/snapshots/1/config.json": "config",
    ".cache/huggingface/hub/models--a--b/refs/main": "1",
    ".local/share/uv/python/cpython-3/bin/python": "python",
    ".triton/cache/hash/kernel": "kernel",
    ".ansible/collections/ansible_collections/community/general/x": "role",
    ".local/share/virtualenvs/work-a/bin/python": "pipenv",
    ".cache/pypoetry/virtualenvs/work-b/bin/python": "poetry",
    ".local/share/hatch/env/virtual/work/a/work/bin/python": "hatch",
    ".cache/node/corepack/lastKnownGood.json": "{}",
    ".cache/node/corepack/v1/yarn/4.0.0/yarn.js": "yarn",
    ".cache/Cypress/13.0.0/Cypress/Cypress": "cypress",
    ".cache/Cypress/13.0.0/binary_state.json": "verified",
    ".nuget/packages/newtonsoft.json/13.0.3/lib": "nuget",
    ".pub-cache/hosted/pub.dev/args-2.4.0/pubspec.yaml": "pub",
    ".pub-cache/hosted-hashes/pub.dev/args-2.4.0.sha256": "hash",
    ".hex/packages/hexpm/jason-1.4.1.tar": "hex",
    ".mix/archives/hex-2.1.1/hex": "archive",
    ".mix/elixir/1-17/rebar3": "r" * 100_000,
    ".sbt/boot/scala-2.12.18/org.scala-sbt/sbt/1.9.9/x.jar": "sbt",
    ".ivy2/local/org/name/1/x": "ivy",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, text in OWN.items():
        path = tmp_path / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "home"


def laid(home: Path, packages: Path, unreadable: str = "nothing") -> dict[str, str]:
    """The entries of the caches that are links, or the text of files."""
    lay_caches(
        str(packages),
        {**xdg_bases([str(home)], {}), "~": (str(home),)},
        {},
        lambda path: unreadable not in path,
    )
    found = {}
    for path in sorted(packages.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(packages))] = "-> " + str(path.readlink()).removeprefix(f"{home}/")
        elif path.is_file():
            found[str(path.relative_to(packages))] = path.read_text()
    return found


def test_directories_and_large_files_are_linked_and_small_files_copied(home, tmp_path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    hub = ".cache/huggingface/hub/models--a--b"
    first = laid(home, packages)
    assert first == {
        "ansible/collections/ansible_collections/community/general": "-> .ansible/collections/ansible_collections/community/general",
        "Cypress/13.0.0/Cypress": "-> .cache/Cypress/13.0.0/Cypress",
        "Cypress/13.0.0/binary_state.json": "verified",
        "hatch/config.toml": "",
        "hatch/env/virtual/work/a/work": "-> .local/share/hatch/env/virtual/work/a/work",
        "huggingface/hub/models--a--b/blobs/big": f"-> {hub}/blobs/big",
        "huggingface/hub/models--a--b/refs/main": "1",
        "huggingface/hub/models--a--b/snapshots/1": f"-> {hub}/snapshots/1",
        "ms-playwright/chromium-1": "-> .cache/ms-playwright/chromium-1",
        "node/corepack/lastKnownGood.json": "{}",
        "node/corepack/v1/yarn/4.0.0": "-> .cache/node/corepack/v1/yarn/4.0.0",
        "triton/hash": "-> .triton/cache/hash",
        "uv/python/cpython-3": "-> .local/share/uv/python/cpython-3",
        "virtualenvs/work-a": "-> .local/share/virtualenvs/work-a",
        "pypoetry/virtualenvs/work-b": "-> .cache/pypoetry/virtualenvs/work-b",
        "nuget/packages/newtonsoft.json/13.0.3": "-> .nuget/packages/newtonsoft.json/13.0.3",
        "pub-cache/hosted/pub.dev/args-2.4.0": "-> .pub-cache/hosted/pub.dev/args-2.4.0",
        "pub-cache/hosted-hashes/pub.dev/args-2.4.0.sha256": "hash",
        "hex/packages/hexpm/jason-1.4.1.tar": "hex",
        "mix/archives/hex-2.1.1": "-> .mix/archives/hex-2.1.1",
        "mix/elixir/1-17/rebar3": "-> .mix/elixir/1-17/rebar3",
        "sbt/boot/scala-2.12.18/org.scala-sbt/sbt/1.9.9": "-> .sbt/boot/scala-2.12.18/org.scala-sbt/sbt/1.9.9",
        "ivy2/local/org/name": "-> .ivy2/local/org/name",
    }
    (packages / "hatch/config.toml").write_text("mine")
    # What a command makes stays, and what the user removes or adds is seen.
    (packages / "huggingface/hub/models--a--b/refs/main").write_text("2")
    (packages / "ms-playwright/firefox-2").mkdir()
    (packages / "ms-playwright/firefox-2/x").write_text("own")
    (home / ".cache/ms-playwright/chromium-1").rename(home / ".cache/ms-playwright/chromium-3")
    changed = laid(home, packages)
    assert changed.pop("hatch/config.toml") == "mine"
    assert changed.pop("ms-playwright/chromium-3") == "-> .cache/ms-playwright/chromium-3"
    assert changed.pop("ms-playwright/firefox-2/x") == "own"
    assert changed.pop("huggingface/hub/models--a--b/refs/main") == "2"
    assert changed.items() <= first.items()
    assert "ms-playwright/chromium-1" not in changed


def test_nothing_that_commands_must_not_read_or_may_write_is_laid_out(home, tmp_path) -> None:
    (tmp_path / "packages").mkdir()
    made = laid(home, tmp_path / "packages", unreadable="models--a--b")
    assert not any("models--a--b" in name for name in made)
    assert len(made) == 20


@pytest.mark.parametrize("place", ["uv", "uv/python", "huggingface/hub/models--a--b", "ms-playwright"])
def test_a_link_that_a_command_left_in_the_caches_is_not_followed(home, tmp_path, place) -> None:
    packages, elsewhere = tmp_path / "packages", tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = packages / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    assert "triton/hash" in laid(home, packages)
    assert ([*elsewhere.iterdir()], link.readlink()) == ([], elsewhere)


TOOLS = f"""
for name in {" ".join(CACHES)}; do eval ": \\${{$name:?}}" || exit; done
"""
TOOLS += """
cat $XDG_CACHE_HOME/ms-playwright/chromium-1/chrome $XDG_CACHE_HOME/huggingface/hub/models--a--b/snapshots/1/config.json &&
cat $UV_PYTHON_INSTALL_DIR/cpython-3/bin/python $TRITON_CACHE_DIR/hash/kernel && ! (echo x > $TRITON_CACHE_DIR/hash/kernel) 2>&- &&
cat $WORKON_HOME/work-a/bin/python $HATCH_DATA_DIR/env/virtual/work/a/work/bin/python $XDG_CACHE_HOME/node/corepack/v1/yarn/4.0.0/yarn.js &&
cat $HATCH_CONFIG && mkdir $WORKON_HOME/other $HATCH_DATA_DIR/env/virtual/other && mkdir -p $PDM_LOG_DIR $YARN_GLOBAL_FOLDER $PM2_HOME &&
! rm $UV_PYTHON_INSTALL_DIR/cpython-3/bin/python 2>&- &&
mkdir $MPLCONFIGDIR $IPYTHONDIR $GRADLE_USER_HOME $CUDA_CACHE_PATH $TORCHINDUCTOR_CACHE_DIR $TRITON_CACHE_DIR/new &&
cat $NUGET_PACKAGES/newtonsoft.json/13.0.3/lib $PUB_CACHE/hosted/pub.dev/args-2.4.0/pubspec.yaml $HEX_HOME/packages/hexpm/*.tar &&
mkdir -p $NUGET_PACKAGES/other/1 $NUGET_HTTP_CACHE_PATH $DOTNET_CLI_HOME/.dotnet $PUB_CACHE/hosted/pub.dev/other-1 $HEX_HOME/packages/hexpm \\
 $MIX_HOME/archives/new $GEM_HOME $UV_CACHE_DIR $DENO_DIR $BUN_INSTALL_CACHE_DIR $WRANGLER_LOG_PATH $XDG_CACHE_HOME/sbt/boot &&
case "$SBT_OPTS" in "-Dsbt.boot.directory=$XDG_CACHE_HOME/sbt/boot "*) ;; *) exit 1;; esac &&
case "$MAVEN_OPTS" in "-Xmx1g -Dmaven.repo.local=$XDG_CACHE_HOME/maven -Dmaven.repo.local.tail="*) echo ok;; esac
echo ${npm_config_store_dir:-none}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_commands_find_the_users_caches_and_write_their_own(level, home, tmp_path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "MAVEN_OPTS": "-Xmx1g"}
    with box_of(means_of(level), [work], environment) as box:
        ran = shell_in(box, work, TOOLS, environment)
        (work / "package.json").write_text('{"packageManager": "pnpm@10.1.0"}')
        store = shell_in(box, work, "echo $npm_config_store_dir", environment).stdout
    assert ran.stdout == "browserconfigpythonkernelpipenvhatchyarnnugetpubhexok\nnone\n", ran.stderr
    assert store.endswith("/pnpm\n")
    assert (home / ".triton/cache/hash/kernel").read_text() == "kernel"


@pytest.mark.parametrize("level", LEVELS)
def test_a_cache_that_a_variable_names_is_used_in_the_work_and_replaced_elsewhere(
    level, home, tmp_path
) -> None:
    """A shell, a CI or a container may name places that commands cannot write. What they hold is found."""
    work = tmp_path / "work"
    work.mkdir()
    hub = home / "models/hub/models--a--b/snapshots/2"
    hub.mkdir(parents=True)
    (hub / "config.json").write_text("own")
    named = {"UV_CACHE_DIR": work / ".uv", "DENO_DIR": home / ".deno", "HF_HOME": home / "models"}
    named |= {"BUN_INSTALL": home / ".bun", "GEM_HOME": home / ".gems"}
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]} | {
        name: str(path) for name, path in named.items()
    }
    tools = (
        "mkdir -p $UV_CACHE_DIR $DENO_DIR $BUN_INSTALL_CACHE_DIR $GEM_HOME && cat $HF_HOME/hub/*/snapshots/2/config.json;"
        ' echo " $GEM_PATH"'
    )
    with box_of(means_of(level), [work], environment) as box:
        ran = shell_in(box, work, tools, environment)
    assert ran.stdout == f"own {home}/.gems:\n", ran.stderr
    assert (work / ".uv").is_dir()


@pytest.mark.parametrize(
    ("variables", "place"), [(["WORKON_HOME"], ".virtualenvs"), ([], ".local/share/virtualenvs")]
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_file_with_credentials_is_not_copied_and_its_copy_is_removed(
    level, home, tmp_path, variables, place
) -> None:
    """Commands see it without them, where they see it at all. Whatever holds some, by its name, is not copied either."""
    work = tmp_path / "work"
    work.mkdir()
    (home / ".virtualenvs").mkdir()
    hooks = home / place
    for name in ("postactivate", "pip.conf", ".env"):
        (hooks / name).write_text(
            "export LANG=C\nexport AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCY\n"
        )
    environment = {"HOME": str(home), "PATH": os.environ["PATH"]}
    environment |= dict.fromkeys(variables, str(hooks))
    show = f"cat $WORKON_HOME/postactivate {hooks}/postactivate; find $WORKON_HOME -type f"
    for _ in range(2):
        with box_of(means_of(level), [work], environment) as box:
            ran = shell_in(box, work, show, environment)
            packages = shell_in(box, work, "echo $WORKON_HOME", environment).stdout.strip()
        assert ran.stdout == ("export LANG=C\n" * 2 if level == "namespaces" else ""), ran
        for name in ("postactivate", "pip.conf", ".env"):
            copy = Path(packages, name)
            copy.unlink(missing_ok=True)
            copy.write_text((hooks / name).read_text())
