"""A request to the engine: compiled once, matched at one or several seconds."""

import marshal
from array import array
from dataclasses import dataclass
from typing import Any

from fluxion_cy.base.arguments import NO_CAP, buffer_of, entries_of, scores_of, slots_of
from fluxion_cy.engine.engine import Engine
from fluxion_cy.engine.jobs import AT_ONCE, MatchOp
from fluxion_cy.engine.match_plan import Form, MatchPlan, Terms
from fluxion_cy.errors import Busy, InvalidJobspec, Unsatisfiable
from fluxion_cy.jobspec.alternatives import variants
from fluxion_cy.jobspec.constraint import Program, compile_rule
from fluxion_cy.jobspec.layout import Layout, lay_out
from fluxion_cy.jobspec.reader import FOREVER, Jobspec, Resource, read

_SIBLINGS, _SHARED, _NOTHING, _TOO_MANY, _UNSPELLED = 1, 2, 3, 4, 6
_IS_SLOT = 9
_KEPT = 256
_MOST_BYTES = 64 << 20
_PLAIN = (str, int, float, bool, type(None), dict, list, tuple)


@dataclass(slots=True)
class Compiled:
    """A jobspec laid out for one state of an engine's tables (`tables`). The search tries its `forms` in order."""

    spec: Jobspec
    forms: list[list[Resource]]
    layouts: list[Layout]
    requests: list[Form]
    terms: Terms
    tables: tuple[int, int, int, int]
    plan: MatchPlan | None = None
    """The same for the fast path, if there is a single form."""

    def weight(self) -> int:
        """The memory of the compiled jobspec in bytes, estimated."""
        rows = sum(len(layout.rows) * (5 + len(layout.top_need)) for layout in self.layouts)
        rule = self.spec.constraint
        return 120 * rows + self.terms.weight() + (rule.weight() if rule is not None else 0)


class Compiler:
    """Reads jobspecs and lays them out, equal ones only once: a scheduler requests the same ones again and again."""

    def __init__(self, engine: Engine, flexible: bool = False) -> None:
        self._engine = engine
        self._flexible = flexible
        #: Compiled jobspecs by their text, or by their marshalled form.
        self.known: dict[str | bytes, Compiled] = {}
        self._weights: dict[str | bytes, int] = {}
        self._weight = 0

    def again(self, compiled: Compiled) -> Compiled:
        """The same jobspec for the tables as they are now."""
        tables = self._engine.tables()
        return compiled if compiled.tables == tables else self._laid_out(compiled.spec, tables)

    def __call__(self, jobspec: Any) -> Compiled:
        """The compiled jobspec. Raises the errors of `read` and `lay_out`."""
        tables = self._engine.tables()
        key: str | bytes
        try:
            # marshal writes shared and cyclic parts as references, and any buffer as bytes
            if type(jobspec) is str:
                key = jobspec
            else:
                key = b"\0" + jobspec if type(jobspec) is bytes else marshal.dumps(jobspec, 4)
        except ValueError:  # not a JSON value, or nested too deeply
            return self._compile(jobspec, tables)
        found = self.known.get(key)
        if found is None or found.tables != tables:
            if isinstance(key, bytes) and type(jobspec) is dict:  # a copy: another thread may change it
                jobspec = marshal.loads(key)  # noqa: S302 - what has just been written
            found = self._compile(jobspec, tables)
            if _plain(jobspec):  # otherwise another kind of value may have the same key
                self._keep(key, found)
        return found

    def _keep(self, key: str | bytes, found: Compiled) -> None:
        """Caches the latest, up to a number and a weight; a jobspec that is too heavy by itself is not cached."""
        self._forget(key)
        weight = found.weight() + len(key)
        if weight > _MOST_BYTES:
            return
        while self.known and (len(self.known) >= _KEPT or self._weight + weight > _MOST_BYTES):
            self._forget(next(iter(self.known)))
        self.known[key], self._weights[key] = found, weight
        self._weight += weight

    def _forget(self, key: str | bytes) -> None:
        self.known.pop(key, None)
        self._weight -= self._weights.pop(key, 0)

    def _compile(self, jobspec: Any, tables: tuple[int, int, int, int]) -> Compiled:
        return self._laid_out(read(jobspec), tables)

    def _laid_out(self, spec: Jobspec, tables: tuple[int, int, int, int]) -> Compiled:
        engine = self._engine
        forms = variants(spec.resources) if self._flexible else [spec.resources]
        if not self._flexible and any(_has_xor(resource) for resource in spec.resources):
            raise InvalidJobspec('resources: xor_slot needs a matcher with traverser="flexible"')
        columns = {engine.types[kind]: i for i, kind in enumerate(engine.column_types())}
        forms, layouts = _laid_out(forms, engine, columns)
        rule = spec.constraint
        program = compile_rule(rule, engine.sym_ids, engine.props) if rule is not None else Program()
        terms = Terms(program.rules, program.links, program.prop_ok, program.hosts, program.spans, program.chosen)
        requests = [_form(layout) for layout in layouts]
        plan = MatchPlan(requests[0], terms, spec.duration, tables) if len(requests) == 1 else None
        return Compiled(spec, forms, layouts, requests, terms, tables, plan)


