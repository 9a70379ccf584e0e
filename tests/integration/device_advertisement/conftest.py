"""A kubelet's folder with a short path, which sockets require, and a kubelet in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before the import of grpc, which would log each closed connection

from .fake_kubelet import FakeKubelet


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dp") as path:
        yield Path(path)


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    """A running kubelet."""
    kubelet = FakeKubelet(folder)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()
