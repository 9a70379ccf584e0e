"""What pools publish is read within limits: whatever comes is a message or one line that says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fluence_plugins.master_queue import messages
from fluence_plugins.master_queue.amounts import amount, amount_text
from fluence_plugins.master_queue.controller.pools import MOST_POOLS
from fluence_plugins.master_queue.errors import MessageError
from fluence_plugins.master_queue.messages import (
    MOST_BYTES,
    MOST_LABELS,
    MOST_PROBLEMS,
    MOST_TAINTS,
    Message,
    decoded,
    pool_of,
)
from session_scheduler.model.objects import Taint

TOO_DEEP = "the message is nested more than 16 levels deep; send only quotas, labels and taints"


def read(**content: Any) -> Message:
    return decoded(json.dumps({"quotas": {}, **content}).encode())


def test_all_fields_of_a_message_are_read() -> None:
    text = (
        b'{"quotas":{"cpu":"8","memory":"32Gi","pods":10,"nvidia.com/gpu":0},'
        b'"labels":["k=v","site.example/x="],"taints":["b=v:NoExecute","a:NoSchedule"]}'
    )
    assert decoded(text) == Message(
        quotas={"cpu": "8", "memory": "32Gi", "pods": "10", "nvidia.com/gpu": "0"},
        labels={"k": "v", "site.example/x": ""},
        taints=(Taint(key="a", effect="NoSchedule"), Taint(key="b", value="v", effect="NoExecute")),
    )


def test_labels_and_taints_are_optional_and_unknown_fields_are_ignored() -> None:
    assert decoded(b'{"quotas":{},"labels":null,"version":[{"a":1}]}') == Message()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "the message is not valid JSON"),
        (b"{", "the message is not valid JSON"),
        (b"\xff\xfe", "the message is not valid JSON"),
        (b'{"quotas":{},"labels":["\\ud800=x"]}', "the message is not valid JSON"),
        (b"[]", "the message is not a JSON object"),
        (b"7", "the message is not a JSON object"),
        (b"{}", "quotas is not a JSON object"),
        (b'{"quotas":[1]}', "quotas is not a JSON object"),
        (b'{"quotas":null}', "quotas is not a JSON object"),
        (b" " * (MOST_BYTES + 1), f"the message has {MOST_BYTES + 1} bytes"),
        (b'{"quotas":{},"x":"' + b"a" * (1 << 20) + b'"}', "the message has 1048596 bytes"),
        (b"[" * MOST_BYTES, TOO_DEEP),
        (b'{"quotas":{},"x":' + b"[" * 40 + b"]" * 40 + b"}", TOO_DEEP),
    ],
)
def test_an_invalid_message_is_rejected_with_one_line(data: bytes, line: str) -> None:
    with pytest.raises(MessageError) as caught:
        decoded(data)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-1, "-1 is negative; write 0 or more"),
        ("-1m", "'-1m' is negative; write 0 or more"),
        (True, "True is not a valid quantity"),
        (None, "None is not a valid quantity"),
        ([1], "[1] is not a valid quantity"),
        ("many", "'many' is not a valid quantity"),
        ("1" * 100, "is not a valid quantity"),
        ("1e300", "'1e300' is larger than the limit"),
        (10**12, "1000000000000 is larger than the limit"),
        (10**18, "1000000000000000000 is larger than the limit"),
    ],
)
def test_a_quota_that_no_pool_can_have_is_dropped_and_the_rest_applies(value: Any, problem: str) -> None:
    found = read(quotas={"cpu": value, "pods": 3}, labels=["a=b"])
    assert (found.quotas, found.labels) == ({"pods": "3"}, {"a": "b"})
    assert len(found.problems) == 1
    assert found.problems[0].startswith("quotas['cpu']: ")
    assert problem in found.problems[0]


def test_a_number_of_any_length_is_read_or_rejected() -> None:
    for number in (b"9" * 30, b"9" * 10_000, b"1e999", b"-" + b"9" * 30, b"1" + b"0" * 25):
        try:
            found = decoded(b'{"quotas":{"cpu":' + number + b',"pods":1}}')
        except MessageError:
            continue
        assert found.quotas == {"pods": "1"}


def test_a_resource_that_no_queue_covers_is_dropped() -> None:
    found = read(quotas={"example.com/fpga": 2, "cpu": 1})
    assert found.quotas == {"cpu": "1"}
    assert found.problems == (
        "quotas['example.com/fpga']: unknown resource; use one of cpu, memory, pods, nvidia.com/gpu",
    )


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("lonely", "'lonely' has no '='; write key=value"),
        ("=v", "'' is not a valid key in Kubernetes"),
        ("Bad/k=v", "'Bad/k' is not a valid key"),
        ("a/b/c=v", "'a/b/c' is not a valid key"),
        (f"{'k' * 64}=v", "is not a valid key"),
        ("k=a b", "'a b' is not a valid value in Kubernetes"),
        ("k=a\nb", "'a\\nb' is not a valid value"),
        (f"k={'v' * 64}", "is not a valid value"),
        ("k" * 1000, "has 1000 characters; use at most 512"),
        (7, "expected a string, got 7"),
        ({"a": 1}, "expected a string, got {'a': 1}"),
        ("good=2", "'good' already has another value"),
    ],
)
def test_a_bad_label_is_dropped_and_the_rest_applies(label: Any, problem: str) -> None:
    found = read(labels=["good=1", label, "later=2"])
    assert found.labels == {"good": "1", "later": "2"}
    assert len(found.problems) == 1
    assert found.problems[0].startswith("labels[1]: ")
    assert problem in found.problems[0]


@pytest.mark.parametrize(
    ("taint", "problem"),
    [
        ("k=v", "'k=v' lacks the effect; write key=value:Effect"),
        ("k=v:Never", "'Never' is not a valid effect"),
        ("k=v:", "'' is not a valid effect"),
        ("=v:NoSchedule", "'' is not a valid key"),
        ("k=!:NoSchedule", "'!' is not a valid value"),
        ("virtual-node.interlink/no-schedule=false:NoSchedule", "already has another value"),
        ("good=2:NoSchedule", "already has another value"),
        (None, "expected a string, got None"),
    ],
)
def test_a_bad_taint_is_dropped_and_the_rest_applies(taint: Any, problem: str) -> None:
    found = read(taints=["good=1:NoSchedule", taint, "good=2:NoExecute"])
    assert [(one.key, one.value, one.effect) for one in found.taints] == [
        ("good", "2", "NoExecute"),
        ("good", "1", "NoSchedule"),
    ]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("taints[1]: ")
    assert problem in found.problems[0]


def test_the_virtual_nodes_own_taint_may_be_published() -> None:
    assert read(taints=["virtual-node.interlink/no-schedule=true:NoSchedule"]) == Message()


def test_entries_beyond_the_limit_are_dropped() -> None:
    found = read(labels=[f"k{number}=v" for number in range(MOST_LABELS + 1)])
    assert (len(found.labels), len(found.problems)) == (MOST_LABELS, 1)
    found = read(taints=[f"k{number}:NoSchedule" for number in range(9)])
    assert (len(found.taints), len(found.problems)) == (7, 2)


def test_the_number_of_problems_is_limited() -> None:
    found = read(labels=["bad"] * 100)
    assert len(found.problems) == MOST_PROBLEMS
    assert found.problems[-1] == "and 93 more problems in this message"


def test_invalid_lists_are_reported() -> None:
    assert read(labels="a=b", taints={"a": 1}).problems == (
        "labels: expected a list of strings",
        "taints: expected a list of strings",
    )


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cpu", "1500m", "1500m"),
        ("cpu", "0.0015", "1m"),
        ("cpu", 8.5, "8500m"),
        ("cpu", "1000", "1k"),
        ("memory", "1024Mi", "1Gi"),
        ("memory", "1000000", "1M"),
        ("memory", "1536", "1536"),
        ("memory", "0", "0"),
        ("pods", 1.9, "1"),
        ("pods", "100", "100"),
    ],
)
def test_amounts_are_written_as_quantities(resource: str, value: Any, text: str) -> None:
    assert amount_text(resource, amount(resource, value)) == text


@pytest.mark.parametrize("part", ['""', "1", "[]", '"a=b"', '":"', '"k=v:NoSchedule"'])
def test_only_some_parts_of_a_message_with_thousands_are_read(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(messages._Problems, "add", lambda _, field, problem: reported.append(f"{field}: {problem}"))
    parts = ",".join([part] * (32000 // (len(part) + 1)))
    for field in ("labels", "taints"):
        reported.clear()
        decoded(f'{{"quotas":{{}},"{field}":[{parts}]}}'.encode())
        assert reported[0].startswith(f"{field}: has ")
        assert reported[0].endswith(" entries, and only the first 256 are used; send fewer")
        assert len(reported) <= 257
    reported.clear()
    names = ",".join(f'"{number}":{part}' for number in range(2000))
    decoded(f'{{"quotas":{{{names},"pods":3}}}}'.encode())
    assert reported[0] == "quotas: has 2001 entries, and only the first 256 are used; send fewer"
    assert len(reported) == 257


# ------------------------------------------------------------------ names


def test_the_pool_is_the_last_token_of_the_subject() -> None:
    assert pool_of("interlink.resources", "interlink.resources.podman-firenze") == "podman-firenze"


@pytest.mark.parametrize(
    "subject",
    ["interlink.resources", "interlink.resources.", "other.resources.a", "interlink.resourcesx.a",
     "interlink.resources.a.b", "interlink.resources.A", "interlink.resources.-a", "interlink.resources.a\n",
     "interlink.resources." + "a" * 64, "interlink.resources.é", ""],
)  # fmt: skip
def test_a_subject_without_a_pool_is_rejected(subject: str) -> None:
    with pytest.raises(MessageError, match=r"publish to|is not a valid pool name"):
        pool_of("interlink.resources", subject)


def test_all_pools_together_keep_no_more_than_fits_into_a_status() -> None:
    """As much as one message can leave there, as often as there may be pools, in what etcd takes of an object."""
    labels = [f"{'d' * 250}/{number:02}{'k' * 60}={'v' * 63}" for number in range(64)]
    short = [f"k{number}=v" for number in range(64)]
    taints = [f"{'t' * 60}{number}={'v' * 60}:PreferNoSchedule" for number in range(20)]
    message = {
        "quotas": {"x" * 60 + str(number): 1 for number in range(99)},
        "labels": labels + short,
        "taints": taints,
    }
    found = decoded(msgspec.json.encode(message))
    assert 3 <= len(found.labels) < 64
    assert 5 <= len(found.taints) <= MOST_TAINTS
    assert len(msgspec.json.encode(found)) * MOST_POOLS < 1.5 * 2**20
