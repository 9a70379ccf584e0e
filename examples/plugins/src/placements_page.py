"""HTTP handler: GET /plugins/placements-page/placements returns the number of pods placed on each node."""

from collections import Counter
from collections.abc import Mapping

from session_scheduler import Event, Session, hookimpl


class PlacementsPage:
    """Counts since the scheduler began; `?node=n1` asks for one node."""

    name = "placements-page"
    api_version = "2"

    def __init__(self, arguments: None) -> None:
        self.placed: Counter[str] = Counter()

    @hookimpl
    def on_session_open(self, session: Session) -> None:
        session.add_event_handler(allocate=lambda event: self.count(event, 1), deallocate=lambda e: self.count(e, -1))
        session.add_http_handler("placements", self.page)

    def count(self, event: Event, by: int) -> None:
        self.placed[event.node] += by

    def page(self, query: Mapping[str, str]) -> Mapping[str, int]:
        return {node: n for node, n in sorted(self.placed.items()) if query.get("node", node) == node}
