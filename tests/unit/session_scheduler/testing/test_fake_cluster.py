"""The cluster for authors of plugins: what it does, and what it says where a test is wrong."""

from __future__ import annotations

import pytest

from session_scheduler import PluginArguments, Scope, hookimpl
from session_scheduler.model.objects import Pod
from session_scheduler.registry.registry import PluginArgumentsError, PluginHooksError, PluginNotFoundError
from session_scheduler.testing import Answer, FakeClock, FakeCluster, InvariantError, priority_class, taint


class OnlyArguments(PluginArguments):
    node_name: str


class Only:
    """One node alone takes pods."""

    name = "only"
    Arguments = OnlyArguments

    def __init__(self, arguments: OnlyArguments) -> None:
        self.node = arguments.node_name

    @hookimpl
    def on_session_open(self, session):
        session.add_predicate(self.fits, scope=Scope.STATIC)
        session.add_node_order(lambda task, node: 1000 if node.name == self.node else 0, scope=Scope.STATIC)

    def fits(self, task, group, node):
        return None if node.name in (self.node, "spare") else f"it is not {self.node}"


def only(node="n2"):
    return FakeCluster().use(Only, {"nodeName": node})


def test_a_plugin_given_by_its_class_is_built_with_checked_arguments_and_decides():
    cluster = only().nodes(3).pod("p").schedule().assert_bound("p", "n2")
    assert cluster.plugin("only").node == "n2"
    assert cluster.pods_on("n2") == ["default/p"]
    with pytest.raises(PluginArgumentsError, match=r"use\.args\.nodeName: is missing"):
        FakeCluster().use(Only)
    with pytest.raises(PluginArgumentsError, match="nodename"):
        FakeCluster().use(Only, {"nodename": "n1"})


def test_a_plugin_given_as_it_is_takes_no_arguments_and_is_checked():
    cluster = FakeCluster().use(Only(OnlyArguments(node_name="n1"))).nodes(2).pods(3).schedule()
    assert cluster.pods_on("n1") == ["default/p-0", "default/p-1", "default/p-2"]
    with pytest.raises(TypeError, match="plugin only is an instance; pass its class and the arguments"):
        FakeCluster().use(Only(OnlyArguments(node_name="n1")), {"nodeName": "n2"})

    class Wrong:
        @hookimpl
        def filters(self, nodes):
            pass

    with pytest.raises(PluginHooksError, match="filters"):
        FakeCluster().use(Wrong())


def test_plugins_are_had_by_name_and_one_of_kube_schedulers_is_configured_in_its_place():
    with pytest.raises(PluginNotFoundError, match="no plugin 'NodeResourceFit' is installed; did you mean NodeRes"):
        FakeCluster().use("NodeResourceFit")
    packed = FakeCluster().use("NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated"}}, weight=100)
    packed.nodes(2).pod("first", bound_to="n2", cpu="2").pod("p").schedule().assert_bound("p", "n2")


def test_kube_schedulers_plugins_can_be_left_out_by_name():
    tainted = [taint("only", "gpus")]
    FakeCluster().nodes(1, taints=tainted).pod("p").schedule().assert_pending("p", reason="untolerated taint")
    FakeCluster().without("TaintToleration").nodes(1, taints=tainted).pod("p").schedule().assert_bound("p")
    with pytest.raises(ValueError, match="'TaintTolerations' is not a built-in plugin; did you mean TaintTol"):
        FakeCluster().without("TaintTolerations")


def test_nothing_about_plugins_is_changed_once_the_scheduler_runs():
    cluster = FakeCluster().schedule()
    for change in (lambda: cluster.use(Only, {"nodeName": "n1"}), lambda: cluster.without("NodeName")):
        with pytest.raises(RuntimeError, match="the scheduler is already running"):
            change()
    with pytest.raises(LookupError, match="plugin 'only' is not enabled; available: SchedulingGates"):
        cluster.plugin("only")
    with pytest.raises(LookupError, match="plugin 'only' is not enabled; available: none"):
        FakeCluster().plugin("only")


def test_what_waits_is_judged_node_by_node():
    cluster = only().nodes(2).node("spare").pod("p")
    cluster.assert_fits("p", "n2").assert_refused("p", "n1", by="only", reason="it is not n2")
    cluster.assert_preferred("p", "n2", than="spare")
    assert cluster.verdicts("p")["n1"].plugin == "only"
    with pytest.raises(AssertionError, match="does not fit n1: only rejects it: 'it is not n2'"):
        cluster.assert_fits("p", "n1")
    with pytest.raises(AssertionError, match="fits n2 with score"):
        cluster.assert_refused("p", "n2")
    for wrong in ({"by": "NodeName"}, {"reason": "something else"}):
        with pytest.raises(AssertionError, match=r"to reject n1 with '.*', got only with 'it is not n2'"):
            cluster.assert_refused("p", "n1", **wrong)
    with pytest.raises(AssertionError, match=r"spare scores .*, n2 1"):
        cluster.assert_preferred("p", "spare", than="n2")
    with pytest.raises(LookupError, match="node n9 does not exist; available: n1, n2, spare"):
        cluster.assert_fits("p", "n9")
    with pytest.raises(LookupError, match="is not pending; call this before it is bound"):
        cluster.schedule().verdicts("p")


