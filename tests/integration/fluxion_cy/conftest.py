"""The built package, once for all workers."""

import fcntl
import os
import shutil

import pytest

from .packaged import READY, Built, build, install


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Built:
    base = tmp_path_factory.getbasetemp()
    shared = (base if worker_id == "master" else base.parent) / "fluxion_cy"
    shared.mkdir(exist_ok=True)
    dist, environment, done = shared / "dist", shared / "environment", shared / "done"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            for old in (dist, environment, shared / "copy"):  # of a worker that failed
                shutil.rmtree(old, ignore_errors=True)
            dist.mkdir()
            if os.environ.get(READY):
                shutil.copytree(os.environ[READY], dist, dirs_exist_ok=True)
            else:
                build(dist)
            install(dist, environment)
            done.touch()
    return Built(next(dist.glob("*.tar.gz")), next(dist.glob("*.whl")), environment / "bin" / "python")
