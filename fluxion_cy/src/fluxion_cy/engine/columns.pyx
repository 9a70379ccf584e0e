# cython: language_level=3, boundscheck=False, wraparound=False
"""The resource graph as columns: the fields and the path of a vertex, and its JGF (RFC 4, RFC 40).

The regular fields of a vertex are in one C struct. Values that the columns cannot reproduce exactly are kept
separately, so that `dump()` equals the loaded document.
"""
from libc.stdint cimport int32_t, int64_t

from fluxion_cy.errors import InvalidGraph, shown

cdef int MAX_DEPTH = 200
cdef int MAX_VALUES = 100000

KNOWN_TYPES = ("cluster", "core", "socket", "gpu", "node", "rack", "slot", "xor_slot", "ssd", "storage_node")
cdef object NODE_KEYS = ("id", "metadata")


cdef object thaw(value):
    """A deep copy of a JSON value. Raises InvalidGraph for any other value, and for cyclic or very deep nesting."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    return _thaw(value, 0, [MAX_VALUES])


cdef object _thaw(value, int depth, list room):
    if value is None or type(value) in (str, int, float, bool):
        return value
    room[0] -= 1
    if depth > MAX_DEPTH or room[0] < 0:
        raise InvalidGraph(
            f"graph: a value is nested more than {MAX_DEPTH} levels deep, or contains more than {MAX_VALUES} lists and "
            "mappings")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidGraph(f"graph: expected a string as a key, got {shown(key)}")
        return {key: _thaw(item, depth + 1, room) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_thaw(item, depth + 1, room) for item in value]
    raise InvalidGraph(f"graph: expected a JSON value, got {type(value).__name__}")


cdef class Columns:
    """The columns of one resource graph. Vertices are numbers."""

    def __init__(self):
        self.types, self.type_ids = [], {}
        self.syms, self.sym_ids = [], {}
        self.shapes, self.shape_ids = [], {}
        self.props, self.props_ids = [{}], {(): 0}
        self.edge_shapes, self.edge_shape_ids = [], {}
        self.extras, self.outer, self.node_extras, self.paths, self.path_index = {}, {}, {}, {}, {}
        self.frame = {}
        self._children_by_name = None
        self._links, self._links_version = {}, -1
        self.root = self._plain_edge = self._last_parent = -1
        self.version, self.units = 0, False
        for name in KNOWN_TYPES:
            self.intern_type(name)

    cdef int32_t intern(self, str text):
        cdef object found = self.sym_ids.get(text)
        if found is None:
            found = len(self.syms)
            self.sym_ids[text] = found
            self.syms.append(text)
        return found

    cdef int32_t intern_type(self, str text):
        cdef object found = self.type_ids.get(text)
        if found is None:
            found = len(self.types)
            if found >= 65535:
                raise InvalidGraph(f"graph: type {text!r} exceeds the limit of 65535 distinct types")
            self.type_ids[text] = found
            self.types.append(text)
        return found

    def intern_props(self, value, what):
        """The index of a property set. Keys and values must be strings."""
        if type(value) is not dict:
            raise InvalidGraph(f"{what}: properties must be a mapping, not {shown(value)}")
        for key, item in value.items():
            if type(key) is not str or type(item) is not str:
                raise InvalidGraph(
                    f"{what}: the name and value of a property must be strings, not {shown(key)} and {shown(item)}")
        key = tuple(value.items())
        found = self.props_ids.get(key)
        if found is None:
            found = self.props_ids[key] = len(self.props)
            self.props.append(dict(value))
        return found

    cdef str path_of(self, int32_t v):
        cdef object own = self.paths.get(v)
        if own is not None:
            return own.get("containment", "")
        cdef int32_t parent = self.V[v].parent
        if parent < 0:
            return "/" + self.syms[self.V[v].name]
        return self.path_of(parent) + "/" + self.syms[self.V[v].name]

    def path(self, int32_t v):
        """The containment path of vertex `v`, or "" if it has none."""
        return self.path_of(v)

    def lookup(self, path):
        """The vertices with this containment path: one, or several with different ranks."""
        found = list(self.path_index.get(path, ()))
        if self.root < 0 or not path.startswith("/"):
            return found
        if self._children_by_name is None:
            self._index_names()
        names = path.split("/")[1:]
        level = [-1]
        for name in names:
            symbol = self.sym_ids.get(name)
            if symbol is None:
                return found
            level = [child for above in level for child in self._children_by_name.get((above << 32) | symbol, ())]
        return found + [child for child in level if child not in self.paths]

    cdef _index_names(self):
        cdef Py_ssize_t v
        index = {}
        for v in range(<Py_ssize_t> self.V.size()):
            if not self.V[v].alive or (self.V[v].parent < 0 and v != self.root):
                continue
            key = ((<object> <int64_t> self.V[v].parent) << 32) | self.V[v].name
            known = index.get(key)
            index[key] = (v,) if known is None else (*known, v)
        self._children_by_name = index

    def subtree(self, int32_t v):
        """Vertex `v` and everything below it, parents first."""
        cdef list out = [v]
        cdef Py_ssize_t at = 0
        cdef size_t k
        cdef int32_t u
        while at < len(out):
            u = out[at]
            at += 1
            if self.V[u].inner >= 0:
                for k in range(self.kids[self.V[u].inner].size()):
                    out.append(self.kids[self.V[u].inner][k])
        return out

    def vertices(self):
        """All vertices that are in the graph."""
        cdef Py_ssize_t i
        return [i for i in range(<Py_ssize_t> self.V.size()) if self.V[i].alive]

    def size_of(self, int32_t v):
        """Number of units of vertex `v`."""
        return self.V[v].size

    def rank_of(self, int32_t v):
        """Rank of vertex `v`, or -1 if it has none."""
        return self.V[v].rank

    def type_of(self, int32_t v):
        """Type of vertex `v`."""
        return self.types[self.V[v].type]

    def name_of(self, int32_t v):
        """Name of vertex `v`."""
        return self.syms[self.V[v].name]

    def id_of(self, int32_t v):
        """The metadata id of vertex `v`."""
        return self.V[v].id

    def parent_of(self, int32_t v):
        """Parent of vertex `v`, or -1 for the root."""
        return self.V[v].parent

    def is_down(self, int32_t v):
        """Whether vertex `v` itself is marked down."""
        return bool(self.V[v].down)

    def is_pool(self, int32_t v):
        """Whether vertex `v` is divisible."""
        return bool(self.V[v].pool)

    def props_of(self, int32_t v):
        """Properties of vertex `v` (shared; do not modify them)."""
        return self.props[self.V[v].props]

    def unit_of(self, int32_t v):
        """Unit of measure of vertex `v`, or "" if it has none."""
        return self.syms[self.V[v].unit] if self.V[v].unit >= 0 else ""

    def base_of(self, int32_t v):
        """Basename of vertex `v`."""
        return self.syms[self.V[v].base]

    def kept(self, int32_t v, key):
        """The value of a metadata key that has no column, or None (shared; do not modify it)."""
        found = self.extras.get(v)
        return None if found is None else found.get(key)

    def edge_metadata(self):
        """The metadata of those containment edges that have any, by target (shared; do not modify it)."""
        cdef Edge e
        if self._links_version != self.version:
            self._links, self._links_version = {}, self.version
            for e in self.edges:
                if e.contains:
                    metadata = self.edge_shapes[e.shape].get("metadata")
                    if metadata:
                        self._links[e.target] = metadata
        return self._links

    def set_down(self, int32_t v, bint down):
        """Marks vertex `v` down or up."""
        self.V[v].down = down

    def set_props(self, int32_t v, properties):
        """Replaces the properties of vertex `v`."""
        self.V[v].props = self.intern_props(properties, f"vertex {self.path_of(v)}")
        if v in self.extras:
            self.extras[v].pop("properties", None)

    def outer_id(self, int32_t v):
        """The id of a vertex in the JGF document."""
        found = self.outer.get(v)
        return str(self.V[v].uniq) if found is None else found

    def emit(self, int32_t v, int64_t units, bint exclusive):
        """The vertex in R, as Fluxion's jgf writer writes it."""
        cdef Vertex* x = &self.V[v]
        cdef dict metadata = {"type": self.types[x.type]}
        cdef str base = self.syms[x.base], name = self.syms[x.name]
        if x.base != self.sym_ids.get(metadata["type"], -1):
            metadata["basename"] = base
        if not name.startswith(base) or name != base + str(x.id):
            metadata["name"] = name
        metadata["id"] = x.id
        metadata["rank"] = x.rank
        if x.props:
            metadata["properties"] = dict(self.props[x.props])
        if self.units and x.unit >= 0 and self.syms[x.unit]:
            metadata["unit"] = self.syms[x.unit]
        if exclusive:
            metadata["exclusive"] = True
        if units != 1:
            metadata["size"] = units
        own = self.paths.get(v)
        metadata["paths"] = dict(own) if own is not None else {"containment": self.path_of(v)}
        return {"id": str(x.uniq), "metadata": metadata}

    def emit_edge(self, int32_t v):
        """The containment edge to `v`, in R."""
        return {"source": str(self.V[self.V[v].parent].uniq), "target": str(self.V[v].uniq)}

    cdef dict _metadata(self, int32_t v):
        cdef Vertex* x = &self.V[v]
        cdef dict kept = self.extras.get(v) or {}
        cdef dict out = {}
        cdef str key
        for key in self.shapes[x.shape]:
            if key in kept:
                out[key] = thaw(kept[key])
            elif key == "type":
                out[key] = self.types[x.type]
            elif key == "id":
                out[key] = x.id
            elif key == "rank":
                out[key] = x.rank
            elif key == "paths":
                own = self.paths.get(v)
                out[key] = dict(own) if own is not None else {"containment": self.path_of(v)}
            elif key == "name":
                out[key] = self.syms[x.name]
            elif key == "basename":
                out[key] = self.syms[x.base]
            elif key == "uniq_id":
                out[key] = x.uniq
            elif key == "exclusive":
                out[key] = bool(x.excl_key)
            elif key == "unit":
                out[key] = self.syms[x.unit]
            elif key == "size":
                out[key] = x.size
            elif key == "properties":
                out[key] = dict(self.props[x.props])
            elif key == "status":
                out[key] = int(x.down)
            elif key == "divisible":
                out[key] = bool(x.pool)
        if x.down and "status" not in out:
            out["status"] = 1
        if x.size != 1 and "size" not in out:
            out["size"] = x.size
        if x.props and not out.get("properties"):
            out["properties"] = dict(self.props[x.props])
        return out

    def dump(self):
        """The whole graph as JGF: as loaded, with later changes."""
        cdef Py_ssize_t i
        cdef Edge e
        nodes, edges = [], []
        for i in range(<Py_ssize_t> self.V.size()):
            if not self.V[i].alive:
                continue
            node = {"id": self.outer_id(i), "metadata": self._metadata(<int32_t> i)}
            frame = self.node_extras.get(i)
            if frame is not None:
                node = {key: node[key] if key in NODE_KEYS else thaw(value) for key, value in frame.items()}
            nodes.append(node)
        for i in range(<Py_ssize_t> self.edges.size()):
            e = self.edges[i]
            if not (self.V[e.source].alive and self.V[e.target].alive):
                continue
            edge = thaw(self.edge_shapes[e.shape])
            edge["source"], edge["target"] = self.outer_id(e.source), self.outer_id(e.target)
            edges.append(edge)
        out = thaw(self.frame)
        out["graph"]["nodes"], out["graph"]["edges"] = nodes, edges
        return {key: out[key] for key in self._order}
