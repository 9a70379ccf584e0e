"""The messages are generated from the adjacent definitions."""

import subprocess
import sys
from pathlib import Path

import pytest

from fluence_plugins.device_advertisement import api_pb2

PACKAGE = Path(api_pb2.__file__).parent


@pytest.mark.parametrize("api", ["api", "pod_resources"])
def test_the_committed_messages_equal_the_generated_ones(tmp_path: Path, api: str) -> None:
    source = PACKAGE.relative_to(PACKAGE.parents[1]) / f"{api}.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PACKAGE.parents[1]}", str(source)]
    subprocess.run([*command, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"], check=True, timeout=60)
    for name in (f"{api}_pb2.py", f"{api}_pb2.pyi"):
        assert (tmp_path / source.parent / name).read_text() == (PACKAGE / name).read_text(), name
