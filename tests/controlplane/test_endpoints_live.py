"""Who may read a live scheduler's endpoints: a real API server reviews tokens and rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import ADMIN, ControlPlane
from .scheduler_process import SchedulerProcess, Settings, kubeconfig_for

CLOSED = ("/configz", "/explain/default/p", "/plugins/fluence/page")
READER = "endpoint-reader"


@pytest.fixture
def scheduler(control_plane: ControlPlane, tmp_path: Path) -> Iterator[SchedulerProcess]:
    with SchedulerProcess(tmp_path, kubeconfig_for(control_plane, tmp_path), Settings(election=True)) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        yield scheduler


def bind(plane: ControlPlane, role: str, user: str) -> str:
    """Bind a ClusterRole to a user; return the path of the binding."""
    plane.create({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": READER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    })  # fmt: skip
    return f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{READER}"


def test_probes_and_metrics_need_no_token_and_every_other_path_a_token_with_the_right(
    control_plane: ControlPlane, scheduler: SchedulerProcess
) -> None:
    for path in ("/healthz", "/livez", "/readyz", "/metrics"):
        assert scheduler.get(path)[0] == 200
    outsider, admin = control_plane.token("outsider"), control_plane.token(ADMIN)
    for path in CLOSED:
        assert scheduler.get(path) == (401, "send a token for the cluster: `Authorization: Bearer TOKEN`\n")
        wrong = "the API server does not accept this token: it is invalid or has expired\n"
        assert scheduler.get(path, "wrong") == (401, wrong)
        remedy = "bind the user to a ClusterRole such as fluence-reader"
        assert scheduler.get(path, outsider) == (403, f"user outsider has no permission to get {path}; {remedy}\n")
        assert scheduler.get(path, admin)[0] in (200, 404)
    log = scheduler.log.read_text()
    assert outsider not in log
    assert admin not in log


def test_a_user_bound_to_the_reader_s_role_is_answered_by_leader_and_standby(
    control_plane: ControlPlane, scheduler: SchedulerProcess, tmp_path: Path
) -> None:
    kubeconfig = kubeconfig_for(control_plane, tmp_path)
    binding = bind(control_plane, "fluence-reader", "outsider")
    try:
        with SchedulerProcess(tmp_path, kubeconfig, Settings(election=True), name="standby") as standby:
            standby.start()
            standby.wait_ready()
            for replica in (scheduler, standby):
                status, text = replica.get("/configz", control_plane.token("outsider"))
                assert (status, text[:1]) == (200, "{")
    finally:
        control_plane.request("DELETE", binding)


def test_the_configuration_can_open_all_paths(control_plane: ControlPlane, tmp_path: Path) -> None:
    serving = {"host": "127.0.0.1", "port": 0, "authorization": "none"}
    settings = Settings(more={"serving": serving})
    with SchedulerProcess(tmp_path, kubeconfig_for(control_plane, tmp_path), settings) as scheduler:
        scheduler.start()
        scheduler.wait_ready()
        assert scheduler.get("/configz")[0] == 200
