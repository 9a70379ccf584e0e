"""The objects of the Kubernetes API: MasterQueues, Kueue's kinds, the store of observed objects,
and server-side apply.
"""
