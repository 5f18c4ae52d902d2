"""What indexing needs from the process it runs in."""

import msgspec

from service.db.pool import Database
from service.indexing.turns import Turns
from service.indexing.vector_index import IndexBuilds
from service.providers.base import EmbedderSource


class IndexingServices(msgspec.Struct, frozen=True):
    """Shared by all jobs of a worker."""

    database: Database
    embedders: EmbedderSource
    turns: Turns
    index_builds: IndexBuilds
    keep_seconds: float
    """How long a generation that was replaced can be returned to."""
