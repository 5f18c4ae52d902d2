"""The text search configurations of the server, which `language` must name."""

from service.db.catalog import text_search_configurations
from service.db.pool import Database


class Languages:
    """Names read once, and again when somebody asks for one that was not there."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._names: frozenset[str] = frozenset()

    async def known(self, name: str) -> bool:
        """Whether the server has the configuration."""
        if name not in self._names:
            self._names = await text_search_configurations(self._database)
        return name in self._names

    def names(self) -> list[str]:
        """What was there when last looked at."""
        return sorted(self._names)
