"""The core's commands. Each imports what it uses when it is called, so that --help is quick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from session_scheduler.commands import LogFormat, LogLevel, Output, PluginOption

if TYPE_CHECKING:
    from session_scheduler.config import SchedulerConfig

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="Manifests, directories, or - for standard input.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The scheduler's configuration.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to write the result.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="What to log to standard error, from here up.")]
PluginOptions = Sequence[tuple[PluginOption, str]]


def simulate(
    files: Files,
    *,
    config: Config = None,
    output: OutputOption = Output.TABLE,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
) -> int:
    """Place the pods of manifests in memory.

    The exit status is 1 where something is unschedulable.
    """
    from session_scheduler.logs import log_to_stderr
    from session_scheduler.simulate import simulate as run

    log_to_stderr(log_level)
    result = run(files, config=_configuration(config, plugin_options))
    _write(result, output)
    return 1 if result["summary"]["unschedulable"] else 0


def explain(
    files: Files,
    *,
    pod: Annotated[str | None, typer.Option("--pod", metavar="NS/NAME", help="Only this pod.")] = None,
    config: Config = None,
    output: OutputOption = Output.TABLE,
    log_level: LogLevelOption = LogLevel.WARNING,
    plugin_options: PluginOptions = (),
) -> int:
    """Judge each pending pod alone, node by node.

    Where it fits, with what score; and where not, by which plugin and why.
    """
    from session_scheduler.explain import explain as run
    from session_scheduler.logs import log_to_stderr

    log_to_stderr(log_level)
    _write(run(files, config=_configuration(config, plugin_options), pod=pod), output)
    return 0


def run(
    *,
    config: Config = None,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            "--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, ~/.kube/config, or the pod's."
        ),
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="A context of the kubeconfig; else its current one.")
    ] = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="How to log; else as people read it on a terminal.")
    ] = None,
    plugin_options: PluginOptions = (),
) -> int:
    """Schedule a live cluster until SIGTERM."""
    import sys

    from session_scheduler import event_loop
    from session_scheduler.live import run as run_live
    from session_scheduler.logs import log_to_stderr

    form = log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    log_to_stderr(log_level, form.value)
    return event_loop.run(run_live(_configuration(config, plugin_options), kubeconfig=kubeconfig, context=context))


def plugins(*, output: OutputOption = Output.TABLE) -> int:
    """List the plugins that a configuration can name."""
    from dataclasses import asdict

    from session_scheduler.plugin_loading import installed_plugins

    _write({"plugins": [asdict(plugin) for plugin in installed_plugins()]}, output)
    return 0


def _configuration(path: Path | None, options: PluginOptions) -> SchedulerConfig:
    from session_scheduler.config import SchedulerConfig, load_config
    from session_scheduler.plugin_loading import with_plugin_arguments

    config = load_config(path) if path else SchedulerConfig()
    for option, value in options:
        config = with_plugin_arguments(config, option.plugin, {option.argument: value})
    return config


def _write(result: dict[str, Any], output: Output) -> None:
    if output is Output.TABLE:
        from session_scheduler.cli.tables import print_tables

        print_tables(result)
    else:
        from session_scheduler.cli.host import rendered

        typer.echo(rendered(result, output), nl=False)
