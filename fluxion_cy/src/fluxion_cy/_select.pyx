# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The match itself: a depth-first walk that collects groups, picks the best and marks them.

No line of the walk touches a Python object; the GIL is released around `run`. What the walk answers is what Fluxion's
depth-first-and-up traverser answers for the containment subsystem, beyond it where its documentation lists a mending.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING
from cython.operator cimport dereference as deref, preincrement as inc
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.set cimport set as cppset
from libcpp.vector cimport vector

from fluxion_cy._index cimport Index
from fluxion_cy._pick cimport (
    AT_TOP, BELOW, BY_CLASS, BY_FILL, BY_ID, BY_RUN, IN_SLOT, MAX_SIBLINGS, NO_PROBLEM, NOTHING_EXCLUSIVE,
    SHARED_UNDER_SLOT, SIBLINGS, TOO_MANY_SLOTS, UNSPELLED, Group, Request)
from fluxion_cy._plans cimport Entry, Plans
from fluxion_cy._store cimport ChildKey

cdef enum:
    STRICT = 0      # below the first match every level is spelled out
    PRISTINE = 1    # above the first match levels may be left out
    GATHER = 2      # a slot collects its children from anywhere below
cdef int64_t ENDLESS = 4294967295
cdef int64_t SLOT_LIMIT = 1 << 20
cdef int64_t FAR = 1 << 40  # nodes with ids beyond it score alike, so that no score wraps


def performance_class(properties):
    """Policy variation's class of a property set: 0 (best) to 9999, which is also the class of those without one."""
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


