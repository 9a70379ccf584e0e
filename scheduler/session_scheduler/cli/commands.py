"""The core's commands. Each imports its modules when it runs, so that --help is fast."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from session_scheduler.base.garbage_collection import collect_rarely, no_collections
from session_scheduler.cli.entry_points import open_report
from session_scheduler.cli.folders import CONFIG, CONFIG_FLAG
from session_scheduler.cli.plugin_options import PluginOptions, configuration
from session_scheduler.cluster.field_validation import FieldValidation
from session_scheduler.errors import InputError
from session_scheduler.sdk.command_options import Context, Kubeconfig, LogFormatOption, LogLevelOption
from session_scheduler.sdk.commands import LogFormat, LogLevel, Output

if TYPE_CHECKING:
    from session_scheduler.config.settings import SchedulerConfig
    from session_scheduler.engine.scheduler import Scheduler
    from session_scheduler.offline.pod_selector import PodSelector
    from session_scheduler.offline.state import ClusterState

Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE", help="Manifests, directories, a snapshot, or - for standard input."),
]
FilesAndObjects = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TYPE/NAME|FILE",
        help="Show only the pods of these objects, such as pod/x, podgroup/x or job/x. FILEs are manifests, "
        "directories, a snapshot, or - for standard input. Without FILEs, the command reads the cluster.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        metavar="NS",
        help="The namespace of each TYPE/NAME; default: the context's namespace, or `default`.",
    ),
]
LiveCluster = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="The kubeconfig of a cluster to read; the FILEs are added to its state."
    ),
]
Config = Annotated[Path | None, typer.Option(CONFIG_FLAG, metavar="FILE", help="The scheduler's configuration.")]
ConfigOrFolder = Annotated[
    Path | None,
    typer.Option(
        CONFIG_FLAG,
        metavar="FILE",
        help=f"The scheduler's configuration. Default: {CONFIG} in a directory among the FILEs.",
    ),
]
Validate = Annotated[
    FieldValidation,
    typer.Option(
        "--validate",
        help="How to report unknown fields and wrong types in manifests, as in kubectl: as errors (strict), as "
        "warnings (warn), or not at all (ignore). Objects that an API server wrote are not validated.",
    ),
]
AllNodes = Annotated[bool, typer.Option("--all-nodes", help="Show every node in tables, instead of a summary.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write a report: one HTML file that can be read offline."),
]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="The output format.")]
_Answer = TypeVar("_Answer")


class SimulationOutput(Enum):
    """The output formats of `simulate`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    DIFF = "diff"


def simulate(
    files: Files = None,
    *,
    kubeconfig: LiveCluster = None,
    context: Context = None,
    add_nodes: Annotated[
        list[str] | None,
        typer.Option("--add-nodes", metavar="N[xNODE|xFILE]|FILE", help="Simulate with these additional nodes."),
    ] = None,
    without_plugin: Annotated[
        list[str] | None,
        typer.Option("--without-plugin", metavar="NAME", help="Simulate with this plugin disabled in all profiles."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="NS/NAME", help="Also explain this pod, as of the time of its scheduling decision."
        ),
    ] = None,
    all_nodes: AllNodes = False,
    config: ConfigOrFolder = None,
    validate: Validate = FieldValidation.STRICT,
    output: Annotated[
        SimulationOutput,
        typer.Option(
            "-o", "--output", help="The output format; diff shows only what --add-nodes and --without-plugin change."
        ),
    ] = SimulationOutput.TABLE,
    html: HtmlOption = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
    reads_cluster: bool = False,
) -> int:
    """Schedule the pods of manifests, a snapshot or a live cluster in memory.

    Writes nothing to the cluster. The exit status is 1 if a pod is unschedulable, and 2 if no profile serves any pod of
    the manifests.

    Examples:
      fluence simulate cluster.yaml workloads.yaml --resources resources.yaml
      fluence simulate --kubeconfig ~/.kube/config new-job.yaml
      fluence simulate cluster.yaml --add-nodes 3xn1 -o diff
      fluence simulate cluster.yaml workloads.yaml --explain default/sampler
    """
    from session_scheduler.offline.pod_selector import pod_option
    from session_scheduler.offline.what_if import WhatIf, simulate_what_if

    what_if = WhatIf(add_nodes or (), without_plugin or (), validate)
    is_diff = output is SimulationOutput.DIFF
    if is_diff and not what_if:
        raise InputError("-o diff: needs --add-nodes or --without-plugin; add one of them")
    if is_diff and explain is not None:
        raise InputError("-o diff: shows no explanation; remove --explain, or choose another format")
    report = open_report(html)
    state, settings = _read(files, kubeconfig, context, config, plugin_options, log_level, validate, live=reads_cluster)
    explained = pod_option(explain, "--explain") if explain is not None else None
    compared = bool(what_if) and (output is not SimulationOutput.TABLE or report is not None)
    result = _run_async(simulate_what_if(state, settings, what_if, compared=compared, explained=explained))
    if is_diff:
        _write({"diff": result["diff"]}, Output.TABLE)
    else:
        _write(result, Output(output.value), all_nodes=all_nodes)
    if report is not None:
        report.write("simulate", result)
    if state.serves_none(settings):
        raise InputError("no profile serves any of these pods; correct their schedulerName, or add a profile")
    return 1 if result["summary"]["unschedulable"] else 0


