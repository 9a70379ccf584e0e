"""The plugin `master-queue`: creates Kueue's flavors and queues from the resources that remote pools publish."""
