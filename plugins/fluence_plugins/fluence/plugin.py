"""The plugin `fluence`: places groups and devices by matching jobspecs against a Fluxion resource graph."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fluence_plugins.fluence.arguments import MATCH_POLICY_ENV, FluenceArguments
from fluence_plugins.fluence.graph.accounting import Amounts, PodShape, less
from fluence_plugins.fluence.graph.cluster_graph import HostResources
from fluence_plugins.fluence.graph.live_graph import LiveGraph
from fluence_plugins.fluence.graph.placement import DeviceHolding, Placement
from fluence_plugins.fluence.graph.records import as_counted, from_json
from fluence_plugins.fluence.matching import pod_requests as needs
from fluence_plugins.fluence.matching.group_matcher import NO_MATCH, GroupMatcher, NoMatchError, direction_of, place_on
from fluence_plugins.fluence.matching.group_placement import GroupPlacement
from fluence_plugins.fluence.matching.group_topology import GroupAsks
from fluence_plugins.fluence.matching.injected_env import not_injected, refusal_text
from fluence_plugins.fluence.matching.maintenance import Maintenance
from fluence_plugins.fluence.matching.nominated_pods import Nominated, amounts_of
from fluence_plugins.fluence.matching.reservations import Promising
from fluence_plugins.fluence.matching.simulated_removals import Trials
from fluence_plugins.fluence.matching.topology_constraint import pod_key
from fluence_plugins.fluence.metrics import GraphMetrics, of_drift, of_resources
from fluence_plugins.fluence.tasks.consumer_gates import Producers
from fluence_plugins.fluence.tasks.pod_group_maker import PodGroupMaker
from fluence_plugins.fluence.tasks.resources_reload import Following
from fluence_plugins.resources import coordination, label_groups, names
from fluence_plugins.resources.config import ResourcesConfig, env_contract, resource_types
from fluence_plugins.resources.errors import ResourcesError
from fluence_plugins.resources.file import capacity
from fluence_plugins.resources.maintenance_windows import Closed
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
from session_scheduler.model.columns import BoolColumn, IntColumn
from session_scheduler.model.groups import Group, GroupRef, NodeChange, Task
from session_scheduler.model.objects import Node, Pod
from session_scheduler.model.quantity import QuantityError, parse_quantity
from session_scheduler.sdk.bindings import Allocation, Binding, Holding, Runtime

if TYPE_CHECKING:
    from prometheus_client import Metric

    from session_scheduler.hookspecs import Trial

log = logging.getLogger("fluence")

_NO_RANK = 1 << 40
"""More than any rank."""


class FluencePlugin:
    """One resource graph for one profile."""

    name = "fluence"
    api_version = API_VERSION
    Arguments = FluenceArguments
    single = True
    hook_seconds = None  # interrupted, it could lose track of the graph; its search is bounded by `matchBudget`
    prebind_waits = False

    def __init__(self, arguments: FluenceArguments) -> None:
        self._arguments = arguments
        self._following = Following(arguments.file(), self.set_resources)
        config = self._following.load() or arguments.load()
        self._types = frozenset(resource_types(config))
        self._env = env_contract(config)
        self._budget = arguments.match_budget
        self._env_required = arguments.require_injected_env
        self._admitted = False
        """Whether pods come from an API server, which had them go through the webhook."""
        engine = arguments.matching()
        engine.check_resources(config)
        try:
            engine.check(arguments.policy)
            self._live = LiveGraph(config, arguments.policy, arguments.accounting, engine)
        except FluxionError as error:
            raise ResourcesError(f"matchPolicy (or {MATCH_POLICY_ENV}): {error}") from error
        self._maker = PodGroupMaker() if arguments.make_pod_groups else None
        self._producers = Producers()
        self._asks = GroupAsks(self._live, arguments.topology, self._budget)
        self._direction = direction_of(arguments.policy)
        self._measured = GraphMetrics(self._live)
        self._told_waiting = False
        self._unsettled: set[str] = set()
        """Pods of which the graph lost something, or got it back, at the last change."""
        self._tasks_on: dict[str, tuple[Task, ...]] = {}
        self._told_lost: set[str] = set()
        """Pods of which it was told that what they have recorded is not held."""
        self._needs: dict[TaskClass, needs.Needs] = {}
        self._ranks: tuple[tuple[int, int], IntColumn] | None = None
        self._nominated = Nominated(self._live, self._count_foreign, self._devices_of)
        self._trials = Trials(self._live, self._nominated, self._count_foreign)
        self._maintenance = Maintenance(self._live, config.windows)
        self._promising = Promising(self._live, self._nominated, self._maintenance, self._needs_of, self._rank_of_rows)
        log.info("[fluence] known devices: %s", ", ".join(sorted(self._types)) or "none")

    @property
    def refused_actions(self) -> Mapping[str, str]:
        """Actions that do not go with the engine, and why."""
        return self._live.loaded.engine.refused_actions

    @property
    def live(self) -> LiveGraph:
        """The graph as it is now."""
        return self._live

    # ------------------------------------------------------------------ classes and state

    @hookimpl
    def class_key(self, pod: Pod) -> Hashable | None:
        """What pods require, prefer and ask of levels tells them apart, and whether they lack the environment."""
        bare = not_injected(pod) if self._env_required else None
        required = needs.class_key(pod)
        asked = pod_key(pod)
        if asked is not None:
            return required, bare, asked
        return required if bare is None else (required, bare)

    @hookimpl
    def group_of(self, pod: Pod) -> GroupRef | None:
        """Pods that name no PodGroup may name a group by label."""
        self._producers.look(pod)
        return label_groups.group_of(pod, made=self._maker is not None)

    @hookimpl
    def prefilter(self, group: Group) -> Refusal | None:
        """Refuse a group that asks of the levels what cannot be, and one by label of a wrong size, or that waits for
        its PodGroup.
        """
        pods = label_groups.members(group)
        reason = label_groups.wrong_size(pods) if pods else None
        if pods and reason is None and self._maker is not None:
            reason = self._maker.awaited(group)
        return Refusal(reason) if reason is not None else self._asks.refusal(group, self._trials.gone)

    @hookimpl
    def serve(self, runtime: Runtime) -> AbstractAsyncContextManager[None]:
        """Follow the resources file and producers, and make PodGroups. From here on pods are judged as an API server
        admitted them: manifests went through no webhook.
        """
        self._admitted = True
        return self._tasks(runtime)

    @asynccontextmanager
    async def _tasks(self, runtime: Runtime) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            following = self._following.serve(runtime, self.name)
            if following is not None:
                await stack.enter_async_context(following)
            if following is not None or self._maintenance.windows:
                await stack.enter_async_context(self._maintenance.serve(partial(runtime.change, self.name)))
            if self._maker is not None:
                await stack.enter_async_context(self._maker.serve(runtime))
            await stack.enter_async_context(self._producers.serve(runtime))
            yield

    @hookimpl
    def on_nodes_changed(self, changes: Sequence[NodeChange]) -> None:
        """Hosts grow, shrink, come and go; what others run there is foreign load."""
        if not self._tasks_on:
            self._following.look()  # it may have stood by for long
        hosts = {change.name: None if change.node is None else self._host(change.node) for change in changes}
        for change in changes:
            self._tasks_on[change.name] = change.tasks
            if change.node is None:
                del self._tasks_on[change.name]
        before = set(self._live.holdings.missing)
        self._nominated.let_go()
        self._live.set_hosts(hosts)
        self._tell_missing(before)
        if not self._told_waiting:
            self._tell_waiting()
        self._recount({change.name for change in changes})
        self._live.holdings.moved.clear()

    def set_resources(self, config: ResourcesConfig) -> None:
        """Take over other virtual resources, between sessions: what pods hold stays theirs.

        Raises GraphError, and changes nothing, where they do not go together with the cluster's nodes.
        """
        self._live.loaded.engine.check_resources(config)
        before = set(self._live.holdings.missing)
        self._nominated.let_go()
        entered = self._live.set_config(config)
        self._maintenance.follow(config.windows)
        self._types = frozenset(resource_types(config))
        self._env = env_contract(config)
        self._tell_missing(before)
        self._tell_waiting()
        self._recount(entered)
        log.info("[fluence] the resources have changed; known devices: %s", ", ".join(sorted(self._types)) or "none")

    def _tell_waiting(self) -> None:
        for tree in self._live.graph.waiting_trees():
            log.warning("[fluence] resource %s: waits for its parent, node %r", tree.name or tree.type, tree.parent)
        self._told_waiting = True

    def _recount(self, hosts: set[str]) -> None:
        """Count foreign load anew on these hosts, and on those of pods whose holdings in the graph have changed."""
        if self._unsettled:
            hosts |= {name for name, tasks in self._tasks_on.items() if any(t.uid in self._unsettled for t in tasks)}
        for name in sorted(hosts):
            self._count_foreign(name)

    def _tell_missing(self, before: set[str]) -> None:
        self._unsettled = before | set(self._live.holdings.missing)
        for uid in sorted(set(self._live.holdings.missing) - before):
            log.warning("[fluence] pod %s: the graph no longer has all that it holds", uid)

    def _count_foreign(self, name: str) -> None:
        """What runs on a host and is not held: pods of others, and what our own request beyond what they hold.

        And what pods are to take of it that are nominated for it.
        """
        self._live.foreign.set(name, self._load_on(name, self._trials.gone, self._nominated.loads_on(name)))

    def _load_on(self, name: str, gone: Container[Task], nominated: Iterable[Amounts]) -> Amounts | None:
        accounting = self._live.accounting
        foreign, short = [], [*nominated]
        for task in self._tasks_on.get(name, ()):
            if task in gone:
                continue
            held = self._live.holdings.of_pod(task.uid, name)
            if held is None:
                foreign.append(task.cls.requests)
            else:
                short.append(less(accounting.asked(accounting.shape_of(task.cls.requests)), held))
        return accounting.load_of(foreign, short)

    def _host(self, node: Node) -> HostResources:
        allocatable = {}
        for name, quantity in node.status.allocatable.items():
            try:
                allocatable[name] = parse_quantity(quantity, milli=name == "cpu")
            except QuantityError:
                continue
        host = self._live.accounting.host_of(node.metadata.name, allocatable)
        return self._asks.placed_in_levels(host, node.metadata.labels) if self._asks.topology else host

    def _offers(self, _: TaskClass, event: ClusterEvent) -> bool:
        return event.old is None or self._host(event.old) != self._host(event.new)

    @hookimpl
    def recover(self, holdings: Sequence[Holding]) -> dict[str, str]:
        """Hold again what live pods say that they hold; what cannot be held counts as foreign load."""
        shares = {}
        lost: dict[str, str] = {}
        for holding in holdings:
            requests = holding.task.cls.requests
            share = from_json(holding.held, holding.node, self._live, requests) if holding.held is not None else None
            if share is not None:
                shares[holding.task.uid] = share
            asked = needs.needs_of(holding.task.pod, requests, self._live.accounting).devices
            if asked and not any(part.devices for part in (share or {}).values()):
                wanted = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items()))
                lost[holding.task.uid] = (
                    f"it asks for {wanted}, and no record says which: others may be given them, too"
                )
            elif share is None and holding.held is not None:
                lost[holding.task.uid] = "its record of what it holds is not valid here"
        before = set(self._live.holdings.missing)
        concerned = {holding.node for holding in holdings} & self._tasks_on.keys()
        for name in concerned:
            self._live.foreign.drop(name)
        fresh = {uid: share for uid, share in shares.items() if uid not in self._live.holdings.shares}
        self._live.allocations.replay(
            as_counted(fresh, {holding.task.uid: holding.task.cls for holding in holdings}, self._live)
        )
        self._unsettled = before | set(self._live.holdings.missing)
        lost |= dict.fromkeys(
            self._live.holdings.missing.keys() & shares, "the graph does not have all of it, or another holds it"
        )
        for name in sorted(concerned):
            self._count_foreign(name)
        self._told_lost |= lost.keys()
        return lost

    @hookimpl
    def events_to_register(self) -> list[ClusterEventWithHint]:
        """The graph has more room where a pod ends or shrinks, or where a host comes or offers something else."""
        node = ActionType.ADD | ActionType.UPDATE_NODE_ALLOCATABLE
        if self._asks.topology:
            node |= ActionType.UPDATE_NODE_LABEL
        return [
            ClusterEventWithHint(Pod, ActionType.DELETE | ActionType.UPDATE_POD_SCALE_DOWN),
            ClusterEventWithHint(Node, node, self._offers),
        ]

    # ------------------------------------------------------------------ a session

    @hookimpl
    def offered(self) -> Mapping[str, int]:
        """What the graph has of each type: nodes advertise a quota that says nothing of it."""
        return self._live.graph.offered(self._types)

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        """Follow what is thought away to see whether others would fit then."""
        if self._live.allocations.can_shrink:
            self._nominated.let_go()
            self._live.allocations.shrink_places()
        self._maintenance.session_opens(session.wall)
        session.add_trial_handler(partial(self._think_away, session), self._trials.put_back)
        if self._nominated:
            self._nominated.forget_all_but(session.nominations.node_by_uid)
        if self._direction is not None:
            session.set_tie_break(self._order_of_rows(session))
        if self._asks.topology:
            session.add_subset_nodes(partial(self._divide, session))

    def _divide(self, session: Session, group: Group, mask: BoolColumn) -> list[BoolColumn] | None:
        return self._asks.subsets(session, group, mask, self._rank_of_rows(session), self._trials.gone)

    def _needs_of(self, cls: TaskClass) -> needs.Needs:
        found = self._needs.get(cls)
        if found is None:  # a nominated pod need not be due
            found = self._needs[cls] = needs.needs_of(cls.pod, cls.requests, self._live.accounting)
        return found

    @hookimpl
    def prepare(self, cls: TaskClass) -> Refusal | None:
        """Refuse a type that no resource tree has, and annotations that cannot be met by any."""
        found = self._needs_of(cls)
        beyond = self._live.accounting.beyond(found.shape, found.devices.values())
        if beyond is not None:
            return Refusal(beyond)
        waiting = self._live.graph.waiting_trees()
        absent = {tree.parent: tree for tree in waiting if set(found.devices) & tree.classes()}
        if absent and not set(found.devices) <= {node.type for node in self._live.graph.virtual.values()}:
            parent = min(absent)
            return Refusal(f"its resource tree hangs below node {parent!r}, which the cluster does not have")
        unknown = sorted(set(found.devices) - self._types)
        if unknown:
            known = ", ".join(sorted(self._types)) or "none"
            return Refusal(
                f"resource type {unknown[0]!r} ({names.resource_name(unknown[0])}) is in no resource tree; "
                f"modelled are: {known}"
            )
        bare = not_injected(cls.pod) if self._env_required and self._admitted else None
        return None if bare is None else Refusal(refusal_text(bare))

    @hookimpl
    def place_group(
        self,
        session: Session,
        group: Group,
        tasks: Sequence[Task],
        room: Mapping[TaskClass, IntColumn],
        scores: Mapping[TaskClass, IntColumn],
    ) -> GroupPlacement | Refusal:
        """One match for each class and type; all of them, or none."""
        log.debug("[fluence] group %s: %d pods of %d classes", group.key, len(tasks), len(room))
        self._promising.heard(tasks, room)
        self._trials.settle()
        self._leave_room(session, tasks)
        closed = self._maintenance.closed(tasks)
        if closed:
            answer = self._place_beside_windows(session, group, tasks, room, scores, closed)
        else:
            answer = self._placed(session, group, tasks, room, scores, self._matcher(session))
        if self._promising.asks and isinstance(answer, GroupPlacement):
            self._promising.placed(answer.devices)
        return answer

    def _matcher(self, session: Session, open_devices: BoolColumn | None = None) -> GroupMatcher:
        ranks, tells = self._rank_of_rows(session), session.reasons_wanted
        return GroupMatcher(self._live, ranks, self._needs, self._budget, tells=tells, open_devices=open_devices)

    def _placed(
        self,
        session: Session,
        group: Group,
        tasks: Sequence[Task],
        room: Mapping[TaskClass, IntColumn],
        scores: Mapping[TaskClass, IntColumn],
        matcher: GroupMatcher,
    ) -> GroupPlacement | Refusal:
        """Within levels of the graph where the group asks for some."""
        if not self._asks.topology:
            return matcher.place(tasks, room, scores)
        by_level = self._asks.by_level(session, group, matcher.place, self._rank_of_rows(session), self._trials.gone)
        if by_level is None:
            return matcher.place(tasks, room, scores)
        if isinstance(by_level, Refusal):
            return by_level
        by_level.budget, by_level.tells = self._budget, session.reasons_wanted
        return by_level.placed(tasks, room, scores)

    def _place_beside_windows(
        self,
        session: Session,
        group: Group,
        tasks: Sequence[Task],
        room: Mapping[TaskClass, IntColumn],
        scores: Mapping[TaskClass, IntColumn],
        closed: Closed,
    ) -> GroupPlacement | Refusal:
        """As if what is closed were not there; a refusal says what that is."""
        left, nodes = self._maintenance.open_room(session, room, closed)
        matcher = self._matcher(session, self._maintenance.open_devices(closed))
        answer = self._placed(session, group, tasks, left, scores, matcher)
        if isinstance(answer, GroupPlacement) or not session.reasons_wanted:
            return answer
        kinds = {kind for cls in room for kind in self._needs_of(cls).devices}
        text, until = self._maintenance.told(closed, nodes, kinds)
        return Refusal(f"{text}. {answer.reason}", until=until) if text else answer

    def _leave_room(self, session: Session, tasks: Sequence[Task]) -> None:
        """Hold what these tasks must leave to nominated pods."""
        wanted = session.yields_to(tasks)
        if not wanted and not self._nominated:
            return
        self._nominated.settle(wanted)
        if self._live.loaded.whole_nodes or any(self._needs_of(task.cls).devices for task in tasks):
            self._nominated.settle_devices(
                [task for there in wanted.values() for task in there if self._needs_of(task.cls).devices],
                [task for task in tasks if session.nominations.node_of(task) and self._needs_of(task.cls).devices],
                None if self._trials.gone else partial(self._ending_with_devices, session),
            )

    def _think_away(self, session: Session, event: Event) -> None:
        """Before the first of a trial goes it is planned which devices nominated pods are to have: later more seems
        to be free than will be, and what the ends of others were for would be promised again.
        """
        if not self._trials.gone:
            waiting = [task for _, there in session.nominations.waiting() for task in there]
            with_devices = [task for task in waiting if self._needs_of(task.cls).devices]
            if with_devices:
                self._nominated.settle_devices(with_devices, (), partial(self._ending_with_devices, session))
        self._trials.remove(event)

    def _devices_of(self, task: Task) -> tuple[DeviceHolding, ...]:
        found = {task.cls: self._needs_of(task.cls)}
        closed = self._maintenance.closed((task,))
        devices = self._maintenance.open_devices(closed) if closed else None
        matcher = GroupMatcher(
            self._live, np.zeros(0, np.int64), found, self._budget, tells=False, open_devices=devices
        )
        return matcher.devices_of(task)

    def _ending_with_devices(self, session: Session, nominated: Task) -> frozenset[str]:
        """The pods with devices that are ending, or end before a nominated one is to start.

        Also the one that goes as the first of a trial: the core has it on no node any more when it tells of that.
        """
        shares = self._live.holdings.shares.items()
        holding = {uid for uid, share in shares if any(part.devices for part in share.values())}
        holders = [task for tasks in self._tasks_on.values() for task in tasks if task.uid in holding]
        start = session.nominations.starts.get(nominated)
        if start is None:
            return frozenset(task.uid for task in holders if session.is_ending(task))
        ends = ((task.uid, session.ends_at(task)) for task in holders)
        return frozenset(uid for uid, end in ends if end is not None and end <= start)

    @hookimpl
    def reservation(self, session: Session, trial: Trial) -> Reservation | None:
        """When the graph can have what the gang asks for, and where, once what ends by then has ended."""
        self._trials.settle()
        self._leave_room(session, trial.tasks)
        return self._promising.first_start(session, trial)

    @hookimpl
    def reserve(self, session: Session, task: Task, node: str) -> GroupPlacement | Refusal | None:
        """One match on that node; for pods without devices, where the policy orders nodes by themselves."""
        found = self._needs[task.cls]
        rank = self._live.graph.host_ranks.get(node)
        if found.devices or rank is None or self._direction is None or self._asks.spreads(task.group):
            return None
        closed = self._maintenance.closed((task,))
        if node in closed.nodes:
            return Refusal(self._maintenance.refusal(closed, node), until=closed.nodes[node].end)
        self._trials.settle()
        wanted = session.yields_to((task,), (node,))
        if wanted or self._nominated:
            self._nominated.settle_on(node, wanted.get(node, ()))
        try:
            return place_on(self._live, task, found.shape, rank)
        except NoMatchError as error:
            return Refusal(str(error))

    @hookimpl
    def reservable(
        self, session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]
    ) -> list[str | None] | None:
        """Whether enough cores, MiB and gpus of a host would be free; for pods without devices, on shared hosts, while
        no window is to come: what that closes depends on how long a pod takes, and pods of a class differ in that.
        """
        found = self._needs[task.cls]
        if found.devices or not self._live.shares_hosts or self._asks.any_of(task.group):
            return None
        if self._maintenance.is_due:
            return None
        wanted = session.yields_to((task,), nodes)
        return [self._shortage(found.shape, node, gone, wanted.get(node, ())) for node in nodes]

    def _shortage(self, shape: PodShape, node: str, gone: Container[Task], nominated: Iterable[Task]) -> str | None:
        accounting = self._live.accounting
        held = (self._live.holdings.of_pod(task.uid, node) for task in self._tasks_on.get(node, ()) if task in gone)
        load = self._load_on(node, gone, amounts_of(nominated, accounting))
        free = self._live.free_on(node, filter(None, held), load)
        if free is None:
            return f"{NO_MATCH}: the node is not in it"
        for unit, wanted, left in zip(accounting.units, accounting.asked(shape), free, strict=True):
            if wanted > left:
                return f"{NO_MATCH}: {wanted} {unit} wanted, {left} free"
        return None

    @hookimpl
    def on_session_close(self) -> None:
        """What classes need is worked out anew in each session, once a class."""
        self._needs.clear()

    def _order_of_rows(self, session: Session) -> IntColumn:
        """Equal nodes as the policy takes them; those that are in no graph come last."""
        ranks = self._rank_of_rows(session)
        return np.where(ranks >= 0, (self._direction or 1) * ranks, _NO_RANK + np.arange(len(ranks)))

    def _rank_of_rows(self, session: Session) -> IntColumn:
        version = (session.table.static_version, self._live.loaded.version)
        if self._ranks is None or self._ranks[0] != version:
            ranks = np.full(session.table.size, -1, np.int64)
            for name, row in session.table.row_of.items():
                ranks[row] = self._live.graph.host_ranks.get(name, -1)
            self._ranks = (version, ranks)
        return self._ranks[1]

    # ------------------------------------------------------------------ after the commit

    @hookimpl
    def prebind_needed(self, binding: Binding) -> bool:
        """Where the pod got something, or says what is not true any more."""
        return bool(self._live.holdings.shares.get(binding.task.uid)) or any(
            map(_is_ours, binding.pod.metadata.annotations)
        )

    @hookimpl
    async def prebind(self, binding: Binding) -> None:
        """Tell the workload what it got: backend, attributes, jobids."""
        written = binding.pod.metadata.annotations
        kept = partial(coordination.keeps, binding.pod)
        binding.annotations.update({name: "" for name in written if _is_ours(name) and not kept(name)})
        share = self._live.holdings.shares.get(binding.task.uid)
        if not share:
            return
        for jobid, part in share.items():  # here it stands: what is only tried is in nobody's interest
            if part.devices:  # of a host alone its event says as much
                log.info("[fluence] placement %d: %s: %s", jobid, binding.task.key, part.summary)
            log.debug("[fluence] placement %d: %s: %s", jobid, binding.task.key, part)
        parts = iter(share.values())
        binding.annotations.update(next(parts).merged(*parts).annotations())
        binding.annotations[names.JOBID_ANNOTATION] = ",".join(map(str, sorted(share)))

    @hookimpl
    async def cancel(self, allocation: Allocation) -> None:
        """The pod ended or was never bound: free its part."""
        self._told_lost.discard(allocation.uid)
        self._live.allocations.free(allocation.uid)

    # ------------------------------------------------------------------ what people see

    @hookimpl
    def metrics(self) -> list[Metric]:
        """Matches, the graph's size, who holds what, how far that is from what runs, and what became of the file."""
        families = [*self._measured.families(), of_drift(self.drift), *of_resources(self._following)]
        return [*families, self._producers.metric()]

    @property
    def drift(self) -> Mapping[str, int]:
        """How many pods graph and cluster disagree about, but for those on whose way something is just now.

        `unheld`: it runs, was told a jobid, and neither holds nor misses anything. `ended`: something of a node is held
        for it, and it is not there. (Of a node that is gone nobody knows who runs there.)
        """
        running = {task.uid: task.pod for tasks in self._tasks_on.values() for task in tasks}
        known = self._live.holdings.shares.keys() | self._live.holdings.missing.keys()
        told = {uid for uid, pod in running.items() if names.JOBID_ANNOTATION in pod.metadata.annotations}
        return {
            "unheld": len(told - known - self._live.holdings.moved - self._told_lost),
            "ended": sum(
                not self._live.holdings.hosts_of(uid).isdisjoint(self._tasks_on)
                for uid in known - running.keys() - self._live.holdings.moved
            ),
        }

    @hookimpl
    def simulated_node(self, node: Node) -> Mapping[str, str] | None:
        """What the device plugin would advertise: the configured capacity of each type."""
        offered = [names.resource_name(kind) for kind in sorted(self._types)]
        if not offered or any(name in node.status.allocatable for name in offered):
            return None
        return dict.fromkeys(offered, str(capacity()))

    @hookimpl
    def shown_holding(self, pod: Pod) -> Mapping[str, Any]:
        """The jobids, as the workload was told them where it was, and the paths of its devices."""
        share = self._live.holdings.shares.get(pod.metadata.uid, {})
        told = pod.metadata.annotations.get(names.JOBID_ANNOTATION) or ",".join(map(str, sorted(share)))
        held = Placement().merged(*share.values())
        return {"jobid": told or None, "devices": [names.any_place(device.path) for device in held.devices]}

    @hookimpl
    def saved_arguments(self) -> Mapping[str, Any]:
        """The resources themselves in place of their file, and the policy that holds."""
        return self._arguments.saved()

    @hookimpl
    def report(self, pod: Pod) -> Mapping[str, Any]:
        """Backend, attributes, and the environment that the webhook's variables would have."""
        held = Placement().merged(*self._live.holdings.shares.get(pod.metadata.uid, {}).values())
        if not held.devices:
            return {"backend": None, "attributes": {}, "env": {}}
        told = held.annotations()
        env = {variable: told.get(annotation, "") for variable, annotation in self._env.items()}
        return {"backend": held.backend, "attributes": held.attributes, "env": env}


def _is_ours(annotation: str) -> bool:
    """Whether only the scheduler may say it: what a user wrote there must not reach the workload."""
    return annotation in (names.BACKEND_ANNOTATION, names.JOBID_ANNOTATION) or annotation.startswith(
        names.ATTRIBUTE_ANNOTATION_PREFIX
    )
