"""Connections to NATS servers: settings, credentials, the client and its reconnects."""
