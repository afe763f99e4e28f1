from __future__ import annotations

import stat

import pytest

from ralph.effects.loop.seal import KEY_FILE, Seal


def test_a_user_has_one_seal_and_another_user_another(tmp_path) -> None:
    mine = {"HOME": str(tmp_path / "mine")}
    for home in ("mine", "theirs"):
        (tmp_path / home).mkdir()
    once, again = Seal.of_user(mine)(b"data"), Seal.of_user(mine)(b"data")
    assert once == again
    assert once != Seal.of_user(mine)(b"other data")
    assert once != Seal.of_user({"HOME": str(tmp_path / "theirs")})(b"data")


def test_its_key_is_private_and_no_session(tmp_path) -> None:
    Seal.of_user({"HOME": str(tmp_path)})
    [key] = tmp_path.rglob(KEY_FILE)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.parent.name == "sessions"
    assert key.suffix != ".jsonl"


@pytest.mark.parametrize("left", [b"", b"short"])
def test_what_a_full_disk_left_of_a_key_is_replaced(tmp_path, left: bytes) -> None:
    environment = {"HOME": str(tmp_path)}
    Seal.of_user(environment)
    [key] = tmp_path.rglob(KEY_FILE)
    key.write_bytes(left)
    assert Seal.of_user(environment)(b"data") == Seal.of_user(environment)(b"data")


def test_a_link_in_its_place_is_not_followed(tmp_path) -> None:
    environment = {"HOME": str(tmp_path)}
    Seal.of_user(environment)
    [key] = tmp_path.rglob(KEY_FILE)
    key.rename(tmp_path / "elsewhere")
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Seal.of_user(environment)
