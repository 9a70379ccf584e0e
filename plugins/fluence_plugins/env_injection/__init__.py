"""The mutating admission webhook, `fluence webhook`: injects environment variables whose values the scheduler writes
later.

A container's environment is fixed when its pod is created, but the match happens later. So the webhook injects
variables that read annotations, and the scheduler writes these annotations before it binds the pod. Authors of further
handlers import `handlers`.
"""
