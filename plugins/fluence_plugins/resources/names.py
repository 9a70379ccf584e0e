"""The names shared by pods, annotations, environment variables and the graph.

A pod requests `fluxion.flux-framework.org/<type>`. The scheduler writes the result into the annotations
`fluence.flux-framework.org/backend`, `jobid` and `attr-<key>`. The workload reads them as `FLUXION_BACKEND` and
`FLUXION_<KEY>`. A property in the graph is one string `key=value` with an empty value part, because RFC 31 matching
only tests whether a property's name is present.
"""

import re
from collections.abc import Iterable, Mapping

from fluence_plugins.resources.errors import NamingError
from session_scheduler.errors import shown

REQUEST_PREFIX = "fluxion.flux-framework.org/"
"""Before a type of virtual resource: the extended resource that pods request."""
ANNOTATION_PREFIX = "fluence.flux-framework.org/"
BACKEND_ANNOTATION = ANNOTATION_PREFIX + "backend"
"""On a bound pod: the name of the backend that it got. Only the scheduler writes it."""
JOBID_ANNOTATION = ANNOTATION_PREFIX + "jobid"
"""On a bound pod: the jobid of its allocation in the graph. Only the scheduler writes it."""
ATTRIBUTE_ANNOTATION_PREFIX = ANNOTATION_PREFIX + "attr-"
"""Before an attribute's key, on a bound pod: the value that its backend has. Only the scheduler writes it."""
REQUIRE_ANNOTATION_PREFIX = ANNOTATION_PREFIX + "require-"
"""Before an attribute's key or `backend`, on a pod: the value that its devices must have."""
PREFER_ANNOTATION_PREFIX = ANNOTATION_PREFIX + "prefer-"
"""Before an attribute's key or `backend`, on a pod: the value that the scheduler prefers for its devices."""
ENV_PREFIX = "FLUXION_"
BACKEND_ENV = ENV_PREFIX + "BACKEND"

VIRTUAL_KEY, CLASS_KEY, BACKEND_KEY = "virtual", "class", "backend"
VIRTUAL_TRUE = f"{VIRTUAL_KEY}=true"
VIRTUAL_FALSE = f"{VIRTUAL_KEY}=false"
STATUS_DOWN = "status=down"
RESERVED_KEYS = frozenset({VIRTUAL_KEY, CLASS_KEY, BACKEND_KEY})
"""Property keys that the graph uses; attributes cannot use them."""

FORBIDDEN_IN_PROPERTIES = "!&'\"^`|()"
"""Characters that RFC 31 forbids in a property."""

_PLACE = "@"
_PLACE_AT = f"/{_PLACE}"
_NUMBERED_PLACE = re.compile(rf"{_PLACE_AT}[0-9]+(?![^/])")

_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LONGEST_DOMAIN = 253
_LONGEST_NAME = 63  # the part after the slash of a Kubernetes resource or annotation name
_LONGEST_KEY = _LONGEST_NAME - len("require-")


def place_name(number: int) -> str:
    """Return the name of a place in a shared resource. No resource can have this name (see `config`)."""
    return f"{_PLACE}{number}"


def is_place(path: str) -> bool:
    """Whether a path leads to a place, and not to something in it."""
    return path.rpartition("/")[2].startswith(_PLACE)


def without_places(path: str) -> str:
    """Return a path without its places: the path of the shared resource."""
    if _PLACE_AT not in path:
        return path
    return "/".join(part for part in path.split("/") if not part.startswith(_PLACE))


def any_place(path: str) -> str:
    """Return a path with its places' numbers removed, because a pod may get another place of the same resource."""
    return _NUMBERED_PLACE.sub(_PLACE_AT, path)


def shared_path(path: str) -> str | None:
    """Return the path of the outermost shared resource in a path that contains a place; None if it contains none."""
    before, found, _ = path.partition(_PLACE_AT)
    return before if found else None


def property_of(key: str, value: str) -> str:
    """Return the property `key=value`, or the bare tag `key` for an empty value."""
    return f"{key}={value}" if value else key


def split_property(text: str) -> tuple[str, str]:
    """Undo `property_of`: the key ends at the first `=`, so that values may contain further ones."""
    key, _, value = text.removeprefix(REQUEST_PREFIX).partition("=")
    return key, value


def class_property(resource_type: str) -> str:
    """Return `class=<type>`, which selects virtual vertices that are, or contain, a resource of that type."""
    return property_of(CLASS_KEY, resource_type)


