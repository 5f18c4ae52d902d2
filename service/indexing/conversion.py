"""What converting a file may take, and what comes of it."""

import msgspec


class Converted(msgspec.Struct, frozen=True):
    """What a file gave."""

    text: str = ""
    title: str | None = None
    refused: str | None = None


class Limits(msgspec.Struct, frozen=True):
    """What one conversion may take."""

    memory_mb: int = 1_000
    seconds: int = 60
    """Of processor time."""
    pages: int = 2_000
    characters: int = 10_000_000
    """Of the text that comes out."""
