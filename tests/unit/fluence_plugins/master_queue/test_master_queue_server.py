"""The server of its own: its configuration, where every mistake is one line, and what it says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluence_plugins.master_queue.arguments import MasterQueueArguments, MasterQueueConfiguration
from fluence_plugins.master_queue.plugin import MasterQueuePlugin
from fluence_plugins.master_queue.server import Exposition, load
from session_scheduler.config.settings import LeaderElection, without_secrets
from session_scheduler.errors import InputError
from session_scheduler.framework.bindings import Runtime
from session_scheduler.sdk.leader import Leadership

HEAD = "apiVersion: fluence.flux-framework.org/v1alpha1\nkind: MasterQueueConfiguration\n"


def loaded(folder: Path, text: str) -> MasterQueueConfiguration:
    file = folder / "f.yaml"
    file.write_text(text)
    return load(file)


def lines(folder: Path, text: str) -> list[str]:
    with pytest.raises(InputError) as refused:
        loaded(folder, text)
    return [message.removeprefix(f"{folder}/") for message in refused.value.messages]


# ------------------------------------------------------------------ the configuration


def test_without_a_file_or_without_fields_the_configuration_is_the_default(tmp_path: Path) -> None:
    assert load(None) == loaded(tmp_path, HEAD) == MasterQueueConfiguration()
    config = load(None)
    assert (config.leader_election.enabled, config.leader_election.name) == (True, "fluence-master-queue")
    assert (config.connectors, config.status_seconds) == ({}, 30.0)


def test_the_file_configures_connections_election_and_serving(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        HEAD
        + """
statusSeconds: 5
connectors: {one: {servers: ["nats://user:sesame@host:4222"]}}
leaderElection: {enabled: false}
serving: {port: 1234}
""",
    )
    assert config.status_seconds == 5
    assert config.connectors["one"].addresses[0].place == "host:4222"
    assert (config.leader_election.enabled, config.serving.port) == (False, 1234)


def test_a_file_with_a_part_of_the_election_keeps_the_controllers_own_lease(tmp_path: Path) -> None:
    config = loaded(tmp_path, HEAD + "leaderElection: {leaseSeconds: 30}")
    assert (config.leader_election.lease_seconds, config.leader_election.name) == (30, "fluence-master-queue")


def test_the_shown_configuration_has_no_secrets(tmp_path: Path) -> None:
    config = loaded(tmp_path, HEAD + "connectors: {one: {servers: ['nats://user:wo@rd@host', 'tls://tok@host']}}")
    shown = without_secrets(config.model_dump(mode="json", by_alias=True))
    assert shown["connectors"]["one"]["servers"] == ["nats://(not shown)@host", "tls://(not shown)@host"]
    assert not any(secret in str(shown) + repr(config) for secret in ("wo@rd", "rd@", "tok@", "user:"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "f.yaml: is not a configuration; start with `apiVersion: fluence.flux-framework.org/v1alpha1` and"),
        ("[1]", "f.yaml: is not a configuration; start with"),
        ("kind: MasterQueueConfiguration", "f.yaml: is not a configuration; start with"),
        ("a: [", "f.yaml:"),
        (HEAD.replace("v1alpha1", "v2"), "f.yaml: apiVersion: "),
        (HEAD.replace("MasterQueue", "Scheduler"), "f.yaml: kind: "),
        (HEAD + "statusseconds: 5", "f.yaml: statusseconds: unknown field; did you mean statusSeconds?"),
        (HEAD + "statusSeconds: 0", "f.yaml: statusSeconds: "),
        (HEAD + "statusSeconds: soon", "f.yaml: statusSeconds: "),
        (HEAD + "connectors: [1]", "f.yaml: connectors: "),
        (HEAD + "connectors: {one: {}}", "f.yaml: connectors.one.servers: "),
        (HEAD + "connectors: {one: {servers: ['http://h']}}", "f.yaml: connectors.one.servers[0]: "),
        (HEAD + "leaderElection: {leaseSeconds: 1}", "f.yaml: leaderElection"),
        (HEAD + "serving: {port: 70000}", "f.yaml: serving.port: "),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(tmp_path: Path, text: str, line: str) -> None:
    (message,) = lines(tmp_path, text)
    assert message.startswith(line)
    assert "\n" not in message


def test_each_mistake_has_one_line_without_secrets(tmp_path: Path) -> None:
    text = HEAD + "statusSeconds: 0\nmore: 1\nconnectors: {one: {servers: ['nats://user:sesame@host:99999']}}"
    found = lines(tmp_path, text)
    assert len(found) == 3
    assert "sesame" not in "".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "{one: 'ADDRESS'}", "['ADDRESS']", "ADDRESS", "{one: {servers: ADDRESS}}", "{one: {servers: {a: 'ADDRESS'}}}",
        "{one: {servers: [nats://h], userFile: ['ADDRESS']}}", "{'ADDRESS': {}}", "{one: {server: 'ADDRESS'}}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", ["nats://user:sesame@host:4222", "tls://sesame@host", "nats://user:x@sesame@host"])
def test_the_user_of_a_misplaced_address_is_not_shown(tmp_path: Path, text: str, address: str) -> None:
    found = lines(tmp_path, f"{HEAD}connectors: {text.replace('ADDRESS', address)}")
    assert found
    assert "sesame" not in "".join(found)


def test_a_missing_file_a_directory_and_a_binary_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in (("none", "No such file or directory"), (".", "Is a directory"), ("binary", "it is not UTF-8")):
        with pytest.raises(InputError) as refused:
            load(tmp_path / name)
        assert str(refused.value).endswith(f"cannot be read ({reason}); name a readable configuration file")


# ------------------------------------------------------------------ what it says of itself


def exposed(*, enabled: bool) -> str:
    plugin = MasterQueuePlugin(MasterQueueArguments())
    plugin.counters.message("interlink.resources", "taken")
    exposition = Exposition(plugin, Leadership(LeaderElection(enabled=enabled)))
    body, content = exposition.exposition()
    assert content.startswith("text/plain; version=0.0.4")
    assert exposition.exposition("application/openmetrics-text")[1] == content
    return body.decode()


def test_the_metrics_are_those_of_the_plugin_and_the_process() -> None:
    text = exposed(enabled=False).splitlines()
    assert 'fluence_masterqueue_messages_total{result="taken",subject="interlink.resources"} 1.0' in text
    assert "# TYPE fluence_masterqueue_pools gauge" in text
    assert "fluence_leader 1.0" in text
    assert any(line.startswith('fluence_build_info{version="') for line in text)
    assert any(line.startswith("fluence_process_cpu_seconds_total ") for line in text)
    assert not any("_created" in line for line in text)


def test_a_standby_replica_reports_that_it_stands_by() -> None:
    assert "fluence_leader 0.0" in exposed(enabled=True).splitlines()


async def test_without_an_api_server_the_plugin_serves_nothing() -> None:
    plugin = MasterQueuePlugin(MasterQueueArguments())
    async with plugin.serve(Runtime(lambda *_: None, lambda: True)):
        pass
    assert all(not family.samples for family in plugin.metrics())
