"""Libraries log in the form of all other lines, with the trace, and without values they saw."""

import json
import logging

from opentelemetry.sdk.trace import TracerProvider

from service.telemetry import JsonLines


def line(record: logging.LogRecord) -> dict[str, str]:
    found: dict[str, str] = json.loads(JsonLines().format(record))
    return found


def test_a_librarys_warning_is_one_line_of_json_with_its_trace() -> None:
    record = logging.LogRecord("lib.part", logging.WARNING, "", 0, "a %s\nthing", ("new",), None)
    with TracerProvider().get_tracer("test").start_as_current_span("x") as span:
        said = line(record)
    assert said["event"] == "a new\nthing"
    assert (said["logger"], said["level"]) == ("lib.part", "warning")
    assert said["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert "trace_id" not in line(record)


def test_an_error_is_named_and_does_not_speak() -> None:
    try:
        raise ValueError("a secret text")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("lib", logging.ERROR, "", 0, "it failed", (), info)
    said = line(record)
    assert said["error"] == "ValueError"
    assert "secret" not in json.dumps(said)
