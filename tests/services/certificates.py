"""Makes self-signed certificates with openssl, both valid and expired ones."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

CA_CONFIG = """
[ca]
default_ca = own
[own]
database = {folder}/index.txt
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
[req]
distinguished_name = nobody
[nobody]
"""


def make_certificate(folder: Path, *, names: str, first_day: str = "", last_day: str = "") -> Path:
    """Makes a self-signed certificate and writes it and its key into one file. `names` are its alternative names,
    as openssl writes them. It is valid from `first_day` to `last_day` (YYMMDD), or from now on for two days.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, request, certificate = (str(folder / name) for name in ("key.pem", "request.pem", "cert.pem"))
    config = folder / "ca.conf"
    config.write_text(CA_CONFIG.format(folder=folder))
    (folder / "index.txt").touch()
    (folder / "serial").write_text("01")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={names}"]
    openssl("req", "-config", str(config), *curve, *subject, "-keyout", key, "-out", request)
    days = (
        ["-startdate", f"{first_day}000000Z", "-enddate", f"{last_day}000000Z"]
        if first_day
        else ["-days", "2"]
    )
    signing = ["-batch", "-notext", "-selfsign", "-keyfile", key, "-in", request, "-out", certificate]
    openssl("ca", "-config", str(config), *signing, *days)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


def openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
