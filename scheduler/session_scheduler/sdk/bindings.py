"""What plugins get to bind pods, to free and to recover what pods hold, and for their own tasks."""

from session_scheduler.framework.bindings import Allocation, Binding, Holding, Objects, Runtime

__all__ = ["Allocation", "Binding", "Holding", "Objects", "Runtime"]
