# Writes idsets and hostlists.
from libc.stdint cimport int32_t, int64_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

cdef struct HostName:
    int64_t number
    int32_t stem     # index of the text before the number
    int32_t width    # digits of the number, leading zeros included; 0: there is no number

cdef string idset_of(vector[int64_t]& numbers) noexcept nogil

cdef class Names:
    cdef vector[HostName] names                  # in the order of addition
    cdef vector[string] stems
    cdef unordered_map[string, int32_t] stem_ids
    cdef add(self, str name)
    cdef string hostlist(self, vector[int32_t]& which) noexcept nogil
