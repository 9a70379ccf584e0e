"""The plugin `fluence`: it places groups and devices by matching jobspecs in a Fluxion resource graph.

Its hooks are in the order in which a pod meets them. The objects that the constructor creates do the work.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Collection, Container, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from fluence_plugins.fluence.arguments import MATCH_POLICY_ENV, FluenceArguments
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import Placement
from fluence_plugins.fluence.graph.topology import levels_of
from fluence_plugins.fluence.matching import pod_requests, topology_constraint
from fluence_plugins.fluence.matching.group_matcher import direction_of
from fluence_plugins.fluence.matching.group_placement import GroupPlacement
from fluence_plugins.fluence.matching.group_topology import GroupTopology
from fluence_plugins.fluence.matching.injected_env import not_injected, refusal_text
from fluence_plugins.fluence.matching.maintenance import Maintenance
from fluence_plugins.fluence.matching.node_loads import NodeLoads
from fluence_plugins.fluence.matching.nominated_pods import NominatedPods
from fluence_plugins.fluence.matching.recovery import recover_holdings
from fluence_plugins.fluence.matching.reservation_finder import ReservationFinder
from fluence_plugins.fluence.matching.row_ranks import RowRanks
from fluence_plugins.fluence.matching.session_matcher import SessionMatcher
from fluence_plugins.fluence.matching.shortages import PodWords
from fluence_plugins.fluence.matching.simulated_removals import SimulatedRemovals
from fluence_plugins.fluence.metrics import GraphMetrics, drift_metric, reload_metrics
from fluence_plugins.fluence.tasks.consumer_gates import ConsumerGates
from fluence_plugins.fluence.tasks.pod_group_maker import PodGroupMaker
from fluence_plugins.fluence.tasks.resource_claims import ResourceClaims
from fluence_plugins.fluence.tasks.resources_reload import ResourcesReload
from fluence_plugins.fluence.tasks.window_ends import retry_after_windows
from fluence_plugins.resources import coordination, label_groups, names
from fluence_plugins.resources.config import ResourcesConfig, env_contract, resource_types
from fluence_plugins.resources.errors import ResourcesError
from fluence_plugins.resources.file import capacity
from fluence_plugins.resources.maintenance_windows import Window
from fluxion_cy import FluxionError
from session_scheduler import (
    API_VERSION,
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    Event,
    Refusal,
    Session,
    hookimpl,
)
from session_scheduler.hookspecs import Reservation
from session_scheduler.model.classes import TaskClass
from session_scheduler.model.columns import IntColumn
from session_scheduler.model.groups import Group, GroupRef, NodeChange, Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import QuantityError, parse_quantity
from session_scheduler.sdk.bindings import Allocation, Binding, Holding, Runtime
from session_scheduler.sdk.tasks import alongside

if TYPE_CHECKING:
    from prometheus_client import Metric

    from session_scheduler.hookspecs import Trial

log = logging.getLogger("fluence")


class FluencePlugin:
    """Matches pods and their devices in a resource graph."""

    name = "fluence"
    api_version = API_VERSION
    Arguments = FluenceArguments
    single = True
    hook_seconds = None  # the matcher searches and changes the graph in one call; `matchBudget` limits its search
    prebind_waits = False
    class_key_complete = True

    def __init__(self, arguments: FluenceArguments) -> None:
        self._arguments = arguments
        self._reload = ResourcesReload(arguments.file(), self.set_resources, lambda: self._claims.names)
        config = self._reload.load() or arguments.load()
        self._types = frozenset(resource_types(config))
        self._env = env_contract(config)
        self._admitted = False
        """Whether pods come from an API server, which calls the webhook."""
        engine = arguments.matching()
        engine.check_resources(config)
        try:
            engine.check(arguments.policy)
            live = LiveGraph(config, arguments.policy, arguments.accounting, engine)
        except FluxionError as error:
            raise ResourcesError(f"matchPolicy (or {MATCH_POLICY_ENV}): {error}") from error
        self.live = live
        self._claims = ResourceClaims(live)
        self.refused_actions = engine.refused_actions
        """Actions that the engine does not support, and why."""
        self.topology_labels = tuple(level.label for level in arguments.topology)
        """The node labels of its levels."""
        self._direction = direction_of(arguments.policy)
        self._requests = pod_requests.RequestsByClass(live.accounting)
        self._ranks = RowRanks(live)
        self._loads = NodeLoads(live)
        self._maintenance = Maintenance(live, config.windows)
        budget = arguments.match_budget
        self._topology = GroupTopology(live, arguments.topology, self._ranks, self._loads.removed, budget)
        self._matcher = SessionMatcher(live, self._requests, self._ranks, self._maintenance, self._topology, budget)
        self._nominated = NominatedPods(live, self._loads, self._requests, self._matcher.devices_of)
        self._removals = SimulatedRemovals(live, self._loads, self._nominated)
        self._finder = ReservationFinder(live, self._nominated, self._maintenance, self._requests, self._ranks)
        compatible = arguments.go_compatible
        self._maker = PodGroupMaker(compatible=compatible) if arguments.make_pod_groups or compatible else None
        self._gates = ConsumerGates(complete=self._maker.request_consumers if self._maker and compatible else None)
        self._metrics = GraphMetrics(live)
        self._waiting_logged = False
        self._recovered = self._named = False
        """Whether pods are recovered, and whether a replica has asked for the exclusive names."""
        self._names_due = False
        """Whether pods were recovered since a replica last asked for the exclusive names."""
        self._uncounted: set[str] = set()
        """The hosts whose load `recover` will count: what pods hold is not known before that."""
        self._lost: set[str] = set()
        """Pods (uids) that were reported because the graph does not hold what they recorded."""
        if arguments.auto_is_cores:
            log.info(
                "[fluence] `cpuAccounting: auto` means cores with `engine: reapi`, which has no divisible vertices"
            )
        log.info("[fluence] known devices: %s", ", ".join(sorted(self._types)) or "none")

    # ------------------------------------------------------------------ classes and groups

    @hookimpl
    def class_key(self, pod: Pod) -> Hashable | None:
        """Distinguish pods by attributes, topology constraint, a missing environment, and whether they have a group."""
        bare = not_injected(pod) if self._arguments.require_injected_env else None
        in_group = self.live.accounting.cpu == "auto" and label_groups.in_group(pod)
        key = pod_requests.class_key(pod), bare, topology_constraint.class_key(pod), in_group
        return key if any(key) else None

    @hookimpl
    def group_of(self, pod: Pod) -> GroupRef | None:
        """Group pods by label if they name no PodGroup."""
        self._gates.observe(pod)
        return label_groups.group_of(pod, self._maker.prefix if self._maker is not None else None)

    @hookimpl
    def prefilter(self, group: Group) -> Refusal | None:
        """Refuse a group with an invalid topology constraint, and one by label with a wrong size or without its
        PodGroup.
        """
        pods = label_groups.members(group)
        reason = label_groups.wrong_size(pods) if pods else None
        if pods and reason is None and self._maker is not None:
            reason = self._maker.why_waiting(group)
        return Refusal(reason) if reason is not None else self._topology.refusal(group)

    @hookimpl
    def prepare(self, cls: TaskClass) -> Refusal | None:
        """Refuse a type that no resource tree has, amounts that no host can have, and pods without the environment."""
        reason = pod_requests.unsatisfiable(self._requests[cls], self.live, self._types)
        if reason is None and self._arguments.require_injected_env and self._admitted:
            bare = not_injected(cls.pod)
            reason = None if bare is None else refusal_text(bare)
        return None if reason is None else Refusal(reason)

    # ------------------------------------------------------------------ tasks beside the sessions

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Run the tasks: follow the resources file and producers, and create PodGroups.

        From now on pods must have the webhook's environment; pods from manifests, in a simulation, need not.
        """
        self._admitted = True
        return self._tasks(runtime)

    @asynccontextmanager
    async def _tasks(self, runtime: Runtime) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            reload = self._reload.serve(runtime, self.name)
            if reload is not None:
                await stack.enter_async_context(reload)
            if reload is not None or self._maintenance.windows:
                change = partial(runtime.change, self.name)
                await stack.enter_async_context(alongside(retry_after_windows(self._maintenance, change)))
            if self._maker is not None:
                await stack.enter_async_context(self._maker.serve(runtime))
            await stack.enter_async_context(self._gates.serve(runtime))
            yield

    @hookimpl
    def exclusive_names(self) -> Mapping[str, Collection[str]]:
        """The virtual resources: two schedulers would allocate the same one."""
        self._named = True
        if not self._names_due:
            self._reload.check()  # as in `recover`, which must not change them any more
        self._names_due = False
        return {"resource": self._claims.names}

    # ------------------------------------------------------------------ changes of the cluster

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Add, change and remove hosts, and count their foreign load."""
        hosts = {change.name: None if change.node is None else self._host(change.node) for change in changes}
        self._loads.update(changes)
        before = set(self.live.holdings.missing)
        self._nominated.release_all()
        self.live.set_hosts(hosts)
        self._graph_changed(before, {change.name for change in changes})
        if not self._waiting_logged:
            self._log_waiting_trees()
        self.live.holdings.moved.clear()

    def set_resources(self, config: ResourcesConfig) -> None:
        """Replace the virtual resources, between sessions. Pods keep what they hold.

        Raises GraphError, and changes nothing, if a resource and a node would have the same path.
        """
        self.live.loaded.engine.check_resources(config)
        before = set(self.live.holdings.missing)
        self._nominated.release_all()
        entered = self.live.set_config(config)
        self._maintenance.set_windows(config.windows)
        self._types = frozenset(resource_types(config))
        self._env = env_contract(config)
        self._graph_changed(before, entered)
        self._claims.count()
        self._log_waiting_trees()
        log.info("[fluence] the resources changed; known devices: %s", ", ".join(sorted(self._types)) or "none")

    def _graph_changed(self, missing_before: set[str], hosts: set[str]) -> None:
        for uid in sorted(self.live.holdings.missing.keys() - missing_before):
            log.warning("[fluence] pod %s: the graph no longer has a part that the pod holds", uid)
        self._loads.graph_changed(missing_before)
        if self._recovered:
            self._loads.recount(hosts)
        else:
            self._uncounted |= hosts

    def _log_waiting_trees(self) -> None:
        for tree in self.live.graph.waiting_trees():
            log.warning("[fluence] resource %s: waits for its parent, node %r", tree.name or tree.type, tree.parent)
        self._waiting_logged = True

    def _host(self, node: Node) -> HostResources:
        allocatable = {}
        for name, quantity in node.status.allocatable.items():
            try:
                allocatable[name] = parse_quantity(quantity, milli=name == "cpu")
            except QuantityError:
                continue
        host = self.live.accounting.host_of(node.metadata.name, allocatable)
        levels = self._topology.levels
        return replace(host, levels=levels_of(node.metadata.labels, levels)) if levels else host

    @hookimpl
    def recover(self, holdings: Sequence[Holding]) -> dict[str, str]:
        """Hold what live pods recorded. The rest counts as foreign load."""
        if not self._named:
            self._reload.check()  # the file may have changed while the replica stood by
        lost = recover_holdings(holdings, self.live, self._loads)
        uncounted, self._uncounted = self._uncounted, set()
        self._recovered = self._names_due = True
        self._loads.recount(uncounted - {holding.node for holding in holdings})
        self._lost |= lost.keys()
        self._claims.count()
        return lost

    @hookimpl
    def events_to_register(self) -> list[ClusterEventWithHint]:
        """The graph has more capacity after a pod ended or shrank, and after a host was added or changed: on that node,
        and of devices anywhere.
        """
        pod = ActionType.DELETE | ActionType.UPDATE_POD_SCALE_DOWN
        node = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        events = [
            ClusterEventWithHint(Pod, pod, None, self._required_free),
            ClusterEventWithHint(Pod, ActionType.DELETE, self._frees_devices),
            ClusterEventWithHint(Node, node, self._offers_more, self._required_free),
            ClusterEventWithHint(
                Node, node, lambda cls, event: pod_requests.has_devices(cls) and self._offers_more(cls, event)
            ),
        ]
        if self._topology.levels:
            events.append(ClusterEventWithHint(Node, ActionType.UPDATE_NODE_LABEL, self._offers_more))
        return events

    @staticmethod
    def _required_free(cls: TaskClass) -> Mapping[str, int]:
        """The pod's own requests: in the graph it takes at least these, and so did the pods on the node."""
        return {name: cls.requests[name] for name in ("cpu", "memory") if cls.requests.get(name)}

    @staticmethod
    def _frees_devices(cls: TaskClass, event: ClusterEvent) -> bool:
        """Whether a pod with devices ended. They may be of other types: of one tree, or shared."""
        return event.old_class is None or all(map(pod_requests.has_devices, (event.old_class, cls)))

    def _offers_more(self, _: TaskClass, event: ClusterEvent) -> bool:
        return event.old is None or self._host(event.old) != self._host(event.new)

    # ------------------------------------------------------------------ a session

    @hookimpl
    def offered(self) -> Mapping[str, int]:
        """How many devices of each type the graph has; the nodes' extended resources are a fixed quota."""
        return self.live.graph.offered(self._types)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Register for the session's trials, order equal nodes, and divide nodes by levels."""
        if self.live.allocations.can_shrink:
            self._nominated.release_all()
            self.live.allocations.shrink_places()
        self._maintenance.open_session(session.wall)
        session.add_trial_handler(partial(self._simulate_removal, session), self._removals.put_back)
        if self._nominated:
            self._nominated.keep_only(session.nominations.node_by_uid)
        if self._direction is not None:
            session.set_tie_break(self._ranks.order(session, self._direction))
        if self._topology.levels:
            session.add_subset_nodes(partial(self._topology.subsets, session))

    @hookimpl
    def on_session_close(self) -> None:
        """Drop the requests of classes: a class exists in one session."""
        self._requests.clear()

    @hookimpl
    def place_group(
        self,
        session: Session,
        group: Group,
        tasks: Sequence[Task],
        room: Mapping[TaskClass, IntColumn],
        scores: Mapping[TaskClass, IntColumn],
    ) -> GroupPlacement | Refusal:
        """Match all classes and device types of a group, or return a refusal."""
        log.debug("[fluence] group %s: %d pods of %d classes", group.key, len(tasks), len(room))
        self._finder.note_capacity(tasks, room)
        self._removals.count_loads()
        self._nominated.hold_for_nominated(session, tasks)
        answer = self._matcher.place(session, group, tasks, room, scores)
        if self._finder.is_probing and isinstance(answer, GroupPlacement):
            self._finder.note_devices(answer.devices)
        return answer

    def _simulate_removal(self, session: Session, event: Event) -> None:
        if not self._loads.removed:
            self._nominated.reserve_before_removals(session)
        self._removals.remove(event)

    @hookimpl
    def reservation(self, session: Session, trial: Trial) -> Reservation | None:
        """The earliest start of a gang and its nodes, after the expected ends of running pods."""
        self._removals.count_loads()
        self._nominated.hold_for_nominated(session, trial.tasks)
        return self._finder.find(session, trial)

    @hookimpl
    def reserve(self, session: Session, task: Task, node: str) -> GroupPlacement | Refusal | None:
        """Match a pod without devices on a node, if the policy orders nodes only by their ranks."""
        rank = self.live.graph.host_ranks.get(node)
        if self._requests[task.cls].devices or rank is None or self._direction is None:
            return None
        if self._topology.spreads(task.group):
            return None
        closed = self._maintenance.closed((task,))
        if node in closed.nodes:
            return Refusal(self._maintenance.refusal(closed, node), until=closed.nodes[node].end)
        self._removals.count_loads()
        wanted = session.yields_to((task,), (node,))
        if wanted or self._nominated:
            self._nominated.count_on(node, wanted.get(node, ()))
        return self._matcher.place_on(task, rank)

    @hookimpl
    def reservable(
        self, session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]
    ) -> list[str | None] | None:
        """Why a pod would not fit on each node without the tasks in `gone`, or None if it would.

        It answers for pods without devices, on shared hosts. It does not answer while a maintenance window is ahead:
        whether the window closes a node depends on the pod's duration, in which pods of a class differ.
        """
        requests = self._requests[task.cls]
        if requests.devices or not self.live.shares_hosts or self._topology.constrains(task.group):
            return None
        if self._maintenance.is_due:
            return None
        wanted = session.yields_to((task,), nodes)
        words = PodWords(self.live.accounting, requests.shape, task.cls.requests)
        return [self._loads.shortage(requests.shape, node, gone, wanted.get(node, ()), words) for node in nodes]

    # ------------------------------------------------------------------ after the commit

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Whether the pod holds something, or has outdated annotations."""
        held = self.live.holdings.shares.get(binding.task.uid)
        return bool(held) or any(map(names.is_answer, binding.pod.metadata.annotations))

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Set the pod's annotations: backend, attributes, jobids."""
        written = binding.pod.metadata.annotations
        kept = partial(coordination.keeps, binding.pod)
        binding.annotations.update({name: "" for name in written if names.is_answer(name) and not kept(name)})
        share = self.live.holdings.shares.get(binding.task.uid)
        if not share:
            return
        for jobid, part in share.items():  # here, because most matches are trials
            if part.devices:  # the event of the bind names the host
                log.info("[fluence] placement %d: %s: %s", jobid, binding.task.key, part.summary)
            log.debug("[fluence] placement %d: %s: %s", jobid, binding.task.key, part)
        parts = iter(share.values())
        binding.annotations.update(next(parts).merged(*parts).annotations())
        binding.annotations[names.JOBID_ANNOTATION] = ",".join(map(str, sorted(share)))

    @hookimpl
    async def cancel(self, allocation: Allocation) -> None:
        """Free what a pod holds: it ended, or was never bound."""
        self._lost.discard(allocation.uid)
        self.live.allocations.free(allocation.uid)
        self._claims.freed()

    # ------------------------------------------------------------------ output

    @hookimpl
    def metrics(self) -> list[Metric]:
        """Metrics of matches, the graph, its drift from the cluster, the resources file and consumers."""
        families = [*self._metrics.families(), drift_metric(self.drift), *reload_metrics(self._reload)]
        return [*families, self._gates.metric()]

    @property
    def windows(self) -> Sequence[Window]:
        """The maintenance windows of the resources file."""
        return self._maintenance.windows

    @property
    def drift(self) -> Mapping[str, int]:
        """The number of pods on which the graph and the cluster disagree, by kind: see `NodeLoads.drift`."""
        return self._loads.drift(self._lost)

    @hookimpl
    def simulated_node(self, node: Node) -> Mapping[str, str] | None:
        """The extended resources that the device plugin would advertise: the configured capacity of each type."""
        offered = [names.resource_name(kind) for kind in sorted(self._types)]
        if not offered or any(name in node.status.allocatable for name in offered):
            return None
        return dict.fromkeys(offered, str(capacity()))

    @hookimpl
    def shown_holding(self, pod: Pod) -> Mapping[str, Any]:
        """The jobids, from its annotation if there is one, and the paths of its devices."""
        share = self.live.holdings.shares.get(pod.metadata.uid, {})
        jobids = pod.metadata.annotations.get(names.JOBID_ANNOTATION) or ",".join(map(str, sorted(share)))
        devices = Placement().merged(*share.values()).devices
        return {"jobid": jobids or None, "devices": [names.any_place(device.path) for device in devices]}

    @hookimpl
    def saved_arguments(self) -> Mapping[str, Any]:
        """The arguments with the resources in place of their file, and with the effective policy."""
        return self._arguments.saved()

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any]:
        """Backend, attributes, and the values of the webhook's variables."""
        held = Placement().merged(*self.live.holdings.shares.get(pod.metadata.uid, {}).values())
        if not held.devices:
            return {"backend": None, "attributes": {}, "env": {}}
        written = held.annotations()
        env = {variable: written.get(annotation, "") for variable, annotation in self._env.items()}
        return {"backend": held.backend, "attributes": held.attributes, "env": env}
