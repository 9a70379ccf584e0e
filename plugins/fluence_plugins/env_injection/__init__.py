"""`fluence webhook`: mutating admission, which gives pods the environment that a placement fills in later.

A container's environment is fixed when its pod is created, but the match happens after that. So pods get variables
that read the annotations which the scheduler writes when it binds. `handlers` is for those who add another handler.
"""
