"""Run the oracle on the clusters in device_table.

    python -m tests.conformance.filters.make_device_table ORACLE CASES.json.gz [LIST.md]

LIST.md receives the rows for kube-scheduler's cases.
"""

import gzip
import importlib
import json
import subprocess
import sys
from pathlib import Path

from .device_table.builders import CLUSTERS
from .join_case import joined

TOPICS = ("choosing", "alternatives", "pools", "counters", "usable", "shares", "rules", "selectors", "extended")

oracle, cases, *rows = sys.argv[1:]
for topic in TOPICS:
    importlib.import_module(f".device_table.{topic}", __package__)
for content in CLUSTERS.values():
    asked = json.dumps(content)
    answer = subprocess.run([oracle], input=asked, capture_output=True, text=True, check=True)
    content["expect"] = joined(answer.stdout)
text = json.dumps({"clusters": CLUSTERS}, separators=(",", ":"))
Path(cases).write_bytes(gzip.compress(text.encode(), mtime=0))
covered = {case: f"{cluster}/{pod}" for cluster, content in CLUSTERS.items()
           for pod, covers in content["covers"].items() for case in covers}  # fmt: skip
for path in rows:
    Path(path).write_text("".join(f"| {case} | {where} |\n" for case, where in sorted(covered.items())))
