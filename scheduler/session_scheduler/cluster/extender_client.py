"""Client for one HTTP extender: kube-scheduler's protocol (`extender/v1`) over aiohttp.

Every call has the extender's timeout and reads a bounded answer. The client decodes answers as Go does: names of fields
match in any case. Source: pkg/scheduler/extender.go and k8s.io/kube-scheduler/extender/v1, Kubernetes 1.36.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from session_scheduler.config.extenders import ExtenderConfig, ExtenderTLS
from session_scheduler.config.parsing import without_users
from session_scheduler.errors import FluenceError, InputError
from session_scheduler.model.objects import Pod

if TYPE_CHECKING:
    import aiohttp  # slow to import, and only a live cluster needs it

_LARGEST_ANSWER: Final = 64 << 20
"""Bytes. An extender that knows no nodes may return those that it was sent, so twice the request is allowed, too."""
_CONNECTIONS: Final = 64
_HIGHEST_SCORE: Final = 2**20
"""Above any score in use (0 to 10), and low enough for sums within 64 bits."""

Call = Callable[[str, str, str, float], None]
"""Called after each request with the extender's URL, the verb, the code and the seconds."""


class ExtenderError(FluenceError):
    """A call of an extender failed, or its answer is an error."""


class FilterResult(msgspec.Struct, frozen=True):
    """The response to a filter request: the nodes that passed, and the messages of those that did not."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    """The nodes that removing pods does not help; they may also be in `failed`."""


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on a node: uids of pods, and how many budgets they violate."""

    uids: tuple[str, ...]
    violations: int


class _Meta(msgspec.Struct):
    name: str = ""


