"""What the plugin fluence, the webhook and the device plugin share: names, the resources file, groups by label.

Empty on purpose: the device plugin imports only the modules that it needs.
"""
