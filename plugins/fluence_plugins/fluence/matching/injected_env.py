"""The check that a pod with devices passed the webhook, which adds environment variables to its containers.

The environment of an existing pod cannot change: without the variables it would run and not know its backend. The check
requires `FLUXION_BACKEND` in every container and init container, from the annotation or with the user's own value. The
webhook adds all variables of a container or none, so one of them suffices; the attributes' variables may be newer than
a pending pod.
"""

from collections.abc import Iterator

from fluence_plugins.resources import names
from session_scheduler.model.objects import Container, Pod

WEBHOOK = "fluence-webhook"


def not_injected(pod: Pod) -> str | None:
    """The name of the first container without the variable; None if all have it, or the pod requests no device."""
    if not any(_requests_device(container) for container in _containers(pod)):
        return None
    bare = (c for c in _containers(pod) if not any(variable.name == names.BACKEND_ENV for variable in c.env))
    return next((container.name for container in bare), None)


def refusal_text(container: str) -> str:
    """Why the scheduler rejects a pod with such a container, and the remedy."""
    return (
        f"container {container!r} lacks the environment variable {names.BACKEND_ENV} (requireInjectedEnv); create the "
        f"pod again; the webhook {WEBHOOK} did not process it, or excludes its namespace"
    )


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def _requests_device(container: Container) -> bool:
    resources = container.resources
    return any(names.requested_type(name) is not None for name in (*resources.requests, *resources.limits))
