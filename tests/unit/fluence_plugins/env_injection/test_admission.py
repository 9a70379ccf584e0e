"""What a review is answered, in bytes."""

import asyncio
import json
from typing import Any

import pytest

from fluence_plugins.env_injection import admission
from fluence_plugins.env_injection.admission import Answer, MalformedError

from .reviewing import PATCH, Labels, patch_of, review, text_of

UID = review()["request"]["uid"]


def answer(body: bytes, handler: Labels) -> Answer:
    return asyncio.run(admission.answer(body, handler))


def decided(body: bytes, handler: Labels | None = None) -> dict[str, Any]:
    whole = json.loads(answer(body, handler or Labels()).body)
    assert (whole["apiVersion"], whole["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return dict(whole["response"])


def test_a_patch_is_sent_as_json_patch_with_the_uid_of_the_request() -> None:
    response = decided(text_of(review()))
    assert (response["uid"], response["allowed"], patch_of(response)) == (UID, True, PATCH)


def test_without_a_patch_the_pod_is_allowed() -> None:
    assert decided(text_of(review(name="plain"))) == {"uid": UID, "allowed": True}


def test_a_rejection_has_a_reason_and_a_code() -> None:
    status = {"code": 409, "message": "it is bad"}
    assert decided(text_of(review(name="bad"))) == {"uid": UID, "allowed": False, "status": status}


def test_the_handler_receives_the_request() -> None:
    handler = Labels()
    answer(text_of(review(dryRun=True, name="n", namespace="s")), handler)
    answer(text_of(review(dryRun=None, namespace=None)), handler)
    reported = [(each.uid, each.operation, each.namespace, each.name, each.dry_run) for each in handler.asked]
    assert reported == [(UID, "CREATE", "s", "n", True), (UID, "CREATE", "", "", False)]


def test_for_an_update_the_handler_receives_user_subresource_and_old_object() -> None:
    handler = Labels()
    handler.operations = frozenset({"CREATE", "UPDATE"})
    before = {"metadata": {"name": "old"}}
    answer(text_of(review(operation="UPDATE", oldObject=before)), handler)
    answer(text_of(review(operation="UPDATE", oldObject=before, subResource="status")), handler)
    handler.sub_resources = frozenset({"", "status"})
    answer(text_of(review(operation="UPDATE", oldObject=before, subResource="status", userInfo=None)), handler)
    answer(text_of(review(operation="CREATE", oldObject=before)), handler)
    reported = [(each.user, each.sub_resource, each.old) for each in handler.asked]
    assert reported == [("admin", "", before), ("", "status", before), ("admin", "", None)]


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"operation": "SOMETHING"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": {"group": "example.com", "version": "v1", "kind": "Pod"}},
        {"subResource": "ephemeralcontainers"},
        {"object": None},
        {"object": []},
        {"object": "pod"},
    ],
    ids=json.dumps,
)
def test_an_object_without_a_handler_is_allowed_without_a_patch(request_: dict[str, Any]) -> None:
    handler = Labels()
    assert decided(text_of(review(**request_)), handler) == {"uid": UID, "allowed": True}
    assert handler.asked == []


def changed(path: str, value: Any) -> bytes:
    whole = review()
    *way, last = path.split(".")
    target = whole
    for step in way:
        target = target[step]
    target[last] = value
    return text_of(whole)


MALFORMED = {
    "empty": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "NaN": text_of(review()).replace(b"false", b"NaN"),
    "no UTF-8": text_of(review()).replace(b"default", b"\xff\xfe"),
    "two values": text_of(review()) + b"{}",
    "another kind": changed("kind", "Review"),
    "another version": changed("apiVersion", "admission.k8s.io/v1beta1"),
    "no request": text_of({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
    "request of a wrong type": changed("request", 5),
    "no uid": changed("request.uid", ""),
    "long uid": changed("request.uid", "u" * 257),
    "uid of a wrong type": changed("request.uid", 7),
    "half a character": changed("request.uid", "\ud800"),
    "kind of a wrong type": changed("request.kind", "Pod"),
    "operation of a wrong type": changed("request.operation", ["CREATE"]),
    "dryRun of a wrong type": changed("request.dryRun", "yes"),
    "deep": b'{"request":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep pod": text_of(review("X")).replace(b'"X"', b"[" * 100_000 + b"]" * 100_000),
    "deep mapping": text_of(review("X")).replace(b'"X"', b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "number of many digits": text_of(review("X")).replace(b'"X"', b'{"a":' + b"9" * 100_000 + b"}"),
    "large exponent": text_of(review("X")).replace(b'"X"', b'{"a":1e999999}'),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_an_invalid_review_is_an_error_of_one_line_without_its_contents(body: bytes) -> None:
    with pytest.raises(MalformedError) as reported:
        answer(body, Labels())
    text = str(reported.value)
    assert text.isprintable()
    assert len(text) < 200


def test_unknown_fields_are_ignored_and_of_two_equal_fields_the_last_counts() -> None:
    body = text_of(review() | {"more": 1}).replace(b'"operation": "CREATE"', b'"operation": "X", "operation": "CREATE"')
    assert decided(body)["patchType"] == "JSONPatch"
