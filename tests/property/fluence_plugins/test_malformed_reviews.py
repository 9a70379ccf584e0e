"""1,000 malformed reviews."""

import json
import random
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry

from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.handlers import HandlerSettings
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.reviews import DEADLINE_SECONDS

from ...unit.fluence_plugins.env_injection.reviewing import review, served, text_of
from ...unit.fluence_plugins.env_injection.test_reviews import JSON, counts

CASES = 1000
SEED = 20_260_601
Mutation = Callable[[random.Random, bytes], bytes]


def good() -> dict[str, Any]:
    containers = [{"name": "a", "image": "i", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]
    spec = {"schedulerName": "fluence", "containers": containers, "initContainers": [{"name": "c"}]}
    return review({"metadata": {"generateName": "p-", "annotations": {"a": "ä"}}, "spec": spec})


ODD: list[Any] = [
    None,
    True,
    -1,
    1e308,
    10**30,
    "",
    "x" * 5000,
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    [None],
    {"": {}},
    "NaN",
]


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The position of each value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way] * bool(way) + [place for key, each in inside for place in places(each, (*way, key))]


def of_another_type(chance: random.Random, body: bytes) -> bytes:
    whole = json.loads(body)
    for _ in range(chance.randint(1, 4)):
        *way, last = chance.choice(places(whole))
        target = whole
        for step in way:
            target = target[step]
        target[last] = chance.choice(ODD)
    return text_of(whole)


def without_a_field(chance: random.Random, body: bytes) -> bytes:
    whole = json.loads(body)
    *way, last = chance.choice(places(whole))
    target = whole
    for step in way:
        target = target[step]
    del target[last]
    return text_of(whole)


def cut_off(chance: random.Random, body: bytes) -> bytes:
    return body[: chance.randrange(len(body))]


def with_other_bytes(chance: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def with_something_in_it(chance: random.Random, body: bytes) -> bytes:
    depth = chance.choice([10, 500, 2000, 50_000])
    odd = [b"NaN", b"Infinity", b"-", b"1e99999", b"9" * 6000, b"[" * depth, b'{"a":' * depth, b"\xff\xfe", b"\x00",
           b'"object":{},', b'"uid":5,', b"/*", b"'", b"\xef\xbb\xbf", b'"\\ud800"',
           b"[" * depth + b"]" * depth]  # fmt: skip
    at = chance.randrange(len(body) + 1)
    return body[:at] + chance.choice(odd) + body[at:]


def value_replaced_in_text(chance: random.Random, body: bytes) -> bytes:
    depth = chance.choice([100, 900, 3000, 40_000])
    odd = [b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"NaN", b"1e99999", b"-0", b"9" * 5000]
    return body.replace(chance.choice([b'"fluence"', b'"CREATE"', b'"X"', b'"p-"', b'"default"', b"false", b"null"]),
                        chance.choice(odd))  # fmt: skip


def twice(chance: random.Random, body: bytes) -> bytes:
    return body.replace(b'"request":', b'"request": ' + chance.choice([b"5", b"{}", b"null"]) + b', "request":')


def noise(chance: random.Random, _body: bytes) -> bytes:
    return chance.randbytes(chance.randrange(3000))


MUTATIONS: list[Mutation] = [of_another_type, of_another_type, without_a_field, cut_off, with_other_bytes,
                             with_something_in_it, value_replaced_in_text, twice, noise]  # fmt: skip


async def test_a_thousand_malformed_reviews_are_answered_in_time_and_then_a_good_one() -> None:
    chance = random.Random(SEED)
    registry = CollectorRegistry()
    metrics = WebhookMetrics()
    handler = FluxionHandler(HandlerSettings(frozenset({"fluence"}), None, registry))
    statuses: Counter[int] = Counter()
    async with served({"fluxion": handler}, metrics) as (client, _):
        for number in range(CASES):
            body = MUTATIONS[number % len(MUTATIONS)](chance, text_of(good()))
            began = monotonic()
            answer = await client.post("/mutate/fluxion", data=body, headers=JSON)
            content = await answer.read()
            assert monotonic() - began < DEADLINE_SECONDS
            statuses[answer.status] += 1
            if answer.status == 200:
                response = json.loads(content)["response"]
                assert response["allowed"] is True
                assert isinstance(response["uid"], str)
            else:
                assert answer.status == 400, (number, content)
                assert content.endswith(b"\n")
                assert content[:-1].decode().isprintable()
        last = await client.post("/mutate/fluxion", json=good())
        assert (await last.json())["response"]["patchType"] == "JSONPatch"
    assert statuses[200] > 150
    assert statuses[400] > 400
    results = counts(metrics, "fluxion")
    assert set(results) == {"malformed", "patched", "unchanged"}
    assert sum(results.values()) == CASES + 1
