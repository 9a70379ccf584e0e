"""Where the configuration of a cluster comes from, and what is said where it is wrong."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from session_scheduler.cluster import kube_access
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kubernetes import connect
from session_scheduler.errors import InputError


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig, no pod, whatever machine this is."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def kubeconfig(path: Path, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "first",
        "clusters": [{"name": "c", "cluster": {"server": "https://one.example:6443/", **cluster}}],
        "users": [{"name": "u", "user": user if user is not None else {"token": "secret"}}],
        "contexts": [{"name": "first", "context": {"cluster": "c", "user": "u"}},
                     {"name": "dangling", "context": {"cluster": "absent", "user": "u"}}],
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def test_a_kubeconfig_says_where_and_who(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config"), None)
    assert access.server == "https://one.example:6443"
    assert await access.authorization() == "Bearer secret"
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.verify_mode is ssl.CERT_REQUIRED


async def test_the_file_given_goes_before_the_environments_and_that_before_the_homes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = []
    kubeconfig(tmp_path / ".kube" / "config", {"token": "home"})
    tokens.append(await (await load_access(None, None)).authorization())
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "environment", {"token": "environment"}))
    tokens.append(await (await load_access(None, None)).authorization())
    given = kubeconfig(tmp_path / "given", {"token": "given"})
    tokens.append(await (await load_access(given, None)).authorization())
    assert tokens == ["Bearer home", "Bearer environment", "Bearer given"]


async def test_a_user_without_credentials_is_anonymous(tmp_path: Path) -> None:
    assert await (await load_access(kubeconfig(tmp_path / "config", {}), None)).authorization() == ""


async def test_a_renewed_access_reads_the_file_again(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "old"})
    access = await load_access(path, None)
    kubeconfig(tmp_path / "config", {"token": "new"})
    assert access.renew is not None
    assert await (await access.renew()).authorization() == "Bearer new"


async def test_a_credential_plugin_is_asked(tmp_path: Path) -> None:
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}'
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer],
              "interactiveMode": "Never"}  # fmt: skip
    access = await load_access(kubeconfig(tmp_path / "config", {"exec": plugin}), None)
    assert await access.authorization() == "Bearer made"


async def test_a_credential_plugin_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("kubernetes.aio.config.exec_provider.ExecProvider.run", hang)
    monkeypatch.setattr(kube_access, "_PLUGIN_PATIENCE", 0.01)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "any", "interactiveMode": "Never"}
    with pytest.raises(InputError, match="credential plugin did not end"):
        await load_access(kubeconfig(tmp_path / "config", {"exec": plugin}), None)


async def test_verification_is_left_out_only_where_the_file_says_so(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config", **{"insecure-skip-tls-verify": True}), None)
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "parsing"),
        ("", "malformed"),
        ("[]", "malformed"),
        ("clusters: 7", "malformed"),
        ("kind: Config", "current-context"),
    ],
)
async def test_a_file_that_is_no_kubeconfig_is_named_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        await connect(str(tmp_path / "config"))
    assert f"kubeconfig {tmp_path / 'config'}: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "context", "said"),
    [
        ({}, "absent", "absent"),
        ({}, "dangling", "absent"),
        ({"server": "one.example"}, None, "no http or https URL"),
        ({"certificate-authority": "/nonexistent/ca.crt"}, None, "ca.crt"),
        ({"certificate-authority-data": "bm90aGluZw=="}, None, "correct it"),
        ({"certificate-authority-data": "%"}, None, "correct it"),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_says_why(
    tmp_path: Path, cluster: dict[str, Any], context: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        await connect(kubeconfig(tmp_path / "config", **cluster), context)
    assert "\n" not in str(caught.value)


async def test_a_missing_file_and_no_configuration_at_all_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        await connect(str(tmp_path / "absent"))
    with pytest.raises(InputError, match="give --kubeconfig"):
        await connect()


async def test_a_pod_without_a_mounted_account_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(InputError, match="automountServiceAccountToken"):
        await connect()


def test_what_needs_no_live_cluster_does_not_load_its_libraries() -> None:
    heavy = "{'aiohttp', 'kubernetes', 'session_scheduler.cluster.kubernetes'}"
    script = f"import session_scheduler.cli.app, session_scheduler.simulate, session_scheduler.explain, sys\n" \
             f"print(sorted({heavy} & set(sys.modules)))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
