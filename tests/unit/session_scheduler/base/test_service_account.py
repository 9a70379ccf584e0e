"""What a pod has from the kubelet to reach the API server, and addresses as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from session_scheduler.base.addresses import host_and_port
from session_scheduler.base.service_account import api_server_of_pod, read_token

HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def test_only_an_ipv6_address_has_brackets() -> None:
    assert host_and_port("10.0.0.1", 443) == "10.0.0.1:443"
    assert host_and_port("api.example.com", 6443) == "api.example.com:6443"
    assert host_and_port("fd00::1", 443) == "[fd00::1]:443"


def test_the_environment_of_a_pod_names_the_api_server() -> None:
    assert api_server_of_pod({HOST: "fd00::1", PORT: "6443"}) == ("fd00::1", 6443)


@pytest.mark.parametrize("environment", [{}, {HOST: "10.0.0.1"}, {PORT: "443"}, {HOST: "10.0.0.1", PORT: ""}])
def test_both_variables_are_needed(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"{HOST} and {PORT} must both be set"):
        api_server_of_pod(environment)


def test_the_port_is_a_number() -> None:
    with pytest.raises(ValueError, match=f"{PORT}: expected a port, got 'https'"):
        api_server_of_pod({HOST: "10.0.0.1", PORT: "https"})


def test_an_empty_token_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert read_token(file) == "secret"
    file.write_text("\n")
    with pytest.raises(ValueError, match=f"{file} is empty"):
        read_token(file)
