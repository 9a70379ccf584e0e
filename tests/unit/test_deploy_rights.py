"""docs/how-to/deploy.md lists each right of each account, and no other."""

from __future__ import annotations

import re

from ..tools.deploying import DEPLOY, NAMESPACE, Manifest, manifests

PAGE = DEPLOY.parent / "docs/how-to/deploy.md"
OPTIONS = (
    "options/coordination.yaml",
    "options/go-compatible.yaml",
    "options/numa.yaml",
    "options/reserved-gpus.yaml",
    "options/slurm-bridge.yaml",
    "options/master-queue.yaml",
    "options/dashboard.yaml",
)
Right = tuple[str, str, str]
"""(account, with the option; resource, with its group, name and mark; verb)"""


def given(file: str) -> set[Right]:
    """The rights in a file of deploy/."""
    objects = manifests(file)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in objects if "rules" in each}
    found = set()
    for binding in objects:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        role = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
        (subject,) = binding["subjects"]
        assert (subject["namespace"], role["metadata"].get("namespace", NAMESPACE)) == (NAMESPACE, NAMESPACE)
        found |= {(subject["name"], resource, verb) for rule in role["rules"]
                  for resource in resources(rule, role) for verb in rule["verbs"]}  # fmt: skip
    return found


def resources(rule: Manifest, role: Manifest) -> list[str]:
    mark = "*" if role["kind"] == "Role" else ""
    return [f"`{group}{'/' if group else ''}{resource}{name and ':'}{name}`{mark}" for group in rule["apiGroups"]
            for resource in rule["resources"] for name in rule.get("resourceNames", [""])]  # fmt: skip


def listed() -> set[Right]:
    """The rights in the table."""
    _, _, table = PAGE.read_text().partition("| account | resource | verbs | for |\n")
    rows = table.partition("\n\n")[0].splitlines()[1:]
    found = set()
    for row in rows:
        account, named, verbs, purpose = (cell.strip() for cell in row.strip("|").split(" | "))
        assert purpose
        found |= {(account.replace("`", ""), resource, verb) for resource in re.findall(r"`[^`]+`\*?", named)
                  for verb in verbs.split(", ")}  # fmt: skip
    return found


def test_the_document_lists_each_right_and_no_other() -> None:
    base = given("fluence.yaml")
    wanted = set(base)
    for file in OPTIONS:
        wanted |= {(f"{account}, with {file}", resource, verb) for account, resource, verb in given(file) - base}
    assert listed() == wanted


def test_no_other_file_gives_rights() -> None:
    files = [str(path.relative_to(DEPLOY)) for path in (*DEPLOY.glob("*.yaml"), *DEPLOY.glob("options/*.yaml"))]
    assert {file for file in files if "RoleBinding" in (DEPLOY / file).read_text()} == {"fluence.yaml", *OPTIONS}
