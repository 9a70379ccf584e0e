"""The configuration of HTTP extenders: each mistake is one line with field and remedy."""

from __future__ import annotations

import pytest

from session_scheduler.config.settings import SchedulerConfig, parse_config, shown
from session_scheduler.errors import InputError

_HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\nextenders:\n"


def read(text: str) -> SchedulerConfig:
    return parse_config(_HEAD + text, "file")


def test_kube_schedulers_fields_are_read() -> None:
    (one,) = read("""
- urlPrefix: https://example.com:8443/scheduler
  filterVerb: filter
  prioritizeVerb: rank
  preemptVerb: preempt
  bindVerb: bind
  weight: 5
  enableHTTPS: true
  tlsConfig: {caFile: ca.crt, certFile: tls.crt, keyFile: tls.key, serverName: other}
  httpTimeout: 1m0.5s
  nodeCacheCapable: true
  managedResources: [{name: example.com/foo, ignoredByScheduler: true}]
  ignorable: true
""").extenders
    assert (one.seconds, one.weight, one.managed, one.ignorable) == (60.5, 5, frozenset({"example.com/foo"}), True)


@pytest.mark.parametrize(("text", "problem"), [
    ("- {}", "[0].urlPrefix: is missing; add it"),
    ("- {urlPrefix: 'ftp://a'}",
     "[0].urlPrefix: is 'ftp://a'; use the extender's URL, such as https://extender.example.com:8443/scheduler"),
    ("- {urlPrefix: 'http://a?b'}",
     "[0].urlPrefix: is 'http://a?b'; remove what follows the path; the scheduler appends /VERB"),
    ("- {urlPrefix: 'http://a', prioritizeVerb: x}", "[0].weight: is 0, but prioritizeVerb is set; use 1 or more"),
    ("- {urlPrefix: 'http://a', enableHTTPS: true}",
     "[0].enableHTTPS: is true, but urlPrefix is http; use an https URL"),
    ("- {urlPrefix: 'http://a', tlsConfig: {insecure: true}}",
     "[0].tlsConfig: is set, but urlPrefix is http; use an https URL, or remove it"),
    ("- {urlPrefix: 'https://a', tlsConfig: {insecure: true, caFile: a}}",
     "[0].tlsConfig.insecure: is true, but a CA is also given; remove one of them"),
    ("- {urlPrefix: 'https://a', tlsConfig: {certFile: a}}",
     "[0].tlsConfig: needs both a certificate and its key; set both certFile and keyFile, or neither"),
    ("- {urlPrefix: 'http://a', httpTimeout: 0s}",
     "[0].httpTimeout: is '0s'; use a duration of at most 1h, such as 500ms, 5s or 1m"),
    ("- {urlPrefix: 'http://a', httpTimeout: 5x}",
     "[0].httpTimeout: is '5x'; use a duration of at most 1h, such as 500ms, 5s or 1m"),
    ("- {urlPrefix: 'http://a', bindVerb: b}\n- {urlPrefix: 'http://b', bindVerb: b}",
     "[1].bindVerb: extenders[0] already binds pods; remove one of the two"),
    ("- {urlPrefix: 'http://a', managedResources: [{name: cpu}]}",
     "[0].managedResources[0].name: is 'cpu'; use the name of an extended resource, such as example.com/foo"),
    ("- {urlPrefix: 'http://a', managedResources: [{name: kubernetes.io/foo}]}",
     "[0].managedResources[0].name: is 'kubernetes.io/foo'; use the name of an extended resource, "
     "such as example.com/foo"),
    ("- {urlPrefix: 'http://a', managedResources: [{name: b.c/d}]}\n"
     "- {urlPrefix: 'http://b', managedResources: [{name: b.c/d}]}",
     "[1].managedResources[0].name: 'b.c/d' duplicates extenders[0].managedResources[0]; remove one of the two"),
])  # fmt: skip
def test_a_mistake_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert caught.value.messages == (f"file: extenders{problem}",)


def test_keys_and_users_are_not_shown() -> None:
    config = read("- {urlPrefix: 'https://me:secret@a', tlsConfig: {certData: YQ==, keyData: YQ==}}")
    text = str(shown(config)["extenders"])
    assert "secret" not in text
    assert "'keyData': '(not shown)'" in text
