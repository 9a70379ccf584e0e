"""The matcher over Fluxion's own library `libreapi_cli`, which it opens at run time, through the C API.

`library` finds and opens it, `context` calls its functions, `marshalling` converts their input and output, `limits`
rejects what the library cannot do, and `matcher` has the operations.
"""
