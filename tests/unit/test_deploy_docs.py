"""What the pages about deploying name is there: files, sections, values of the chart, objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..tools.deploying import CHART, DEPLOY, IMAGE, manifests, the

ROOT = DEPLOY.parent
PAGES = ("docs/how-to/deploy.md", "docs/how-to/deploy-a-plugin.md", "docs/how-to/upgrade.md", "docs/how-to/migrate.md",
         "docs/how-to/alerts.md",
         "docs/how-to/place-pods-by-slurm.md", "docs/how-to/queue-remote-pools.md", "docs/reference/master-queue.md",
         "docs/how-to/dashboard.md", "deploy/README.md", "SECURITY.md")  # fmt: skip
EVERY = pytest.mark.parametrize("page", PAGES)
FILES = ("queues.yaml", "fluence.yaml", "fluence-resources.yaml", "device-plugin.yaml", "options/coordination.yaml",
         "options/fencing.yaml", "options/go-compatible.yaml", "options/gpu-device-plugin.yaml",
         "options/numa.yaml", "options/reserved-gpus.yaml", "options/master-queue.yaml", "options/monitoring.yaml",
         "options/slurm-bridge.yaml", "options/dashboard.yaml")  # fmt: skip


def text(page: str) -> str:
    return (ROOT / page).read_text()


def anchors(path: Path) -> set[str]:
    """The names of a page's sections, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY
def test_each_link_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", text(page)):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@EVERY
def test_each_file_that_is_named_is_there(page: str) -> None:
    for name in re.findall(r"(?<![\w/])((?:deploy|examples)/[\w./-]*\w)", text(page)):
        assert (ROOT / name).exists(), name


def value(values: dict[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found[part]
    return found


def test_each_value_of_the_chart_that_is_named_is_one_with_the_default_that_is_told() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    page = text("docs/how-to/deploy.md")
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \| `?([^`|]+)`? \|", page, re.MULTILINE)
    reported = {key: default for keys, default in rows for key in re.findall(r"`([\w.]+)`", keys)
            if key.split(".")[0] in values}  # fmt: skip
    assert {"webhook.failurePolicy", "capacity", "policies.enabled", "fencing.enabled"} <= reported.keys()
    for key, default in reported.items():
        if isinstance(expected := value(values, key), bool | int) and "replicas" not in key:
            assert yaml.safe_load(default) == expected, key
    for key in re.findall(r"--set(?:-file)? ([\w.]+)=", page + text("docs/how-to/deploy-a-plugin.md")):
        assert key.startswith(("config.", "pluginArguments.")) or value(values, key) is not None, key


def test_what_is_listed_as_there_is_there() -> None:
    made = {(each["kind"], each["metadata"]["name"]) for name in FILES for each in manifests(name)}
    page = text("docs/how-to/deploy.md")
    for kind in ("ConfigMap", "DaemonSet"):
        for name in re.findall(rf"{kind} `([\w-]+)`", page):
            assert (kind, name) in made
    assert {("Deployment", "fluence"), ("Deployment", "fluence-webhook"), ("Service", "fluence-metrics")} <= made
    secret = "fluence-webhook-tls"
    (role,) = [each for each in manifests("fluence.yaml")
               if each["kind"] == "Role" and each["metadata"]["name"] == "fluence-webhook"]  # fmt: skip
    assert secret in page
    assert [secret] in [rule.get("resourceNames") for rule in role["rules"]]


def test_the_manifests_in_which_to_set_another_image_are_complete() -> None:
    (line,) = re.findall(r"^- the manifests that you apply: ((?:.+\n)+)", text("docs/how-to/deploy.md"), re.MULTILINE)
    twice, once = line.split("once each in")
    assert twice.startswith("twice in")
    listed = {name.removeprefix("deploy/"): times
              for times, names in ((2, twice), (1, once)) for name in re.findall(r"`([^`]+)`", names)}  # fmt: skip
    files = [*DEPLOY.glob("*.yaml"), *DEPLOY.glob("options/*.yaml")]
    counts = {str(file.relative_to(DEPLOY)): file.read_text().count(f"image: {IMAGE}\n") for file in files}
    assert listed == {name: times for name, times in counts.items() if times}


def test_a_plugin_is_built_upon_the_image_and_rolled_out_into_the_scheduler() -> None:
    page = text("docs/how-to/deploy-a-plugin.md")
    dockerfile, wheel = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)
    assert re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE) == [IMAGE, IMAGE]
    (folder,) = set(re.findall(r"COPY --from=build (\S+) ", dockerfile))
    assert folder == "/opt/fluence"
    assert f"--python {folder}/bin/python install" in dockerfile
    assert f"COPY --from=build {folder} {folder}" in (DEPLOY / "Dockerfile").read_text()
    copied, *unpacked = re.findall(r"\S+\.whl", wheel)
    assert unpacked == [f"/tmp/{Path(copied).name}"]  # the two lines replace those that are not FROM and USER
    assert f"`python -m pip wheel --no-deps -w {Path(copied).parent} .`" in page
    (container,) = the("Deployment")["spec"]["template"]["spec"]["containers"]
    named = re.findall(r"set image deployment/fluence ([\w-]+)=", page)
    assert {*named} == {container["name"]}
    assert the("ConfigMap")["data"].keys() == {"config.yaml"}
    documents = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (kustomization,) = [one for one in documents if one["kind"] == "Kustomization"]
    assert all((ROOT / name.removeprefix("fluence/")).is_dir() for name in kustomization["resources"])
    assert [one["name"] for one in kustomization["images"]] == [IMAGE.partition(":")[0]]
