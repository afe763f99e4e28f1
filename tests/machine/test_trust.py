"""Whose certificates are trusted, by real handshakes."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import certifi
import pytest

from ralph.machine.connecting import AUTHORITIES
from ralph.machine.trust import trusting, unusable_places
from tests.services.certificates import hashed_directory, make_authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _pytest.monkeypatch import MonkeyPatch


class Company(NamedTuple):
    authority: Path
    directory: Path
    """A directory in which OpenSSL finds the authority."""
    port: int
    """A port of 127.0.0.1 where a server shows a certificate of this authority."""


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    folder = tmp_path_factory.mktemp("company")
    authority, leaf = make_authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf)

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                opened, _ = listener.accept()
                with opened, suppress(OSError):
                    context.wrap_socket(opened, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield Company(authority, hashed_directory(folder, authority), listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


class Store(NamedTuple):
    """The places of the system's store, as `ssl.get_default_verify_paths` names them."""

    openssl_cafile: str = "/nonexistent"
    openssl_capath: str = "/nonexistent"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: MonkeyPatch) -> None:
    for name in (*AUTHORITIES, "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ssl, "get_default_verify_paths", Store)


def is_trusted(company: Company, ca_file: str | None = None) -> bool:
    with socket.create_connection(("127.0.0.1", company.port)) as opened:
        try:
            trusting(ca_file).wrap_socket(opened, server_hostname="localhost").close()
        except ssl.SSLCertVerificationError:
            return False
        return True


def test_a_company_is_not_trusted_by_itself(company) -> None:
    assert not is_trusted(company)


@pytest.mark.parametrize("variable", AUTHORITIES)
def test_each_variable_adds_an_authority(company, monkeypatch, variable, tmp_path) -> None:
    place = company.directory if variable == "SSL_CERT_DIR" else company.authority
    monkeypatch.setenv(variable, f"/nonexistent:{place}" if variable == "SSL_CERT_DIR" else str(place))
    assert is_trusted(company)
    assert ssl.create_default_context(cafile=certifi.where()).cert_store_stats()["x509_ca"] > 50
    assert trusting(None).cert_store_stats()["x509_ca"] > 50, "the usual ones are trusted, too"
    shutil.copy(certifi.where(), tmp_path / "other.pem")
    assert not is_trusted(company, str(tmp_path / "other.pem")), "a named file replaces all others"


@pytest.mark.parametrize("is_directory", [True, False], ids=["directory", "file"])
def test_the_store_of_the_system_is_trusted_and_replaced_by_a_named_file(
    company, monkeypatch, *, is_directory
) -> None:
    store = (
        Store(openssl_capath=str(company.directory))
        if is_directory
        else Store(openssl_cafile=str(company.authority))
    )
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: store)
    assert is_trusted(company)
    assert not is_trusted(company, certifi.where())


def test_a_file_of_the_system_may_hold_more_than_its_directory(company, monkeypatch, tmp_path) -> None:
    """As after `cat company.pem >> /etc/ssl/certs/ca-certificates.crt`."""
    other, _ = make_authority(tmp_path, "other")
    store = Store(str(company.authority), str(hashed_directory(tmp_path, other)))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: store)
    assert is_trusted(company)


def test_an_authority_without_key_identifiers_is_trusted_on_python_3_13_too(company, monkeypatch) -> None:
    """Before 3.13, the flag that refuses it is off by default."""
    as_usual = ssl.create_default_context

    def as_in_3_13(*, cafile: str) -> ssl.SSLContext:
        context = as_usual(cafile=cafile)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_in_3_13)
    assert is_trusted(company, str(company.authority))
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(company.authority))
    assert is_trusted(company)


def test_what_another_file_lacks_is_left_out_and_named(company, monkeypatch, tmp_path) -> None:
    (tmp_path / "damaged.pem").write_text(
        f"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n{company.authority.read_text()}"
    )
    (tmp_path / "empty.pem").touch()
    environment = {
        "NODE_EXTRA_CA_CERTS": "/nonexistent.pem",
        "CURL_CA_BUNDLE": str(tmp_path / "empty.pem"),
        "REQUESTS_CA_BUNDLE": str(tmp_path / "damaged.pem"),
        "SSL_CERT_DIR": f"{tmp_path}:{company.directory}",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_trusted(company)
    assert list(unusable_places(environment)) == [
        ("SSL_CERT_DIR", str(tmp_path)),
        ("NODE_EXTRA_CA_CERTS", "/nonexistent.pem"),
        ("CURL_CA_BUNDLE", str(tmp_path / "empty.pem")),
    ]
