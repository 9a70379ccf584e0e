"""The plugin's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import parse_config
from session_scheduler.errors import InputError
from session_scheduler.registry.registry import Registry

CONFIG = """
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
profiles:
  - schedulerName: slurm-bridge-scheduler
    plugins:
      - {name: fluence, enabled: false}
      - {name: slurm-bridge, args: %s}
"""
GOOD = {"url": "https://slurmrestd:6820", "tokenFile": "/token"}


def loaded(args: dict[str, Any]) -> Any:
    (profile,) = Registry(BUILTIN).load_profiles(parse_config(CONFIG % args, "config.yaml")).values()
    return next(one.instance for one in profile if one.name == "slurm-bridge")


def test_an_address_and_a_token_are_enough() -> None:
    assert loaded(GOOD).name == "slurm-bridge"


@pytest.mark.parametrize("more", [
    {"url": "http://slurmrestd:6820", "allowHttp": True}, {"url": "http://localhost:6820"},
    {"url": "http://127.0.0.1:6820"}, {"url": "http://[::1]:6820"},
])  # fmt: skip
def test_http_needs_an_opt_in_unless_the_address_is_loopback(more: dict[str, Any]) -> None:
    assert loaded({**GOOD, **more}).name == "slurm-bridge"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"url": "ftp://x"}, "args.url: expected http://host:port or https://host:port of slurmrestd, got 'ftp://x'"),
        ({"url": "http://user:secret@x"}, "args.url: the address of slurmrestd must not have a user"),
        (
            {"url": "http://slurmrestd:6820"},
            "args.url: http sends the token unencrypted; use https, or set allowHttp: true",
        ),
        ({"url": "http://localhost.example.com"}, "args.url: http sends the token unencrypted"),
        ({"url": "http://10.0.0.1:6820", "allowHttp": False}, "args.url: http sends the token unencrypted"),
        ({"apiVersion": "v0.0.38"}, "args.apiVersion"),
        ({"timeoutSeconds": 0}, "args.timeoutSeconds"),
        ({"tickSeconds": 0}, "args.tickSeconds"),
        ({"partition": ""}, "args.partition"),
        ({"other": 1}, "args.other"),
    ],
)
def test_an_invalid_argument_is_one_line_with_its_field(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        loaded({**GOOD, **wrong})
    (line,) = error.value.messages
    assert f"config.yaml: profiles[0].plugins[1].{said}" in line
    assert "secret" not in line
