"""Objects with selectors in manifests: services, controllers, and affinity terms with matchLabelKeys."""

from __future__ import annotations

from typing import Any

from session_scheduler.model.related import Namespace, ReplicaSet, ReplicationController, Service, StatefulSet

from .loading import load, pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}


def workload(kind: str, version: str = "apps/v1", **spec: Any) -> dict[str, Any]:
    spec.setdefault("selector", {"matchLabels": {"app": "web"}})
    return {"apiVersion": version, "kind": kind, "metadata": {"name": f"a-{kind.lower()}"},
            "spec": {"template": TEMPLATE, **spec}}  # fmt: skip


def test_namespaces_services_and_controllers_are_objects_of_the_cluster() -> None:
    loaded = load(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "a"}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "web"}}},
        workload("Deployment"),
        workload("StatefulSet"),
        workload("ReplicationController", "v1", selector={}),
        workload("DaemonSet"),
    )
    found = {type(one): one for one in loaded.related}
    assert set(found) == {Namespace, Service, ReplicaSet, StatefulSet, ReplicationController}
    namespace, service, controller = found[Namespace], found[Service], found[ReplicationController]
    assert (namespace.metadata.namespace, namespace.metadata.labels) == ("", {"team": "a"})
    assert isinstance(service, Service)
    assert (service.key, service.spec.selector) == ("default/s", {"app": "web"})
    assert isinstance(controller, ReplicationController)
    assert controller.spec.selector == {"app": "web"}  # the default: the template's labels
    assert found[ReplicaSet].metadata.name == "a-deployment"
    assert loaded.ignored == {}


def affinity_of(term: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    lists = {REQUIRED: [term], PREFERRED: [{"weight": 1, "podAffinityTerm": term}]}
    one = pod(**metadata)
    one["spec"]["affinity"] = {"podAntiAffinity": lists}
    (loaded,) = load(one).pods
    assert loaded.spec.affinity is not None
    found = loaded.spec.affinity.pod_anti_affinity
    assert found is not None
    assert found[PREFERRED][0]["podAffinityTerm"] == found[REQUIRED][0]
    term_: dict[str, Any] = found[REQUIRED][0]
    return term_


def test_label_keys_of_terms_are_added_to_their_selectors_if_the_pod_has_the_labels() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}},
            "matchLabelKeys": ["hash", "none"], "mismatchLabelKeys": ["tenant"]}  # fmt: skip
    found = affinity_of(term, labels={"hash": "h1", "tenant": "t1"})["labelSelector"]
    assert found == {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "hash", "operator": "In", "values": ["h1"]},
            {"key": "tenant", "operator": "NotIn", "values": ["t1"]},
        ],
    }


def test_a_term_without_a_selector_gets_none() -> None:
    assert "labelSelector" not in affinity_of({"topologyKey": "zone", "matchLabelKeys": ["hash"]}, labels={"hash": "h"})


def test_label_keys_that_the_pod_has_not_change_nothing() -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["hash"]}
    assert affinity_of(term) == term
