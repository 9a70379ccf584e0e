"""The admin_comment of a placeholder job, which names the pods that it stands for."""

from __future__ import annotations

from typing import Final

import msgspec

from fluence_plugins.slurm_bridge.slurm.errors import DECODE_ERRORS, InvalidRequestError
from fluence_plugins.slurm_bridge.slurm.model import JobComment
from fluence_plugins.slurm_bridge.slurm.placeholder import PodIdentity

COMMENT_CHARACTERS: Final = 1 << 20
"""The longest admin_comment that is written or read."""


class _Comment(msgspec.Struct, frozen=True, omit_defaults=True):
    pods: tuple[str, ...]
    uids: tuple[str, ...] = ()
    cluster: str = ""


_read_comment = msgspec.json.Decoder(_Comment).decode


def written_comment(comment: JobComment) -> str:
    """The text of an admin_comment. Raises: InvalidRequestError, where it would be too long to be read again."""
    uids = tuple(pod.uid for pod in comment.pods)
    wire = _Comment(tuple(pod.key for pod in comment.pods), uids if any(uids) else (), comment.cluster)
    text = msgspec.json.encode(wire).decode()
    if len(text) > COMMENT_CHARACTERS:
        what = (
            f"the names of its {len(uids)} pods have {len(text)} characters, a job's comment has {COMMENT_CHARACTERS}"
        )
        raise InvalidRequestError("job", 0, what)
    return text


def read_comment(text: str) -> JobComment | None:
    """What an admin_comment says, or None where no slurm-bridge can have written it: anybody may write one."""
    if not text.startswith("{") or len(text) > COMMENT_CHARACTERS:
        return None
    try:
        wire = _read_comment(text)
    except DECODE_ERRORS:
        return None
    uids = wire.uids or ("",) * len(wire.pods)
    keys = [pod.split("/") for pod in wire.pods]
    if not keys or len(uids) != len(keys) or any(len(key) != 2 or not all(key) for key in keys):
        return None
    return JobComment(
        tuple(PodIdentity(key[0], key[1], uid) for key, uid in zip(keys, uids, strict=True)), wire.cluster
    )
