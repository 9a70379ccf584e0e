"""What plugins receive to bind pods, to free and recover allocations, and to run their own tasks."""

from session_scheduler.framework.bindings import Allocation, Binding, Holding, Objects, Runtime

__all__ = ["Allocation", "Binding", "Holding", "Objects", "Runtime"]
