"""The same algorithm on real machines with intermittent connections. The only package that imports nats.

How every upload counts exactly once
------------------------------------

A device and the mobile edge server (MES) meet for seconds. A broker (NATS JetStream) keeps messages while one of them
is away. Any of the three may lose power at any time, and the broker may then lose messages that it acknowledged. So
neither side trusts the broker. Each trusts its own SQLite file, and what the other side reports about *its* file.

*Mass* is what a device has learned and not delivered. It is in exactly one place and moves in one transaction:

    base - local         learned since the last cut (g in Algorithm 1)
    memory               cut and not sent: error feedback (e)
    outbox               chunks of the open update: promised to the server, not confirmed
    the server's ledger  recorded chunks, each exactly once; the global model is their replay

Methods without memory and servers that mix models do not conserve mass. Their chunks still count exactly once.

1. **Cut** (device, one transaction). `wayfare.device.contact` decides what to send, as in the simulator, with its
   checks. The memory rule forms x from memory and base - local. The payload is entries of x, or the whole local model
   if the server rule takes models. It is split into chunks, the largest entries first, each a message of
   `wayfare.codec.wire`. A coded upload is split between blocks of its quantiser, so its chunks have the decided width
   and decode to the decided values. A private method has added secret noise to base - local before, and the release
   counts from here on. Outbox += chunks, base = local, and memory and part states are updated. There is at most one
   open update, and its number is never reused.
2. **Ask.** In a contact the device first asks ``up.<device>.ask`` which chunks of its open update are recorded. It
   resumes an update of the same contact. It *seals* an older one: the server durably promises to record no more of
   it, and the memory rule takes back the unrecorded entries, so that they compete with newer ones. A model that was
   sealed before it was complete is void: the server uses none of it, and the device still has everything it learned.
3. **Send.** Chunks go to ``up.<device>.chunk``, into the stream, a few at a time. The broker's ack moves the window
   and means nothing else. A chunk that was acked but not recorded within seconds is sent again with a new message id.
4. **Record** (server, one transaction per batch). The subject, which the broker enforces, identifies the device. The
   server records valid new chunks. The server rule then makes one version of the model from all chunks that are due:
   pieces at once if the rule takes pieces, otherwise complete or sealed updates. Then the server acks and publishes
   the mark ``applied.<device>``. If it is killed in between, it gets the message again and finds it recorded.
5. **Settle** (device, one transaction). Chunks with a mark leave the outbox. Only the server can remove them.
6. **Finish and receive.** When the outbox is empty, the device asks ``up.<device>.finish`` for the model: a delta
   against its version if that is smaller, otherwise the whole model. The state that the server rule hands to this
   device, such as SCAFFOLD's correction, follows. The device pulls the bytes in parts (``up.<device>.part``), so a cut
   costs one part, and verifies their digests. One transaction stores both: base = the model, local = the model plus
   what the trainer learned meanwhile.
   A download that takes several contacts is *begun*: the device keeps its parts, continues it beside the next upload,
   and names it in ``finish``. The server serves that version until the device has it, or a newer one takes fewer bytes.
   With a plan the version of a round is fixed.

A delta holds the new values of changed entries, not differences, so the device gets the server's model in every bit.

The ledger is authoritative; the server's model file is a shortcut. It holds the model, the state of the server rule
and, with `server.average_rounds`, the mean of the models, which is evaluated and exported. On start the server reads
the file and replays later chunks through the rule. A rule gets the device, its round and staleness (from the
chunk's header), its samples and the reach of its steps (which the server knows). The reach is unknown if the
device received no model since its previous update; the header names its version.

A guard (`wayfare.methods.guard`) stands before the rule: it scales or drops unusual updates. It judges whole uploads,
so with a guard no rule takes pieces. Its state is part of the server's, so a replay repeats its decisions.

The answer to ``finish`` also names the version that the operator has released to the device for inference
(`released.py`), and the settings of devices that hold with the offered version: orders change them (`orders.py`).

Old chunks become a snapshot (`compaction`): the base from which the ledger replays. The operator's orders, such as a
rollback, are rows of the ledger; each ends a round and makes a version (`orders`).

`Gathering` decides when recorded chunks are applied: on arrival, where every version counts as a round of the mean, or
round by round with all devices that a plan has in that round, first all uploads, then all downloads, as in the
simulator. With a plan, and trainers that follow it, devices and server end with the simulator's model.

What is shared
--------------

Server and devices share the model, its layout, the method and its terms (`work.py`), and no data. A device trains on
its own folder (`local_data.py`). The simulated world, with motion, contacts and a partition, exists only for a plan.

Who counts
----------

The server knows a device from its first message on: the broker lets only members of the fleet through. N of the server
rule is the number of devices that delivered lately (`membership.py`). The ledger keeps N of every version and the
weight of every chunk. A device whose model is the initial one or outdated is told so when it asks. It discards what it
learned and continues from the current model. All devices train at most a fixed number of steps after a model.

The broker enforces that a device only uses subjects of its own name: every device has an account, and answers stay in
it. The server hears each device through a subscription with a credit, which the broker counts; a device that is not
heard says ``up.<device>.hello``. Training may stay in memory for some time, to spare flash memory, so a killed device
repeats steps; a cut writes everything.

Messages are sealed with the keys of the bundles (`wayfare.field.runtime.seals`): a broker in the wrong hands can drop
messages, but neither alter nor invent them. Of several servers of a fleet, one holds a lease and answers.

Trainer and exchanger of a device share only its store. Training during an exchange is not lost:
it is base - local for the new base. A proximal term pulls towards the last model, not towards base.

Class statistics of a folder are sent as differences to what was sent before (`local_statistics.py`). If a device lost
its store, the server withdraws its former statistics, and the device sends all of them (`contributions.py`).

Only methods with pure parts run here. Methods with a peer rule are rejected: they need connections between devices.
"""
