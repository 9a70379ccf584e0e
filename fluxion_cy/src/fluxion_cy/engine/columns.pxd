# The resource graph as columns: one small struct per vertex, strings and property sets interned.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libcpp.pair cimport pair
from libcpp.set cimport set as cppset
from libcpp.vector cimport vector

cdef struct Vertex:
    int64_t id
    int64_t uniq
    int64_t size
    int32_t type      # interned type
    int32_t name      # interned string
    int32_t base      # interned string
    int32_t unit      # interned string, -1: none given
    int32_t rank      # -1: none
    int32_t parent    # containment, -1: none
    int32_t props     # interned property set, 0: empty
    int32_t shape     # interned sequence of metadata keys
    int32_t inner     # index among vertices with children, -1: a leaf
    int32_t prof      # time profile, -1: none
    int32_t order     # place in the natural order of paths
    uint8_t down
    uint8_t alive
    uint8_t pool      # divisible: several jobs can share its units
    uint8_t excl_key  # value of the key "exclusive", stored only to write it back

# (~weight, -uniq), vertex: in ascending order, the emptiest vertex is first, and among equals that with the highest uniq_id.
ctypedef pair[pair[uint64_t, int64_t], int32_t] ChildKey

cdef struct Edge:
    int32_t source
    int32_t target
    int32_t shape
    uint8_t contains

cdef object thaw(value)

cdef class Columns:
    cdef vector[Vertex] V
    cdef vector[Edge] edges
    cdef vector[vector[int32_t]] kids          # per inner vertex, in file order
    cdef vector[vector[int32_t]] static_desc   # per inner vertex without inner children: by uniq_id, highest first
    cdef vector[cppset[ChildKey]] live_desc    # per inner vertex with inner children
    cdef vector[uint64_t] weight               # per inner vertex: what determines its place in its parent's live_desc
    cdef vector[vector[int32_t]] kid_types     # per inner vertex: types of its children
    cdef public int32_t root
    cdef public int64_t version                # changes whenever the graph's shape does
    cdef public object types, type_ids         # list of str, dict
    cdef public object syms, sym_ids
    cdef public object shapes, shape_ids       # list of tuples of keys
    cdef public object props, props_ids        # list of dicts
    cdef public object edge_shapes, edge_shape_ids
    cdef public object extras                  # vertex -> {key: value}, for values that the columns cannot reproduce
    cdef public object outer                   # vertex -> JGF id, if it is not str(uniq_id)
    cdef public object node_extras             # vertex -> other keys of the JGF node
    cdef public object paths                   # vertex -> paths mapping, if it is not {"containment": derived path}
    cdef public object path_index              # explicit containment path -> [vertices]
    cdef public object frame                   # the document around nodes and edges
    cdef object _order
    cdef int32_t _plain_edge
    cdef int32_t _last_parent
    cdef str _last_path
    cdef object _children_by_name              # (parent, name symbol) -> vertex, built on first use
    cdef public bint units                     # whether R has the key "unit"
    cdef object _links                         # target -> metadata of its containment edge, as of _links_version
    cdef int64_t _links_version
    cdef int32_t intern(self, str text)
    cdef int32_t intern_type(self, str text)
    cdef str path_of(self, int32_t v)
    cdef _index_names(self)
    cdef dict _metadata(self, int32_t v)
