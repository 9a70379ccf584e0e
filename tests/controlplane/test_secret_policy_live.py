"""The policy that lets the webhook's account create and change only one Secret, on a real API server.

The account has every right here, so only the policy can reject a request. RBAC cannot do this, because a rule for
creating Secrets cannot name one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from ..tools.deploying import program
from .harness import ADMIN, DEPLOY, ControlPlane
from .webhook_process import SECRETS, Shared, WebhookProcess, kubeconfig_of_the_account, until

ACCOUNT = "system:serviceaccount:kube-system:fluence-webhook"
NAME = "fluence-webhook-tls"
ELSEWHERE = "/api/v1/namespaces/default/secrets"
TLS, TOKEN, BOOTSTRAP = "kubernetes.io/tls", "kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"
Manifest = dict[str, Any]


class Plane(ControlPlane):
    """Under the policy; the account is a user with every right."""

    USERS: ClassVar[dict[str, str]] = {ACCOUNT: "system:masters"}

    def _prepare(self) -> None:
        super()._prepare()
        for manifest in yaml.safe_load_all((DEPLOY / "fluence.yaml").read_text()):
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if kind.startswith("ValidatingAdmissionPolicy") and name == "fluence-webhook":
                self.create(manifest)


def secret(name: str = NAME, kind: str = TLS) -> Manifest:
    metadata = {"name": name, "annotations": {"kubernetes.io/service-account.name": "fluence"}}
    data = {"tls.crt": "", "tls.key": ""} if kind == TLS else {}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}


def create(plane: ControlPlane, made: Manifest, path: str = SECRETS, user: str = ACCOUNT) -> tuple[int, str]:
    """Create a Secret as a dry run; return the response."""
    status, answer = plane.request("POST", f"{path}?dryRun=All", made, user=user)
    return status, answer.get("message", "")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    program("kube-apiserver")  # skip or fail, like other tests with real API servers
    with Plane(tmp_path_factory.mktemp("secret-policy")) as plane:
        until(lambda: create(plane, secret("other"))[0] == HTTPStatus.FORBIDDEN)  # once it is enforced
        yield plane


@pytest.fixture
def shared(plane: ControlPlane) -> Shared:
    shared = Shared(plane)
    shared.clear()
    return shared


@pytest.mark.usefixtures("shared")
def test_the_account_makes_the_secret_of_its_certificate(plane: ControlPlane) -> None:
    assert create(plane, secret()) == (HTTPStatus.CREATED, "")


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("made", [secret(kind=TOKEN), secret(kind="Opaque"), secret(kind="example.com/other")],
                         ids=lambda made: made["type"])  # fmt: skip
def test_it_makes_none_of_another_type(plane: ControlPlane, made: Manifest) -> None:
    status, why = create(plane, made)
    assert status == HTTPStatus.FORBIDDEN, why
    assert "the webhook may create only Secrets of type kubernetes.io/tls" in why
    assert create(plane, made, user=ADMIN)[0] == HTTPStatus.CREATED


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize(("made", "path"), [
    (secret("fluence-webhook-tls2"), SECRETS), (secret("bootstrap-token-abcdef", BOOTSTRAP), SECRETS),
    (secret("token", TOKEN), SECRETS), (secret(), ELSEWHERE),
], ids=["tls", "bootstrap", "token", "elsewhere"])  # fmt: skip
def test_it_makes_none_of_another_name_or_in_another_namespace(plane: ControlPlane, made: Manifest, path: str) -> None:
    status, why = create(plane, made, path)
    assert status == HTTPStatus.FORBIDDEN, why
    assert "the webhook may write only the Secret kube-system/fluence-webhook-tls" in why


def test_it_makes_none_whose_name_the_api_server_makes(plane: ControlPlane) -> None:
    made = secret()
    made["metadata"]["generateName"] = made["metadata"].pop("name")
    assert create(plane, made)[0] == HTTPStatus.FORBIDDEN


@pytest.mark.usefixtures("shared")
def test_it_changes_no_other_secret(plane: ControlPlane) -> None:
    for name, allowed in (("somebodys", False), (NAME, True)):
        plane.request("POST", SECRETS, secret(name))
        status, answer = plane.request("PATCH", f"{SECRETS}/{name}", {"data": {"a": "YQ=="}}, user=ACCOUNT)
        assert status == (HTTPStatus.OK if allowed else HTTPStatus.FORBIDDEN), answer


@pytest.mark.parametrize("found", [None, secret(), secret(kind="Opaque")],
                         ids=["no Secret", "an empty one", "one of an administrator"])  # fmt: skip
def test_the_webhook_gets_its_certificate_under_the_policy(
    plane: ControlPlane, shared: Shared, tmp_path: Path, found: Manifest | None
) -> None:
    if found is not None:
        assert plane.request("POST", SECRETS, found)[0] == HTTPStatus.CREATED
    with WebhookProcess(tmp_path, kubeconfig_of_the_account(plane, tmp_path)) as webhook:
        shared.configure(webhook.tls_port)
        webhook.start()
        webhook.wait_ready()
        until(lambda: shared.bundles() == [shared.material().authorities])
    assert shared.secret()["type"] == ("kubernetes.io/tls" if found is None else found["type"])