def _form(layout: Layout) -> Form:
    return Form(layout.rows, layout.needs, layout.top_need, layout.tops, layout.top_slots, layout.choices)


def _laid_out(
    forms: list[list[Resource]], engine: Engine, columns: dict[str, int]
) -> tuple[list[list[Resource]], list[Layout]]:
    """The forms whose types the graph knows, and their tables. Raises the first error if there is no such form."""
    found, problem = [], None
    for form in forms:
        try:
            found.append((form, lay_out(form, engine.type_ids, columns)))
        except InvalidJobspec as error:
            problem = problem or error
    if not found and problem is not None:
        raise problem
    return [form for form, _ in found], [layout for _, layout in found]


class Question:
    """The search for a jobspec in one engine; invalid after the graph changes."""

    def __init__(self, engine: Engine, compiled: Compiled, candidates: Any, prefer: Any, tried: bool = False) -> None:
        """`tried`: the engine has just found no match of the one form at the first second to search."""
        self._engine = engine
        self.duration = compiled.spec.duration
        self._layouts, self._forms = compiled.layouts, compiled.requests
        self._gather = [False] * len(self._layouts)
        self._trouble: tuple[int, int] = (0, -1)
        self._asked, self._tried = -1, tried
        # first, because an iterator may call this engine
        candidates, prefer = _array_or_list(candidates, "candidates"), _array_or_list(prefer, "prefer")
        self._ask(0)
        engine.constrain(compiled.terms)
        engine.restrict([], False, [])
        if candidates is not None:
            _allow(engine, candidates)
        if prefer is not None and engine.like(_of_ranks(scores_of(prefer), engine)):
            raise InvalidJobspec("prefer: an entry is not a number (NaN)")

    def _ask(self, which: int) -> None:
        """Passes one of the forms to the engine, unless it has it."""
        if which != self._asked:
            self._engine.ask(self._forms[which])
            self._asked = which

    def now(self, now: int) -> bool:
        """Whether the jobspec matches at `now`, by gathering if nothing else could ever match."""
        return any(self._now(which, now) for which in range(len(self._layouts)))

    def _now(self, which: int, now: int) -> bool:
        if self._try(which, now):
            return True
        if not self._gather[which] and self._only_gathered(which):
            self._gather[which] = True
            return self._try(which, now)
        return False

    def _could_gather(self, which: int) -> bool:
        return self._engine.deep and any(row[_IS_SLOT] for row in self._layouts[which].rows)

    def may_gather(self, which: int) -> bool:
        """Whether slots of a form may take their children from anywhere below a node.

        Compatible: the jobspec spells out every level below the first match, so only slots at the top gather.
        """
        at_top = self._layouts[which].top_slots > 0
        return (at_top or not self._engine.node_only) and self._could_gather(which)

    def _only_gathered(self, which: int) -> bool:
        return self.may_gather(which) and not self._ever(which, False) and self._ever(which, True)

    def _try(self, which: int, at: int) -> bool:
        self._ask(which)
        found = not self._tried and self._engine.match(at, at + self.duration, False, self._gather[which])
        self._tried = False
        matched = self._checked(found)
        self._trouble = self._engine.trouble()
        return matched

    def _ever(self, which: int, gather: bool) -> bool:
        self._ask(which)
        return self._checked(self._engine.match(0, self.duration, True, gather))

    def _checked(self, matched: bool) -> bool:
        """Returns `matched`. Raises InvalidJobspec for errors that are independent of the graph."""
        code = self._engine.trouble()[0]
        if code == _NOTHING:
            raise InvalidJobspec(
                "resources: the match has no exclusive resource; put one under a slot, or set exclusive: true"
            )
        if code == _TOO_MANY:
            raise InvalidJobspec("resources: more than a million slots at one vertex; request fewer")
        return matched

    def ever(self) -> bool:
        """Whether the jobspec matches the empty graph with everything up."""
        return any(self._ever_at_all(which) for which in range(len(self._layouts)))

    def _ever_at_all(self, which: int) -> bool:
        gather = self._gather[which]
        return self._ever(which, gather) or (not gather and self.may_gather(which) and self._ever(which, True))

    def later(self, now: int, before: int | None = None, changes: int | None = None) -> int | None:
        """The first second after `now` (and before `before`) at which it matches, or None.

        `changes` limits how many of the seconds are tried at which a job begins or ends.
        """
        at = self._engine.next_change(now)
        last = now + FOREVER if before is None else before
        while at is not None and at < last and changes != 0:
            if any(self._try(which, at) for which in range(len(self._layouts))):
                return int(at)
            at = self._engine.next_change(at)
            changes = None if changes is None else changes - 1
        return None

    def why_not(self) -> str:
        """The engine's reason for the last failure, with a colon before it, or nothing."""
        code, vertex = self._trouble
        if code == _SIBLINGS:
            where = self._engine.path(vertex)
            return f": sibling entries of the jobspec match the same vertex {where}"
        if code == _SHARED:
            path = self._engine.path(vertex)
            return f": the jobspec sets exclusive: false below a slot, but {path} would be exclusive there"
        if code == _UNSPELLED:
            return (
                f": a slot requests {self._engine.path(vertex)}, but the jobspec omits levels above this vertex; "
                "write them out, or use compatible=False"
            )
        if any(map(self._wants_levels, range(len(self._layouts)))):
            return (
                ": the slot needs resources from several vertices below its parent; write out the levels in between, "
                "or use compatible=False"
            )
        return ""

    def _wants_levels(self, which: int) -> bool:
        """Whether a form would match by gathering if compatible mode allowed it."""
        if not self._could_gather(which) or self.may_gather(which):
            return False
        return not self._ever(which, False) and self._ever(which, True)

    def seek(self, op: MatchOp, now: int) -> int:
        """The second at which an operation matches. Raises Busy, or Unsatisfiable if it never matches."""
        if self.now(now):
            return now
        at = None if op in AT_ONCE or op is MatchOp.ALLOCATE_W_SATISFIABILITY else self.later(now)
        if at is not None:
            return at
        reason = self.why_not()
        if op in AT_ONCE or self.ever():
            raise Busy(f"jobspec: no match now{reason}")
        raise Unsatisfiable(
            f"jobspec: no match even if nothing were allocated and every vertex were up{reason}; "
            "why() reports what is missing"
        )


