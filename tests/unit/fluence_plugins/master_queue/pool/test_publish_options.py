"""The options of `fluence pool publish`: what is wrong is one line with its option, and shows no secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from fluence_plugins.master_queue.pool.publish_options import Options, Secrets, quotas_of, settings_of, subject_of
from fluence_plugins.master_queue.pool_commands import pool
from session_scheduler.cli import main
from session_scheduler.errors import InputError

SERVER = "nats://127.0.0.1:4222"
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUENCE_NATS_SERVERS", raising=False)
    monkeypatch.setattr("session_scheduler.cli.app._plugin_commands", lambda: {"pool": pool})


def publish(*words: str) -> int:
    return main(["pool", "publish", "--pool", "far", "--subject", "a.b", *words])


def options(**fields: object) -> Options:
    return Options(**({"pool": "far", "subject": "a.b", "servers": (SERVER,), "quota": ("cpu=8",)} | fields))  # type: ignore[arg-type]


def test_the_group_is_a_typer_command_group() -> None:
    assert isinstance(pool, typer.Typer)


def test_a_dry_run_prints_the_message_and_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--quota", "cpu=0.5", "--quota", "memory=32Gi", "--label", "k=v", "--taint", "t=v:NoSchedule")
    assert publish(*words, "--dry-run") == 0
    assert json.loads(capsys.readouterr().out) == {
        "quotas": {"cpu": "500m", "memory": "32Gi"}, "labels": ["k=v"], "taints": ["t=v:NoSchedule"],
    }  # fmt: skip


def test_the_servers_may_be_set_by_an_environment_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLUENCE_NATS_SERVERS", f"nats://user:{SECRET}@127.0.0.1:1 http://user:{SECRET}@x")
    assert publish("--quota", "cpu=1") == 2
    said = capsys.readouterr().err
    assert said == "fluence: --server: is not a NATS address; write nats://, tls://, ws:// or wss:// before host:port\n"


def test_once_exits_with_1_and_one_line_if_no_server_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--quota", "cpu=1", "--server", f"nats://user:{SECRET}@127.0.0.1:1", "--once") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fluence: nothing was published: nats://127.0.0.1:1: ")
    assert SECRET not in line


@pytest.mark.parametrize(("words", "lines"), [
    ((), ["--quota is missing; pass --quota, such as cpu=8, or --from-kubeconfig FILE to measure the pool's own "
          "cluster"]),
    (("--quota", "cpu"), ["--quota: 'cpu' has no '='; write RESOURCE=AMOUNT, such as memory=32Gi"]),
    (("--quota", "cpus=1", "--quota", "cpu=-1"),
     ["--quota: 'cpus': unknown resource; use one of cpu, memory, pods, nvidia.com/gpu",
      "--quota: cpu: '-1' is negative; write 0 or more"]),
    (("--quota", "pods=1.5", "--quota", "cpu=0.0001"),
     ["--quota: pods: '1.5' is too precise; use whole numbers",
      "--quota: cpu: '0.0001' is too precise; use thousandths of a core"]),
    (("--quota", "cpu=1", "--quota", "cpu=2"), ["--quota: cpu is given twice; write each resource once"]),
    (("--quota", "cpu=1", "--label", "a", "--taint", "b"),
     ["--label[0]: 'a' has no '='; write key=value", "--taint[0]: 'b' lacks the effect; write key=value:Effect"]),
    (("--quota", "cpu=1", "--for", "ns", "--selector", "a=b"),
     ["--selector, --for: applies only to a cluster; add --from-kubeconfig FILE, or remove the option"]),
    (("--quota", "cpu=1"), ["--server: expected 1 to 16 servers, got 0; write nats://host:4222"]),
    (("--quota", "cpu=1", "--subject", "a.*"),
     ["--subject: 'a.*' is not a valid subject; write words separated by ., without * and >"]),
    (("--quota", "cpu=1", "--pool", "A"),
     ["--pool: 'A' is not a valid pool name; use at most 63 characters (a-z, 0-9 and -), with no - at the start or "
      "end"]),
])  # fmt: skip
def test_each_mistake_is_one_line_with_its_option(
    words: tuple[str, ...], lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish(*words) == 2
    assert capsys.readouterr().err.splitlines() == [f"fluence: {line}" for line in lines]


def test_an_interval_below_one_second_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert publish("--quota", "cpu=1", "--server", SERVER, "--every", "0.5") == 2
    assert "--every" in capsys.readouterr().err


def test_quotas_are_written_as_kubernetes_writes_them_and_the_subject_ends_with_the_pool() -> None:
    assert quotas_of(options(quota=("memory=34359738368", "pods=1e1"))) == {"memory": "32Gi", "pods": "10"}
    assert subject_of(options()) == "a.b.far"
    assert quotas_of(options(quota=(), from_cluster=True)) == {}


def test_files_are_read_for_each_connection(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("user", "password", "tls_ca", "tls_cert", "tls_key")}
    for file in files.values():
        file.write_text(SECRET)
    found = settings_of(options(servers=("tls://n:4222",), secrets=Secrets(**files)))
    assert (found.user_file, found.password_file) == (str(files["user"]), str(files["password"]))
    assert found.tls is not None
    assert (found.tls.ca_file, found.tls.cert_file, found.tls.key_file) == tuple(
        str(files[name]) for name in ("tls_ca", "tls_cert", "tls_key")
    )
    assert settings_of(options()).tls is None


HERE = Path(__file__)


@pytest.mark.parametrize(("fields", "line"), [
    ({"secrets": Secrets(user=HERE)},
     "--password-file: is missing; pass both --user-file and --password-file, or neither"),
    ({"secrets": Secrets(tls_key=HERE)}, "--tls-cert: is missing; pass both --tls-cert and --tls-key, or neither"),
    ({"secrets": Secrets(nkey=HERE, token=HERE)}, "--nkey, --token-file: use only one way to authenticate"),
    ({"secrets": Secrets(nkey=HERE), "servers": (f"nats://u:{SECRET}@h",)},
     "--nkey, a user or token in --server: use only one way to authenticate"),
    ({"secrets": Secrets(tls_ca=HERE), "servers": ("ws://h",)},
     "--server: ws:// has no TLS; write wss://, or remove --tls-ca, --tls-cert and --tls-key"),
    ({"secrets": Secrets(token=Path("/no/token"))}, "/no/token: file not found; name an existing file"),
    ({"servers": (SERVER,) * 17}, "--server: expected 1 to 16 servers, got 17; write nats://host:4222"),
])  # fmt: skip
def test_contradictory_connection_options_are_rejected(fields: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as refused:
        settings_of(options(**fields))
    assert str(refused.value) == line
