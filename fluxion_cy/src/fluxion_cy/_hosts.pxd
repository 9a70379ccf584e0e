# The cores and gpus of the last result by the node that they lie below.
from libc.stdint cimport int32_t, int64_t
from libcpp.pair cimport pair
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from fluxion_cy._pick cimport Pick

cdef class Hosts(Pick):
    cdef int32_t node_type
    cdef int32_t storage_type
    cdef int32_t core_type
    cdef int32_t gpu_type
    cdef vector[int32_t] hosts_found                                   # nodes in the order in which they were found,
    cdef vector[pair[vector[int64_t], vector[int64_t]]] shares         # and the ids of their cores and gpus
    cdef vector[pair[int64_t, int32_t]] by_rank                        # (rank, index of the node)
    cdef unordered_map[int32_t, size_t] place                          # node -> its index
    cdef int32_t host_above(self, int32_t v) noexcept nogil
    cdef size_t share_of(self, int32_t host) noexcept nogil
    cdef int32_t gather_shares(self) noexcept nogil
