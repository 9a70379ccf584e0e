"""The page about MasterQueue pools: its numbers are those of the API server's objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Literal

import pytest
import yaml
from playwright.sync_api import Browser

from ..controlplane.harness import DEPLOY
from ..controlplane.scheduler_process import Settings
from ..queues.samples import cluster_queue, master_queue
from .browsing import Visitor
from .world import RESOURCES, Dashboard, Manifest, World

MASTER_QUEUES = "/apis/vk.io/v1/masterqueues"
CLUSTER_QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
PROBLEM = "flavor interlink: pool beta names the Secret finance/merger"
QUEUES: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "clusterqueues.kueue.x-k8s.io", "annotations": {
        "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue/pull/1"}},
    "spec": {
        "group": "kueue.x-k8s.io", "scope": "Cluster",
        "names": {"kind": "ClusterQueue", "plural": "clusterqueues"},
        "versions": [{
            "name": "v1beta2", "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip
"""Stands for Kueue's definition, which only tests/queues builds."""
POOLS = [
    {"name": "alpha", "flavor": "interlink", "state": "Active", "quota": {"cpu": "64", "pods": 40}},
    {"name": "beta", "flavor": "interlink", "state": "Waiting", "quota": {"cpu": "16", "pods": 10}},
]
QUOTAS = {"alpha": {"cpu": "64", "pods": "40"}, "beta": {"cpu": "0", "pods": "0"}}
USED = {
    "masterqueue": {"alpha": {"cpu": "12", "pods": "9"}, "beta": {"cpu": "0", "pods": "0"}},
    "group1": {"alpha": {"cpu": "2500m", "pods": "4"}, "beta": {"cpu": "0", "pods": "0"}},
}


@pytest.fixture(scope="module")
def pools(the_world: World) -> Iterator[World]:
    """MasterQueue and ClusterQueues, as the controller and Kueue write them."""
    plane = the_world.plane
    for manifest in yaml.safe_load_all((DEPLOY / "options" / "master-queue.yaml").read_text()):
        if manifest["kind"] == "CustomResourceDefinition":
            plane.create(manifest)
    plane.create(QUEUES)
    for path in (MASTER_QUEUES, CLUSTER_QUEUES):
        plane.wait_for(path, lambda answer: isinstance(answer, dict) and "items" in answer)
    master = plane.create(master_queue("interlink"))
    put_status(the_world, MASTER_QUEUES, "masterqueue", {"pools": POOLS, "problems": [PROBLEM]})
    owner = {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "name": "masterqueue", "uid": master["metadata"]["uid"]}
    for name, used in USED.items():
        quotas = {flavor(pool): QUOTAS[pool] if name == "masterqueue" else dict.fromkeys(QUOTAS[pool], "0")
                  for pool in QUOTAS}  # fmt: skip
        queue = cluster_queue(name, "masterqueue", quotas)
        queue["metadata"]["ownerReferences"] = [owner]
        plane.create(queue)
        usage = [{"name": flavor(pool), "resources": [{"name": resource, "total": total}
                  for resource, total in amounts.items()]} for pool, amounts in used.items()]  # fmt: skip
        put_status(the_world, CLUSTER_QUEUES, name, {
            "flavorsUsage": usage, "pendingWorkloads": len(name), "admittedWorkloads": len(used),
        })  # fmt: skip
    yield the_world
    for path in (MASTER_QUEUES, CLUSTER_QUEUES):
        for item in plane.request("GET", path)[1]["items"]:
            plane.request("DELETE", f"{path}/{item['metadata']['name']}")


def flavor(pool: str) -> str:
    """The ResourceFlavor of a pool."""
    return f"masterqueue-interlink-{pool}"


def put_status(world: World, path: str, name: str, status: Manifest) -> None:
    answer = world.plane.request("PATCH", f"{path}/{name}/status", {"status": status})
    assert answer[0] == HTTPStatus.OK, answer


def dashboard(world: World, stack: ExitStack, account: str) -> Dashboard:
    """A dashboard with the plugin, that reads as this account of kube-system."""
    resources = world.folder / "scheduler-resources.yaml"
    configuration = Settings(resources=RESOURCES).configuration(0, resources)
    configuration["profiles"][0]["plugins"].append({"name": "master-queue"})
    config = world.folder / "master-queue.yaml"
    config.write_text(yaml.safe_dump(configuration))
    kubeconfig = world.account_kubeconfig(account, "kube-system")
    found = Dashboard(world.folder / f"master-queue-{account}.log", kubeconfig, config)
    stack.callback(found.program.stop)
    return found


@pytest.fixture(scope="module")
def shown(pools: World) -> Iterator[Dashboard]:
    """The dashboard, with the permissions of deploy/."""
    with ExitStack() as stack:
        found = dashboard(pools, stack, "fluence-dashboard")
        token = pools.plane.token()
        pools.until("pools", lambda: found.get("/api/master-queue", token)[0] == HTTPStatus.OK)
        yield found


def listed(world: World, path: str) -> dict[str, Any]:
    return {item["metadata"]["name"]: item for item in world.plane.request("GET", path)[1]["items"]}


