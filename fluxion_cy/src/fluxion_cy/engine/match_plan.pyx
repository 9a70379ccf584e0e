# cython: language_level=3, boundscheck=False, wraparound=False
"""A request as tables. It owns the tables, so that the engine can match it repeatedly."""
from libc.stdint cimport int32_t, int64_t
from libcpp.pair cimport pair

from fluxion_cy.engine.pick cimport Request
from fluxion_cy.engine.admit cimport Rule


cdef class Form:
    """One form of a jobspec, made from the tables of its layout. A row has the fields of a `Request`, in their order."""

    def __init__(self, rows, needs, top_need, int32_t tops, int32_t top_slots, choices):
        cdef Request r
        for row in rows:
            (r.type, r.first, r.count, r.slots, r.last_slot, r.oper, r.low, r.high, r.operand, r.slot, r.exclusive,
             r.shared) = row
            r.most = 0
            self.requests.push_back(r)
        for row in needs:
            self.needs.push_back(row)
        self.top_need = top_need
        self.tops, self.top_slots = tops, top_slots
        if choices:
            self.choice.assign(self.requests.size(), -1)
        for slot, ways in choices:
            self.choice[<size_t> slot] = <int32_t> self.choices.size()
            self.choices.push_back(ways)


cdef class Terms:
    """A compiled constraint. Without rules, it admits everything. `chosen` are property sets for the index, or None."""

    def __init__(self, rules, links, bytearray prop_ok not None, hosts, spans, chosen):
        for kind, first, count in rules:
            self.rules.push_back(Rule(kind, first, count))
        self.links, self.prop_ok, self.hosts = links, prop_ok, hosts
        for low, high in spans:
            self.rank_spans.push_back(pair[int64_t, int64_t](low, high))
        self.selective = chosen is not None
        if self.selective:
            self.chosen = chosen

    def weight(self):
        """The estimated memory in bytes of the constraint and its source."""
        return 40 * (self.hosts.size() + self.links.size() + 2 * self.rank_spans.size() + 3 * self.rules.size()) + len(
            self.prop_ok)


cdef class MatchPlan:
    """A jobspec that has only one form, compiled for one state of the engine's tables. `duration` is in seconds."""

    def __init__(self, Form form not None, Terms terms not None, int64_t duration, tuple tables not None):
        self.form, self.terms, self.duration, self.tables = form, terms, duration, tables
