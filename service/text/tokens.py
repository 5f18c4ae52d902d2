"""How many tokens a text has, about, where no tokenizer is at hand."""


def estimate_tokens(text: str) -> int:
    """About the tokens of a multilingual model."""
    ascii_characters = len(text.encode("ascii", "ignore"))
    return -(-ascii_characters // 4) + -(-(len(text) - ascii_characters) // 2)


def clip_tokens(text: str, limit: float) -> str:
    """The beginning of a text with at most about `limit` tokens."""
    if len(text) <= limit:
        return text
    whole = estimate_tokens(text)
    if whole <= limit:
        return text
    low, high = int(limit * 2), min(len(text), int(limit * 4) + 4)
    while low < high:
        middle = (low + high + 1) // 2
        if estimate_tokens(text[:middle]) <= limit:
            low = middle
        else:
            high = middle - 1
    return text[:low]
