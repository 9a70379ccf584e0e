"""The CustomResourceDefinition of MasterQueues on a real API server: valid objects, and errors with remedies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import yaml

from ..queues.samples import LOCAL_MASTER_QUEUE, MASTER_QUEUE, read
from .conftest import new_control_plane
from .harness import DEPLOY, ControlPlane

PATH = "/apis/vk.io/v1/masterqueues"
DRY = f"{PATH}?dryRun=All&fieldValidation=Strict"
Manifest = dict[str, Any]
RESOURCE = "unknown resource; use one of cpu, memory, pods, nvidia.com/gpu"
LABEL = "use at most 63 characters (a-z, 0-9 and -), with no - at the start or end"
NAME = "use at most 253 characters (a-z, 0-9, - and .), with a letter or digit at the start and end"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with new_control_plane(tmp_path_factory.mktemp("master-queue-definition")) as found:
        for manifest in yaml.safe_load_all((DEPLOY / "options" / "master-queue.yaml").read_text()):
            if manifest["kind"] == "CustomResourceDefinition":
                found.create(manifest)
        found.wait_for(PATH, lambda answer: "items" in answer)
        yield found


def sample(**nats: Any) -> Manifest:
    """Return the document's MasterQueue with other fields in its natsFlavor; None removes one."""
    found = read(MASTER_QUEUE)
    fields: Manifest = found["spec"]["flavors"][0]["natsFlavor"]
    fields |= nats
    found["spec"]["flavors"][0]["natsFlavor"] = {name: value for name, value in fields.items() if value is not None}
    return found


def with_flavor(**fields: Any) -> Manifest:
    found = read(MASTER_QUEUE)
    found["spec"]["flavors"][0] |= fields
    return found


def with_template(**fields: Any) -> Manifest:
    found = read(MASTER_QUEUE)
    found["spec"]["template"] |= fields
    return found


def named(name: str, found: Manifest) -> Manifest:
    found["metadata"]["name"] = name
    return found


def two(first: dict[str, Any], second: dict[str, Any], name: str = "other") -> Manifest:
    """Two natsFlavors."""
    found = sample(poolRegExp=None, **first)
    other = copy.deepcopy(sample(poolRegExp=None, **second)["spec"]["flavors"][0])
    found["spec"]["flavors"].append(other | {"name": name})
    return found


def lending(*queues: Manifest) -> Manifest:
    return with_flavor(canLendTo=list(queues))


