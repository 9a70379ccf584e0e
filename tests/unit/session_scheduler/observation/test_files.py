"""Observers of files: as they are, and after a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.errors import InputError
from session_scheduler.observation.files import open_files, simulated

CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "10"}}
---
apiVersion: v1
kind: Pod
metadata: {name: small}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: large}
spec: {schedulerName: fluence, containers: [{name: c, image: i, resources: {requests: {cpu: "9"}}}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


async def test_files_are_observed_as_they_are(file: str) -> None:
    seen = (await open_files([file])).observe()
    assert seen.source == file
    assert seen.pods.keys == ("default/large", "default/small")
    assert seen.pods.phases == ("Pending", "Pending")
    assert seen.pods.reasons == (
        "0/1 nodes are available: 1 Insufficient cpu.", "not tried yet: the pod fits on 1 of 1 nodes",
    )  # fmt: skip


async def test_a_simulation_gives_its_result_and_the_cluster_after_it(file: str) -> None:
    result, observer = await simulated([file], config=SchedulerConfig())
    seen = observer.observe()
    assert result["summary"]["scheduled"] == 1
    assert seen.pods.phases == ("Pending", "Bound")
    assert seen.pods.reasons[0] == next(pod["reason"] for pod in result["pods"] if pod["name"] == "large")


async def test_a_file_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(InputError, match=r"missing\.yaml"):
        await open_files(["missing.yaml"])
