"""Specifications of all plugin hooks, in the order in which the scheduler calls them. This file is the manual.

A plugin is an object with a `name` and any of these hooks as methods marked `@hookimpl`. The scheduler finds it by the
entry-point group `session_scheduler.plugins`, loads it by name, and calls it in the order of the configuration. A hook
lists the arguments that it needs, and may omit the others.

Contracts for all hooks:

* During a session (from `on_session_open` to `on_session_close`) a hook does no I/O and does not wait.
* If a hook raises an exception, or returns a value that its contract does not allow, the attempt of the group that is
  being scheduled fails. The reason names the plugin and the hook. The cycle continues with the next group.
* A class (`TaskClass`) represents all pods with equal needs. The scheduler notes what a hook reads of `cls.pod`, and
  splits the class by the fields in which its pods may differ. Avoid the pod's name and uid: each pod would be a class
  of its own.
* Read kinds other than nodes and pods with `session.objects(PersistentVolume)`. It maps keys (namespace/name, or the
  name) to objects as they are in this session. While `session.objects_version(kind)` does not change, what you computed
  from them stays valid. The mapping is empty for a kind that the API server does not let the scheduler list.
* `nodes` is a `NodeView`: all rows, some rows, or *virtual* rows (k more pods of the class on a node). Read columns
  only through it. Its arrays have its length.

Attributes that a plugin may declare in addition to its hooks (defaults in brackets):

* `filter_scope`, `score_scope` (`Scope.ANY`): what the answer depends on. The scheduler asks again only when that has
  changed.
* `weight` (1): factor of the normalised score.
* `normalise` (`Normalise.NONE`): how raw scores map to 0 to 100 over the nodes that fit.
* `api_version`: the version of these hooks that the plugin implements. Required in distributions.
* `Arguments`: pydantic model of the configuration's `args`. The scheduler builds the plugin as `Plugin(arguments)`.
* `hook_seconds` (`hookSeconds` of the configuration, 5): time limit of each hook and callback. Hooks that receive the
  complete cluster get twelve times as long. The scheduler then interrupts the hook with an exception that is not a
  subclass of `Exception`. Before a hook changes the plugin's state, call `begin_update` of `sdk.interruption`: the hook
  then runs to its end. None: no limit, the plugin limits itself.
* `prebind_seconds` (30): time limit of `prebind` for one task.
* `prebind_waits` (True): whether `prebind`, where it is needed, may have to wait. If so, the scheduler sets the pod's
  `status.nominatedNodeName` first, so that node autoscalers and other schedulers see where the pod will run.
* `class_key_complete` (False): a promise that `class_key` returns everything that the plugin reads of `cls.pod` beyond
  the fields that classes cover. The scheduler then does not note what it reads.
* `ignores_requests` (False): a promise that the plugin's hooks about a class read neither the requests nor the
  ResourceClaims of its pods, and keep nothing by class. The scheduler then calls `prepare` once for classes that differ
  only in these, and passes the first of them to `filter` and `score`.
* `single` (False): the plugin keeps its own state of the cluster, so all profiles that use it must give it equal
  arguments.
* `refused_actions` ({}): actions that the plugin does not support, each with the reason and the remedy. The scheduler
  rejects a configuration with such an action at startup.
* `topology_labels` (()): the node labels of topology levels, the outermost first, for views of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

import pluggy

from session_scheduler.framework.answers import (
    SKIP,
    NoPreemption,
    Normalise,
    Placement,
    Preemption,
    Prepared,
    Reservation,
    Scope,
    Skip,
    Trial,
)
from session_scheduler.model.refusals import Gate, Refusal

if TYPE_CHECKING:
    from session_scheduler.framework.bindings import Allocation, Binding, Holding, Runtime
    from session_scheduler.framework.session import Session
    from session_scheduler.model.classes import TaskClass
    from session_scheduler.model.cluster_view import ClusterView
    from session_scheduler.model.columns import BoolColumn, IntColumn, NodeView
    from session_scheduler.model.events import ClusterEventWithHint
    from session_scheduler.model.groups import Group, GroupRef, NodeChange, Task
    from session_scheduler.model.objects import Node, OwnerReference, Pod

PROJECT: Final = "session_scheduler"
"""The name of the pluggy project."""
API_VERSION: Final = "2"
"""The version of the hook specifications. A plugin that declares `api_version` must declare this one."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks the specifications of hooks in this module."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's method as the implementation of the hook with the same name."""


