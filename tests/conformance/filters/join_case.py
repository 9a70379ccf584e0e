#!/usr/bin/env python3
"""Joins the oracle's input and answers to a case file. usage: join_case.py IN.json ANSWERS.jsonl CASE.json.gz"""

import gzip
import json
import sys
from pathlib import Path


def joined(lines):
    """The expected result of each pod, from the oracle's lines."""
    found = {}
    for line in lines.splitlines():
        answer = json.loads(line)
        expected = {"feasible": answer["feasible"], "failed": answer.get("failed", {})}
        expected["scores"] = answer.get("scores", {})
        for more in ("reasons", "aborts", "allocations", "error"):
            if more in answer:
                expected[more] = answer[more]
        found[answer["pod"]] = expected
    return found


if __name__ == "__main__":
    asked, answered, case = map(Path, sys.argv[1:4])
    content = {**json.loads(asked.read_text()), "expect": joined(answered.read_text())}
    case.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
