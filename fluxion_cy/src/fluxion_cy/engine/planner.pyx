# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The allocations and reservations of the graph over time.

Every vertex has the time spans during which jobs hold it exclusively. A vertex that has children or is divisible also
has a time profile: rows in chronological order. Each row gives the number of jobs that hold the vertex or something
below it from that second on, and how much of each pruned type below it they use. A job has a slot, which lists its
entries, children before parents. They are applied to the profiles together.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.store cimport ChildKey, Store

from fluxion_cy.errors import Busy, InvalidGraph

cdef int32_t REFS = 0
cdef int32_t HOLDERS = 1
cdef int32_t FIRST = 2
cdef int MAX_COLUMNS = 16


cdef class Planner(Store):
    """A graph with its allocations and reservations over time."""

    def __init__(self):
        super().__init__()
        self.filters = []
        self.ncols = 0

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def prepare(self):
        """Sets up columns, profiles and totals for the current graph. Keeps all jobs."""
        cdef int32_t v, col
        cdef size_t slot
        cdef size_t count = self.V.size()
        for slot in range(self.held.size()):
            if not self.held[slot].empty():
                self.apply(<int32_t> slot, -1)
        self._choose_columns()
        self.own.resize(count)
        self.row_of.assign(count, -1)
        self.times.clear()
        self.rows.clear()
        for v in range(<int32_t> count):
            self.V[v].prof = -1
            if self.V[v].alive and (self.V[v].inner >= 0 or self.V[v].pool):
                self.V[v].prof = <int32_t> self.times.size()
                self.times.push_back(vector[int64_t]())
                self.rows.push_back(vector[int64_t]())
        self._count_below()
        for slot in range(self.held.size()):
            if not self.held[slot].empty():
                self.apply(<int32_t> slot, 1)

    def _choose_columns(self):
        cdef int32_t v
        cdef set leaves = set()
        wanted = sorted({self.intern_type(kind) for _, kind in self.filters})
        for v in range(<int32_t> self.V.size()):
            if self.V[v].alive and self.V[v].inner < 0:
                leaves.add(self.V[v].type)
        columns = wanted + sorted(leaves.difference(wanted))
        columns = columns[:max(MAX_COLUMNS, len(wanted))] or [self.intern_type("node")]
        self.ncols = <int32_t> len(columns)
        self.width = self.ncols + FIRST
        self.col_type = columns
        self.type_col.assign(len(self.types), -1)
        for i, kind in enumerate(columns):
            self.type_col[<Py_ssize_t> kind] = <int32_t> i
        self.weigh_col.assign(len(self.types), -1)
        for anchor in range(len(self.types)):
            self.weigh_col[<Py_ssize_t> anchor] = self._weighing_column(anchor)

    def _weighing_column(self, anchor):
        """The column of an anchor's last pruned type, or -1: its own filters come first, then those of ALL for other types."""
        mine = sorted(self.type_ids[kind] for at, kind in self.filters if at is not None and self.type_ids.get(at) == anchor)
        every = sorted(self.type_ids[kind] for at, kind in self.filters if at is None and self.type_ids[kind] != anchor)
        order = mine + every
        return self.type_col[<Py_ssize_t> order[len(order) - 1]] if order else -1

    cdef _count_below(self):
        """Adds up the sizes of everything below each vertex, per profile and column."""
        cdef int32_t v, parent, col
        cdef size_t k
        cdef vector[int32_t] order
        self.totals.assign(self.times.size(), vector[int64_t](<size_t> self.ncols, 0))
        if self.root < 0:
            return
        order.push_back(self.root)
        k = 0
        while k < order.size():
            v = order[k]
            k += 1
            if self.V[v].inner >= 0:
                for child in self.kids[self.V[v].inner]:
                    order.push_back(child)
        k = order.size()
        while k > 0:
            k -= 1
            v = order[k]
            parent = self.V[v].parent
            if parent < 0:
                continue
            col = self.type_col[self.V[v].type]
            if col >= 0:
                self.totals[self.V[parent].prof][col] += self.V[v].size
            if self.V[v].inner >= 0:
                for col in range(self.ncols):
                    self.totals[self.V[parent].prof][col] += self.totals[self.V[v].prof][col]

    # ---- queries ---------------------------------------------------------------------------------------------------

    cdef size_t row_at(self, int32_t p, int64_t t) noexcept nogil:
        """Index of the first row later than `t`."""
        cdef size_t low = 0, high = self.times[p].size(), mid
        cdef vector[int64_t]* times = &self.times[p]
        while low < high:
            mid = (low + high) >> 1
            if times[0][mid] <= t:
                low = mid + 1
            else:
                high = mid
        return low

    cdef int64_t used_max(self, int32_t p, int32_t col, int64_t at, int64_t end) noexcept nogil:
        """The peak use of a column within [at, end)."""
        cdef size_t k = self.row_at(p, at)
        cdef size_t n = self.times[p].size()
        cdef int64_t best = 0
        if k > 0:
            k -= 1
        while k < n and self.times[p][k] < end:
            if self.rows[p][k * self.width + col] > best:
                best = self.rows[p][k * self.width + col]
            k += 1
        return best

    cdef bint fits(self, int32_t v, const int64_t* need, int64_t at, int64_t end, bint ever) noexcept nogil:
        """Whether `need` is free below `v` throughout [at, end), or, with `ever`, on the empty graph."""
        cdef int32_t p = self.V[v].prof, col
        cdef size_t k, n
        cdef int64_t* total
        cdef int64_t* row
        if p < 0:
            return True
        total = self.totals[p].data()
        for col in range(self.ncols):
            if need[col] > total[col]:
                return False
        n = self.times[p].size()
        if ever or n == 0:
            return True
        k = self.row_at(p, at)
        if k > 0:
            k -= 1
        while k < n and self.times[p][k] < end:
            row = self.rows[p].data() + k * self.width + FIRST
            for col in range(self.ncols):
                if need[col] > total[col] - row[col]:
                    return False
            k += 1
        return True

    cdef bint busy(self, int32_t v, int64_t at, int64_t end) noexcept nogil:
        """Whether a job holds `v`, or a vertex below it, within [at, end)."""
        cdef size_t k
        if self.V[v].prof >= 0:
            return self.used_max(self.V[v].prof, HOLDERS, at, end) > 0
        for k in range(self.own[v].size()):
            if self.own[v][k].start < end and self.own[v][k].end > at:
                return True
        return False

    cdef int64_t avail(self, int32_t v, int64_t at, int64_t end) noexcept nogil:
        """The units of `v` that are free throughout [at, end)."""
        cdef size_t k
        if self.V[v].pool:
            return self.V[v].size - self.used_max(self.V[v].prof, FIRST, at, end)
        for k in range(self.own[v].size()):
            if self.own[v][k].start < end and self.own[v][k].end > at:
                return 0
        return self.V[v].size

    # ---- changes ---------------------------------------------------------------------------------------------------

    cdef size_t point(self, int32_t p, int64_t t) noexcept nogil:
        """Returns the index of the row at `t`, and inserts the row if necessary."""
        cdef size_t k = self.row_at(p, t)
        cdef int32_t i
        cdef vector[int64_t] row
        if k > 0 and self.times[p][k - 1] == t:
            return k - 1
        self.times[p].insert(self.times[p].begin() + k, t)
        row.assign(<size_t> self.width, 0)
        if k > 0:
            for i in range(HOLDERS, self.width):
                row[i] = self.rows[p][(k - 1) * self.width + i]
        self.rows[p].insert(self.rows[p].begin() + k * self.width, row.begin(), row.end())
        return k

    cdef void drop_point(self, int32_t p, int64_t t) noexcept nogil:
        cdef size_t k = self.row_at(p, t)
        if k == 0 or self.times[p][k - 1] != t:
            return
        k -= 1
        self.rows[p][k * self.width + REFS] -= 1
        if self.rows[p][k * self.width + REFS] > 0:
            return
        self.times[p].erase(self.times[p].begin() + k)
        self.rows[p].erase(self.rows[p].begin() + k * self.width, self.rows[p].begin() + (k + 1) * self.width)

    cdef void shift(self, int32_t p, int64_t start, int64_t end, const int64_t* amounts, int64_t sign) noexcept nogil:
        """Adds (sign 1) or subtracts (-1) one job's amounts over [start, end)."""
        cdef size_t first, last, k
        cdef int32_t i
        cdef int64_t* row
        first = self.point(p, start)
        last = self.point(p, end)
        if sign > 0:
            self.rows[p][first * self.width + REFS] += 1
            self.rows[p][last * self.width + REFS] += 1
        for k in range(first, last):
            row = self.rows[p].data() + k * self.width
            row[HOLDERS] += sign
            for i in range(self.ncols):
                row[FIRST + i] += sign * amounts[i]
        if sign < 0:
            self.drop_point(p, end)
            self.drop_point(p, start)

    cdef void apply(self, int32_t slot, int64_t sign) noexcept nogil:
        """Adds a job's entries to spans and profiles (sign 1), or removes them (-1)."""
        cdef vector[Entry]* entries = &self.held[slot]
        cdef int64_t start = self.starts[slot], end = self.ends[slot], units
        cdef size_t k, j
        cdef int32_t v, parent, row, above, col, i
        cdef Span span
        self.sums.clear()
        for k in range(entries.size()):
            v = entries[0][k].vertex
            units = entries[0][k].units
            row = self.row_of[v]
            if row < 0:
                row = self.row_of[v] = <int32_t> (self.sums.size() / self.ncols)
                self.sums.resize(self.sums.size() + self.ncols, 0)
            if entries[0][k].exclusive:
                if sign > 0:
                    span.start, span.end, span.slot = start, end, slot
                    self.own[v].push_back(span)
                else:
                    for j in range(self.own[v].size()):
                        if self.own[v][j].slot == slot:
                            self.own[v].erase(self.own[v].begin() + j)
                            break
            if self.V[v].pool:
                self.sums[row * self.ncols] = units
            if self.V[v].prof >= 0:
                self.shift(self.V[v].prof, start, end, self.sums.data() + row * self.ncols, sign)
            if self.V[v].pool:
                self.sums[row * self.ncols] = 0
            parent = self.V[v].parent
            if parent < 0:
                continue
            above = self.row_of[parent]
            if above < 0:
                above = self.row_of[parent] = <int32_t> (self.sums.size() / self.ncols)
                self.sums.resize(self.sums.size() + self.ncols, 0)
            for i in range(self.ncols):
                self.sums[above * self.ncols + i] += self.sums[row * self.ncols + i]
            col = self.type_col[self.V[v].type]
            if col >= 0 and entries[0][k].exclusive:
                self.sums[above * self.ncols + col] += units
        for k in range(entries.size()):
            v = entries[0][k].vertex
            self.row_of[v] = -1
            if self.V[v].parent >= 0:
                self.row_of[self.V[v].parent] = -1

    cdef void reweigh(self, int32_t inner, int32_t v, uint64_t weight) noexcept nogil:
        cdef int32_t above = self.V[self.V[v].parent].inner
        self.live_desc[above].erase(ChildKey(pair[uint64_t, int64_t](~self.weight[inner], -self.V[v].uniq), v))
        self.weight[inner] = weight
        self.live_desc[above].insert(ChildKey(pair[uint64_t, int64_t](~weight, -self.V[v].uniq), v))

    cdef void weigh(self, int32_t slot, int64_t now) noexcept nogil:
        """Reorders each vertex that the job uses among its siblings: the emptiest first, by what is free at `now`."""
        cdef size_t k, row
        cdef int32_t v, p, col, inner
        cdef int64_t free
        cdef Weighed mark
        self.weighed[slot].clear()
        for k in range(self.held[slot].size()):
            v = self.held[slot][k].vertex
            inner = self.V[v].inner
            if inner < 0 or self.V[v].parent < 0:
                continue
            col = self.weigh_col[self.V[v].type]
            if col < 0:
                continue
            p = self.V[v].prof
            free = self.totals[p][col]
            row = self.row_at(p, now)
            if row > 0:
                free -= self.rows[p][(row - 1) * self.width + FIRST + col]
            if free == 0 and self.times[p].empty():
                continue
            mark.inner, mark.before, mark.after = inner, self.weight[inner], <uint64_t> free
            self.weighed[slot].push_back(mark)
            self.reweigh(inner, v, <uint64_t> free)

    cdef int32_t take_slot(self, int64_t start, int64_t end) noexcept nogil:
        cdef int32_t slot
        if self.free_slots.empty():
            slot = <int32_t> self.held.size()
            self.held.push_back(vector[Entry]())
            self.weighed.push_back(vector[Weighed]())
            self.starts.push_back(start)
            self.ends.push_back(end)
            return slot
        slot = self.free_slots.back()
        self.free_slots.pop_back()
        self.starts[slot], self.ends[slot] = start, end
        return slot

    def hold(self, entries, int64_t start, int64_t end, int64_t now):
        """Holds (vertex, units, exclusive) triples, children before parents, as one job. Returns its slot.

        Raises Busy, which names the vertex, if a vertex that is to be held exclusively is not free.
        """
        cdef Entry entry
        cdef int32_t slot
        for v, units, exclusive in entries:
            if exclusive and self.avail(v, start, end) < units:
                raise Busy(f"vertex {self.path_of(v)}: a job already holds it")
        slot = self.take_slot(start, end)
        for v, units, exclusive in entries:
            entry.vertex, entry.units, entry.exclusive = v, units, exclusive
            self.held[slot].push_back(entry)
        self.apply(slot, 1)
        self.weigh(slot, now)
        return slot

    def release(self, int32_t slot):
        """Frees everything that a slot holds, and the slot itself."""
        self.apply(slot, -1)
        self.held[slot].clear()
        self.free_slots.push_back(slot)

    def lift(self, int32_t slot):
        """Frees what a slot holds, until `lower` or `discard` is called."""
        self.apply(slot, -1)

    def lower(self, int32_t slot):
        """Undoes `lift`."""
        self.apply(slot, 1)

    def discard(self, int32_t slot):
        """Drops the lifted entries, and frees the slot."""
        self.held[slot].clear()
        self.free_slots.push_back(slot)

    def unweigh(self, int32_t slot):
        """Moves vertices back to the places among their siblings that they had before this job, unless they moved later.

        Call it before `release`.
        """
        cdef size_t k
        cdef int32_t v, inner
        for k in range(self.held[slot].size()):
            v = self.held[slot][k].vertex
            inner = self.V[v].inner
            if inner < 0 or self.V[v].parent < 0:
                continue
            for mark in self.weighed[slot]:
                if mark.inner == inner and self.weight[inner] == <uint64_t> mark.after:
                    self.reweigh(inner, v, mark.before)

    def keep(self, int32_t slot, entries):
        """Replaces the entries of a slot with a part of them (triples as in `hold`). An empty part frees the slot."""
        cdef Entry entry
        self.apply(slot, -1)
        self.held[slot].clear()
        for v, units, exclusive in entries:
            entry.vertex, entry.units, entry.exclusive = v, units, exclusive
            self.held[slot].push_back(entry)
        if self.held[slot].empty():
            self.free_slots.push_back(slot)
        else:
            self.apply(slot, 1)

    def entries(self, int32_t slot):
        """What a slot holds: (vertex, units, exclusive), children before parents."""
        return [(entry.vertex, entry.units, bool(entry.exclusive)) for entry in self.held[slot]]

    def span(self, int32_t slot):
        """The start and end second of a slot."""
        return self.starts[slot], self.ends[slot]

    def free_at(self, int32_t v, int64_t start, int64_t end):
        """Units of `v` itself that are free throughout [start, end)."""
        return self.avail(v, start, end)

    def touched_at(self, int32_t v, int64_t start, int64_t end):
        """Whether a job holds `v`, or a vertex below it, within [start, end)."""
        return bool(self.busy(v, start, end))

    def peak(self, int32_t v):
        """The largest number of units of `v` that jobs hold in any second."""
        cdef int64_t last = 0x7FFFFFFFFFFFFFFF
        return self.V[v].size - self.avail(v, -last, last)

    def profile(self, int32_t v):
        """The rows of a vertex's time profile: (second, jobs from then on, used amount of each pruned type below)."""
        cdef size_t k
        cdef int32_t p = self.V[v].prof
        return [] if p < 0 else [
            (self.times[p][k], self.rows[p][k * self.width + HOLDERS],
             [self.rows[p][k * self.width + FIRST + i] for i in range(self.ncols)])
            for k in range(self.times[p].size())]

    def next_change(self, int64_t after):
        """The first second later than `after` at which a job begins or ends, or None."""
        cdef int32_t p = self.V[self.root].prof
        cdef size_t k
        if p < 0:  # the root has no children
            return min([t for span in self.own[self.root] for t in (span.start, span.end) if t > after], default=None)
        k = self.row_at(p, after)
        return self.times[p][k] if k < self.times[p].size() else None

    def resize(self, int32_t v, int64_t size):
        """Changes the size of `v`, and the totals. If a sum becomes too large, raises InvalidGraph and changes nothing."""
        cdef int64_t before = self.V[v].size
        self.V[v].size = size
        try:
            self._check_totals()
        except InvalidGraph:
            self.V[v].size = before
            raise
        if v in self.extras:
            self.extras[v].pop("size", None)
        if not self.V[v].pool:
            self._hold_whole(v)
        self._count_below()

    cdef void _hold_whole(self, int32_t v) noexcept:
        """Sets the units that jobs hold of the indivisible vertex `v` to its current size."""
        cdef size_t slot, k, at
        cdef bint found
        for slot in range(self.held.size()):
            found = False
            for k in range(self.held[slot].size()):
                if self.held[slot][k].vertex == v:
                    found, at = True, k
            if found:
                self.apply(<int32_t> slot, -1)
                self.held[slot][at].units = self.V[v].size
                self.apply(<int32_t> slot, 1)

    def describe(self):
        """The number of vertices of each type."""
        cdef int32_t v
        counts = {}
        for v in range(<int32_t> self.V.size()):
            if self.V[v].alive:
                kind = self.types[self.V[v].type]
                counts[kind] = counts.get(kind, 0) + 1
        return counts

    # ---- copying ---------------------------------------------------------------------------------------------------

    cdef copy_into(self, Planner other):
        other.V, other.edges, other.kids = self.V, self.edges, self.kids
        other.static_desc, other.live_desc, other.weight = self.static_desc, self.live_desc, self.weight
        other.kid_types = self.kid_types
        other.root, other.version, other.units = self.root, self.version, self.units
        other.lists_hosts, other.rank_end = self.lists_hosts, self.rank_end
        for name in ("types", "type_ids", "syms", "sym_ids", "shapes", "shape_ids", "props", "props_ids", "edge_shapes",
                     "edge_shape_ids", "outer", "node_extras", "paths"):
            setattr(other, name, getattr(self, name).copy())
        other.extras = {v: dict(kept) for v, kept in self.extras.items()}
        other.path_index = {path: list(held) for path, held in self.path_index.items()}
        other.frame, other._order = self.frame, self._order
        other.ncols, other.width, other.filters = self.ncols, self.width, list(self.filters)
        other.col_type, other.type_col, other.weigh_col = self.col_type, self.type_col, self.weigh_col
        other.own, other.times, other.rows, other.totals = self.own, self.times, self.rows, self.totals
        other.held, other.weighed = self.held, self.weighed
        other.starts, other.ends, other.free_slots = self.starts, self.ends, self.free_slots
        other.row_of = self.row_of
