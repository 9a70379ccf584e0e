"""For every movement of the clock and every overrun duration: two live pods never hold the same vertex."""

from __future__ import annotations

from collections import Counter
from operator import gt

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools.real_engine import embedded_only

from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.testing.builders import gang, node, pod
from session_scheduler.testing.fake_cluster import FakeCluster

from ...tools.examples import examples

pytestmark = embedded_only  # the library's clock does not advance

DURATION = "fluence.flux-framework.org/duration"
QPU = "fluxion.flux-framework.org/qpu"
CORES, DEVICES = 4, 3

_steps = st.lists(
    st.tuples(
        st.sampled_from(["pod", "gang", "end", "restart", "forward", "back"]),
        st.integers(1, 4),
        st.booleans(),
        st.sampled_from([None, 1, 60, 4000]),
    ),
    min_size=4,
    max_size=14,
)


class _World:
    def __init__(self, windows: bool) -> None:
        config = SchedulerConfig(bindings_in_flight=1_000, actions=("allocate", "preempt", "backfill"))
        self.cluster = FakeCluster(config=config, checked=False)
        self.text = f"resources: [{{type: qpu, name: q, count: {DEVICES}}}]\n"
        if windows:
            self.text += "windows: [{nodes: [n1], start: '2000-01-01T01:00:00Z', end: '2000-01-01T02:00:00Z'}]\n"
        self.cluster.add(*(node(f"n{i}", cpu=str(CORES), offers={QPU: "9"}) for i in (1, 2)))
        self.number = 0
        self.start()

    def start(self) -> None:
        self.plugin = FluencePlugin(FluenceArguments(resources_text=self.text))
        self.cluster.start(self.plugin)

    def arrive(self, size: int, device: bool, seconds: int | None) -> None:
        annotations = {} if seconds is None else {DURATION: str(seconds)}
        requests = {QPU: "1"} if device else {}
        self.number += 1
        if size == 1:
            self.cluster.add(pod(f"p{self.number}", cpu="2", requests=requests, annotations=annotations))
        else:
            self.cluster.add(gang(f"g{self.number}", size, cpu="2", requests=requests, annotations=annotations))

    def shift(self, seconds: float) -> None:
        self.cluster.clock._since += seconds

    def end(self, number: int) -> None:
        bound = sorted(task.name for task in self.cluster.scheduler.cache.bound_tasks())
        if bound:
            self.cluster.end(bound[number % len(bound)])

    def check(self) -> None:
        live = {task.uid for task in self.cluster.scheduler.cache.bound_tasks()}
        held = Counter[str]()
        for uid, share in self.plugin.live.holdings.shares.items():
            assert uid in live
            for part in share.values():
                held.update(device.path for device in part.devices)
                held.update(f"{host.path}/core{core}" for host in part.hosts for core in host.cores)
        assert max(held.values(), default=0) <= 1, held
        graph = self.plugin.live
        for name, host in graph.loaded.hosts.items():
            assert not any(map(gt, graph.holdings.used_on(name), graph.accounting.offered(host))), name
        assert not graph.holdings.missing
        for task in self.cluster.scheduler.cache.bound_tasks():
            assert task.uid in self.plugin.live.holdings.shares, task


@settings(max_examples=examples(60), deadline=None)
@given(steps=_steps, windows=st.booleans())
def test_two_live_pods_never_hold_one_vertex(steps: list[tuple[str, int, bool, int | None]], windows: bool) -> None:
    world = _World(windows)
    for kind, number, device, seconds in steps:
        match kind:
            case "pod" | "gang":
                world.arrive(1 if kind == "pod" else number, device, seconds)
            case "end":
                world.end(number)
            case "restart":
                world.start()
            case "forward":
                world.cluster.advance(number * 1000)
                world.shift(number * 1000 if device else 0)
            case _:
                world.shift(-number * 100_000)
        world.cluster.advance(60)
        world.cluster.run()
        world.check()
