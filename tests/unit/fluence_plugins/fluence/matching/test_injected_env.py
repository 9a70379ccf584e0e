"""With `requireInjectedEnv` a device pod that did not come through the webhook is refused, and no other pod is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.matching.injected_env import not_injected, refusal_text
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.framework.bindings import Runtime
from session_scheduler.model.objects import Container, EnvVar, Pod, Quantity, ResourceRequirements
from session_scheduler.testing import FakeCluster, pod

DEVICE = "fluxion.flux-framework.org/qpu"
INJECTED = ("FLUXION_BACKEND", "FLUXION_REGION")


def container(name: str, *env: str, device: bool = False) -> Container:
    amounts: dict[str, Quantity] = {DEVICE: "1"} if device else {"cpu": "1"}
    return Container(
        name=name,
        resources=ResourceRequirements(requests=amounts, limits=amounts),
        env=tuple(EnvVar(name=variable) for variable in env),
    )


def made_of(name: str, *containers: Container, init: tuple[Container, ...] = ()) -> Pod:
    bare = pod(name)
    spec = msgspec.structs.replace(bare.spec, containers=containers, init_containers=init)
    return msgspec.structs.replace(bare, spec=spec)


def device_pod(name: str, *env: str) -> Pod:
    return made_of(name, container("main", *env, device=True))


# ------------------------------------------------------------------ one pod


@pytest.mark.parametrize("env", [INJECTED, ("FLUXION_BACKEND",), ("PATH", "FLUXION_BACKEND")])
def test_a_container_with_the_backends_variable_was_injected_whatever_keys_there_were_then(
    env: tuple[str, ...],
) -> None:
    assert not_injected(device_pod("p", *env)) is None


@pytest.mark.parametrize("env", [(), ("FLUXION_REGION",), ("FLUXION_BACKENDS",), ("fluxion_backend",)])
def test_a_container_without_the_backends_variable_was_not(env: tuple[str, ...]) -> None:
    assert not_injected(device_pod("p", *env)) == "main"


def test_every_container_and_init_container_must_have_it() -> None:
    main, side = container("main", *INJECTED, device=True), container("side")
    assert not_injected(made_of("p", main, side)) == "side"
    assert not_injected(made_of("p", main, init=(side,))) == "side"
    assert not_injected(made_of("p", main, container("side", *INJECTED), init=(container("i", *INJECTED),))) is None


def test_an_init_container_may_be_what_asks_for_the_device() -> None:
    asking = container("first", *INJECTED, device=True)
    assert not_injected(made_of("p", container("main"), init=(asking,))) == "main"


def test_a_pod_without_devices_needs_no_environment() -> None:
    assert not_injected(made_of("p", container("main"), init=(container("first"),))) is None


def test_the_variable_counts_whether_it_is_the_webhooks_or_the_users_own() -> None:
    own: dict[str, object] = {"name": "FLUXION_BACKEND", "value": "aurora"}
    path = "metadata.annotations['fluence.flux-framework.org/backend']"
    theirs: dict[str, object] = {"name": "FLUXION_BACKEND", "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for env in (own, theirs):
        spec = {"containers": [{"name": "c", "env": [env], "resources": {"limits": {DEVICE: "1"}}}]}
        assert not_injected(msgspec.convert({"kind": "Pod", "spec": spec}, Pod)) is None


# ------------------------------------------------------------------ a cluster


@pytest.fixture
def resources(tmp_path: Path) -> str:
    path = tmp_path / "resources.yaml"
    path.write_text("resources: [{type: qpu, count: 4, attributes: {region: here}}]")
    return str(path)


def plugin(resources: str, *, required: bool, live: bool = True) -> FluencePlugin:
    made = FluencePlugin(FluenceArguments(resources=resources, require_injected_env=required))
    if live:
        made.serve(Runtime(lambda *_: None, lambda: True))
    return made


def cluster_of(*pods: Pod) -> FakeCluster:
    cluster = FakeCluster()
    cluster.nodes(1, cpu="8", offers={DEVICE: "4"})
    cluster.add(*pods)
    return cluster


def test_the_argument_is_off_unless_given() -> None:
    assert FluenceArguments.model_validate({}).require_injected_env is False
    assert FluenceArguments.model_validate({"requireInjectedEnv": True}).require_injected_env is True


def test_of_pods_that_differ_in_their_environment_alone_only_the_bare_one_is_refused(resources: str) -> None:
    cluster = cluster_of(device_pod("bare"), device_pod("injected", *INJECTED))
    cluster.run(plugin(resources, required=True))
    cluster.assert_bound("injected", "n1")
    cluster.assert_pending("bare", refusal_text("main"))


def test_the_refusal_names_the_container_the_variable_and_the_remedy(resources: str) -> None:
    text = refusal_text("main")
    assert "'main'" in text
    assert "FLUXION_BACKEND" in text
    assert "create the pod again" in text
    assert "fluence-webhook" in text
    assert text.isprintable()


def test_a_pod_without_devices_is_placed_as_ever(resources: str) -> None:
    cluster = cluster_of(pod("classical"))
    cluster.run(plugin(resources, required=True))
    cluster.assert_bound("classical", "n1")


def test_what_no_tree_has_is_said_before_what_the_webhook_did_not_do(resources: str) -> None:
    amounts: dict[str, Quantity] = {"fluxion.flux-framework.org/fpga": "1"}
    asking = Container(name="main", resources=ResourceRequirements(requests=amounts, limits=amounts))
    cluster = cluster_of(made_of("unknown", asking))
    cluster.run(plugin(resources, required=True))
    cluster.assert_pending("unknown", "no resource tree has type")


@pytest.mark.parametrize(("required", "live"), [(False, True), (True, False)], ids=["off", "offline"])
def test_nothing_is_refused_for_it_where_it_is_off_or_pods_are_manifests(
    resources: str, required: bool, live: bool
) -> None:
    cluster = cluster_of(device_pod("bare"))
    cluster.run(plugin(resources, required=required, live=live))
    cluster.assert_bound("bare", "n1")


def test_a_pod_that_is_made_again_through_the_webhook_is_placed(resources: str) -> None:
    cluster = cluster_of(device_pod("p"))
    cluster.run(plugin(resources, required=True))
    cluster.assert_pending("p", refusal_text("main"))
    cluster.delete(Pod, "p")
    cluster.add(device_pod("p", *INJECTED))
    cluster.run()
    cluster.assert_bound("p", "n1")
