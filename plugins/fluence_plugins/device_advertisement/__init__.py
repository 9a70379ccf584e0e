"""`fluence device-plugin`: tells each node's kubelet the types of virtual resources that its pods may ask for.

The counts are quotas: which backend a pod gets is the scheduler's decision, and no device of the node is behind a unit.
Nothing is imported here: the command's module is imported for every `--help`.
"""
