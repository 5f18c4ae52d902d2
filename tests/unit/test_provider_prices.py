"""Prices are the operator's: what has none costs nothing, and a mistake is told at the start."""

import pytest

from service.errors import ConfigurationError
from service.instruments import PROVIDER_COST, PROVIDER_TOKENS
from service.providers.measured import Prices


def total(counter: object, *labels: str) -> float:
    points = counter.points()  # type: ignore[attr-defined]
    return sum(one.value for one in points if one.labels == labels)


def test_tokens_cost_what_the_operator_says() -> None:
    prices = Prices("one:input=3, one:output=15,two:embedding=0.06")
    before = total(PROVIDER_COST, "one"), total(PROVIDER_TOKENS, "one", "input")
    prices.count("one", "input", 1_000_000)
    prices.count("one", "output", 200_000)
    assert total(PROVIDER_COST, "one") - before[0] == pytest.approx(3 + 0.2 * 15)
    assert total(PROVIDER_TOKENS, "one", "input") - before[1] == 1_000_000


def test_tokens_without_a_price_are_counted_and_cost_nothing() -> None:
    Prices().count("unpriced", "input", 7)
    Prices().count("unpriced", "input", 0)
    assert total(PROVIDER_TOKENS, "unpriced", "input") == 7
    assert "unpriced" not in {labels for one in PROVIDER_COST.points() for labels in one.labels}


@pytest.mark.parametrize(
    "given", ["voyage", "voyage=1", "voyage:embedding", "a:b=-1", "a:b=nan", "a:b=inf", ":b=1"]
)
def test_a_mistake_is_told(given: str) -> None:
    with pytest.raises(ConfigurationError, match="BRAID_TOKEN_PRICES"):
        Prices(given)
