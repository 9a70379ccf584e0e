"""The device plugin, `fluence device-plugin`: advertises the types of virtual resources to a node's kubelet.

The counts are quotas: the scheduler decides which backend a pod gets, and no device of the node belongs to a unit. This
package imports nothing here, because every `--help` imports the command's module.
"""
