"""The alerts, tested by promtool: each fires alone for its fault in a healthy cluster, and reads existing metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence_plugins.device_advertisement.metrics import Metrics as DevicePluginMetrics
from fluence_plugins.device_advertisement.metrics import TypeState
from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.handlers import HandlerSettings
from fluence_plugins.env_injection.metrics import WebhookMetrics

from ...tools.deploying import DEPLOY, Manifest, said, the

pytestmark = pytest.mark.programs

MONITORING = "options/monitoring.yaml"
DOCS = DEPLOY.parent
RUNBOOK = "https://converged-computing.github.io/fluence/latest/how-to/alerts.html#"
WELL = {
    'fluence_leader{pod="a"}': "1x120",
    'fluence_leader{pod="b"}': "0x120",
    'fluence_pending_pods{state="due",pod="a"}': "3x120",
    'fluence_pending_pods{state="backoff",pod="a"}': "0x120",
    'fluence_pending_pods{state="unschedulable",pod="a"}': "5x120",
    'fluence_pods_total{result="scheduled",pod="a"}': "0+10x120",
    'fluence_cycles_total{result="ok",pod="a"}': "0+60x120",
    'fluence_cycles_total{result="error",pod="a"}': "4x120",
    'fluence_groups_total{result="error",pod="a"}': "0+1x120",
    'fluence_groups_total{result="unschedulable",pod="a"}': "0+60x120",
    'fluence_bind_errors_total{code="409",pod="a"}': "0+60x120",
    'fluence_bind_errors_total{code="403",pod="a"}': "9x120",
    'fluence_gang_evictions_total{pod="a"}': "7x120",
    'fluence_watch_lag_seconds_bucket{le="0.1",pod="a"}': "0+60x120",
    'fluence_watch_lag_seconds_bucket{le="30.0",pod="a"}': "0+60x120",
    'fluence_watch_lag_seconds_bucket{le="+Inf",pod="a"}': "0+60x120",
    'fluence_watch_ends_total{kind="Pod",why="Ended",pod="a"}': "0+5x120",
    'fluence_watch_ends_total{kind="Pod",why="ClusterUnavailable",pod="a"}': "5x120",
    'fluence_missed_events_total{kind="Pod",pod="a"}': "2x120",
    'fluence_lease_renewal_failures_total{pod="a"}': "1x120",
    'fluence_reports_dropped_total{kind="event",why="Full",pod="a"}': "0+1x120",
    'fluence_hook_seconds_total{plugin="fluence",pod="a"}': "0+6x120",
    'fluence_missing_parts{pod="a"}': "0x120",
    'fluence_resources_last_load_successful{pod="a"}': "1x120",
    'fluence_graph_drift_pods{kind="ended",pod="a"}': "0x120",
    'up{job="fluence-webhook",pod="w"}': "1x120",
    'up{job="fluence-webhook",pod="v"}': "0x120",
    'fluence_webhook_trusted{pod="w"}': "1x120",
    'fluence_webhook_certificate_expiry_timestamp_seconds{pod="w"}': "31536000x120",
    'fluence_webhook_certificate_checks_total{result="failed",pod="w"}': "3x120",
    'fluence_webhook_requests_total{result="patched",pod="w"}': "0+600x120",
    'fluence_webhook_requests_total{result="refused",pod="w"}': "0+600x120",
    'fluence_webhook_requests_total{result="failed",pod="w"}': "2x120",
    'fluence_webhook_config_last_load_successful{pod="w"}': "1x120",
    'up{job="fluence-device-plugin",node="n"}': "1x120",
    'fluence_device_plugin_advertised{type="qpu",node="n"}': "1x120",
    'fluence_device_plugin_registrations_total{type="qpu",result="refused",node="n"}': "1x120",
    'fluence_device_plugin_config_last_load_successful{node="n"}': "1x120",
    'fluence_leader{job="fluence-master-queue",pod="m"}': "1x120",
    'fluence_leader{job="fluence-master-queue",pod="k"}': "0x120",
    'fluence_masterqueue_pools{masterqueue="m",state="Active",pod="m"}': "2x120",
    'fluence_masterqueue_pools{masterqueue="m",state="Silent",pod="m"}': "1x120",
    'fluence_masterqueue_pools{masterqueue="new",state="Active",pod="m"}': "0x120",
    'fluence_masterqueue_pools{masterqueue="new",state="Silent",pod="m"}': "0x120",
    'fluence_masterqueue_last_message_seconds{masterqueue="m",pool="a",pod="m"}': "12x120",
    'fluence_masterqueue_last_message_seconds{masterqueue="m",pool="b",pod="m"}': "5000x120",
    'fluence_masterqueue_messages_total{subject="s",result="taken",pod="m"}': "0+4x120",
    'fluence_masterqueue_messages_total{subject="s",result="unknown",pod="m"}': "0+4x120",
    'fluence_masterqueue_messages_total{subject="s",result="refused",pod="m"}': "9x120",
    'fluence_masterqueue_applies_total{kind="ClusterQueue",result="changed",pod="m"}': "0+4x120",
    'fluence_masterqueue_applies_total{kind="ClusterQueue",result="error",pod="m"}': "9x120",
}
"""Series by minutes of a healthy cluster with old faults."""
FAULTS: dict[str, dict[str, str | None]] = {
    "FluenceNoLeader": {'fluence_leader{pod="a"}': "1x60 0x60"},
    "FluenceTwoLeaders": {'fluence_leader{pod="b"}': "0x60 1x60"},
    "FluenceNoStandby": {'fluence_leader{pod="b"}': None},
    "FluenceStuck": {'fluence_cycles_total{result="ok",pod="a"}': "0+60x60 3600x60"},
    "FluenceCyclesFail": {'fluence_cycles_total{result="error",pod="a"}': "4x105 5x15"},
    "FluenceNothingFits": {'fluence_pods_total{result="scheduled",pod="a"}': "70x120"},
    "FluenceAttemptsFail": {'fluence_groups_total{result="timeout",pod="a"}': "0+6x120"},
    "FluenceCannotBind": {'fluence_bind_errors_total{code="403",pod="a"}': "0+60x120"},
    "FluenceEvictsGangs": {'fluence_gang_evictions_total{pod="a"}': "7x105 8x15"},
    "FluenceBlind": {'fluence_watch_lag_seconds_bucket{le="0.1",pod="a"}': "0+30x120"},
    "FluenceWatchBreaks": {'fluence_watch_ends_total{kind="Pod",why="ClusterUnavailable",pod="a"}': "0+2x120"},
    "FluenceMissesEvents": {'fluence_missed_events_total{kind="Node",pod="a"}': "_x105 1x15"},
    "FluenceLeaseAtRisk": {'fluence_lease_renewal_failures_total{pod="a"}': "0+3x120"},
    "FluenceReportsDropped": {'fluence_reports_dropped_total{kind="event",why="Full",pod="a"}': "0+60x120"},
    "FluencePluginSlow": {'fluence_hook_seconds_total{plugin="fluence",pod="a"}': "0+48x120"},
    "FluenceDevicesGone": {'fluence_missing_parts{pod="a"}': "0x60 2x60"},
    "FluenceConfigStale": {'fluence_resources_last_load_successful{pod="a"}': "1x60 0x60"},
    "FluenceGraphDrifts": {'fluence_graph_drift_pods{kind="ended",pod="a"}': "0x60 1x60"},
    "FluenceWebhookDown": {'up{job="fluence-webhook",pod="w"}': "1x60 0x60"},
    "FluenceWebhookNotTrusted": {'fluence_webhook_trusted{pod="w"}': "1x60 0x60"},
    "FluenceWebhookCertificateEnds": {
        'fluence_webhook_certificate_expiry_timestamp_seconds{pod="w"}': "600000x120",
    },
    "FluenceWebhookCertificateUnchecked": {
        'fluence_webhook_certificate_checks_total{result="failed",pod="w"}': "0+1x120",
    },
    "FluenceWebhookFails": {'fluence_webhook_requests_total{result="failed",pod="w"}': "0+60x120"},
    "FluenceWebhookConfigStale": {'fluence_webhook_config_last_load_successful{pod="w"}': "1x60 0x60"},
    "FluenceDevicePluginDown": {'up{job="fluence-device-plugin",node="n"}': "1x60 0x60"},
    "FluenceDevicesNotAdvertised": {'fluence_device_plugin_advertised{type="qpu",node="n"}': "1x60 0x60"},
    "FluenceDevicePluginRefused": {
        'fluence_device_plugin_registrations_total{type="qpu",result="refused",node="n"}': "1x105 2x15",
    },
    "FluenceDevicePluginConfigStale": {'fluence_device_plugin_config_last_load_successful{node="n"}': "1x60 0x60"},
    "FluenceMasterQueuesUnkept": {'fluence_leader{job="fluence-master-queue",pod="m"}': "1x60 0x60"},
    "FluencePoolsSilent": {'fluence_masterqueue_pools{masterqueue="m",state="Active",pod="m"}': "2x60 0x60"},
    "FluencePoolsUnheard": {'fluence_masterqueue_connected{connector="nats.nats:4222",pod="m"}': "1x60 0x60"},
    "FluencePoolMessagesRefused": {
        'fluence_masterqueue_messages_total{subject="s",result="refused",pod="m"}': "0+2x120"
    },
    "FluenceQueueWritesFail": {
        'fluence_masterqueue_applies_total{kind="ClusterQueue",result="error",pod="m"}': "0+2x120"
    },
}
"""The changed series for which an alert fires; None: the series is absent."""
_WORDS = re.compile(r'"[^"]*"|\b[a-zA-Z_:][\w:]*')
_MEASURED_ELSEWHERE = {"up"}
_TOTALS = {"fluence_recoveries_total", "fluence_recovered_pods_total"}
"""Counters that grow only at a start."""


def rules() -> list[dict[str, Any]]:
    return [rule for group in the("PrometheusRule", MONITORING)["spec"]["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    (text,) = the("ConfigMap", MONITORING)["data"].values()
    return dict(json.loads(text))


def targets() -> list[str]:
    """Every expression in the dashboard."""
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def write_rules(folder: Path, spec: Manifest | None = None) -> Path:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(spec or the("PrometheusRule", MONITORING)["spec"]))
    return path


def case(changes: dict[str, str | None], firing: list[str]) -> dict[str, Any]:
    """A promtool test: with these changed series, exactly these alerts fire at the end."""
    series = {name: values for name, values in (WELL | changes).items() if values is not None}
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing]
    return {
        "name": " ".join(firing) or "all is well",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": "110m", "exp_samples": samples}],
    }


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in said("promtool", "check", "rules", "--lint-fatal", write_rules(tmp_path))


def test_each_alert_fires_alone_for_its_fault_and_none_in_a_healthy_cluster(tmp_path: Path) -> None:
    cases = [case({}, []), *(case(changes, [name]) for name, changes in FAULTS.items())]
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump(
        {"rule_files": [write_rules(tmp_path).name], "evaluation_interval": "1m", "tests": cases}))  # fmt: skip
    said("promtool", "test", "rules", file)
    assert sorted(FAULTS) == sorted(rule["alert"] for rule in rules())


def test_an_alert_fires_if_no_series_exists(tmp_path: Path) -> None:
    nothing = dict.fromkeys(WELL)
    file = tmp_path / "tests.yaml"
    tests = [case(dict(nothing), ["FluenceNoLeader", "FluenceWebhookDown"])]
    file.write_text(yaml.safe_dump({"rule_files": [write_rules(tmp_path).name], "tests": tests}))
    said("promtool", "test", "rules", file)


def test_an_alert_names_its_object_its_fault_and_its_runbook(tmp_path: Path) -> None:
    labels = {"severity": "warning", "type": "qpu", "node": "n"}
    annotations = {
        "summary": "qpu is not advertised on n.",
        "description": "The kubelet does not list the devices of this type; pods that request one do not fit there.",
        "runbook_url": RUNBOOK + "fluencedevicesnotadvertised",
    }
    name = "FluenceDevicesNotAdvertised"
    tested = case(FAULTS[name], [name]) | {"alert_rule_test": [
        {"alertname": name, "eval_time": "110m", "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}]}
    ]}  # fmt: skip
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [write_rules(tmp_path).name], "tests": [tested]}))
    said("promtool", "test", "rules", file)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_has_a_severity_texts_and_a_runbook_entry(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == RUNBOOK + rule["alert"].lower()
    headings = re.findall(r"^#+ (.*)$", (DOCS / "docs/how-to/alerts.md").read_text(), re.MULTILINE)
    assert rule["alert"] in headings  # its anchor is the heading in lower case


def test_the_runbook_is_a_page_of_the_site_of_the_last_release() -> None:
    site = re.search(r"^site_url: (\S+)$", (DOCS / "mkdocs.yml").read_text(), re.MULTILINE)
    assert site is not None
    assert f"{site[1]}latest/how-to/alerts.html#" == RUNBOOK
    assert "use_directory_urls: false" in (DOCS / "mkdocs.yml").read_text()
    assert 'mike deploy --update-aliases "$VERSION" latest' in (DOCS / ".github/workflows/release.yaml").read_text()


def test_promtool_accepts_the_dashboards_expressions(tmp_path: Path) -> None:
    records = [{"record": f"fluence:target{number}", "expr": expression.replace("$__rate_interval", "5m")}
               for number, expression in enumerate(targets())]  # fmt: skip
    path = write_rules(tmp_path, {"groups": [{"name": "dashboard", "rules": records}]})
    assert f"{len(records)} rules found" in said("promtool", "check", "rules", path)


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics in an expression: words other than labels, functions and keywords."""
    plain = re.sub(r"\{[^}]*\}|\b(by|without|on)\s*\([^)]*\)|\[[^\]]*\]", " ", expression)
    words = [word for word in _WORDS.findall(plain) if not re.search(rf"\b{re.escape(word)}\s*\(", plain)]
    return {word for word in words if word not in ("and", "or", "unless", "offset", "sum", "max", "min", "count")}


