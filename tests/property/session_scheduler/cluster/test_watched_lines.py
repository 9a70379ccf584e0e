"""A watch's stream gives the same lines wherever it is split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from session_scheduler.cluster.kube_watch import LineSplitter


@given(st.lists(st.binary().filter(lambda text: b"\n" not in text and text), max_size=8), st.data())
def test_every_split_of_a_stream_gives_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(one + b"\n" for one in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    splitter = LineSplitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += splitter.feed(text[start:end])
    assert found == lines
