"""What indexing needs from the process it runs in."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from service.db.pool import Database
from service.indexing.conversion import Limits
from service.indexing.turns import Turns
from service.indexing.vector_index import IndexBuilds
from service.providers.base import ContextualizerSource, EmbedderSource

HeadersAllowed: TypeAlias = Callable[[int], Awaitable[bool]]
"""Whether the chunks of a team may have headers."""


class IndexingServices(msgspec.Struct, frozen=True):
    """Shared by all jobs of a worker."""

    database: Database
    embedders: EmbedderSource
    contextualizers: ContextualizerSource
    headers_allowed: HeadersAllowed
    turns: Turns
    index_builds: IndexBuilds
    conversion: Limits
    """What converting one file may take."""
    keep_seconds: float
    """How long a generation that was replaced can be returned to."""
