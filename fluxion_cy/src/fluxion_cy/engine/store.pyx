# cython: language_level=3, boundscheck=False, wraparound=False
"""Reads a JGF into columns, adds and removes vertices, and orders them."""
from cython.operator cimport dereference as deref
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.columns cimport ChildKey, Columns, Edge, Vertex, thaw

import errno as _errno
import marshal
import re

from fluxion_cy.errors import InvalidGraph, shown

cdef uint64_t MAX_WEIGHT = 0xFFFFFFFFFFFFFFFF
cdef int64_t MAX_UNITS = 1 << 62
cdef int MAX_DEPTH = 200

cdef frozenset KNOWN_KEYS = frozenset((
    "type", "basename", "name", "id", "uniq_id", "rank", "exclusive", "unit", "size", "paths", "properties",
    "status", "divisible"))
cdef object NODE_KEYS = ("id", "metadata")
_digits = re.compile(r"(\d+)")
_tail = re.compile(r"(\d+)$")
_no_host = re.compile(r"[\x00-\x20\x7f\[\],]|^$")  # not valid in a hostlist (RFC 29)


def natural_key(text):
    """A key that sorts `node2` before `node10`."""
    return tuple((0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part) for part in _digits.split(text))


cdef int64_t as_int(object value, str outer, str key, int64_t low, int64_t high) except? -2:
    if type(value) is not int:
        raise InvalidGraph(f"vertex {outer!r}: {key} must be an integer, not {shown(value)}")
    if value < low or value > high:
        raise InvalidGraph(f"vertex {outer!r}: {key}: expected a whole number from {low} to {high}, got {shown(value)}")
    return value


