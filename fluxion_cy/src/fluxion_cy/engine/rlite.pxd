# The cores and gpus of each node in the last result, and their R_lite.
from libc.stdint cimport int32_t, int64_t
from libcpp.map cimport map as cppmap
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from fluxion_cy.engine.encoding cimport Names
from fluxion_cy.engine.pick cimport Pick

ctypedef pair[pair[string, string], vector[int64_t]] Children      # idsets of cores and of gpus, and the ranks with these

cdef class RLite(Pick):
    cdef int32_t node_type
    cdef int32_t storage_type
    cdef int32_t core_type
    cdef int32_t gpu_type
    cdef Names names                                                   # of every interned string
    cdef vector[int32_t] hosts_found                                   # nodes in the order of the result,
    cdef vector[pair[vector[int64_t], vector[int64_t]]] shares         # and the ids of their cores and gpus
    cdef vector[pair[int64_t, int32_t]] by_rank                        # (rank, index of the node)
    cdef unordered_map[int32_t, size_t] place                          # node -> its index
    cdef cppmap[string, Children] lite                                 # by the children as JSON
    cdef vector[int32_t] name_order                                    # names of the nodes, by rank
    cdef string nodelist
    cdef bint with_props                                               # some of the nodes have properties
    cdef int32_t host_above(self, int32_t v) noexcept nogil
    cdef size_t share_of(self, int32_t host) noexcept nogil
    cdef int32_t gather_shares(self) noexcept nogil
    cdef int32_t write(self) noexcept nogil
    cdef know_names(self)
