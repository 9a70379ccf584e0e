import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import structlog

from session_scheduler.sdk.commands import LogLevel
from session_scheduler.sdk.logs import log_to_stderr

LIBRARIES = ("asyncio", "aiohttp", "kubernetes", "urllib3")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, known in levels.items():
        logging.getLogger(name).setLevel(known)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_of_the_core_is_one_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    structlog.get_logger().info("bound", pod="a/b", seconds=1.5, tries=2, all=True, none=None)
    (line,) = lines(capsys)
    when = line.pop("time")
    assert when.endswith("Z")
    assert datetime.fromisoformat(when).utcoffset() is not None
    assert line == {
        "level": "info",
        "logger": __name__,
        "event": "bound",
        "pod": "a/b",
        "seconds": 1.5,
        "tries": 2,
        "all": True,
        "none": None,
    }


def test_a_plugin_s_own_logger_goes_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    logging.getLogger("fluence").warning("[fluence] placement %d: %s", 7, "n1")
    (line,) = lines(capsys)
    assert (line["level"], line["logger"], line["event"]) == ("warning", "fluence", "[fluence] placement 7: n1")


def test_a_percent_sign_in_an_event_stays_one(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    structlog.get_logger().warning("100%s full")
    assert lines(capsys)[0]["event"] == "100%s full"


def broken() -> None:
    raise ValueError("two\nlines")


def test_an_exception_is_text_in_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    for logger in (structlog.get_logger(), logging.getLogger("fluence")):
        try:
            broken()
        except ValueError:
            logger.exception("failed")
    first, second = lines(capsys)
    for line in (first, second):
        assert line["event"] == "failed"
        assert line["level"] == "error"
        assert line["exception"].startswith("Traceback")
        assert line["exception"].endswith("ValueError: two\nlines")


def test_a_field_never_hides_what_every_line_has(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    structlog.get_logger().warning("e", level="x", logger="y", time="z", exception="w", name="n", msg="m")
    (line,) = lines(capsys)
    assert (line["level"], line["event"]) == ("warning", "e")
    assert [line[key] for key in ("level_", "logger_", "time_", "exception_", "name", "msg")] == list("xyzwnm")


def test_values_that_json_does_not_have_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    structlog.get_logger().warning("e", nan=float("nan"), error=KeyError("k"), nested={1: [(2, {3})]}, odd="é\ud800\n")
    (line,) = lines(capsys)
    assert (line["nan"], line["error"], line["nested"], line["odd"]) == ("nan", "'k'", {"1": [[2, "{3}"]]}, "é\ud800\n")


def test_a_line_is_whole_whatever_standard_error_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(out, encoding="ascii", errors="strict"))
    log_to_stderr(LogLevel.INFO, "json")
    structlog.get_logger().warning("größer")
    sys.stderr.flush()
    assert json.loads(out.getvalue())["event"] == "größer"


def test_what_lies_below_the_level_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.WARNING, "json")
    structlog.get_logger().info("quiet")
    logging.getLogger("fluence").info("quiet")
    assert lines(capsys) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_do_not_tell_requests_even_at_the_lowest_level(
    library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(LogLevel.DEBUG, "json")
    logging.getLogger(f"{library}.client").info("Authorization: Bearer abc")
    logging.getLogger(library).warning("shown")
    assert [line["event"] for line in lines(capsys)] == ["shown"]


def test_python_s_warnings_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.WARNING, "json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    (line,) = lines(capsys)
    assert line["logger"] == "py.warnings"
    assert "old" in line["event"]


def test_the_console_s_lines_are_as_ever_after_json(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.INFO, "json")
    log_to_stderr(LogLevel.INFO)
    structlog.get_logger().info("e", pod="a/b")
    logging.getLogger("fluence").info("p")
    assert capsys.readouterr().err == "INFO e pod=a/b\nINFO p\n"
