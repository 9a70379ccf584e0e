"""The two distributions, built once for all workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..tools.packages import Built, build_fluxion_cy, build_scheduler, built_in, once


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Built:
    """The sdist and the wheel of fluxion-cy; the compilation takes a minute or more."""
    return built_in(once(tmp_path_factory, worker_id, "fluxion_cy", build_fluxion_cy))


@pytest.fixture(scope="session")
def scheduler_wheel(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The wheel of fluence-scheduler."""
    return next(once(tmp_path_factory, worker_id, "fluence_scheduler", build_scheduler).glob("*.whl"))
