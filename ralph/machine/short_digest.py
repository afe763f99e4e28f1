"""Makes names for directories and files from paths of any length. Contents of files are not hashed here, because
Python's own functions are slow for them.
"""

from ralph.machine.loading import python_hashlib


def short_digest(data: bytes, digits: int) -> str:
    """The first hexadecimal digits of the SHA-256 digest of `data`. `digits` is their number, at most 64."""
    digest: str = python_hashlib().sha256(data).hexdigest()
    return digest[:digits]
