# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The engine's interface to Python: requests as tables, matches, allocations, and surveys of the graph."""
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.pystate cimport PyThreadState
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.match_plan cimport Form, Terms
from fluxion_cy.engine.gil cimport acquire_gil, release_gil
from fluxion_cy.engine.pick cimport NO_PROBLEM
from fluxion_cy.engine.planner cimport Planner
from fluxion_cy.engine.traverser cimport ENDLESS, Traverser


def performance_class(properties):
    """The class of a property set for the policy `variation`: 0 (best) to 9999. A set without a valid class has 9999."""
    text = properties.get("perf_class", "").strip()
    digits = text[:1] if text[:1] in ("+", "-") else ""
    for char in text[len(digits):12]:
        if not ("0" <= char <= "9"):
            break
        digits += char
    try:
        number = int(digits)
    except ValueError:
        return 9999
    return number if 0 <= number <= 9999 else 9999


cdef class Engine(Traverser):
    """The resource graph, with its planner and traverser."""

    def __init__(self):
        super().__init__()
        self.sign, self.match_no, self.pass_no = 1, 0, 0
        self._by_rank, self._ranks_version = {}, -1
        self._soles, self._soles_version = {}, -1
        self._prop_ok = bytearray()
        self.prop_ok = NULL

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def set_policy(self, bint high, bint node_centric, bint stop, bint node_exclusive, bint node_only, int ordering):
        """Sets how matches are scored.

        With `node_only`, constraints apply only to vertices of type node and storage_node, and the jobspec must spell out
        all levels.
        """
        self.sign = -1 if high else 1
        self.ordering = ordering
        self.node_centric, self.stop, self.node_only = node_centric, stop, node_only
        self.policy_whole.assign(len(self.types), 0)
        if node_exclusive:
            self.policy_whole[self.node_type] = 1

    def prepare(self):
        """Allocates marks, and finds the vertices that have nodes below them."""
        cdef int32_t v, up
        cdef bint whole_nodes = self.policy_whole.size() > 0 and self.policy_whole[self.node_type]
        Planner.prepare(self)
        self.policy_whole.assign(len(self.types), 0)
        self.policy_whole[self.node_type] = whole_nodes
        self.mark_pass.assign(self.V.size(), 0)
        self.mark_units.assign(self.V.size(), 0)
        self.mark_exclusive.assign(self.V.size(), 0)
        self.taken.assign(self.V.size(), 0)
        self.taken_units.assign(self.V.size(), 0)
        self.touched.assign(self.V.size(), 0)
        self.skipped.assign(self.V.size(), 0)
        self.nodes_below.assign(self.V.size(), 0)
        self.within_nodes.assign(len(self.types), 0)
        self.match_no = self.pass_no = 0
        self.marks.clear()
        self.deep = False
        for v in range(<int32_t> self.V.size()):
            if not self.V[v].alive or self.V[v].parent < 0:
                continue
            if self.V[v].type == self.node_type:
                up = self.V[v].parent
                while up >= 0 and not self.nodes_below[up]:
                    self.nodes_below[up] = 1
                    up = self.V[up].parent
            up = self.V[v].parent
            while up >= 0 and not self.within_nodes[self.V[v].type]:
                self.within_nodes[self.V[v].type] = self.V[up].type == self.node_type
                up = self.V[up].parent
        for v in range(<int32_t> self.V.size()):
            if self.V[v].alive and self.V[v].inner >= 0 and v != self.root and self.V[v].type != self.node_type:
                self.deep = True
        self._sort_children()
        self.index()
        self.know_names()

    def _sort_children(self):
        """Sorts the children of each vertex by id: ascending, or descending for a policy that prefers high ids."""
        cdef size_t i, k
        cdef int32_t v
        cdef vector[pair[pair[int64_t, int64_t], int32_t]] row
        self.by_id.assign(self.kids.size(), vector[int32_t]())
        self.inner_kinds.assign(self.kids.size(), vector[int32_t]())
        self.ascending.assign(self.kids.size(), 1)
        for i in range(self.kids.size()):
            row.clear()
            for k in range(self.kids[i].size()):
                v = self.kids[i][k]
                if k > 0 and v < self.kids[i][k - 1]:
                    self.ascending[i] = 0
                row.push_back(pair[pair[int64_t, int64_t], int32_t](
                    pair[int64_t, int64_t](self.sign * self.V[v].id, self.V[v].order), v))
                if self.V[v].inner >= 0 and not self._holds(&self.inner_kinds[i], self.V[v].type):
                    self.inner_kinds[i].push_back(self.V[v].type)
            sort(row.begin(), row.end())
            self.by_id[i].reserve(row.size())
            for k in range(row.size()):
                self.by_id[i].push_back(row[k].second)

    def ask(self, Form form not None):
        """Sets the request."""
        self._ask(form)

    def constrain(self, Terms terms not None):
        """Sets the constraint."""
        self._constrain(terms)

    cdef void _ask(self, Form form) noexcept nogil:
        cdef size_t i
        self.requests, self.needs, self.top_need = form.requests, form.needs, form.top_need
        self.tops, self.top_slots = form.tops, form.top_slots
        self.choice, self.choices = form.choice, form.choices
        if self.groups.size() < self.requests.size():
            self.groups.resize(self.requests.size())
        self.found.resize(self.groups.size())
        self.whole = self.policy_whole
        for i in range(self.requests.size()):
            self.requests[i].most = self.calc(<int32_t> i, ENDLESS)
            if self.requests[i].exclusive and self.requests[i].type >= 0:
                self.whole[self.requests[i].type] = 1

    cdef void _constrain(self, Terms terms):
        self.rules, self.links, self.hosts, self.rank_spans = terms.rules, terms.links, terms.hosts, terms.rank_spans
        self._prop_ok = terms.prop_ok
        self.prop_ok = <const uint8_t*> PyByteArray_AS_STRING(terms.prop_ok)
        self.selective, self.chosen = terms.selective, terms.chosen
        if self.selective and <Py_ssize_t> self.having.size() < len(self.props):
            self.having.resize(len(self.props))
        self.constrained = not self.rules.empty()

    def restrict(self, candidates, bint capped, preference):
        """Sets the slots that each rank allows (empty: any number), and the preference for each rank (empty: none)."""
        self.candidates = candidates
        self.capped, self.short_rank, self.sole = capped, -1, -1
        self.preference = preference

    def allow(self, const uint8_t[::1] mask):
        """Sets the candidates from a mask: one byte per rank; 0 excludes it. Ranks above the last candidate are not stored."""
        cdef Py_ssize_t i = 0, size = mask.shape[0], allowed = 0
        cdef int64_t rank = -1
        cdef uint64_t eight
        self.candidates.assign(1 if size else 0, 0)
        while i < size:
            if i + 8 <= size:
                memcpy(&eight, &mask[i], 8)
                if not eight:
                    i += 8
                    continue
            if mask[i]:
                self.candidates.resize(i + 1)
                self.candidates[i] = 1
                rank = i
                allowed += 1
            i += 1
        self.capped = False
        self.sole = self._sole_of(rank) if allowed == 1 else -1

    def cap(self, const int64_t[::1] slots):
        """Sets the slots that each rank allows. Returns whether any of these numbers is negative."""
        cdef Py_ssize_t i
        cdef bint negative = False
        self.candidates.resize(slots.shape[0])
        self.sole = -1
        for i in range(slots.shape[0]):
            self.candidates[i] = slots[i]
            negative = negative or slots[i] < 0
        self.capped = True
        return negative

    def like(self, const double[::1] scores):
        """Sets the preference for each rank. Returns whether any of them is NaN."""
        cdef Py_ssize_t i
        cdef bint wrong = False
        self.preference.resize(scores.shape[0])
        for i in range(scores.shape[0]):
            self.preference[i] = scores[i]
            wrong = wrong or scores[i] != scores[i]
        return wrong

    def match(self, int64_t at, int64_t end, bint ever, bint gather):
        """Whether the request matches over [at, end), or, with `ever`, on the empty graph with everything up."""
        cdef bint ok
        cdef PyThreadState* state
        self._at(at, end, ever, gather)
        state = release_gil()
        ok = self.run()
        acquire_gil(state)
        return ok

    cdef void _at(self, int64_t at, int64_t end, bint ever, bint gather):
        self.at, self.end, self.ever, self.gather = at, end, ever, gather
        self.spelled = self.node_only and not ever and not gather
        while <Py_ssize_t> self.perf_class.size() < len(self.props):
            self.perf_class.push_back(performance_class(self.props[self.perf_class.size()]))

    def commit(self, int64_t start, int64_t end, int64_t now):
        """Holds the result of the last match for [start, end). Returns the job's slot."""
        cdef int32_t slot
        cdef PyThreadState* state = release_gil()
        slot = self.hold_result(start, end, now)
        acquire_gil(state)
        return slot

    cdef int32_t hold_result(self, int64_t start, int64_t end, int64_t now) noexcept nogil:
        cdef int32_t slot = self.take_slot(start, end)
        self.held[slot] = self.result
        self.apply(slot, 1)
        self.weigh(slot, now)
        return slot

    cdef int32_t place_now(self, Form form, Terms terms, int64_t now, int64_t duration, int64_t longest):
        """Sets a request, matches it at `now`, writes R_lite, and holds the result for at most `longest` seconds.

        Releases the GIL once for all of these steps. Returns the job's slot. Returns IN_VAIN if the request has no match, and
        UNSURE if the jobspec is invalid or R cannot be written. Ignores candidates and preferences.
        """
        cdef int32_t slot = IN_VAIN
        cdef int64_t end = now + min(duration, longest)
        cdef PyThreadState* state
        self._constrain(terms)
        self.candidates.clear()
        self.preference.clear()
        self.capped, self.sole = False, -1
        self._at(now, now + duration, False, False)
        self.know_names()
        state = release_gil()
        self._ask(form)
        if self.run():
            slot = UNSURE
            if self.problem == NO_PROBLEM and self.write() < 0:
                slot = self.hold_result(now, end, now)
        acquire_gil(state)
        return slot

    def survey(self, int32_t place, kinds, needs, int64_t start, int64_t end):
        """For every vertex of type `place`: how much of each type in `kinds` is below it, and how much of that is free.

        Uses the constraint and the candidates of the last request. Returns tuples (vertex, number of slots that the
        candidates allow, the rank to which this number applies, whether it meets the constraint, whether it is up, whether
        it is untouched, amounts, free amounts, parts, free parts, whether the numbers of parts are only upper bounds). The
        number of slots is -1 if the candidates set no cap, or if other ranks may also count slots below the vertex. Both the
        vertex and all its ancestors must meet the constraint, and both must be up. A vertex is untouched if no job holds the
        vertex, one of its ancestors or one of its descendants. A part is the amount of a type in `needs`, from one pool or
        from whole vertices.
        """
        cdef int32_t v, rank
        cdef bint up, untaken
        cdef vector[int32_t] index
        cdef vector[int64_t] amounts, parts = needs
        cdef size_t n = len(kinds), k
        index.assign(len(self.types), -1)
        for k in range(n):
            index[<size_t> kinds[k]] = <int32_t> k
        found = []
        for v in range(<int32_t> self.V.size()):
            if not self.V[v].alive or self.V[v].type != place:
                continue
            amounts.assign(5 * n, 0)
            up, untaken = self.up_to_root(v), self.open_to_root(v, start, end)
            with nogil:
                self.tally(v, start, end, up and untaken, parts, index, amounts)
            rank, allowed = self.slot_rank(v, v), -1
            if not self.chosen_to_root(v):
                allowed = 0
            elif self.capped and rank >= 0 and self.all_of_rank(v, rank):
                allowed = self.candidates[rank]
            rows = [[amounts[k] for k in range(i * n, i * n + n)] for i in range(5)]
            untouched = untaken and not self.busy(v, start, end)
            found.append((v, allowed, rank, self.fit_to_root(v), up, untouched, *rows[:4], any(rows[4])))
        return found

    cdef void tally(self, int32_t v, int64_t start, int64_t end, bint up, vector[int64_t]& parts,
                    vector[int32_t]& index, vector[int64_t]& amounts) noexcept nogil:
        """Adds up below `v`: amounts, free amounts, both in parts, and the number of indivisible vertices larger than 1."""
        cdef size_t k, n = parts.size()
        cdef int32_t child, at
        cdef int64_t units
        cdef bint child_up
        if self.V[v].inner < 0:
            return
        for k in range(self.kids[self.V[v].inner].size()):
            child = self.kids[self.V[v].inner][k]
            child_up = up and not self.V[child].down and (self.V[child].inner < 0 or self.avail(child, start, end) > 0)
            at = index[self.V[child].type]
            if at >= 0:
                units = self.avail(child, start, end) if child_up else 0
                amounts[at] += self.V[child].size
                amounts[n + at] += units
                if self.V[child].pool:
                    amounts[2 * n + at] += self.V[child].size // parts[at] if parts[at] > 0 else 0
                    amounts[3 * n + at] += units // parts[at] if parts[at] > 0 else 0
                else:
                    amounts[2 * n + at] += self.V[child].size > 0
                    amounts[3 * n + at] += units > 0
                    amounts[4 * n + at] += self.V[child].size > 1
            self.tally(child, start, end, child_up, parts, index, amounts)

    cdef bint all_of_rank(self, int32_t v, int32_t rank) noexcept nogil:
        """Whether no vertex below `v` has another rank."""
        cdef int32_t child
        if self.V[v].inner < 0:
            return True
        for child in self.kids[self.V[v].inner]:
            if (self.V[child].rank >= 0 and self.V[child].rank != rank) or not self.all_of_rank(child, rank):
                return False
        return True

    cdef bint up_to_root(self, int32_t v) noexcept nogil:
        while v >= 0:
            if self.V[v].down:
                return False
            v = self.V[v].parent
        return True

    cdef bint open_to_root(self, int32_t v, int64_t start, int64_t end) noexcept nogil:
        """Whether no job holds `v` or a vertex above it."""
        while v >= 0:
            if self.avail(v, start, end) <= 0:
                return False
            v = self.V[v].parent
        return True

    cdef bint chosen_to_root(self, int32_t v) noexcept nogil:
        """Whether `v` and everything above it are candidates."""
        while v >= 0:
            if self.V[v].rank >= 0 and not self.candidates.empty():
                if self.V[v].rank >= <int32_t> self.candidates.size() or self.candidates[self.V[v].rank] <= 0:
                    return False
            v = self.V[v].parent
        return True

    cdef bint fit_to_root(self, int32_t v) noexcept nogil:
        """Whether `v` and everything above it meet the constraint, where it applies."""
        cdef int32_t kind
        while self.constrained and v >= 0:
            kind = self.V[v].type
            if kind == self.node_type or kind == self.storage_type or (not self.node_only and self.V[v].props):
                if not self.rule_holds(0, v):
                    return False
            v = self.V[v].parent
        return True

    def glance(self, int64_t now):
        """Reorders the vertices of the last match among their siblings, by the amount that is free at `now`. Holds nothing.

        Fluxion does this for previews, too: it reorders all vertices of a result.
        """
        cdef int32_t slot = self.take_slot(now, now)
        self.held[slot] = self.result
        with nogil:
            self.weigh(slot, now)
        self.held[slot].clear()
        self.free_slots.push_back(slot)

    def tables(self):
        """The state of the tables that compiled jobspecs refer to: shape, types, property sets and strings."""
        return self.version, len(self.types), len(self.props), len(self.syms)

    def column_types(self):
        """The pruned types, by column."""
        return list(self.col_type)

    def children(self, int32_t v):
        """Children of `v`, in file order."""
        return list(self.kids[self.V[v].inner]) if self.V[v].inner >= 0 else []

    def has_children(self, int32_t v):
        """Whether `v` has children."""
        return self.V[v].inner >= 0

    def of_rank(self, int64_t rank):
        """Vertices of this rank, parents before children within a subtree."""
        cdef int32_t v
        if self._ranks_version != self.version:
            self._by_rank, self._ranks_version = {}, self.version
            for v in range(<int32_t> self.V.size()):
                if self.V[v].alive and self.V[v].rank >= 0:
                    self._by_rank.setdefault(self.V[v].rank, []).append(v)
            for found in self._by_rank.values():
                found.sort(key=self.depth)
        return list(self._by_rank.get(rank, ()))

    cdef int32_t _sole_of(self, int64_t rank):
        """If `rank` is the only candidate: the only child of the root that can contain it, or -1 if there may be several."""
        cdef int32_t v, found = -1
        cdef size_t k
        cdef bint others = False
        if self._soles_version != self.version:
            self._soles, self._soles_version = {}, self.version
        known = self._soles.get(rank)
        if known is not None:
            return known
        if self.root >= 0 and self.V[self.root].inner >= 0:
            for k in range(self.kids[self.V[self.root].inner].size()):
                v = self.kids[self.V[self.root].inner][k]
                others = others or self.V[v].rank < 0 or (self.V[v].rank == rank and found >= 0)
                if self.V[v].rank == rank:
                    found = v
        self._soles[rank] = -1 if others else found
        return self._soles[rank]

    def ranks(self):
        """All ranks, in order."""
        self.of_rank(0)
        return sorted(self._by_rank)

    def depth(self, int32_t v):
        """The number of edges between `v` and the root."""
        cdef int32_t far = 0
        while self.V[v].parent >= 0:
            v = self.V[v].parent
            far += 1
        return far

    def copy(self):
        """A deep copy, jobs included."""
        cdef Engine other = Engine()
        self.copy_into(other)
        other.set_policy(self.sign < 0, self.node_centric, self.stop,
                         self.policy_whole[self.node_type], self.node_only, self.ordering)
        other.mark_pass, other.mark_units, other.mark_exclusive = self.mark_pass, self.mark_units, self.mark_exclusive
        other.taken, other.taken_units, other.touched = self.taken, self.taken_units, self.touched
        other.skipped = self.skipped
        other.nodes_below, other.within_nodes, other.deep = self.nodes_below, self.within_nodes, self.deep
        other.by_id, other.inner_kinds, other.ascending = self.by_id, self.inner_kinds, self.ascending
        other.having = self.having
        other.match_no, other.pass_no = self.match_no, self.pass_no
        return other
