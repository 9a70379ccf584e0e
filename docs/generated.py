"""Writes the pages of the site that the code describes itself: `pages()` has their text by path.

    python -m docs.generated [PAGE]

prints them. `hooks.py` adds them to the site; none of them is committed. Nothing here needs the site's packages.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from docs import public_names
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from typer.core import TyperGroup
from typer.main import get_command

from fluence_plugins.device_advertisement.metrics import Metrics as DevicePluginMetrics
from fluence_plugins.device_advertisement.metrics import TypeState
from fluence_plugins.env_injection.fluxion import FluxionHandler
from fluence_plugins.env_injection.handlers import HandlerSettings
from fluence_plugins.env_injection.metrics import WebhookMetrics
from fluence_plugins.fluence.arguments import FluenceArguments
from fluence_plugins.fluence.plugin import FluencePlugin
from fluence_plugins.master_queue.arguments import MasterQueueArguments
from fluence_plugins.master_queue.metrics import PoolSample
from fluence_plugins.master_queue.plugin import MasterQueuePlugin
from fluence_plugins.slurm_bridge.arguments import SlurmBridgeArguments
from fluence_plugins.slurm_bridge.plugin import SlurmBridgePlugin
from session_scheduler import builtin
from session_scheduler.cli.app import build
from session_scheduler.config.settings import QueueConfig, SchedulerConfig
from session_scheduler.model.groups import NodeChange
from session_scheduler.model.objects import Node, NodeStatus, ObjectMeta
from session_scheduler.registry.validation import hook_calls
from session_scheduler.reporting.metrics import Metrics, Pending
from session_scheduler.testing.builders import pod
from session_scheduler.testing.fake_cluster import FakeCluster

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent


def pages() -> dict[str, str]:
    """Each generated page's text, by its path below docs/."""
    return {
        "adr/index.md": decisions(),
        "reference/options.md": options(),
        "reference/fields.md": fields(),
        "reference/all-metrics.md": all_metrics(),
        "reference/labels.md": labels(),
        **{f"reference/api/{name}.md": text for name, text in api().items()},
    }


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([_cell(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


# ------------------------------------------------------------------ decisions

_CHOICE = re.compile(
    r"^(?:## |\*\*)(?:Decision|Choice)(?:\.\*\*)?\s+(?:[*-] |\d\. )?(.+?(?:[.;](?:\*\*)?(?=\s)|:(?=\n)))",
    re.MULTILINE | re.DOTALL,
)
_SUPERSEDED = re.compile(r"^Superseded by \[(\d+)\]", re.MULTILINE)


def decisions() -> str:
    """The index of docs/adr: number, title, and the first sentence of the decision."""
    rows = []
    for path in sorted((DOCS / "adr").glob("[0-9]*.md")):
        text = path.read_text()
        number, _, title = text.partition("\n")[0].removeprefix("# ").partition(". ")
        superseded = _SUPERSEDED.search(text)
        chosen = _CHOICE.search(text)
        if not chosen:
            raise LookupError(f"{path.name}: needs a part `## Decision` or `**Choice.**` that begins with a sentence")
        line = f"Superseded by {superseded[1]}." if superseded else _plain(chosen[1])
        rows.append((number, f"[{title}]({path.name})", line))
    return (
        "# Decisions\n\nEach architecture decision record (ADR) says what forced a choice, what was chosen, and what "
        "it costs. A record that no longer holds names the one that supersedes it.\n\n"
        + table(("ADR", "Title", "Decision"), rows)
    )


def _plain(sentence: str) -> str:
    """A sentence without links and bold, with a full stop."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", sentence).replace("**", "")
    return text.rstrip(".:;") + "."


# ------------------------------------------------------------------ the command line


def options() -> str:
    """Every command with its arguments and options, from the parsers."""
    root = _group([])
    parts = [
        "# Commands and options\n\nThe arguments and options of every command, as the parsers define them. [The "
        "command](command.md) explains inputs, outputs and exit statuses.\n"
    ]
    parts += _command(root, "fluence")
    for name in sorted(root.commands):
        parts += _commands(_group([name]).commands[name], f"fluence {name}")
    return "\n".join([*parts, _resource_query()])


def _group(words: list[str]) -> TyperGroup:
    """The parser for a command line of these words."""
    command = get_command(build(words))
    if not isinstance(command, TyperGroup):
        raise TypeError(f"fluence: expected a group of commands, got {type(command).__name__}")
    return command


def _commands(command: Any, name: str) -> Iterator[str]:
    yield from _command(command, name)
    for child, below in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(below, f"{name} {child}")


def _command(command: Any, name: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    text, _, examples = (command.help or "").replace("\b", "").partition("Examples:\n")
    yield f"## `{name}`\n\n{text.strip()}\n"
    yield f"```\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    if examples:
        yield f"Examples:\n\n```\n{_outdented(examples)}\n```\n"
    records = [(each, each.get_help_record(context)) for each in command.get_params(context)]
    rows = [(f"`{record[0]}`", record[1]) for each, record in records if record and "completion" not in each.name]
    if rows:
        yield table(("option", "meaning"), rows)


def _outdented(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _resource_query() -> str:
    from fluxion_cy.query.options import options as parser_of

    parser = parser_of()
    return f"## `{parser.prog}`\n\n```\n{parser.format_help()}```\n"


# ------------------------------------------------------------------ the configuration

_PLUGIN_ARGUMENTS: Final[dict[str, type[BaseModel]]] = {
    "fluence": FluenceArguments, "slurm-bridge": SlurmBridgeArguments, "master-queue": MasterQueueArguments,
}  # fmt: skip


def fields() -> str:
    """Every field of the configuration and of the plugins' arguments: type, default, bounds."""
    schema = SchedulerConfig.model_json_schema()
    parts = [
        "# Configuration fields\n\nThe fields of the configuration, with types, defaults and bounds, as the code "
        "checks them. [The configuration](configuration.md) explains them.\n",
        "## SchedulerConfiguration\n",
        *_fields(SchedulerConfig, schema),
    ]
    for name, model in _models(SchedulerConfig).items():
        parts += [f"## {name}\n", *_fields(model, schema["$defs"][name])]
    parts.append("## Plugin arguments\n\nThe `args` of each plugin that takes some.\n")
    inner: dict[str, type[BaseModel]] = {}
    for plugin, model in sorted((_builtin_arguments() | _PLUGIN_ARGUMENTS).items()):
        parts += [f"### {plugin}\n", *_fields(model, model.model_json_schema())]
        inner |= _models(model)
    parts.append("## Values of plugin arguments\n")
    for name, model in sorted(inner.items()):
        parts += [f"### {name}\n", *_fields(model, model.model_json_schema())]
    return "\n".join(parts)


def _models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The models inside a model, by name, in the order of the fields."""
    found: dict[str, type[BaseModel]] = {}
    for field in model.model_fields.values():
        for each in [field.annotation, *getattr(field.annotation, "__args__", ())]:
            if isinstance(each, type) and issubclass(each, BaseModel):
                found |= {each.__name__: each, **_models(each)}
    return found


def _builtin_arguments() -> dict[str, type[BaseModel]]:
    found = {}
    for each in vars(builtin).values():
        arguments = getattr(each, "Arguments", None)
        if isinstance(arguments, type) and issubclass(arguments, BaseModel):
            found[str(each.name)] = arguments
    return found


def _fields(model: type[BaseModel], schema: Mapping[str, Any]) -> Iterator[str]:
    definitions = schema.get("$defs", {})
    text, meanings = _documented(model)
    rows = []
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else f"`{_yaml(field.get('default'))}`"
        if "$ref" in field:  # the table of that value has them
            default = ""
        rows.append((f"`{name}`", _type(field, definitions), default, meanings.get(name, "")))
    yield text + "\n"
    yield table(("field", "type", "default", "meaning"), rows)


def _documented(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """A class's docstring without what it says of its fields; and that, by the name in the file.

    A field is described by `name: text.` in the docstring of its class, or by a docstring of its own.
    """
    alias = {name: str(field.alias or name) for name, field in model.model_fields.items()}
    names = "|".join(sorted({*alias, *alias.values()}, key=len, reverse=True))
    rest: list[str] = []
    meanings: dict[str, str] = {}
    for parent in reversed([each for each in model.__mro__ if issubclass(each, BaseModel) and each is not BaseModel]):
        rest = []
        for paragraph in inspect.cleandoc(parent.__doc__ or "").split("\n\n"):
            before, *described = re.split(rf"(?:^|(?<=[.)] ))({names}): ", " ".join(paragraph.split()))
            rest.append(before.strip())
            meanings |= {alias.get(name, name): text for name, text in _pairs(described)}
        meanings |= {alias[name]: text for name, text in _attributes(parent).items() if name in alias}
    return "\n\n".join(filter(None, rest)), {name: text[:1].upper() + text[1:] for name, text in meanings.items()}


def _pairs(values: list[str]) -> Iterator[tuple[str, str]]:
    """The values in pairs."""
    return zip(values[::2], values[1::2], strict=True)


def _attributes(model: type) -> dict[str, str]:
    """The docstrings of a class's attributes."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    body = next(each.body for each in tree.body if isinstance(each, ast.ClassDef))
    return {name: text for name, text in _documented_names(body) if text}


def _type(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(each, definitions) for each in field["anyOf"] if each.get("type") != "null")
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return (
            _type(definitions[name], definitions)
            if "enum" in definitions.get(name, {})
            else f"[{name}](#{name.lower()})"
        )
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{each}`" for each in field["enum"])
    kind = str(field.get("type", "any"))
    if kind == "array":
        return f"list of {_type(field.get('items', {}), definitions)}"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"map to {_type(inner, definitions)}" if isinstance(inner, Mapping) else "map"
    return kind + "".join(
        f", {word} {field[key]}"
        for key, word in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"),
                          ("exclusiveMaximum", "below"))
        if key in field
    )  # fmt: skip


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"') or '""'


# ------------------------------------------------------------------ metrics


def all_metrics() -> str:
    """Every metric of every program, with its help text."""
    programs = (
        ("Scheduler", "[Metrics](metrics.md) explains them.", scheduler_metrics()),
        ("Webhook", "[Webhook](webhook.md) explains them.", webhook_metrics()),
        ("Device plugin", "[Device plugin](device-plugin.md) explains them.", device_plugin_metrics()),
    )
    parts = ["# All metrics\n\nEvery metric with its help text, as a scrape returns it.\n"]
    for title, more, families in programs:
        rows = [
            (f"`{name}`", kind, ", ".join(f"`{each}`" for each in names), text)
            for name, kind, names, text in metric_rows(families)
        ]
        parts += [f"## {title}\n\n{more}\n", table(("metric", "type", "labels", "help"), rows)]
    return "\n".join(parts)


def metric_rows(families: Iterable[Metric]) -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Name, type, labels and help text of each family."""
    for family in families:
        if not family.samples:
            raise LookupError(f"{family.name} is shown without a sample: its labels cannot be read")
        found = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.type, tuple(sorted(found)), family.documentation


def scheduler_metrics() -> list[Metric]:
    """A scrape of the scheduler with every plugin of this repository, after everything that it counts."""
    metrics = Metrics("0.1.0")
    node = Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(allocatable={"cpu": "2", "memory": "1Gi"}))
    plugin = FluencePlugin(FluenceArguments())
    plugin.on_nodes_changed([NodeChange("n1", node, ())])
    bridge = SlurmBridgePlugin(SlurmBridgeArguments.model_validate({"url": "https://slurm", "tokenFile": "token"}))
    with bridge._bridge.metrics.request("jobs"):
        pass
    listed = [("fluence", plugin, None), ("slurm-bridge", bridge, None), ("Proportion", _with_a_queue(), None),
              ("master-queue", _with_pools(), None)]  # fmt: skip
    metrics.follow_profiles({"fluence": hook_calls(listed)})
    metrics.follow_pending(lambda: Pending(groups={}, pods={}, reserved=0))
    apis: Any = SimpleNamespace(versions=["v1alpha2"], gates={"A": True, "B": False})
    metrics.follow_pod_groups(apis)
    metrics.watches.event("Pod")
    metrics.watches.watch_ended("Pod", "Ended")
    metrics.watches.relisted("Pod", "Gone")
    metrics.watches.missed("Pod", 1)
    metrics.reports.dropped("event", "Full")
    metrics.requeued.add("NodeAdd", "NodeResourcesFit")
    metrics.extender_called("http://extender", "filter", "200", 0.1)
    metrics.pod_scheduled("a", 1, 1.0)
    metrics.queue_waited("a", 1.0)
    metrics.gang_started("a", 1.0)
    return list(text_string_to_metric_families(metrics.exposition()[0].decode()))


def _with_a_queue() -> object:
    """The plugin, once a queue has one pod on a node and one that waits."""
    queue = QueueConfig(name="a", limit={"cpu": 1}, deserved={"cpu": 1})
    cluster = FakeCluster(config=SchedulerConfig(queues=(queue,)))
    cluster.nodes(1)
    cluster.add(*(pod(name, cpu="1", labels={"fluence.flux-framework.org/queue": "a"}) for name in "pq"))
    cluster.run()
    return cluster.scheduler.profiles["fluence"].instances["Proportion"]


def _with_pools() -> MasterQueuePlugin:
    """The plugin, after everything that it counts."""
    plugin = MasterQueuePlugin(MasterQueueArguments())
    controller: Any = SimpleNamespace(
        connector_states=lambda: {"nats.nats:4222": True}, pool_samples=lambda: [PoolSample("m", "a", "Active", 1.0)]
    )
    plugin._controller = controller
    for result in ("taken", "partial", "refused", "unknown"):
        plugin.counters.message("interlink.resources", result)
    for result in ("created", "changed", "deleted", "conflict", "error"):
        plugin.counters.applied("ClusterQueue", result)
    plugin.counters.dropped("nats.nats:4222")
    plugin.counters.reconnected("nats.nats:4222")
    return plugin


def webhook_metrics() -> list[Metric]:
    """A scrape of the webhook."""
    metrics = WebhookMetrics("0.1.0")
    FluxionHandler(HandlerSettings(frozenset({"fluence"}), None, metrics.registry))
    metrics.show_handler("fluxion")
    return list(text_string_to_metric_families(metrics.exposition()[0].decode()))


def device_plugin_metrics() -> list[Metric]:
    """A scrape of the device plugin that advertises one type."""
    metrics = DevicePluginMetrics("0.1.0")
    metrics.follow(lambda: [TypeState("qpu", 1000, 1, None)])
    metrics.add_type("qpu")
    return list(text_string_to_metric_families(metrics.exposition()[0].decode()))


# ------------------------------------------------------------------ labels and annotations

_OURS = re.compile(
    r"(?:fluence|fluxion)\.flux-framework\.org/(?!v1alpha1$).*|(?:\w+\.)?slinky\.slurm\.net/.*|scheduling\.(?:x-)?k8s\.io/pod-group"
    r"|quantum\.braket/.*|vk\.io/local-queues"
)
_CONSTANT: Final = re.compile(r"^[A-Z][A-Z0-9_]*\b.*=", re.MULTILINE)
_PREFIXES: Final = frozenset({"fluence.flux-framework.org/", "slinky.slurm.net/", "scheduler.slinky.slurm.net/"})
"""Names of the code only: no object carries them alone."""


def labels() -> str:
    """Every label, annotation, taint, gate and resource name that Fluence reads or writes."""
    rows = [
        (f"`{name}`" + ("…" if name[-1] in "/-" else ""), text) for name, text in sorted(names_on_objects().items())
    ]
    return (
        "# Labels and annotations\n\nThe names that objects carry: labels, annotations, taints, scheduling gates, "
        "finalizers and extended resources. Names that end with … are prefixes.\n\n" + table(("name", "meaning"), rows)
    )


@cache
def names_on_objects() -> dict[str, str]:
    """Each name with the docstring of the constant that holds it."""
    found: dict[str, str] = {}
    for root, package in (("scheduler", "session_scheduler"), ("plugins", "fluence_plugins")):
        for path in sorted((ROOT / root / package).rglob("*.py")):
            text = path.read_text()
            if not _CONSTANT.search(text):  # parsing takes most of the time
                continue
            name = ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__")
            module = import_module(name)
            if any(map(_is_ours, vars(module).values())):
                for constant, meaning in _documented_names(ast.parse(text).body):
                    value = getattr(module, constant) if constant.isupper() and constant[0] != "_" else None
                    if isinstance(value, str) and _is_ours(value):
                        found[value] = found.get(value) or meaning
    return found


def _is_ours(value: object) -> bool:
    return isinstance(value, str) and _OURS.fullmatch(value) is not None and value not in _PREFIXES


def _documented_names(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The names that statements assign to, each with the docstring behind it."""
    for number, node in enumerate(body):
        after = ast.get_docstring(ast.Module(body[number + 1 : number + 2], type_ignores=[]))
        yield from ((name, " ".join((after or "").split())) for name in public_names.assigned(node))


# ------------------------------------------------------------------ Python

_TITLES: Final = {
    "core": "Session and answers", "hookspecs": "Hooks", "errors": "Errors", "config": "Configuration",
    "model": "Model", "sdk": "SDK", "testing": "Testing", "observation": "Observation",
    "matcher": "Matcher (fluxion_cy)",
}  # fmt: skip


def api() -> dict[str, str]:
    """The pages of the Python API, by the name of the page: mkdocstrings writes what they name."""
    modules: dict[str, list[str]] = {name: [] for name in _TITLES}
    for module in public_names.MODULES:
        modules[module.split(".")[1] if "." in module else "core"].append(module)
    modules["matcher"] = ["fluxion_cy"]
    return {name: _api(_TITLES[name], each) for name, each in modules.items()}


def _api(title: str, modules: Iterable[str]) -> str:
    parts = [f"# {title}\n"]
    for module in modules:
        names = list(import_module(module).__all__) if module == "fluxion_cy" else public_names.public_names(module)
        members = "".join(f"        - {name}\n" for name in names)
        order = "source" if module.endswith(".hookspecs") else "alphabetical"
        parts.append(f"::: {module}\n    options:\n      members_order: {order}\n      members:\n{members}")
    return "\n".join(parts)


if __name__ == "__main__":
    for where, what in pages().items():
        if not sys.argv[1:] or where in sys.argv[1:]:
            print(what)