cdef class Select(Index):
    """Plans with a matching walk."""

    def __init__(self):
        super().__init__()
        self.sign, self.match_no, self.pass_no = 1, 0, 0
        self._by_rank, self._ranks_version = {}, -1
        self._prop_ok = bytearray()
        self.prop_ok = NULL

    # ---- set-up ----------------------------------------------------------------------------------------------------

    def set_policy(self, bint high, bint node_centric, bint stop, bint node_exclusive, bint node_only, int ordering):
        """Chooses the scores.

        `node_only` keeps constraints to vertices of type node and storage_node, and wants levels spelled out.
        """
        self.sign = -1 if high else 1
        self.ordering = ordering
        self.node_centric, self.stop, self.node_only = node_centric, stop, node_only
        self.policy_whole.assign(len(self.types), 0)
        if node_exclusive:
            self.policy_whole[self.node_type] = 1

    def plan(self):
        """Makes room for marks and learns which vertices have nodes below them."""
        cdef int32_t v, up
        cdef bint whole_nodes = self.policy_whole.size() > 0 and self.policy_whole[self.node_type]
        Plans.plan(self)
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

    def _sort_children(self):
        """Children in the order in which scores by id would rank them."""
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

    def ask(self, requests, needs, top_need, int32_t tops, int32_t top_slots):
        """Takes a compiled jobspec: tuples in the order of `Request`, what one unit needs, what the whole needs."""
        cdef Request r
        cdef size_t i = 0
        self.requests.clear()
        self.needs.clear()
        for row in requests:
            (r.type, r.first, r.count, r.slots, r.last_slot, r.oper, r.low, r.high, r.operand, r.slot, r.exclusive,
             r.shared) = row
            r.most = 0
            self.requests.push_back(r)
        for i in range(self.requests.size()):
            self.requests[i].most = self.calc(<int32_t> i, ENDLESS)
        for row in needs:
            self.needs.push_back(row)
        self.top_need = top_need
        self.tops, self.top_slots = tops, top_slots
        self.choice.clear()
        self.choices.clear()
        while self.groups.size() < self.requests.size():
            self.groups.push_back(vector[Group]())
        self.found.resize(self.groups.size())
        self.whole = self.policy_whole
        for i in range(self.requests.size()):
            if self.requests[i].exclusive and self.requests[i].type >= 0:
                self.whole[self.requests[i].type] = 1

    def offer(self, choices):
        """Takes the alternatives of slots of which each may be any: (request, lists of (child, request that counts))."""
        self.choice.assign(self.requests.size(), -1)
        for slot, ways in choices:
            self.choice[<size_t> slot] = <int32_t> self.choices.size()
            self.choices.push_back(ways)

    def constrain(self, rules, links, bytearray prop_ok not None, hosts, spans, chosen):
        """Takes a compiled constraint; no rules match everything. `chosen` is for `narrow`."""
        self.rules.clear()
        for kind, first, count in rules:
            self.rules.push_back(Rule(kind, first, count))
        self.links, self.hosts = links, hosts
        self._prop_ok = prop_ok
        self.prop_ok = <const uint8_t*> PyByteArray_AS_STRING(prop_ok)
        self.narrow(chosen)
        self.rank_spans.clear()
        for low, high in spans:
            self.rank_spans.push_back(pair[int64_t, int64_t](low, high))
        self.constrained = not self.rules.empty()

    def restrict(self, candidates, bint capped, preference):
        """Slots allowed per rank (empty: any) and score per rank (empty: none)."""
        self.candidates = candidates
        self.capped = capped
        self.preference = preference

    def allow(self, const uint8_t[::1] mask):
        """Candidates as a mask: one byte per rank, 0 for no."""
        cdef Py_ssize_t i
        self.candidates.resize(mask.shape[0])
        for i in range(mask.shape[0]):
            self.candidates[i] = mask[i] != 0
        self.capped = False

    def cap(self, const int64_t[::1] slots):
        """Candidates as slots per rank; answers whether one is negative."""
        cdef Py_ssize_t i
        cdef bint negative = False
        self.candidates.resize(slots.shape[0])
        for i in range(slots.shape[0]):
            self.candidates[i] = slots[i]
            negative = negative or slots[i] < 0
        self.capped = True
        return negative

    def like(self, const double[::1] scores):
        """Preference per rank; answers whether one is not a number."""
        cdef Py_ssize_t i
        cdef bint wrong = False
        self.preference.resize(scores.shape[0])
        for i in range(scores.shape[0]):
            self.preference[i] = scores[i]
            wrong = wrong or scores[i] != scores[i]
        return wrong

    def match(self, int64_t at, int64_t end, bint ever, bint gather):
        """Matches over [at, end), or on an empty graph with everything up (`ever`); answers success."""
        cdef bint ok
        self.at, self.end, self.ever, self.gather = at, end, ever, gather
        self.spelled = self.node_only and not ever and not gather
        while <Py_ssize_t> self.perf_class.size() < len(self.props):
            self.perf_class.push_back(performance_class(self.props[self.perf_class.size()]))
        with nogil:
            ok = self.run()
        return ok

    def commit(self, int64_t start, int64_t end, int64_t now):
        """Holds the result of the last match over [start, end); answers the slot."""
        cdef int32_t slot = self.take_slot(start, end)
        self.held[slot] = self.result
        with nogil:
            self.apply(slot, 1)
            self.weigh(slot, now)
        return slot

    def survey(self, int32_t place, kinds, needs, int64_t start, int64_t end):
        """Every vertex of a type, against the last question: what of some types lies below it, and what is free of it.

        Answers tuples (vertex, slots that candidates allow or -1, meets the constraint, up, untouched, amounts, free
        amounts, parts, free parts, whether parts are an upper bound only); the flags take in all that it hangs below.
        A part is so much of a type as `needs` says: out of one pool, or of whole vertices.
        """
        cdef int32_t v, rank
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
            up = self.up_to_root(v)
            with nogil:
                self.tally(v, start, end, up and self.open_to_root(v, start, end), parts, index, amounts)
            rank = self.V[v].rank
            allowed = -1
            if not self.chosen_to_root(v):
                allowed = 0
            elif self.capped and 0 <= rank:
                allowed = self.candidates[rank]
            rows = [[amounts[k] for k in range(i * n, i * n + n)] for i in range(5)]
            found.append((v, allowed, self.fit_to_root(v), up, not self.busy(v, start, end), *rows[:4], any(rows[4])))
        return found

    cdef void tally(self, int32_t v, int64_t start, int64_t end, bint up, vector[int64_t]& parts,
                    vector[int32_t]& index, vector[int64_t]& amounts) noexcept nogil:
        """Adds what lies below `v`: all, free, and both in parts; then how many vertices are whole and of other sizes."""
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

    cdef bint up_to_root(self, int32_t v) noexcept nogil:
        while v >= 0:
            if self.V[v].down:
                return False
            v = self.V[v].parent
        return True

    cdef bint open_to_root(self, int32_t v, int64_t start, int64_t end) noexcept nogil:
        """Whether neither `v` nor what it hangs below is taken."""
        while v >= 0:
            if self.avail(v, start, end) <= 0:
                return False
            v = self.V[v].parent
        return True

    cdef bint chosen_to_root(self, int32_t v) noexcept nogil:
        """Whether the candidates leave `v` and all that it hangs below."""
        while v >= 0:
            if self.V[v].rank >= 0 and not self.candidates.empty():
                if self.V[v].rank >= <int32_t> self.candidates.size() or self.candidates[self.V[v].rank] <= 0:
                    return False
            v = self.V[v].parent
        return True

    cdef bint fit_to_root(self, int32_t v) noexcept nogil:
        """Whether `v` and all that it hangs below meet the constraint where it applies."""
        cdef int32_t kind
        while self.constrained and v >= 0:
            kind = self.V[v].type
            if kind == self.node_type or kind == self.storage_type or (not self.node_only and self.V[v].props):
                if not self.rule_holds(0, v):
                    return False
            v = self.V[v].parent
        return True

    def glance(self, int64_t now):
        """Puts what the last match found to its place among its siblings, by what is free now; holds nothing.

        Fluxion does so for a preview: it sets the order of whatever an answer names, held or not.
        """
        cdef int32_t slot = self.take_slot(now, now)
        self.held[slot] = self.result
        with nogil:
            self.weigh(slot, now)
        self.held[slot].clear()
        self.free_slots.push_back(slot)

    def column_types(self):
        """The pruned types, by column."""
        return list(self.col_type)

    def children(self, int32_t v):
        """Children of `v`, in file order."""
        return list(self.kids[self.V[v].inner]) if self.V[v].inner >= 0 else []

    def has_children(self, int32_t v):
        """Whether anything hangs below `v`."""
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

    def ranks(self):
        """All ranks, in order."""
        self.of_rank(0)
        return sorted(self._by_rank)

    def depth(self, int32_t v):
        """Edges between `v` and the root."""
        cdef int32_t far = 0
        while self.V[v].parent >= 0:
            v = self.V[v].parent
            far += 1
        return far

    def copy(self):
        """A deep copy, jobs included."""
        cdef Select other = Select()
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

    # ---- the walk: no Python below this line -----------------------------------------------------------------------

    cdef bint rule_holds(self, int32_t i, int32_t v) noexcept nogil:
        """Whether a rule of the constraint holds for a vertex (RFC 31)."""
        cdef Rule rule = self.rules[i]
        cdef int32_t k, low, high, mid
        if rule.kind == 1:
            return self.prop_ok[rule.first + self.V[v].props]
        if rule.kind == 2:
            low, high = rule.first, rule.first + rule.count
            while low < high:
                mid = (low + high) >> 1
                if self.hosts[mid] < self.V[v].name:
                    low = mid + 1
                else:
                    high = mid
            return low < rule.first + rule.count and self.hosts[low] == self.V[v].name
        if rule.kind == 3:
            for k in range(rule.first, rule.first + rule.count):
                if self.rank_spans[k].first <= self.V[v].rank <= self.rank_spans[k].second:
                    return True
            return False
        if rule.kind == 5:
            for k in range(rule.first, rule.first + rule.count):
                if self.rule_holds(self.links[k], v):
                    return True
            return False
        for k in range(rule.first, rule.first + rule.count):
            if not self.rule_holds(self.links[k], v):
                return rule.kind == 6
        return rule.kind != 6

    cdef bint admitted(self, int32_t u) noexcept nogil:
        """Status, candidates and constraint."""
        cdef int32_t rank = self.V[u].rank, kind = self.V[u].type
        if self.V[u].down and not self.ever:
            return False
        if rank >= 0 and not self.candidates.empty():
            if rank >= <int32_t> self.candidates.size() or self.candidates[rank] <= 0:
                return False
        if self.constrained:
            if kind == self.node_type or kind == self.storage_type or (not self.node_only and self.V[u].props):
                return self.rule_holds(0, u)
        return True

    cdef int64_t free_units(self, int32_t u) noexcept nogil:
        """Units of `u` that this match may still take."""
        cdef int64_t units = self.V[u].size if self.ever else self.avail(u, self.at, self.end)
        if self.taken[u] == self.match_no:
            units = units - self.taken_units[u] if self.V[u].pool else 0
        return units

    cdef bint anchors(self, int32_t u, int32_t slot) noexcept nogil:
        """Whether children of every type that the slot asks for hang directly below `u`."""
        cdef int32_t e, inner = self.V[u].inner
        cdef size_t way, k
        if inner < 0:
            return False
        if not self.choice.empty() and self.choice[slot] >= 0:
            for way in range(self.choices[self.choice[slot]].size()):
                for k in range(self.choices[self.choice[slot]][way].size()):
                    e = self.choices[self.choice[slot]][way][k].first
                    if not self._holds(&self.kid_types[inner], self.requests[e].type):
                        break
                else:
                    return True
            return False
        for e in range(self.requests[slot].first, self.requests[slot].first + self.requests[slot].count):
            if not self._holds(&self.kid_types[inner], self.requests[e].type):
                return False
        return True

    cdef bint spans_nodes(self, int32_t slot) noexcept nogil:
        """Whether nothing that a slot asks for lies in nodes, so that it may gather above them."""
        cdef int32_t e
        for e in range(self.requests[slot].first, self.requests[slot].first + self.requests[slot].count):
            if self.requests[e].type < 0 or self.within_nodes[self.requests[e].type]:
                return False
        return True

    cdef bint pruned(self, int32_t u, int32_t lo, int32_t n, bint x) noexcept nogil:
        """Exclusivity of `u`, and the amounts below it, against the requests that it would serve."""
        cdef int32_t e
        for e in range(lo, lo + n):
            if not self.requests[e].slot:
                if self.requests[e].type != self.V[u].type:
                    continue
                if x and self.requests[e].shared:
                    self.problem, self.problem_vertex = SHARED_UNDER_SLOT, u
                    return True
                if (x or self.requests[e].exclusive) and not self.V[u].pool:
                    if self.touched[u] == self.match_no or (not self.ever and self.busy(u, self.at, self.end)):
                        return True
            if self.requests[e].count:
                if not self.fits(u, self.needs[e].data(), self.at, self.end, self.ever):
                    return True
        return False

    cdef bint hopeless(self, int32_t u, int32_t lo, int32_t n) noexcept nogil:
        """Whether no request of the level can find even one unit of what it needs below `u`."""
        cdef int32_t e
        for e in range(lo, lo + n):
            if self.fits(u, self.needs[e].data(), self.at, self.end, self.ever):
                return False
        return True

    cdef bint walk(self, int32_t u, int32_t lo, int32_t n, int mode, bint x_in) noexcept nogil:
        """Visits `u` with the requests of one level; adds what it finds to their groups."""
        cdef int32_t e, match = -1, slot = -1
        cdef int64_t factor = 0
        cdef bint x = x_in, anchor, ok = True
        cdef Group group
        for e in range(lo, lo + n):
            if self.requests[e].slot or self.requests[e].type == self.V[u].type:
                if match >= 0 or slot >= 0:
                    self.problem, self.problem_vertex = SIBLINGS, u
                    return False
                if self.requests[e].slot:
                    slot = e
                else:
                    match = e
        if match >= 0:
            x = x or self.requests[match].exclusive
            if self.requests[match].slots:
                slot = self.requests[match].last_slot
        elif mode == STRICT and slot < 0:
            return False
        if match < 0 and self.V[u].inner < 0:
            return False
        if not self.admitted(u) or self.free_units(u) <= 0:
            return False
        anchor = slot >= 0 and self.anchors(u, slot)
        if match < 0 and not anchor and slot >= 0 and self.gather:
            anchor = self.can_gather(slot) and (
                self.V[u].type == self.node_type or not self.nodes_below[u] or self.spans_nodes(slot))
        if match < 0 and not anchor:
            if mode == STRICT or self.hopeless(u, lo, n):
                return False
        elif self.pruned(u, lo, n, x):
            return False
        if self.node_centric and self.V[u].type == self.node_type:
            factor = (FAR if self.V[u].id > FAR else -FAR if self.V[u].id < -FAR else self.V[u].id) + 2
            factor *= 10000
            factor += self.V[u].uniq % 10000 - 1 if self.V[u].uniq % 10000 > 0 else 1 - self.V[u].uniq % 10000
            self.factor_sum += factor
        if self.ordering == BY_FILL and self.V[u].type == self.node_type:
            self.node_now, self.node_free_now = self.V[u].order, self.free_below(u)
        if match >= 0:
            ok = self.satisfied(u, match, slot, x, anchor)
        elif anchor:
            self.fill_slots(u, slot, STRICT if self.anchors(u, slot) else GATHER)
        else:
            self.explore(u, lo, n, mode, x, 1 if mode == PRISTINE else ENDLESS)
        self.factor_sum -= factor
        group.node, group.node_free = self.node_now, self.node_free_now
        if self.ordering == BY_FILL and self.V[u].type == self.node_type:
            self.node_now, self.node_free_now = 0, 0
        if not ok or match < 0:
            return ok
        group.score = 2 + self.factor_sum + self.V[u].id
        if self.ordering == BY_CLASS:
            group.score = 1 + self.perf_class[self.V[u].props]
        group.count = self.free_units(u)
        group.left = group.count
        group.vertex, group.first, group.pieces, group.rank = u, 0, 0, self.V[u].rank
        group.exclusive = x
        self.groups[match].push_back(group)
        self.found[match] += group.count
        if self.V[u].pool:  # what is left over of one pool is no help to another
            self.found[match] -= group.count % self.requests[match].most if self.requests[match].most > 0 else group.count
        return True

    cdef bint satisfied(self, int32_t u, int32_t e, int32_t slot, bint x, bint anchor) noexcept nogil:
        """Whether `u`, which matches request `e`, has below it what `e` asks for; marks the best of it."""
        cdef int32_t c, first = self.requests[e].first, count = self.requests[e].count
        cdef int64_t wanted
        if count == 0:
            return True
        for c in range(first, first + count):
            self.groups[c].clear()
            self.found[c] = 0
        if self.requests[e].slots > 1:
            return self.slots_in_turn(u, e)
        if anchor:
            self.fill_slots(u, slot, STRICT)
        elif slot >= 0 and self.gather and self.can_gather(slot):
            self.fill_slots(u, slot, GATHER)
        else:
            self.explore(u, first, count, STRICT, x, 1)
        for c in range(first, first + count):
            wanted = self.calc(c, self.qualified(c))
            if wanted == 0 or not self.pick(c, wanted, u, False):
                return False
        return True

    cdef bint slots_in_turn(self, int32_t u, int32_t e) noexcept nogil:
        """Several slots below one vertex: each takes its best, and the next one what is left."""
        cdef int32_t c
        cdef int64_t wanted
        for c in range(self.requests[e].first, self.requests[e].first + self.requests[e].count):
            if not self.requests[c].slot:
                self.problem, self.problem_vertex = SIBLINGS, u
                return False
            if not self.can_gather(c):
                return False
            self.fill_slots(u, c, STRICT if self.anchors(u, c) else GATHER)
            wanted = self.calc(c, self.qualified(c))
            if wanted == 0 or not self.pick(c, wanted, u, False):
                return False
        return True

    cdef bint explore(self, int32_t u, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil:
        """Walks the children of `u`: all, or with a stopping policy until `times` shares are found."""
        cdef int32_t inner = self.V[u].inner
        if inner < 0:
            return False
        if n > MAX_SIBLINGS or (not self.stop and self.ordering != BY_ID):
            return self.explore_all(inner, lo, n, mode, x)
        return self.explore_some(u, lo, n, mode, x, times)

    cdef bint explore_all(self, int32_t inner, int32_t lo, int32_t n, int mode, bint x) noexcept nogil:
        cdef size_t k
        cdef bint any_found = False
        for k in range(self.kids[inner].size()):
            if self.walk(self.kids[inner][k], lo, n, mode, x):
                any_found = True
        return any_found

    cdef double liking(self, int32_t v) noexcept nogil:
        """The score of a vertex's rank; a vertex without one has the best below it."""
        cdef size_t k
        cdef double best = -1e308, found
        cdef bint any_below = False
        if self.V[v].rank >= 0:
            return self.preference[self.V[v].rank] if self.V[v].rank < <int32_t> self.preference.size() else 0.0
        if self.V[v].inner < 0:
            return 0.0
        for k in range(self.kids[self.V[v].inner].size()):
            found = self.liking(self.kids[self.V[v].inner][k])
            if not any_below or found > best:
                best = found
            any_below = True
        return best if any_below else 0.0

    cdef bint unranked(self, int32_t inner) noexcept nogil:
        """Whether some child is a group of ranked vertices rather than one of them."""
        cdef size_t k
        for k in range(self.kids[inner].size()):
            if self.V[self.kids[inner][k]].rank < 0 and self.V[self.kids[inner][k]].inner >= 0:
                return True
        return False

    cdef bint passes(self, int32_t inner, int32_t lo, int32_t n, int mode) noexcept nogil:
        """Whether some child would be passed through, so that what it gives is not in the order of children."""
        cdef size_t k
        cdef int32_t e
        cdef bint direct, slots = False
        for e in range(lo, lo + n):
            slots = slots or self.requests[e].slot
        if mode == STRICT and not slots:
            return False
        for k in range(self.inner_kinds[inner].size()):
            direct = False
            for e in range(lo, lo + n):
                direct = direct or (not self.requests[e].slot and self.requests[e].type == self.inner_kinds[inner][k])
            if not direct:
                return True
        return False

    cdef bint explore_some(self, int32_t u, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil:
        """Visits children in the policy's order and stops when every request has its shares.

        The order of a stopping policy is the emptiest first. For scores by id it is that of the scores: what comes later
        can then not be better, unless it comes from below a child that is passed through.
        """
        cdef int64_t before[MAX_SIBLINGS]
        cdef int64_t share[MAX_SIBLINGS]
        cdef int64_t shares[MAX_SIBLINGS]
        cdef int32_t e, child, inner = self.V[u].inner
        cdef size_t k = 0
        cdef bint any_found = False, enough, live = self.stop and not self.live_desc[inner].empty(), ordered
        cdef bint endless = not self.stop and self.passes(inner, lo, n, mode)
        cdef cppset[ChildKey].iterator it = self.live_desc[inner].begin()
        cdef vector[int32_t]* order = &self.static_desc[inner] if self.stop else &self.by_id[inner]
        cdef vector[pair[pair[double, int64_t], int32_t]] liked
        cdef vector[int32_t] few
        if self.selective and self.few_children(u, lo, n, self.stop, &few):
            live, order = False, &few
        for e in range(n):
            before[e], share[e], shares[e] = self.found[lo + e], 0, 0
        ordered = not self.preference.empty()
        if ordered:
            endless = endless or self.unranked(inner)
            k = 0
            while (live and it != self.live_desc[inner].end()) or (not live and k < order.size()):
                child = deref(it).second if live else deref(order)[k]
                if live:
                    inc(it)
                liked.push_back(pair[pair[double, int64_t], int32_t](
                    pair[double, int64_t](-self.liking(child), <int64_t> k), child))
                k += 1
            sort(liked.begin(), liked.end())
            k = 0
        while True:
            if ordered:
                if k >= liked.size():
                    break
                child = liked[k].second
                k += 1
            elif live:
                if it == self.live_desc[inner].end():
                    break
                child = deref(it).second
                inc(it)
            else:
                if k >= order.size():
                    break
                child = deref(order)[k]
                k += 1
            enough = False
            for e in range(n):
                if not endless and self.requests[lo + e].type == self.V[child].type and (
                        self.requests[lo + e].most == 0 or shares[e] >= times):
                    enough = True
            if enough or not self.walk(child, lo, n, mode, x):
                continue
            any_found = enough = True
            for e in range(n):
                if self.found[lo + e] > before[e]:
                    share[e] += self.found[lo + e] - before[e]
                    before[e] = self.found[lo + e]
                    if self.requests[lo + e].most > 0 and share[e] >= self.requests[lo + e].most:
                        share[e] = 0
                        shares[e] += 1
            for e in range(n):
                if self.requests[lo + e].most > 0 and shares[e] < times:
                    enough = False
            if enough and not endless:
                break
        return any_found

    cdef bint fill_slots(self, int32_t u, int32_t slot, int mode) noexcept nogil:
        """Packs what lies below `u` into as many slots as it gives."""
        cdef int32_t c, first = self.requests[slot].first, n = self.requests[slot].count
        cdef int64_t made = 0, most
        cdef int64_t counts[MAX_SIBLINGS]
        cdef size_t at[MAX_SIBLINGS]
        cdef Group group
        if n > MAX_SIBLINGS:
            return False
        for c in range(first, first + n):
            self.groups[c].clear()
            self.found[c] = 0
        self.explore(u, first, n, mode, True, self.requests[slot].most)
        if not self.choice.empty() and self.choice[slot] >= 0:
            return self.fill_mixed(u, slot)
        for c in range(first, first + n):
            at[c - first] = 0
            counts[c - first] = self.calc(c, self.qualified(c))
            if counts[c - first] == 0:
                return False
            self.rank_groups(c, -1, IN_SLOT)
        most = self.requests[slot].most
        if self.capped and self.V[u].rank >= 0 and most > self.candidates[self.V[u].rank]:
            most = self.candidates[self.V[u].rank]
        while made < most and self.fill_one(slot, counts, at, &group):
            self.add_slot(u, slot, &group)
            made += 1
            if made > SLOT_LIMIT:
                self.problem, self.problem_vertex = TOO_MANY_SLOTS, u
                return False
        return made > 0

    cdef void add_slot(self, int32_t u, int32_t slot, Group* group) noexcept nogil:
        group.rank = self.V[u].rank if self.V[u].rank >= 0 else self.V[group.vertex].rank
        self.groups[slot].push_back(group[0])
        if not self.capped or group.rank < 0:
            self.found[slot] += 1
        elif self.rank_found[group.rank] < self.candidates[group.rank]:
            self.rank_found[group.rank] += 1
            self.found[slot] += 1

    cdef bint fill_mixed(self, int32_t u, int32_t slot) noexcept nogil:
        """As many slots as what was found gives when each may be any of the alternatives."""
        cdef int32_t c, way, first = self.requests[slot].first, n = self.requests[slot].count
        cdef int64_t made = 0, limit = self.requests[slot].most
        cdef int64_t counts[MAX_SIBLINGS]
        cdef size_t at[MAX_SIBLINGS]
        cdef size_t k
        cdef vector[int64_t] left
        cdef vector[pair[int32_t, int32_t]]* chosen
        cdef Group group
        for c in range(first, first + n):
            at[c - first] = 0
            left.push_back(self.qualified(c))
            self.rank_groups(c, -1, IN_SLOT)
        self.mixes.clear()
        if self.mix(slot, left, 0) < 0:
            for c in range(n):  # more than can be tried: keep to what the slots that are wanted can use
                if self.requests[first + c].most < ENDLESS // (limit + 1) and left[c] > self.requests[first + c].most * limit:
                    left[c] = self.requests[first + c].most * limit
            self.mixes.clear()
            if self.mix(slot, left, 0) < 0:
                self.problem, self.problem_vertex = TOO_MANY_SLOTS, u
                return False
        while self.mixes.count(left) and self.mixes[left].second >= 0:
            way = self.mixes[left].second
            chosen = &self.choices[self.choice[slot]][way]
            for c in range(n):
                counts[c] = 0
            for k in range(chosen.size()):
                c = chosen[0][k].first - first
                counts[c] = self.calc(chosen[0][k].second, left[c])
            for c in range(n):
                left[c] -= counts[c]
            if not self.fill_one(slot, counts, at, &group):
                break
            self.add_slot(u, slot, &group)
            made += 1
        return made > 0

    cdef int64_t free_below(self, int32_t u) noexcept nogil:
        """What a node has free of the type by which siblings are ordered."""
        cdef int32_t col = self.weigh_col[self.V[u].type], p = self.V[u].prof
        if p < 0 or col < 0:
            return 0
        return self.totals[p][col] - (0 if self.ever else self.used_max(p, col + 2, self.at, self.end))

    cdef bint one_pass(self, int32_t lo, int32_t n) noexcept nogil:
        """Matches the requests lo … lo+n at the top level and collects the result."""
        cdef int32_t e
        cdef int64_t wanted
        cdef bint x = False
        self.next_pass()
        self.run_scores.clear()
        if self.capped:
            self.rank_found.assign(self.candidates.size(), 0)
        self.node_now, self.node_free_now = 0, 0
        for e in range(lo, lo + n):
            self.groups[e].clear()
            self.found[e] = 0
            x = x or (self.requests[e].exclusive and self.requests[e].type == self.V[self.root].type)
        if not self.walk(self.root, lo, n, PRISTINE, False):
            return False
        for e in range(lo, lo + n):
            wanted = self.calc(e, self.qualified(e))
            if wanted == 0 or not self.pick(e, wanted, self.root, True):
                return False
        return self.collect(self.root, self.V[self.root].size, x, False)

    cdef bint run(self) noexcept nogil:
        """The whole match; the result lies in `result`."""
        cdef int32_t e, first
        cdef size_t k
        cdef bint any_exclusive = False, counts = False
        self.match_no += 1
        self.problem, self.problem_vertex, self.factor_sum = NO_PROBLEM, -1, 0
        self.pieces.clear()
        self.result.clear()
        if self.root < 0 or self.requests.empty():
            return False
        if not self.fits(self.root, self.top_need.data(), self.at, self.end, self.ever):
            return False
        if self.top_slots < 2:
            if not self.one_pass(0, self.tops):
                return False
        else:
            first = self.tops - self.top_slots
            if first > 0 and not self.one_pass(0, first):
                return False
            self.merged = self.result
            for e in range(first, self.tops):
                self.result.clear()
                if not self.one_pass(e, 1):
                    return False
                self.merged.insert(self.merged.end(), self.result.begin(), self.result.end())
            self.next_pass()
            for k in range(self.merged.size()):
                if self.mark_pass[self.merged[k].vertex] != self.pass_no or self.merged[k].exclusive:
                    self.mark(self.merged[k].vertex, self.merged[k].units, self.merged[k].exclusive)
            self.result.clear()
            if not self.collect(self.root, self.V[self.root].size, False, False):
                return False
        for k in range(self.result.size()):
            if self.result[k].exclusive:
                any_exclusive = True
                counts = counts or self.skipped[self.result[k].vertex] != self.match_no
                self.problem_vertex = self.result[k].vertex
        if not counts:
            self.problem = UNSPELLED if any_exclusive else NOTHING_EXCLUSIVE
        return counts