def test_an_assertion_that_does_not_hold_says_what_is_so():
    cluster = FakeCluster().nodes(1).pod("fits").pod("large", cpu="9").schedule()
    with pytest.raises(AssertionError, match="large is not bound: 0/1 nodes are available: 1 Insufficient cpu"):
        cluster.assert_bound("large")
    with pytest.raises(AssertionError, match=r"^pod default/large is not bound: 0/1"):
        cluster.assert_all_bound()
    with pytest.raises(AssertionError, match="fits: expected on n2, but it is bound to n1"):
        cluster.assert_bound("fits", "n2")
    with pytest.raises(
        AssertionError, match=r"large is pending: expected a reason with 'memory', got .*Insufficient cpu"
    ):
        cluster.assert_pending("large", reason="memory")
    with pytest.raises(LookupError, match="Pod default/other does not exist; add it first"):
        cluster.assert_bound("other")


# ---------------------------------------------------------------------- events


def test_a_pod_that_ends_makes_room_for_one_that_waits():
    cluster = FakeCluster().nodes(1).pods(2, cpu="3").schedule()
    (waiting,) = (name for name in ("p-0", "p-1") if cluster.node_of(name) is None)
    with pytest.raises(LookupError, match="only a bound pod can finish"):
        cluster.end(waiting)
    running = "p-1" if waiting == "p-0" else "p-0"
    cluster.end(running).advance(1).schedule().assert_bound(waiting, "n1")


@pytest.mark.parametrize("leave", ["end", "delete_pod"])
def test_a_gang_may_run_in_part_where_the_test_ended_a_member_and_until_it_is_whole_again(leave):
    cluster = FakeCluster().nodes(3).gang("g", 2, cpu="3").schedule().assert_all_bound()
    getattr(cluster, leave)("g-0")
    cluster.schedule().pod("g-2", group="g", cpu="3").advance(1).schedule().assert_bound("g-2").assert_invariants()


def test_a_queue_limits_what_names_it_until_it_is_changed():
    cluster = FakeCluster().queue("a", limit={"pods": 2}).nodes(4).gang("g", 2, queue="a").schedule().assert_all_bound()
    cluster.pod("more", queue="a").pod("free").schedule()
    cluster.assert_bound("free").assert_pending("more", reason="queue 'a' has reached its limit of pods: limit 2")
    cluster.queue("a", limit={"pods": 3}).advance(10).schedule().assert_bound("more")


def test_a_node_that_goes_takes_its_pods_along():
    cluster = FakeCluster().nodes(1).pods(2).schedule().nodes(1, prefix="m").remove_node("n1").schedule()
    assert cluster.placements() == {}


def test_pods_that_ended_for_others_go_when_the_test_says_so():
    cluster = FakeCluster().add(priority_class("high", 1000)).nodes(1).pod("low", cpu="3").schedule()
    cluster.pod("high", cpu="3", priority=1000).schedule().assert_nominated("high", "n1").assert_bound("low")
    with pytest.raises(AssertionError, match="expected nominated node n2, got n1"):
        cluster.assert_nominated("high", "n2")
    cluster.finish_deletions().advance(1).schedule().assert_bound("high", "n1")


@pytest.mark.parametrize("answer", Answer)
def test_a_bind_that_fails_is_made_good_later(answer):
    cluster = FakeCluster().nodes(2).gang("g", 2).fail_binds("g-1", answer=answer, times=1).schedule()
    if answer is Answer.REFUSED:
        cluster.assert_bound("g-0").assert_pending("g-1", reason="not this one").assert_invariants()
    cluster.advance(5).schedule().assert_all_bound().assert_invariants()


def test_binds_fail_for_as_long_as_the_test_says():
    cluster = FakeCluster().nodes(1).pod("p").fail_binds("p", text="a policy refuses it")
    for _ in range(3):
        cluster.schedule().assert_pending("p", reason="a policy refuses it").advance(20)
    cluster.mend_binds().schedule().assert_bound("p")
    with pytest.raises(ValueError, match="expected times to be at least 1, or None for all binds of default/p, got 0"):
        cluster.fail_binds("p", times=0)


def test_schedule_ends_where_there_is_always_something_to_be_tried():
    class Breeding:
        name = "breeding"

        @hookimpl
        def prefilter(self, group):
            if group.name == f"p-{len(tried)}":
                tried.append(group)
                cluster.pod(f"p-{len(tried)}", cpu="1m")

    tried = []
    cluster = FakeCluster().use(Breeding()).nodes(1).pod("p-0", cpu="1m")
    with pytest.raises(InvariantError, match="expected no active group after 100 cycles, got Pod default/p-100"):
        cluster.schedule()


