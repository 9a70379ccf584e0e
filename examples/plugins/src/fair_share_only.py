"""Queue shares: who holds queues to what another plugin says they are to have."""

from math import inf

from session_scheduler import Session, hookimpl
from session_scheduler.model.groups import Group, Phase


class FairShareOnly:
    """Refuses groups that would bring their queue above its share, whoever says what that is.

    That is its fair share; for pods that can never be ended again, what it deserves.
    """

    name = "fair-share-only"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        pass

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        def check(group: Group) -> str | None:
            of = session.queue_fair_share if group.preemptible else session.queue_deserved
            has, share = session.queue_allocated(group.queue), of(group.queue)
            if has is None or share is None:
                return None
            if has.get("pods", 0) + len(group.in_phase(Phase.PENDING)) <= share.get("pods", inf):
                return None
            return f"queue {group.queue} already has its share"

        session.add_pre_allocation(check)
