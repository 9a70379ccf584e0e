"""Replicas that share one Secret and one configuration, over years: whatever they serve is trusted."""

import asyncio
import base64
import copy
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fluence_plugins.env_injection.certificates import (
    LIFETIMES,
    Material,
    expiry,
    make,
    service_names,
    signer,
    signers,
)
from fluence_plugins.env_injection.configuration import Configuration
from fluence_plugins.env_injection.keeping import Keeper, SecretPlace
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.env_injection.secret import ForeignSecretError, material_of, new_secret
from session_scheduler.kube_api import AlreadyExists, ClusterError, Conflict, Forbidden, NotFound, Unavailable

START = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = service_names("fluence-webhook", "kube-system")
PLACE = SecretPlace("kube-system", "fluence-webhook-tls")
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fluence-webhook"
OURS = {"service": {"namespace": "kube-system", "name": "fluence-webhook", "path": "/mutate/fluxion"}}
Object = dict[str, Any]


class Api:
    """Secrets and configurations as the API server keeps them; `fails` are raised instead, by verb."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.fails: dict[str, ClusterError] = {}
        self.writes: list[str] = []
        self._version = 0

    def put(self, path: str, found: Object) -> Object:
        self._version += 1
        found = copy.deepcopy(found)
        found["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = found
        return copy.deepcopy(found)

    async def get(self, path: str) -> Object:
        await self._turn("get")
        if path not in self.objects:
            raise NotFound(path)
        return copy.deepcopy(self.objects[path])

    async def create(self, path: str, manifest: Object) -> Object:
        await self._turn("create")
        path = f"{path}/{manifest['metadata']['name']}"
        if path in self.objects:
            raise AlreadyExists(path)
        self.writes.append(path)
        return self.put(path, manifest)

    async def replace(self, path: str, manifest: Object) -> Object:
        await self._turn("replace")
        self._guard(path, manifest)
        self.writes.append(path)
        return self.put(path, manifest)

    async def patch(self, path: str, patch: Object, _kind: str) -> Object:
        await self._turn("patch")
        self._guard(path, patch)
        found = copy.deepcopy(self.objects[path])
        for change in patch["webhooks"]:
            (webhook,) = [each for each in found["webhooks"] if each["name"] == change["name"]]
            webhook["clientConfig"] |= change["clientConfig"]
        self.writes.append(path)
        return self.put(path, found)

    def _guard(self, path: str, written: Object) -> None:
        if path not in self.objects:
            raise NotFound(path)
        if written["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            raise Conflict(path)

    async def _turn(self, verb: str) -> None:
        await asyncio.sleep(0)  # others may come first
        if verb in self.fails:
            raise self.fails[verb]

    # -------------------------------------------------------------- what tests look at

    def material(self) -> Material:
        found = material_of(self.objects[PLACE.path])
        assert found is not None
        return found

    def bundle(self, index: int = 0) -> frozenset[bytes]:
        client = self.objects[CONFIGURATION]["webhooks"][index]["clientConfig"]
        return signers(base64.b64decode(client.get("caBundle", "")))

    def configure(self, *clients: Object) -> None:
        webhooks = [{"name": f"w{at}", "clientConfig": client} for at, client in enumerate(clients or [OURS])]
        self.put(CONFIGURATION, {"metadata": {"name": "fluence-webhook"}, "webhooks": webhooks})


class World:
    """Time, an API server, and replicas."""

    def __init__(self) -> None:
        self.now = START
        self.api = Api()
        self.api.configure()

    def replica(self, names: Iterable[str] = NAMES) -> "Replica":
        return Replica(self, list(names))


class Replica:
    """One keeper and what it serves."""

    def __init__(self, world: World, names: list[str]) -> None:
        self.world = world
        self.served: list[Material] = []
        self.metrics = WebhookMetrics()
        api: Any = world.api
        self.configuration = Configuration(
            api, "fluence-webhook", service="fluence-webhook", namespace="kube-system", hosts=names,
            now=lambda: world.now,
        )  # fmt: skip
        self.keeper = Keeper(
            api, PLACE, self.configuration, names, serve=self.served.append, metrics=self.metrics, now=lambda: world.now
        )

    @property
    def now(self) -> Material:
        return self.served[-1]

    async def check(self) -> None:
        await self.keeper.check()

    def problems(self) -> dict[str, str]:
        return {check: problem for check, problem in self.keeper.problems().items() if problem is not None}

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"fluence_webhook_{name}", labels)


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------ the start


async def test_the_first_replica_makes_everything_and_is_trusted(world: World) -> None:
    replica = world.replica()
    assert replica.problems() == {"certificate": "the Secret was not read yet"}
    await replica.check()
    assert replica.now == world.api.material()
    assert world.api.bundle() == signers(replica.now.authorities)
    assert replica.problems() == {"configuration": "fluence-webhook was not seen to trust it yet"}
    await replica.check()
    assert replica.problems() == {}
    secret = world.api.objects[PLACE.path]
    assert (secret["type"], secret["metadata"]["labels"]) == (
        "kubernetes.io/tls", {"app.kubernetes.io/name": "fluence-webhook"})  # fmt: skip
    assert replica.value("certificate_expiry_timestamp_seconds") == (START + LIFETIMES.serving).timestamp()
    assert (replica.value("trusted"), replica.value("certificate_writes_total")) == (1, 1)


@pytest.mark.parametrize("count", [2, 3, 8])
async def test_replicas_that_start_at_once_serve_the_same(world: World, count: int) -> None:
    replicas = [world.replica() for _ in range(count)]
    for _ in range(2):
        await asyncio.gather(*(replica.check() for replica in replicas))
    assert {replica.now.certificate for replica in replicas} == {world.api.material().certificate}
    assert world.api.writes.count(PLACE.path) == 1
    assert all(replica.problems() == {} for replica in replicas)


async def test_a_check_where_all_is_well_writes_nothing(world: World) -> None:
    replica = world.replica()
    await replica.check()
    writes = list(world.api.writes)
    await replica.check()
    await world.replica().check()
    assert world.api.writes == writes
    assert len(replica.served) == 1


async def test_without_a_configuration_a_replica_is_ready_and_trusted_when_one_comes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    del world.api.objects[CONFIGURATION]
    replica = world.replica()
    await replica.check()
    await replica.check()
    assert (replica.problems(), replica.value("trusted")) == ({}, 0)
    assert caplog.text.count("MutatingWebhookConfiguration fluence-webhook: it is not there") == 1
    world.api.configure()
    await replica.check()
    assert (world.api.bundle(), replica.value("trusted")) == (signers(replica.now.authorities), 1)


@pytest.mark.parametrize("bundle", ["", "%%%", "bm90aGluZw=="])
async def test_a_bundle_that_was_damaged_is_put_right(world: World, bundle: str) -> None:
    replica = world.replica()
    await replica.check()
    world.api.configure(OURS | {"caBundle": bundle})
    await replica.check()
    assert world.api.bundle() == signers(replica.now.authorities)


async def test_a_ca_that_nobody_wants_is_trusted_no_longer_than_replicas_may_need(world: World) -> None:
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


async def test_only_webhooks_that_lead_here_are_patched(world: World, caplog: pytest.LogCaptureFixture) -> None:
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
    assert "none of its webhooks leads to Service kube-system/fluence-webhook" in caplog.text


# ------------------------------------------------------------------ the Secret goes, or is somebody's


async def test_a_secret_that_is_gone_is_stored_again_as_it_was(world: World) -> None:
    one, two = world.replica(), world.replica()
    await one.check()
    await two.check()
    before = world.api.material()
    del world.api.objects[PLACE.path]
    await asyncio.gather(one.check(), two.check())
    assert world.api.material() == before
    assert len(one.served) == len(two.served) == 1


async def test_one_that_goes_while_it_is_written_is_stored_again(world: World) -> None:
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


async def test_one_that_is_gone_when_its_certificate_is_due_is_stored_with_a_renewed_one(world: World) -> None:
    replica = world.replica()
    await replica.check()
    before = world.api.material()
    del world.api.objects[PLACE.path]
    world.now += LIFETIMES.serving
    await replica.check()
    assert (replica.now.authorities, expiry(replica.now.certificate)) == (
        before.authorities, world.now + LIFETIMES.serving)  # fmt: skip


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
async def test_a_damaged_one_is_stored_again_as_it_was(
    world: World, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    replica = world.replica()
    await replica.check()
    before = world.api.material()
    world.api.objects[PLACE.path]["data"][key] = "eA=="
    await replica.check()
    assert world.api.material() == before
    assert f"Secret kube-system/fluence-webhook-tls cannot be used: {key}" in caplog.text
    assert "PRIVATE" not in caplog.text


async def test_a_damaged_one_at_the_start_is_made_anew(world: World) -> None:
    await world.replica().check()
    world.api.objects[PLACE.path]["data"]["tls.key"] = "no base64"
    replica = world.replica()
    await replica.check()
    await replica.check()
    assert replica.now == world.api.material()
    assert replica.problems() == {}


async def test_an_emptied_one_gets_new_keys_and_the_old_ca_stays_trusted_for_a_while(world: World) -> None:
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
async def test_one_of_somebody_else_is_never_written(world: World, labels: dict[str, str] | None) -> None:
    secret = new_secret("fluence-webhook-tls", "kube-system", make(NAMES, START - timedelta(days=400)))
    secret["metadata"]["labels"] = labels
    before = world.api.put(PLACE.path, secret)
    replica = world.replica()
    with pytest.raises(ForeignSecretError, match=r"^Secret kube-system/fluence-webhook-tls .* --secret, or delete it"):
        await replica.check()
    assert (world.api.objects[PLACE.path], replica.served) == (before, [])


async def test_one_that_an_administrator_made_empty_is_filled_and_labelled(world: World) -> None:
    metadata = {"name": PLACE.name, "namespace": PLACE.namespace, "annotations": {"a": "b"}, "labels": {"c": "d"}}
    world.api.put(PLACE.path, {"metadata": metadata, "type": "Opaque", "data": None})
    await world.replica().check()
    found = world.api.objects[PLACE.path]
    assert found["metadata"]["labels"] == {"c": "d", "app.kubernetes.io/name": "fluence-webhook"}
    assert (found["metadata"]["annotations"], found["type"]) == ({"a": "b"}, "Opaque")


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_while_the_api_server_does_not_answer_what_is_served_goes_on(world: World, verb: str) -> None:
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


async def test_one_of_another_ca_is_not_served_before_the_configuration_could_be_changed(world: World) -> None:
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


async def test_checks_that_fail_come_again_sooner_and_are_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert caplog.text.count("the certificate could not be checked: secrets: 403: not allowed: let the") == 1
    assert caplog.text.count("the certificate could be checked again") == 1
    assert "get and update Secret fluence-webhook-tls" in caplog.text
    assert replica.value("certificate_checks_total", result="failed") == 8
    assert replica.value("certificate_checks_total", result="ok") == 2


async def test_replicas_that_are_reached_by_different_names_agree_on_one_certificate(world: World) -> None:
    one, two = world.replica([*NAMES, "one.example.com"]), world.replica([*NAMES, "two.example.com"])
    for _ in range(3):
        await asyncio.gather(one.check(), two.check())
    writes = len(world.api.writes)
    await asyncio.gather(one.check(), two.check())
    assert len(world.api.writes) == writes
    assert one.now == two.now


# ------------------------------------------------------------------ years

MINUTE = timedelta(minutes=1)
LAG = timedelta(seconds=10)
"""How long an API server may go by a configuration that has changed."""


class History:
    """The bundles that there were, and since when."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: list[tuple[datetime, frozenset[bytes]]] = []

    def note(self) -> None:
        self._seen = [*self._seen[-100:], (self._world.now, self._world.api.bundle())]

    def believed(self) -> list[frozenset[bytes]]:
        """What some API server may go by now."""
        since = self._world.now - LAG
        older = [bundle for at, bundle in self._seen if at < since][-1:]
        return older + [bundle for at, bundle in self._seen if at >= since]


