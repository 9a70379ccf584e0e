"""`fluence explain`: explains the pending pods of files, a snapshot or a live cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from session_scheduler.config.settings import SchedulerConfig
from session_scheduler.engine.explain import explain_tasks, waiting_tasks
from session_scheduler.errors import InputError
from session_scheduler.model.columns import natural
from session_scheduler.model.groups import Task
from session_scheduler.offline.pod_selector import PodSelector, pod_option, selected
from session_scheduler.offline.simulate import unserved
from session_scheduler.offline.state import ClusterState, open_state, read_state


def explain(files: Sequence[str], *, config: SchedulerConfig, pod: str | None = None) -> dict[str, Any]:
    """Evaluate the pending pods of manifests (paths, directories, "-") or of a snapshot; with `pod` only that one.

    `pod` is namespace/name. Returns the JSON of the command (see `explain_pending`). Raises InputError.
    """

    async def read_and_explain() -> dict[str, Any]:
        return await explain_state(await read_state(files), config, [] if pod is None else [pod_option(pod)])

    return asyncio.run(read_and_explain())


async def explain_state(
    state: ClusterState, config: SchedulerConfig, chosen: Sequence[PodSelector] = ()
) -> dict[str, Any]:
    """Like `explain`, for a state; of the chosen pods, or of all.

    Pods that no profile serves have this as their reason. Their nodes are evaluated separately, as if the first profile
    served them.
    """
    others = {
        one.key: one.spec.scheduler_name for one in state.waiting() if not config.profile(one.spec.scheduler_name)
    }
    pods = {each.key for each in chosen} if all(each.kind == "Pod" for each in chosen) else set()
    answers, found, known = [], list[Task](), list[Task]()
    if not pods or not pods <= others.keys():
        scheduler = await open_state(state, config)
        known = waiting_tasks(scheduler)
        found = [task for task in known if selected(chosen, task)]
        for each in chosen:
            if each.key not in others and not any(each.has(task) for task in found) and each.kind == "Pod":
                raise InputError(each.not_waiting(scheduler.cache.tasks.values(), [*each.objects(known), *others]))
        if found or not chosen:
            answers.append(explain_tasks(scheduler, found))
    if others and (not pods or pods & others.keys()):
        scheduler = await open_state(state.served(others, config.profiles[0].scheduler_name), config)
        known = waiting_tasks(scheduler)
        apart = [task for task in known if task.key in others and selected(chosen, task)]
        if apart:
            answer = explain_tasks(scheduler, apart)
            for one in answer["pods"]:
                one["schedulerName"] = others[f"{one['namespace']}/{one['name']}"]
                one["reason"] = unserved(one["schedulerName"], config)
                one.pop("fitsIf", None)
            answers.append(answer)
        found += apart
    for each in chosen:
        if not any(each.has(task) for task in found):
            remedy = each.remedy(each.objects(known))
            raise InputError(f"{each.written}: no pending pods in namespace {each.key.partition('/')[0]}; {remedy}")
    return _merged(answers)


def _merged(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answers as one, in natural order."""
    if len(answers) == 1:
        return answers[0]
    pods = [pod for answer in answers for pod in answer["pods"]]
    groups = {(group["namespace"], group["name"]): group for answer in answers for group in answer["groups"]}
    seconds: Counter[str] = Counter()
    for answer in answers:
        seconds.update(answer["seconds"])
    pods.sort(key=lambda pod: natural(f"{pod['namespace']}/{pod['name']}"))
    return {"pods": pods, "groups": list(groups.values()), "seconds": dict(seconds)}
