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


def make_authority(folder: Path, name: str = "ca") -> tuple[Path, Path]:
    """Makes the certificate of an authority as a company might, without key identifiers, and a certificate for 127.0.0.1 and
    localhost that it has signed, in one file with its key. Returns both files.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    authority, key, request, leaf = (folder / f"{name}{end}" for end in (".pem", ".key", ".req", ".leaf"))
    config = folder / f"{name}.conf"
    config.write_text(
        f"[req]\ndistinguished_name = {name}\nprompt = no\nx509_extensions = own\n[{name}]\nCN = {name}\n"
        "[own]\nbasicConstraints = critical, CA:TRUE\n[of_leaf]\nsubjectAltName = IP:127.0.0.1, DNS:localhost\n"
    )
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-config", str(config)]
    openssl("req", "-x509", *new, "-days", "2", "-keyout", str(key), "-out", str(authority))
    both = folder / f"{name}-leaf.pem"
    openssl("req", *new, "-keyout", str(both), "-out", str(request))
    extensions = ["-extfile", str(config), "-extensions", "of_leaf"]
    signing = ["-CA", str(authority), "-CAkey", str(key), "-CAcreateserial", "-days", "2"]
    openssl("x509", "-req", "-in", str(request), *signing, *extensions, "-out", str(leaf))
    both.write_text(both.read_text() + leaf.read_text())
    return authority, both


def hashed_directory(folder: Path, *authorities: Path) -> Path:
    """Makes a directory in which OpenSSL finds authorities."""
    directory = folder / "hashed"
    directory.mkdir()
    for one in authorities:
        shutil.copy(one, directory)
    openssl("rehash", str(directory))
    return directory
