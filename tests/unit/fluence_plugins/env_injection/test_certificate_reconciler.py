"""Replicas that share one Secret and one configuration: the start, and what goes wrong."""

import asyncio
import base64

import pytest

from fluence_plugins.env_injection.certificates import LIFETIMES, make, signer, signers
from session_scheduler.sdk.dynamic_client import Forbidden, Unavailable

from .keeping_world import CONFIGURATION, NAMES, OURS, PLACE, START, World


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------ the start


async def test_the_first_replica_creates_secret_and_bundle_and_is_trusted(world: World) -> None:
    replica = world.replica()
    assert replica.problems() == {"certificate": "the Secret has not been read yet"}
    await replica.check()
    assert replica.now == world.api.material()
    assert world.api.bundle() == signers(replica.now.authorities)
    assert replica.problems() == {
        "configuration": "MutatingWebhookConfiguration fluence-webhook does not trust the certificate yet"
    }
    await replica.check()
    assert replica.problems() == {}
    secret = world.api.objects[PLACE.path]
    assert (secret["type"], secret["metadata"]["labels"]) == (
        "kubernetes.io/tls", {"app.kubernetes.io/name": "fluence-webhook"})  # fmt: skip
    assert replica.value("certificate_expiry_timestamp_seconds") == (START + LIFETIMES.serving).timestamp()
    assert (replica.value("trusted"), replica.value("certificate_writes_total")) == (1, 1)


@pytest.mark.parametrize("count", [2, 3, 8])
async def test_replicas_that_start_together_serve_one_certificate(world: World, count: int) -> None:
    replicas = [world.replica() for _ in range(count)]
    for _ in range(2):
        await asyncio.gather(*(replica.check() for replica in replicas))
    assert {replica.now.certificate for replica in replicas} == {world.api.material().certificate}
    assert world.api.writes.count(PLACE.path) == 1
    assert all(replica.problems() == {} for replica in replicas)


async def test_a_check_that_finds_no_difference_writes_nothing(world: World) -> None:
    replica = world.replica()
    await replica.check()
    writes = list(world.api.writes)
    await replica.check()
    await world.replica().check()
    assert world.api.writes == writes
    assert len(replica.served) == 1


async def test_without_a_configuration_a_replica_is_ready_and_it_is_trusted_once_there_is_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    del world.api.objects[CONFIGURATION]
    replica = world.replica()
    await replica.check()
    await replica.check()
    assert (replica.problems(), replica.value("trusted")) == ({}, 0)
    assert caplog.text.count("MutatingWebhookConfiguration fluence-webhook: the object does not exist; apply it") == 1
    world.api.configure()
    await replica.check()
    assert (world.api.bundle(), replica.value("trusted")) == (signers(replica.now.authorities), 1)


@pytest.mark.parametrize("bundle", ["", "%%%", "bm90aGluZw=="])
async def test_a_damaged_bundle_is_fixed(world: World, bundle: str) -> None:
    replica = world.replica()
    await replica.check()
    world.api.configure(OURS | {"caBundle": bundle})
    await replica.check()
    assert world.api.bundle() == signers(replica.now.authorities)


async def test_an_unused_ca_is_trusted_no_longer_than_replicas_may_need_it(world: World) -> None:
    one, two = world.replica(), world.replica()
    await one.check()
    other = make(NAMES, START)
    world.api.configure(OURS | {"caBundle": base64.b64encode(other.authorities).decode()})
    await asyncio.gather(one.check(), two.check())
    assert world.api.bundle() == signers(one.now.authorities) | signers(other.authorities)
    world.now += LIFETIMES.overlap
    await asyncio.gather(one.check(), two.check())
    assert world.api.bundle() == signers(one.now.authorities)
    writes = list(world.api.writes)
    await asyncio.gather(one.check(), two.check())
    assert world.api.writes == writes


async def test_only_webhooks_of_this_service_are_patched(world: World, caplog: pytest.LogCaptureFixture) -> None:
    service = OURS["service"]
    world.api.configure(
        {"service": service | {"namespace": "other"}}, {"service": service | {"name": "other"}}, OURS,
        {"url": f"https://{NAMES[0]}:8443/mutate/fluxion"}, {"url": "https://example.com/"}, {"url": "https://[x"},
    )  # fmt: skip
    await world.replica().check()
    assert [len(world.api.bundle(at)) for at in range(6)] == [0, 0, 1, 1, 0, 0]
    world.api.configure({"url": "https://example.com/"})
    replica = world.replica()
    await replica.check()
    assert replica.problems() == {}
    assert "none of its webhooks calls Service kube-system/fluence-webhook" in caplog.text


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_the_server_continues_while_the_api_server_does_not_answer(world: World, verb: str) -> None:
    replica = world.replica()
    await replica.check()
    await replica.check()
    if verb == "create":
        del world.api.objects[PLACE.path]
    world.api.fails[verb] = Unavailable("no answer in time")
    with pytest.raises(Unavailable):
        await replica.check()
    assert replica.problems() == {}
    world.now += LIFETIMES.serving
    assert set(replica.problems()) == {"certificate"}


async def test_a_renewed_certificate_of_the_same_ca_is_served_although_the_configuration_cannot_be_read(
    world: World,
) -> None:
    replica = world.replica()
    await replica.check()
    world.now += LIFETIMES.serving * 0.8
    world.api.fails["patch"] = Forbidden("no")
    world.api.configure()
    with pytest.raises(Forbidden):
        await replica.check()
    assert replica.now == world.api.material()
    assert len(replica.served) == 2
    assert set(replica.problems()) == {"configuration"}


async def test_a_certificate_of_another_ca_is_served_only_after_the_configuration_is_patched(world: World) -> None:
    replica = world.replica()
    await replica.check()
    await replica.check()
    world.now += LIFETIMES.serving / 2
    world.api.objects[PLACE.path]["data"] = {}
    world.api.fails["patch"] = Unavailable("no")
    for _ in range(3):
        with pytest.raises(Unavailable):
            await replica.check()
        assert signer(replica.now) in world.api.bundle()
    del world.api.fails["patch"]
    await replica.check()
    await replica.check()
    assert replica.now == world.api.material()


async def test_failed_checks_are_retried_sooner_and_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 8:
            world.api.fails.clear()
        if len(slept) == 10:
            raise asyncio.CancelledError

    caplog.set_level("INFO")
    world.api.fails["get"] = Forbidden("secrets: 403: not allowed")
    replica = world.replica()
    with pytest.raises(asyncio.CancelledError):
        await replica.keeper.run(60.0, sleep)
    assert slept == [1, 2, 4, 8, 16, 32, 60, 60, 1, 60]  # the last but one to see that the configuration trusts it
    assert caplog.text.count("cannot check the certificate: secrets: 403: not allowed; allow the") == 1
    assert caplog.text.count("the certificate check succeeds again") == 1
    assert "get and update Secret fluence-webhook-tls" in caplog.text
    assert replica.value("certificate_checks_total", result="failed") == 8
    assert replica.value("certificate_checks_total", result="ok") == 2


async def test_replicas_with_different_names_agree_on_one_certificate(world: World) -> None:
    one, two = world.replica([*NAMES, "one.example.com"]), world.replica([*NAMES, "two.example.com"])
    for _ in range(3):
        await asyncio.gather(one.check(), two.check())
    writes = len(world.api.writes)
    await asyncio.gather(one.check(), two.check())
    assert len(world.api.writes) == writes
    assert one.now == two.now
