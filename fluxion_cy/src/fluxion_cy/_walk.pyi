"""The match itself (compiled)."""

from fluxion_cy._index import Index

class Walk(Index):
    """An index with a matching walk."""

    node_only: bool
