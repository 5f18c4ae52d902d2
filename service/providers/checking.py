"""The test call of a provider."""

import asyncio

from service.errors import ProviderError
from service.providers.embedders import BUNDLED
from service.providers.outbound import Account
from service.providers.registry import remote_kind

CHECK_SECONDS = 10.0


async def check_account(account: Account, model: str | None) -> None:
    """Make the cheapest call that tells whether the key works; raises `ProviderError`."""
    kind = account.credential.kind
    if kind == BUNDLED:
        return
    probe = remote_kind(kind).probe(model)
    async with asyncio.timeout(CHECK_SECONDS):
        answer = await account.call(probe.method, probe.path, probe.body)
    if not answer.lstrip().startswith((b"{", b"[")):
        raise ProviderError("the provider's answer cannot be read")
