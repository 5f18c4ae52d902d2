"""What the handlers need from the process they run in; `service.app` makes it."""

from typing import TypeAlias

import msgspec
from litestar.datastructures import State
from litestar.di import NamedDependency

from service.api.access_cache import AccessCache
from service.api.admission import Gate
from service.api.languages import Languages
from service.api.rate import Rates
from service.db.credentials import Credentials
from service.db.flags import Flags
from service.db.pool import Database
from service.providers.embedders import Embedders
from service.providers.outbound import Accounts, Outbound
from service.sealing import Sealer
from service.search.legs import SearchServices
from service.settings import Settings


class ProviderServices(msgspec.Struct, frozen=True):
    """What it takes to call the services that teams have registered."""

    sealer: Sealer
    credentials: Credentials
    outbound: Outbound

    @property
    def accounts(self) -> Accounts:
        """The registered providers by team and name."""
        return Accounts(self.credentials, self.outbound)


class Services(msgspec.Struct, frozen=True):
    """Everything that is opened at start and closed at the end."""

    settings: Settings
    database: Database
    access: AccessCache
    flags: Flags
    providers: ProviderServices
    embedders: Embedders
    search: SearchServices
    gate: Gate
    rates: Rates
    languages: Languages
    schema_revision: str
    """What this version needs."""
    stopped: list[str]
    """Background work that has failed and that this process cannot serve without."""


CurrentServices: TypeAlias = NamedDependency[Services]


async def provide_services(state: State) -> Services:
    """The services of this process, for handlers."""
    services: Services = state.services
    return services
