"""Decodes an AdmissionReview, calls the handler, and encodes the response.

Source: k8s.io/api/admission/v1. Invalid reviews raise `MalformedError`. Reviews of objects that do not concern the
handler are allowed unchanged.
"""

import base64
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from fluence_plugins.env_injection.handlers import PODS, WHOLE, AdmissionRequest, Decision, Handler, Refusal
from session_scheduler.errors import FluenceError

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"
Result = Literal["patched", "unchanged", "refused"]
_LONGEST_UID: Final = 256
_NULL: Final = msgspec.Raw(b"null")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError, ValueError)
"""The errors that the decoder raises for arbitrary bytes."""


class MalformedError(FluenceError):
    """A request is not a valid AdmissionReview. The text is one line."""


class _Kind(msgspec.Struct, frozen=True):
    kind: str
    group: str = ""
    version: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Request(msgspec.Struct, rename="camel", frozen=True):
    uid: str
    kind: _Kind
    operation: str
    namespace: str | None = None
    name: str | None = None
    sub_resource: str | None = None
    dry_run: bool | None = None
    user_info: _User | None = None
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL


class _Review(msgspec.Struct, rename="camel", frozen=True):
    api_version: str
    kind: str
    request: _Request


_decoder: Final = msgspec.json.Decoder(_Review)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request, and the encoded response."""

    result: Result
    body: bytes


async def answer(body: bytes, handler: Handler) -> Answer:
    """Decide on the review in `body`. Raises MalformedError."""
    review = _decoded(body)
    decision = _decision(review.request, handler)
    if isinstance(decision, Awaitable):
        decision = await decision
    response: dict[str, Any] = {"uid": review.request.uid, "allowed": not isinstance(decision, Refusal)}
    if isinstance(decision, Refusal):
        response["status"] = {"code": decision.code, "message": decision.message}
    elif decision:
        patch = msgspec.json.encode(list(decision))
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode("ascii")}
    result: Result = "refused" if isinstance(decision, Refusal) else "patched" if decision else "unchanged"
    return Answer(result, msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response}))


def _decoded(body: bytes) -> _Review:
    try:
        review = _decoder.decode(body)
        review.request.uid.encode()
    except _UNREADABLE as error:
        raise MalformedError(f"expected an {KIND}: {_error_text(error)}") from None
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise MalformedError(f"expected an {KIND} of {API_VERSION}; set admissionReviewVersions to [v1]")
    if not 0 < len(review.request.uid) <= _LONGEST_UID:
        raise MalformedError(f"request.uid must have 1 to {_LONGEST_UID} characters")
    return review


def _decision(request: _Request, handler: Handler) -> Decision | Awaitable[Decision]:
    kind = (request.kind.group, request.kind.kind)
    known_kind = kind in getattr(handler, "kinds", PODS)
    known_sub_resource = (request.sub_resource or "") in getattr(handler, "sub_resources", WHOLE)
    if not known_kind or not known_sub_resource or request.operation not in handler.operations:
        return []
    pod = _object(request.object, "object")
    if pod is None:
        return []
    facts = AdmissionRequest(
        uid=request.uid,
        operation=request.operation,
        namespace=request.namespace or "",
        name=request.name or "",
        dry_run=bool(request.dry_run),
        kind=request.kind.kind,
        sub_resource=request.sub_resource or "",
        user=request.user_info.username if request.user_info else "",
        old=_object(request.old_object, "oldObject") if request.operation == "UPDATE" else None,
    )
    return handler.mutate(pod, facts)


def _object(raw: msgspec.Raw, field: str) -> dict[str, Any] | None:
    """A field of the request as a JSON object; None if it is another value. Raises MalformedError."""
    try:
        found = msgspec.json.decode(raw)
    except _UNREADABLE as error:
        raise MalformedError(f"request.{field} is not valid JSON: {_error_text(error)}") from None
    return found if isinstance(found, dict) else None


def _error_text(error: Exception) -> str:
    """The problem, without the data that was sent."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return " ".join(str(error).split())
