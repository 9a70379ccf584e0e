"""CEL libraries for selectors of devices: lists, strings, times, networks and URLs.

The expected results are those of Kubernetes 1.36.3 for the same expressions.
"""

from __future__ import annotations

import pytest

from .test_selectors import answer

TIMES = [
    'duration("1h") > duration("59m")',
    'duration("1h30m").getHours() == 1',
    'duration("1h30m").getMinutes() == 90',
    '!(duration("1.5s").getMilliseconds() == 500)',
    'duration("90s").getSeconds() == 90',
    'timestamp("2024-01-02T03:04:05Z").getFullYear() == 2024',
    'timestamp("2024-01-02T03:04:05Z").getMonth() == 0',
    'timestamp("2024-01-02T03:04:05Z").getDate() == 2',
    'timestamp("2024-01-02T03:04:05Z").getDayOfMonth() == 1',
    'timestamp("2024-01-02T03:04:05Z").getDayOfWeek() == 2',
    'timestamp("2024-01-02T03:04:05Z").getDayOfYear() == 1',
    'timestamp("2024-01-02T03:04:05Z").getHours() == 3',
    'timestamp("2024-01-02T03:04:05Z").getHours("+02:00") == 5',
    'timestamp("2024-01-02T03:04:05Z").getHours("America/New_York") == 22',
    'timestamp("2024-01-02T03:04:05Z") + duration("1h") == timestamp("2024-01-02T04:04:05Z")',
    'timestamp("2024-01-02T03:04:05Z") - timestamp("2024-01-02T02:04:05Z") == duration("1h")',
    'string(duration("1h")) == "3600s"',
    'string(timestamp("2024-01-02T03:04:05Z")) == "2024-01-02T03:04:05Z"',
    'int(timestamp("1970-01-01T00:00:01Z")) == 1',
    'timestamp(1) == timestamp("1970-01-01T00:00:01Z")',
    '[duration("1s"), duration("2s")].sum() == duration("3s")',
    'duration("1.5s").getMilliseconds() == 1500',
    'duration("0") == duration("0s")',
    'duration("-1h") < duration("1ns")',
    'duration("1us") == duration("1µs")',
    'duration("2562047h47m16.854775807s") > duration("0s")',
    'duration("1h") + duration("1h") == duration("2h")',
    'duration("1h") - duration("2h") == duration("-1h")',
    'int(duration("1s")) == 1000000000',
    'string(duration("1.5s")) == "1.5s"',
    'string(duration("-1.000000001s")) == "-1.000000001s"',
    'timestamp("2024-01-02T03:04:05.123456789Z").getMilliseconds() == 123',
    'string(timestamp("2024-01-02T03:04:05.120Z")) == "2024-01-02T03:04:05.12Z"',
    '!(string(timestamp("2024-01-02T03:04:05+02:00")) == "2024-01-02T01:04:05Z")',
    'string(timestamp("2024-01-02T03:04:05+02:00")) == "2024-01-02T03:04:05+02:00"',
    'timestamp("2024-01-02T03:04:05+02:00").getHours() == 1',
    '!(timestamp("2024-01-02T03:04:05+02:00").getHours() == 3)',
    'timestamp("2024-01-02T03:04:05Z") - duration("1h") < timestamp("2024-01-02T03:04:05Z")',
    'duration("1h") + timestamp("2024-01-02T03:04:05Z") > timestamp("2024-01-02T03:04:05Z")',
    'timestamp("2024-01-02T03:04:05Z").getHours("-00:30") == 2',
    'timestamp("2024-01-02T03:04:05Z").getHours("-02:30") == 0',
    'timestamp("2024-01-02T03:04:05Z").getHours("02:00") == 5',
    "timestamp(timestamp(0)) == timestamp(0)",
    'duration(duration("1s")) == duration("1s")',
    'type(duration("1s")) == google.protobuf.Duration',
    "type(timestamp(0)) == google.protobuf.Timestamp",
    '[duration("1s"), duration("2s")].max() == duration("2s")',
    "[timestamp(1), timestamp(2)].isSorted()",
    '!(optional.ofNonZeroValue(duration("0s")).hasValue())',
]
NETWORKS = [
    'ip("10.0.0.1").family() == 4',
    'isIP("::1") && !isIP("x")',
    'ip("::1").isLoopback()',
    'ip("fe80::1").isLinkLocalUnicast()',
    'ip("224.0.0.1").isLinkLocalMulticast()',
    'ip("10.0.0.1").isGlobalUnicast()',
    'ip("0.0.0.0").isUnspecified()',
    'ip.isCanonical("::1")',
    'ip("10.0.0.1") == ip("10.0.0.1")',
    'string(ip("10.0.0.1")) == "10.0.0.1"',
    'type(ip("10.0.0.1")) == net.IP',
    'cidr("10.0.0.0/8").containsIP("10.1.2.3")',
    'cidr("10.0.0.0/8").containsIP(ip("10.1.2.3"))',
    'cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16")',
    'cidr("10.0.0.0/8").containsCIDR(cidr("10.1.0.0/16"))',
    'cidr("10.0.0.0/8").ip() == ip("10.0.0.0")',
    'cidr("10.0.0.1/8").masked() == cidr("10.0.0.0/8")',
    'cidr("10.0.0.0/8").prefixLength() == 8',
    'isCIDR("10.0.0.0/8") && !isCIDR("10.0.0.0")',
    'string(cidr("10.0.0.0/8")) == "10.0.0.0/8"',
    'type(ip("::1")) == net.IP && type(cidr("::1/128")) == net.CIDR',
    '!(ip.isCanonical("::01"))',
    '!(ip.isCanonical("2001:DB8::1"))',
    'string(ip("2001:DB8:0:0:0:0:0:1")) == "2001:db8::1"',
    '!(ip("255.255.255.255").isGlobalUnicast())',
    'ip("ff02::1").isLinkLocalMulticast() && !ip("ff05::1").isLinkLocalMulticast()',
    'ip("ff12::1").isLinkLocalMulticast()',
    '!(ip("224.0.1.1").isLinkLocalMulticast())',
    'ip("169.254.1.1").isLinkLocalUnicast() && !ip("169.254.1.1").isGlobalUnicast()',
    'ip("fec0::1").isGlobalUnicast() && ip("127.9.9.9").isLoopback()',
    '!(ip("224.0.0.1").isGlobalUnicast() || ip("::").isGlobalUnicast())',
    '!(cidr("::/0").containsIP("10.0.0.1"))',
    '!(cidr("0.0.0.0/0").containsIP("::1"))',
    '!(cidr("10.0.0.0/8").containsCIDR("10.0.0.0/7"))',
    'cidr("10.0.0.0/8").containsCIDR("10.0.0.0/8")',
    'cidr("10.1.2.3/8").ip() == ip("10.1.2.3")',
    '!(cidr("10.1.2.3/8") == cidr("10.0.0.0/8"))',
    'isCIDR("::1/128") && !isCIDR("::1%a/128") && !isCIDR("::1/129")',
    'string(cidr("10.1.2.3/8")) == "10.1.2.3/8"',
]
URLS = [
    "isURL('//a b/')",
    'url("https://a.example:80/p?x=1").getHost() == "a.example:80"',
    'url("https://a.example:80/p?x=1").getHostname() == "a.example"',
    'url("https://a.example:80/p?x=1").getPort() == "80"',
    'url("https://a.example:80/p%20q?x=1").getEscapedPath() == "/p%20q"',
    'url("https://a.example:80/p?x=1&x=2").getQuery() == {"x": ["1", "2"]}',
    'url("https://a.example:80/p?x=1").getScheme() == "https"',
    'isURL("https://a.example") && !isURL("x y")',
    'url("/p").getHost() == ""',
    'url("https://user:pw@[::1]:80/a%2Fb c?x=%41&y#f").getHost() == "[::1]:80"',
    'url("https://[::1]:80/a%2Fb?x=%41&y#f").getHostname() == "::1"',
    'url("https://[::1]:80/a%2Fb?x=%41&y#f").getPort() == "80"',
    'url("https://[::1]:80/a%2Fb?x=%41&y#f").getEscapedPath() == "/a%2Fb"',
    'url("https://[::1]:80/a%2Fb?x=%41&y#f").getQuery() == {"x": ["A"], "y": [""]}',
    'url("HTTPS://EXAMPLE/").getScheme() == "https"',
    'url("HTTPS://EXAMPLE/").getHost() == "EXAMPLE"',
    'url("https://a:/").getPort() == ""',
    'url("mailto:x@y").getScheme() == "mailto"',
    '!(url("//h/p").getHost() == "")',
    'url("//h/p").getHost() == "h"',
    'url("https://a/b c").getEscapedPath() == "/b%20c"',
    'url("https://a/ä").getEscapedPath() == "/%C3%A4"',
    'url("https://a?x=a+b&z=1;2&q=%zz").getQuery() == {"x": ["a b"]}',
    'url("*").getHost() == ""',
    'isURL("/a?b#c") && isURL("https://a") && !isURL("https://a\\u0001") && !isURL("a")',
    'url("/a") == url("/a")',
    '!(url("https://a") == url("https://a/"))',
]
LISTS = [
    "[1, 2].reverse() == [2, 1]",
    "[1, 2, 3].slice(1, 2) == [2]",
    "[[1], [2]].flatten() == [1, 2]",
    "[3, 1, 2].sort() == [1, 2, 3]",
    "[3, 1, 2].sortBy(x, -x) == [3, 2, 1]",
    "[1, 1, 2].distinct() == [1, 2]",
    "lists.range(3) == [0, 1, 2]",
    "[1, 2].first().value() == 1",
    "[1, 2].last().value() == 2",
    "[1, 2].all(i, v, i < v)",
    "[1, 2].exists(i, v, i == 1 && v == 2)",
    "[1, 2].existsOne(i, v, v == 2)",
    "[1, 2].transformList(i, v, i + v) == [1, 3]",
    "[1, 2].transformList(i, v, i > 0, i + v) == [3]",
    '{"a": 1}.transformMap(k, v, v + 1) == {"a": 2}',
    '{"a": 1}.transformMap(k, v, v > 1, v + 1) == {}',
    '{"a": 1}.transformMapEntry(k, v, {v: k}) == {1: "a"}',
    "[1, 2].transformMap(i, v, v) == {0: 1, 1: 2}",
    "[1, 2, 3].reverse() == [3, 2, 1]",
    "[1, 2, 3].slice(0, 0) == []",
    "[[1, 2], [3]].flatten(0) == [[1, 2], [3]]",
    '["b", "a"].sort() == ["a", "b"]',
    "[true, false].sort() == [false, true]",
    "[].sort() == []",
    '["bb", "a"].sortBy(x, x.size()) == ["a", "bb"]',
    "[1, 1, 2, 1].distinct() == [1, 2]",
    "lists.range(0) == []",
    "lists.range(-1) == []",
    "lists.range(3).map(x, x * x) == [0, 1, 4]",
    "!([].first().hasValue() || [].last().hasValue())",
    '{"a": 1, "b": 2}.exists_one(k, v, v > 1)',
    '{"a": 1, "b": 2}.transformList(k, v, v > 1, k) == ["b"]',
    "[0, 1].exists(i, v, 1 / v > 0)",
    "optional.unwrap([optional.of(1), optional.none()]) == [1]",
    "[optional.of(1), optional.none()].unwrapOpt() == [1]",
]
TEXTS = [
    '"".split("") == []',
    '"".split(",") == [""]',
    '"abc".substring(3) == ""',
    '"abc".indexOf("") == 0',
    '"abc".lastIndexOf("") == 3',
    '"abcabc".lastIndexOf("b", 3) == 1',
    '!("abcabc".lastIndexOf("b", 10) == 1)',
    '"abcabc".indexOf("b", 2) == 4',
    '!("abcabc".indexOf("b", 10) == 4)',
    '"abc".replace("", "-") == "-a-b-c-"',
    '"abc".replace("b", "x", 0) == "abc"',
    '"abc".replace("b", "x", -1) == "axc"',
    '!(isSemver("1.2") || isSemver("01.2.3"))',
    'isSemver("v1.2", true)',
    'int("+5") == 5',
    "int(1.9) == 1 && int(-1.9) == -1",
    "uint(1.5) == 1u",
    'double("inf") > 0.0',
    '!(double("nan") == 1.0)',
    'string(1.0) == "1"',
    'string(1.5) == "1.5"',
    'string(1e21) == "1e+21"',
    '!(string(123456789.5) == "123456789.5")',
    'string(0.000001) == "1e-06"',
    'string(b"a") == "a"',
    'string(true) == "true"',
    '" \\u2003a\\u00a0".trim() == "a"',
    '["a"].indexOf("a") == 0 && ["a", "a"].lastIndexOf("a") == 1',
    'sign(quantity("-3")) == -1',
    'string(1000000.0) == "1e+06"',
    'string(123456.0) == "123456"',
    'string(1234567.0) == "1.234567e+06"',
    'string(0.00001) == "1e-05"',
    'string(0.0001) == "0.0001"',
    'string(1.0 / 0.0) == "+Inf"',
    'string(0.0 / 0.0) == "NaN"',
    'string(-1.5e-7) == "-1.5e-07"',
    'string(-0.0) == "-0"',
    '"abc".indexOf("c", 3) == -1',
    '"abc".indexOf("c", 4) == -1',
    '"abc".indexOf("", 3) == 3',
    '!("abc".lastIndexOf("a", 3) == 0)',
    '!("abc".lastIndexOf("a", 4) == 0)',
    '"abc".lastIndexOf("", 1) == 1',
    '"abc".replace("b", "", 1) == "ac"',
    '"aaa".replace("", "x", 2) == "xaxaa"',
    '"a-b".split("-", 1) == ["a-b"]',
    '"a-b".split("-", -5) == ["a", "b"]',
    '" \\t\\u0085\\u00a0\\u1680\\u2000\\u2028\\u202f\\u205f\\u3000a\\ufeff".trim() == "a\\ufeff"',
    'int("-9223372036854775808") < 0',
    'int("0001") == 1',
    'uint("18446744073709551615") > 1u',
    'double("1.") == 1.0',
    'double(".5") == 0.5',
    'double("1e5") == 100000.0',
    'double("Infinity") > 1.0',
    '!(isSemver("1.2.3+a..b") || isSemver("1.2.3-") || isSemver("1.2.3+"))',
    'isSemver("1.2.3+a-b.1") && isSemver("1.2.3--")',
    'isSemver("v1", true) && isSemver("01.02.03", true) && !isSemver("1.2.3.4", true)',
]


