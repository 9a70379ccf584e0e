"""The messages of remote pools and of the NATS servers: for any bytes, the only errors are refusals of one line."""

import json
from collections.abc import Iterable

from tests.fuzz.watch import Finding, note

from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import (
    LONGEST_PROBLEMS,
    MOST_LABELS,
    MOST_PROBLEMS,
    MOST_TAINTS,
    Message,
    decoded,
    pool_of,
)
from fluence_plugins.master_queue.nats.parser import Arrived, Line, Parser, WireError

_SUBJECT = "interlink.resources"


def pool_message(data: bytes) -> None:
    """Parse the data as a pool's message and as its name. An accepted message round-trips."""
    text = data[:100].decode("utf-8", "backslashreplace")
    try:
        if pool_of(_SUBJECT, f"{_SUBJECT}.{text}") != text:
            raise Finding("the pool's name changed")
    except MessageError as error:
        note(error)
    try:
        message = decoded(data)
    except MessageError as error:
        note(error)
        return
    for problem in message.problems:
        note(MessageError(problem))
    if sum(len(one.encode()) for one in message.problems[:-1]) > LONGEST_PROBLEMS:
        raise Finding("the problems exceed LONGEST_PROBLEMS")
    if len(message.problems) > MOST_PROBLEMS or len(message.labels) > MOST_LABELS or len(message.taints) > MOST_TAINTS:
        raise Finding("the message exceeds its limits")
    if decoded(_written(message)) != Message(message.quotas, message.labels, message.taints):
        raise Finding("writing and reading changes the message")


def _written(message: Message) -> bytes:
    labels = [f"{key}={value}" for key, value in message.labels.items()]
    taints = [f"{taint.key}={taint.value}:{taint.effect}" for taint in message.taints]
    return json.dumps({"quotas": message.quotas, "labels": labels, "taints": taints}).encode()


def nats_wire(data: bytes) -> None:
    """Parse a server's bytes in one piece and in pieces. The first byte gives the size of the pieces."""
    size = data[0] if data else 0
    whole = _read([data[1:]])
    pieces = _read(data[at : at + max(size, 1)] for at in range(1, len(data), max(size, 1)))
    if whole != pieces:
        raise Finding("the pieces parse differently")


def _read(pieces: Iterable[bytes]) -> tuple[list[Arrived | Line], str]:
    parser = Parser()
    found: list[Arrived | Line] = []
    try:
        for piece in pieces:
            found += parser.feed(piece)
    except WireError as error:
        note(error)
        return found, str(error)
    return found, ""
