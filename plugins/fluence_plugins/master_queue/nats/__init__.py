"""Connections to NATS servers: settings, credentials, the client, and reconnects."""

from session_scheduler.sdk.extras import require

require("a connection to NATS", "nats", "cryptography", requirement="fluence-scheduler[master-queue]")
