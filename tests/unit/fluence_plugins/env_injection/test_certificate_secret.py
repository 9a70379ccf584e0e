"""What replicas do with a Secret that is gone, damaged, emptied, or not Fluence's."""

import asyncio
from datetime import timedelta

import pytest

from fluence_plugins.env_injection.certificate_secret import ForeignSecretError, new_secret
from fluence_plugins.env_injection.certificates import LIFETIMES, expiry, make, signer, signers

from .keeping_world import NAMES, PLACE, START, World


@pytest.fixture
def world() -> World:
    return World()


async def test_a_deleted_secret_is_created_again_with_the_same_data(world: World) -> None:
    one, two = world.replica(), world.replica()
    await one.check()
    await two.check()
    before = world.api.material()
    del world.api.objects[PLACE.path]
    await asyncio.gather(one.check(), two.check())
    assert world.api.material() == before
    assert len(one.served) == len(two.served) == 1


async def test_a_secret_deleted_during_a_write_is_created_again(world: World) -> None:
    replica = world.replica()
    await replica.check()
    world.now += LIFETIMES.serving
    check = asyncio.ensure_future(replica.check())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it was read
    del world.api.objects[PLACE.path]
    await check
    assert replica.now == world.api.material()
    assert expiry(replica.now.certificate) == world.now + LIFETIMES.serving


async def test_a_secret_deleted_when_its_certificate_is_due_is_created_with_a_renewed_one(world: World) -> None:
    replica = world.replica()
    await replica.check()
    before = world.api.material()
    del world.api.objects[PLACE.path]
    world.now += LIFETIMES.serving
    await replica.check()
    assert (replica.now.authorities, expiry(replica.now.certificate)) == (
        before.authorities, world.now + LIFETIMES.serving)  # fmt: skip


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
async def test_a_damaged_secret_is_restored(world: World, key: str, caplog: pytest.LogCaptureFixture) -> None:
    replica = world.replica()
    await replica.check()
    before = world.api.material()
    world.api.objects[PLACE.path]["data"][key] = "eA=="
    await replica.check()
    assert world.api.material() == before
    assert f"Secret kube-system/fluence-webhook-tls is unusable: {key}" in caplog.text
    assert "PRIVATE" not in caplog.text


async def test_a_secret_that_is_damaged_at_the_start_gets_new_keys(world: World) -> None:
    await world.replica().check()
    world.api.objects[PLACE.path]["data"]["tls.key"] = "no base64"
    replica = world.replica()
    await replica.check()
    await replica.check()
    assert replica.now == world.api.material()
    assert replica.problems() == {}


async def test_an_emptied_secret_gets_new_keys_and_the_old_ca_stays_trusted_for_a_while(world: World) -> None:
    replica = world.replica()
    await replica.check()
    before = world.api.material()
    world.api.objects[PLACE.path]["data"] = dict.fromkeys(world.api.objects[PLACE.path]["data"], "")
    await replica.check()
    new = world.api.material()
    assert new.authority_key != before.authority_key
    assert signers(before.authorities) < signers(new.authorities) == world.api.bundle()
    assert replica.now == before  # API servers may not have heard of the new CA yet
    await replica.check()
    assert replica.now == new
    for _ in range(2):  # in which the Secret, then the configuration forgets it
        world.now += LIFETIMES.overlap + timedelta(minutes=1)
        await replica.check()
    assert signers(world.api.material().authorities) == world.api.bundle() == {signer(new)}


@pytest.mark.parametrize("labels", [None, {}, {"app.kubernetes.io/name": "other"}])
async def test_a_secret_of_another_owner_is_never_written(world: World, labels: dict[str, str] | None) -> None:
    secret = new_secret("fluence-webhook-tls", "kube-system", make(NAMES, START - timedelta(days=400)))
    secret["metadata"]["labels"] = labels
    before = world.api.put(PLACE.path, secret)
    replica = world.replica()
    with pytest.raises(ForeignSecretError, match=r"^Secret kube-system/fluence-webhook-tls .* --secret, or delete it"):
        await replica.check()
    assert (world.api.objects[PLACE.path], replica.served) == (before, [])


async def test_an_empty_secret_of_an_administrator_is_filled_and_labelled(world: World) -> None:
    metadata = {"name": PLACE.name, "namespace": PLACE.namespace, "annotations": {"a": "b"}, "labels": {"c": "d"}}
    world.api.put(PLACE.path, {"metadata": metadata, "type": "Opaque", "data": None})
    await world.replica().check()
    found = world.api.objects[PLACE.path]
    assert found["metadata"]["labels"] == {"c": "d", "app.kubernetes.io/name": "fluence-webhook"}
    assert (found["metadata"]["annotations"], found["type"]) == ({"a": "b"}, "Opaque")
