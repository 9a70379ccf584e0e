"""The configuration of HTTP extenders, with the fields of kube-scheduler's Extender.

Source: Extender in k8s.io/kube-scheduler/config/v1, and its validation in pkg/scheduler/apis/config/validation,
Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from session_scheduler.config.label_names import is_label_key
from session_scheduler.config.parsing import wrong_value
from session_scheduler.config.strict import Strict

_LONGEST_SECONDS: Final = 3600.0
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def _duration(text: str) -> str:
    if not 0 < _seconds(text) <= _LONGEST_SECONDS:
        raise wrong_value(f"is {text!r}; use a duration of at most 1h, such as 500ms, 5s or 1m")
    return text


def _seconds(text: str) -> float:
    """The seconds of a Go duration; 0 for any other text."""
    parts = _PART.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if _PART.sub("", text) == "" else 0.0


def _http_url(text: str) -> str:
    try:
        url = urlsplit(text)
        valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise wrong_value(f"is {text!r}; use the extender's URL, such as https://extender.example.com:8443/scheduler")
    if url.query or url.fragment:
        raise wrong_value(f"is {text!r}; remove what follows the path; the scheduler appends /VERB")
    return text


def _extended_resource(name: str) -> str:
    """As kube-scheduler's IsExtendedResourceName."""
    prefix, slash, _ = name.rpartition("/")
    valid = slash and is_label_key(name)
    if not valid or prefix.endswith("kubernetes.io") or name.startswith("requests."):
        raise wrong_value(f"is {name!r}; use the name of an extended resource, such as example.com/foo")
    return name


class ManagedResource(Strict):
    """A resource that an extender manages. The scheduler does not count it if `ignored_by_scheduler` is set."""

    name: Annotated[str, AfterValidator(_extended_resource)]
    ignored_by_scheduler: bool = False


class ExtenderTLS(Strict):
    """TLS of an extender. The data fields are PEM in base64, and take precedence over the files."""

    insecure: bool = False
    """Do not verify the extender's certificate."""
    server_name: str = ""
    """The name in the extender's certificate, if it is not the URL's host."""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_data: str = ""
    key_data: str = ""
    ca_data: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.insecure and (self.ca_file or self.ca_data):
            raise wrong_value("is true, but a CA is also given; remove one of them", at=("insecure",))
        if bool(self.cert_file or self.cert_data) != bool(self.key_file or self.key_data):
            raise wrong_value("needs both a certificate and its key; set both certFile and keyFile, or neither")
        return self


class ExtenderConfig(Strict):
    """An HTTP extender. An empty verb is not called; an empty `managed_resources` means all pods."""

    url_prefix: Annotated[str, AfterValidator(_http_url)]
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: Annotated[int, Field(ge=0, le=65536)] = 0
    """The factor of its scores."""
    enable_https: Annotated[bool, Field(alias="enableHTTPS")] = False
    tls_config: ExtenderTLS | None = None
    http_timeout: Annotated[str, AfterValidator(_duration)] = "5s"
    node_cache_capable: bool = False
    """Whether the extender knows the nodes: then it gets only their names."""
    managed_resources: tuple[ManagedResource, ...] = ()
    ignorable: bool = False
    """Whether the scheduler continues without the extender if it fails."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.prioritize_verb and not self.weight:
            raise wrong_value("is 0, but prioritizeVerb is set; use 1 or more", at=("weight",))
        secure = self.url_prefix.startswith("https:")
        if self.enable_https and not secure:
            raise wrong_value("is true, but urlPrefix is http; use an https URL", at=("enableHTTPS",))
        if self.tls_config is not None and not secure:
            raise wrong_value("is set, but urlPrefix is http; use an https URL, or remove it", at=("tlsConfig",))
        return self

    @property
    def seconds(self) -> float:
        """`http_timeout` in seconds."""
        return _seconds(self.http_timeout)

    @property
    def managed(self) -> frozenset[str]:
        """The names of the managed resources."""
        return frozenset(resource.name for resource in self.managed_resources)


def check_together(extenders: Iterable[ExtenderConfig]) -> None:
    """At most one extender binds, and each resource has one extender. Raises PydanticCustomError."""
    binder: int | None = None
    seen: dict[str, str] = {}
    for index, extender in enumerate(extenders):
        if extender.bind_verb and binder is not None:
            problem = f"extenders[{binder}] already binds pods; remove one of the two"
            raise wrong_value(problem, at=("extenders", index, "bindVerb"))
        binder = index if extender.bind_verb else binder
        for place, resource in enumerate(extender.managed_resources):
            where = f"extenders[{index}].managedResources[{place}]"
            if resource.name in seen:
                problem = f"{resource.name!r} duplicates {seen[resource.name]}; remove one of the two"
                raise wrong_value(problem, at=("extenders", index, "managedResources", place, "name"))
            seen[resource.name] = where
