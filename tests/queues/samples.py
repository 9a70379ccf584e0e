"""Manifests for these tests: the document's, word for word, and Kueue's objects made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

KUEUE_API = "kueue.x-k8s.io/v1beta2"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
VIRTUAL_NODE = "interlink"
VIRTUAL_NODE_TAINT = {"key": "virtual-node.interlink/no-schedule", "value": "true", "effect": "NoSchedule"}

MASTER_QUEUE = """\
apiVersion: vk.io/v1
kind: MasterQueue
metadata:
  name: masterqueue
spec:
  template:
    cohort: masterqueue

  flavors:
    - name: interlink
      natsFlavor:
        natsConnector: "nats://user:password@nats.nats:4222"
        natsSubject: interlink.resources
        virtualNode: interlink
        poolTimeout: 30
        poolRegExp: ".*"
      nominalQuota:
        pods: 100
      canLendTo:
        - queue: group1
          lendingLimit:
            pods: 30
"""
LOCAL_QUEUE = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata:
   namespace: default
   name: gr1
spec:
   clusterQueue: group1
"""
JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  generateName: sample-job-1
  namespace: default
  labels:
    kueue.x-k8s.io/queue-name: gr1
spec:
  parallelism: 1
  completions: 1
  suspend: true
  template:
    spec:
      containers:
      - name: dummy-job
        image:  ghcr.io/grycap/cowsay:latest
        command: ["/bin/sh", "-c"]
        args:
         - |
                echo "Hello world!"
                sleep 30

        resources:
          requests:
            cpu: 1
            memory: "200Mi"
      tolerations:
        - key: virtual-node.interlink/no-schedule
          operator: Exists
          effect: NoSchedule
      restartPolicy: Never
"""
LOCAL_FLAVOR = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata:
  name: "local-cpu"  # <-- Note this name
"""
LOCAL_MASTER_QUEUE = """\
apiVersion: vk.io/v1
kind: MasterQueue
metadata:
   name: masterqueue
spec:
   template:
      cohort: masterqueue

   flavors:
      - name: local-cpu   # <-- This name should match the ResourceFlavor definition above
        localFlavor: {}
        nominalQuota:
           pods: 100
        canLendTo:
           - queue: group1
             lendingLimit:
                pods: 30
"""


def read(manifest: str) -> dict[str, Any]:
    """One of the manifests."""
    found: dict[str, Any] = yaml.safe_load(manifest)
    return found


def master_queue(connector: str) -> dict[str, Any]:
    """The document's MasterQueue with the address of a test's own nats-server."""
    found = read(MASTER_QUEUE)
    found["spec"]["flavors"][0]["natsFlavor"]["natsConnector"] = connector
    return found


def flavor(name: str, *, node: str = VIRTUAL_NODE, pool: str | None = None) -> dict[str, Any]:
    """A ResourceFlavor as a pool's is."""
    toleration = {"key": "pool.vk.io", "operator": "Equal", "value": pool or name, "effect": "NoSchedule"}
    spec = {
        "nodeLabels": {"kubernetes.io/hostname": node},
        "nodeTaints": [VIRTUAL_NODE_TAINT],
        "tolerations": [toleration],
    }
    return {"apiVersion": KUEUE_API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def cluster_queue(
    name: str,
    cohort: str,
    nominal: Mapping[str, Mapping[str, object]],
    limits: Mapping[str, Mapping[str, object]] | None = None,
    **spec: object,
) -> dict[str, Any]:
    """A ClusterQueue. `nominal` and `limits` (for borrowing): amounts by flavor and resource."""
    limits = limits or {}
    flavors = [
        {
            "name": flavor,
            "resources": [
                {"name": resource, "nominalQuota": str(amount)}
                | ({"borrowingLimit": str(limits[flavor][resource])} if resource in limits.get(flavor, {}) else {})
                for resource, amount in amounts.items()
            ],
        }
        for flavor, amounts in nominal.items()
    ]
    covered = list(next(iter(nominal.values())))
    return {
        "apiVersion": KUEUE_API,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "cohortName": cohort,
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
            **spec,
        },
    }
