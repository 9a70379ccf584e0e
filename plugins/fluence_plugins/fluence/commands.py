"""What this plugin adds to the command `fluence`: the option `--resources` and the command `graph`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from session_scheduler.commands import Host, Output, PluginOption
from session_scheduler.errors import InputError

if TYPE_CHECKING:
    from fluence_plugins.fluence.cluster_graph import HostResources
    from fluence_plugins.fluence.resources import ResourcesConfig
    from session_scheduler.model.objects import Node

RESOURCES = PluginOption(
    flag="--resources",
    plugin="fluence",
    argument="resources",
    help="The file of virtual resources [env var: FLUENCE_RESOURCES].",
    metavar="FILE",
)


def graph(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Manifests with nodes.")],
    *,
    resources: Annotated[
        Path | None,
        typer.Option("--resources", metavar="FILE", envvar="FLUENCE_RESOURCES", help="The file of virtual resources."),
    ] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="json or yaml.")] = Output.JSON,
) -> None:
    """Print the resource graph of nodes and virtual resources, in the JSON Graph Format."""
    from fluence_plugins.fluence.cluster_graph import build_graph

    if output is Output.TABLE:
        raise InputError("graph has no table: use -o json or -o yaml")
    host: Host = context.obj
    hosts = [_host_resources(node) for node in host.nodes(files)]
    if not hosts:
        raise InputError(f"{', '.join(files)}: no object of kind Node: name manifests that hold the cluster's nodes")
    host.write(build_graph(hosts, _resources(resources)).jgf(), output)


def _resources(path: Path | None) -> "ResourcesConfig":
    from fluence_plugins.fluence.resources import ResourcesConfig, load_resources

    if path is None:
        return ResourcesConfig()
    try:
        return load_resources(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path}: cannot be read ({reason}): name a readable file of resources") from error


def _host_resources(node: "Node") -> "HostResources":
    """What of a node the graph holds: whole cores, whole MiB, gpus of every vendor."""
    from fluence_plugins.fluence.cluster_graph import HostResources
    from session_scheduler.model.quantity import parse_quantity

    offered = node.status.allocatable
    return HostResources(
        name=node.metadata.name,
        cores=parse_quantity(offered.get("cpu", 0), milli=True) // 1000,
        memory_mib=parse_quantity(offered.get("memory", 0)) >> 20,
        gpus=sum(parse_quantity(count) for name, count in offered.items() if name.endswith("/gpu")),
    )