REFUSED: dict[str, tuple[Manifest, str]] = {
    "no spec": ({key: value for key, value in sample().items() if key != "spec"}, "spec: Required value"),
    "no flavors": (sample() | {"spec": {"template": {"cohort": "c"}}}, "spec.flavors: Required value"),
    "empty flavors": (sample() | {"spec": {"template": {"cohort": "c"}, "flavors": []}}, "at least 1 items"),
    "too many flavors": (
        sample() | {"spec": {"template": {"cohort": "c"},
                             "flavors": [{"name": f"f{n}", "localFlavor": {}} for n in range(65)]}},
        "must have at most 64 items",
    ),
    "no cohort": (sample() | {"spec": {"template": {}, "flavors": sample()["spec"]["flavors"]}}, "cohort: Required"),
    "cohort": (with_template(cohort="a_b"), f'spec.template.cohort: Invalid value: "a_b": {NAME}'),
    "long name": (
        named("a" * 64, sample()),
        "metadata.name: use at most 63 characters, because the names of flavors begin with it",
    ),
    "stopPolicy": (with_template(stopPolicy="Stop"), 'supported values: "None", "Hold", "HoldAndDrain"'),
    "queueingStrategy": (with_template(queueingStrategy="LIFO"), 'supported values: "BestEffortFIFO", "StrictFIFO"'),
    "whenCanBorrow": (with_template(flavorFungibility={"whenCanBorrow": "No"}), '"MayStopSearch", "TryNextFlavor"'),
    "preference": (
        with_template(flavorFungibility={"preference": "BorrowingOverPreemption"}),
        "preference requires TryNextFlavor for whenCanBorrow and whenCanPreempt; set both, or remove preference",
    ),
    "borrowWithinCohort": (
        with_template(preemption={"borrowWithinCohort": {"policy": "LowerPriority"}}),
        "borrowWithinCohort requires reclaimWithinCohort; set that to LowerPriority or Any, or set policy to Never",
    ),
    "both kinds": (with_flavor(localFlavor={}), "natsFlavor, localFlavor: set exactly one of them"),
    "neither kind": (
        sample() | {"spec": {"template": {"cohort": "c"}, "flavors": [{"name": "a"}]}},
        "spec.flavors[0]: Invalid value: natsFlavor, localFlavor: set exactly one of them",
    ),
    "dot in a natsFlavor": (with_flavor(name="a.b"), f"is not a valid flavor name; {LABEL}"),
    "flavor's name": (with_flavor(name="A"), f'spec.flavors[0].name: Invalid value: "A": {NAME}'),
    "one flavor twice": (two({"pools": ["a"]}, {"pools": ["b"]}, "interlink"), "Duplicate value"),
    "no connector": (sample(natsConnector=None), "natsConnector: Required value"),
    "empty connector": (sample(natsConnector=""), "natsConnector: Invalid value"),
    "long connector": (sample(natsConnector="n" * 2049), "may not be more than 2048"),
    "no subject": (sample(natsSubject=None), "natsSubject: Required value"),
    "no virtualNode": (sample(virtualNode=None), "virtualNode: Required value"),
    "virtualNode": (sample(virtualNode="-a"), "is not a valid host name; write the value of the node's label"),
    "both ways": (sample(pools=["a"]), "natsFlavor: Invalid value: pools, poolRegExp: set exactly one of them"),
    "neither way": (sample(poolRegExp=None), "pools, poolRegExp: set exactly one of them"),
    "empty pools": (sample(poolRegExp=None, pools=[]), "at least 1 items"),
    "too many pools": (sample(poolRegExp=None, pools=[f"p{n}" for n in range(33)]), "must have at most 32 items"),
    "pool's name": (sample(poolRegExp=None, pools=["a", "B"]), f"is not a valid pool name; {LABEL}"),
    "one pool twice": (sample(poolRegExp=None, pools=["a", "a"]), "pools[1]: Duplicate value"),
    "pool of two flavors": (
        two({"pools": ["a", "b"]}, {"pools": ["b"]}),
        "natsFlavor.pools: two flavors list the same pool; name each pool once",
    ),
    "long poolRegExp": (sample(poolRegExp="a" * 257), "may not be more than 256"),
    "open poolRegExp": (sample(poolRegExp="("), "is not a valid RE2 expression; close all groups"),
    "look-ahead": (sample(poolRegExp="(?=a)a"), "use no look-around"),
    "short poolTimeout": (sample(poolTimeout=0), "greater than or equal to 1"),
    "long poolTimeout": (sample(poolTimeout=604801), "less than or equal to 604800"),
    "poolTimeout of half a second": (sample(poolTimeout=0.5), "poolTimeout"),
    "unknown resource": (with_flavor(nominalQuota={"cpus": 1}), RESOURCE),
    "negative number": (with_flavor(nominalQuota={"pods": -1}), "Invalid value: -1: is negative; write 0 or more"),
    "negative text": (with_flavor(nominalQuota={"cpu": "-1"}), "is negative; write 0 or more"),
    "no quantity": (with_flavor(nominalQuota={"memory": "1 GB"}), "nominalQuota.memory: Invalid value"),
    "long quantity": (with_flavor(nominalQuota={"memory": "0" * 33}), "may not be more than 32"),
    "a fraction as a number": (with_flavor(nominalQuota={"cpu": 0.5}), "nominalQuota.cpu"),
    "lent to itself": (lending({"queue": "masterqueue"}), "canLendTo lists the main queue itself"),
    "lent twice to one": (lending({"queue": "a"}, {"queue": "a"}), "Duplicate value"),
    "queue's name": (lending({"queue": "a_b"}), f'canLendTo[0].queue: Invalid value: "a_b": {NAME}'),
    "no queue": (lending({"lendingLimit": {"pods": 1}}), "queue: Required value"),
    "too many queues": (lending(*({"queue": f"q{n}"} for n in range(65))), "must have at most 64 items"),
    "lent unknown": (lending({"queue": "a", "lendingLimit": {"gpu": 1}}), RESOURCE),
    "lent negative": (lending({"queue": "a", "lendingLimit": {"pods": "-1"}}), "is negative; write 0 or more"),
}  # fmt: skip
for subject in ("", "a.", ".a", "a..b", "a.*", "a.>", "a b", "a\tb"):
    REFUSED[f"subject {subject!r}"] = (
        sample(natsSubject=subject),
        "is not a valid subject; write words separated by ., without * and >",
    )


