"""Preempt validator: limits the number of pods evicted for each placed pod."""

from session_scheduler import PluginArguments, Scenario, Session, hookimpl


class Arguments(PluginArguments):
    most: int = 1


class FewVictims:
    """Rejects scenarios that evict more than `most` pods for each placed pod."""

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
        return f"{len(scenario.victims)} pods would be evicted; the limit is {self.most} for each placed pod"
