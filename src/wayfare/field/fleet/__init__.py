"""Fleet administration: keys, certificates, permissions, and folders for broker, server and devices.

Design decisions:

- Two proofs of identity: a fleet certificate opens the connection and the device's own key logs in, so one key can be
  revoked without new certificates. Our client rejects unencrypted brokers before it signs anything.
- A reply subject is only a claim. Every device has its own account at the broker, so answers to it stay in its account.
"""

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