@pytest.mark.parametrize("text", [*TIMES, *NETWORKS, *URLS, *LISTS, *TEXTS])
def test_it_holds(text: str) -> None:
    assert answer(text) is True


FAIL = {
    '"abc".substring(4) == ""': "index out of range: 4",
    '"abc".substring(2,1) == ""': "invalid substring range. start: 2, end: 1",
    '"abcabc".indexOf("b", -1) == 4': "index out of range: -1",
    'timestamp("9999-12-31T23:59:59Z") + duration("1s") == timestamp(0)': "timestamp overflow",
    'timestamp("9999-12-31T23:59:59Z") - timestamp("0001-01-01T00:00:00Z") == duration("1s")': "integer overflow",
    'timestamp("2024-01-02T03:04:05Z").getHours("Nowhere/Nothing") == 1': "unknown time zone Nowhere/Nothing",
    'timestamp("2024-01-02T03:04:05Z").getHours("x:00") == 5': 'strconv.Atoi: parsing "x": invalid syntax',
    'ip("::ffff:1.2.3.4").family() == 6': 'IPv4-mapped IPv6 address "::ffff:1.2.3.4" is not allowed',
    'ip("fe80::1%eth0").family() == 6': 'IP address "fe80::1%eth0" with zone value is not allowed',
    'cidr("10.0.0.0/33").prefixLength() == 33': 'netip.ParsePrefix("10.0.0.0/33"): prefix length out of range',
    'cidr("10.0.0.0/08").prefixLength() == 8': 'netip.ParsePrefix("10.0.0.0/08"): bad bits after slash: "08"',
    'cidr("10.0.0.0").prefixLength() == 8': "netip.ParsePrefix(\"10.0.0.0\"): no '/'",
    'cidr("10.0.0.0/8").containsIP("x")': "no such overload",
    'cidr("10.0.0.0/8").containsCIDR("x")': "netip.ParsePrefix(\"x\"): no '/'",
    'url("https://a:b/").getPort() == "b"': 'parse "https://a:b/": invalid port ":b" after host',
    'url("https://a b/").getHost() == "a b"': 'parse "https://a b/": invalid character " " in host name',
    'url("https://a/%zz").getHost() == "a"': 'parse "https://a/%zz": invalid URL escape "%zz"',
    'url("relative").getHost() == ""': 'parse "relative": invalid URI for request',
    'url("").getHost() == ""': 'parse "": empty url',
    'url(":x").getHost() == ""': 'parse ":x": missing protocol scheme',
    'url("1http://x").getHost() == "x"': 'parse "1http://x": invalid URI for request',
    "[1, 2, 3].slice(2, 1) == []": "cannot slice(2, 1), start index must be less than or equal to end index",
    "[1, 2, 3].slice(-1, 1) == []": "cannot slice(-1, 1), negative indexes not supported",
    "[1, 2, 3].slice(0, 4) == []": "cannot slice(0, 4), list is length 3",
    "[[1]].flatten(-1) == [1]": "level must be non-negative",
    "lists.range(2000000).size() > 0": "operation cancelled: actual cost limit exceeded",
    '{"a": 1, "b": 1}.transformMapEntry(k, v, {v: k}).size() == 1': "insert failed: key 1 already exists",
    "[1, 0].all(i, v, 1 / v > 0) == false": "division by zero",
    "[1, 0].transformList(i, v, 1 / v) == []": "division by zero",
    "int(1.0 / 0.0) == 1": "integer overflow",
    '"abc".lastIndexOf("a", -1) == -1': "index out of range: -1",
    '"abc".substring(-1) == "abc"': "index out of range: -1",
}


