"""Shared by the plugin fluence, the webhook and the device plugin: names, the resources file, and groups by label.

Empty on purpose: the device plugin imports only the modules that it needs.
"""
