"""Whether a pod that asks for devices came through the webhook that lets its containers know what they got.

A pod's environment cannot be changed once it is there: one that came without it would run and not know its backend.
What is asked for is `FLUXION_BACKEND` in every container and init container, from the annotation or by a value of the
user's own. The webhook adds all variables of a container or none; which attribute keys there were when the pod was
admitted says nothing about that, and a key that came later must not shut out pods that are waiting.
"""

from collections.abc import Iterator

from fluence_plugins.resources import names
from session_scheduler.model.objects import Container, Pod

WEBHOOK = "fluence-webhook"


def not_injected(pod: Pod) -> str | None:
    """The name of the first container without the variable; None where all have it, or the pod asks for no device."""
    if not any(_asks_for_device(container) for container in _containers(pod)):
        return None
    bare = (c for c in _containers(pod) if not any(variable.name == names.BACKEND_ENV for variable in c.env))
    return next((container.name for container in bare), None)


def refusal_text(container: str) -> str:
    """Why a pod with such a container is not placed, and what to do."""
    return (
        f"its container {container!r} has no environment variable {names.BACKEND_ENV} (requireInjectedEnv): create the "
        f"pod again; the webhook {WEBHOOK} was not there when it was created, or its namespace is excluded"
    )


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers
    yield from pod.spec.containers


def _asks_for_device(container: Container) -> bool:
    resources = container.resources
    return any(names.requested_type(name) is not None for name in (*resources.requests, *resources.limits))
