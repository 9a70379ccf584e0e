"""Every hook of the session core, in the order in which they are called. This file is the manual.

A plugin is an object with a `name` and any of these hooks as methods marked `@hookimpl`. It is found by the entry-point
group `session_scheduler.plugins`, loaded by name, and called in the order of the configuration. A hook takes the
arguments that it names; it may leave some out.

Contracts that hold for all of them:

* In a session (from `on_session_open` to `on_session_close`) no hook does I/O or waits.
* A hook that raises, or answers with something that its contract does not allow, fails the group that was being
  scheduled, with the plugin's and the hook's name in the reason; the cycle goes on.
* A class (`TaskClass`) stands for all pods with equal needs: read `cls.pod.spec`, never the pod's identity.
* What is neither node nor pod is read by kind: `session.objects(PersistentVolume)` maps keys (namespace/name, or the
  name) to objects as they are in this session; `session.objects_version(kind)` tells whether what was computed from
  them still holds. A kind that the cluster refuses to list has none.
* `nodes` is a `NodeView`: all rows, some rows or *virtual* rows (k more pods of the class on a node). Read columns
  through it only; arrays have its length.

What a plugin declares beside its hooks, as attributes (the defaults in brackets):

* `filter_scope`, `score_scope` (`Scope.ANY`): what the answer depends on. The core asks again only when that changed.
* `weight` (1): what the normalised score is multiplied by.
* `normalise` (`Normalise.NONE`): how raw scores become 0 to 100 over the nodes that fit.
* `api_version`: the version of these hooks that it is made for; distributions must say it.
* `Arguments`: a pydantic model of its configuration's `args`; it is built as `Plugin(arguments)`.
* `hook_seconds` (the configuration's `hookSeconds`, 5): how long each of its hooks and callbacks may take, twelve times
  as long those that are told of the whole cluster. Then it is interrupted where it stands, by an exception that is no
  `Exception`: take and give back by `with` or `try` and `finally`. None: it is never interrupted, and bounds itself.
* `prebind_seconds` (30): how long its `prebind` may take for one task.
* `prebind_waits` (True): whether its `prebind`, where it is needed, may have to wait. The pod then says before
  it where it is to be bound (`status.nominatedNodeName`), for those who make room for pods.
* `single` (False): it keeps a state of the cluster of its own, so profiles that have it must give it equal arguments.
* `refused_actions` ({}): actions that do not go with it, each with the reason and the remedy: a configuration that has
  one is refused at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
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
"""The version of these specifications: a plugin's `api_version`, where it has one, must be equal."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks the specifications here."""
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's method as the implementation of the hook of its name."""


# ------------------------------------------------------------------ start-up


@hookspec
def class_key(pod: Pod, view: ClusterView) -> Hashable | None:
    """What this plugin's filters, scores and placement read of a pod beyond its spec's own fields, as JSON values.

    Pods with different answers are of different classes. Called once for each pod that is new or changed, but for one
    that was bound with nothing new but annotations, and again where a service or controller that selects it changed.
    Of its labels, those that selectors of pods read (affinity between pods, topology spread) are told apart already.
    `view`: namespaces, and by what services and controllers select.
    """


@hookspec
def footprint(cls: TaskClass) -> Iterable[Hashable] | None:
    """Keys of counter columns that one task of the class adds 1 to on its node: a port, a selector, a term.

    Called once for each class, pods of other schedulers included. Read the counts with `nodes.counter(key)`.
    """


@hookspec
def group_of(pod: Pod, owners: Sequence[OwnerReference]) -> GroupRef | None:
    """The group of a pod that names none itself: its key, minCount and root object. The first answer wins."""


@hookspec
def pre_enqueue(pod: Pod, objects: Callable[[type[Any]], Mapping[str, Any]]) -> Gate | None:
    """What keeps a pod out of the queue: it is not tried, has no backoff and gets no event. The first answer wins.

    Asked of each pod without a node when it comes or changes, when the object that its gate awaits does, and before it
    is tried again, of the plugins of its profile. `objects(ResourceClaim)` maps keys to what is neither a node nor a
    pod, as `session.objects` does. Answer at once; where it raises, the pod waits until it changes.
    """


