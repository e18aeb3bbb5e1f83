"""Fleet administration: keys, certificates, permissions, and folders for broker, server and devices."""

from wayfare.field.fleet.on_disk import (
    Bundle,
    Fleet,
    add_devices,
    create_fleet,
    load_bundle,
    load_fleet,
    remove_devices,
)

__all__ = ["Bundle", "Fleet", "add_devices", "create_fleet", "load_bundle", "load_fleet", "remove_devices"]
