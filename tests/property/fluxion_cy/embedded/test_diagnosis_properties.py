"""`why` says nothing that is untrue, whatever was done before."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ....tools.examples import examples
from ..claims import Claims
from ..test_model_properties import POLICIES, Pair, asks, graphs


@settings(max_examples=examples(120))
@given(graphs(), st.sampled_from(POLICIES), st.data())
def test_every_number_and_verdict_of_why_is_true(document: dict[str, Any], policy: str, data: st.DataObject) -> None:
    pair = Pair(document, policy, data)
    for _ in range(data.draw(st.integers(0, 8))):
        data.draw(st.sampled_from(Pair.OPERATIONS))(pair)
    for _ in range(4):
        ask = data.draw(asks())
        before = pair.matcher.stat()
        candidates = None if ask.candidates is None else list(ask.candidates)
        text = pair.matcher.why(ask.jobspec(), now=pair.now, candidates=candidates)
        wrong = Claims(pair.world, ask, pair.now).wrong(text)
        assert not wrong, (text, wrong)
        assert pair.matcher.stat() == before
        pair.compare()
