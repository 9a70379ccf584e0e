# Reading and changing the graph.
from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from fluxion_cy.engine.columns cimport ChildKey, Columns, Edge, Vertex

cdef class Store(Columns):
    cdef public bint lists_hosts                # R has a nodelist: names of nodes must be valid in it
    cdef readonly int64_t rank_end              # one more than the highest rank of a vertex
    cdef _extend(self, nodes, edges, dict known)
    cdef _add_vertex(self, node, dict ids, list raw_paths)
    cdef object _fill(self, Vertex* x, str outer, dict metadata, list raw_paths)
    cdef _add_edge(self, edge, dict ids, Py_ssize_t first)
    cdef int32_t _edge_shape(self, dict edge, metadata)
    cdef _settle(self, Py_ssize_t first, Py_ssize_t first_edge, list raw_paths)
    cdef int32_t _inner(self, int32_t v)
    cdef _check_depth(self, Py_ssize_t first)
    cdef _settle_paths(self, int32_t v, given)
    cdef _finish(self, dict document, list raw_paths)
    cdef _keep_frame(self, document)
    cdef _check_root(self)
    cdef _empty(self)
    cdef int32_t _shape_of(self, tuple keys) except -1
    cdef bint _regular(self, int32_t v, str own)
    cdef _check_totals(self)
    cdef _check_hosts(self, Py_ssize_t first)
    cdef _check_duplicates(self, Py_ssize_t first)
    cdef _truncate(self, Py_ssize_t vertices, Py_ssize_t edges, int32_t root)
    cdef _unlink(self, Py_ssize_t vertices)
    cdef _forget_path(self, int32_t v)
    cdef _number(self, vector[int64_t]& name_rank)
    cdef _order_kids(self, int32_t v, int32_t inner)
    cdef bint _holds(self, vector[int32_t]* kinds, int32_t kind) noexcept nogil
    cdef void _place(self, int32_t inner, int32_t child) noexcept nogil