def assert_trusted(history: History, replicas: list[Replica]) -> None:
    believed = frozenset[bytes].intersection(*history.believed())
    for replica in replicas:
        assert replica.problems() or signer(replica.now) in believed


async def live_through(world: World, chance: random.Random, replicas: list[Replica], history: History) -> None:
    """Minutes in which each replica checks once, in any order or two at once, while at first something happens."""
    for minute in range(5):
        chance.shuffle(replicas)
        for replica in replicas:
            world.now += MINUTE / len(replicas)
            if minute < 2 and chance.random() < 0.1:
                world.api.objects.pop(PLACE.path, None)
            elif minute < 2 and chance.random() < 0.02 and PLACE.path in world.api.objects:
                world.api.objects[PLACE.path]["data"] = {}
            await asyncio.gather(*(each.check() for each in {replica, chance.choice(replicas)}))
            history.note()
            assert_trusted(history, replicas)
    assert all(not replica.problems() for replica in replicas)


@pytest.mark.parametrize("seed", range(3))
async def test_over_eight_years_every_replica_that_is_ready_serves_what_every_api_server_trusts(seed: int) -> None:
    chance, world = random.Random(seed), World()
    replicas = [world.replica() for _ in range(3)]
    history = History(world)
    history.note()
    await asyncio.gather(*(replica.check() for replica in replicas))
    history.note()
    cas = set[bytes]()
    while world.now < START + timedelta(days=8 * 365):
        await live_through(world, chance, replicas, history)
        cas |= world.api.bundle()
        if chance.random() < 0.2:
            replicas[0] = world.replica()
        world.now += chance.choice(
            [timedelta(days=110), timedelta(days=110), timedelta(hours=2), LIFETIMES.overlap / 2]
        )
    assert len(cas) >= 2
