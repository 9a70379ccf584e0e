"""The options of the command line, with resource-query's names."""

import argparse
from collections.abc import Iterable

from fluxion_cy.query.drawing import GRAPH_FORMATS

_REFUSED_FORMATS = {
    "hwloc": "hwloc's XML is not supported; convert it to R with `flux R encode --xml=FILE` and use rv1exec",
}
_LOAD_FORMATS = {name: name for name in ("jgf", "jgf_shorthand", "rv1exec", "grug")} | {"rv1exec_force": "rv1exec"}


def options() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fluxion_cy",
        description="Match jobspecs against a resource graph, with the commands of resource-query; "
        "the command `help` lists them.",
        epilog="Exit status: 0 on success; 1 if a command failed; 2 for an invalid option, graph or "
        "command file; 130 after Ctrl-C. A match that finds nothing is not a failure.",
    )
    add = parser.add_argument
    add("-L", "--load-file", required=True, metavar="FILE", help="the resource graph")
    add(
        "-f",
        "--load-format",
        type=_load_format,
        metavar="FORMAT",
        help=_of(_LOAD_FORMATS, "grug for XML, otherwise jgf"),
    )
    add("-W", "--load-allowlist", type=_allowlist, metavar="TYPES", help=argparse.SUPPRESS)
    add("-S", "--match-subsystems", type=_subsystems, metavar="CA", help="only CA (containment) is supported")
    add("-P", "--match-policy", default="first", metavar="POLICY", help="a policy (default: %(default)s)")
    add("-F", "--match-format", default="simple", metavar="FORMAT", help="the form of R (default: %(default)s)")
    add("-T", "--traverser-policy", default="simple", metavar="NAME", help="simple or flexible (default: %(default)s)")
    add(
        "-p",
        "--prune-filters",
        action="append",
        metavar="FILTERS",
        help="(default: ALL:core)",
    )
    add("-g", "--graph-format", type=_graph_format, default="dot", metavar="FORMAT", help=_of(GRAPH_FORMATS, "dot"))
    add("-o", "--graph-output", metavar="BASENAME", help="write the graph to BASENAME.FORMAT at the end")
    add("-t", "--test-output", metavar="FILE", help="write the results of match and find to this file")
    add("-r", "--reserve-vtx-vec", metavar="N", help="accepted for old scripts; has no effect")
    add("-e", "--elapse-time", action="store_true", help="print the times of loading and of each match")
    add("-d", "--disable-prompt", action="store_true", help="print no prompt")
    own = parser.add_argument_group("not in resource-query")
    own.add_argument(
        "-c", "--command-file", metavar="FILE", help="read commands from this file instead of standard input"
    )
    own.add_argument("--json", action="store_true", help="print one line with a JSON object for each command")
    own.add_argument("--engine", default="embedded", metavar="NAME", help="embedded or reapi (default: %(default)s)")
    own.add_argument("--library", metavar="PATH", help="libreapi_cli.so, for --engine reapi")
    own.add_argument("--not-compatible", action="store_true", help="as Matcher(compatible=False)")
    own.add_argument("--replan", action="store_true", help="let reservations move forward")
    return parser


def _of(names: Iterable[str], default: str) -> str:
    return f"{', '.join(names)} (default: {default})"


def _load_format(word: str) -> str:
    if word in _REFUSED_FORMATS:
        raise argparse.ArgumentTypeError(_REFUSED_FORMATS[word])
    if word not in _LOAD_FORMATS:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is unknown; use {', '.join(_LOAD_FORMATS)}")
    return _LOAD_FORMATS[word]


def _graph_format(word: str) -> str:
    if word.lower() not in GRAPH_FORMATS:
        raise argparse.ArgumentTypeError(f"{word[:40]!r} is unknown; use {', '.join(GRAPH_FORMATS)}")
    return word.lower()


def _subsystems(word: str) -> str:
    if word not in ("CA", "ca"):
        raise argparse.ArgumentTypeError(
            f"{word[:40]!r}: only the subsystem containment is supported; use CA, or leave the option out"
        )
    return word


def _allowlist(word: str) -> str:  # noqa: ARG001
    message = "this option filters only hwloc's XML, which is not supported; remove vertices with the command remove"
    raise argparse.ArgumentTypeError(message)
