"""What a server sends is read the same in whatever pieces it comes, within limits."""

from __future__ import annotations

import pytest

from fluence_plugins.master_queue.nats import parser as nats_parser
from fluence_plugins.master_queue.nats.parser import Arrived, Line, Parser, WireError

STREAM = (
    b'INFO {"a": 1}\r\nMSG a.b 1 3\r\nabc\r\n+OK\r\nmsg\ta.b\t2\treply 0\r\n\r\nPING\r\n'
    b"HMSG a.\xff 7 r 12 15\r\nNATS/1.0\r\n\r\nabc\r\nHMSG a\x0bb 7 2 2\r\n\r\n\r\nPONG \r\n-ERR 'Some Error'\r\n"
)
READ = [
    Line("INFO", b'{"a": 1}'),
    Arrived(1, b"a.b", b"abc"),
    Line("+OK", b""),
    Arrived(2, b"a.b", b""),
    Line("PING", b""),
    Arrived(7, b"a.\xff", b"abc"),
    Arrived(7, b"a\x0bb", b""),
    Line("PONG", b""),
    Line("-ERR", b"'Some Error'"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, len(STREAM)])
def test_the_result_does_not_depend_on_how_the_bytes_are_split(size: int) -> None:
    parser = Parser()
    found = [one for at in range(0, len(STREAM), size) for one in parser.feed(STREAM[at : at + size])]
    assert found == READ


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\r\n", "an unknown operation"),
        (b"PUB a 1\r\n", "an unknown operation"),
        (b"MSG a 1\r\n", "a message has an invalid first line"),
        (b"MSG a x 1\r\n", "a message has an invalid first line"),
        (b"MSG a 1 -1\r\n", "a message has an invalid first line"),
        (b"MSG a 1 r r 1\r\n", "a message has an invalid first line"),
        (b"MSG a 1 9999999999999999999\r\n", "a message has an invalid first line"),
        (b"HMSG a 1 3\r\n", "a message has an invalid first line"),
        (b"HMSG a 1 3 2\r\n", "a message has more than 67108864 bytes, or its headers"),
        (b"MSG a 1 67108865\r\n", "a message has more than 67108864 bytes"),
        (b"MSG a 1 2\r\nabc\r\n", "a message is longer than declared"),
    ],
)
def test_invalid_bytes_are_rejected(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        list(Parser().feed(data))


def test_operations_before_an_error_are_read() -> None:
    arriving = Parser().feed(b"PING\r\nNO\r\n")
    assert next(arriving) == Line("PING", b"")
    with pytest.raises(WireError):
        next(arriving)


def test_a_line_beyond_its_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_parser, "LONGEST_LINE", 100)
    assert list(Parser().feed(b"INFO " + b"x" * 95 + b"\r\n")) == [Line("INFO", b"x" * 95)]
    for data in (b"INFO " + b"x" * 96 + b"\r\n", b"x" * 101):
        with pytest.raises(WireError, match="a line has more than 100 bytes"):
            list(Parser().feed(data))
    parser = Parser()
    assert [list(parser.feed(b"x")) for _ in range(100)] == [[]] * 100
    with pytest.raises(WireError, match="a line has more than 100 bytes"):
        list(parser.feed(b"x"))
