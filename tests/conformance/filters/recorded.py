"""The recorded answers of kube-scheduler."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def content(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return loaded