def explain(
    files: FilesAndObjects = None,
    *,
    kubeconfig: LiveCluster = None,
    context: Context = None,
    namespace: Namespace = None,
    pod: Annotated[str | None, typer.Option("--pod", metavar="NS/NAME", help="Explain only this pod.")] = None,
    all_nodes: AllNodes = False,
    config: ConfigOrFolder = None,
    validate: Validate = FieldValidation.STRICT,
    output: OutputOption = Output.TABLE,
    html: HtmlOption = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
    reads_cluster: bool = False,
) -> None:
    """Explain why pods are pending: evaluate each pod alone, node by node.

    Shows the score of each node that fits; and of each other node the plugin that rejects it, and why.

    Examples:
      fluence explain cluster.yaml workloads.yaml
      fluence explain pod/sampler -n science
      fluence explain podgroup/training --kubeconfig ~/.kube/config -o json
    """
    from session_scheduler.offline.explain import explain_state
    from session_scheduler.offline.pod_selector import pod_option

    report = open_report(html)
    objects, files = _split(files, namespace)
    live = reads_cluster or bool(objects)
    state, settings = _read(files, kubeconfig, context, config, plugin_options, log_level, validate, live=live)
    chosen = _selectors(objects, namespace, files, kubeconfig, context)
    if pod is not None:
        chosen.append(pod_option(pod))
    result = _run_async(explain_state(state, settings, chosen))
    _write(result, output, all_nodes=all_nodes)
    if report is not None:
        report.write("explain", result)


def snapshot(
    files: Files = None,
    *,
    kubeconfig: LiveCluster = None,
    context: Context = None,
    config: ConfigOrFolder = None,
    validate: Validate = FieldValidation.STRICT,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="yaml|json|FILE",
            help="The format for standard output, or a file to write (its name selects the format); default: json.",
        ),
    ] = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
    reads_cluster: bool = False,
) -> None:
    """Save the scheduler's input: the objects that it watches, and its configuration.

    `simulate` and `explain` read it and make the same decisions. It contains no Secrets and no environment variables.

    Examples:
      fluence snapshot --kubeconfig ~/.kube/config -o now.json
      fluence snapshot cluster.yaml --config scheduler.yaml -o yaml
    """
    from session_scheduler.offline.snapshot import snapshot as snapshot_of
    from session_scheduler.offline.snapshot import write_snapshot

    to_stdout = output is None or output in ("-", "json", "yaml")
    if output is not None and not to_stdout and not {".", "/"} & set(output):
        raise InputError(f"-o {output}: unknown format; use yaml, json or a file such as now.yaml")
    state, settings = _read(files, kubeconfig, context, config, plugin_options, log_level, validate, live=reads_cluster)
    if output is None or to_stdout:
        typer.echo(snapshot_of(state, settings, yaml=output == "yaml"), nl=False)
    else:
        write_snapshot(state, settings, Path(output))


def status(
    files: FilesAndObjects = None,
    *,
    kubeconfig: LiveCluster = None,
    context: Context = None,
    namespace: Namespace = None,
    config: ConfigOrFolder = None,
    validate: Validate = FieldValidation.STRICT,
    output: OutputOption = Output.TABLE,
    html: HtmlOption = None,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
    reads_cluster: bool = False,
) -> None:
    """Show allocated nodes and devices, pending pods and why they wait, and queues.

    Schedules nothing, and writes nothing to the cluster.

    Examples:
      fluence status --kubeconfig ~/.kube/config
      fluence status podgroup/training -n science
      fluence status now.json -o json
    """
    from session_scheduler.offline.status import status_of

    report = open_report(html)
    objects, files = _split(files, namespace)
    live = reads_cluster or bool(objects)
    state, settings = _read(files, kubeconfig, context, config, plugin_options, log_level, validate, live=live)
    chosen = _selectors(objects, namespace, files, kubeconfig, context)

    def read(scheduler: Scheduler) -> dict[str, Any]:
        result = status_of(scheduler, chosen)
        if report is not None:
            report.write("status", result, None if chosen else scheduler)
        return result

    result = _run_async(_report(state, settings, read))
    _write(result, output, now=datetime.now(UTC) if kubeconfig is not None or (live and not files) else state.latest())


