"""What the database cannot store (NUL, lone surrogates) is taken out of texts and values."""

from typing import Any

from service.text import clean


class Cleaner:
    """Removes what the database cannot store and remembers whether there was any."""

    def __init__(self) -> None:
        self.changed = False

    def text(self, text: str | None) -> str | None:
        """A text without them."""
        if text is None:
            return None
        cleaned, changed = clean(text)
        self.changed |= changed
        return cleaned

    def value(self, value: Any) -> Any:
        """Metadata without them; its keys are checked elsewhere."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(child) for key, child in value.items()}
        if isinstance(value, list):
            return [self.value(child) for child in value]
        return value
