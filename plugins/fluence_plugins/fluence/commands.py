"""The plugin's part of the command `fluence`: the option `--resources`, the commands `graph` and `backend`."""

import re
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from msgspec.structs import replace

from session_scheduler.errors import InputError
from session_scheduler.sdk.command_options import Context, Kubeconfig
from session_scheduler.sdk.commands import Host, Output, PluginOption, TableRows

if TYPE_CHECKING:
    from fluence_plugins.fluence.graph.cluster_graph import ClusterGraph
    from session_scheduler.model.objects import Node

RESOURCES = PluginOption(
    flag="--resources",
    plugin="fluence",
    argument="resources",
    help="The file of virtual resources [env var: FLUENCE_RESOURCES].",
    metavar="FILE",
    file="resources.yaml",
)


class GraphOutput(Enum):
    """The output formats of `graph`."""

    JSON = "json"
    YAML = "yaml"
    DOT = "dot"
    SVG = "svg"
    SUMMARY = "summary"


_NAMESPACE, _CONFIG_MAP = "kube-system", "fluence-resources"
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


def backend(
    action: Annotated[
        Literal["drain", "resume"],
        typer.Argument(help="drain: stop placing pods on the resource; resume: place pods on it again."),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the resource, at any depth.")],
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help=f"The namespace of the ConfigMap; default: {_NAMESPACE}.")
    ] = None,
    configmap: Annotated[
        str | None, typer.Option("--configmap", help=f"The ConfigMap with the resources; default: {_CONFIG_MAP}.")
    ] = None,
    resources: Annotated[
        str | None, typer.Option("--resources", metavar="FILE", help="Change this file instead of the ConfigMap.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Drain a backend, or resume it. Pods that hold it keep running.

    The command adds `status: down` to the resource in the ConfigMap, or removes it; scheduler, webhook and device
    plugin follow.

    Examples:
      fluence backend drain ibm_marrakesh
      fluence backend resume ibm_marrakesh --resources resources.yaml
    """
    import asyncio

    from fluence_plugins.resources.backend_status import ConfigMapText, Marked, set_in_config_map, set_in_file
    from session_scheduler.sdk.logs import log_to_stderr

    log_to_stderr()
    down = action == "drain"

    async def in_cluster(where: ConfigMapText) -> Marked:
        from session_scheduler.sdk.dynamic_client import connect

        async with await connect(kubeconfig, context) as api:
            return await set_in_config_map(api, where, name, down=down)

    if resources is not None:
        of_cluster = {"--namespace": namespace, "--configmap": configmap, "--kubeconfig": kubeconfig,
                      "--context": context}  # fmt: skip
        given = [option for option, value in of_cluster.items() if value is not None]
        if given:
            raise InputError(f"{', '.join(given)}: no effect on the file of --resources; remove either")
        place, marked = resources, set_in_file(resources, name, down=down)
    else:
        where = ConfigMapText(
            _checked("--namespace", _NAMESPACE if namespace is None else namespace),
            _checked("--configmap", _CONFIG_MAP if configmap is None else configmap),
        )
        place, marked = str(where), asyncio.run(in_cluster(where))
    text = f"{place}: {name} is {'' if marked else 'already '}{'down' if down else 'up'}"
    if marked.within and not down:
        text += f", but stays drained while a resource that contains it is down: {', '.join(marked.within)}"
    typer.echo(text)


def _checked(option: str, name: str) -> str:
    if not _OBJECT.fullmatch(name):
        raise InputError(f"{option}: {name!r} is not a valid object name; use lower-case letters, digits, - and .")
    return name


def graph(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Manifests with nodes, or directories of them.")],
    *,
    resources: Annotated[
        str | None,
        typer.Option(
            RESOURCES.flag,
            metavar=RESOURCES.metavar,
            help=f"{RESOURCES.help} Default if a FILE is a directory: its {RESOURCES.file}.",
        ),
    ] = None,
    topology: Annotated[
        list[str] | None,
        typer.Option(
            "--topology",
            metavar="TYPE=LABEL",
            help="A level of the graph, such as zone=topology.kubernetes.io/zone; may be repeated, the outermost level "
            "first.",
        ),
    ] = None,
    cpu_accounting: Annotated[
        Literal["auto", "cores", "millicores"],
        typer.Option("--cpu-accounting", help="How the graph counts CPU; auto means millicores."),
    ] = "auto",
    output: Annotated[
        GraphOutput,
        typer.Option(
            "-o",
            "--output",
            help="json and yaml: JGF; dot: a Graphviz file; svg: an image; summary: counts by type.",
        ),
    ] = GraphOutput.JSON,
) -> None:
    """Print the resource graph as JGF or as a picture, or count its vertices by type.

    JGF is the JSON Graph Format. The graph has the nodes of the manifests, below the levels that their labels name, and
    the virtual resources.

    Examples:
      fluence graph cluster.yaml --resources resources.yaml
      fluence graph cluster.yaml -o svg > graph.svg
      fluence graph cluster.yaml --topology zone=topology.kubernetes.io/zone -o yaml
    """
    from fluence_plugins.fluence.arguments import FluenceArguments
    from fluence_plugins.fluence.graph.accounting import Accounting
    from fluence_plugins.fluence.graph.cluster_graph import build_graph
    from fluence_plugins.fluence.graph.topology import levels_from, levels_of

    host: Host = context.obj
    levels = levels_from(topology or ())
    accounting = Accounting(cpu_accounting)
    hosts = [
        replace(
            accounting.host_of(node.metadata.name, _allocatable(node)),
            levels=levels_of(node.metadata.labels, levels),
        )
        for node in host.nodes(files)
    ]
    if not hosts:
        raise InputError(f"{', '.join(files)}: no object of kind Node; pass manifests with the cluster's nodes")
    trees = FluenceArguments(resources=resources or host.option_file(RESOURCES, files)).load()
    _show_graph(host, build_graph(hosts, trees), output)


def _show_graph(host: Host, found: "ClusterGraph", output: GraphOutput) -> None:
    from fluence_plugins.fluence.graph import pictures

    if output in (GraphOutput.JSON, GraphOutput.YAML):
        host.write(found.jgf(), Output(output.value))
        return
    devices = {found.vertex_path(path): device for path, device in found.virtual.items()}
    if output is GraphOutput.SUMMARY:
        rows = pictures.summary(found.builder, devices)
        host.show([TableRows(pictures.SUMMARY_COLUMNS, rows, pictures.SUMMARY_NUMBERS)])
    else:
        typer.echo((pictures.dot if output is GraphOutput.DOT else pictures.svg)(found.builder, devices), nl=False)


def _allocatable(node: "Node") -> dict[str, int]:
    """A node's allocatable resources, in millicores, bytes and counts."""
    from session_scheduler.model.quantity import parse_quantity

    return {name: parse_quantity(quantity, milli=name == "cpu") for name, quantity in node.status.allocatable.items()}