def queues(
    files: Files = None,
    *,
    kubeconfig: LiveCluster = None,
    context: Context = None,
    config: ConfigOrFolder = None,
    validate: Validate = FieldValidation.STRICT,
    output: OutputOption = Output.TABLE,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
    reads_cluster: bool = False,
) -> None:
    """Show the queues with their deserved, allocated and pending resources and fair shares.

    Reads manifests, a snapshot or a live cluster, and schedules nothing.

    Examples:
      fluence queues --kubeconfig ~/.kube/config
      fluence queues cluster.yaml queues.yaml -o yaml
    """
    from session_scheduler.offline.queue_report import queue_report

    state, settings = _read(files, kubeconfig, context, config, plugin_options, log_level, validate, live=reads_cluster)
    _write(_run_async(_report(state, settings, queue_report)), output)


def run(
    *,
    config: Config = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = None,
    plugin_options: PluginOptions = (),
) -> int:
    """Run the scheduler until SIGTERM. SIGUSR1 writes the stacks of its threads to standard error.

    Examples:
      fluence run --config scheduler.yaml
      fluence run --kubeconfig ~/.kube/config --context test --log-level debug
    """
    import sys

    with no_collections():
        from session_scheduler.sdk import event_loop
        from session_scheduler.sdk.logs import log_to_stderr
        from session_scheduler.server.replica import run as run_live

    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    log_to_stderr(log_level, form.value)
    return event_loop.run(run_live(configuration(config, plugin_options), kubeconfig=kubeconfig, context=context))


def plugins(context: typer.Context, *, output: OutputOption = Output.TABLE) -> None:
    """List the installed plugins, or write a new one.

    Examples:
      fluence plugins -o json
      fluence plugins new rack-label
    """
    if context.invoked_subcommand is not None:
        return
    from msgspec.structs import asdict

    from session_scheduler.builtin import BUILTIN
    from session_scheduler.registry.registry import Registry

    _write({"plugins": [asdict(plugin) for plugin in Registry(BUILTIN).installed()]}, output)


def _read(
    files: list[str] | None,
    kubeconfig: str | None,
    context: str | None,
    config: Path | None,
    options: PluginOptions,
    log_level: LogLevel,
    validate: FieldValidation,
    *,
    live: bool,
) -> tuple[ClusterState, SchedulerConfig]:
    """The state, and the configuration: of `config`, of the state, or the default one.

    An option takes precedence over a file of the same purpose in a directory among the files. With `live` the command
    reads the cluster if there are no files and no kubeconfig.
    """
    with no_collections():
        from session_scheduler.cli.host import inputs
        from session_scheduler.offline.state import read_state
        from session_scheduler.sdk.logs import log_to_stderr

    log_to_stderr(log_level)
    collect_rarely()
    live = live and not files
    if not files and kubeconfig is None and not live:
        raise InputError("Missing argument 'FILE'; name manifests, or a cluster with --kubeconfig")
    read = inputs(files or [], [option for option, _ in options])
    if files and not read.manifests and kubeconfig is None:
        raise InputError(f"{files[0]}: the directory contains only settings; also name manifests, or a cluster")
    config = config or read.file(CONFIG)
    defaults = [(option, read.option(option)) for option, value in options if value is None]
    given = configuration(config, options, defaults) if config is not None else None
    state = _run_async(read_state(read.manifests, kubeconfig, context, validate, live=live, config=given))
    return state, given or configuration(None, options, defaults, state)


def _split(words: list[str] | None, namespace: str | None) -> tuple[list[str], list[str]]:
    """The arguments of the form TYPE/NAME, and the files. Raises InputError for a namespace without TYPE/NAME."""
    from session_scheduler.offline.pod_selector import names_object

    objects = [word for word in words or () if names_object(word)]
    if namespace is not None and not objects:
        raise InputError(f"-n {namespace}: needs TYPE/NAME, such as pod/sampler; add one, or remove the option")
    return objects, [word for word in words or () if word not in objects]


def _selectors(
    objects: list[str], namespace: str | None, files: list[str], kubeconfig: str | None, context: str | None
) -> list[PodSelector]:
    """The selectors of the objects. The default namespace is the context's for a cluster, `default` for files."""
    from session_scheduler.cluster.kube_access import namespace_of
    from session_scheduler.offline.pod_selector import selectors

    if objects and namespace is None:
        live = kubeconfig is not None or not files
        namespace = namespace_of(kubeconfig, context) if live else "default"
    return selectors(objects, namespace or "default")


def _run_async(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    import asyncio  # here, so that --help is fast

    return asyncio.run(work)


async def _report(
    state: ClusterState, settings: SchedulerConfig, report: Callable[[Scheduler], dict[str, Any]]
) -> dict[str, Any]:
    """Call `report` with a scheduler over the state, in the event loop that plugins need."""
    from session_scheduler.offline.state import open_state

    return report(await open_state(state, settings))


def _write(result: dict[str, Any], output: Output, *, now: datetime | None = None, all_nodes: bool = False) -> None:
    if output is Output.TABLE:
        from session_scheduler.cli.tables import print_tables

        print_tables(result, now=now, all_nodes=all_nodes)
    else:
        from session_scheduler.cli.host import rendered

        typer.echo(rendered(result, output), nl=False)
