"""Addresses are compared by their parts: what only looks allowed is not."""

import pytest

from service.errors import ConfigurationError
from service.providers.addresses import is_allowed, parse_address, parse_allowed

LIST = parse_allowed(
    "https://api.example.com/v1, http://127.0.0.1:*, http://[::1]:9000/a/,https://bare.example"
)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.example.com/v1",
        "https://api.example.com/v1/",
        "https://API.example.com:443/v1/embeddings",
        "https://api.example.com./v1",
        "http://127.0.0.1:1/x",
        "http://127.0.0.1",
        "http://[::1]:9000/a",
        "http://[::1]:9000/a/b",
        "https://bare.example/any/path",
    ],
)
def test_what_is_at_or_below_an_entry_is_allowed(url: str) -> None:
    assert is_allowed(parse_address(url), LIST)


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com/v1",
        "https://api.example.com/v2",
        "https://api.example.com/v10",
        "https://api.example.com",
        "https://api.example.com:8443/v1",
        "https://api.example.com.evil.com/v1",
        "https://evil-api.example.com/v1",
        "https://127.0.0.1:80/x",
        "http://127.0.0.2:80/x",
        "http://127.0.0.1.evil.com/",
        "http://localhost:80",
        "http://2130706433/",
        "http://[::1]:9001/a",
        "http://[::1]:9000/ab",
        "http://[::ffff:127.0.0.1]/",
    ],
)
def test_what_only_looks_alike_is_not(url: str) -> None:
    assert not is_allowed(parse_address(url), LIST)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://api.example.com@evil.com/v1", "user name"),
        ("https://user:pass@api.example.com/v1", "user name"),
        ("https://@api.example.com/v1", "user name"),
        ("https://api.example.com\\@evil.com/v1", "backslashes"),
        ("https:\\\\api.example.com/v1", "backslashes"),
        ("https://api.example.com/v1\r\nHost: evil", "control"),
        ("https://api.example.com/\x00", "control"),
        ("https://api.exam\tple.com/v1", "control"),
        (" https://api.example.com/v1", "spaces"),
        ("https://\u0430pi.example.com/v1", "ASCII"),
        ("https://api.example.com/v1/../v2", "plain path"),
        ("https://api.example.com/v1/%2e%2e/v2", "hide"),
        ("https://api.example.com/v1%2fx", "hide"),
        ("https://api%2eexample.com/v1", "hide"),
        ("https://api.example.com//v1", "plain path"),
        ("https://api.example.com/v1?x=1", "no query"),
        ("https://api.example.com/v1#x", "no query"),
        ("https://api.example.com/v1?", "no query"),
        ("ftp://api.example.com/v1", "begin with"),
        ("file:///etc/passwd", "begin with"),
        ("//api.example.com/v1", "begin with"),
        ("api.example.com/v1", "begin with"),
        ("https:///v1", "host"),
        ("https://", "host"),
        ("https://api.example.com:99999/v1", "(?i)port"),
        ("http://127.0.0.1:*/", "(?i)port"),
        ("https://[::1/v1", "IPv6"),
        ("https://" + "a" * 2048, "at most"),
    ],
)
def test_what_is_no_plain_address_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_address(url)


def test_an_address_has_one_spelling() -> None:
    assert parse_address("HTTPS://API.Example.com:443/v1/").url == "https://api.example.com/v1"
    assert parse_address("http://[::1]:80").url == "http://[::1]"
    assert parse_address("http://[::1]:81/x").url == "http://[::1]:81/x"


def test_an_empty_list_allows_nothing() -> None:
    assert parse_allowed(" , ") == ()
    assert not is_allowed(parse_address("http://127.0.0.1"), ())


def test_a_bad_entry_is_one_clear_line() -> None:
    for entry in ("*", "https://*", "http://a:*@b", "https://*.example.com"):
        with pytest.raises(ConfigurationError, match="BRAID_ALLOWED_BASE_URLS"):
            parse_allowed(entry)