FAIL |= {
    "semver('1-rc1', true).major() == 1": "short version cannot contain PreRelease/Build meta data",
    "semver('1.2.3-18446744073709551616').major() == 1": (
        'strconv.ParseUint: parsing "18446744073709551616": value out of range'
    ),
    "url('//a b/').getHost() == ''": 'invalid character " " in host name',
    "duration(dyn('1h1')) == duration('1h')": "type conversion error from 'string' to 'google.protobuf.Duration'",
    "timestamp(dyn('2024')) == timestamp(0)": "type conversion error from 'string' to 'google.protobuf.Timestamp'",
}


@pytest.mark.parametrize("text", FAIL)
def test_it_fails(text: str) -> None:
    assert FAIL[text] in answer(text)


def doubled(start: str, times: int, body: str) -> str:
    """The body, with `v` bound to the start, doubled `times` times."""
    for _ in range(times):
        body = f"cel.bind(v, v + v, {body})"
    return f"cel.bind(v, {start}, {body})"


def nested(start: str, times: int, body: str) -> str:
    """The body, with `v` bound to a list of two lists of two lists …, `times` levels deep."""
    for _ in range(times):
        body = f"cel.bind(v, [v, v], {body})"
    return f"cel.bind(v, {start}, {body})"


HUGE = {
    "joined by a long text": "cel.bind(parts, {}, {})".format(
        doubled("['a']", 14, "v"), doubled("'long'", 17, "parts.join(v) != v")
    ),
    "compared": nested("[1]", 40, "v == v.map(x, x)"),
    "searched": nested("[1]", 40, "v in [v.map(x, x)]"),
    "flattened": nested("[1]", 40, "v.flatten(50).size() > 0"),
    "made distinct": nested("[1]", 40, "[v, v.map(x, x)].distinct().size() > 0"),
    "counted": "lists.range(9223372036854775807).size() > 0",
}  # fmt: skip


