"""The webhook on a real API server, which calls it over TLS: effects on pods, and the life of a replica."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import pytest

from .conftest import new_control_plane
from .harness import ControlPlane
from .webhook_process import CONFIGURATION, PATIENCE, SECRET, WebhookProcess, until
from .webhook_world import OURS, World, env_names, new_world, pod


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A separate control plane, because the configuration applies to all of its pods."""
    with new_control_plane(tmp_path_factory.mktemp("webhook")) as plane:
        yield plane


@pytest.fixture
def world(plane: ControlPlane, tmp_path: Path) -> World:
    return new_world(plane, tmp_path)


@pytest.fixture
def webhook(world: World) -> Iterator[WebhookProcess]:
    """A replica that is ready, and that the API server calls."""
    with world.replica() as replica:
        world.shared.configure(replica.tls_port)
        replica.start()
        replica.wait_ready()
        until(world.is_patched)
        yield replica


# ---------------------------------------------------------------------- pods


def test_every_container_gets_the_variables_before_the_users_own_which_stay(
    world: World, webhook: WebhookProcess
) -> None:
    own = {"name": "FLUXION_REGION", "value": "mine"}
    late = {"name": "WHERE", "value": "$(FLUXION_BACKEND)"}
    found = world.create(
        pod(
            initContainers=[{"name": "first", "image": "example.com/none"}],
            containers=[{"name": "main", "image": "example.com/none", "env": [late, own]}],
        )
    )["spec"]
    assert env_names(found["initContainers"][0]) == OURS
    assert found["containers"][0]["env"][2:] == [late, own]
    assert env_names(found["containers"][0])[:2] == ["FLUXION_BACKEND", "FLUXION_NUM_QUBITS"]
    assert found["containers"][0]["env"][1]["valueFrom"]["fieldRef"] == {
        "apiVersion": "v1",
        "fieldPath": "metadata.annotations['fluence.flux-framework.org/attr-num-qubits']",
    }


def test_a_pod_that_came_through_the_webhook_is_not_changed_when_it_is_created_again(
    world: World, webhook: WebhookProcess
) -> None:
    first = world.create(pod())
    again = world.create(pod(containers=first["spec"]["containers"]))
    assert again["spec"]["containers"][0]["env"] == first["spec"]["containers"][0]["env"]


def test_a_dry_run_shows_the_variables_and_stores_nothing(world: World, webhook: WebhookProcess) -> None:
    named = pod() | {"metadata": {"name": "tried"}}
    assert env_names(world.create(named, "?dryRun=All")["spec"]["containers"][0]) == OURS
    path = f"/api/v1/namespaces/{world.namespace}/pods/tried"
    assert world.plane.request("GET", path)[0] == HTTPStatus.NOT_FOUND


def test_other_schedulers_pods_are_neither_changed_nor_sent(world: World, webhook: WebhookProcess) -> None:
    def asked() -> float:
        metrics = webhook.metrics()
        return sum(value for name, value in metrics.items() if name.startswith("fluence_webhook_requests_total"))

    before = asked()
    for name in ("default-scheduler", "fluence-other", ""):
        found = world.create(pod(schedulerName=name))["spec"]
        assert env_names(found["containers"][0]) == []
    assert asked() == before


def test_pods_are_created_without_the_variables_while_no_webhook_answers(world: World, webhook: WebhookProcess) -> None:
    webhook.kill()
    assert env_names(world.create(pod())["spec"]["containers"][0]) == []


def test_the_variables_follow_the_resources_file(world: World, webhook: WebhookProcess) -> None:
    file = world.folder / "webhook-resources.yaml"
    file.write_text("resources: [{type: qpu, attributes: {speed: 1}}]\n")
    until(lambda: env_names(world.create(pod())["spec"]["containers"][0]) == ["FLUXION_BACKEND", "FLUXION_SPEED"])
    file.write_text("no: file\n")
    until(lambda: webhook.metrics()["fluence_webhook_config_last_load_successful"] == 0)
    assert env_names(world.create(pod())["spec"]["containers"][0]) == ["FLUXION_BACKEND", "FLUXION_SPEED"]
    assert "[fluence-webhook] environment contract: FLUXION_BACKEND <- annotation fluence" in webhook.log.read_text()


# ---------------------------------------------------------------------- life


def test_a_replica_outlives_the_api_server(world: World, webhook: WebhookProcess) -> None:
    world.plane.kill("kube-apiserver")
    until(lambda: webhook.metrics()['fluence_webhook_certificate_checks_total{result="failed"}'] > 0, 90.0)
    assert webhook.is_ready()
    world.plane.start_api_server()
    until(world.is_patched, PATIENCE * 2)


def test_a_replica_that_is_told_to_end_is_not_ready_at_once_answers_those_who_have_not_heard_and_ends_in_time(
    world: World, webhook: WebhookProcess
) -> None:
    with ThreadPoolExecutor() as beside:
        ending = beside.submit(webhook.terminate)
        until(lambda: "stopping" in webhook.log.read_text())
        assert webhook.get("/readyz")[0] == HTTPStatus.SERVICE_UNAVAILABLE
        assert world.is_patched()
        status, seconds = ending.result()
    assert (status, seconds < 5) == (0, True)
    assert not world.is_patched()


def test_no_key_is_in_a_log(world: World, webhook: WebhookProcess) -> None:
    assert world.plane.request("PATCH", SECRET, {"data": {"tls.crt": "eA=="}})[0] == HTTPStatus.OK
    until(lambda: world.shared.secret()["data"]["tls.crt"] != "eA==")
    text = webhook.log.read_text()
    assert "PRIVATE" not in text
    assert world.shared.material().key.split()[4].decode()[:20] not in text


def test_without_the_rights_the_log_says_which_are_missing(world: World) -> None:
    with world.replica() as replica:
        replica._kubeconfig = world.plane.kubeconfig("outsider")
        replica.start()
        until(lambda: replica.log.exists() and "get and update Secret fluence-webhook-tls" in replica.log.read_text())
        assert not replica.is_ready()
        assert CONFIGURATION.rpartition("/")[2] in replica.log.read_text()
