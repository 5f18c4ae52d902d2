"""A breaker opens after ten failures in a row and lets one call try again after 30 seconds."""

import asyncio

import pytest

from service.errors import CircuitOpenError
from service.providers.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(breaker: Breaker, error: BaseException | None = None) -> None:
    error = error or RuntimeError("broken")
    with pytest.raises(type(error)), breaker.watching():
        raise error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("name", clock)


def opened(breaker: Breaker) -> Breaker:
    for _ in range(10):
        fail(breaker)
    return breaker


def test_ten_failures_in_a_row_open_it(breaker: Breaker) -> None:
    for _ in range(9):
        fail(breaker)
    assert breaker.state == "closed"
    with breaker.watching():
        pass
    for _ in range(9):
        fail(breaker)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
    with pytest.raises(CircuitOpenError):
        breaker.admit()
    with pytest.raises(CircuitOpenError), breaker.watching():
        raise AssertionError("was called")


def test_one_call_may_try_after_a_while(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now = 29.9
    with pytest.raises(CircuitOpenError):
        breaker.admit()
    clock.now = 30.0
    with breaker.watching():
        assert breaker.state == "half-open"
        with pytest.raises(CircuitOpenError):
            breaker.admit()
    assert breaker.state == "closed"
    for _ in range(9):
        fail(breaker)
    assert breaker.state == "closed"


def test_a_failed_trial_opens_it_again(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now = 31.0
    fail(breaker)
    assert breaker.state == "open"
    clock.now = 60.0
    with pytest.raises(CircuitOpenError):
        breaker.admit()
    clock.now = 61.0
    breaker.admit()


def test_a_call_that_is_out_of_time_counts_if_it_had_any(breaker: Breaker, clock: Clock) -> None:
    for _ in range(20):
        fail(breaker, asyncio.CancelledError())
    assert breaker.state == "closed"
    for _ in range(10):
        with pytest.raises(asyncio.CancelledError), breaker.watching():  # noqa: PT012
            clock.now += 0.1
            raise asyncio.CancelledError
    assert breaker.state == "open"


def test_a_late_success_does_not_close_it(breaker: Breaker) -> None:
    with breaker.watching():
        opened(breaker)
    assert breaker.state == "open"


def test_each_change_is_logged(
    breaker: Breaker, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(breaker)
    clock.now = 31.0
    with breaker.watching():
        pass
    lines = [line for line in capsys.readouterr().out.splitlines() if "circuit changed" in line]
    assert len(lines) == 3
    for line, state in zip(lines, ("open", "half-open", "closed"), strict=True):
        assert state in line
