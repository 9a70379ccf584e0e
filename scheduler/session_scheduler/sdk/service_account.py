"""The API server's address, token and CA, as a pod has them from the kubelet."""

from session_scheduler.base.service_account import api_server_of_pod, api_server_tls, read_token

__all__ = ["api_server_of_pod", "api_server_tls", "read_token"]
