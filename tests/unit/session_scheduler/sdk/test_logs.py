import logging
from collections.abc import Iterator

import pytest
import structlog

from session_scheduler.sdk.commands import LogLevel
from session_scheduler.sdk.logs import log_to_stderr


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("asyncio", "aiohttp", "kubernetes", "urllib3")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, known in levels.items():
        logging.getLogger(name).setLevel(known)
    structlog.reset_defaults()


def logged(capsys: pytest.CaptureFixture[str], event: str, **fields: object) -> str:
    log_to_stderr(LogLevel.WARNING)
    structlog.get_logger().warning(event, **fields)
    return capsys.readouterr().err


def test_an_event_is_a_sentence_and_its_fields_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged(capsys, "1 pods have a field", profile="fluence", after=1.5) == (
        "WARNING 1 pods have a field profile=fluence after=1.5\n"
    )


def test_a_value_that_could_be_misread_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    shown = logged(capsys, "failed", why="no room", empty="", pair="a=b", error=ValueError("x y"))
    assert shown == "WARNING failed why='no room' empty='' pair='a=b' error='x y'\n"


def test_a_record_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert logged(capsys, "a\nb\x1b[1m", pod="c\nd") == "WARNING a b [1m pod='c\\nd'\n"


def test_a_traceback_follows_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x") as caught:
        int("x\x1b[1m")
    line, first, *_, last = logged(capsys, "failed", exc_info=caught.value, plugin="p").splitlines()
    assert (line, first) == ("WARNING failed plugin=p", "Traceback (most recent call last):")
    assert last == "ValueError: invalid literal for int() with base 10: 'x\\x1b[1m'"


def test_what_lies_below_the_level_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogLevel.ERROR)
    structlog.get_logger().warning("quiet")
    assert capsys.readouterr().err == ""