class Keeping:
    """Writes to each pod which number it got, and reads that again when it starts."""

    name = "keeping"

    def __init__(self, arguments: None) -> None:
        self.numbers: dict[str, int] = {}

    @hookimpl
    async def prebind(self, binding):
        self.numbers[binding.task.name] = len(self.numbers)
        binding.annotations["example.com/number"] = str(self.numbers[binding.task.name])

    @hookimpl
    def recover(self, holdings):
        for one in holdings:
            self.numbers[one.task.name] = int(one.task.pod.metadata.annotations["example.com/number"])


def test_after_a_restart_a_plugin_knows_what_the_cluster_says_and_nothing_more():
    cluster = FakeCluster().use(Keeping).nodes(2).pod("p").schedule().pod("q").schedule()
    before = cluster.plugin("keeping")
    before.numbers["nowhere"] = 7
    after = cluster.restart().plugin("keeping")
    assert after is not before
    assert after.numbers == {"p": 0, "q": 1}
    cluster.pod("r").schedule().assert_bound("r").assert_invariants()
    assert after.numbers["r"] == 2


def test_a_plugin_that_would_remember_cannot_be_there_after_a_restart():
    with pytest.raises(
        RuntimeError, match=r"plugin keeping is an instance, which would keep its state; pass its class"
    ):
        FakeCluster().use(Keeping(None)).schedule().restart()


# ---------------------------------------------------------------------- the clock


def test_the_clock_stands_until_it_is_moved_and_never_goes_back():
    clock = FakeClock()
    clock.advance(2.5)
    assert clock.move_to(10).now() == 10
    with pytest.raises(ValueError, match="expected 0 or more seconds, got -1: the clock does not go back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="expected 0 or more seconds, got -1: the clock does not go back"):
        clock.move_to(9)


async def test_in_a_coroutine_it_says_where_it_can_be_used():
    with pytest.raises(RuntimeError, match="use it in a synchronous test"):
        FakeCluster().schedule()


# ---------------------------------------------------------------------- invariants


@pytest.mark.parametrize("later", [False, True])
def test_what_the_test_put_on_a_node_may_be_too_much_and_the_scheduler_puts_nothing_there(later):
    cluster = FakeCluster().nodes(1).pod("first", cpu="1")
    (cluster.schedule() if later else cluster).pod("load", cpu="9", bound_to="n1")
    cluster.assert_invariants().schedule().pod("more", cpu="1").schedule()
    cluster.assert_pending("more", reason="Insufficient cpu").assert_invariants()


def test_a_plugin_that_lets_a_node_be_overcommitted_is_found():
    cluster = FakeCluster().without("NodeResourcesFit").nodes(1).pod("load", cpu="9", bound_to="n1").pod("p", cpu="2")
    with pytest.raises(InvariantError, match="node n1: cpu: 11000 used, more than the 4000 allocatable"):
        cluster.schedule()


def test_members_of_a_gang_that_the_test_put_on_nodes_are_not_the_scheduler_s_work():
    cluster = FakeCluster().nodes(2).group("g", 2).pod("a", group="g", bound_to="n1").pod("b", group="g", cpu="9")
    cluster.schedule().assert_pending("b").assert_invariants()


def test_a_pod_that_the_scheduler_has_elsewhere_is_found():
    cluster = FakeCluster().nodes(2).pod("p").schedule()
    task = next(iter(cluster.scheduler.cache.tasks.values()))
    task.node = "n9"
    with pytest.raises(InvariantError, match=r"pod default/p is on n. in the cluster, and on n9 in the scheduler"):
        cluster.assert_invariants()


def test_a_pod_that_waits_without_a_reason_is_found():
    cluster = FakeCluster().nodes(1).pod("p", cpu="9").schedule().assert_invariants()
    (outcome,) = cluster.scheduler.outcomes.values()
    outcome.reasons = dict.fromkeys(outcome.reasons, " ")
    with pytest.raises(InvariantError, match="pod default/p is pending without a reason"):
        cluster.assert_invariants()


def test_a_pod_that_the_scheduler_does_not_know_is_found():
    cluster = FakeCluster().nodes(1).pod("p").schedule()
    cluster.scheduler.cache.remove(cluster.find(Pod, "p"))
    with pytest.raises(InvariantError, match="pod default/p is in the cluster, but not in the scheduler"):
        cluster.assert_invariants()


def test_a_gang_that_runs_in_part_for_no_reason_is_found():
    cluster = FakeCluster().nodes(2).gang("g", 2).schedule()
    task = next(task for task in cluster.scheduler.cache.tasks.values() if task.name == "g-1")
    task.node = None
    with pytest.raises(InvariantError, match="gang PodGroup default/g runs with 1 of at least 2 pods"):
        cluster.assert_invariants()
