"""Requests a second of a team: a burst of one second, then an even pace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.rate import Rates
from service.errors import OverloadedError


def accepted(rates: Rates, team: int, asked: int) -> int:
    passed = 0
    for _ in range(asked):
        try:
            rates.count(team)
        except OverloadedError:
            continue
        passed += 1
    return passed


def test_a_second_of_requests_at_once_then_as_they_come_due() -> None:
    now = 100.0
    rates = Rates(10, clock=lambda: now)
    assert accepted(rates, 1, 50) == 10
    assert accepted(rates, 2, 50) == 10
    now += 0.31
    assert accepted(rates, 1, 50) == 3
    now += 60
    assert accepted(rates, 1, 50) == 10


def test_who_comes_when_told_is_let_in() -> None:
    now = 0.0
    rates = Rates(0.5, clock=lambda: now)
    rates.count(1)
    with pytest.raises(OverloadedError) as refused:
        rates.count(1)
    now += refused.value.seconds
    rates.count(1)


def test_without_a_limit_nothing_is_counted() -> None:
    assert accepted(Rates(None), 1, 10_000) == 10_000


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 3), max_size=200))
def test_no_second_holds_more_than_its_burst_and_its_pace(
    per_second: float, pauses: list[float]
) -> None:
    now = 0.0
    rates, passed = Rates(per_second, clock=lambda: now), list[float]()
    for pause in pauses:
        now += pause
        if accepted(rates, 1, 1):
            passed.append(now)
    for began in passed:
        within = sum(began <= one < began + 1 for one in passed)
        assert within <= max(1.0, per_second) + per_second + 1
