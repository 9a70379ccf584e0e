"""The admin_comment of a placeholder job, which names the job's pods."""

from __future__ import annotations

from typing import Final

import msgspec

from fluence_plugins.slurm_bridge.slurm.errors import DECODE_ERRORS, InvalidRequestError
from fluence_plugins.slurm_bridge.slurm.model import JobComment
from fluence_plugins.slurm_bridge.slurm.placeholder import PodIdentity

COMMENT_CHARACTERS: Final = 1 << 20
"""The maximum length of an admin_comment."""


class _Comment(msgspec.Struct, frozen=True, omit_defaults=True):
    pods: tuple[str, ...]
    uids: tuple[str, ...] = ()
    cluster: str = ""


_decode = msgspec.json.Decoder(_Comment).decode


def encode_comment(comment: JobComment) -> str:
    """Encode an admin_comment. Raises InvalidRequestError if it is too long."""
    uids = tuple(pod.uid for pod in comment.pods)
    wire = _Comment(tuple(pod.key for pod in comment.pods), uids if any(uids) else (), comment.cluster)
    text = msgspec.json.encode(wire).decode()
    if len(text) > COMMENT_CHARACTERS:
        what = f"the comment that lists {len(uids)} pods has {len(text)} characters; the limit is {COMMENT_CHARACTERS}"
        raise InvalidRequestError("job", 0, what)
    return text


def decode_comment(text: str) -> JobComment | None:
    """Decode an admin_comment; None if no slurm-bridge wrote it. Any user can write an admin_comment."""
    if not text.startswith("{") or len(text) > COMMENT_CHARACTERS:
        return None
    try:
        wire = _decode(text)
    except DECODE_ERRORS:
        return None
    uids = wire.uids or ("",) * len(wire.pods)
    keys = [pod.split("/") for pod in wire.pods]
    if not keys or len(uids) != len(keys) or any(len(key) != 2 or not all(key) for key in keys):
        return None
    return JobComment(
        tuple(PodIdentity(key[0], key[1], uid) for key, uid in zip(keys, uids, strict=True)), wire.cluster
    )