def _plain(jobspec: Any) -> bool:
    """Whether it has JSON values only, so that no other value has the same marshalled form."""
    if type(jobspec) is bytes:
        return True
    left, seen = [jobspec], set[int]()
    while left:
        value = left.pop()
        if type(value) in (dict, list, tuple) and id(value) not in seen:
            seen.add(id(value))
            left += [*value, *value.values()] if type(value) is dict else value
        elif type(value) not in _PLAIN:
            return False
    return True


def _has_xor(resource: Resource) -> bool:
    return resource.type == "xor_slot" or any(_has_xor(child) for child in resource.children)


def _array_or_list(value: Any, what: str) -> Any:
    """An array unchanged, anything else as a list."""
    return value if value is None or buffer_of(value) is not None else entries_of(value, what)


def _allow(engine: Engine, value: Any) -> None:
    """Passes the candidates to the engine: true or false by rank, or numbers of slots, with true for any number."""
    view = None if isinstance(value, (bytes, bytearray)) else buffer_of(value)
    if view is not None and view.format == "?":
        engine.allow(_of_ranks(view.cast("B"), engine))
        return
    if view is not None and view.format in ("l", "q") and view.itemsize == 8:
        slots: Any = view
    else:
        found = slots_of(value) or [False]
        if all(type(slot) is bool for slot in found):
            engine.allow(_of_ranks(bytes(found), engine))
            return
        slots = array("q", [NO_CAP if slot is True else slot for slot in found])
    if engine.cap(_of_ranks(slots, engine)):
        raise InvalidJobspec("candidates: a number of slots is negative")


def _of_ranks(entries: Any, engine: Engine) -> Any:
    """Without the entries above the highest rank: an array may have any length."""
    end = max(1, engine.rank_end)
    return entries if len(entries) <= end else entries[:end]
