"""Reader of manifest files: splits them into documents with a kind and an untyped content.

A saved cluster is JSON of many megabytes, so its items stay bytes until one step decodes them to their type.
A null counts as an absent field, as in the API server.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from session_scheduler.cluster.errors import ManifestError
from session_scheduler.config.settings import CONFIG_API_VERSION
from session_scheduler.config.yaml_text import Limits, YamlError, read_json
from session_scheduler.config.yaml_text import read_documents as read_values
from session_scheduler.model.sharing import shared
from session_scheduler.model.type_errors import explain_type_error

MAX_BYTES = 256 * 1024 * 1024
"""Maximum size of a file: a saved cluster of some 50,000 pods."""
STDIN = "<stdin>"
SNAPSHOT = "Snapshot"
"""The kind that `fluence snapshot` writes. The content of its document is the configuration alone."""
_SUFFIXES = (".yaml", ".yml", ".json")
_LIMITS = Limits(bytes=MAX_BYTES, depth=100, aliased=1_000_000)
_OBJECT_START = re.compile(rb"[ \t\r\n]*{")
_HARMLESS_NULL = re.compile(rb'"(?:lastProbeTime|creationTimestamp)":\s*null')
"""Nulls that every saved pod has, in fields that accept them or that nothing reads."""
_Typed = TypeVar("_Typed")


class _Metadata(msgspec.Struct, rename="camel", frozen=True):
    """The metadata that an API server sets."""

    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    managed_fields: tuple[msgspec.Raw, ...] | None = None

    @property
    def from_server(self) -> bool:
        return bool(self.uid or self.resource_version or self.creation_timestamp or self.managed_fields)


class _Head(msgspec.Struct, rename="camel"):
    """The kind of an object; with `items` it is a list of objects."""

    kind: str = ""
    api_version: str = ""
    metadata: _Metadata = _Metadata()
    items: list[msgspec.Raw] | msgspec.UnsetType = msgspec.UNSET
    configuration: msgspec.Raw = msgspec.Raw(b"{}")
    """Only in a snapshot."""

    @property
    def is_snapshot(self) -> bool:
        """Whether `fluence snapshot` wrote the document (see `saved_state`)."""
        return self.kind == SNAPSHOT and self.api_version == CONFIG_API_VERSION


_head_decoder = msgspec.json.Decoder(_Head)


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _decode(text: bytes, type_: type[_Typed]) -> _Typed:
    """Decode the JSON text. Decoders are cached, because making one costs more than a decoding."""
    decoder: msgspec.json.Decoder[_Typed] = _decoders.get(type_) or msgspec.json.Decoder(type_)
    _decoders[type_] = decoder
    return decoder.decode(text)


def _plain(text: bytes) -> Any:
    """Decode to plain values. A whole number that is too long becomes a string, which its field rejects."""
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 20 else f"{digits[:20]}…")


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a file. `content` is JSON (bytes) or plain values, both without nulls."""

    file: str
    place: str
    """Position in the file, for example "document 2" or "items[17]"."""
    api_version: str
    kind: str
    content: bytes | dict[str, Any]
    saved: bool = False
    """Whether it is an item of a snapshot. Such an item is used unchanged, with its nulls."""
    from_server: bool = False
    """Whether an API server wrote it: perhaps one of another version, which has other fields."""

    @property
    def group(self) -> str:
        """The API group; empty for core/v1."""
        return self.api_version.rpartition("/")[0]

    def tree(self) -> dict[str, Any]:
        """Return the content as plain values."""
        if isinstance(self.content, bytes):
            decoded: dict[str, Any] = _plain(self.content)
            return decoded
        return self.content

    @property
    def name(self) -> str:
        """ "Kind namespace/name" as far as the document has them, else its position in the file."""
        metadata = self.tree().get("metadata")
        name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not name:
            return f"{self.kind} ({self.place})"
        namespace = metadata.get("namespace")
        return f"{self.kind} {namespace}/{name}" if namespace else f"{self.kind} {name}"

    def typed(self, type_: type[_Typed]) -> _Typed:
        """Convert the content to the type. Raises ManifestError, which names the field."""
        try:
            if isinstance(self.content, bytes):
                return shared(_decode(self.content, type_))
            return shared(msgspec.convert(self.content, type_))
        except msgspec.ValidationError as error:
            field, problem = explain_type_error(str(error), self.tree())
            if problem == "Integer value out of range":  # msgspec's message
                problem = "is a number with more than 64 bits; write a smaller one"
            raise self.error(field, problem) from None

    def error(self, field: str, problem: str) -> ManifestError:
        """Return an error about a field of this object."""
        return ManifestError(problem, file=self.file, object=self.name, field=field)