@hookspec
def recover(holdings: Sequence[Holding]) -> Mapping[str, str] | None:
    """Before the first session: what every plan and every live bound pod holds. Rebuild your state from it.

    Later too, between sessions and after `on_nodes_changed`: only the pods that turn out to be bound although no
    session here placed them (another replica did, or an answer was lost), and those that another replica's plan
    places. Add what these hold to what you hold. Answer with the pods (by uid) whose holding cannot be held, all or in
    part, and why: of a bound pod people are told, a planned one is placed anew.
    """


@hookspec
def metrics() -> Iterable[Any] | None:
    """What this plugin measures now, as prometheus_client metric families named `fluence_…`: asked at each scrape.

    Between sessions, on the scheduler's own thread: answer from memory, at once.
    """


@hookspec
def serve(runtime: Runtime) -> AbstractAsyncContextManager[None] | None:
    """A context in which the plugin's own tasks and watches run for as long as the scheduler does.

    `runtime.wake(group, why)` makes a group due; `runtime.elected` tells whether this replica leads.
    `runtime.change(plugin, work)` has `work` change what sessions read between two of them, and has those tried again
    whom the plugin refused.
    """


# ------------------------------------------------------------------ the cluster changes, between sessions


@hookspec
def events_to_register() -> Iterable[ClusterEventWithHint] | None:
    """Which changes of the cluster can help pods that this plugin refused: only these have them tried again.

    Asked once, at the start. Refused pods are not retried until one of the plugins that refused them (by a filter, by
    `prepare`, `prefilter`, `place_group` or a callback) is helped, for at most five minutes. A plugin without this
    hook, or that answers None, is helped by every event: of nodes, of pods that are bound or end, of every other kind
    that is watched. What no event of the cluster shows must be told by `runtime.wake`.

    `ClusterEventWithHint(kind, actions, hint)`: `hint(cls, event)` tells whether a class of refused pods may fit after
    the event; without one, it may. It is asked once a class, however many pods wait, between sessions: it answers at
    once, from the event and the class, and says yes where it is in doubt. Where it raises, that is a yes, too.
    """


@hookspec
def on_nodes_changed(changes: Sequence[NodeChange]) -> None:
    """Before a session, for each node that came, went or changed, or whose pods did: what it is now, as a whole.

    A state, not an event: answer by making your view of that node equal to it. The first call names every node.
    """


@hookspec
def facts() -> object:
    """The plugin's state that its sessions read: taken when a session opens, as `session.facts(plugin)`."""


@hookspec
def offered() -> Mapping[str, int] | None:
    """What the cluster has of some resources in whole units, where the sum of what nodes advertise does not say so.

    Asked before each session where there are queues, whose fair shares are of that then. Answer from memory, at once.
    """


# ------------------------------------------------------------------ a session


@hookspec
def on_session_open(session: Session) -> None:
    """A session starts: register callbacks (`session.add_predicate` and the others: see `callbacks`), pre-compute."""


@hookspec
def prefilter(session: Session, group: Group) -> Refusal | None:
    """Once a group, for what concerns the group as a whole: a refusal or nothing."""


@hookspec
def prepare(session: Session, cls: TaskClass) -> object:
    """Once a class and session: SKIP, a Refusal, or a value that is handed back as `state`, alone or in a `Prepared`.

    What is decided here holds for the session: other classes' tasks may be placed before this one's. Here and in
    `filter`, `errors.AttemptError` ends the attempt of the pod, with that text, where no node would change it.
    """


@hookspec
def filter(session: Session, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: Any) -> None:  # noqa: A001
    """Clear `mask` (in place) where a task of the class must not go. Never set what is cleared."""


@hookspec
def score(session: Session, cls: TaskClass, nodes: NodeView, mask: BoolColumn, state: Any) -> IntColumn | None:
    """A raw integer for each row, higher is better; rows with a cleared mask do not count."""


