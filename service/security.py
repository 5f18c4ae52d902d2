"""API keys: random, shown once, stored as a hash, compared in constant time."""

import hashlib
import hmac
import secrets

KEY_PREFIX = "braid_"


def new_key() -> str:
    """A fresh API key with 256 bits of randomness."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> bytes:
    """What is stored of a key: SHA-256; keys are random, so no slow hash is needed."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def same_key(one: str, other: str) -> bool:
    """Compare two keys in time that tells nothing about where they differ."""
    return hmac.compare_digest(hash_key(one), hash_key(other))
