"""Reclaim validator: a queue's share is not taken back by ending a part of a gang that the rest cannot do without."""

from session_scheduler import Scenario, Session, hookimpl


class GangsKeptWhole:
    """A gang ends as a whole, or keeps as many pods as it needs, also one with the `disruptionMode` Pod."""

    name = "gangs-kept-whole"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_reclaim_validator(self.check)

    def check(self, scenario: Scenario) -> str | None:
        victims = set(scenario.victims)
        for group in dict.fromkeys(task.group for task in scenario.victims):
            left = sum(task.node is not None and task not in victims for task in group.tasks.values())
            if 0 < left < group.min_count:
                return f"{group.key} would be left with {left} pods, but needs {group.min_count}"
        return None
