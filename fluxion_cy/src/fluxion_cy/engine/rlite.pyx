# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Writes R_lite: the cores and gpus of each node in the last result, as idsets (RFC 22)."""
from libc.stdint cimport int32_t, int64_t
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from fluxion_cy.engine.encoding cimport Names, idset_of
from fluxion_cy.engine.pick cimport Pick


cdef string as_json(string& cores, string& gpus) noexcept nogil:
    """The children of one entry of R_lite as JSON: the key by which entries are merged and sorted."""
    cdef string text
    text.append(b"{")
    if not cores.empty():
        text.append(b'"core": "').append(cores).append(b'"')
    if not gpus.empty():
        if text.size() > 1:
            text.append(b", ")
        text.append(b'"gpu": "').append(gpus).append(b'"')
    return text.append(b"}")


cdef class RLite(Pick):
    """`Pick`, with the result grouped by node."""

    def __init__(self):
        super().__init__()
        self.node_type, self.storage_type = self.type_ids["node"], self.type_ids["storage_node"]
        self.core_type, self.gpu_type = self.type_ids["core"], self.type_ids["gpu"]
        self.names = Names()

    def spell(self):
        """Writes R_lite and the nodelist of the last result. Returns a vertex with a negative id or rank, or -1 for none."""
        cdef int32_t wrong
        self.know_names()
        with nogil:
            wrong = self.write()
        return wrong

    def r_lite(self):
        """R_lite: one entry for all hosts that have the same children. Entries are sorted by their children as JSON."""
        cdef pair[string, Children] entry
        cdef vector[int64_t] ranks
        found = []
        for entry in self.lite:
            children = {}
            if not entry.second.first.first.empty():
                children["core"] = entry.second.first.first.decode()
            if not entry.second.first.second.empty():
                children["gpu"] = entry.second.first.second.decode()
            ranks = entry.second.second
            found.append({"rank": idset_of(ranks).decode(), "children": children})
        return found

    def execution(self, int64_t start, int64_t end):
        """The key `execution` of R version 1 (RFC 20)."""
        nodelist = [] if self.hosts_found.empty() else [self.nodelist.decode("utf-8", "surrogatepass")]
        if not self.with_props:
            return {"R_lite": self.r_lite(), "nodelist": nodelist, "starttime": start, "expiration": end}
        return {"R_lite": self.r_lite(), "nodelist": nodelist, "properties": self._properties(),
                "starttime": start, "expiration": end}

    def _properties(self):
        """For each property, by name, the idset of the ranks that have it."""
        cdef size_t k
        cdef vector[int64_t] found
        cdef dict ranks = {}, texts = {}
        for k in range(self.by_rank.size()):
            for name, value in self.props_of(self.hosts_found[self.by_rank[k].second]).items():
                ranks.setdefault(f"{name}={value}" if value else name, []).append(self.by_rank[k].first)
        for name in sorted(ranks):
            found = ranks[name]
            texts[name] = idset_of(found).decode()
        return texts

    cdef know_names(self):
        """Parses the names that were added since the last call."""
        while <Py_ssize_t> self.names.names.size() < len(self.syms):
            self.names.add(self.syms[self.names.names.size()])

    cdef int32_t write(self) noexcept nogil:
        """Writes the result. Returns the first vertex with a negative id or node with a negative rank, or -1 for none."""
        cdef size_t k, i
        cdef int32_t host, wrong = self.gather_shares()
        cdef string cores, gpus, key
        self.lite.clear()
        self.name_order.clear()
        self.with_props = False
        if wrong >= 0:
            return wrong
        for k in range(self.by_rank.size()):
            i = self.by_rank[k].second
            host = self.hosts_found[i]
            self.with_props = self.with_props or self.V[host].props != 0
            self.name_order.push_back(self.V[host].name)
            cores, gpus = idset_of(self.shares[i].first), idset_of(self.shares[i].second)
            key = as_json(cores, gpus)
            if not self.lite.count(key):
                self.lite[key].first = pair[string, string](cores, gpus)
            self.lite[key].second.push_back(self.by_rank[k].first)
        self.nodelist = self.names.hostlist(self.name_order)
        return -1

    cdef int32_t host_above(self, int32_t v) noexcept nogil:
        v = self.V[v].parent
        while v >= 0 and self.V[v].type != self.node_type and self.V[v].type != self.storage_type:
            v = self.V[v].parent
        return v

    cdef size_t share_of(self, int32_t host) noexcept nogil:
        """The index of a node's share, which is added if necessary. The vertices below one node are usually adjacent."""
        cdef size_t new = self.shares.size()
        if new > 0 and self.hosts_found[new - 1] == host:
            return new - 1
        if self.place.count(host):
            return self.place[host]
        self.place[host] = new
        self.hosts_found.push_back(host)
        self.by_rank.push_back(pair[int64_t, int32_t](self.V[host].rank, <int32_t> new))
        self.shares.resize(new + 1)
        return new

    cdef int32_t gather_shares(self) noexcept nogil:
        """Collects ids by node. Returns the first vertex with a negative id or node with a negative rank, or -1 for none."""
        cdef size_t k, i
        cdef int32_t v, host, kind
        self.shares.clear()
        self.hosts_found.clear()
        self.by_rank.clear()
        self.place.clear()
        for k in range(self.result.size()):
            v = self.result[k].vertex
            kind = self.V[v].type
            if kind != self.core_type and kind != self.gpu_type:
                continue
            host = self.host_above(v)
            if host < 0:
                continue
            if self.V[host].rank < 0:
                return host
            if self.V[v].id < 0:
                return v
            i = self.share_of(host)
            if kind == self.core_type:
                self.shares[i].first.push_back(self.V[v].id)
            else:
                self.shares[i].second.push_back(self.V[v].id)
        sort(self.by_rank.begin(), self.by_rank.end())
        return -1