@pytest.mark.parametrize(("manifest", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_controller_could_not_use_is_refused_with_a_remedy(
    plane: ControlPlane, manifest: Manifest, why: str
) -> None:
    status, answer = plane.request("POST", DRY, manifest)
    assert status == HTTPStatus.UNPROCESSABLE_ENTITY, answer
    assert why in answer["message"]


def listed(pools: int, flavors: int = 64) -> Manifest:
    """Return the maximum number of flavors with pools, each lending to the maximum number of queues."""
    lend = [{"queue": f"q{n}", "lendingLimit": {"cpu": "1", "memory": "1Gi", "pods": 1, "nvidia.com/gpu": 0}}
            for n in range(64)]  # fmt: skip
    nats = sample(poolRegExp=None)["spec"]["flavors"][0]["natsFlavor"]
    found = sample()
    found["spec"]["flavors"] = [
        {"name": f"f{n}", "natsFlavor": nats | {"pools": [f"p-{n}-{m}" for m in range(pools)]}, "canLendTo": lend}
        for n in range(flavors)
    ]
    return found


def test_the_largest_that_the_bounds_allow_is_taken(plane: ControlPlane) -> None:
    """The API server rejects rules whose estimated cost is too high: none of these is."""
    for found in (listed(8), listed(32, 16)):
        status, answer = plane.request("POST", DRY, found)
        assert status == HTTPStatus.CREATED, answer
    status, answer = plane.request("POST", DRY, listed(9))
    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert "natsFlavor.pools: expected at most 512 pools in all flavors; use poolRegExp instead" in answer["message"]
    assert "cost" not in answer["message"]


@pytest.mark.parametrize("text", [MASTER_QUEUE, LOCAL_MASTER_QUEUE], ids=["nats", "local"])
def test_the_documents_master_queues_are_taken_and_get_the_defaults(plane: ControlPlane, text: str) -> None:
    status, answer = plane.request("POST", DRY, read(text))
    assert status == HTTPStatus.CREATED, answer
    expected = read(text)["spec"]
    expected["template"] |= {"namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO", "stopPolicy": "None"}
    assert answer["spec"] == expected


@pytest.mark.parametrize(("manifest", "why"), [
    (with_template(namespaceSelector={"matchLabels": {"team": "a"}}, stopPolicy="HoldAndDrain",
                   preemption={"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}},
                   flavorFungibility={"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"}), "all of a template"),
    (with_template(flavorFungibility={"whenCanBorrow": "TryNextFlavor", "preference": "BorrowingOverPreemption"}),
     "a preference"),
    (sample(poolTimeout=None), "no timeout"),
    (sample(natsConnector="interlink"), "a connector's name"),
    (two({"pools": ["a", "b"]}, {"pools": ["c"]}), "lists of pools"),
    (with_flavor(nominalQuota={"cpu": "1500m", "memory": "1.5Gi", "pods": 0, "nvidia.com/gpu": "1e1"}), "quantities"),
    (with_flavor(name="a", canLendTo=[{"queue": "a.b"}]), "a queue without limits"),
])  # fmt: skip
def test_what_the_controller_can_use_is_taken(plane: ControlPlane, manifest: Manifest, why: str) -> None:
    status, answer = plane.request("POST", DRY, manifest)
    assert status == HTTPStatus.CREATED, (why, answer)


def test_a_time_out_that_is_not_given_is_a_minute(plane: ControlPlane) -> None:
    _, answer = plane.request("POST", DRY, sample(poolTimeout=None))
    assert answer["spec"]["flavors"][0]["natsFlavor"]["poolTimeout"] == 60


STATUS = {
    "conditions": [{"type": "Ready", "status": "False", "reason": "Conflict", "message": "m",
                    "lastTransitionTime": "2026-01-02T03:04:05Z"}],
    "pools": [{"name": "a", "flavor": "interlink", "state": "Active", "lastMessage": "2026-01-02T03:04:05Z",
               "quota": {"cpu": "8", "pods": "10"}, "labels": {"k": "v"}, "problems": ["p"],
               "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}],
    "problems": ["one"],
    "activePools": 1,
    "knownPools": 1,
}  # fmt: skip


def test_the_status_is_a_subresource_that_keeps_all_of_its_fields_and_changes_nothing_else(plane: ControlPlane) -> None:
    status, made = plane.request("POST", PATH, sample() | {"status": STATUS})
    assert (status, "status" in made) == (HTTPStatus.CREATED, False)
    path = f"{PATH}/masterqueue"
    status, answer = plane.request("PATCH", f"{path}/status", {"status": STATUS, "spec": {"template": {"cohort": "x"}}})
    assert (status, answer["status"]) == (HTTPStatus.OK, STATUS)
    assert (answer["spec"], answer["metadata"]["generation"]) == (made["spec"], 1)
    table = plane.wait_for("/apis/vk.io/v1", lambda found: "resources" in found)  # discovery follows the resource
    (kind,) = [each for each in table["resources"] if each["name"] == "masterqueues"]
    assert (kind["kind"], kind["shortNames"], kind["namespaced"]) == ("MasterQueue", ["mq"], False)
