"""CEL selectors of devices: the cases of Kubernetes' own tests, without list attributes (behind a feature gate)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from session_scheduler.model.cel.errors import CompileError
from session_scheduler.model.cel.program import Program
from session_scheduler.model.cel.values import QuantityValue, Record, Semver

GI = 2**30 * 10**9
FIELDS = ("driver", "attributes", "capacity", "allowMultipleAllocations")
OWN = {
    "number": 7,
    "name": "fish",
    "yes": True,
    "no": False,
    "version": Semver("1.2.3"),
    "services": "a.example,b.example",
}
DEVICE = {
    "driver": "d.example.com",
    "attributes": Record({"d.example.com": OWN, "other.example.com": {"name": "bird"}}),
    "capacity": Record({"d.example.com": {"memory": QuantityValue(2 * GI)}}),
    "allowMultipleAllocations": True,
}  # fmt: skip
A = 'device.attributes["d.example.com"]'
C = 'device.capacity["d.example.com"]'


def answer(text: str, limit: int = 1_000_000) -> Any:
    found, _ = Program(text, ("device",), FIELDS).evaluate({"device": DEVICE}, limit)
    return found if isinstance(found, bool) else str(found)


HOLD = [
    "true", "!false", "!!true", "1 + 2 * 3 == 7", "-7 / 2 == -3 && -7 % 2 == -1", "7.5 / 2.5 == 3.0",
    "1 == 1.0 && 1 == 1u",
    "2 < 3 && 2 <= 2 && 'a' < 'b' && 3u > 2u", "true != false", "'a' + 'b' == 'ab'", "[1, 2] + [3] == [1, 2, 3]",
    r"'\x41\u0042\103' == 'ABC' && r'\n' == '\\n' && b'\xff'.size() == 1", "'''a\n'b''' == \"a\\n'b\"", "0x1F == 31",
    "2 in [1, 2] && !(3 in [1, 2]) && 'k' in {'k': 1}", "{'a': {'b': [1, 2]}}.a.b[1] == 2",
    "{1: 'x', true: 'y'}[true] == 'y'",
    "[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2].exists_one(x, x == 2)",
    "[1, 2, 3].filter(x, x > 1) == [2, 3] && [1, 2].map(x, x * 2) == [2, 4] && [1, 2].map(x, x > 1, x) == [2]",
    "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])", "true ? 'a' == 'a' : 1 / 0 == 0", "false && 1 / 0 == 0 || true",
    "1 / 0 == 0 || true", "!(1 / 0 == 0 && false)", "[0, 1].exists(x, 1 / x == 1)", "!([0, 2].all(x, 1 / x == 1))",
    "int('7') == 7 && uint(7) == 7u && double('1.5') == 1.5 && string(7) == '7' && bool('true')",
    "type(1) == int && type('a') == string && size('äb') == 2 && [1].size() == 1 && {}.size() == 0",
    "'abc'.startsWith('ab') && 'abc'.endsWith('bc') && 'abc'.contains('b') && 'abc'.matches('^a.c$')",
    "'abc'.find('[bc]+') == 'bc' && 'a1b22'.findAll('[0-9]+') == ['1', '22']",
    "'Ab'.lowerAscii() == 'ab' && ' a '.trim() == 'a' && 'abc'.substring(1) == 'bc' && 'abc'.charAt(1) == 'b'",
    "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b' && 'aa'.replace('a', 'b', 1) == 'ba'",
    "'abcb'.indexOf('b') == 1 && 'abcb'.lastIndexOf('b') == 3 && [1, 2].indexOf(2) == 1",
    "[3, 1, 2].min() == 1 && [3, 1].max() == 3 && [1, 2].sum() == 3 && [1, 2].isSorted()",
    "sets.contains([1, 2], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 2], [2, 1, 1])",
    "optional.of(1).hasValue() && optional.none().orValue(2) == 2 && optional.of(3).value() == 3",
    "{'a': 1}.?b.orValue(2) == 2 && [1][?4].orValue(0) == 0 && [?optional.none(), 1] == [1]",
    "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('500m').compareTo(quantity('0.5')) == 0",
    "quantity('1k').asInteger() == 1000 && quantity('1').add(1).compareTo(quantity('2')) == 0",
    "isQuantity('5x') == false",
    "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-rc.1').compareTo(semver('1.0.0')) == -1",
    "semver('v1.2', true).minor() == 2 && isSemver('v1.0.0', true) && !isSemver('v1.0.0')",
    "device.driver == 'd.example.com' && device.allowMultipleAllocations", f"{A}.yes", f"{A}['yes']", f"!{A}.no",
    f"cel.bind(own, {A}, own.yes && own.number == 7)", f"{A}.version.isGreaterThan(semver('0.0.1'))",
    "device.attributes['other.example.com'].name == 'bird'", "!('no.example.com' in device.attributes)",
    "'d.example.com' in device.attributes", "!has(device.attributes['no.example.com'].name)", f"has({A}.name)",
    f"{C}.memory.isGreaterThan(quantity('1Ki'))", f"!('gone' in {C}) || {C}.gone.isGreaterThan(quantity('1'))",
    "device.attributes.exists_one(x, x == 'd.example.com')", f"{A}.services.split('example').size() >= 2",
]  # fmt: skip


@pytest.mark.parametrize("text", HOLD)
def test_it_holds(text: str) -> None:
    assert answer(text) is True


FAIL = {
    'device.attributes["no.example.com"].noSuchAttr == 1': "no such key: noSuchAttr",
    f"{A}['nothing'] == 1": "no such key: nothing",
    f"{A}.number.exists(x, x > 0)": "got 'types.Int', expected iterable type",
    f"{A}.name.exists(x, x == 'f')": "got 'types.String', expected iterable type",
    f"{A}.version.exists(x, true)": "got 'cel.Semver', expected iterable type",
    f"{A}.name": "CEL result of type string could not be converted to bool",
    f"{A}.name && true": "no such overload", f"{A}.name > 1": "no such overload", "1 / 0 == 1": "division by zero",
    "1 % 0 == 1": "modulus by zero", "[1][3] == 1": "index out of bounds: 3",
    "9223372036854775807 + 1 > 0": "integer overflow", "1u - 2u > 0u": "unsigned integer overflow",
    "optional.none().value() == 1": "optional.none() dereference",
    "{'a': 1, 'a': 2}.a == 1": "Failed with repeated key: a",
    "'a'.matches('(')": "error parsing regexp", "int('x') == 1": "type conversion error from 'string' to 'int'",
}  # fmt: skip


@pytest.mark.parametrize("text", FAIL)
def test_it_fails(text: str) -> None:
    assert FAIL[text] in answer(text)


WRONG = {
    "?!": "Syntax error", "1": "must evaluate to bool or the unknown type, not int",
    "device.nothing": "undefined field 'nothing'",
    "nothing == 1": "undeclared reference to 'nothing'",
    "has(device)": "invalid argument to has() macro", "[1].all(1, true)": "argument must be a simple name",
    "'a": "Syntax error", "(" * 200 + "true" + ")" * 200: "nested too deeply", "true " * 5000: "more than 10240",
    "-9223372036854775809 == 1": "invalid int literal",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_it_does_not_compile(text: str) -> None:
    with pytest.raises(CompileError, match=re.escape(WRONG[text])):
        Program(text, ("device",), FIELDS)


PLACES = {
    "a.b.c == 1": ("1:1", "undeclared reference to 'a' (in container '')", "a.b.c == 1", ""),
    "true && wrong(1)": ("1:14", "undeclared reference to 'wrong' (in container '')", "true && wrong(1)", "." * 13),
    "device.driver.wrong()": ("1:20", "undeclared reference to 'wrong' (in container '')", "device.driver.wrong()",
                              "." * 19),
    "device.driver == 'a' &&\n\tdevice.wrong.x": ("2:8", "undefined field 'wrong'", " device.wrong.x", "." * 7),
    "has(device.wrong)": ("1:4", "undefined field 'wrong'", "has(device.wrong)", "..."),
    "'\u00e9' == wrong": ("1:8", "undeclared reference to 'wrong' (in container '')", "'\u00e9' == wrong",
                           ".\uff0e....."),
    "cel.bind(1, 2, 3)": ("1:10", "cel.bind() variable names must be simple identifiers", "cel.bind(1, 2, 3)", "." * 9),
    "[1].map(1, 2)": ("1:9", "argument is not an identifier", "[1].map(1, 2)", "." * 8),
    "[1].exists(x, x, true)": ("1:15", "duplicate variable name: x", "[1].exists(x, x, true)", "." * 14),
}  # fmt: skip


@pytest.mark.parametrize("text", PLACES)
def test_a_compile_error_shows_the_line_and_the_position(text: str) -> None:
    with pytest.raises(CompileError) as caught:
        Program(text, ("device",), FIELDS)
    where, what, line, dots = PLACES[text]
    assert str(caught.value) == f"compilation failed: ERROR: <input>:{where}: {what}\n | {line}\n | {dots}^"


def test_the_cost_is_limited_and_equal_in_each_run() -> None:
    inner = "int('1'.find('[0-9]*')) < 100"
    for depth in range(7):
        inner = f"[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].all(x{depth}, {inner})"
    program = Program(inner, ("device",), FIELDS)
    first, second = (program.evaluate({"device": DEVICE}, 20_000) for _ in range(2))
    assert str(first[0]) == "operation cancelled: actual cost limit exceeded"
    assert first[1] == second[1] > 20_000
    assert program.evaluate({"device": DEVICE}, 1_000)[1] < 2_000


def test_the_default_cost_limit_is_a_million() -> None:
    program = Program("x.contains('y')", ("x",), {})
    most = "x" * 9_999_970
    assert program.evaluate({"x": most}) == (False, 1_000_000)
    assert str(program.evaluate({"x": most + 10 * "x"})[0]) == "operation cancelled: actual cost limit exceeded"


def test_an_evaluation_without_a_bool_result_has_a_cost() -> None:
    program = Program("x", ("x",), {})
    found, cost = program.evaluate({"x": "text"})
    assert "could not be converted to bool" in str(found)
    assert cost == program.evaluate({"x": True})[1] > 0


def test_long_strings_and_regular_expressions_have_a_cost() -> None:
    doubling = "'" + "x" * 100 + "'"
    for name in "abcdefghijklmnopqrst":
        doubling = f"cel.bind({name}, {doubling}, {name} + {name})"
    assert "cost limit" in answer(f"{doubling}.size() > 0")
    assert answer("'" + "a" * 5000 + "!'.matches('^(a+)+$') == false") is True  # no pattern takes exponential time


@pytest.mark.parametrize(
    "each", ["s < t", "s >= t", "[s, t].max() == s", "[s, t].isSorted()", "t in {s: 1}", "{s: 1}[t] == 1",
             "bytes(s).size() > 0", "string(b).size() > 0"],
)  # fmt: skip
def test_long_strings_cost_more_than_short_ones_in_each_operation(each: str) -> None:
    def cost(of: str) -> int:
        bound = f"cel.bind(s, '{'a' * 8_000}', cel.bind(t, s + '', cel.bind(b, bytes(s), {of})))"
        return Program(bound, ("device",), FIELDS).evaluate({"device": DEVICE})[1]

    assert cost(each) - cost("true") > 8_000 // 10


def test_long_chains_are_not_deep() -> None:
    assert answer(" && ".join(["true"] * 1000)) is True
    with pytest.raises(CompileError, match="nested too deeply"):
        answer(" + ".join(["1"] * 2000))
    with pytest.raises(CompileError, match="invalid int literal"):
        answer("9" * 9000 + " == 1")