# ------------------------------------------------------------------ files


def read_documents(paths: Sequence[str], stdin: BinaryIO | None) -> Iterator[Document]:
    """Yield the objects in files, directories (their *.yaml, *.yml and *.json, not recursively) and `-`; split lists.

    Paths keep their order; the files of a directory come by name. `stdin` is None if the process has none. Raises
    ManifestError.
    """
    if sum(path == "-" for path in paths) > 1:
        raise ManifestError("given twice: standard input can be read only once", file=STDIN)
    for path in paths:
        if path == "-":
            if stdin is None:
                raise ManifestError("is closed; pipe a manifest into it, or name a file", file=STDIN)
            yield from _documents(STDIN, _read(stdin, STDIN))
            continue
        for file in files_of(path):
            try:
                stream = file.open("rb")
            except OSError as error:
                raise _unreadable(str(file), error) from None
            with stream:
                text = _read(stream, str(file))
            yield from _documents(str(file), text)


def files_of(path: str) -> list[Path]:
    """The file, or those of a directory (*.yaml, *.yml and *.json, not below) by name. Raises ManifestError."""
    if not path:  # from an unset variable; Path("") would be the working directory
        raise ManifestError("is an empty name; name a file, a directory or -", file="''")
    place = Path(path)
    if not os.path.isdir(path):  # unlike Path.is_dir, it never raises: opening the file reports the error
        return [place]
    try:
        files = sorted(file for file in place.iterdir() if file.suffix in _SUFFIXES and not os.path.isdir(file))
    except OSError as error:
        raise _unreadable(path, error) from None
    if not files:
        raise ManifestError("the directory contains no *.yaml, *.yml or *.json file", file=path)
    return files


def _unreadable(file: str, error: OSError) -> ManifestError:
    return ManifestError(f"cannot be read: {error.strerror}; name a readable file or directory, or -", file=file)


def _read(stream: BinaryIO, file: str) -> bytes:
    try:
        text = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(file, error) from None
    if len(text) > MAX_BYTES:
        raise ManifestError(f"is larger than {MAX_BYTES >> 20} MiB; split it", file=file)
    return text


# ------------------------------------------------------------------ documents


def _documents(file: str, text: bytes) -> Iterator[Document]:
    head = _list_head(text)
    if head is not None and head.items is not msgspec.UNSET:
        if head.kind == SNAPSHOT and not head.is_snapshot:
            raise _other_snapshot(file, "document 1", head.api_version)
        if head.is_snapshot:
            configuration = _plain(bytes(head.configuration))
            yield _snapshot(file, "document 1", configuration)
        for number, item in enumerate(head.items):
            yield from (_saved if head.is_snapshot else _item)(file, f"items[{number}]", head, bytes(item))
        return
    try:
        for number, value in enumerate(_values(file, text), start=1):
            yield from _tree_documents(file, f"document {number}", value)
    except YamlError as error:
        problem = str(error)
        if "set_int_max_str_digits" in problem:  # Python's message is for programmers
            problem = "contains a number with thousands of digits; shorten it"
        raise ManifestError(problem, file=file) from None


def _list_head(text: bytes) -> _Head | None:
    """Return the head of a JSON object; None for YAML and for other JSON, which the slower reader handles."""
    if not _OBJECT_START.match(text):
        return None
    try:
        return _head_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _values(file: str, text: bytes) -> Iterable[Any]:
    if file.endswith(".json") and _OBJECT_START.match(text):
        return read_json(text, "kubernetes", _LIMITS)
    return read_values(text, "kubernetes", _LIMITS)


def _has_nulls(text: bytes) -> bool:
    """Whether nulls may have to be removed before decoding. A "null" inside a string only costs time."""
    nulls = text.count(b"null")
    return nulls > 0 and nulls > len(_HARMLESS_NULL.findall(text))


def _head_of(item: bytes) -> _Head:
    """Return the head of a list's item; empty if it has no readable one."""
    try:
        return _head_decoder.decode(item)
    except msgspec.DecodeError:
        return _Head()


def _item(file: str, place: str, parent: _Head, text: bytes) -> Iterator[Document]:
    head = _head_of(text)
    if _has_nulls(text) or not head.kind or not head.api_version or head.items is not msgspec.UNSET:
        yield from _tree_documents(file, place, _plain(text), parent)
    else:
        yield Document(file, place, head.api_version, head.kind, text, from_server=head.metadata.from_server)


