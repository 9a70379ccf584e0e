"""What this plugin adds to the command `fluence`: the option `--resources` and the command `graph`."""

from typing import TYPE_CHECKING, Annotated

import typer

from session_scheduler.commands import Host, Output, PluginOption
from session_scheduler.errors import InputError

if TYPE_CHECKING:
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
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Manifests with nodes.")],
    *,
    resources: Annotated[
        str | None,
        typer.Option(RESOURCES.flag, metavar=RESOURCES.metavar, help=RESOURCES.help),
    ] = None,
    output: Annotated[Output, typer.Option("-o", "--output", help="json or yaml.")] = Output.JSON,
) -> None:
    """Print the resource graph as JGF.

    JGF is the JSON Graph Format; the graph holds the nodes of the manifests and the virtual resources.
    """
    from fluence_plugins.fluence.arguments import FluenceArguments
    from fluence_plugins.fluence.cluster_graph import build_graph
    from fluence_plugins.fluence.needs import host_of

    if output is Output.TABLE:
        raise InputError("graph has no table: use -o json or -o yaml")
    host: Host = context.obj
    hosts = [host_of(node.metadata.name, _allocatable(node)) for node in host.nodes(files)]
    if not hosts:
        raise InputError(f"{', '.join(files)}: no object of kind Node: name manifests that hold the cluster's nodes")
    trees = FluenceArguments(resources=resources).load()
    host.write(build_graph(hosts, trees).jgf(), output)


def _allocatable(node: "Node") -> dict[str, int]:
    """Millicores, bytes and counts."""
    from session_scheduler.model.quantity import parse_quantity

    return {name: parse_quantity(quantity, milli=name == "cpu") for name, quantity in node.status.allocatable.items()}
