"""Places pods and devices by matching jobspecs against a Fluxion resource graph."""