def cores(text: str) -> float:
    return float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)


def expected(world: World) -> dict[tuple[str, str], tuple[str, float, float, float]]:
    """By pool and resource: state, quota, used and lent, from the API server's objects alone."""
    (master,) = listed(world, MASTER_QUEUES).values()
    queues = listed(world, CLUSTER_QUEUES)
    quotas = {
        (one["name"], resource["name"]): cores(resource["nominalQuota"])
        for one in queues["masterqueue"]["spec"]["resourceGroups"][0]["flavors"]
        for resource in one["resources"]
    }
    used: dict[tuple[str, str, str], float] = {
        (name, one["name"], resource["name"]): cores(resource["total"])
        for name, queue in queues.items()
        for one in queue["status"]["flavorsUsage"]
        for resource in one["resources"]
    }
    return {
        (pool["name"], resource): (
            pool["state"],
            quotas[flavor(pool["name"]), resource],
            sum(used[name, flavor(pool["name"]), resource] for name in queues),
            used["group1", flavor(pool["name"]), resource],
        )
        for pool in master["status"]["pools"]
        for resource in ("cpu", "pods")
    }


def visible(visitor: Visitor) -> dict[tuple[str, str], tuple[str, float, float, float]]:
    rows = visitor.table("pools")
    assert {tuple(row[:2]) for row in rows} == {("masterqueue", "interlink")}
    return {(row[2], row[5]): (row[3], cores(row[6]), cores(row[7]), cores(row[8])) for row in rows}


def test_the_page_has_the_numbers_of_the_api_server(pools: World, shown: Dashboard, browser: Browser) -> None:
    with Visitor(browser, shown.address) as visitor:
        visitor.sign_in(pools.plane.token())
        visitor.open("master-queue")
        assert visitor.summary == "1 MasterQueue with 2 pools; 1 is active."
        assert visible(visitor) == expected(pools)
        assert expected(pools)["alpha", "cpu"] == ("Active", 64, 14.5, 2.5)
        queues = listed(pools, CLUSTER_QUEUES)
        assert {row[1]: row[4:] for row in visitor.table("queues")} == {
            name: [str(queue["status"][f"{kind}Workloads"]) for kind in ("pending", "admitted")]
            for name, queue in queues.items()
        }
        assert visitor.table("problems") == [["masterqueue", PROBLEM]]
        assert "alpha cpu 23 %" in visitor.page.inner_text("figcaption")


def test_the_page_follows_the_api_server(pools: World, shown: Dashboard, browser: Browser) -> None:
    with Visitor(browser, shown.address) as visitor:
        visitor.sign_in(pools.plane.token())
        visitor.open("master-queue")
        put_status(pools, MASTER_QUEUES, "masterqueue", {"pools": [{**pool, "state": "Active"} for pool in POOLS]})
        visitor.patience = 60.0  # the dashboard reads every half a minute
        visitor.wait_for("document.getElementById('summary').textContent.includes('2 are active')")
        assert visible(visitor) == expected(pools)


def test_a_user_of_one_namespace_sees_the_sums_and_no_texts_of_problems(
    pools: World, shown: Dashboard, browser: Browser
) -> None:
    token = pools.new_user("pool-user", "science")
    with Visitor(browser, shown.address) as visitor:
        visitor.sign_in(token)
        visitor.open("master-queue")
        assert visible(visitor) == expected(pools)
        assert visitor.table("problems") == []
        assert "merger" not in visitor.page.content()
    assert "merger" not in shown.get("/api/master-queue", token)[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_shows_all_text_on_a_narrow_screen(
    pools: World, shown: Dashboard, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    with Visitor(browser, shown.address, width=390, scheme=scheme) as visitor:
        visitor.sign_in(pools.plane.token())
        visitor.open("master-queue")
        assert (visitor.violations, visitor.cut_texts, visitor.cut_labels) == ([], [], [])


def test_a_dashboard_without_permission_to_list_them_has_no_such_page(pools: World) -> None:
    metadata = {"name": "no-pools", "namespace": "kube-system"}
    pools.plane.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    for manifest in yaml.safe_load_all((DEPLOY / "options" / "dashboard.yaml").read_text()):
        if manifest["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            manifest["metadata"]["name"] = "no-pools"
            if manifest["kind"] == "ClusterRole":
                manifest["rules"] = [rule for rule in manifest["rules"] if rule["apiGroups"] != ["vk.io"]]
            else:
                manifest["roleRef"]["name"] = "no-pools"
                manifest["subjects"] = [{"kind": "ServiceAccount", **metadata}]
            pools.plane.create(manifest)
    with ExitStack() as stack:
        found = dashboard(pools, stack, "no-pools")
        said = pools.until("line in the log", lambda: [
            line for line in found.log.read_text().splitlines() if "a panel cannot read its data" in line
        ])  # fmt: skip
        assert f"{MASTER_QUEUES}: not allowed to list MasterQueues; request this permission (" in said[0]
        token = pools.plane.token()
        assert found.get("/master-queue", token)[0] == HTTPStatus.NOT_FOUND
        assert 'href="master-queue"' not in found.get("/overview", token)[1]
