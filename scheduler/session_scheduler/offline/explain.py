"""Explains the pending pods of files, of a snapshot or of a live cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import explain_pending, explain_tasks, waiting_tasks
from session_scheduler.model.columns import natural
from session_scheduler.offline.state import ClusterState, open_state, read_state


def explain(files: Sequence[str], *, config: SchedulerConfig, pod: str | None = None) -> dict[str, Any]:
    """Evaluate the pending pods of manifests (paths, directories, "-") or of a snapshot among them, or the one of that
    namespace/name.

    Returns the JSON of the command (see `explain_pending`). Raises InputError.
    """

    async def read_and_explain() -> dict[str, Any]:
        return await explain_state(await read_state(files), config, pod)

    return asyncio.run(read_and_explain())


async def explain_state(state: ClusterState, config: SchedulerConfig, pod: str | None = None) -> dict[str, Any]:
    """As `explain`, for a state that was read.

    Pods of other schedulers are evaluated apart, as if the first profile served them: its own pods do not see them.
    """
    others = {
        one.key: one.spec.scheduler_name for one in state.waiting() if not config.profile(one.spec.scheduler_name)
    }
    answers = []
    if pod not in others:
        answers.append(explain_pending(await open_state(state, config), pod))
    if others and (pod is None or pod in others):
        scheduler = await open_state(state.served(others, config.profiles[0].scheduler_name), config)
        asked = {pod} if pod else others
        answer = explain_tasks(scheduler, [task for task in waiting_tasks(scheduler) if task.key in asked])
        for one in answer["pods"]:
            one["schedulerName"] = others[f"{one['namespace']}/{one['name']}"]
        answers.append(answer)
    return _together(answers)


def _together(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer of several, in the order of one."""
    if len(answers) == 1:
        return answers[0]
    pods = [pod for answer in answers for pod in answer["pods"]]
    groups = {(group["namespace"], group["name"]): group for answer in answers for group in answer["groups"]}
    seconds: Counter[str] = Counter()
    for answer in answers:
        seconds.update(answer["seconds"])
    pods.sort(key=lambda pod: natural(f"{pod['namespace']}/{pod['name']}"))
    return {"pods": pods, "groups": list(groups.values()), "seconds": dict(seconds)}
