"""The cores and gpus of a result by node (compiled)."""

from fluxion_cy._pick import Pick

class Hosts(Pick):
    """Picking, with what was picked by node."""

    def by_host(self) -> tuple[list[tuple[int, int, str, str]], int]: ...
