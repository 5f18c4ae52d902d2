"""Accounts for tests: a credential in memory, and the address of a fake server."""

from pydantic import SecretStr
from support.fake_embeddings import KEY

from service.models import Credential, ProviderKind
from service.providers.addresses import parse_allowed
from service.providers.outbound import Account, Outbound

LOOPBACK = "http://127.0.0.1:*"
SECRET_KEY = "a key that seals the secrets of tests"


def credential(
    kind: ProviderKind, url: str | None, *, team_id: int = 1, secret: str | None = KEY
) -> Credential:
    sealed = None if secret is None else SecretStr(secret)
    return Credential(7, team_id, "name", kind, url, sealed)


def account(kind: ProviderKind, url: str, outbound: Outbound | None = None) -> Account:
    outbound = outbound or Outbound(parse_allowed(LOOPBACK))
    return outbound.account(credential(kind, url), 1)
