"""A command imports only the modules that it needs, because imports dominate its start-up time."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest

from fluence_plugins.env_injection import certificates

ROOT = Path(__file__).parents[3]
QUICKSTART = [str(ROOT / "examples" / "01-quickstart" / name) for name in ("cluster.yaml", "workloads.yaml")]
EXTRAS = {"kubernetes", "grpc", "google.protobuf", "nats", "cryptography"}
MASTER_QUEUE = """\
apiVersion: fluence.flux-framework.org/v1alpha1
kind: SchedulerConfiguration
profiles: [{schedulerName: fluence, plugins: [{name: master-queue}]}]
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: one
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: one, context: {cluster: c, user: u, namespace: science}}]
"""
HEAVY = {"numpy", "pydantic", "rich", "structlog", "asyncio", "fluxion_cy", "kubernetes"}


def printed(code: str, *arguments: str) -> str:
    """The output of a new interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def test_almost_no_module_is_imported_before_main_so_an_early_ctrl_c_shows_no_traceback() -> None:
    loaded = set(printed("import sys; import session_scheduler.cli; print(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("session_scheduler")} == {
        "session_scheduler", "session_scheduler.cli", "session_scheduler.errors",
    }  # fmt: skip
    assert loaded.isdisjoint({*HEAVY, "typer", "pluggy", "dataclasses", "inspect"})


def test_help_imports_nothing_heavy() -> None:
    shown = printed("import sys; from session_scheduler.cli import main; main(['--help']); print(*sys.modules)")
    assert HEAVY.isdisjoint(shown.splitlines()[-1].split())


def test_completion_imports_nothing_heavy() -> None:
    script = """
import os, sys
from session_scheduler.cli import main
os.environ |= {"_FLUENCE_COMPLETE": "complete_bash", "COMP_WORDS": "fluence explain --kube", "COMP_CWORD": "2"}
try:
    main([])
finally:
    print(*sys.modules)
    sys.exit(0)
"""
    shown, modules = printed(script).splitlines()
    assert shown == "--kubeconfig"
    assert (HEAVY - {"pydantic"}).isdisjoint(modules.split())  # typer itself imports it when it reads parameters


def test_a_scheduler_in_a_pod_needs_no_client_library_and_no_extra(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(certificates.make(["one.example"], datetime.now(UTC)).authorities)
    script = f"""
import asyncio, os, pathlib, sys
from session_scheduler.cluster import kube_access
os.environ |= {{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": {str(tmp_path)!r}}}
os.environ.pop("KUBECONFIG", None)
kube_access._ACCOUNT = pathlib.Path({str(tmp_path)!r})
access = asyncio.run(kube_access.load_access(None, None))
from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.registry.registry import Registry
from session_scheduler.sdk import event_loop
from session_scheduler.server.replica import run  # all that `fluence run` loads
Registry(BUILTIN).load_profiles(SchedulerConfig())
print(access.server, sorted({EXTRAS} & set(sys.modules)))
"""
    assert printed(script) == "https://10.0.0.1:443 []\n"


def test_a_command_without_a_live_cluster_does_not_load_client_libraries() -> None:
    heavy = "{'aiohttp', 'kubernetes', 'session_scheduler.cluster.kubernetes'}"
    script = "import session_scheduler.cli.app, session_scheduler.offline.simulate\n" \
             "import session_scheduler.engine.explain, sys\n" \
             f"print(sorted({heavy} & set(sys.modules)))"  # fmt: skip
    assert printed(script) == "[]\n"


def test_a_live_scheduler_imports_only_what_it_runs() -> None:
    script = """
import sys
from session_scheduler.server.replica import run
from session_scheduler.sdk import event_loop
from session_scheduler.builtin import BUILTIN
from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.registry.registry import Registry
Registry(BUILTIN).load_calls(SchedulerConfig())
print(*sys.modules)
"""
    loaded = set(printed(script).split())
    unused = {"aiohttp", "session_scheduler.offline", "session_scheduler.testing", "session_scheduler.cluster.memory",
              "session_scheduler.cluster.manifests", "session_scheduler.cluster.workloads", "unittest", "requests",
              "fluence_plugins.env_injection", "fluence_plugins.device_advertisement", "fluence_plugins.slurm_bridge",
              "fluence_plugins.master_queue"}  # fmt: skip
    assert loaded.isdisjoint(unused | EXTRAS)


def test_a_simulation_imports_nothing_of_the_live_scheduler() -> None:
    script = "import sys; from session_scheduler.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    loaded = set(printed(script, "simulate", *QUICKSTART).splitlines()[-1].split())
    assert loaded.isdisjoint({
        *EXTRAS, "aiohttp", "uvloop", "session_scheduler.server", "session_scheduler.cluster.kubernetes",
        "session_scheduler.sdk.http_server",
    })  # fmt: skip


def test_the_imports_of_a_start_are_never_scanned_for_garbage(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("apiVersion: fluence.flux-framework.org/v1alpha1\nkind: SchedulerConfiguration\n")
    script = "import gc, sys; from session_scheduler.cli import main; main(sys.argv[1:]); " \
             "print(len(gc.get_objects()), gc.get_freeze_count())"  # fmt: skip
    options = ["run", "--config", str(config), "--kubeconfig", str(tmp_path / "missing")]
    scanned, frozen = map(int, printed(script, *options).split())
    assert scanned < frozen / 10


def test_a_simulation_collects_garbage_rarely() -> None:
    script = "import gc, sys; from session_scheduler.cli import main; main(sys.argv[1:]); print(gc.get_threshold())"
    assert printed(script, "simulate", *QUICKSTART).splitlines()[-1] == "(200000, 20, 20)"


def test_a_simulation_imports_no_extra() -> None:
    script = "import sys; from session_scheduler.cli import main; status = main(sys.argv[1:])\n" \
             f"print(status, sorted({EXTRAS} & set(sys.modules)))"  # fmt: skip
    assert printed(script, "simulate", *QUICKSTART).splitlines()[-1] == "1 []"


def test_a_kubeconfig_with_a_token_needs_no_client_library(tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    script = f"""
import asyncio, sys
from session_scheduler.cluster import kube_access
access = asyncio.run(kube_access.load_access({str(config)!r}, None))
print(access.server, kube_access.namespace_of({str(config)!r}, None), sorted({EXTRAS} & set(sys.modules)))
"""
    assert printed(script) == "http://127.0.0.1:1 science []\n"


@pytest.mark.parametrize(
    ("missing", "words", "line"),
    [
        ("nats", "master-queue", "a connection to NATS needs nats, which is not installed; run pip install "
                                 "'fluence-scheduler[master-queue]'"),
        ("nats", "pool publish --pool p --subject s", "'fluence-scheduler[master-queue]'"),
        ("nats", "simulate CLUSTER --config CONFIG", "plugin master-queue (fluence-scheduler VERSION) cannot be "
         "imported: a connection to NATS needs nats, which is not installed; run pip install "
         "'fluence-scheduler[master-queue]'"),
        ("cryptography", "webhook", "the webhook needs cryptography, which is not installed; run pip install "
                                    "'fluence-scheduler[webhook]'"),
        ("grpc", "device-plugin", "the device plugin needs grpc, which is not installed; run pip install "
                                  "'fluence-scheduler[device-plugin]'"),
        ("bokeh", "dashboard", "the dashboard needs bokeh, which is not installed; run pip install "
                               "'fluence-scheduler[dashboard]'"),
        ("kubernetes", "status --kubeconfig CONFIG", "kubeconfig CONFIG needs kubernetes, which is not installed; "
                                                     "run pip install kubernetes"),
    ],
)  # fmt: skip
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    tmp_path: Path, missing: str, words: str, line: str
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(MASTER_QUEUE)
    values = {"CONFIG": str(config), "CLUSTER": QUICKSTART[0], "VERSION": metadata.version("fluence-scheduler")}
    for name, value in values.items():
        words, line = words.replace(name, value), line.replace(name, value)
    script = f"import sys; sys.modules[{missing!r}] = None\n" \
             "from session_scheduler.cli import main; sys.exit(main(sys.argv[1:]))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script, *words.split()], text=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("fluence: ")
    assert done.stderr.endswith(f"{line}\n")
