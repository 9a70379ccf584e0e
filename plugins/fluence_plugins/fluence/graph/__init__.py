"""The resource graph of the live cluster: what it holds, and the engine that matches jobspecs against it."""
