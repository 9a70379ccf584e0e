# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Writes idsets (RFC 22) and hostlists (RFC 29), also without the GIL. `base.ranges` reads them."""
from libc.stdint cimport int32_t, int64_t
from libcpp.algorithm cimport sort
from libcpp.string cimport string, to_string
from libcpp.vector cimport vector

cdef size_t MOST_DIGITS = 18  # more digits would overflow; further digits belong to the stem


def idset_text(numbers):
    """The idset of numbers: `0-3,7` for 7, 0, 1, 2, 3."""
    cdef vector[int64_t] found = list(numbers)
    return idset_of(found).decode()


def hostlist_text(names):
    """The hostlist of hosts in their order, such as `node[0-3],login`. Only adjacent hosts are joined."""
    cdef Names known = Names()
    cdef vector[int32_t] which
    for name in names:
        which.push_back(<int32_t> known.names.size())
        known.add(name)
    return known.hostlist(which).decode("utf-8", "surrogatepass")


cdef string idset_of(vector[int64_t]& numbers) noexcept nogil:
    """Sorts these numbers, and returns their idset."""
    cdef string text
    cdef size_t k = 0
    cdef int64_t low, high
    sort(numbers.begin(), numbers.end())
    while k < numbers.size():
        low = high = numbers[k]
        while k < numbers.size() and (numbers[k] == high or numbers[k] - 1 == high):
            high = numbers[k]
            k += 1
        if not text.empty():
            text.append(b",")
        text.append(to_string(low))
        if high > low:
            text.append(b"-")
            text.append(to_string(high))
    return text


cdef struct Run:
    int64_t low
    int64_t high
    int32_t stem
    int32_t width


cdef string padded(int64_t number, int32_t width) noexcept nogil:
    """The number with leading zeros up to `width` digits."""
    cdef string digits = to_string(number)
    if <int32_t> digits.size() >= width:
        return digits
    return string(<size_t> width - digits.size(), <char> 48) + digits


cdef int32_t zeros(int64_t number, int32_t width) noexcept nogil:
    """The number of leading zeros of a number that is written with `width` digits."""
    cdef int32_t digits = 1
    while number >= 10:
        number //= 10
        digits += 1
    return width - digits if width > digits else 0


cdef bint same_width(Run* run, int64_t number, int32_t width) noexcept nogil:
    """Gives a run and the host after it the same width. Returns whether this is possible."""
    if zeros(run.low, run.width) == zeros(run.low, width):
        run.width = width
        return True
    return zeros(number, width) == zeros(number, run.width)


cdef bint goes_on(Run* run, HostName* name) noexcept nogil:
    """Appends a host to a run if its number is the next one, with matching leading zeros. Returns whether it is."""
    cdef bint longer
    if name.number != run.high + 1 or name.stem != run.stem or not (run.width and name.width):
        return False
    # from node9 to node10
    longer = name.width > run.width and zeros(name.number, name.width) == 0
    if name.width != run.width and not longer and not same_width(run, name.number, name.width):
        return False
    run.high = name.number
    return True


cdef void add_numbers(Run* runs, size_t count, string* text) noexcept nogil:
    """Writes the numbers of runs with one stem, in brackets if there are several."""
    cdef size_t i
    cdef bint several = count > 1 or runs.low != runs.high
    if several:
        text.append(b"[")
    for i in range(count):
        if i:
            text.append(b",")
        text.append(padded(runs[i].low, runs[i].width))
        if runs[i].high > runs[i].low:
            text.append(b"-")
            text.append(padded(runs[i].high, runs[i].width))
    if several:
        text.append(b"]")


cdef class Names:
    """Names of hosts, each parsed once: its stem and the number at its end."""

    cdef add(self, str name):
        cdef string text = name.encode("utf-8", "surrogatepass")
        cdef HostName found
        cdef size_t digits = 0
        found.number = 0
        while digits < text.size() and digits < MOST_DIGITS and 48 <= text[text.size() - 1 - digits] <= 57:
            digits += 1
        for k in range(text.size() - digits, text.size()):
            found.number = 10 * found.number + (text[k] - 48)
        text.resize(text.size() - digits)
        if not self.stem_ids.count(text):
            self.stem_ids[text] = <int32_t> self.stems.size()
            self.stems.push_back(text)
        found.stem, found.width = self.stem_ids[text], <int32_t> digits
        self.names.push_back(found)

    cdef string hostlist(self, vector[int32_t]& which) noexcept nogil:
        """The hostlist of these names, in their order."""
        cdef vector[Run] runs
        cdef Run run
        cdef HostName* name
        cdef string text
        cdef size_t k, first = 0, last, i
        for k in range(which.size()):
            name = &self.names[which[k]]
            if runs.empty() or not goes_on(&runs.back(), name):
                run.low, run.high, run.stem, run.width = name.number, name.number, name.stem, name.width
                runs.push_back(run)
        while first < runs.size():
            last = first + 1
            while last < runs.size() and runs[first].width and runs[last].width and runs[last].stem == runs[first].stem:
                last += 1
            if first:
                text.append(b",")
            text.append(self.stems[runs[first].stem])
            if runs[first].width:
                add_numbers(&runs[first], last - first, &text)
            first = last
        return text
