"""Runs one target, or each in turn: `python -m tests.fuzz.run [TARGET ...] --runs 10000`.

With atheris (libFuzzer; coverage of the Python code guides it) where that is installed, otherwise, or with
`--engine plain`, with the same mutations of the kept corpus from one seed. What breaks a target is written to
`.cache/fuzz`, named, and ends the run with status 1; `--replay FILE` runs it again. `--keep` adds to the corpus what
reached new code and was minimised.
"""

import argparse
import faulthandler
import importlib
import importlib.util
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutate import mutated

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
NAMES = ("graph", "loading", "jobspec", "r", "policy", "criteria", "ranges")
LONGEST = 4096
STUCK = 60
"""Seconds after which one input has hung, however busy the machine; the targets count processor time themselves."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], help="all of them by default")
    parser.add_argument("--runs", type=int, default=10_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("atheris", "plain"), help="atheris where it is installed")
    parser.add_argument("--keep", action="store_true", help="add what reached new code to the corpus, minimised")
    parser.add_argument("--found", type=Path, default=Path(".cache") / "fuzz", help="folder for what is found")
    parser.add_argument("--slower", type=float, default=1, help="how much slower than usual the build is")
    parser.add_argument("--replay", type=Path, help="run one target on this file")
    return parser.parse_args()


def main() -> int:
    given = options()
    engine = given.engine or ("atheris" if importlib.util.find_spec("atheris") else "plain")
    targets = given.targets or list(NAMES)
    given.found.mkdir(parents=True, exist_ok=True)
    if given.replay:
        function_of(targets[0], given)(given.replay.read_bytes())
        return 0
    statuses = [(with_atheris if engine == "atheris" else plainly)(name, given) for name in targets]
    return max(statuses)


def function_of(name: str, given: argparse.Namespace) -> Callable[[bytes], None]:
    module: Any = importlib.import_module("tests.fuzz.targets")
    function: Callable[[bytes], None] = module.bounded(module.TARGETS[name], module.LIMIT * given.slower)
    return function


def seeds(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def plainly(name: str, given: argparse.Namespace) -> int:
    """Mutations of the corpus, and of mutations that were let through, all from one seed."""
    target, source = function_of(name, given), Random(given.seed)
    pool = seeds(name)
    began = time.monotonic()
    for number in range(given.runs):
        data = pool[number] if number < len(pool) else mutated(source.choice(pool), source)[:LONGEST]
        faulthandler.dump_traceback_later(STUCK * given.slower, exit=True)
        try:
            target(data)
        except BaseException:  # noqa: BLE001 - whatever it is, it is told and kept
            path = given.found / f"crash-{name}"
            path.write_bytes(data)
            print(f"fuzz {name}: input {number} of seed {given.seed} breaks it; kept in {path}", flush=True)
            traceback.print_exc()
            return 1
        if source.random() < 0.02:
            pool[source.randrange(len(pool))] = data
    faulthandler.cancel_dump_traceback_later()
    spent = time.monotonic() - began
    print(
        f"fuzz {name}: {given.runs} executions in {spent:.0f} s, nothing found (plain, seed {given.seed})", flush=True
    )
    return 0


def with_atheris(name: str, given: argparse.Namespace) -> int:
    """libFuzzer in a process of its own, since it ends the one that it runs in."""
    child = os.environ.get("FUZZ_CHILD")
    if child:
        _fuzz(name, given, child.split("\n"))
    fresh = given.found / name
    fresh.mkdir(exist_ok=True)
    common = [
        f"-artifact_prefix={given.found}/{name}-",
        f"-max_len={LONGEST}",
        f"-timeout={STUCK}",
        "-print_final_stats=1",
    ]
    runs, seed = f"-runs={given.runs}", f"-seed={given.seed}"
    status = _again(name, [*common, "-verbosity=0", runs, seed, str(fresh), str(CORPUS / name)])
    if given.keep and not status:
        status = _again(name, [*common, "-merge=1", str(CORPUS / name), str(fresh)])
    said = "nothing found" if not status else f"something found, kept in {given.found}"
    print(f"fuzz {name}: {given.runs} executions, {said} (atheris, seed {given.seed})", flush=True)
    return status


def _again(name: str, words: list[str]) -> int:
    environment = {**os.environ, "FUZZ_CHILD": "\n".join(words)}
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--engine", "atheris"]
    return 1 if subprocess.call(command, env=environment) else 0


def _fuzz(name: str, given: argparse.Namespace, words: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["fluxion_cy"]):
        target = function_of(name, given)

    def mutator(data: bytes, longest: int, seed: int) -> bytes:
        source = Random(seed)
        if source.random() < 0.2:
            return bytes(atheris.Mutate(data, longest))
        return mutated(data, source)[:longest]

    atheris.Setup([sys.argv[0], *words], target, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
