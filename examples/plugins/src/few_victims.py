"""Preempt validator: no pod is worth the end of many."""

from session_scheduler import PluginArguments, Scenario, Session, hookimpl


class Arguments(PluginArguments):
    most: int = 1


class FewVictims:
    """Refuses scenarios in which more pods end for each one that is placed."""

    name = "few-victims"
    api_version = "2"
    Arguments = Arguments

    def __init__(self, arguments: Arguments) -> None:
        self.most = arguments.most

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_preempt_validator(self.check)

    def check(self, scenario: Scenario) -> str | None:
        if len(scenario.victims) <= self.most * len(scenario.nominated):
            return None
        return f"{len(scenario.victims)} pods would end, {self.most} may"
