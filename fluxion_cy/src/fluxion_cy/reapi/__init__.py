"""The real engine: Fluxion's own library `libreapi_cli`, opened at run time through its C API.

`library` finds and opens it, `context` marshals its functions, `sending` writes what it is given, and `engine` is the
matcher that `Matcher(graph, engine="reapi")` answers.
"""