@hookspec
def why(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> Sequence[Sequence[str]] | None:
    """For rows that this plugin refused: the texts of its refusals, one list a row, in kube-scheduler's wording.

    Asked once for a class that could not be placed.
    """


@hookspec
def unresolvable(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> BoolColumn | None:
    """For rows that this plugin refused: where it would refuse all the same if pods ended, so that none is to be made.

    None, and a plugin without this hook: everywhere where its filter's scope is STATIC, else nowhere.
    """


@hookspec
def fits_if(session: Session, cls: TaskClass, nodes: NodeView, state: Any) -> Sequence[Sequence[str] | None] | None:
    """For rows that this plugin refuses: what would have to be so for it to let a task of the class in, one list a row.

    Each text completes "fits if …" ("2 cpu were free on n3"), and all of a row's must hold. None for a row, or
    altogether: it cannot be said. Asked only where a pod is explained, also of rows that other plugins refuse first.
    """


@hookspec
def node_subsets(session: Session, group: Group) -> Iterable[BoolColumn] | None:
    """Node masks (over all rows) to try in turn, each on its own: one zone, one rack.

    Of those in which the group fits the one with the highest total score wins. None: no opinion. A group that must
    stay in one topology domain is tried on each domain with each mask, and `score_placement` compares the domains.
    """


@hookspec
def domain_quota(session: Session, cls: TaskClass, n: int) -> Sequence[tuple[BoolColumn, int]] | None:
    """How many of n tasks of a class each domain may take: masks over all rows that have none in common, and numbers.

    Asked where a plugin places groups, of a class with a filter that looks beyond its row, as a hard spread does: the
    placing plugin is then asked for one domain's share after the other, in this order. The first answer wins. None: no
    opinion. A hint: filters are run for each task, and what a domain cannot take is asked for anywhere.
    """


@hookspec
def place_group(
    session: Session,
    group: Group,
    tasks: Sequence[Task],
    room: Mapping[TaskClass, IntColumn],
    scores: Mapping[TaskClass, IntColumn],
) -> Placement | Refusal | None:
    """Place these tasks: a placement of all of them, of as many as can be, a refusal, or None (no opinion).

    `room[cls]` says how many more tasks of the class each row takes (0: refused), `scores[cls]` what a row is worth.
    Asked again for what is left after the core has checked the answer task by task. The first answer wins.

    A refusal's reason may be empty unless `session.reasons_wanted`: a trial asks often, and only whether.

    Nominated pods (`session.yields_to`) are counted in `room`. A plugin that counts otherwise leaves them room in its
    own state, too, here and in `reserve` and `reservable`.
    """


@hookspec
def reserve(session: Session, task: Task, node: str) -> Placement | Refusal | None:
    """Take a task's share on the node that the core has picked for it: the placement, a refusal, or None (no opinion).

    Asked in place of `place_group` for a task that stands for itself, of the plugins that have both hooks. The first
    answer wins; where it is no placement, `place_group` is asked as without this hook.
    """


@hookspec
def reservable(
    session: Session, task: Task, nodes: Sequence[str], gone: Container[Task]
) -> Sequence[str | None] | None:
    """Of each node why this plugin would not take a task's share there if the running tasks `gone` were not; None where
    it would. None altogether: only trying it out tells.

    Asked where others may have to end for a task that stands for itself, of the first plugin with `place_group`, in
    place of that hook, of `reserve` and of the trial handlers; without nodes first, to see whether it answers for the
    task at all. It changes nothing. Of a node it looks at what is there alone, and tasks of one class are answered
    alike. Filters are asked beside: those of this plugin must not read what its trial handlers change.
    """


@hookspec
def score_placement(session: Session, group: Group, tasks: Sequence[Task], nodes: NodeView) -> int | None:
    """What one of several topology domains is worth that could hold the group: higher is better.

    Asked for each domain (`nodes`) in which the group fits, where there are several; `tasks` are those that it would
    take, none of which counts in `nodes`. The plugin's `weight` and `normalise` apply, over the domains; a score that
    is not normalised is 0 to 100. None is 0. Equal totals are decided by a hash of seed and domain.
    """


@hookspec
def postfilter(session: Session, trial: Trial) -> Preemption | NoPreemption | None:
    """`trial.tasks` fit nowhere: look for running tasks whose end would make room. The first answer wins.

    Asked for a task that stands for itself, alone, and for a gang that needs several to start, as a whole. Simulate
    removals with `trial.remove` and ask `trial.fits` and `trial.place`: afterwards all is as it was. A plugin that
    keeps a state of its own follows with `session.add_trial_handler`.
    """


@hookspec
def reservation(session: Session, trial: Trial) -> Reservation | None:
    """When and where the gang `trial.tasks`, which fit nowhere now, can start first. The first answer wins.

    Asked with the action `backfill`, of as many gangs as it keeps nodes for. None is no opinion: the core simulates
    removing the pods whose end is known, in the order in which they end, until the gang fits.
    """


@hookspec
def on_session_close(session: Session) -> None:
    """The session ends: clean up, report."""


# ------------------------------------------------------------------ after the commit


@hookspec
def prebind_needed(binding: Binding) -> bool | None:
    """Whether this plugin's `prebind` has anything to do for one task: False, and it is not called. None: no opinion.

    Asked of all plugins before the first `prebind` of the group, so that a bind for which none has anything to do costs
    nothing more. Answer from memory, at once, and change nothing.
    """


@hookspec
async def prebind(binding: Binding) -> None:
    """Before a group's first bind, for all of its tasks at once: do what must be done, add annotations to the binding.

    `binding.cluster` reads and writes; `binding.objects(kind)` is what was seen of a kind so far, to wait for without
    asking. What takes longer than 30 s says so as `prebind_seconds`. Where it raises, or is late, the group waits with
    that as the reason. It is cancelled where the pod's deletion begins, or it is gone: nothing is bound then.
    """


@hookspec
async def cancel(allocation: Allocation) -> None:
    """What a task held is free again: the pod ended, was deleted, or was never bound. Idempotent."""


@hookspec
def simulated_node(node: Node) -> Mapping[str, str] | None:
    """What this plugin's own agents would make a node advertise, resource to quantity: for simulations only."""


@hookspec
def saved_arguments() -> Mapping[str, Any] | None:
    """This plugin's arguments for a snapshot: those that only name something (a file, say, or nothing, where an
    environment variable counts) replaced by ones that hold it, so that elsewhere the same comes of them.
    """


@hookspec
def report(pod: Pod) -> Mapping[str, Any] | None:
    """Columns of this plugin in `simulate`'s output for one pod, as JSON values, the same names for every pod."""


@hookspec
def shown_holding(pod: Pod) -> Mapping[str, Any] | None:
    """What a bound pod holds by this plugin, as people know it, for `fluence status`: {"jobid": …, "devices": […]}.

    The devices of all plugins are shown, and the first jobid.
    """


HOOKS: Final = (
    "class_key", "footprint", "group_of", "pre_enqueue", "recover", "metrics", "serve", "events_to_register",
    "on_nodes_changed", "facts", "offered", "on_session_open",
    "prefilter", "prepare", "filter", "score", "why", "unresolvable", "fits_if", "node_subsets", "domain_quota",
    "place_group", "reserve", "reservable",
    "score_placement", "postfilter", "reservation",
    "on_session_close", "prebind_needed", "prebind", "cancel", "simulated_node",
    "saved_arguments", "report", "shown_holding",
)  # fmt: skip
"""Every hook, in the order of this manual."""

__all__ = [
    "API_VERSION", "HOOKS", "PROJECT", "SKIP", "Gate", "NoPreemption", "Normalise", "Placement", "Preemption",
    "Prepared", "Refusal", "Reservation", "Scope", "Skip", "Trial",
    "hookimpl", "hookspec", *HOOKS,
]  # fmt: skip
