"""Each problem of a MasterQueue is reported in a line of its own, with its field and what to do."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fluence_plugins.master_queue import patterns
from fluence_plugins.master_queue.api.master_queue import MasterQueue, MasterQueueSpec
from fluence_plugins.master_queue.controller.validation import fungibility, problems
from fluence_plugins.master_queue.errors import PatternError

NATS: dict[str, Any] = {
    "natsConnector": "nats://user:password@nats.nats:4222",
    "natsSubject": "interlink.resources",
    "virtualNode": "interlink",
    "poolTimeout": 30,
    "poolRegExp": ".*",
}


def of(template: dict[str, Any] | None = None, *flavors: dict[str, Any]) -> tuple[str, ...]:
    template = {"cohort": "masterqueue"} if template is None else template
    spec = msgspec.convert({"template": template, "flavors": flavors}, MasterQueueSpec)
    return problems(spec, "masterqueue")


def flavor(nats: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "interlink", "natsFlavor": {**NATS, **(nats or {})}, **more}


def test_the_master_queue_of_the_documentation_is_valid() -> None:
    lend = [{"queue": "group1", "lendingLimit": {"pods": 30}}]
    local = {"name": "local-cpu", "localFlavor": {}, "nominalQuota": {"pods": 100}}
    assert of(None, flavor(nominalQuota={"pods": 100}, canLendTo=lend), local) == ()


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"natsFlavor": None}, "natsFlavor, localFlavor: neither is set; set exactly one of them"),
        ({"localFlavor": {}}, "natsFlavor, localFlavor: both are set; set exactly one of them"),
        ({"name": "A"}, "name: 'A' is not a valid flavor name; use at most 63 characters (a-z, 0-9 and -)"),
        ({"nominalQuota": {"pods": -1}}, "nominalQuota['pods']: -1 is negative; write 0 or more"),
        ({"nominalQuota": {"fpga": 1}}, "nominalQuota['fpga']: unknown resource; use one of cpu"),
        ({"canLendTo": [{"queue": "G"}]}, "canLendTo[0].queue: 'G' is not a valid queue name"),
        ({"canLendTo": [{"queue": "masterqueue"}]}, "canLendTo[0].queue: 'masterqueue' is the main queue itself"),
        ({"canLendTo": [{"queue": "g"}, {"queue": "g"}]}, "canLendTo[1].queue: 'g' is used twice"),
        (
            {"canLendTo": [{"queue": "g", "lendingLimit": {"cpu": "x"}}]},
            "canLendTo[0].lendingLimit['cpu']: 'x' is not a valid quantity",
        ),
    ],
)
def test_mistakes_of_a_flavor_are_reported(changed: dict[str, Any], line: str) -> None:
    (found,) = of(None, {**flavor(), **changed})
    assert found.startswith(f"spec.flavors[0].{line}")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"pools": ["a"]}, "pools, poolRegExp: both are set; set exactly one of them"),
        ({"poolRegExp": None}, "pools, poolRegExp: neither is set; set exactly one of them"),
        ({"poolRegExp": None, "pools": []}, "pools: is empty; name at least one pool"),
        ({"poolRegExp": None, "pools": ["a", "B"]}, "pools[1]: 'B' is not a valid pool name"),
        ({"poolRegExp": "podman-("}, "poolRegExp: is not a valid RE2 expression: missing ): podman-("),
        ({"poolRegExp": "(?=a)"}, "poolRegExp: is not a valid RE2 expression: invalid perl operator"),
        ({"poolRegExp": "a" * 300}, "poolRegExp: has 300 characters; use at most 256"),
        ({"natsConnector": ""}, "natsConnector: is empty; write the server's address"),
        ({"natsSubject": "a.*"}, "natsSubject: 'a.*' is not a valid subject; write words separated by ."),
        ({"virtualNode": "a b"}, "virtualNode: 'a b' is not a valid host name"),
        ({"poolTimeout": 0}, "poolTimeout: 0 is out of range; write a number of seconds from 1 to 604800"),
    ],
)
def test_mistakes_of_a_nats_flavor_are_reported(changed: dict[str, Any], line: str) -> None:
    (found,) = of(None, flavor(changed))
    assert found.startswith(f"spec.flavors[0].natsFlavor.{line}")


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ({}, "cohort: '' is not a valid cohort name"),
        ({"cohort": "c", "stopPolicy": "Stop"}, "stopPolicy: 'Stop' is unknown; use one of None, Hold, HoldAndDrain"),
        ({"cohort": "c", "queueingStrategy": "LIFO"}, "queueingStrategy: 'LIFO' is unknown"),
        ({"cohort": "c", "flavorFungibility": {"whenCanBorrow": "x"}}, "flavorFungibility.whenCanBorrow: 'x' is unkn"),
    ],
)
def test_mistakes_of_the_template_are_reported(template: dict[str, Any], line: str) -> None:
    (found,) = of(template, flavor())
    assert found.startswith(f"spec.template.{line}")


def test_flavors_are_required_and_unique() -> None:
    assert of() == ("spec.flavors: is empty; add at least one natsFlavor or localFlavor",)
    assert of(None, flavor(), flavor()) == (
        "spec.flavors[1].name: 'interlink' is used twice; give each flavor its own name",
    )


def test_a_pool_in_two_flavors_is_reported() -> None:
    named = {"poolRegExp": None, "pools": ["x", "y"]}
    assert of(None, flavor(named), {**flavor(named), "name": "b"}) == (
        "spec.flavors[1].natsFlavor.pools[0]: 'x' is also in spec.flavors[0].natsFlavor.pools[0]; name each pool once",
        "spec.flavors[1].natsFlavor.pools[1]: 'y' is also in spec.flavors[0].natsFlavor.pools[1]; name each pool once",
    )


def test_values_of_the_older_api_are_converted_to_the_newer() -> None:
    assert fungibility({"whenCanBorrow": "Borrow", "whenCanPreempt": "TryNextFlavor"}) == {
        "whenCanBorrow": "MayStopSearch",
        "whenCanPreempt": "TryNextFlavor",
    }


def test_an_expression_matches_the_whole_name() -> None:
    assert patterns.matches("podman-.*", "podman-firenze")
    assert not patterns.matches("podman", "podman-firenze")
    assert not patterns.matches("firenze", "podman-firenze")
    assert not patterns.matches("a|b", "ab")
    assert patterns.matches("(a|b)*", "ab")


def test_every_expression_is_evaluated_quickly() -> None:
    began = time.process_time()
    assert not patterns.matches("(a|aa)+$", "a" * 63 + "!")
    assert not patterns.matches("((a*)*)*b", "a" * 63)
    with pytest.raises(PatternError):
        patterns.check("((a{100}){100}){100}")
    assert time.process_time() - began < 5


def test_a_master_queue_is_read_as_the_api_server_has_it() -> None:
    found = msgspec.json.decode(
        b'{"apiVersion":"vk.io/v1","kind":"MasterQueue","metadata":{"name":"m","uid":"u","managedFields":[]},'
        b'"spec":{"template":{"cohort":"c"},"flavors":[{"name":"l","localFlavor":{}},'
        b'{"name":"n","natsFlavor":{"natsSubject":"s","pools":["a"]}}]}}',
        type=MasterQueue,
    )
    local, nats = found.spec.flavors
    assert local.local_flavor is not None
    assert nats.nats_flavor is not None
    assert (nats.nats_flavor.pools, nats.nats_flavor.pool_timeout) == (("a",), 60)
    assert (found.key, found.owner.uid, found.owner.controller) == ("m", "u", True)