# ------------------------------------------------------------------ start-up


@hookspec
def class_key(pod: Pod, view: ClusterView) -> Hashable | None:
    """What this plugin's filters, scores and placement read from a pod besides its spec's fields, as JSON values.

    Optional: without it, the scheduler splits classes by the fields that the plugin reads. With the hook, the scheduler
    need not first evaluate a class to notice these fields. There are also fewer classes if the plugin reads much of the
    pod for a short answer and declares `class_key_complete`.

    Pods with different answers are in different classes. Called once for each new or changed pod, except if the pod was
    bound and only its annotations changed. Called again after a change of a service or controller that selects the pod.
    Classes already differ by the labels that selectors of pods read (affinity between pods, topology spread). `view`:
    namespaces, and the selectors of services and controllers.
    """


@hookspec
def footprint(cls: TaskClass) -> Iterable[Hashable] | None:
    """Keys of the counter columns to which one task of the class adds 1 on its node: a port, a selector, a term.

    Called once for each class, including pods of other schedulers. Read the counts with `nodes.counter(key)`.
    """


@hookspec
def group_of(pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
    """The group of a pod that names none itself: its key, minCount and root object. The first result wins."""


@hookspec
def pre_enqueue(pod: Pod, objects: Callable[[type[Any]], Mapping[str, Any]]) -> Gate | None:
    """The gate that keeps a pod out of the queue, or None. A gated pod has no attempts, backoff or events.

    The first result wins. Called for the plugins of the pod's profile: when a pod without a node is added or changes,
    when the object that its gate waits for changes, and before each retry. `objects(ResourceClaim)` maps keys to
    objects other than nodes and pods, as `session.objects` does. Answer without delay. If the hook raises an exception,
    the pod waits until it changes. A pod that waits for more than a second gets the gate's reason as its condition
    `PodScheduled`.
    """


@hookspec
def recover(holdings: Sequence[Holding]) -> Mapping[str, str] | None:
    """Rebuild the plugin's state before the first session, from what every gang plan and every live bound pod holds.

    The pods of other schedulers are those whose record has a part of this plugin (`holding.foreign`): their node may
    have belonged to another partition when they were bound. Add what they hold of the node.

    Called again later, between sessions and after `on_nodes_changed`, with pods only: those found to be bound although
    no session of this replica placed them (another replica did, or a response was lost), and those that another
    replica's gang plan places. While the replica stands by, it is called with the pods that the leader binds. Add what
    they hold to your state. Return the pods (by uid) whose holding cannot be recovered, completely or in part, each
    with the reason: the scheduler reports a bound pod, and places a planned one again.
    """


@hookspec
def metrics() -> Iterable[Any] | None:
    """The plugin's current metrics, as prometheus_client metric families named `fluence_…`. Called at each scrape.

    Called between sessions, on the scheduler's thread: answer from memory, without delay.
    """


@hookspec
def serve(runtime: Runtime) -> AbstractAsyncContextManager[None] | None:
    """A context in which the plugin's own tasks and watches run for as long as the scheduler runs.

    `runtime.wake(group, why)` requeues a group. `runtime.elected` is true if this replica leads.
    `runtime.change(plugin, work)` calls `work` between two sessions, to change what sessions read. The scheduler then
    retries the pods that the plugin rejected.
    """


# ------------------------------------------------------------------ the cluster changes, between sessions


@hookspec
def events_to_register() -> Iterable[ClusterEventWithHint] | None:
    """Queueing hints: the events that can help pods which this plugin rejected. Other events do not requeue them.

    Called once, at startup. The scheduler retries a rejected pod when an event helps one of the plugins that rejected
    it (by a filter, by `prepare`, `prefilter`, `place_group` or a callback), and after five minutes at the latest. If a
    plugin lacks this hook, or returns None, every event helps it: events of nodes, of pods that are bound or end, and
    of every other watched kind. For a change that no event of the cluster shows, call `runtime.wake`.

    `ClusterEventWithHint(kind, actions, hint)`: `hint(cls, event)` returns whether a class of rejected pods may fit
    after the event. Without a hint, it may. The scheduler calls the hint between sessions, once for each class, however
    many pods wait. Answer without delay, from the event and the class; if in doubt, return True. An exception counts as
    True.

    `ClusterEventWithHint(kind, actions, hint, required_free)`: the event helps only if its node then has free what
    `required_free(cls)` returns: amounts by resource, cpu in millicores, the rest in base units. The scheduler calls it
    when a class is rejected, and compares all classes with the node at once. It calls the hint only for groups that may
    fit, just before it retries them: one after the other, best first, while the node has capacity. Use it for events of
    nodes and of pods on them. Pods that a group may evict count as free.
    """


@hookspec
def on_nodes_changed(changes: Sequence[NodeChange]) -> None:
    """Before a session: the complete state of each node that was added, deleted or changed, or whose pods changed.

    This is a state, not an event: make your view of the node equal to it. The first call passes every node. A standby
    replica calls this hook, too, so that it can take over at once. It calls `recover` only when it starts to lead.
    """


@hookspec
def facts() -> object:
    """The plugin's state that a session reads: fixed when the session opens, available as `session.facts(plugin)`."""


@hookspec
def offered(
    requested: Collection[str], nodes: NodeView, objects: Callable[[type[Any]], Mapping[str, Any]]
) -> Mapping[str, int] | None:
    """The cluster's total of some resources, where it differs from the sum that nodes advertise.

    Called before each session if there are queues. Their fair shares are then computed from these totals, which are in
    the units of queues: parts of GPUs in thousandths, others in whole units. Only the `requested` resources matter:
    pods of queues have or request them. `objects` returns the cluster's objects of a kind by key. Answer from memory,
    without delay.
    """


# ------------------------------------------------------------------ a session


@hookspec
def on_session_open(session: Session) -> None:
    """A session starts. Register callbacks (`session.add_predicate` and others: see `callbacks`), and precompute."""


@hookspec
def prefilter(session: Session, group: Group) -> Refusal | None:
    """Check a group as a whole, once, before nodes are evaluated: return a Refusal or None."""


@hookspec
def prepare(session: Session, cls: TaskClass) -> object:
    """Check or precompute something once for each class and session. Returns SKIP, a Refusal, or a value.

    The scheduler passes the value to the other hooks as `state`, alone or in a `Prepared`.

    The answer holds for the session, although tasks of other classes may be placed before this one's. Here and in
    `filter`, raise `errors.AttemptError` to end the pod's attempt with that text, if no node would change the answer.

    A plugin that reads the pod's ResourceClaims sets `Prepared.claims_key`, so that pods with equal claims share
    answers.
    """


@hookspec
def filter(session: Session, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: Any) -> None:  # noqa: A001
    """Clear `mask` (in place) for nodes on which a task of the class must not run. Never set a cleared row."""


@hookspec
def filter_key(session: Session, cls: TaskClass, state: Any) -> Hashable | None:
    """A key of the class: classes with equal keys get equal results from `filter` and the hooks that explain it.

    Return what the filter reads of the class and its state, for example the tolerations. Called after `prepare`. The
    scheduler evaluates classes with equal keys once in a session, if their filter's scope is STATIC or NODE. None, or
    no hook: each class is evaluated on its own.
    """


@hookspec
def score(session: Session, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: Any) -> IntColumn | None:
    """A raw integer for each row, higher is better; rows with a cleared mask are ignored.

    Without `normalise`, scores are 0 to 100. As in kube-scheduler, a score outside of this range is an error.
    """


@hookspec
def reasons(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> Mapping[str, BoolColumn] | str | None:
    """For rows that this plugin rejected: the reasons in kube-scheduler's wording, each with its rows.

    A text that holds for all rows, or a mapping of texts to masks; its order is the order of a row's reasons. Called
    once for a class that could not be placed, and again for nodes that change. The scheduler counts the rows, so each
    text is made once and not for each node. None: it calls `why`.
    """


@hookspec
def why(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> Sequence[Sequence[str]] | None:
    """Like `reasons`, if most nodes have a text of their own. Returns a list of texts for each row.

    Without both hooks, the reason names the plugin only.
    """


@hookspec
def unresolvable(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> BoolColumn | None:
    """For rows that this plugin rejected: True if it would still reject them after preemption.

    The scheduler evicts no pod from these nodes. None, or no hook: True for every row if the filter's scope is STATIC,
    otherwise for none.
    """


@hookspec
def fits_if(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> Sequence[Sequence[str] | None] | None:
    """For rows that this plugin rejects: what must hold for a task of the class to fit, one list for each row.

    Each string completes "would fit if …" ("2 cpu were free on n3"), and all strings of a row must hold. None, for a
    row or altogether: unknown. Called only to explain a pod, even for rows that other plugins reject first.
    """


@hookspec
def node_subsets(session: Session, group: Group) -> Iterable[BoolColumn] | None:
    """Node masks (over all rows) to try in turn, each on its own: one zone, one rack.

    Among the subsets in which the group fits, the one with the highest total score wins. None: no opinion. If the group
    must stay in one topology domain, the scheduler tries each mask within each domain, and `score_placement` compares
    the domains.
    """


@hookspec
def domain_quota(session: Session, cls: TaskClass, n: int) -> Sequence[tuple[BoolColumn, int]] | None:
    """How many of n tasks of a class fit in each domain: disjoint masks over all rows, each with a number.

    Called if a plugin places groups, for a class with a filter that reads other rows too, such as a hard topology
    spread. The scheduler then asks the placing plugin for the share of each domain in turn, in this order. The first
    answer wins. None: no opinion. The answer is only a hint: filters still run for each task, and tasks that do not fit
    in their domain may be placed anywhere.
    """


@hookspec
def place_group(
    session: Session,
    group: Group,
    tasks: Sequence[Task],
    room: Mapping[TaskClass, IntColumn],
    scores: Mapping[TaskClass, IntColumn],
) -> Placement | Refusal | None:
    """Place these tasks: a placement of all or as many as possible, a Refusal, or None (no opinion).

    `room[cls]` is the number of further tasks of the class that fit on each row (0: rejected). `scores[cls]` is each
    row's score. After the scheduler has checked the answer task by task, it calls the hook again for the remaining
    tasks. The first result wins.

    A Refusal's reason may be empty unless `session.reasons_wanted`: a trial asks often, and needs no reason.

    `room` already accounts for nominated pods (`session.yields_to`). If a plugin counts resources in its own state, it
    leaves resources free for them too, here and in `reserve` and `reservable`.
    """


@hookspec
def reserve(session: Session, task: Task, node: str) -> Placement | Refusal | None:
    """Reserve a task's share on the node that the scheduler chose: the placement, a Refusal, or None (no opinion).

    Called instead of `place_group` for a single task, for plugins that have both hooks. The first result wins. If it is
    not a placement, the scheduler calls `place_group` as it does without this hook.
    """


@hookspec
def reservable(
    session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]
) -> Sequence[str | None] | None:
    """For each node: why a task's share would not fit there if the running tasks `gone` were removed; None if it fits.

    Return None instead of a list if only a trial can answer.

    Called when preemption may be needed for a single task, for the first plugin with `place_group`. It replaces that
    hook, `reserve` and the trial handlers. The scheduler first calls it without nodes, to see whether it answers for
    the task at all. The hook changes nothing. The answer for a node depends on that node alone, and is equal for tasks
    of one class. The scheduler also calls filters: this plugin's filters must not read what its trial handlers change.
    """


@hookspec
def score_placement(session: Session, group: Group, tasks: Sequence[Task], nodes: NodeView) -> int | None:
    """The score of one of several topology domains in which the group fits: higher is better.

    Called for each domain (`nodes`) in which the group fits, if there are several. `tasks` are those that the domain
    would run. `nodes` does not count them. The plugin's `weight` and `normalise` apply across the domains. A score
    without normalisation is 0 to 100. None counts as 0. A hash of seed and domain breaks ties.
    """


@hookspec
def postfilter(session: Session, trial: Trial) -> Preemption | NoPreemption | None:
    """Choose running tasks to preempt so that `trial.tasks`, which fit nowhere, can be placed. The first result wins.

    Called for a single task, and for a gang that needs several tasks to start, as a whole. Simulate removals with
    `trial.remove`, then call `trial.fits` and `trial.place`. Afterwards the session is unchanged. If a plugin keeps its
    own state, it follows the simulation with `session.add_trial_handler`. Until something changes, a NoPreemption for a
    single task holds for all pods of the class, and for those that differ only in equal ResourceClaims.
    """


@hookspec
def reservation(session: Session, trial: Trial) -> Reservation | None:
    """The earliest time at which the gang of `trial.tasks` can start, and on which nodes. The first result wins.

    Called with the action `backfill`, for as many gangs as it reserves nodes for. None: no opinion. The scheduler then
    simulates the removal of pods with a known end, in the order of their ends, until the gang fits.
    """


@hookspec
def on_session_close(session: Session) -> None:
    """The session ends: clean up, report."""


# ------------------------------------------------------------------ after the commit


@hookspec
def prebind_needed(binding: Binding) -> bool | None:
    """Whether `prebind` has work to do for one task. If False, `prebind` is not called. None: no opinion.

    The scheduler calls this for all plugins before the first `prebind` of the group. If all return False, it skips the
    step. Answer from memory, without delay, and change nothing.
    """


@hookspec
async def prebind(binding: Binding) -> None:
    """Do what must be done before a group's first bind, concurrently for all its tasks; add annotations to the binding.

    `binding.cluster` reads and writes. `binding.objects(kind)` contains the objects of a kind seen so far, to wait for
    a change without a request. Other plugins' `prebind` may take minutes afterwards: add to `binding.checks` what must
    still hold directly before the Binding. If you need more than 30 s, declare `prebind_seconds`. If the hook raises
    an exception or exceeds its time limit, the group waits with that as the reason. The scheduler cancels the hook when
    the pod's deletion begins or the pod no longer exists, and then binds nothing.
    """


@hookspec
async def cancel(allocation: Allocation) -> None:
    """Release what a task held: the pod ended, was deleted, or was never bound. Idempotent.

    While the replica stands by, the scheduler calls it for pods that the plugin has recovered: write nothing then.
    """


@hookspec
def exclusive_names() -> Mapping[str, Collection[str]] | None:
    """Names that only one scheduler of the cluster may claim, as {kind: names}, such as {"resource": ["ibm-1"]}.

    Called before the scheduler opens its first session. If another scheduler of a partitioned cluster has one of these
    names, this one does not start. Called again after `recover`, which may add what pods hold. Before the names change,
    await `runtime.claim`.
    """


@hookspec
def simulated_node(node: Node) -> Mapping[str, str] | None:
    """What this plugin's own agents would make a node advertise, as quantities by resource: for simulations only."""


@hookspec
def saved_arguments() -> Mapping[str, Any] | None:
    """This plugin's arguments for a snapshot: self-contained, so that another machine computes the same result.

    Replace arguments that refer to something else, such as a file or an environment variable, by its contents.
    """


@hookspec
def report(pod: Pod) -> Mapping[str, Any] | None:
    """This plugin's columns in `simulate`'s output for one pod, as JSON values. Every pod has the same columns.

    The column `devices` is a list of texts. The table shows it, with the devices of all plugins.
    """


@hookspec
def shown_holding(pod: Pod, objects: Callable[[type[Any]], Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """What a bound pod holds through this plugin, as `fluence status` shows it: {"jobid": …, "devices": […]}.

    `fluence status` shows the devices of all plugins, and the first jobid. `objects` is that of `pre_enqueue`. No
    session has been opened.
    """


HOOKS: Final = (
    "class_key", "footprint", "group_of", "pre_enqueue", "recover", "metrics", "serve", "events_to_register",
    "on_nodes_changed", "facts", "offered", "on_session_open",
    "prefilter", "prepare", "filter", "filter_key", "score", "reasons", "why", "unresolvable", "fits_if",
    "node_subsets", "domain_quota", "place_group", "reserve", "reservable",
    "score_placement", "postfilter", "reservation",
    "on_session_close", "prebind_needed", "prebind", "cancel", "exclusive_names", "simulated_node",
    "saved_arguments", "report", "shown_holding",
)  # fmt: skip
"""The names of all hooks, in the order in which this module defines them."""

__all__ = [
    "API_VERSION", "HOOKS", "PROJECT", "SKIP", "Gate", "NoPreemption", "Normalise", "Placement", "Preemption",
    "Prepared", "Refusal", "Reservation", "Scope", "Skip", "Trial",
    "hookimpl", "hookspec", *HOOKS,
]  # fmt: skip
