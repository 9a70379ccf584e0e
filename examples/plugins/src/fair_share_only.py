"""Queue shares: who holds queues to what another plugin says they are to have."""

from math import inf

from session_scheduler import Session, hookimpl
from session_scheduler.model.groups import Group, Phase


class FairShareOnly:
    """Refuses groups that would bring their queue above its fair share, whoever says what that is."""

    name = "fair-share-only"
    api_version = "1"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        def check(group: Group) -> str | None:
            has, share = session.queue_allocated(group.queue), session.queue_fair_share(group.queue)
            if has is None or share is None:
                return None
            if has.get("pods", 0) + len(group.in_phase(Phase.PENDING)) <= share.get("pods", inf):
                return None
            return f"queue {group.queue} has its fair share"

        session.add_pre_allocation(check)
