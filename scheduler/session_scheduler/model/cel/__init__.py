"""CEL, the Common Expression Language, as selectors of devices use it: parsed once, its work counted.

Source: the language's definition (cel-spec), and Kubernetes' libraries for it (apiserver, pkg/cel/library).
"""
