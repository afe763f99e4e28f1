"""Chooses the authorities whose certificates are trusted. Imports OpenSSL, which plain http does not need."""

from __future__ import annotations

import os
import re
import ssl
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import certifi

from ralph.machine.connecting import AUTHORITIES

if sys.platform == "darwin":
    import truststore

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Where the systems keep all their authorities in one file: Fedora and RHEL, Debian, Alpine and NixOS, SUSE, BSD.
_BUNDLES = (
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
# The names by which OpenSSL finds an authority in a directory.
_HASHED = r"[0-9a-f]{8}\.\d+"


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Makes a TLS context that trusts the authorities in `ca_file` alone. If that is None, it trusts those of certifi (on macOS:
    of the system's keychains), of the system, and of the other variables that name such files.

    Raises OSError if `ca_file` cannot be used. What another file or directory lacks is left out.
    """
    context = _usual_context() if ca_file is None else ssl.create_default_context(cafile=ca_file)
    # Python 3.13 refuses authorities without key identifiers, as many companies have. Other programs do not.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def unusable_places(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that name authorities, with a file or directory that holds none."""
    for variable, place in _named_places(environment):
        if not _certificates(place):
            yield variable, place


def _usual_context() -> ssl.SSLContext:
    places = [place for _, place in _named_places(os.environ)]
    if sys.platform == "darwin":
        context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        known: set[bytes] = set()
    else:
        context = ssl.create_default_context(cafile=certifi.where())
        known = _certificates(certifi.where())
        built_in = ssl.get_default_verify_paths()
        # The system's directory of authorities, if OpenSSL can find them there, and its file, which may hold more of them.
        folders = filter(_hashed_in, (built_in.openssl_capath, "/etc/ssl/certs"))
        files = (one for one in (built_in.openssl_cafile, *_BUNDLES) if Path(one).is_file())
        places = [*islice(folders, 1), *islice(files, 1), *places]
    for place in dict.fromkeys(map(os.path.realpath, places)):
        _add(context, place, known)
    return context


def _named_places(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable in AUTHORITIES:
        value = environment.get(variable, "")
        for place in value.split(os.pathsep) if variable == "SSL_CERT_DIR" else (value,):
            if place:
                yield variable, place


def _add(context: ssl.SSLContext, place: str, known: set[bytes]) -> None:
    """Adds the authorities of a file or directory to the context and to `known`. OpenSSL reads those of a directory when it needs
    them. The others take 0.2 ms each, so only unknown ones are loaded.
    """
    found = _certificates(place)
    if Path(place).is_dir():
        context.load_verify_locations(capath=place)
    else:
        for one in found - known:
            with suppress(OSError):  # damaged, and the others are not
                context.load_verify_locations(cadata=(_BEGIN + one + _END).decode("ascii", "replace"))
    known |= found


def _certificates(place: str) -> set[bytes]:
    """The certificates in a file, or in the files of a directory in which OpenSSL finds them. Empty if there are none."""
    found: set[bytes] = set()
    for path in _hashed_in(place) or [place]:
        with suppress(OSError), open(path, "rb") as file:
            found.update(part.partition(_END)[0] for part in file.read().split(_BEGIN)[1:])
    return found


def _hashed_in(directory: str) -> list[str]:
    try:
        return [one.path for one in os.scandir(directory) if re.fullmatch(_HASHED, one.name)]
    except OSError:
        return []
