#!/usr/bin/env python3
"""Adds DeviceTaintRules to a cluster with devices. usage: make_device_cases.py … | add_taint_rules.py SEED > in.json"""

import json
import random
import sys
from typing import Any

R = random.Random(int(sys.argv[1]))
case = json.load(sys.stdin)
specs = [part["spec"] for part in case["resourceSlices"] if part["spec"].get("devices")]


def selector():
    """The driver, pool or device of some slice, in any combination; nothing of one that does not exist."""
    spec, found = R.choice(specs), {}
    for name, value in (("driver", spec["driver"]), ("pool", spec["pool"]["name"]),
                        ("device", R.choice(spec["devices"])["name"])):  # fmt: skip
        if R.random() < 0.6:
            found[name] = value if R.random() < 0.95 else "unknown"
    return found


def rule(name):
    key, effect = R.choice(["broken", "old"]), R.choice(["NoSchedule", "NoSchedule", "NoExecute", "None"])
    spec: dict[str, Any] = {"taint": {"key": key, "effect": effect}}
    if R.random() < 0.5:
        spec["taint"]["value"] = "yes"
    if R.random() < 0.95:
        spec["deviceSelector"] = selector()
    return {"metadata": {"name": name}, "spec": spec}


case["deviceTaintRules"] = [rule(f"rule-{number}") for number in range(R.randint(1, 6))]
json.dump(case, sys.stdout)
