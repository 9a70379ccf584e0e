"""What a single vertex has to do with a request (compiled)."""

from fluxion_cy._index import Index

class Admit(Index):
    """An index, with what decides whether a vertex comes into question."""

    node_only: bool
