# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Reads JGF text without a Python object for each value: this needs a quarter of the time and a fifth of the memory.

It reads only JGF in its plain form. `json` and the store handle each vertex or edge that has another form. If the whole
document has another form or is invalid, `scan` returns False and leaves the store empty. The regular reader then reads
the text, and reports any error.
"""
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcmp, strlen

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8

from fluxion_cy.engine.columns cimport Columns, Edge, Vertex
from fluxion_cy.engine.store cimport Store

import json

from fluxion_cy.errors import FluxionError

cdef tuple KEYS = ("type", "basename", "name", "id", "uniq_id", "rank", "exclusive", "unit", "size", "paths", "properties")
cdef enum:
    TYPE, BASENAME, NAME, ID, UNIQ_ID, RANK, EXCLUSIVE, UNIT, SIZE, PATHS, PROPERTIES, KEY_COUNT
cdef (const char*)[KEY_COUNT] KEY_TEXT
KEY_TEXT[:] = [
    b"type", b"basename", b"name", b"id", b"uniq_id", b"rank", b"exclusive", b"unit", b"size", b"paths", b"properties"]


cdef struct Text:
    const char* start
    Py_ssize_t length


cdef bint same(Text* text, const char* word) noexcept nogil:
    return <size_t> text.length == strlen(word) and memcmp(text.start, word, text.length) == 0


cdef str word_of(Text* text):
    return PyUnicode_DecodeUTF8(text.start, text.length, NULL)


cdef class Scanner:
    """A position in a text, and the store that is filled from it."""

    cdef const char* at
    cdef const char* end
    cdef Store store
    cdef dict ids, shapes, property_sets, tails
    cdef list raw_paths

    # ---- tokens; each method returns whether the token was there -----------------------------------------------------

    cdef void space(self) noexcept nogil:
        while self.at < self.end and (self.at[0] == c' ' or self.at[0] == c'\n' or self.at[0] == c'\r' or self.at[0] == c'\t'):
            self.at += 1

    cdef bint take(self, char mark) noexcept nogil:
        """White space, then this character."""
        self.space()
        if self.at < self.end and self.at[0] == mark:
            self.at += 1
            return True
        return False

    cdef bint string(self, Text* out) noexcept nogil:
        """A string without escapes."""
        if not self.take(c'"'):
            return False
        out.start = self.at
        while self.at < self.end and self.at[0] != c'"':
            if self.at[0] == c'\\' or <unsigned char> self.at[0] < 32:
                return False
            self.at += 1
        out.length = self.at - out.start
        self.at += 1
        return self.at <= self.end

    cdef bint key(self, Text* out) noexcept nogil:
        return self.string(out) and self.take(c':')

    cdef bint number(self, int64_t* out) noexcept nogil:
        """A whole number of up to 18 digits."""
        cdef bint negative = self.take(c'-')
        cdef const char* first
        first = self.at
        out[0] = 0
        while self.at < self.end and c'0' <= self.at[0] <= c'9':
            if self.at - first == 18:
                return False
            out[0] = out[0] * 10 + (self.at[0] - c'0')
            self.at += 1
        if self.at == first or (first[0] == c'0' and self.at - first > 1):
            return False
        if negative:
            out[0] = -out[0]
        return self.at < self.end and self.at[0] != c'.' and self.at[0] != c'e' and self.at[0] != c'E'

    cdef bint skip(self, Text* out) noexcept nogil:
        """Any value. This finds only its end: `json` parses the value."""
        cdef int64_t depth = 0
        cdef bint quoted = False
        self.space()
        out.start = self.at
        while self.at < self.end:
            if quoted:
                if self.at[0] == c'\\':
                    self.at += 1
                elif self.at[0] == c'"':
                    quoted = False
            elif self.at[0] == c'"':
                quoted = True
            elif self.at[0] == c'{' or self.at[0] == c'[':
                depth += 1
            elif self.at[0] == c'}' or self.at[0] == c']' or self.at[0] == c',':
                if depth == 0:
                    break
                if self.at[0] != c',':
                    depth -= 1
            self.at += 1
        out.length = self.at - out.start
        return self.at < self.end and not quoted

    # ---- the document ------------------------------------------------------------------------------------------------

    cdef bint document(self):
        cdef Text name, value
        cdef dict outer = {}, inner = {}
        if not self.take(c'{'):
            return False
        while True:
            if not self.key(&name):
                return False
            word = word_of(&name)
            if word in outer:
                return False
            if word == "graph":
                outer[word] = inner
                if not self.graph(inner):
                    return False
            elif self.skip(&value):
                outer[word] = json.loads(word_of(&value))
            else:
                return False
            if not self.take(c','):
                break
        if not self.take(c'}') or "nodes" not in inner or "edges" not in inner:
            return False
        self.space()
        if self.at != self.end:
            return False
        self.store._finish(outer, self.raw_paths)
        return True

    cdef bint graph(self, dict found):
        cdef Text name, value
        if not self.take(c'{'):
            return False
        while True:
            if not self.key(&name):
                return False
            word = word_of(&name)
            if word in found:
                return False
            found[word] = []
            if word == "nodes":
                if not self.vertices():
                    return False
            elif word == "edges":
                if "nodes" not in found or not self.edges():
                    return False
            elif self.skip(&value):
                found[word] = json.loads(word_of(&value))
            else:
                return False
            if not self.take(c','):
                break
        return self.take(c'}')

    cdef bint vertices(self):
        cdef const char* start
        cdef Text value
        if not self.take(c'['):
            return False
        if self.take(c']'):
            return True
        while True:
            start = self.at
            if not self.vertex():
                self.at = start
                if not self.skip(&value):
                    return False
                self.store._add_vertex(json.loads(word_of(&value)), self.ids, self.raw_paths)
            if not self.take(c','):
                return self.take(c']')

    cdef bint vertex(self):
        """Reads a vertex that has only plain keys and values. For any other vertex, returns False and changes nothing."""
        cdef Vertex x
        cdef Text word, outer, kind, base, name, path, unit, properties
        cdef int32_t code
        cdef uint64_t seen = 0, shape = 0
        cdef int64_t number = 0
        cdef str text
        if not (self.take(c'{') and self.key(&word) and same(&word, b"id") and self.string(&outer) and self.take(c',')):
            return False
        if not (self.key(&word) and same(&word, b"metadata") and self.take(c'{')):
            return False
        x.rank, x.size, x.excl_key = -1, 1, 0
        while True:
            if not self.key(&word):
                return False
            code = 0
            while code < KEY_COUNT and not same(&word, KEY_TEXT[code]):
                code += 1
            if code == KEY_COUNT or seen & (<uint64_t> 1 << code):
                return False
            seen |= <uint64_t> 1 << code
            shape = shape * 16 + code + 1
            if code == TYPE or code == BASENAME or code == NAME or code == UNIT:
                if not self.string(&kind if code == TYPE else &base if code == BASENAME else &name if code == NAME else &unit):
                    return False
            elif code == PATHS:
                if not (self.take(c'{') and self.key(&word) and same(&word, b"containment") and self.string(&path)
                        and self.take(c'}')):
                    return False
            elif code == PROPERTIES:
                if not self.skip(&properties):
                    return False
            elif code == EXCLUSIVE:
                self.space()
                if self.end - self.at > 5 and memcmp(self.at, b"true", 4) == 0:
                    x.excl_key = 1
                    self.at += 4
                elif self.end - self.at > 5 and memcmp(self.at, b"false", 5) == 0:
                    self.at += 5
                else:
                    return False
            else:
                if not self.number(&number):
                    return False
                if code == ID:
                    x.id = number
                elif code == UNIQ_ID:
                    x.uniq = number
                elif code == RANK:
                    if number < -1 or number > 0x7FFFFFFE:
                        return False
                    x.rank = <int32_t> number
                else:
                    if number < 0:
                        return False
                    x.size = number
            if not self.take(c','):
                break
        if not (self.take(c'}') and self.take(c'}')):
            return False
        if not (seen >> TYPE) & 1 or not (seen >> PATHS) & 1 or not (seen >> ID) & 1 or kind.length == 0:
            return False
        text = word_of(&outer)
        if not (seen >> UNIQ_ID) & 1:
            if not self.decimal(&outer, &x.uniq):
                return False
        elif text != str(x.uniq):
            self.store.outer[<int32_t> self.store.V.size()] = text
        if text in self.ids:
            raise ValueError
        x.props = self.properties(&properties) if (seen >> PROPERTIES) & 1 else 0
        self.ids[text] = <int32_t> self.store.V.size()
        text = word_of(&kind)
        x.type = self.store.intern_type(text)
        if (seen >> BASENAME) & 1:
            text = word_of(&base)
        x.base = self.store.intern(text)
        x.name = self.store.intern(word_of(&name) if (seen >> NAME) & 1 else text + str(x.id))
        x.unit = self.store.intern(word_of(&unit)) if (seen >> UNIT) & 1 else -1
        x.parent, x.inner, x.prof, x.order = -1, -1, -1, 0
        x.alive, x.pool, x.down = 1, 0, 0
        x.shape = self.shape(shape)
        self.raw_paths.append(word_of(&path))
        self.store.V.push_back(x)
        return True

    cdef bint decimal(self, Text* word, int64_t* out) noexcept nogil:
        """The number of a string in canonical decimal form."""
        cdef Py_ssize_t k
        out[0] = 0
        if word.length == 0 or word.length > 18 or (word.start[0] == c'0' and word.length > 1):
            return False
        for k in range(word.length):
            if not c'0' <= word.start[k] <= c'9':
                return False
            out[0] = out[0] * 10 + (word.start[k] - c'0')
        return True

    cdef int32_t properties(self, Text* text) except -1:
        cdef bytes raw = text.start[:text.length]
        found = self.property_sets.get(raw)
        if found is None:
            found = self.property_sets[raw] = self.store.intern_props(json.loads(raw), "a vertex")
        return found

    cdef int32_t shape(self, uint64_t code) except -1:
        cdef uint64_t rest = code
        found = self.shapes.get(code)
        if found is None:
            keys = []
            while rest:
                keys.append(KEYS[<Py_ssize_t> (rest % 16) - 1])
                rest //= 16
            found = self.shapes[code] = self.store._shape_of(tuple(reversed(keys)))
        return found

    cdef bint edges(self):
        cdef const char* start
        cdef Text value
        if not self.take(c'['):
            return False
        if self.take(c']'):
            return True
        while True:
            start = self.at
            if not self.edge():
                self.at = start
                if not self.skip(&value):
                    return False
                self.store._add_edge(json.loads(word_of(&value)), self.ids, 0)
            if not self.take(c','):
                return self.take(c']')

    cdef bint edge(self):
        """Reads an edge that begins with source and target. If many edges have the same rest, it is parsed only once."""
        cdef Edge e
        cdef Text word, source, target, tail
        cdef const char* start
        if not (self.take(c'{') and self.key(&word) and same(&word, b"source") and self.string(&source) and self.take(c',')
                and self.key(&word) and same(&word, b"target") and self.string(&target)):
            return False
        start = self.at
        if not self.take(c'}'):
            if not (self.take(c',') and self.key(&word) and same(&word, b"metadata") and self.skip(&tail) and self.take(c'}')):
                return False
        raw = start[:self.at - start]
        found = self.tails.get(raw)
        e.source, e.target = self.ids[word_of(&source)], self.ids[word_of(&target)]
        if found is None:
            self.store._add_edge(
                json.loads(b'{"source":"' + source.start[:source.length] + b'","target":"' + target.start[:target.length]
                           + b'"' + raw), self.ids, 0)
            e = self.store.edges.back()
            self.tails[raw] = (e.shape, bool(e.contains))
            return True
        e.shape, e.contains = found
        self.store.edges.push_back(e)
        return True


def scan(Store store not None, text):
    """Reads plain JGF text into an empty store. For any other text, returns False and leaves the store empty."""
    cdef Py_ssize_t length
    cdef Scanner scanner = Scanner()
    cdef bint units = store.units, good = False
    try:
        if isinstance(text, bytes):
            text = text.decode()
        scanner.at = PyUnicode_AsUTF8AndSize(text, &length)
        scanner.end = scanner.at + length
        scanner.store, scanner.raw_paths = store, []
        scanner.ids, scanner.shapes, scanner.property_sets, scanner.tails = {}, {}, {}, {}
        good = scanner.document()
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, FluxionError):
        pass
    if not good:
        store._empty()
        store.units = units
    return good