def test_metrics_in_is_only_the_metric_names_of_an_expression() -> None:
    text = 'sum by (le) (rate(fluence_a_bucket{why!~"x|y"}[5m])) > 0 and count(b) or vector(0) - time()'
    assert metrics_in(text) == {"fluence_a_bucket", "b"}


def measured() -> dict[str, str]:
    """Every metric with its type; the tests of the reference check the scheduler's list."""
    text = (DOCS / "docs" / "reference" / "metrics.md").read_text()
    found = dict(re.findall(r"^\| `(fluence_\w+)` \| (\w+) \|", text, re.MULTILINE))
    device_plugin = DevicePluginMetrics("")
    device_plugin.add_type("qpu")
    device_plugin.follow(lambda: [TypeState("qpu", 1, 1, None)])
    webhook = WebhookMetrics()
    FluxionHandler(HandlerSettings(scheduler_names=frozenset({"fluence"}), resources=None, registry=webhook.registry))
    for body in (device_plugin.exposition()[0], webhook.exposition()[0]):
        found |= dict(re.findall(r"^# TYPE (\w+) (\w+)$", body.decode(), re.MULTILINE))
    return found


def test_each_expression_uses_existing_metrics_and_the_growth_of_counters() -> None:
    known = measured()
    series = {name: kind for name, kind in known.items() if kind != "histogram"}
    series |= {name + end: "counter" for name, kind in known.items() if kind == "histogram"
               for end in ("_bucket", "_sum", "_count")}  # fmt: skip
    for expression in [*(rule["expr"] for rule in rules()), *targets()]:
        names = metrics_in(expression)
        assert names, expression
        assert names <= series.keys() | _MEASURED_ELSEWHERE, expression
        counters = {name for name in names if series.get(name) == "counter"} - _TOTALS
        assert all(re.search(name + r"(\{[^}]*\})?\[", expression) for name in counters), expression


def test_the_dashboard_shows_nearly_all_metrics() -> None:
    asked = {name for expression in targets() for name in metrics_in(expression)}
    asked |= {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    unshown = {name for name in measured() if name not in asked and "process_" not in name and "build_info" not in name}
    assert unshown <= {"fluence_device_plugin_streams"}


def test_grafana_can_read_the_dashboard() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["title"]
    (variable,) = dashboard()["templating"]["list"]
    assert {panel["datasource"]["uid"] for panel in panels if panel["type"] != "row"} == {f"${{{variable['name']}}}"}
    assert the("ConfigMap", MONITORING)["metadata"]["labels"]["grafana_dashboard"] == "1"