def resource_name(resource_type: str) -> str:
    """Return the extended resource that a pod requests, `fluxion.flux-framework.org/<type>`."""
    return REQUEST_PREFIX + resource_type


def requested_type(name: str) -> str | None:
    """Return the graph's type that a pod's resource name requests, or None for other resources (cpu, memory)."""
    return name.removeprefix(REQUEST_PREFIX) if name.startswith(REQUEST_PREFIX) else None


def is_extended_resource(name: str) -> bool:
    """Whether a device plugin may provide a resource of this name: its domain is not one of Kubernetes."""
    domain, _, rest = name.partition("/")
    return (
        len(domain) <= _LONGEST_DOMAIN
        and len(rest) <= _LONGEST_NAME
        and bool(_DOMAIN.fullmatch(domain) and _QUALIFIED.fullmatch(rest))
        and not domain.startswith("requests.")
        and not f".{domain}".endswith(".kubernetes.io")
    )


def attribute_annotation(key: str) -> str:
    """Return the annotation with the matched backend's value of an attribute."""
    return ATTRIBUTE_ANNOTATION_PREFIX + key


def is_answer(annotation: str) -> bool:
    """Whether only the scheduler may write the annotation: a user's value must not reach the workload."""
    return annotation in (BACKEND_ANNOTATION, JOBID_ANNOTATION) or annotation.startswith(ATTRIBUTE_ANNOTATION_PREFIX)


def requirements(annotations: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Read a pod's `require-<attribute>` annotations.

    Returns the required attributes by key, and the value of `require-backend` (None if missing). An empty value
    requires nothing.
    """
    found = _named(annotations, REQUIRE_ANNOTATION_PREFIX)
    return found, found.pop(BACKEND_KEY, None)


def preferences(annotations: Mapping[str, str]) -> dict[str, str]:
    """Read a pod's `prefer-<attribute>` annotations: the preferred attributes by key, including `backend`.

    An empty value prefers nothing.
    """
    return _named(annotations, PREFER_ANNOTATION_PREFIX)


def _named(annotations: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        name.removeprefix(prefix): value
        for name, value in sorted(annotations.items())
        if name.startswith(prefix) and name != prefix and value
    }


def env_name(key: str) -> str:
    """Return the environment variable of an attribute: `FLUXION_` and the key in upper case, with `_` for other
    characters.
    """
    return ENV_PREFIX + re.sub(r"[^A-Z0-9]", "_", key.upper())


def env_names(keys: Iterable[str]) -> dict[str, str]:
    """Map attribute keys to environment variables, sorted by key.

    Raises NamingError, with both keys, if two keys have the same variable, or one has `FLUXION_BACKEND`.
    """
    names: dict[str, str] = {}
    used = {BACKEND_ENV: BACKEND_KEY}
    for key in sorted(set(keys)):
        name = env_name(key)
        if name in used:
            raise NamingError(
                f"attributes {used[name]!r} and {key!r} would both become the environment variable {name}; rename one"
            )
        used[name] = key
        names[key] = name
    return names


def check_type(resource_type: str) -> None:
    """Raise NamingError unless the type is valid in the name of an extended resource."""
    if len(resource_type) > _LONGEST_NAME or not _QUALIFIED.fullmatch(resource_type):
        raise NamingError(
            f"{shown(resource_type)} is not valid in {REQUEST_PREFIX}<type>; use at most {_LONGEST_NAME} "
            "letters, digits, '-', '_' or '.', with a letter or digit at both ends"
        )


def check_attribute(key: str, value: str) -> None:
    """Raise NamingError unless the attribute is valid as an annotation, an environment variable and a property."""
    if key in RESERVED_KEYS:
        raise NamingError(f"{key!r} is a property that the graph uses; rename the attribute")
    if len(key) > _LONGEST_KEY or not _QUALIFIED.fullmatch(key):
        raise NamingError(
            f"{shown(key)} is not valid in an annotation's name; use at most {_LONGEST_KEY} letters, digits, '-', "
            "'_' or '.', with a letter or digit at both ends"
        )
    if not value.isprintable():
        raise NamingError(f"the value of {key!r} contains a character that is not printable; remove it")
    bad = [character for character in FORBIDDEN_IN_PROPERTIES if character in value]
    if bad:
        raise NamingError(
            f"the value of {key!r} contains {' '.join(bad)}, which a property cannot contain (RFC 31); remove it"
        )
