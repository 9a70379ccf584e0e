"""Selectors that the API server accepts: it does not know an attribute's type before the evaluation."""

from .builders import CARD, Cluster, ask, claim, dev, part

OWN = f'device.attributes["{CARD}"]'
TEXTS = {
    "number-as-text": f'{OWN}.numa == "a"',
    "number-below-text": f'{OWN}.numa < "a"',
    "number-not-text": f'{OWN}.numa != "a"',
    "number": f"{OWN}.numa",
    "text": f"{OWN}.hue",
    "version": f"{OWN}.made",
    "truth": f"{OWN}.quick",
    "nothing": f"{OWN}.nothing == 1",
    "of-nobody": 'device.attributes["nobody.example.com"].hue == "red"',  # codespell:ignore nobody
    "part-of-a-number": f"{OWN}.numa.part == 1",
    "entry-of-a-text": f'{OWN}.hue[0] == "r"',
    "has-part-of-a-number": f"has({OWN}.numa.part)",
    "perhaps-part-of-a-number": f"{OWN}.numa.?part.hasValue()",
    "version-as-text": f'{OWN}.made == "1.2.3"',
    "version-not-text": f'{OWN}.made != "1.2.3"',
    "text-as-version": f'"1.2.3" == {OWN}.made',
    "version-as-text-or-true": f'{OWN}.made == "1.2.3" || true',
    "version-among-texts": f'{OWN}.made in ["1.2.3"]',
    "version-among-texts-or-true": f'{OWN}.made in ["1.2.3"] || true',
    "text-among-versions": f'"1.2.3" in [{OWN}.made]',
    "list-of-a-version": f'[{OWN}.made] == ["1.2.3"]',
    "map-of-a-version": f'{{"a": {OWN}.made}} == {{"a": "1.2.3"}}',
    "version-as-null": f"{OWN}.made == null",
    "amount-as-number": f'device.capacity["{CARD}"].memory == {OWN}.numa',
    "number-as-amount": f'{OWN}.numa == device.capacity["{CARD}"].memory',
    "version-as-version": f'{OWN}.made == semver("1.2.3")',
    "text-above-amount": f'{OWN}.hue.isGreaterThan(quantity("1"))',
    "version-below-amount": f'{OWN}.made.isLessThan(quantity("1"))',
    "size-of-a-number": f"size({OWN}.numa) == 1",
    "major-of-a-text": f"{OWN}.hue.major() == 1",
    "text-of-a-version": f'string({OWN}.made) == "1.2.3"',
    "text-as-amount": f"quantity({OWN}.hue).isInteger()",
    "text-as-a-version": f"semver({OWN}.hue).major() == 1",
    "version-with-zeros": 'semver("1.02.3").major() == 1',
    "version-without-end": 'semver("1.2.3-").major() == 1',
    "number-includes": f"{OWN}.numa.includes(1)",
    "text-includes": f'{OWN}.hue.includes("re")',
    "version-includes": f'{OWN}.made.includes(semver("1.2.3"))',
    "list-includes": "[1, 2].includes(2.0)",
    "misspelt": "devize.driver",
    "misspelt-field": "device.drivers == 'a'",
    "misspelt-function": "device.driver.begins('a')",
    "number-alone": "1",
}
cluster = Cluster("selectors", part("p", [dev("c0", "2Gi", numa=1, hue="red", made="1.2.3", quick=True)]))
for name, text in TEXTS.items():
    cluster.pod(name, claim(ask("any", where=text)))

ODD = [dev(f"c{number}", made={"version": made}) for number, made in enumerate(["1.2", "01.2.3"])]
for number, device in enumerate(ODD):
    odd = Cluster(f"odd-version-{number}", part("p", [device]))
    odd.pod("one", claim(ask("any", where=f"{OWN}.made.major() == 1")))

THERE = part("q", [dev("c1")], nodeName="there")
nodes = Cluster("an-answer-on-one-node", part("p", [dev("c0", hue="red")]), THERE, nodes=("here", "there"))
nodes.pod("red", claim(ask(where=f'{OWN}.hue == "red"')))
nodes.pod("of-every-node", claim(ask(where="true")))
