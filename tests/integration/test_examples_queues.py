"""The example of remote pools as queues: its objects, its message, and the node of its job."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fluence_plugins.master_queue.api import master_queue
from fluence_plugins.master_queue.api.informer_store import ObservedNamespace
from fluence_plugins.master_queue.controller.desired_state import Desired, desired
from fluence_plugins.master_queue.controller.local_queues import desired_local_queues
from fluence_plugins.master_queue.controller.pools import Pools
from fluence_plugins.master_queue.controller.validation import problems
from fluence_plugins.master_queue.messages import Message, decoded
from fluence_plugins.master_queue.server import load
from session_scheduler.cli import main

from ..queues import samples

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "13-master-queue"
POOL = "podman-florence"
FLAVOR = f"masterqueue-interlink-{POOL}"


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "apply" / name).read_text())
    return found


def message() -> Message:
    return decoded((FOLDER / "apply" / "message.json").read_bytes())


def master() -> master_queue.MasterQueue:
    found = manifest("masterqueue.yaml")
    found["metadata"]["uid"] = "u1"
    return msgspec.convert(found, master_queue.MasterQueue)


def after(*pools: str, seconds: float = 0.0) -> Desired:
    """The desired objects this long after these pools have published the message, with a connection."""
    queue = master()
    known = Pools(queue.spec)
    ((connector, subject),) = known.sources
    known.connected(connector, 0.0)
    for pool in pools:
        assert known.receive((connector, subject), pool, message(), 0.0) == ""
    return desired(queue, known, seconds)


def quotas(found: Desired, queue: str) -> dict[str, dict[str, tuple[str, str | None]]]:
    """Nominal quota and borrowing limit by flavor and resource."""
    (spec,) = [one.spec for one in found.queues if one.metadata.name == queue]
    return {flavor.name: {one.name: (one.nominal_quota, one.borrowing_limit) for one in flavor.resources}
            for group in spec.resource_groups for flavor in group.flavors}  # fmt: skip


def test_the_manifests_equal_the_documents_except_for_the_scheduler() -> None:
    assert manifest("masterqueue.yaml") == yaml.safe_load(samples.MASTER_QUEUE)
    job = manifest("job.yaml")
    assert job["spec"]["template"]["spec"].pop("schedulerName") == "fluence"
    assert job == yaml.safe_load(samples.JOB)


def test_the_spec_and_the_message_have_no_problems() -> None:
    assert problems(master().spec, "masterqueue") == ()
    assert message().problems == ()


def test_the_pool_becomes_the_queues_of_the_readme() -> None:
    found = after(POOL)
    assert [flavor.metadata.name for flavor in found.flavors] == [FLAVOR]
    assert quotas(found, "masterqueue") == {
        FLAVOR: {"cpu": ("8", None), "memory": ("32Gi", None), "pods": ("10", None)}}  # fmt: skip
    assert quotas(found, "group1") == {FLAVOR: {"pods": ("0", "30")}}
    assert FLAVOR in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("found", [after(), after(POOL, seconds=30.0)], ids=["nothing was heard", "it is silent"])
def test_without_an_active_pool_both_queues_are_held(found: Desired) -> None:
    assert [(one.metadata.name, one.spec.stop_policy) for one in found.queues] == [
        ("masterqueue", "Hold"), ("group1", "Hold")]  # fmt: skip
    assert found.flavors[0].metadata.name == "masterqueue-empty"


def test_the_namespace_gets_the_queue_that_the_job_names() -> None:
    namespace = msgspec.convert(manifest("namespace.yaml"), ObservedNamespace)
    (local,) = desired_local_queues([namespace], {}, {"group1": master().owner}).wanted
    assert (local.metadata.namespace, local.spec.cluster_queue) == ("default", "group1")
    assert manifest("job.yaml")["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": local.metadata.name}


def test_the_configuration_names_a_connector_that_a_master_queue_may_name() -> None:
    assert list(load(FOLDER / "apply" / "configuration.yaml").connectors) == ["interlink"]


def test_the_job_that_kueue_admits_is_placed_on_the_virtual_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (flavor,) = after(POOL).flavors
    job = manifest("job.yaml")
    job["metadata"]["name"] = job["metadata"].pop("generateName")
    job["spec"]["suspend"] = False
    template = job["spec"]["template"]["spec"]  # Kueue writes the flavor's fields
    template["nodeSelector"] = flavor.spec.node_labels
    template["tolerations"] += msgspec.to_builtins(flavor.spec.tolerations)
    assert yaml.safe_load((FOLDER / "admitted.yaml").read_text()) == job
    assert main(["simulate", str(FOLDER), "-o", "json"]) == 0
    (pod,) = json.loads(capsys.readouterr().out)["pods"]
    assert pod["node"] == "interlink"


@pytest.mark.parametrize("page", ["docs/how-to/queue-remote-pools.md", "examples/13-master-queue/README.md"])
def test_the_controller_accepts_the_message_of_the_pools_command(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / page).read_text().replace("\\\n", "")
    (servers,) = re.findall(r"export FLUENCE_NATS_SERVERS=(\S+)", text)
    monkeypatch.setenv("FLUENCE_NATS_SERVERS", servers)
    (command,) = re.findall(r"^\$ fluence (pool publish .*)$", text, re.MULTILINE)
    assert main([*shlex.split(command), "--dry-run"]) == 0
    assert decoded(capsys.readouterr().out.encode()).quotas == message().quotas


def test_the_page_shows_the_examples_master_queue() -> None:
    text = (ROOT / "docs/how-to/queue-remote-pools.md").read_text()
    shown = text.partition("```yaml\napiVersion: vk.io/v1\n")[2].partition("```")[0]
    assert yaml.safe_load("apiVersion: vk.io/v1\n" + shown) == manifest("masterqueue.yaml")
