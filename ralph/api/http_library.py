"""Loads httpx and httpx-sse without OpenSSL, which only TLS needs. The other modules import it from here."""

from ralph.machine.loading import load_without_openssl

with load_without_openssl():
    import httpx
    import httpx_sse

__all__ = ("httpx", "httpx_sse")
