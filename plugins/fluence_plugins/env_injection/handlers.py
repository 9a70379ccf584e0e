"""What decides on pods: handlers, found by the entry-point group `fluence.webhook_handlers` and chosen by name.

Public, for authors of handlers. An entry point is a `Builder`; its name is the handler's, and its path is
`/mutate/<name>`. All that is common (TLS, limits, the review's form, metrics) is the server's.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from session_scheduler.errors import InputError

GROUP: Final = "fluence.webhook_handlers"
Operation = dict[str, Any]
"""One operation of a JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The pod is not to be; `message` is what its creator reads."""

    message: str
    code: int = 403
    """The HTTP status that the creator gets."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What a handler may know of a request beside its pod (admission.k8s.io/v1, AdmissionRequest)."""

    uid: str
    operation: str
    """CREATE or UPDATE."""
    namespace: str
    name: str
    """Empty where the API server will make one of generateName."""
    dry_run: bool
    """Nothing will be stored. Handlers have no side effects in any case."""
    kind: str = "Pod"
    """What the object is, one of the handler's `kinds`."""
    sub_resource: str = ""
    """Through which of its subresources it is changed, one of the handler's `sub_resources`; empty for the whole."""
    user: str = ""
    """The name of who asks, as the API server knows it: `system:serviceaccount:<namespace>:<name>` of an account."""
    old: Mapping[str, Any] | None = None
    """The object before an UPDATE, whatever JSON object it is; None at a CREATE."""


PODS: Final = (("", "Pod"),)
"""The API groups and kinds that a handler decides on which does not say more."""
WHOLE: Final = ("",)
"""The subresources that a handler decides on which does not say more: none."""


class Handler(Protocol):
    """Decides on pods one by one, on the event loop's thread: no method waits or has side effects, except `run`.

    With an attribute `kinds`, pairs of an API group and a kind, it is asked about such objects in place of pods alone:
    a Job, say, whose template its pods are made of. `request.kind` says which one it is. With an attribute
    `sub_resources`, as {"", "status"}, it is asked about changes through these, too; "" is the object itself.
    """

    @property
    def operations(self) -> Collection[str]:
        """For which operations it is asked, as {"CREATE"}; others are allowed as they are."""

    def contract(self) -> str:
        """What it does to pods, in one line for the log."""

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Sequence[Operation] | Refusal:
        """The patch for a pod, empty for none, or a refusal.

        `pod` is whatever JSON object somebody sent: what the API server would refuse anyway is best left as it is, as
        the API server says it better. Asked again for the pod with the patch, the answer is to be empty.
        """

    async def run(self) -> None:
        """Its own task, cancelled at the end: following a file, say. May return at once."""


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """What handlers are built from."""

    scheduler_names: frozenset[str]
    """The schedulerNames of the pods that are ours."""
    resources: str | None
    """The resources file that was given; else the environment says."""
    registry: CollectorRegistry
    """Where a handler's own metrics go, named `fluence_webhook_…`."""
    sidecar_image: str | None = None
    """The image of containers that are added to pods; None where none are."""
    slurm_scheduler_name: str = "slurm-bridge-scheduler"
    """The schedulerName of pods that Slurm places."""
    managed_namespaces: frozenset[str] = frozenset()
    """Where Slurm places the default scheduler's pods; empty for wherever pods are sent from."""
    scheduler_users: frozenset[str] = frozenset()
    """The user names of the scheduler's accounts; empty where they are not known."""


Builder = Callable[[HandlerSettings], Handler]


def load_handlers(names: Sequence[str], settings: HandlerSettings) -> dict[str, Handler]:
    """The handlers of these names, in this order. Raises InputError where one is unknown or cannot be built."""
    known = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        what = f"{unknown[0]!r} is no handler" if unknown else "names no handler"
        raise InputError(f"--handlers: {what}: choose of {', '.join(sorted(known)) or 'those of an installed plugin'}")
    handlers: dict[str, Handler] = {}
    for name in dict.fromkeys(names):
        try:
            build: Builder = known[name].load()
        except Exception as error:  # whatever a foreign module raises on import is that distribution's failure
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"--handlers: {name} cannot be imported: {problem}: mend or reinstall it") from error
        handler = build(settings)
        lacks = [each for each in ("operations", "contract", "mutate", "run") if not hasattr(handler, each)]
        if lacks:
            raise InputError(f"--handlers: {name} is no handler: it has no {lacks[0]}: mend or uninstall it")
        handlers[name] = handler
    return handlers
