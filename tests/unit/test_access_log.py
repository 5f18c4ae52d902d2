"""Requests without a valid key leave few lines, and none of them is lost from the count."""

import structlog

from service.api.access_log import PERIOD_S, UNAUTHORIZED_LINES, AccessLog


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_ten_thousand_wrong_keys_leave_a_handful_of_lines_and_their_number() -> None:
    clock = Clock()
    lines = AccessLog(clock)
    with structlog.testing.capture_logs() as logs:
        for _ in range(10_000):
            lines.write("GET", "/v1/collections", 401, 0.001)
        assert len(logs) == UNAUTHORIZED_LINES
        clock.now += PERIOD_S
        lines.write("GET", "/v1/collections", 200, 0.001)
    counted, valid = logs[UNAUTHORIZED_LINES:]
    assert counted["event"] == "requests without a valid key were only counted"
    assert counted["count"] == 10_000 - UNAUTHORIZED_LINES
    assert valid["status"] == 200


def test_valid_requests_are_written_among_any_number_of_wrong_ones() -> None:
    lines = AccessLog(Clock())
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            lines.write("GET", "/v1/collections", 401, 0.001)
            lines.write("POST", "/v1/collections/{name}/search", 200, 0.001)
    assert [one["status"] for one in logs].count(200) == 100


def test_each_period_begins_anew_and_few_wrong_keys_are_not_counted_apart() -> None:
    clock = Clock()
    lines = AccessLog(clock)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            lines.write("GET", "/v1/keys", 401, 0.001)
            clock.now += PERIOD_S
    assert [one["status"] for one in logs] == [401, 401, 401]
