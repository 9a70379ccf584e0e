"""Sources of a cluster's configuration, and errors for invalid ones."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence_plugins.env_injection import certificates
from session_scheduler.cluster import kube_access
from session_scheduler.cluster.kube_access import load_access
from session_scheduler.cluster.kubernetes import connect
from session_scheduler.errors import InputError


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the machine's own kubeconfig and pod environment."""
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


async def test_a_kubeconfig_has_the_server_and_the_credentials(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config"), None)
    assert access.server == "https://one.example:6443"
    assert await access.authorization() == "Bearer secret"
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.verify_mode is ssl.CERT_REQUIRED


async def test_the_given_file_precedes_the_environments_which_precedes_the_homes(
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


async def test_a_token_that_looks_like_a_date_is_a_string_as_for_kubectl(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config", {"token": date(2026, 1, 1)}), None)
    assert await access.authorization() == "Bearer 2026-01-01"


async def test_a_renewed_access_reads_the_file_again(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config", {"token": "old"})
    access = await load_access(path, None)
    kubeconfig(tmp_path / "config", {"token": "new"})
    assert access.renew is not None
    assert await (await access.renew()).authorization() == "Bearer new"


async def test_certificates_and_a_token_in_files_beside_the_kubeconfig_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificates.make(["one.example"], datetime.now(UTC))
    (tmp_path / "ca.crt").write_bytes(made.authorities)
    (tmp_path / "client.crt").write_bytes(made.chain)
    (tmp_path / "token").write_text("first\n")
    key = base64.b64encode(made.key).decode()
    user = {"client-certificate": "client.crt", "client-key-data": key, "tokenFile": "token", "token": "other"}
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "two.example", "proxy-url": "http://proxy.example"}
    access = await load_access(kubeconfig(tmp_path / "config", user, **cluster), None)
    assert isinstance(access.tls, ssl.SSLContext)
    assert len(access.tls.get_ca_certs()) == 1
    assert (access.server_name, access.proxy) == ("two.example", "http://proxy.example")
    assert await access.authorization() == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    monkeypatch.setattr(kube_access, "_TOKEN_SECONDS", 0.0)
    assert await access.authorization() == "Bearer second"


async def test_a_client_certificate_without_its_key_is_an_error(tmp_path: Path) -> None:
    made = certificates.make(["one.example"], datetime.now(UTC))
    user = {"client-certificate-data": base64.b64encode(made.certificate).decode()}
    with pytest.raises(InputError, match="correct it"):
        await load_access(kubeconfig(tmp_path / "config", user), None)


async def test_certificates_in_base64_may_contain_line_breaks(tmp_path: Path) -> None:
    ca = base64.encodebytes(certificates.make(["one.example"], datetime.now(UTC)).authorities).decode()
    assert ca.count("\n") > 1
    cluster: dict[str, Any] = {"certificate-authority-data": ca}
    access = await load_access(kubeconfig(tmp_path / "config", **cluster), None)
    assert isinstance(access.tls, ssl.SSLContext)
    assert len(access.tls.get_ca_certs()) == 1


async def test_impersonation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="as: impersonation is not supported"):
        await load_access(kubeconfig(tmp_path / "config", {"token": "t", "as": "someone"}), None)


async def test_a_user_with_a_password_is_left_to_the_library(tmp_path: Path) -> None:
    access = await load_access(kubeconfig(tmp_path / "config", {"username": "u", "password": "p"}), None)
    assert access.server == "https://one.example:6443"


async def test_a_credential_plugin_provides_the_token(tmp_path: Path) -> None:
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"made"}}'
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer],
              "interactiveMode": "Never"}  # fmt: skip
    access = await load_access(kubeconfig(tmp_path / "config", {"exec": plugin}), None)
    assert await access.authorization() == "Bearer made"


async def test_a_credential_plugin_that_hangs_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("kubernetes.aio.config.exec_provider.ExecProvider.run", hang)
    monkeypatch.setattr(kube_access, "_PLUGIN_PATIENCE", 0.01)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "any", "interactiveMode": "Never"}
    with pytest.raises(InputError, match="credential plugin did not finish"):
        await load_access(kubeconfig(tmp_path / "config", {"exec": plugin}), None)


async def test_only_insecure_skip_tls_verify_disables_verification(tmp_path: Path) -> None:
    unverified: dict[str, Any] = {"insecure-skip-tls-verify": True}
    access = await load_access(kubeconfig(tmp_path / "config", **unverified), None)
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.verify_mode is ssl.CERT_NONE


