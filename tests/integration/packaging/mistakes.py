"""A program with mistakes that a type checker finds: each line names the expected error."""

from fluxion_cy import Allocation, Busy, Matcher
from fluxion_cy.engine.scan import scan

matcher = Matcher()  # call-arg
matcher = Matcher({}, polcy="low")  # call-arg
matcher = Matcher({}, policy=1)  # arg-type
matcher = Matcher({}, replan="yes")  # arg-type
matcher.allocate({}, "1")  # arg-type
matcher.allocate({}, 1, 0)  # misc, call-arg
matcher.allocat({})  # attr-defined
matcher.satisfy({}, jobid=1)  # call-arg
matcher.cancel("1")  # arg-type
matcher.set_properties("/a", {"a": 1})  # dict-item
matcher.next_jobid = "1"  # assignment
allocation: Allocation = matcher.info(1)  # assignment
allocation.jobid = 2  # misc
print(allocation.mode)  # attr-defined
number: str = matcher.update_allocate(1, {}).at  # assignment
matcher.find("status=up")["graph"]  # index
Busy("no place", "EBUSY")  # arg-type
scan(matcher, 1)  # arg-type
