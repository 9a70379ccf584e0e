from __future__ import annotations

import pytest

from session_scheduler.config import parse_config
from session_scheduler.errors import InputError
from session_scheduler.plugin_loading import load_profiles

HEADER = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\nqueues:\n"


@pytest.mark.parametrize(("queues", "line"), [
    ("- {name: a, parent: b}", "f: queues[0].parent: there is no queue 'b': create it, or name another"),
    ("- {name: a, parent: b}\n- {name: b, parent: a}",
     "f: queues[0].parent: the queues make a circle (a -> b -> a): give one of them another parent"),
    ("- {name: a, parent: default}",
     "f: queues[0].parent: pods that name no queue go to 'default', so it can have no children: name another"),
    ("- {name: a, limit: {cpu: -1}}", "f: queues[0].limit.cpu: -1 is negative: write 0 or more"),
    ("- {name: a, deserved: {cpu: lots}}", "f: queues[0].deserved.cpu: 'lots' is no quantity: write a number with an "
     "optional suffix, as 500m, 2 or 4Gi"),
    ("- {name: a, deserved: {cpu: 3}, limit: {cpu: 2}}",
     "f: queues[0].deserved.cpu: 3 is more than the limit of 2: lower it, or raise the limit"),
    ("- {name: a, overQuotaWeight: -1}", "f: queues[0].overQuotaWeight: is -1: use 0 or more"),
    ("- {name: a}\n- {name: a}", "f: queues[1].name: 'a' is also queues[0]: keep one of the two"),
    ("- {name: a, wieght: 1}", "f: queues[0].wieght: is no field: "
     "use one of deserved, limit, name, overQuotaWeight, parent, priority"),
])  # fmt: skip
def test_a_wrong_queue_is_refused_at_the_start_with_its_path(queues: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        load_profiles(parse_config(HEADER + queues, "f"))
    assert raised.value.messages[0] == line


def test_right_queues_are_taken_with_quantities_as_numbers_or_text() -> None:
    config = parse_config(HEADER + "- {name: top, limit: {cpu: 10}}\n- {name: a, parent: top, deserved: {cpu: 500m}}",
                          "f")  # fmt: skip
    load_profiles(config)
    assert [queue.name for queue in config.queues] == ["top", "a"]
