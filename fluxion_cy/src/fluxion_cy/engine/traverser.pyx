# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The match: a depth-first walk that collects groups, picks the best and marks them.

It uses no Python objects, and `run` is called without the GIL. Its result is that of Fluxion's depth-first-and-up
traverser for the containment subsystem, except for the fixes that the README lists.
"""
from cython.operator cimport dereference as deref, preincrement as inc
from libc.stdint cimport int32_t, int64_t
from libcpp.algorithm cimport sort
from libcpp.pair cimport pair
from libcpp.set cimport set as cppset
from libcpp.vector cimport vector

from fluxion_cy.engine.admit cimport Admit
from fluxion_cy.engine.caps cimport Use
from fluxion_cy.engine.pick cimport (
    AT_TOP, BELOW, BY_CLASS, BY_FILL, BY_ID, BY_RUN, IN_SLOT, MAX_SIBLINGS, NO_PROBLEM, NOTHING_EXCLUSIVE,
    SIBLINGS, TOO_MANY_SLOTS, UNSPELLED, Group, Request)
from fluxion_cy.engine.store cimport ChildKey

cdef enum:
    STRICT = 0      # below the first match, the jobspec spells out every level
    PRISTINE = 1    # above the first match, levels may be left out
    GATHER = 2      # a slot collects its children from anywhere below
cdef int64_t SLOT_LIMIT = 1 << 20
cdef int64_t FAR = 1 << 40  # all nodes with larger ids have the same score, so that no score overflows


cdef class Traverser(Admit):
    """The walk over the vertices that can serve a request."""

    cdef bint walk(self, int32_t u, int32_t lo, int32_t n, int mode, bint x_in) noexcept nogil:
        """Visits `u` for the requests of one level, and adds what it finds to their groups."""
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
        group.first_use, group.uses = 0, 0
        if self.capped and self.counted[match]:
            group.first_use = <int32_t> self.uses.size()
            group.uses = self.close_below(match)
            self.groups[match].push_back(group)
            if not self.fits_caps(self.used[self.above[match]], self.offered[match], group.first_use, group.uses):
                return True  # found, but not usable together with the other finds
        else:
            self.groups[match].push_back(group)
        self.found[match] += group.count
        if self.V[u].pool:  # the remainder of one pool cannot be combined with that of another
            self.found[match] -= group.count % self.requests[match].most if self.requests[match].most > 0 else group.count
        return True

    cdef bint satisfied(self, int32_t u, int32_t e, int32_t slot, bint x, bint anchor) noexcept nogil:
        """Whether `u`, which matches request `e`, has the children of `e` below it. Marks the best of them."""
        cdef int32_t c, first = self.requests[e].first, count = self.requests[e].count
        cdef int64_t wanted
        if count == 0:
            return True
        if self.capped:
            self.open_below(e)
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
            wanted = self.calc(c, self.qualified(c, BELOW))
            if wanted == 0 or not self.pick(c, wanted, u, False):
                return False
        return True

    cdef bint slots_in_turn(self, int32_t u, int32_t e) noexcept nogil:
        """Fills several slots below one vertex in turn, each with the best that is left."""
        cdef int32_t c
        cdef int64_t wanted
        for c in range(self.requests[e].first, self.requests[e].first + self.requests[e].count):
            if not self.requests[c].slot:
                self.problem, self.problem_vertex = SIBLINGS, u
                return False
            if not self.can_gather(c):
                return False
            self.fill_slots(u, c, STRICT if self.anchors(u, c) else GATHER)
            wanted = self.calc(c, self.qualified(c, BELOW))
            if wanted == 0 or not self.pick(c, wanted, u, False):
                return False
        return True

    cdef bint explore(self, int32_t u, int32_t lo, int32_t n, int mode, bint x, int64_t times) noexcept nogil:
        """Visits the children of `u`: all of them, or, if the policy allows it, until every request has `times` shares."""
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
        """The preference for a vertex's rank, or, if the vertex has no rank, the best preference below it."""
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
        """Whether some child has children but no rank."""
        cdef size_t k
        for k in range(self.kids[inner].size()):
            if self.V[self.kids[inner][k]].rank < 0 and self.V[self.kids[inner][k]].inner >= 0:
                return True
        return False

    cdef bint passes(self, int32_t inner, int32_t lo, int32_t n, int mode) noexcept nogil:
        """Whether the walk passes through some child, so that it does not find vertices in the order of the children."""
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
        """Visits children in the policy's order, and stops when every request has its shares.

        A policy that stops at the first match visits the emptiest children first. A policy that scores by id visits
        children in the order of their scores: a later find is then not better, unless the walk passes through a child.
        """
        cdef int64_t before[MAX_SIBLINGS]
        cdef int64_t share[MAX_SIBLINGS]
        cdef int64_t shares[MAX_SIBLINGS]
        cdef int32_t e, child, inner = self.V[u].inner
        cdef size_t k = 0
        cdef bint any_found = False, enough, live = self.stop and not self.live_desc[inner].empty(), ordered
        cdef bint endless = self.thrifty or (not self.stop and self.passes(inner, lo, n, mode))
        cdef cppset[ChildKey].iterator it = self.live_desc[inner].begin()
        cdef vector[int32_t]* order = &self.static_desc[inner] if self.stop else &self.by_id[inner]
        cdef vector[pair[pair[double, int64_t], int32_t]] liked
        cdef vector[int32_t] few
        if (self.selective or self.sole >= 0) and self.few_children(u, lo, n, self.stop, &few):
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
        """Fills as many slots as possible from the vertices below `u`."""
        cdef int32_t c, first = self.requests[slot].first, n = self.requests[slot].count
        cdef int64_t made = 0, most = self.requests[slot].most, filled = 0
        cdef int64_t counts[MAX_SIBLINGS]
        cdef size_t at[MAX_SIBLINGS]
        cdef Group group
        if n > MAX_SIBLINGS:
            return False
        if self.capped:
            self.open_below(slot)
            filled = self.next_scope()
        for c in range(first, first + n):
            self.groups[c].clear()
            self.found[c] = 0
        self.explore(u, first, n, mode, True, most)
        if not self.choice.empty() and self.choice[slot] >= 0:
            return self.fill_mixed(u, slot, filled)
        for c in range(first, first + n):
            at[c - first] = 0
            counts[c - first] = self.calc(c, self.qualified(c, IN_SLOT))
            if counts[c - first] == 0:
                return False
            self.rank_groups(c, -1, IN_SLOT)
        while made < most and (not self.capped or self.lead(u, slot, filled, counts, at)) and self.fill_one(
                slot, counts, at, &group):
            self.add_slot(u, slot, &group, filled)
            made += 1
            if made > SLOT_LIMIT:
                self.problem, self.problem_vertex = TOO_MANY_SLOTS, u
                return False
        return made > 0

    cdef bint lead(self, int32_t u, int32_t slot, int64_t filled, int64_t* counts, size_t* at) noexcept nogil:
        """Skips first pieces whose rank allows no more slots. Returns False if no further slot can begin here."""
        cdef int32_t c, rank, i = 0
        cdef Group* group
        while i < self.requests[slot].count and counts[i] == 0:
            i += 1
        if i == self.requests[slot].count:
            return False
        c = self.requests[slot].first + i
        while at[i] < self.groups[c].size():
            group = &self.groups[c][at[i]]
            rank = self.slot_rank(u, group.vertex)
            if not self.V[group.vertex].pool or group.left >= counts[i]:
                if rank < 0 or self.has_room(self.used[self.above[slot]], filled, rank, self.level[slot]):
                    return True
                if self.V[u].rank >= 0:
                    return False
                self.stretches = True  # slots of unvisited vertices may be counted on another rank
            at[i] += 1
        return False

    cdef void add_slot(self, int32_t u, int32_t slot, Group* group, int64_t filled) noexcept nogil:
        """Adds a slot that was filled at `u` to the finds. `filled` is the scope of the slots filled there."""
        cdef Use own
        group.rank = self.V[u].rank if self.V[u].rank >= 0 else self.V[group.vertex].rank
        if self.capped:
            own.rank, own.level, own.slots = self.slot_rank(u, group.vertex), self.level[slot], 1
            if own.rank >= 0:
                self.uses.push_back(own)
                self.add(filled, own)
                group.uses += 1
        self.groups[slot].push_back(group[0])
        if not self.capped or self.fits_caps(
                self.used[self.above[slot]], self.offered[slot], group.first_use, group.uses):
            self.found[slot] += 1

    cdef bint fill_mixed(self, int32_t u, int32_t slot, int64_t filled) noexcept nogil:
        """Fills as many slots as possible if each of them may be any of the alternatives."""
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
            left.push_back(self.qualified(c, IN_SLOT))
            self.rank_groups(c, -1, IN_SLOT)
        self.mixes.clear()
        if self.mix(slot, left, 0) < 0:
            for c in range(n):  # too many ways: limit the supply to what the wanted slots can use
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
            if (self.capped and not self.lead(u, slot, filled, counts, at)) or not self.fill_one(
                    slot, counts, at, &group):
                break
            self.add_slot(u, slot, &group, filled)
            made += 1
        return made > 0

    cdef int64_t free_below(self, int32_t u) noexcept nogil:
        """The amount that is free below a node, of the type that orders siblings."""
        cdef int32_t col = self.weigh_col[self.V[u].type], p = self.V[u].prof
        if p < 0 or col < 0:
            return 0
        return self.totals[p][col] - (0 if self.ever else self.used_max(p, col + 2, self.at, self.end))

    cdef bint one_pass(self, int32_t lo, int32_t n) noexcept nogil:
        """Matches requests[lo : lo + n] at the top level, and collects the result."""
        cdef int32_t e
        cdef int64_t wanted
        cdef bint x = False
        self.next_pass()
        self.run_scores.clear()
        self.node_now, self.node_free_now = 0, 0
        for e in range(lo, lo + n):
            self.groups[e].clear()
            self.found[e] = 0
            if self.capped:
                self.offered[e] = self.next_scope()
            x = x or (self.requests[e].exclusive and self.requests[e].type == self.V[self.root].type)
        if not self.walk(self.root, lo, n, PRISTINE, False):
            return False
        for e in range(lo, lo + n):
            wanted = self.calc(e, self.qualified(e, AT_TOP))
            if wanted == 0 or not self.pick(e, wanted, self.root, True):
                return False
        return self.collect(self.root, self.V[self.root].size, x, False)

    cdef bint run(self) noexcept nogil:
        """The whole match, which sets `result`."""
        return self.run_within_caps() if self.capped else self.attempt()

    cdef bint run_within_caps(self) noexcept nogil:
        """A match in which no range of counts uses more of the caps than necessary if this would exclude other requests.

        If a cap excluded something, but there is a match without caps, it retries with the minimum of each range.
        """
        cdef bint found
        self.prepare_caps()
        self.forget_uses()
        found = self.attempt()
        if found or not self.stretches or self.short_rank < 0 or self.problem == TOO_MANY_SLOTS:
            return found
        self.capped = False
        found = self.attempt()
        self.capped = True
        if found:
            self.thrifty = True
            self.forget_uses()
            found = self.attempt()
            self.thrifty = False
        return found

    cdef bint attempt(self) noexcept nogil:
        """One pass over the graph, or one for each slot at the top level."""
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
