"""CEL (Common Expression Language) for selectors of DRA devices.

It compiles each expression once, and limits the cost of each evaluation.
Source: the language's definition (cel-spec), and Kubernetes' libraries for it (apiserver, pkg/cel/library).
"""
