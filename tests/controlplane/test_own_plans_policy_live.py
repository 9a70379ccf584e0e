"""The policy that lets the scheduler's account write only the ConfigMaps of its plans, on a real API server.

The account has every right here, so only the policy can reject a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, ClassVar

import pytest
import yaml

from ..tools.deploying import program
from .harness import DEPLOY, OWN_PLANS, ControlPlane
from .webhook_process import until

ACCOUNT = "system:serviceaccount:kube-system:fluence"
SYSTEM, ELSEWHERE = (f"/api/v1/namespaces/{name}/configmaps" for name in ("kube-system", "default"))
WHY = "the scheduler may write only ConfigMaps whose names begin with fluence-plan-"
Manifest = dict[str, Any]


class Plane(ControlPlane):
    """Under the policy; the account is a user with every right."""

    USERS: ClassVar[dict[str, str]] = {ACCOUNT: "system:masters"}

    def _prepare(self) -> None:
        for manifest in yaml.safe_load_all((DEPLOY / "fluence.yaml").read_text()):
            if manifest["metadata"]["name"] == OWN_PLANS:
                self.create(manifest)


def config_map(name: str, labels: dict[str, str] | None = None) -> Manifest:
    labels = {"app.kubernetes.io/managed-by": "fluence"} if labels is None else labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "b"}}


def ask(plane: ControlPlane, method: str, path: str, body: object = None) -> tuple[int, str]:
    status, answer = plane.request(method, path, body, user=ACCOUNT)
    return status, answer.get("message", "")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    program("kube-apiserver")  # skip or fail, like other tests with real API servers
    with Plane(tmp_path_factory.mktemp("own-plans")) as plane:
        until(lambda: ask(plane, "POST", f"{ELSEWHERE}?dryRun=All", config_map("other"))[0] == HTTPStatus.FORBIDDEN)
        yield plane


@pytest.mark.parametrize("path", [SYSTEM, ELSEWHERE], ids=["kube-system", "default"])
def test_the_account_makes_and_deletes_its_plans(plane: ControlPlane, path: str) -> None:
    assert ask(plane, "POST", path, config_map("fluence-plan-one")) == (HTTPStatus.CREATED, "")
    assert ask(plane, "DELETE", f"{path}/fluence-plan-one") == (HTTPStatus.OK, "")


@pytest.mark.parametrize("path", [SYSTEM, ELSEWHERE], ids=["kube-system", "default"])
@pytest.mark.parametrize(("name", "labels"), [("coredns", None), ("fluence", None), ("fluence-plan-two", {})])
def test_it_makes_changes_and_deletes_no_other(
    plane: ControlPlane, path: str, name: str, labels: dict[str, str] | None
) -> None:
    made = config_map(name, labels)
    status, why = ask(plane, "POST", path, made)
    assert (status, WHY in why) == (HTTPStatus.FORBIDDEN, True), why
    assert plane.request("POST", path, made)[0] == HTTPStatus.CREATED
    for method, body in (("PATCH", {"data": {"a": "forged"}}), ("DELETE", None)):
        status, why = ask(plane, method, f"{path}/{name}", body)
        assert (status, WHY in why) == (HTTPStatus.FORBIDDEN, True), why
    status, why = ask(plane, "DELETE", path)  # all of the namespace
    assert (status, WHY in why) == (HTTPStatus.FORBIDDEN, True), why
    assert plane.request("DELETE", f"{path}/{name}")[0] == HTTPStatus.OK
