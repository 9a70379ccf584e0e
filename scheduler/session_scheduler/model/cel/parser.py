"""CEL parser: an expression's text to a tree. The grammar is the language's, with `?.` and `[?…]` for optional parts.

Nodes are tuples whose first entry is their kind:
("const", value), ("ident", name), ("select", of, field, optional), ("index", of, index, optional),
("call", function, target or None, arguments), ("list", elements), ("map", pairs), ("and" | "or", left, right),
("not", of), ("if", condition, then, else). An optional element, or value of a pair, is wrapped as ("optional", …).
"""

from __future__ import annotations

import re
from typing import Any, Final

from session_scheduler.model.cel.errors import CompileError
from session_scheduler.model.cel.values import UInt

Tree = tuple[Any, ...]
Places = dict[int, int]
"""Positions of names, selections and calls in the text, by the id() of their trees; valid while the trees live."""
LONGEST: Final = 10 * 1024
"""The maximum size in bytes of an expression, as in the API."""
_LONGEST_NUMBER: Final = 64
_DEEPEST: Final = 100
"""The deepest nesting of an expression: deeper trees could exhaust the stack."""

_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n\f]+|//[^\n]*)
    |(?P<float>(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?))
    |(?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
    |(?P<text>(?:[rR][bB]?|[bB][rR]?)?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<quoted>`[a-zA-Z0-9_./ -]+`)
    |(?P<name>[_a-zA-Z][_a-zA-Z0-9]*)
    |(?P<sign>&&|\|\||[<>=!]=|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL,
)
_RESERVED: Final = frozenset((
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
))  # fmt: skip
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_RELATIONS: Final = ("<", "<=", ">", ">=", "==", "!=", "in")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\"'`?\\])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)


def parse(text: str) -> tuple[Tree, Places]:
    """The tree of an expression, and the positions in its text. Raises CompileError."""
    size = len(text.encode())
    if size > LONGEST:
        raise CompileError(f"the expression has {size} bytes, more than {LONGEST}")
    parser = _Parser(text)
    return parser.whole(), parser.places


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self.places: Places = {}

    def whole(self) -> Tree:
        tree = self._expression()
        if self._kind != "end":
            raise self._wrong()
        return tree

    # ------------------------------------------------------------------ tokens

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _advance(self) -> str:
        text = self._text
        self._at += 1
        return text

    def _placed(self, tree: Tree, token: int) -> Tree:
        """The tree, after recording that it is at the position of a token."""
        self.places[id(tree)] = self._tokens[token][2]
        return tree

    def _accept(self, *signs: str) -> str | None:
        kind, text = self._tokens[self._at][:2]
        if text in signs and (kind == "sign" or (kind == "name" and text == "in")):
            return self._advance()
        return None

    def _expect(self, sign: str) -> None:
        if self._accept(sign) is None:
            raise self._wrong()

    def _wrong(self) -> CompileError:
        kind, text, place = self._tokens[self._at]
        what = "<EOF>" if kind == "end" else f"'{text}'"
        return CompileError(f"compilation failed: ERROR: <input>:1:{place + 1}: Syntax error: unexpected {what}")

    # ------------------------------------------------------------------ the grammar, by ascending precedence

    def _expression(self) -> Tree:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise CompileError("compilation failed: the expression is nested too deeply")
        condition = self._chain("||", "or", lambda: self._chain("&&", "and", self._relation))
        if self._accept("?"):
            then = self._chain("||", "or", lambda: self._chain("&&", "and", self._relation))
            self._expect(":")
            condition = ("if", condition, then, self._expression())
        self._depth -= 1
        return condition

    def _chain(self, sign: str, name: str, part: Any) -> Tree:
        """Parts joined by one operator, as a balanced tree, so that long chains are not deep."""
        parts = [part()]
        while self._accept(sign):
            parts.append(part())
        return _balanced(name, parts)

    def _relation(self) -> Tree:
        left = self._sum()
        while (sign := self._accept(*_RELATIONS)) is not None:
            left = self._joined(sign, left, self._sum())
        return left

    def _sum(self) -> Tree:
        left = self._product()
        while (sign := self._accept("+", "-")) is not None:
            left = self._joined(sign, left, self._product())
        return left

    def _product(self) -> Tree:
        left = self._unary()
        while (sign := self._accept("*", "/", "%")) is not None:
            left = self._joined(sign, left, self._unary())
        return left

    def _joined(self, sign: str, left: Tree, right: Tree) -> Tree:
        return "call", f"_{sign}_", None, (left, right)

    def _unary(self) -> Tree:
        if self._kind == "sign" and self._text in "!-":
            sign, count = self._text, 0
            while self._accept(sign):
                count += 1
            if sign == "-" and self._kind in ("int", "float"):
                return self._member(_number(self._kind, "-" * (count % 2) + self._advance()))
            of = self._member(self._primary())
            if sign == "!":
                return ("not", of) if count % 2 else ("not", ("not", of))
            return ("call", "-_", None, (of,)) if count % 2 else of
        return self._member(self._primary())

    def _member(self, of: Tree) -> Tree:
        steps = 0
        while (sign := self._accept(".", "[", "[?")) is not None:
            steps += 1
            dot = self._at - 1
            if steps > _DEEPEST:
                raise CompileError("compilation failed: the expression is nested too deeply")
            if sign != ".":
                of = ("index", of, self._expression(), sign == "[?")
                self._expect("]")
                continue
            optional = self._accept("?") is not None
            if self._kind == "quoted":
                of = self._placed(("select", of, self._advance()[1:-1], optional), dot)
                continue
            if self._kind != "name":
                raise self._wrong()
            name = self._advance()
            if not optional and self._accept("("):
                opened = self._at - 1
                of = self._placed(("call", name, of, self._list(")")), opened)
            else:
                of = self._placed(("select", of, name, optional), dot)
        return of

    def _primary(self) -> Tree:
        kind = self._kind
        start = self._at
        if kind in ("int", "float"):
            return self._placed(_number(kind, self._advance()), start)
        if kind == "text":
            return self._placed(("const", _literal(self._advance())), start)
        if self._accept("("):
            inner = self._expression()
            self._expect(")")
            return inner
        if self._accept("["):
            return "list", self._list("]")
        if self._accept("[?"):
            return "list", self._list("]", optional=True)
        if self._accept("{"):
            return "map", self._pairs()
        self._accept(".")
        if self._kind != "name" or self._text in _RESERVED:
            raise self._wrong()
        start = self._at
        name = self._advance()
        if name in _CONSTANTS:
            return self._placed(("const", _CONSTANTS[name]), start)
        if self._accept("("):
            return self._placed(("call", name, None, self._list(")")), start + 1)
        return self._placed(("ident", name), start)

    def _list(self, end: str, *, optional: bool = False) -> tuple[Tree, ...]:
        """The elements up to `end`; with `optional` the first one is optional."""
        found: list[Tree] = [("optional", self._expression())] if optional else []
        while self._accept(end) is None:
            if found:
                self._expect(",")
                if end != ")" and self._accept(end):
                    break
            optional = end == "]" and self._accept("?") is not None
            one = self._expression()
            found.append(("optional", one) if optional else one)
        return tuple(found)

    def _pairs(self) -> tuple[tuple[Tree, Tree], ...]:
        found: list[tuple[Tree, Tree]] = []
        while self._accept("}") is None:
            if found:
                self._expect(",")
                if self._accept("}"):
                    break
            optional = self._accept("?") is not None
            key = self._expression()
            self._expect(":")
            value = self._expression()
            found.append((key, ("optional", value) if optional else value))
        return tuple(found)


def _balanced(name: str, parts: list[Tree]) -> Tree:
    if len(parts) == 1:
        return parts[0]
    middle = (len(parts) + 1) // 2
    return name, _balanced(name, parts[:middle]), _balanced(name, parts[middle:])


def _tokens(text: str) -> list[tuple[str, str, int]]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CompileError(f"compilation failed: ERROR: <input>:1:{at + 1}: Syntax error: token recognition error "
                               f"at: '{text[at]}'")  # fmt: skip
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group(), at))
        at = match.end()
    return [*found, ("end", "", at)]