async def test_without_verification_the_systems_cas_are_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(**_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(ssl, "create_default_context", read)
    for cluster in ({"insecure-skip-tls-verify": True}, {"server": "http://one.example:8080"}):
        access = await load_access(kubeconfig(tmp_path / "config", **cluster), None)
        assert isinstance(access.tls, ssl.SSLContext)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "parsing"),
        ("", "malformed"),
        ("[]", "malformed"),
        ("clusters: 7", "malformed"),
        ("kind: Config", "current-context"),
        ('{"a":' * 3000, "malformed"),
    ],
)
async def test_the_error_for_an_invalid_kubeconfig_is_one_line(tmp_path: Path, text: str, said: str) -> None:
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
        ({"server": "one.example"}, None, "expected an http or https URL"),
        ({"server": "https://one.example:99999"}, None, "Port out of range 0-65535; correct it"),
        ({"server": "https://:6443"}, None, "expected a host and a valid port in the cluster's server"),
        ({"certificate-authority": "/nonexistent/ca.crt"}, None, "ca.crt"),
        ({"certificate-authority-data": "bm90aGluZw=="}, None, "correct it"),
        ({"certificate-authority-data": "%"}, None, "certificate-authority-data: "),
        ({"certificate-authority": "/dev/null"}, None, "/dev/null is empty"),
        ({"server": 7}, None, "server: expected a string, got 7"),
        ({"proxy-url": True}, None, "proxy-url: expected a string, got True"),
        ({"insecure-skip-tls-verify": "false"}, None, "expected true or false, got 'false'"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "ca.crt"}, None, "are mutually exclusive"),
    ],
)
async def test_the_error_for_an_unusable_kubeconfig_has_the_reason(
    tmp_path: Path, cluster: dict[str, Any], context: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        await connect(kubeconfig(tmp_path / "config", **cluster), context)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "proxy",
    ["socks5://user:secret@proxy.example", "proxy.example:3128", "http://", "http://user:secret@p.example:99999"],
)
@pytest.mark.parametrize("needs_library", [False, True])
async def test_a_proxy_that_cannot_be_used_is_an_error_that_hides_its_password(
    tmp_path: Path, proxy: str, needs_library: bool
) -> None:
    user = {"username": "u", "password": "p"} if needs_library else {}
    file = kubeconfig(tmp_path / "config", user, **{"proxy-url": proxy})
    with pytest.raises(InputError, match="proxy-url: expected an http or https URL") as caught:
        await connect(file)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["secret\n", "secret\nsecret", " secret"])
async def test_a_token_that_no_header_can_have_is_an_error_that_hides_it(tmp_path: Path, token: str) -> None:
    file = kubeconfig(tmp_path / "config", {"token": token})
    with pytest.raises(InputError, match="token: expected one line without spaces around it; correct it") as caught:
        await connect(file)
    assert "secret" not in str(caught.value)


def test_the_namespace_of_a_kubeconfig_that_is_nested_too_deeply_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text('{"a":' * 3000)
    with pytest.raises(InputError, match="is nested too deeply; correct it"):
        kube_access.namespace_of(str(tmp_path / "config"), None)


async def test_a_missing_file_and_a_missing_configuration_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file does not exist"):
        await connect(str(tmp_path / "absent"))
    with pytest.raises(InputError, match="pass --kubeconfig"):
        await connect()


# ---------------------------------------------------------------------- a pod's service account


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory with the pod's token and the CA's certificate."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "ca.crt").write_bytes(certificates.make(["one.example"], datetime.now(UTC)).authorities)
    monkeypatch.setattr(kube_access, "_ACCOUNT", folder)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


async def test_a_pod_uses_its_service_account_and_verifies_the_server(account: Path) -> None:
    access = await load_access(None, None)
    assert (access.server, await access.authorization()) == ("https://10.0.0.1:443", "Bearer first")
    assert isinstance(access.tls, ssl.SSLContext)
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert access.tls.check_hostname
    assert len(access.tls.get_ca_certs()) == 1


async def test_an_address_with_colons_is_put_into_brackets(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert (await load_access(None, None)).server == "https://[fd00::1]:443"


async def test_a_pods_token_is_read_again_when_it_is_old(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = await load_access(None, None)
    (account / "token").write_text("second")
    assert await access.authorization() == "Bearer first"
    monkeypatch.setattr(kube_access, "_TOKEN_SECONDS", 0.0)
    assert await access.authorization() == "Bearer second"
    (account / "token").unlink()
    assert await access.authorization() == "Bearer second"


async def test_a_pods_access_is_renewed_from_its_account(account: Path) -> None:
    access = await load_access(None, None)
    (account / "token").write_text("second")
    assert access.renew is not None
    assert await (await access.renew()).authorization() == "Bearer second"


@pytest.mark.parametrize(
    ("name", "text"),
    [("token", None), ("token", " \n"), ("ca.crt", None), ("ca.crt", ""), ("ca.crt", "no certificate")],
)
async def test_an_unusable_service_account_is_an_error(account: Path, name: str, text: str | None) -> None:
    (account / name).unlink()
    if text is not None:
        (account / name).write_text(text)
    with pytest.raises(InputError, match="automountServiceAccountToken") as caught:
        await connect()
    assert "\n" not in str(caught.value)


async def test_a_missing_port_in_the_environment_is_an_error(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
    with pytest.raises(InputError, match="KUBERNETES_SERVICE_PORT"):
        await connect()
