"""Taints and binding conditions of devices."""

from .builders import LINK, Cluster, ask, claim, dev, first, held, part, taint, tolerates

NO_START, NO_RUN, NOTHING = taint("NoSchedule"), taint("NoExecute", given="most"), taint("None")
RUN = tolerates("NoExecute", given="most")

two = Cluster("worn-and-worse", part("p", [dev("c0", taints=[NO_START]), dev("c1", taints=[NO_RUN])]))
two.pod("one", claim(ask()), covers="tainted-two-devices")
two.pod("a-worse-one", claim(ask(tolerations=[RUN])), covers="tainted-two-devices-tolerated")
two.pod(
    "one-or-a-worse-one",
    claim(first(ask(), ask(tolerations=[RUN]))),
    covers="tainted-two-devices-prioritized-list-tolerated",
)
two.pod("tolerant-of-another-value", claim(ask(tolerations=[tolerates("NoExecute", given="much")])))
two.pod("tolerant-of-everything", claim(ask(count=2, tolerations=[{"operator": "Exists"}])))
both = Cluster("worn-twice", part("p", [dev("c0", taints=[NO_START, NO_RUN])]))
both.pod("one", claim(ask()), covers="tainted-one-device-two-taints")
both.pod("tolerant-of-one", claim(ask(tolerations=[RUN])))
both.pod(
    "tolerant-of-both",
    claim(ask(tolerations=[tolerates("NoSchedule"), RUN])),
    covers="tainted-one-device-two-taints-both-tolerated",
)
Cluster("worn-to-no-effect", part("p", [dev("c0", taints=[NOTHING])])).pod(
    "one", claim(ask()), covers="tainted-no-effect"
)
worn = Cluster("worn", part("p", [dev("c0", taints=[NO_START])]))
worn.pod("a-link-or-one", claim(first(ask("link"), ask())), covers="tainted-prioritized-list")
worn.pod("all", claim(ask(count="all")), covers="tainted-all-devices-single")
Cluster("worn-and-taken", part("p", [dev("c0", taints=[NO_START])]), taken=[held("p", "c0")]).pod(
    "looked-at", claim(ask(admin=True)), covers="tainted-admin-access"
)

ready = dev("c0", waits="ready")
Cluster("waits", part("p", [ready])).pod("one", claim(ask()), covers="device-binding-conditions")
Cluster("three-that-wait", part("p", [ready, dev("c1", waits="linked"), dev("c2", waits="cool")])).pod(
    "two-and-one", claim(ask(count=2), ask()), covers="binding-conditions-multiple-devices"
)
some = Cluster("one-that-waits", part("p", [dev("c1"), ready]))
some.pod("one-and-one", claim(ask(), ask()), covers="binding-conditions-with-and-without")
Cluster("links-beside-one-that-waits", part("p", [ready]), part("q", [dev("l0")], LINK)).pod(
    "a-link", claim(ask("link"))
)
