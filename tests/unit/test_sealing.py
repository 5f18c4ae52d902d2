"""Sealed secrets open with the right key in the right place, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ConfigurationError
from service.sealing import Sealer, SealError, parse_keys

OLD, NEW = "o" * 32, "n" * 32


@given(st.text(), st.text(max_size=50))
def test_what_was_sealed_opens_again(secret: str, place: str) -> None:
    try:
        (secret + place).encode()
    except UnicodeEncodeError:
        return
    sealer = Sealer([NEW])
    sealed = sealer.seal(secret, place)
    assert sealer.open(sealed, place) == secret
    assert sealed != sealer.seal(secret, place)


def test_a_secret_opens_in_no_other_place() -> None:
    sealer = Sealer([NEW])
    sealed = sealer.seal("secret", "1/2/voyage/")
    for other in ("2/2/voyage/", "1/3/voyage/", "1/2/voyage/http://elsewhere", ""):
        with pytest.raises(SealError, match="does not belong"):
            sealer.open(sealed, other)


def test_a_damaged_secret_does_not_open() -> None:
    sealer = Sealer([NEW])
    sealed = sealer.seal("secret", "place")
    for at in range(len(sealed)):
        damaged = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises(SealError):
            sealer.open(damaged, "place")
    for end in range(len(sealed)):
        with pytest.raises(SealError):
            sealer.open(sealed[:end], "place")


def test_keys_rotate() -> None:
    sealed = Sealer([OLD]).seal("secret", "place")
    both = Sealer([NEW, OLD])
    assert both.open(sealed, "place") == "secret"
    assert not both.is_newest(sealed)
    renewed = both.seal("secret", "place")
    assert both.is_newest(renewed)
    assert Sealer([NEW]).open(renewed, "place") == "secret"
    with pytest.raises(SealError, match="key that is not in BRAID_SECRET_KEY"):
        Sealer([OLD]).open(renewed, "place")


def test_without_a_key_nothing_is_sealed() -> None:
    assert not Sealer([]).ready
    with pytest.raises(SealError):
        Sealer([]).seal("secret", "place")


def test_keys_are_listed_newest_first_and_are_long() -> None:
    assert parse_keys(f" {NEW}, {OLD},") == [NEW, OLD]
    assert parse_keys("") == []
    with pytest.raises(ConfigurationError, match="at least 32") as raised:
        parse_keys("short-one")
    assert "short-one" not in str(raised.value)
