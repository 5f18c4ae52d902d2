"""Seals secrets for storage: AES-256-GCM, bound to where they belong, with keys that rotate."""

import hashlib
import secrets
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.errors import ConfigurationError

LEAST_KEY_CHARACTERS = 32
FORMAT = b"\x01"
ID_BYTES = 4
NONCE_BYTES = 12
PURPOSE = b"braid provider secrets"


class SealError(Exception):
    """A secret that cannot be opened: another key, another place, or damaged."""


class Sealer:
    """Seals with the first of its keys and opens with any of them.

    A sealed secret is format (1 byte), key id (4), nonce (12), ciphertext and tag.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        derived = [_derive(key) for key in keys]
        self._keys = {_key_id(key): AESGCM(key) for key in reversed(derived)}
        self._newest = _key_id(derived[0]) if derived else None

    @property
    def ready(self) -> bool:
        """Whether there is a key to seal with."""
        return self._newest is not None

    def seal(self, secret: str, place: str) -> bytes:
        """Seal a secret for one place; it opens nowhere else."""
        if self._newest is None:
            raise SealError("there is no key to seal with")
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._keys[self._newest].encrypt(nonce, secret.encode(), place.encode())
        return FORMAT + self._newest + nonce + sealed

    def open(self, sealed: bytes, place: str) -> str:
        """The secret; raises `SealError`."""
        key = self._keys.get(sealed[1 : 1 + ID_BYTES])
        if key is None or sealed[:1] != FORMAT:
            raise SealError("the secret was sealed with a key that is not in BRAID_SECRET_KEY")
        nonce = sealed[1 + ID_BYTES : 1 + ID_BYTES + NONCE_BYTES]
        try:
            return key.decrypt(nonce, sealed[1 + ID_BYTES + NONCE_BYTES :], place.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise SealError("the secret does not belong where it is stored") from error

    def is_newest(self, sealed: bytes) -> bool:
        """Whether a secret is sealed with the newest key."""
        return sealed[:1] == FORMAT and sealed[1 : 1 + ID_BYTES] == self._newest


def parse_keys(listed: str) -> list[str]:
    """The keys of a comma-separated list, newest first; raises `ConfigurationError`."""
    keys = [key.strip() for key in listed.split(",") if key.strip()]
    if any(len(key) < LEAST_KEY_CHARACTERS for key in keys):
        raise ConfigurationError(
            f"BRAID_SECRET_KEY: each key needs at least {LEAST_KEY_CHARACTERS} random characters"
        )
    return keys


def _derive(key: str) -> bytes:
    return HKDF(hashes.SHA256(), length=32, salt=None, info=PURPOSE).derive(key.encode())


def _key_id(derived: bytes) -> bytes:
    return hashlib.sha256(b"id\0" + derived).digest()[:ID_BYTES]
