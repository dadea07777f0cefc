"""The Python face of the native Aeron handles: a client that logs, channels that are safe for others, the media driver."""

from tensor_pool.transport.channels import exclusive_channel, subscription_channel
from tensor_pool.transport.client import TransportClient
from tensor_pool.transport.config import MediaDriverSettings
from tensor_pool.transport.media_driver import EmbeddedMediaDriver, run_media_driver

__all__ = [
    "EmbeddedMediaDriver",
    "MediaDriverSettings",
    "TransportClient",
    "exclusive_channel",
    "run_media_driver",
    "subscription_channel",
]
