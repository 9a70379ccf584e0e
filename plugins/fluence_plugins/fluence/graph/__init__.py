"""The resource graph of the live cluster, its allocations, and the engine that matches jobspecs against it."""
