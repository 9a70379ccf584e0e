"""The taints that DeviceTaintRules add to devices, as if their drivers had published them in the ResourceSlices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from session_scheduler.model.devices import DeviceTaint, DeviceTaintRule, DeviceTaintSelector, ResourceSlice

_Taints = Sequence[tuple[DeviceTaintSelector, DeviceTaint]]


def tainted(slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]) -> list[ResourceSlice]:
    """The slices with the rules' taints. A slice without a selected device is returned unchanged."""
    ordered = sorted(rules, key=lambda rule: rule.metadata.name)
    taints = [(rule.spec.device_selector or DeviceTaintSelector(), rule.spec.taint) for rule in ordered]
    return [_tainted(part, taints) for part in slices] if taints else list(slices)


def _tainted(part: ResourceSlice, taints: _Taints) -> ResourceSlice:
    spec = part.spec
    own = [(selector.device, taint) for selector, taint in taints
           if selector.driver in (None, spec.driver) and selector.pool in (None, spec.pool.name)]  # fmt: skip
    if not own:
        return part
    devices = tuple(
        replace(device, taints=(*device.taints, *(taint for name, taint in own if name in (None, device.name))))
        for device in spec.devices
    )
    return replace(part, spec=replace(spec, devices=devices))