class _Item(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _NodeList(msgspec.Struct):
    items: list[_Item] | None = None


def manages(resources: Set[str], pod: Pod) -> bool:
    """Whether an extender with these managed resources wants to see a pod: without any it wants to see all pods."""
    return not resources or any(
        not resources.isdisjoint(amounts)
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for amounts in (container.resources.requests, container.resources.limits)
    )


class ExtenderClient:
    """One extender. Call `close` at the end."""

    def __init__(self, config: ExtenderConfig, place: str, called: Call = lambda *_: None) -> None:
        """`place` is the path of the extender's entry in the configuration. Raises InputError for unusable keys."""
        self.config = config
        self.name = without_users(config.url_prefix)
        self._managed = config.managed
        self._called = called
        self._tls = _tls(config.tls_config, place) if config.url_prefix.startswith("https:") else None
        name = config.tls_config.server_name if config.tls_config is not None else ""
        self._asked: dict[str, Any] = {"server_hostname": name} if name else {}
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def is_interested(self, pod: Pod) -> bool:
        """Whether the extender wants to see the pod."""
        return manages(self._managed, pod)

    # ------------------------------------------------------------------ verbs

    async def filter(self, pod: msgspec.Raw, nodes: Mapping[str, msgspec.Raw]) -> FilterResult:
        """The nodes (by name; their objects unless it caches them) that pass. Raises ExtenderError."""
        answer = self._fields(await self._post(self.config.filter_verb, self._arguments(pod, nodes)))
        problem = self._read(answer, "error", str | None)
        if problem:
            raise ExtenderError(problem)
        names = self._read(answer, "nodenames", tuple[str, ...] | None)
        if names is None or not self.config.node_cache_capable:
            listed = self._read(answer, "nodes", _NodeList | None)
            names = tuple(item.metadata.name for item in (listed.items if listed is not None else None) or ())
        for name in names:
            if name not in nodes:
                raise ExtenderError(
                    f'extender "{self.name}" claims a filtered node "{name}" which is not found in the input node list'
                )
        texts = (self._read(answer, field, dict[str, str] | None) or {}
                 for field in ("failednodes", "failedandunresolvablenodes"))  # fmt: skip
        return FilterResult(names, *texts)

    async def prioritize(self, pod: msgspec.Raw, nodes: Mapping[str, msgspec.Raw]) -> dict[str, int]:
        """The score of each node, times the weight, as 0 to 100 times the weight. Raises ExtenderError."""
        answer = await self._post(self.config.prioritize_verb, self._arguments(pod, nodes))
        total: dict[str, int] = {}
        for entry in self._decoded(answer, list[msgspec.Raw] | None) or ():
            named = self._fields(entry)
            host, score = self._read(named, "host", str | None), self._read(named, "score", int | None) or 0
            if not -_HIGHEST_SCORE <= score <= _HIGHEST_SCORE:
                raise ExtenderError(f'extender "{self.name}": the score {score} of node "{host}" is not within 0 to 10')
            total[host or ""] = total.get(host or "", 0) + score * self.config.weight * 10
        return total

    async def preempt(
        self, pod: msgspec.Raw, victims: Mapping[str, MetaVictims], pods: Mapping[str, msgspec.Raw]
    ) -> dict[str, MetaVictims]:
        """The victims by node that the extender allows. `pods` has their objects by uid. Raises ExtenderError."""
        whole = not self.config.node_cache_capable
        sent = {
            node: {
                "Pods": [pods[uid] if whole else {"UID": uid} for uid in on_node.uids],
                "NumPDBViolations": on_node.violations,
            }
            for node, on_node in victims.items()
        }
        arguments = {"Pod": pod, "NodeNameToVictims": sent if whole else None,
                     "NodeNameToMetaVictims": None if whole else sent}  # fmt: skip
        answer = self._fields(await self._post(self.config.preempt_verb, arguments))
        found: dict[str, MetaVictims] = {}
        for node, text in (self._read(answer, "nodenametometavictims", dict[str, msgspec.Raw] | None) or {}).items():
            fields = self._fields(text)
            listed = self._read(fields, "pods", list[msgspec.Raw] | None) or []
            uids = tuple(self._read(self._fields(one), "uid", str | None) or "" for one in listed)
            found[node] = MetaVictims(uids, self._read(fields, "numpdbviolations", int | None) or 0)
        return found

    async def bind(self, pod: Pod, node: str) -> None:
        """Let the extender bind the pod. Raises ExtenderError: the pod may be bound nevertheless."""
        metadata = pod.metadata
        arguments = {"PodName": metadata.name, "PodNamespace": metadata.namespace, "PodUID": metadata.uid, "Node": node}
        problem = self._read(self._fields(await self._post(self.config.bind_verb, arguments)), "error", str | None)
        if problem:
            raise ExtenderError(problem)

    def _arguments(self, pod: msgspec.Raw, nodes: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
        if self.config.node_cache_capable:
            return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}
        return {"Pod": pod, "Nodes": {"metadata": {}, "items": list(nodes.values())}, "NodeNames": None}

    # ------------------------------------------------------------------ requests

    async def _post(self, verb: str, arguments: Mapping[str, Any]) -> bytes:
        """The body of the answer. Raises ExtenderError."""
        import aiohttp

        url = f"{self.config.url_prefix.rstrip('/')}/{verb}"
        body = msgspec.json.encode(arguments)
        started, code = perf_counter(), "error"
        try:
            async with asyncio.timeout(self.config.seconds):
                async with self._connected().post(url, data=body, allow_redirects=False, **self._asked) as response:
                    code = str(response.status)
                    if response.status != 200:
                        problem = f"failed {verb} with extender at URL {without_users(url)}, code {code}"
                        raise ExtenderError(problem)
                    return await _bounded(response.content, max(_LARGEST_ANSWER, 2 * len(body)))
        except TimeoutError:
            code = "timeout"
            raise ExtenderError(f'Post "{without_users(url)}": no answer within {self.config.seconds:g} s') from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ExtenderError(
                f'Post "{without_users(url)}": {without_users(str(error) or type(error).__name__)}'
            ) from error
        finally:
            self._called(self.name, verb, code, perf_counter() - started)

    def _connected(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._tls if self._tls is not None else True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Content-Type": "application/json", "User-Agent": "fluence"},
            )
        return self._session

    def _decoded(self, text: bytes | msgspec.Raw, kind: Any) -> Any:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ExtenderError(f'extender "{self.name}": the response cannot be decoded: {error}') from None

    def _read(self, fields: Mapping[str, msgspec.Raw], name: str, kind: Any) -> Any:
        return self._decoded(fields[name], kind) if name in fields else None

    def _fields(self, text: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
        """The fields of an object by their names in lower case; none for null."""
        found: dict[str, msgspec.Raw] = self._decoded(text, dict[str, msgspec.Raw] | None) or {}
        return {name.lower(): value for name, value in found.items()}


async def _bounded(content: aiohttp.StreamReader, limit: int) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > limit:
            raise ValueError(f"the answer is larger than {limit >> 20} MiB")
    return bytes(body)


# ------------------------------------------------------------------ TLS


def _tls(config: ExtenderTLS | None, place: str) -> ssl.SSLContext:
    """Raises InputError."""
    config = config or ExtenderTLS()
    context = ssl.create_default_context()
    if config.insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if config.ca_file or config.ca_data:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts this CA only
        field = "caData" if config.ca_data else "caFile"
        with _problems_of(place, field, "PEM certificates"):
            context.load_verify_locations(cadata=_text(config.ca_data, config.ca_file))
    if config.cert_file or config.cert_data:
        field = "certData" if config.cert_data else "certFile"
        with _problems_of(place, field, "a PEM certificate with its key"), TemporaryDirectory() as folder:
            paths = Path(folder, "tls.crt"), Path(folder, "tls.key")  # the standard library loads files only
            paths[0].write_text(_text(config.cert_data, config.cert_file))
            paths[1].write_text(_text(config.key_data, config.key_file))
            context.load_cert_chain(*paths)
    return context


@contextmanager
def _problems_of(place: str, field: str, wanted: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError, binascii.Error and UnicodeDecodeError, too
        raise InputError(f"{place}.tlsConfig.{field}: cannot be used ({error}); give {wanted}") from error


def _text(data: str, file: str) -> str:
    return base64.b64decode(data, validate=True).decode() if data else Path(file).read_text()