@pytest.mark.parametrize("case", HUGE)
def test_short_expressions_with_huge_values_exceed_the_cost_limit(case: str) -> None:
    assert answer(HUGE[case], 200_000) == "operation cancelled: actual cost limit exceeded"


ODD = {
    "[1][dyn(1.0 / 0.0)] == 1": "unsupported index value +Inf in list",
    "[1][dyn(0.0 / 0.0)] == 1": "unsupported index value NaN in list",
    "dyn('a,b').split(',', dyn(18446744073709551615u)) == []": "no such overload",
    "dyn('a,b').replace(',', '', dyn(18446744073709551615u)) == ''": "no such overload",
    "'a'.findAll('a', dyn(18446744073709551615u)) == []": "no such overload",
    "timestamp('2024-01-01T00:00:00Z').getHours('99999999:00') == 1": "unknown time zone 99999999:00",
    "timestamp('0001-01-01T00:00:00Z').getHours('-23:00') == 1": "timestamp overflow",
    "timestamp('2024-01-01T00:00:00Z').getHours('../../etc/passwd') == 1": "unknown time zone ../../etc/passwd",
    "quantity('1e400').asApproximateFloat() < 1.0": False,
}


@pytest.mark.parametrize("text", ODD)
def test_odd_arguments_have_a_result_or_an_error_of_the_expression(text: str) -> None:
    assert answer(text) == ODD[text]
