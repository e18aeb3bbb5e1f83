"""The same algorithm on real machines that come and go. The only package that imports nats.

How nothing is lost and nothing counted twice
---------------------------------------------

A device and the mobile edge server (MES) meet for seconds, over a broker (NATS JetStream) that keeps messages while
one of them is away. Any of the three may lose its power at any moment, and the broker may then forget what it has
acknowledged. So neither side believes the broker; each believes its own SQLite file, and what the other says of *its*.

*Mass* is what a device has learned and not delivered. It lies in exactly one place, and moves in one transaction:

    base - local         what the trainer has learned since the last cut (g in Algorithm 1)
    memory               what was cut and not sent: error feedback (e)
    outbox               chunks of the open update: promised to the server, not known to be recorded
    the server's ledger  recorded chunks, each exactly once: the global model is their replay

1. **Cut** (device, one transaction). x = memory + (base - local); the scheme decides how many entries go. They are
   split into chunks, the largest entries first, each a message of `wayfare.codec.wire`. Outbox += chunks,
   memory = x - chunks, base = local. There is at most one open update; its number is never used again.
2. **Ask.** In a contact the device first asks ``up.<device>.ask`` which chunks of its open update are recorded. An
   update of this very contact is resumed. An older one is *sealed*: the server promises, durably, to record no more of
   it, and the device puts what was not recorded back into its memory, to compete with what it has learned since.
3. **Send.** Chunks go to ``up.<device>.chunk``, into the stream, a few at a time. The broker's ack moves the window
   and means nothing else. A chunk acked and not recorded for some seconds goes again under a new message id.
4. **Record** (server, one transaction for a batch). Whose it is comes from the subject, which the broker enforces. What
   is valid and not there yet is recorded and applied; the model's version rises. Then the server acks, then it
   publishes the mark ``applied.<device>``. Killed in between, it gets the message again and finds it recorded.
5. **Settle** (device, one transaction). Chunks with a mark leave the outbox; only the server's word removes them.
6. **Finish and receive.** With the outbox empty the device asks ``up.<device>.finish`` for the model: a delta against
   the version it has, if that is smaller, else the whole. It pulls the bytes part by part (``up.<device>.part``), so a
   cut costs one part, and believes them only with their digest. base = the model, local = the model and what the
   trainer learned meanwhile.

A delta holds the new values of entries that changed, not differences: what arrives is the server's model to the bit.

The server's ledger is the truth and its model file a shortcut: on a start it reads the file and replays what was
recorded since. `Gathering` says when recorded chunks are applied: on arrival, or round by round with everyone whom a
plan has in that round, all upload and then all download, as in the simulator. With a plan, and trainers that take the
plan's steps, devices and server end with the simulator's model.

Trainer and exchanger of a device share its store and nothing else. Learning that goes on during an exchange is kept:
it is base - local, whatever base has become.
"""
