#!/usr/bin/env python3
"""A case file from what the oracle was asked and answered. usage: join_case.py IN.json ANSWERS.jsonl CASE.json.gz"""

import gzip
import json
import sys
from pathlib import Path

asked, answered, case = map(Path, sys.argv[1:4])
content = json.loads(asked.read_text())
content["expect"] = {}
for line in answered.read_text().splitlines():
    answer = json.loads(line)
    expected = {"feasible": answer["feasible"], "failed": answer.get("failed", {}), "scores": answer.get("scores", {})}
    if "reasons" in answer:
        expected["reasons"] = answer["reasons"]
    for more in ("aborts", "allocations"):
        if more in answer:
            expected[more] = answer[more]
    if "error" in answer:
        expected["error"] = answer["error"]
    content["expect"][answer["pod"]] = expected
case.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
