"""Admission over HTTP: limits, and whatever anybody may send."""

import asyncio
import gzip
import io
from collections.abc import AsyncIterator

import pytest

from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.reviews import MAX_BODY, SMALL_BODY

from .reviewing import Labels, review, served, text_of

JSON = {"Content-Type": "application/json"}


async def test_a_review_is_answered_as_json_and_counted() -> None:
    metrics = WebhookMetrics()
    async with served({"labels": Labels()}, metrics) as (client, _):
        for name in ("p", "plain", "bad", "p"):
            answer = await client.post("/mutate/labels?timeout=5s", json=review(name=name))
            assert (answer.status, answer.content_type) == (200, "application/json")
    assert counts(metrics) == {"patched": 2, "unchanged": 1, "refused": 1}


def counts(metrics: WebhookMetrics, handler: str = "labels") -> dict[str, float]:
    """How many requests had which result, those that there were."""
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {
        sample.labels["result"]: sample.value
        for sample in samples
        if sample.name == "fluence_webhook_requests_total" and sample.labels["handler"] == handler and sample.value
    }


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (415, {"Content-Type": "text/plain"}, b"{}"),
        (415, {}, b"{}"),
        (415, JSON | {"Content-Encoding": "gzip"}, gzip.compress(text_of(review()))),
        (413, JSON, b" " * (MAX_BODY + 1)),
        (400, JSON, b"{}"),
        (400, JSON, b""),
    ],
)
async def test_an_invalid_review_is_answered_with_one_line(status: int, headers: dict[str, str], body: bytes) -> None:
    metrics = WebhookMetrics()
    async with served({"labels": Labels()}, metrics) as (client, _):
        answer = await client.post("/mutate/labels", data=io.BytesIO(body), headers=headers)
        text = await answer.text()
        assert (answer.status, text.count("\n"), text[:-1].isprintable()) == (status, 1, True)
        assert (await client.post("/mutate/labels", json=review())).status == 200
    assert counts(metrics) == {"malformed": 1, "patched": 1}


async def test_a_body_without_a_length_is_bounded_too() -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY // 65536 + 2):
            yield b" " * 65536

    async with served({"labels": Labels()}) as (client, _):
        answer = await client.post("/mutate/labels", data=endless(), headers=JSON)
        assert answer.status == 413


async def test_a_body_of_the_largest_size_is_reviewed() -> None:
    body = text_of(review({"metadata": {}, "x": ["y" * 1000] * 2900}))
    body += b" " * (MAX_BODY - len(body))
    async with served({"labels": Labels()}) as (client, _):
        assert (await client.post("/mutate/labels", data=io.BytesIO(body), headers=JSON)).status == 200


@pytest.mark.parametrize(("method", "path", "status"), [
    ("POST", "/mutate/other", 404), ("POST", "/mutate", 404), ("POST", "/mutate/labels/", 404), ("GET", "/", 404),
    ("GET", "/mutate/labels", 405), ("PUT", "/mutate/labels", 405),
])  # fmt: skip
async def test_other_paths_are_neither_served_nor_counted(method: str, path: str, status: int) -> None:
    metrics = WebhookMetrics()
    async with served({"labels": Labels()}, metrics) as (client, _):
        assert (await client.request(method, path, json=review())).status == status
    assert counts(metrics) == {}


async def test_the_error_of_a_handler_is_logged_and_not_part_of_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    metrics = WebhookMetrics()
    async with served({"labels": Labels()}, metrics) as (client, _):
        answer = await client.post("/mutate/labels", json=review(name="broken"))
        assert (answer.status, await answer.text()) == (500, "internal error; see the webhook's log\n")
        assert (await client.post("/mutate/labels", json=review())).status == 200
    assert [record.getMessage() for record in caplog.records] == ["[fluence-webhook] handler labels failed"]
    assert counts(metrics) == {"failed": 1, "patched": 1}


async def test_a_body_that_does_not_arrive_is_answered_at_the_deadline() -> None:
    never = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await never.wait()

    metrics = WebhookMetrics()
    async with served({"labels": Labels()}, metrics, deadline=0.05) as (client, _):
        answer = await client.post("/mutate/labels", data=slow(), headers=JSON)
        assert (answer.status, await answer.text()) == (408, "the review was not answered in time\n")
    assert counts(metrics) == {"late": 1}


async def test_a_large_review_beyond_the_limit_waits_and_is_rejected_at_its_deadline() -> None:
    metrics = WebhookMetrics()
    large = text_of(review()) + b" " * SMALL_BODY
    limits = {"deadline": 0.05, "most_requests": 1}
    async with served({"labels": Labels()}, metrics, **limits) as (client, reviews), reviews._slots:  # one is in flight
        answer = await client.post("/mutate/labels", data=large, headers=JSON)
        assert (answer.status, await answer.text()) == (503, "too many reviews are in flight\n")
        assert (await client.post("/mutate/labels", json=review())).status == 200  # small ones do not wait
    assert counts(metrics) == {"busy": 1, "patched": 1}


async def test_during_a_shutdown_each_answer_closes_its_connection() -> None:
    async with served({"labels": Labels()}) as (client, reviews):
        first = await client.post("/mutate/labels", json=review())
        reviews.draining = True
        second = await client.post("/mutate/labels", json=review())
        assert [answer.headers.get("Connection") for answer in (first, second)] == [None, "close"]
