"""The matcher over Fluxion's own library `libreapi_cli`, opened at run time through its C API.

`library` finds and opens it, `context` calls its functions, `marshalling` writes what they read and reads what they
write, `limits` refuses what it cannot do, and `matcher` has the operations.
"""
