"""The interface of webhook handlers, which are found by the entry-point group `fluence.webhook_handlers` and chosen by
name.

Public, for authors of handlers. An entry point is a `Builder`; its name is the handler's name, with the path
`/mutate/<name>`. The server does what all handlers need: TLS, limits, decoding of reviews, and metrics.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from session_scheduler.errors import InputError
from session_scheduler.sdk.dynamic_client import KubeApi

GROUP: Final = "fluence.webhook_handlers"
Operation = dict[str, Any]
"""One operation of a JSON patch (RFC 6902)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refuses the object; its creator sees `message`."""

    message: str
    code: int = 403
    """The HTTP status for the creator."""


Decision = Sequence[Operation] | Refusal
"""The patch for an object, empty for none, or a refusal."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """The fields of a request besides its object (admission.k8s.io/v1, AdmissionRequest)."""

    uid: str
    operation: str
    """CREATE or UPDATE."""
    namespace: str
    name: str
    """Empty if the API server will generate it from generateName."""
    dry_run: bool
    """Whether nothing will be stored: then a handler must not write either."""
    kind: str = "Pod"
    """The object's kind, one of the handler's `kinds`."""
    sub_resource: str = ""
    """The subresource of the change, one of the handler's `sub_resources`; empty for the object itself."""
    user: str = ""
    """The requesting user, as the API server knows it: `system:serviceaccount:<namespace>:<name>` for an account."""
    old: Mapping[str, Any] | None = None
    """The object before an UPDATE, as an arbitrary JSON object; None for a CREATE."""


PODS: Final = (("", "Pod"),)
"""The default `kinds` of a handler: API groups and kinds."""
WHOLE: Final = ("",)
"""The default `sub_resources` of a handler: none."""


class Handler(Protocol):
    """Decides on one object at a time, on the event loop's thread: no method blocks.

    With an attribute `kinds`, pairs of API group and kind, the handler gets such objects instead of pods, for example a
    Job with its pod template. `request.kind` is the object's kind. With an attribute `sub_resources`, such as {"",
    "status"}, it also gets changes through these subresources; "" is the object itself.
    """

    @property
    def operations(self) -> Collection[str]:
        """The operations that the handler decides on, such as {"CREATE"}; others are allowed unchanged."""

    def contract(self) -> str:
        """What the handler does to pods, in one line for the log."""

    def mutate(self, pod: Mapping[str, Any], request: AdmissionRequest) -> Decision | Awaitable[Decision]:
        """The patch for an object, empty for none, or a refusal. May be `async`, to ask or write to the API server.

        `pod` is an arbitrary JSON object that a client sent. Leave an object unchanged that the API server would reject
        anyway: its message is better. For an object with the patch applied, the result must be empty.
        """

    async def run(self) -> None:
        """The handler's own task, such as watching a file; cancelled at shutdown. May return at once."""


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """The settings from which handlers are built."""

    scheduler_names: frozenset[str]
    """The schedulerNames of our pods."""
    resources: str | None
    """The resources file of the command line; None to use the environment."""
    registry: CollectorRegistry
    """The registry for a handler's own metrics, named `fluence_webhook_…`."""
    sidecar_image: str | None = None
    """The image of the sidecar; None to add no sidecars."""
    slurm_scheduler_name: str = "slurm-bridge-scheduler"
    """The schedulerName of pods that Slurm places."""
    managed_namespaces: frozenset[str] = frozenset()
    """The namespaces in which Slurm places the default scheduler's pods; empty for all that the webhook gets."""
    scheduler_users: frozenset[str] = frozenset()
    """The user names of the scheduler's accounts; empty if they are unknown."""
    sidecar_as_root: bool = False
    """Whether the sidecar's image may run as root."""
    go_compatible: bool = False
    """Whether pods get everything that the webhook of the Go version added."""
    api: Callable[[], Awaitable[KubeApi]] | None = None
    """Returns a client for the API server, always the same; None if the webhook has none."""


Builder = Callable[[HandlerSettings], Handler]


def load_handlers(names: Sequence[str], settings: HandlerSettings) -> dict[str, Handler]:
    """The handlers with these names, in this order. Raises InputError if one is unknown or cannot be built."""
    known = {entry.name: entry for entry in metadata.entry_points(group=GROUP)}
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        what = f"unknown handler {unknown[0]!r}" if unknown else "expected at least one handler"
        raise InputError(
            f"--handlers: {what}; choose from {', '.join(sorted(known)) or 'those of an installed plugin'}"
        )
    handlers: dict[str, Handler] = {}
    for name in dict.fromkeys(names):
        try:
            build: Builder = known[name].load()
        except Exception as error:  # any error on import is a fault of that distribution
            problem = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"--handlers: {name} cannot be imported ({problem}); fix or reinstall it") from error
        handler = build(settings)
        lacks = [each for each in ("operations", "contract", "mutate", "run") if not hasattr(handler, each)]
        if lacks:
            raise InputError(f"--handlers: {name} is not a handler: it has no {lacks[0]}; fix or uninstall it")
        handlers[name] = handler
    return handlers