cdef class Store(Columns):
    """The columns of one resource graph: `load` fills them, `add` extends them, `remove` drops vertices."""

    def load(self, document):
        """Reads a whole JGF document (a mapping with `graph`)."""
        nodes, edges = self._parts(document)
        self._keep_frame(document)
        self._extend(nodes, edges, {})
        self._check_root()

    cdef _finish(self, dict document, list raw_paths):
        """Completes `load` after the vertices and edges have been appended. `document` is the rest of the JGF."""
        self._keep_frame(document)
        self._settle(0, 0, raw_paths)
        self._check_root()

    cdef _keep_frame(self, document):
        self.frame = thaw({key: value for key, value in document.items() if key != "graph"})
        self.frame["graph"] = thaw(
            {key: ([] if key in ("nodes", "edges") else value) for key, value in document["graph"].items()})
        self._order = list(document)

    cdef _check_root(self):
        if self.root < 0:
            raise InvalidGraph("graph: no vertex is the root; give the root a containment path with a single slash")

    cdef _empty(self):
        """Removes the whole graph."""
        Columns.__init__(self)
        self.V.clear()
        self.edges.clear()
        self.kids.clear()
        self.kid_types.clear()
        self.static_desc.clear()
        self.live_desc.clear()
        self.weight.clear()

    def _parts(self, document):
        if not isinstance(document, dict):
            raise InvalidGraph(f"graph: a JGF document must be a mapping, not {type(document).__name__}")
        graph = document.get("graph")
        if not isinstance(graph, dict):
            raise InvalidGraph("graph: 'graph' must be a mapping")
        for key in ("nodes", "edges"):
            if not isinstance(graph.get(key), (list, tuple)):
                raise InvalidGraph(f"graph: 'graph.{key}' must be a list")
        return graph["nodes"], graph["edges"]

    cdef _extend(self, nodes, edges, dict known):
        """Appends vertices and edges; `known` maps JGF ids of the document to existing vertices."""
        cdef Py_ssize_t first = self.V.size(), first_edge = self.edges.size()
        cdef dict ids = dict(known)
        cdef list raw_paths = []
        for node in nodes:
            self._add_vertex(node, ids, raw_paths)
        for edge in edges:
            self._add_edge(edge, ids, first)
        self._settle(first, first_edge, raw_paths)

    cdef _add_vertex(self, node, dict ids, list raw_paths):
        cdef Vertex x
        cdef int32_t v = <int32_t> self.V.size()
        if type(node) is not dict:
            raise InvalidGraph(f"graph.nodes: an entry must be a mapping, not {type(node).__name__}")
        outer = node.get("id")
        if type(outer) is not str:
            raise InvalidGraph(f"graph.nodes: expected a string as an id, got {shown(outer)}")
        if outer in ids:
            raise InvalidGraph(f"vertex {outer!r}: the id is used twice")
        metadata = node.get("metadata")
        if type(metadata) is not dict:
            raise InvalidGraph(f"vertex {outer!r}: metadata must be a mapping")
        extra = self._fill(&x, outer, metadata, raw_paths)
        if extra:
            self.extras[v] = extra
        if outer != str(x.uniq):
            self.outer[v] = outer
        if len(node) != 2 or tuple(node) != NODE_KEYS:
            self.node_extras[v] = thaw({key: (None if key in NODE_KEYS else item) for key, item in node.items()})
        ids[outer] = v
        self.V.push_back(x)

    cdef object _fill(self, Vertex* x, str outer, dict metadata, list raw_paths):
        """Fills the columns. Returns the values that they cannot reproduce."""
        cdef dict extra = None
        cdef int seen = 2
        kind = metadata.get("type")
        if type(kind) is not str or not kind:
            raise InvalidGraph(f"vertex {outer!r}: metadata.type must be a non-empty string")
        x.type = self.intern_type(kind)
        x.parent, x.inner, x.prof, x.order = -1, -1, -1, 0
        x.alive, x.pool, x.excl_key, x.down, x.props = 1, 0, 0, 0, 0
        paths = metadata.get("paths")
        if type(paths) is not dict:
            raise InvalidGraph(f"vertex {outer!r}: metadata.paths must be a mapping")
        raw_paths.append(paths)
        value = metadata.get("uniq_id", metadata)
        if value is metadata:
            try:
                value = int(outer)
            except ValueError:
                raise InvalidGraph(f"vertex {outer!r}: the id is not a number; add uniq_id") from None
        else:
            seen += 1
        x.uniq = as_int(value, outer, "uniq_id", -(1 << 62), 1 << 62)
        name = metadata.get("name", metadata)
        if name is not metadata:
            seen += 1
            if type(name) is not str:
                raise InvalidGraph(f"vertex {outer!r}: name must be a string, not {shown(name)}")
        value = metadata.get("id", metadata)
        if value is not metadata:
            seen += 1
            x.id = as_int(value, outer, "id", -(1 << 62), 1 << 62)
        else:
            x.id = x.uniq
            if kind == "node" and name is not metadata:
                tail = _tail.search(name)
                if tail is not None:
                    x.id = as_int(int(tail.group(1)), outer, "the id at the end of its name", 0, 1 << 62)
        value = metadata.get("basename", metadata)
        if value is not metadata:
            seen += 1
            if type(value) is not str:
                raise InvalidGraph(f"vertex {outer!r}: basename must be a string, not {shown(value)}")
            x.base = self.intern(value)
        else:
            x.base = self.intern(kind)
        x.name = self.intern(self.syms[x.base] + str(x.id) if name is metadata else name)
        value = metadata.get("rank", metadata)
        if value is not metadata:
            seen += 1
            x.rank = as_int(value, outer, "rank", -1, 0x7FFFFFFE)
        else:
            x.rank = -1
        value = metadata.get("size", metadata)
        if value is not metadata:
            seen += 1
            x.size = as_int(value, outer, "size", 0, MAX_UNITS)
        else:
            x.size = 1
        value = metadata.get("exclusive", metadata)
        if value is not metadata:
            seen += 1
            if type(value) is bool:
                x.excl_key = value
            else:
                extra = {"exclusive": thaw(value)}
        x.unit = -1
        value = metadata.get("unit", metadata)
        if value is not metadata:
            seen += 1
            if type(value) is str:
                x.unit = self.intern(value)
            else:
                extra = extra or {}
                extra["unit"] = thaw(value)
        value = metadata.get("properties", metadata)
        if value is not metadata:
            seen += 1
            if value is None:
                extra = extra or {}
                extra["properties"] = None
            else:
                x.props = self.intern_props(value, "vertex " + repr(outer))
        value = metadata.get("status", metadata)
        if value is not metadata:
            seen += 1
            x.down = as_int(value, outer, "status", 0, 1)
        value = metadata.get("divisible", metadata)
        if value is not metadata:
            seen += 1
            if type(value) is not bool:
                raise InvalidGraph(f"vertex {outer!r}: divisible must be true or false, not {shown(value)}")
            x.pool = value
        if seen != len(metadata):
            extra = extra or {}
            for key in metadata:
                if key not in KNOWN_KEYS:
                    if type(key) is not str:
                        raise InvalidGraph(f"vertex {outer!r}: expected a string as a metadata key, got {key!r}")
                    extra[key] = thaw(metadata[key])
        x.shape = self._shape_of(tuple(metadata))
        return extra

    cdef int32_t _shape_of(self, tuple keys) except -1:
        """Interns a sequence of metadata keys."""
        found = self.shape_ids.get(keys)
        if found is None:
            found = self.shape_ids[keys] = len(self.shapes)
            self.shapes.append(keys)
        return found

    cdef _add_edge(self, edge, dict ids, Py_ssize_t first):
        cdef Edge e
        if type(edge) is not dict:
            raise InvalidGraph(f"graph.edges: an entry must be a mapping, not {type(edge).__name__}")
        source, target = edge.get("source"), edge.get("target")
        for end in (source, target):
            if type(end) is not str or end == "" or end not in ids:
                raise InvalidGraph(f"edge {shown(source)} -> {shown(target)}: the graph has no vertex {shown(end)}")
        e.source, e.target = ids[source], ids[target]
        if e.source < first and e.target < first:
            return
        if len(edge) == 2:
            if self._plain_edge < 0 or next(iter(edge)) != "source":
                e.shape, e.contains = self._edge_shape(edge, None), 1
                if next(iter(edge)) == "source":
                    self._plain_edge = e.shape
            else:
                e.shape, e.contains = self._plain_edge, 1
        else:
            metadata = edge.get("metadata", edge)
            subsystem = "containment"
            if metadata is not edge:
                if type(metadata) is not dict:
                    raise InvalidGraph(f"edge {source!r} -> {target!r}: metadata must be a mapping")
                subsystem = metadata.get("subsystem", "containment")
                if type(subsystem) is not str:
                    raise InvalidGraph(f"edge {source!r} -> {target!r}: subsystem must be a string")
            e.shape, e.contains = self._edge_shape(edge, metadata), subsystem == "containment"
        self.edges.push_back(e)

    cdef int32_t _edge_shape(self, dict edge, metadata):
        """Interns an edge without its source and target. Keeps the order of keys."""
        cdef object rest = {key: (None if key in ("source", "target") else item) for key, item in edge.items()}
        try:
            key = marshal.dumps(rest, 4)  # writes shared and cyclic parts as references
        except ValueError:  # nested too deeply, or not a JSON value
            key = None
        found = self.edge_shape_ids.get(key) if key is not None else None
        if found is None:
            found = len(self.edge_shapes)
            self.edge_shapes.append(thaw(rest))
            if key is not None:
                self.edge_shape_ids[key] = found
        return found

    cdef _settle(self, Py_ssize_t first, Py_ssize_t first_edge, list raw_paths):
        """Sets parents, children, root, paths and order of the appended vertices."""
        cdef Py_ssize_t i
        cdef int32_t v, parent
        cdef Edge e
        for i in range(first_edge, <Py_ssize_t> self.edges.size()):
            e = self.edges[i]
            if not e.contains:
                continue
            if e.target < first:
                raise InvalidGraph(f"vertex {self.outer_id(e.target)!r}: it already has a parent")
            if self.V[e.target].parent >= 0:
                raise InvalidGraph(f"vertex {self.outer_id(e.target)!r}: two containment edges lead to it")
            if e.source == e.target:
                raise InvalidGraph(f"vertex {self.outer_id(e.target)!r}: an edge leads from it to itself")
            self.V[e.target].parent = e.source
            self._inner(e.source)
            self.kids[self.V[e.source].inner].push_back(e.target)
        self._check_depth(first)
        self._last_parent = -1
        for i in range(first, <Py_ssize_t> self.V.size()):
            self._settle_paths(<int32_t> i, raw_paths[i - first])
        for i in range(first_edge, <Py_ssize_t> self.edges.size()):
            e = self.edges[i]
            if e.contains and self.V[e.source].pool:
                raise InvalidGraph(f"vertex {self.outer_id(e.source)!r}: a divisible vertex must not have children")
        self._children_by_name = None
        self._check_totals()
        if self.lists_hosts:
            self._check_hosts(first)
        self._check_duplicates(first)
        self.rebuild_order()

    cdef int32_t _inner(self, int32_t v):
        if self.V[v].inner < 0:
            self.V[v].inner = <int32_t> self.kids.size()
            self.kids.push_back(vector[int32_t]())
            self.kid_types.push_back(vector[int32_t]())
            self.static_desc.push_back(vector[int32_t]())
            self.live_desc.resize(self.kids.size())
            self.weight.push_back(MAX_WEIGHT)
        return self.V[v].inner

    cdef _check_depth(self, Py_ssize_t first):
        cdef Py_ssize_t i
        cdef int32_t v
        cdef int depth
        for i in range(first, <Py_ssize_t> self.V.size()):
            depth, v = 0, <int32_t> i
            while v >= 0:
                v = self.V[v].parent
                depth += 1
                if depth > MAX_DEPTH:
                    raise InvalidGraph(
                        f"vertex {self.outer_id(i)!r}: it is more than {MAX_DEPTH} levels deep, or its edges form a cycle")

    cdef _settle_paths(self, int32_t v, given):
        """Sets the paths of a vertex. `given` is a mapping, or only the containment path."""
        cdef bint regular = False
        cdef dict paths = {"containment": given} if type(given) is str else given
        own = paths.get("containment")
        if len(paths) == 1 and type(own) is str and (own.count("/") > 1 or not own.startswith("/")):
            if not self._regular(v, own):
                self.paths[v] = dict(paths)
                self.path_index.setdefault(own, []).append(v)
            return
        for subsystem, path in paths.items():
            if type(path) is not str or type(subsystem) is not str:
                raise InvalidGraph(f"vertex {self.outer_id(v)!r}: paths.{subsystem} must be a string, not {shown(path)}")
        if own is not None and own.count("/") == 1 and own.startswith("/"):
            if self.root >= 0:
                raise InvalidGraph(f"vertex {self.outer_id(v)!r}: its path {own!r} makes it a second root")
            if self.V[v].parent >= 0:
                raise InvalidGraph(f"vertex {self.outer_id(v)!r}: its path {own!r} makes it the root, but an edge leads to it")
            self.root = v
        if len(paths) == 1 and own is not None:
            regular = self._regular(v, own)
        if not regular:
            self.paths[v] = dict(paths)
            if own is not None:
                self.path_index.setdefault(own, []).append(v)

    cdef bint _regular(self, int32_t v, str own):
        """Whether the path consists of the names of the ancestors and of the vertex itself."""
        cdef int32_t parent = self.V[v].parent
        cdef str name = self.syms[self.V[v].name]
        if parent < 0:
            return v == self.root and own == "/" + name and "/" not in name
        if len(own) <= len(name) or not own.endswith(name) or "/" in name:
            return False
        if parent != self._last_parent:
            self._last_parent, self._last_path = parent, self.path_of(parent) + "/"
        return own == self._last_path + name

    cdef _check_totals(self):
        cdef Py_ssize_t i
        totals = {}
        for i in range(<Py_ssize_t> self.V.size()):
            if self.V[i].alive and self.V[i].size > 1000000000:
                kind = self.V[i].type
                totals[kind] = totals.get(kind, 0) + self.V[i].size
                if totals[kind] > MAX_UNITS:
                    raise InvalidGraph(
                        f"vertex {self.outer_id(i)!r}: the sizes of all vertices of type {self.types[kind]!r} add up to "
                        "more than 2**62")

    cdef _check_hosts(self, Py_ssize_t first):
        """Rejects a node that has a rank if the nodelist of R, a hostlist, would split or drop its name."""
        cdef Py_ssize_t i
        cdef int32_t node = self.type_ids["node"], storage = self.type_ids["storage_node"]
        for i in range(first, <Py_ssize_t> self.V.size()):
            if self.V[i].rank < 0 or (self.V[i].type != node and self.V[i].type != storage):
                continue
            if _no_host.search(self.syms[self.V[i].name]):
                raise InvalidGraph(
                    f"vertex {self.outer_id(i)!r}: the name {shown(self.syms[self.V[i].name])} is not valid in the nodelist "
                    "of R; use a name without spaces, commas and brackets, or match_format jgf")

    cdef _check_duplicates(self, Py_ssize_t first):
        """Rejects two vertices with the same path and rank, and two children of one parent with the same uniq_id."""
        cdef Py_ssize_t i, k
        cdef vector[pair[int64_t, int32_t]] keys
        for i in range(<Py_ssize_t> self.V.size()):
            if self.V[i].inner < 0:
                continue
            for which in range(2):
                keys.clear()
                for k in range(<Py_ssize_t> self.kids[self.V[i].inner].size()):
                    v = self.kids[self.V[i].inner][k]
                    keys.push_back(pair[int64_t, int32_t](
                        self.V[v].uniq if which == 0 else (<int64_t> self.V[v].name << 32) | (self.V[v].rank + 1), v))
                sort(keys.begin(), keys.end())
                for k in range(1, <Py_ssize_t> keys.size()):
                    if keys[k].first == keys[k - 1].first and (which == 0 or (
                            keys[k].second not in self.paths and keys[k - 1].second not in self.paths)):
                        what = "uniq_id" if which == 0 else "path and rank"
                        raise InvalidGraph(
                            f"vertex {self.outer_id(keys[k].second)!r}: vertex {self.outer_id(keys[k - 1].second)!r} "
                            f"under the same parent has the same {what}")
        for path, held in self.path_index.items():
            ranks = [self.V[v].rank for v in held]
            if len(set(ranks)) != len(ranks):
                raise InvalidGraph(
                    f"vertex {self.outer_id(held[len(held) - 1])!r}: another vertex has the same path {path!r} and rank")

    def add(self, document):
        """Appends the new vertices of a JGF document. Path and rank identify a vertex. On an error, nothing changes."""
        cdef Py_ssize_t vertices = self.V.size(), edges = self.edges.size(), families = self.kids.size()
        nodes, links = self._parts(document)
        known, fresh = {}, []
        for node in nodes:
            found = self._existing(node)
            if found is None:
                fresh.append(node)
            else:
                known[node["id"]] = found
        root = self.root
        try:
            self._extend(fresh, links, known)
            for i in range(vertices, <Py_ssize_t> self.V.size()):
                if self.V[i].parent < 0:
                    raise InvalidGraph(f"vertex {self.outer_id(i)!r}: no edge leads from the graph to it", _errno.EINVAL)
            self._check_ids(vertices)
        except BaseException:
            self._orphan(families)
            self._truncate(vertices, edges, root)
            raise
        return list(range(vertices, self.V.size()))

    def _orphan(self, Py_ssize_t families):
        """Undoes `_inner` for all but the first `families` vertices that have children."""
        cdef Py_ssize_t i
        for i in range(<Py_ssize_t> self.V.size()):
            if self.V[i].inner >= families:
                self.V[i].inner = -1
        self.kids.resize(families)
        self.kid_types.resize(families)
        self.static_desc.resize(families)
        self.live_desc.resize(families)
        self.weight.resize(families)

    def _check_ids(self, Py_ssize_t first):
        """Rejects a new vertex with the JGF id of another vertex, because `dump` would write that id twice."""
        cdef Py_ssize_t i
        fresh = {self.outer_id(i) for i in range(first, <Py_ssize_t> self.V.size())}
        for i in range(first if fresh else 0):
            if self.V[i].alive and self.outer_id(i) in fresh:
                raise InvalidGraph(
                    f"vertex {self.outer_id(i)!r}: {self.path_of(i)} already has this id; choose another", _errno.EINVAL)

    def _existing(self, node):
        if type(node) is not dict or type(node.get("metadata")) is not dict or type(node.get("id")) is not str:
            return None
        metadata = node["metadata"]
        paths = metadata.get("paths")
        if type(paths) is not dict or type(paths.get("containment")) is not str:
            return None
        for v in self.lookup(paths["containment"]):
            if self.V[v].rank == metadata.get("rank", -1):
                return v
        return None

    cdef _truncate(self, Py_ssize_t vertices, Py_ssize_t edges, int32_t root):
        cdef Py_ssize_t i
        self._unlink(vertices)
        for i in range(vertices, <Py_ssize_t> self.V.size()):
            for table in (self.extras, self.outer, self.node_extras):
                table.pop(i, None)
            self._forget_path(<int32_t> i)
        self.V.resize(vertices)
        self.edges.resize(edges)
        self.root = root
        self._children_by_name = None
        self.rebuild_order()

    cdef _unlink(self, Py_ssize_t vertices):
        cdef size_t i, k
        cdef vector[int32_t] rest
        for i in range(<size_t> vertices):
            if self.V[i].inner < 0:
                continue
            rest.clear()
            for k in range(self.kids[self.V[i].inner].size()):
                if self.kids[self.V[i].inner][k] < vertices:
                    rest.push_back(self.kids[self.V[i].inner][k])
            self.kids[self.V[i].inner] = rest

    cdef _forget_path(self, int32_t v):
        own = self.paths.pop(v, None)
        if own is not None and "containment" in own:
            held = self.path_index.get(own["containment"], [])
            if v in held:
                held.remove(v)
            if not held:
                self.path_index.pop(own["containment"], None)

    def remove(self, int32_t v):
        """Removes `v` and everything below it from the graph. Returns the removed vertices."""
        cdef size_t k
        cdef int32_t u, parent = self.V[v].parent
        cdef vector[int32_t] rest
        gone = self.subtree(v)
        for k in range(self.kids[self.V[parent].inner].size()):
            u = self.kids[self.V[parent].inner][k]
            if u != v:
                rest.push_back(u)
        self.kids[self.V[parent].inner] = rest
        for u in gone:
            self.V[u].alive = 0
            self._forget_path(u)
            for table in (self.extras, self.outer, self.node_extras):
                table.pop(u, None)
        self._children_by_name = None
        self.rebuild_order()
        return gone

    def rebuild_order(self):
        """Updates the natural order of paths, the types of children and the visiting orders after the shape has changed."""
        cdef Py_ssize_t i, k
        cdef int32_t v, inner
        cdef vector[int64_t] name_rank
        cdef bint live
        self.version += 1
        self.rank_end = 0
        for i in range(<Py_ssize_t> self.V.size()):
            if self.V[i].alive:
                self.rank_end = max(self.rank_end, <int64_t> self.V[i].rank + 1)
        names = sorted(range(len(self.syms)), key=lambda s: natural_key(self.syms[s]))
        name_rank.resize(len(names))
        for i, s in enumerate(names):
            name_rank[<Py_ssize_t> s] = i
        if self.root >= 0:
            self._number(name_rank)
        for i in range(<Py_ssize_t> self.V.size()):
            inner = self.V[i].inner
            if inner < 0 or not self.V[i].alive:
                continue
            self._order_kids(<int32_t> i, inner)

    cdef _number(self, vector[int64_t]& name_rank):
        """Numbers the tree below the root in natural order, without recursion."""
        cdef vector[int32_t] stack
        cdef vector[pair[int64_t, int32_t]] row
        cdef int32_t v, inner, number = 0
        cdef Py_ssize_t k
        stack.push_back(self.root)
        while not stack.empty():
            v = stack.back()
            stack.pop_back()
            self.V[v].order = number
            number += 1
            inner = self.V[v].inner
            if inner < 0:
                continue
            row.clear()
            for k in range(<Py_ssize_t> self.kids[inner].size()):
                row.push_back(pair[int64_t, int32_t](-name_rank[self.V[self.kids[inner][k]].name], self.kids[inner][k]))
            sort(row.begin(), row.end())
            for k in range(<Py_ssize_t> row.size()):
                stack.push_back(row[k].second)

    cdef _order_kids(self, int32_t v, int32_t inner):
        cdef Py_ssize_t k
        cdef int32_t child
        cdef bint live = False
        cdef vector[pair[int64_t, int32_t]] row
        cdef vector[int32_t]* kinds = &self.kid_types[inner]
        kinds.clear()
        self.static_desc[inner].clear()
        self.live_desc[inner].clear()
        for k in range(<Py_ssize_t> self.kids[inner].size()):
            child = self.kids[inner][k]
            live = live or self.V[child].inner >= 0
            if not self._holds(kinds, self.V[child].type):
                kinds.push_back(self.V[child].type)
            row.push_back(pair[int64_t, int32_t](-self.V[child].uniq, child))
        if live:
            for k in range(<Py_ssize_t> row.size()):
                self._place(inner, row[k].second)
            return
        sort(row.begin(), row.end())
        for k in range(<Py_ssize_t> row.size()):
            self.static_desc[inner].push_back(row[k].second)

    cdef bint _holds(self, vector[int32_t]* kinds, int32_t kind) noexcept nogil:
        cdef size_t k
        for k in range(kinds.size()):
            if deref(kinds)[k] == kind:
                return True
        return False

    cdef void _place(self, int32_t inner, int32_t child) noexcept nogil:
        cdef uint64_t weight = MAX_WEIGHT
        if self.V[child].inner >= 0:
            weight = self.weight[self.V[child].inner]
        self.live_desc[inner].insert(
            ChildKey(pair[uint64_t, int64_t](~weight, -self.V[child].uniq), child))