def _saved(file: str, place: str, _: _Head, text: bytes) -> Iterator[Document]:
    head = _head_of(text)
    if not head.kind:
        raise _bad_snapshot(file, place, "expected an object with a kind; take the snapshot again")
    yield Document(file, place, head.api_version, head.kind, text, saved=True)


def _bad_snapshot(file: str, place: str, problem: str, field: str = "") -> ManifestError:
    return ManifestError(problem, file=file, object=f"{SNAPSHOT} ({place})", field=field)


def _other_snapshot(file: str, place: str, api_version: object) -> ManifestError:
    problem = f"expected {CONFIG_API_VERSION}, got {api_version!r}; take the snapshot again with this version"
    return _bad_snapshot(file, place, problem, "apiVersion")


def _snapshot(file: str, place: str, configuration: Any) -> Document:
    if not isinstance(configuration, dict):
        raise _bad_snapshot(file, place, "must be a mapping; take the snapshot again", "configuration")
    return Document(file, place, CONFIG_API_VERSION, SNAPSHOT, configuration)


def _snapshot_tree(file: str, place: str, tree: dict[str, Any]) -> Iterator[Document]:
    items = tree.get("items")
    if not isinstance(items, list):
        raise _bad_snapshot(file, place, "must be a list of objects; take the snapshot again", "items")
    yield _snapshot(file, place, tree.get("configuration", {}))
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("kind"), str) or not item["kind"]:
            raise _bad_snapshot(file, f"items[{number}]", "expected an object with a kind; take the snapshot again")
        yield Document(file, f"items[{number}]", str(item.get("apiVersion", "")), item["kind"], item, saved=True)


def _tree_documents(file: str, place: str, value: Any, parent: _Head | None = None) -> Iterator[Document]:
    if value is None and parent is None:  # an empty document between two `---`
        return
    if not isinstance(value, dict):
        raise ManifestError("expected a mapping with apiVersion, kind and metadata", file=file, object=place)
    if value.get("kind") == SNAPSHOT and value.get("apiVersion") == CONFIG_API_VERSION and parent is None:
        yield from _snapshot_tree(file, place, value)
        return
    if value.get("kind") == SNAPSHOT and "items" in value and parent is None:
        raise _other_snapshot(file, place, value.get("apiVersion", ""))
    tree = _without_nulls(value, file, place)
    if parent is not None and parent.kind != "List":  # items of a typed list omit their kind
        tree = {"apiVersion": parent.api_version, "kind": parent.kind.removesuffix("List"), **tree}
    for field, example in (("kind", "Pod"), ("apiVersion", "v1")):
        if not isinstance(tree.get(field), str) or not tree[field]:
            raise ManifestError(f"is missing; add it, for example {field}: {example}", file=file,
                                object=_what(tree, place), field=field)  # fmt: skip
    if tree["kind"] == "List" or ("items" in tree and tree["kind"].endswith("List")):
        head = _Head(kind=tree["kind"], api_version=tree["apiVersion"])
        if not isinstance(tree.get("items"), list):
            raise ManifestError("must be a list of objects; write one entry for each object, or []", file=file,
                                object=_what(tree, place), field="items")  # fmt: skip
        for number, item in enumerate(tree["items"]):
            yield from _tree_documents(file, f"{place}, items[{number}]", item, head)
        return
    yield Document(file, place, tree["apiVersion"], tree["kind"], tree, from_server=_is_from_server(tree))


def _is_from_server(tree: dict[str, Any]) -> bool:
    try:
        return msgspec.convert(tree.get("metadata", {}), _Metadata).from_server
    except msgspec.ValidationError:
        return False


def _what(tree: dict[str, Any], place: str) -> str:
    """Name an object without a kind or apiVersion as well as possible."""
    metadata = tree.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    kind = tree.get("kind")
    return " ".join(str(part) for part in (kind, name, f"({place})") if part)


def _without_nulls(value: Any, file: str, place: str, depth: int = 0) -> Any:
    if depth > _LIMITS.depth:
        raise ManifestError(f"is nested deeper than {_LIMITS.depth} levels; flatten it", file=file, object=place)
    if isinstance(value, dict):
        return {k: _without_nulls(v, file, place, depth + 1) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v, file, place, depth + 1) for v in value]
    return value
