"""What a process imports, which is what it costs to start: only what its command needs."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from fluence_plugins.env_injection import certificates

HEAVY = {"numpy", "pydantic", "rich", "structlog", "asyncio", "fluxion_cy", "kubernetes"}


def printed(code: str, *arguments: str) -> str:
    """What a new interpreter prints."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def test_until_main_runs_next_to_nothing_is_imported_so_that_an_early_ctrl_c_shows_no_traceback() -> None:
    loaded = set(printed("import sys; import session_scheduler.cli; print(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("session_scheduler")} == {
        "session_scheduler", "session_scheduler.cli", "session_scheduler.errors",
    }  # fmt: skip
    assert loaded.isdisjoint({*HEAVY, "typer", "pluggy", "dataclasses", "inspect"})


def test_help_imports_nothing_heavy() -> None:
    shown = printed("import sys; from session_scheduler.cli import main; main(['--help']); print(*sys.modules)")
    assert HEAVY.isdisjoint(shown.splitlines()[-1].split())


def test_a_pod_needs_no_client_library(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(certificates.make(["one.example"], datetime.now(UTC)).authorities)
    script = f"""
import asyncio, os, pathlib, sys
from session_scheduler.cluster import kube_access
os.environ |= {{"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOME": {str(tmp_path)!r}}}
os.environ.pop("KUBECONFIG", None)
kube_access._ACCOUNT = pathlib.Path({str(tmp_path)!r})
access = asyncio.run(kube_access.load_access(None, None))
print(access.server, "kubernetes" in sys.modules)
"""
    assert printed(script) == "https://10.0.0.1:443 False\n"


def test_what_needs_no_live_cluster_does_not_load_its_libraries() -> None:
    heavy = "{'aiohttp', 'kubernetes', 'session_scheduler.cluster.kubernetes'}"
    script = "import session_scheduler.cli.app, session_scheduler.offline.simulate\n" \
             "import session_scheduler.engine.explain, sys\n" \
             f"print(sorted({heavy} & set(sys.modules)))"  # fmt: skip
    assert printed(script) == "[]\n"
