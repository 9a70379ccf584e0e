"""Extended resources backed by devices: the number of available devices shows how many a pod needs."""

from .builders import Cluster, devs, part, wanting

PODS = {
    "one": wanting(1),
    "one-and-two": wanting(1, 2),
    "two-first": wanting(1, first=(2,)),
    "one-first": wanting(2, first=(1,)),
    "two-firsts": wanting(1, first=(2, 3)),
    "one-stays": wanting(1, first=("1+",)),
    "one-stays-after-two": wanting(1, first=(2, "1+")),
    "one-stays-before-two": wanting(1, first=("1+", 2)),
    "three-first-one-stays": wanting(1, 1, first=(1, "1+", 3)),
    "two-stay": wanting(1, first=("1+", 2, "1+", 3)),
}
for count in range(6):
    there = Cluster(f"cards-to-have-{count}", part("p", devs(count)))
    for name, containers in PODS.items():
        there.pod(name, containers=containers)
