"""Runs one target, or each in turn: `python -m tests.fuzz.run [TARGET ...] --runs 10000`.

Uses atheris (libFuzzer, guided by the coverage of the Python code) if it is installed. Otherwise, or with
`--engine plain`, it mutates the stored corpus from one seed, guided by the matcher's answers. The run writes an input
that fails to `.cache/fuzz`, names it and exits with status 1; `--replay FILE` repeats it. `--keep` rebuilds the corpus
from its inputs and those that reached new code.
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

from tests.fuzz.corpus import keep, minimised, seeds
from tests.fuzz.mutate import mutated

NAMES = ("graph", "loading", "jobspec", "r", "policy", "criteria", "ranges", "session", "pool_message", "nats_wire")
LONGEST = {"policy": 512, "criteria": 1024, "ranges": 256, "nats_wire": 512}
"""The greatest size of an input in bytes; 4096 by default."""
SOURCES = {"pool_message": "fluence_plugins.master_queue", "nats_wire": "fluence_plugins.master_queue"}
"""The package under test; the matcher's by default."""
POOL = 2000
STUCK = 60
"""Seconds after which an input counts as hung, even on a busy machine. The targets measure processor time."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], help="by default all")
    parser.add_argument("--runs", type=int, default=10_000, help="inputs for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("atheris", "plain"), help="by default atheris if it is installed")
    parser.add_argument("--keep", action="store_true", help="add inputs that reached new code to the corpus, minimised")
    parser.add_argument("--found", type=Path, default=Path(".cache") / "fuzz", help="folder for failing inputs")
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


def function_of(name: str, given: argparse.Namespace) -> Callable[[bytes], tuple[str, ...]]:
    module: Any = importlib.import_module("tests.fuzz.targets")
    module.allow_little()
    watch: Any = importlib.import_module("tests.fuzz.watch")
    function: Callable[[bytes], tuple[str, ...]] = watch.bounded(module.TARGETS[name], watch.LIMIT * given.slower)
    return function


def keep_of(name: str, given: argparse.Namespace, inputs: list[bytes]) -> None:
    """Rebuild a target's corpus from all inputs that reach something new."""
    target = function_of(name, argparse.Namespace(slower=1000))
    package = Path(sys.modules[SOURCES.get(name, "fluxion_cy")].__file__ or "").parent
    found = minimised([*seeds(name), *inputs], target, str(package))
    keep(name, found)
    print(f"fuzz {name}: {len(found)} inputs kept, {sum(map(len, found))} bytes", flush=True)


def plainly(name: str, given: argparse.Namespace) -> int:
    """Mutate the corpus, and the mutations with a new answer, all from one seed."""
    target, source = function_of(name, given), Random(given.seed)
    first = seeds(name)
    pool, seen, longest = list(first), set(), LONGEST.get(name, 4096)
    began = time.monotonic()
    for number in range(given.runs):
        if number < len(first):
            data = first[number]
        else:
            data = mutated(source.choice(pool), source, source.choice(pool))[:longest]
        faulthandler.dump_traceback_later(STUCK * given.slower, exit=True)
        try:
            answers = target(data)
        except BaseException:  # noqa: BLE001 - any failure is reported and its input stored
            path = given.found / f"crash-{name}"
            path.write_bytes(data)
            print(f"fuzz {name}: input {number} of seed {given.seed} breaks it; kept in {path}", flush=True)
            traceback.print_exc()
            return 1
        if answers not in seen:
            seen.add(answers)
            if len(pool) < POOL:
                pool.append(data)
            else:
                pool[source.randrange(len(first), POOL)] = data
    faulthandler.cancel_dump_traceback_later()
    spent = time.monotonic() - began
    print(
        f"fuzz {name}: {given.runs} executions in {spent:.0f} s, nothing found "
        f"(plain, seed {given.seed}, {len(seen)} kinds of answer)",
        flush=True,
    )
    if given.keep:
        keep_of(name, given, pool)
    return 0


def with_atheris(name: str, given: argparse.Namespace) -> int:
    """Run libFuzzer in a separate process, since it ends its process."""
    child = os.environ.get("FUZZ_CHILD")
    if child:
        _fuzz(name, given, child.split("\n"))
    fresh, old = given.found / f"{name}-new", given.found / f"{name}-seeds"
    for folder in (fresh, old):
        folder.mkdir(exist_ok=True)
    for path in old.iterdir():
        path.unlink()
    for number, data in enumerate(seeds(name)):
        (old / str(number)).write_bytes(data)
    words = [
        f"-artifact_prefix={given.found}/{name}-",
        f"-max_len={LONGEST.get(name, 4096)}",
        f"-timeout={STUCK}",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-runs={given.runs}",
        f"-seed={given.seed}",
    ]
    status = _again(name, given, [*words, str(fresh), str(old)])
    if given.keep and not status:
        keep_of(name, given, [path.read_bytes() for path in fresh.iterdir()])
    said = "nothing found" if not status else f"something found, kept in {given.found}"
    print(f"fuzz {name}: {given.runs} executions, {said} (atheris, seed {given.seed})", flush=True)
    return status


def _again(name: str, given: argparse.Namespace, words: list[str]) -> int:
    environment = {**os.environ, "FUZZ_CHILD": "\n".join(words)}
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--engine", "atheris", "--slower", str(given.slower)]
    return 1 if subprocess.call(command, env=environment) else 0


def _fuzz(name: str, given: argparse.Namespace, words: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=[SOURCES.get(name, "fluxion_cy")]):
        target = function_of(name, given)

    def once(data: bytes) -> None:
        target(data)

    def mutator(data: bytes, longest: int, seed: int) -> bytes:
        source = Random(seed)
        if source.random() < 0.2:
            return bytes(atheris.Mutate(data, longest))
        return mutated(data, source)[:longest]

    atheris.Setup([sys.argv[0], *words], once, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