def _number(kind: str, text: str) -> Tree:
    if len(text) > _LONGEST_NUMBER:
        raise CompileError(f"compilation failed: invalid {kind} literal {text[:_LONGEST_NUMBER]}…")
    if kind == "float":
        return "const", float(text)
    if (text[-1] in "uU" and not text.startswith(("0x", "0X", "-0x", "-0X"))) or text[-1] in "uU":
        unsigned = int(text[:-1], 0) if "x" in text.lower() else int(text[:-1])
        if not 0 <= unsigned < 2**64:
            raise CompileError(f"compilation failed: invalid uint literal {text}")
        return "const", UInt(unsigned)
    number = int(text, 0) if "x" in text.lower() else int(text)
    if not -(2**63) <= number < 2**63:
        raise CompileError(f"compilation failed: invalid int literal {text}")
    return "const", number


def _literal(text: str) -> str | bytes:
    start = min(index for index in (text.find('"'), text.find("'")) if index >= 0)
    prefix, body = text[:start].lower(), text[start:]
    quotes = 3 if body.startswith(('"""', "'''")) and len(body) >= 6 else 1
    body = body[quotes:-quotes]
    binary = "b" in prefix
    if "r" not in prefix:
        body = _ESCAPE.sub(lambda match: _unescaped(match, binary=binary), body)
    if not binary:
        return body
    return b"".join(bytes([ord(c) - 0xF0000]) if 0xF0000 <= ord(c) < 0xF0100 else c.encode() for c in body)


def _unescaped(match: re.Match[str], *, binary: bool) -> str:
    simple, byte, short, long, octal, other = match.groups()
    if other is not None:
        raise CompileError(f"compilation failed: invalid escape \\{other}")
    if simple is not None:
        return _ESCAPES.get(simple, simple)
    code = int(byte or short or long, 16) if octal is None else int(octal, 8)
    if binary and (byte or octal):
        return chr(0xF0000 + code)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise CompileError(f"compilation failed: invalid code point {code:#x}")
    return chr(code)
