# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Ranks, by the policy, the groups that the search found. Marks the best groups, and collects the marked vertices."""
from cython.operator cimport dereference as deref
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp.algorithm cimport partial_sort, sort
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from fluxion_cy.engine.caps cimport Caps, Request, Use
from fluxion_cy.engine.planner cimport Entry

cdef enum:
    MANY = 8  # with at least this many children for each mark, a loop over the marks is faster
    MAX_MIX_DEPTH = 4096
    MAX_MIXES = 200000
cdef int64_t MAX_SCORE = 0x7FFFFFFFFFFFFFFF


cdef class Pick(Caps):
    """The requests of one match, and the groups found for each of them."""

    def trouble(self):
        """The code and the vertex of an error in the jobspec that the last match found. The code is 0 if there is none."""
        return self.problem, self.problem_vertex

    def found_entries(self):
        """The result of the last match: (vertex, units, exclusive), children before parents."""
        return [(entry.vertex, entry.units, bool(entry.exclusive)) for entry in self.result]

    def arrange(self, entries):
        """(vertex, units, exclusive) triples with all their ancestors, children before parents."""
        cdef int32_t v
        self.next_pass()
        self.ever = True
        self.result.clear()
        self.whole.assign(len(self.types), 0)
        root_exclusive, root_units = False, self.V[self.root].size
        for v, units, exclusive in entries:
            self.mark(v, units, exclusive)
            if v == self.root:
                root_exclusive, root_units = exclusive, units
            self.climb(v, self.root)
        self.collect(self.root, root_units, root_exclusive, False)
        return self.found_entries()

    def resource_set(self):
        """The result of the last match as a JGF document."""
        cdef size_t k
        nodes, edges = [], []
        for k in range(self.result.size()):
            nodes.append(self.emit(self.result[k].vertex, self.result[k].units, self.result[k].exclusive))
            if self.V[self.result[k].vertex].parent >= 0:
                edges.append(self.emit_edge(self.result[k].vertex))
        return {"graph": {"nodes": nodes, "edges": edges}}

    cdef int64_t calc(self, int32_t e, int64_t supply) noexcept nogil:
        """The largest count that the request allows within the supply; 0 if the supply is too small."""
        cdef Request* r = &self.requests[e]
        cdef int64_t have, step, base
        cdef int64_t limit = supply if supply < r.high else r.high
        cdef int32_t i
        if r.low > r.high or r.low > supply:
            return 0
        if self.thrifty and self.counted[e] and (e > 0 or self.tops > 1):
            return r.low
        if r.oper == c'+':
            return limit - (limit - r.low) % r.operand
        have = step = r.low
        if (r.oper == c'*' and r.operand < 2) or (r.oper == c'^' and (r.operand < 2 or r.low == 1)) or r.low == 0:
            return r.low
        while step <= limit:
            have = base = step
            if r.oper == c'*':
                if step > limit / r.operand:
                    break
                step *= r.operand
            else:
                for i in range(1, r.operand if r.operand < 64 else 64):
                    if step > limit / base:
                        return have
                    step *= base
        return have

    cdef int64_t qualified(self, int32_t e, int where) noexcept nogil:
        """The units that the groups of a request offer. Units of different pools are not added up."""
        cdef size_t k
        cdef int64_t plain = 0, pool = 0
        if self.capped and self.counted[e]:
            return self.qualified_within_caps(e, where)
        for k in range(self.groups[e].size()):
            if self.groups[e][k].score <= 0:
                continue
            if self.requests[e].slot:
                plain += 1
            elif self.V[self.groups[e][k].vertex].pool:
                if self.groups[e][k].count > pool:
                    pool = self.groups[e][k].count
            else:
                plain += self.groups[e][k].count
        return plain if plain > pool else pool

    cdef int64_t qualified_within_caps(self, int32_t e, int where) noexcept nogil:
        """Ranks the groups of a request. Returns how many units `pick` can take within the caps."""
        cdef size_t k
        cdef int64_t plain = 0, pool = 0, before = self.used[self.above[e]], scope = self.next_scope()
        cdef Group* group
        self.rank_groups(e, -1, where)
        for k in range(self.groups[e].size()):
            group = &self.groups[e][k]
            if not self.requests[e].slot and self.V[group.vertex].pool:
                if group.score > 0 and group.count > pool and self.fits_caps(
                        before, self.next_scope(), group.first_use, group.uses):
                    pool = group.count
            elif self.fits_caps(before, scope, group.first_use, group.uses) and group.score > 0:
                plain += group.count
        return plain if plain > pool else pool

    cdef bint fits_picked(self, int32_t e, size_t k) noexcept nogil:
        """Adds a group to the picks if the caps allow it in addition to them."""
        cdef Group* group = &self.groups[e][k]
        if not self.fits_caps(0, self.used[self.above[e]], group.first_use, group.uses):
            return False
        self.note_picked(e, group.first_use, group.uses)
        return True

    cdef bint can_gather(self, int32_t slot) noexcept nogil:
        """Whether a slot needs only vertices. A slot directly inside another slot is not a vertex."""
        cdef int32_t e
        for e in range(self.requests[slot].first, self.requests[slot].first + self.requests[slot].count):
            if self.requests[e].slot:
                return False
        return True

    cdef bint fill_one(self, int32_t slot, int64_t* counts, size_t* at, Group* out) noexcept nogil:
        """Fills one slot from the ranked groups of its children, from where the previous slot ended."""
        cdef int32_t c, i, use
        cdef int64_t have
        cdef Group* group
        cdef Piece piece
        cdef Use held
        out.score, out.count, out.left, out.exclusive, out.vertex = 1, 1, 1, 1, -1
        out.node, out.node_free = 0, 0
        out.first_use, out.uses = <int32_t> self.uses.size(), 0
        out.first = <int32_t> self.pieces.size()
        for i in range(self.requests[slot].count):
            c = self.requests[slot].first + i
            have = 0
            while have < counts[i]:
                if at[i] >= self.groups[c].size():
                    self.pieces.resize(out.first)
                    return False
                group = &self.groups[c][at[i]]
                if self.V[group.vertex].pool:
                    if have > 0 or group.left < counts[i]:
                        at[i] += 1
                        continue
                    piece.vertex, piece.units = group.vertex, counts[i]
                    group.left -= counts[i]
                    have = counts[i]
                else:
                    piece.vertex, piece.units = group.vertex, group.count
                    have += group.count
                    at[i] += 1
                if out.score > 0 and group.score > MAX_SCORE - out.score:
                    out.score = MAX_SCORE
                else:
                    out.score += group.score
                if out.vertex < 0:
                    out.vertex, out.node, out.node_free = piece.vertex, group.node, group.node_free
                self.pieces.push_back(piece)
                if self.capped:
                    for use in range(group.first_use, group.first_use + group.uses):
                        held = self.uses[use]
                        self.uses.push_back(held)
                    out.uses += group.uses
        out.pieces = <int32_t> self.pieces.size() - out.first
        return out.pieces > 0

    cdef int64_t mix(self, int32_t slot, vector[int64_t] left, int depth) noexcept nogil:
        """The largest number of slots that the alternatives can make of these amounts; -1 with too many combinations."""
        cdef vector[vector[pair[int32_t, int32_t]]]* ways = &self.choices[self.choice[slot]]
        cdef pair[int64_t, int32_t] best = pair[int64_t, int32_t](0, -1)
        cdef vector[int64_t] rest
        cdef int64_t count, found
        cdef size_t way, k
        cdef int32_t first = self.requests[slot].first
        if self.mixes.count(left):
            return self.mixes[left].first
        if depth > MAX_MIX_DEPTH or self.mixes.size() > MAX_MIXES:
            return -1
        for way in range(ways.size()):
            rest = left
            for k in range(ways[0][way].size()):
                count = self.calc(ways[0][way][k].second, left[ways[0][way][k].first - first])
                if count == 0:
                    break
                rest[ways[0][way][k].first - first] -= count
            else:
                found = self.mix(slot, rest, depth + 1)
                if found < 0:
                    return -1
                if found + 1 > best.first:
                    best = pair[int64_t, int32_t](found + 1, <int32_t> way)
        self.mixes[left] = best
        return best.first

    cdef void join_runs(self) noexcept nogil:
        """Sorts `run_scores`, and sets for each of them the first score of its run of consecutive scores."""
        cdef size_t k
        sort(self.run_scores.begin(), self.run_scores.end())
        self.run_starts = self.run_scores
        for k in range(1, self.run_scores.size()):
            if self.run_scores[k] <= self.run_scores[k - 1] + 1:
                self.run_starts[k] = self.run_starts[k - 1]

    cdef int64_t run_start(self, int64_t score) noexcept nogil:
        """The first score of this score's run."""
        cdef size_t low = 0, high = self.run_scores.size(), mid
        while low < high:
            mid = (low + high) >> 1
            if self.run_scores[mid] < score:
                low = mid + 1
            else:
                high = mid
        return self.run_starts[low]

    cdef bint in_order(self, int32_t e, int64_t sign) noexcept nogil:
        """Whether the groups are ranked by id alone, and are already in order."""
        cdef size_t k
        cdef Group* one
        cdef Group* two
        if self.ordering != BY_ID or not self.preference.empty():
            return False
        for k in range(1, self.groups[e].size()):
            one, two = &self.groups[e][k - 1], &self.groups[e][k]
            if sign * one.score > sign * two.score:
                return False
            if one.score == two.score and self.V[one.vertex].order > self.V[two.vertex].order:
                return False
        return True

    cdef void rank_groups(self, int32_t e, int64_t wanted, int where) noexcept nogil:
        """Sorts the groups of a request, the best first. With `wanted` >= 0, sorts only as many as necessary."""
        cdef size_t k, n = self.groups[e].size(), m
        cdef double liked
        cdef int64_t score, sign = self.sign
        cdef Group* group
        if self.ordering == BY_CLASS and where == IN_SLOT:
            sign = -1
        if self.ordering == BY_RUN and where == AT_TOP:
            for k in range(n):
                self.run_scores.push_back(self.groups[e][k].score)
            self.join_runs()
        if n < 2 or self.in_order(e, sign):
            return
        self.keys.clear()
        self.sorted_groups.clear()
        for k in range(n):
            group = &self.groups[e][k]
            liked = 0.0
            if not self.preference.empty() and 0 <= group.rank < <int32_t> self.preference.size():
                liked = -self.preference[group.rank]
            score = group.score
            if self.ordering == BY_RUN and where == AT_TOP:
                score = self.run_start(score)
            self.keys.push_back(RankedGroup(
                pair[double, int64_t](liked, group.node_free),
                pair[pair[int64_t, int64_t], pair[int64_t, int64_t]](
                    pair[int64_t, int64_t](group.node, sign * score),
                    pair[int64_t, int64_t](self.V[group.vertex].order, <int64_t> k))))
        m = n
        if wanted >= 0 and <size_t> wanted < n:
            m = <size_t> wanted
            partial_sort(self.keys.begin(), self.keys.begin() + m, self.keys.end())
        else:
            sort(self.keys.begin(), self.keys.end())
        for k in range(n):
            self.sorted_groups.push_back(self.groups[e][<size_t> self.keys[k].second.second.second])
        self.groups[e].swap(self.sorted_groups)

    cdef bint pick(self, int32_t e, int64_t wanted, int32_t below, bint top) noexcept nogil:
        """Marks the best groups of a request that offer `wanted` units: from one pool, or from whole vertices."""
        cdef size_t k
        cdef int64_t have = 0
        cdef bint pools = False, counted = self.capped and self.counted[e]
        if not self.requests[e].slot:
            for k in range(self.groups[e].size()):
                pools = pools or self.V[self.groups[e][k].vertex].pool
        if not counted:  # with caps, `qualified` has ranked them
            self.rank_groups(e, -1 if pools else wanted, AT_TOP if top else BELOW)
        if pools:
            for k in range(self.groups[e].size()):
                if self.V[self.groups[e][k].vertex].pool and self.groups[e][k].count >= wanted:
                    if counted and not self.fits_picked(e, k):
                        continue
                    self.choose(e, k, wanted, below, top)
                    return True
        for k in range(self.groups[e].size()):
            if have >= wanted:
                return True
            if not self.requests[e].slot and self.V[self.groups[e][k].vertex].pool:
                continue
            if counted and not self.fits_picked(e, k):
                continue
            have += self.groups[e][k].count
            self.choose(e, k, self.groups[e][k].count, below, top)
        return have >= wanted

    cdef void choose(self, int32_t e, size_t k, int64_t units, int32_t below, bint top) noexcept nogil:
        """Marks one group, and the vertices between it and `below`."""
        cdef Group* group = &self.groups[e][k]
        cdef int32_t i
        cdef bint again = self.requests[e].slot
        if not self.requests[e].slot:
            self.mark(group.vertex, units, group.exclusive)
            self.climb(group.vertex, below)
            return
        for i in range(group.first, group.first + group.pieces):
            self.mark(self.pieces[i].vertex, self.pieces[i].units, True)
            self.climb(self.pieces[i].vertex, below)
            self.take(self.pieces[i].vertex, self.pieces[i].units)
            if self.spelled and not top and self.V[self.pieces[i].vertex].parent != below:
                self.skipped[self.pieces[i].vertex] = self.match_no

    cdef void next_pass(self) noexcept nogil:
        """Drops all marks."""
        self.pass_no += 1
        self.marks.clear()

    cdef void mark(self, int32_t v, int64_t units, bint exclusive) noexcept nogil:
        if self.mark_pass[v] != self.pass_no:
            self.mark_pass[v] = self.pass_no
            self.marks.push_back(v)
        elif self.V[v].pool and self.mark_exclusive[v] and exclusive:
            self.mark_units[v] += units
            return
        self.mark_units[v] = units
        self.mark_exclusive[v] = exclusive

    cdef void climb(self, int32_t v, int32_t below) noexcept nogil:
        """Marks the vertices between `v` and `below` as passed through."""
        v = self.V[v].parent
        while v >= 0 and v != below:
            if self.mark_pass[v] != self.pass_no:
                self.mark(v, self.V[v].size, False)
            v = self.V[v].parent

    cdef void take(self, int32_t v, int64_t units) noexcept nogil:
        """Excludes the vertices of a slot from later slots of the same match."""
        if self.taken[v] != self.match_no:
            self.taken[v] = self.match_no
            self.taken_units[v] = 0
        self.taken_units[v] += units
        v = self.V[v].parent
        while v >= 0 and self.touched[v] != self.match_no:
            self.touched[v] = self.match_no
            v = self.V[v].parent

    cdef bint few_marked(self, int32_t u, vector[int32_t]* out) noexcept nogil:
        """Collects the marked children of `u` in file order. Returns False if a loop over all children is faster."""
        cdef int32_t v, inner = self.V[u].inner
        if self.marks.size() * MANY > self.kids[inner].size() or not self.ascending[inner]:
            return False
        for v in self.marks:
            if self.V[v].parent == u:
                out.push_back(v)
        sort(out.begin(), out.end())
        return True

    cdef bint collect(self, int32_t u, int64_t units, bint exclusive, bint within) noexcept nogil:
        """Collects the marked vertices from `u` down, children first, with all vertices below those of a type in `whole`."""
        cdef Entry entry
        cdef size_t k, before = self.result.size()
        cdef int32_t child
        cdef vector[int32_t] few
        cdef vector[int32_t]* kids
        cdef bint marked, whole = within or (self.whole[self.V[u].type] and not self.V[u].pool)
        exclusive = exclusive or whole
        if self.V[u].inner >= 0:
            kids = &few if not whole and self.few_marked(u, &few) else &self.kids[self.V[u].inner]
            for k in range(kids.size()):
                child = deref(kids)[k]
                marked = self.mark_pass[child] == self.pass_no
                if not marked and not whole:
                    continue
                if not self.collect(child, self.V[child].size if whole else self.mark_units[child],
                                    whole or self.mark_exclusive[child], whole):
                    return False
        if not exclusive and self.result.size() == before:
            return True
        if whole and not self.ever and self.avail(u, self.at, self.end) < self.V[u].size:
            self.problem, self.problem_vertex = NOT_WHOLE, u
            return False
        entry.vertex, entry.units, entry.exclusive = u, (self.V[u].size if whole else units), exclusive
        self.result.push_back(entry)
        return True
