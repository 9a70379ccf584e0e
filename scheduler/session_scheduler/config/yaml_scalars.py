"""Three rules for reading a plain (unquoted) YAML scalar, for `yaml_text`.

Times and dates are text in all of them. Source: YAML 1.1 as sigs.k8s.io/yaml reads it; YAML 1.2.2, section 10.3 (the
core schema).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

Scalars = Literal["kubernetes", "json", "text"]
"""How to read plain scalars: as in YAML 1.1 (`yes` is true), as in YAML 1.2 (`yes` is text), or as text except null.

`010` is 8 in YAML 1.1 and 10 in YAML 1.2. Quoted scalars are always text.
"""

_NULL: dict[str, object] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_BOOL: dict[str, object] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_KUBERNETES_WORDS: dict[str, object] = {
    **_NULL,
    **_BOOL,
    **dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False),
}
_JSON_WORDS = {
    **_NULL,
    **_BOOL,
    **{sign + word: float(sign + word[1:]) for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_NUMBER_STARTS = frozenset("0123456789+-.")
_INT_1_1 = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
_FLOAT_1_1 = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]*[0-9])(?:[eE][-+]?[0-9]+)?")
_INT_1_2 = re.compile(r"[-+]?[0-9]+")
_PREFIXED_1_2 = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT_1_2 = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


def _number(text: str) -> object:
    """A number of YAML 1.1, or the text."""
    digits = text.replace("_", "")
    try:
        if _INT_1_1.fullmatch(text):
            unsigned = digits.lstrip("+-")
            octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
            return int(digits, 8) if octal else int(digits, 0)
        return float(digits) if _FLOAT_1_1.fullmatch(text) else text
    except ValueError:  # such as 0x_, or more digits than Python converts
        return text


def _plain_kubernetes(text: str) -> object:
    if text in _KUBERNETES_WORDS:
        return _KUBERNETES_WORDS[text]
    return _number(text) if text[0] in _NUMBER_STARTS else text


def _plain_json(text: str) -> object:
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    try:
        if _INT_1_2.fullmatch(text):
            return int(text)
        if _PREFIXED_1_2.fullmatch(text):
            return int(text, 0)
        return float(text) if _FLOAT_1_2.fullmatch(text) else text
    except ValueError:  # more digits than Python converts
        return text


def _plain_text(text: str) -> object:
    return None if text in _NULL else text


PLAIN: dict[Scalars, Callable[[str], object]] = {
    "kubernetes": _plain_kubernetes,
    "json": _plain_json,
    "text": _plain_text,
}
"""The function of each rule."""
