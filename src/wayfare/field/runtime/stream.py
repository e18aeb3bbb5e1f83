"""The stream of chunks at the broker, and the consumer that delivers them to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

if TYPE_CHECKING:
    from wayfare.field.runtime.connect import FieldClient

STREAM, CONSUMER, DELIVERY = "WAYFARE", "mes", "mes.chunks"
MAX_BATCH = 64


async def ensure_stream(client: FieldClient, stored_chunks: int, stored_bytes: int) -> None:
    """Create stream and consumer if the broker has none, with limits per device and in all."""
    manager = client.jsm()
    try:
        await manager.stream_info(STREAM)
    except NotFoundError:
        await manager.add_stream(
            StreamConfig(
                name=STREAM,
                subjects=["up.*.chunk"],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                discard=DiscardPolicy.NEW,
                discard_new_per_subject=True,
                max_msgs_per_subject=stored_chunks,
                max_bytes=stored_bytes,
                duplicate_window=30,
            )
        )
    try:
        await manager.consumer_info(STREAM, CONSUMER)
    except NotFoundError:
        await manager.add_consumer(
            STREAM,
            ConsumerConfig(
                durable_name=CONSUMER,
                deliver_subject=DELIVERY,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=2.0,
                max_deliver=-1,
                max_ack_pending=4 * MAX_BATCH,
            ),
        )
