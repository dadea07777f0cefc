"""Channel URIs as every room uses them: logs that take their space at once, subscriptions that cannot stall others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tensor_pool.errors import ConfigError
from tensor_pool.transport.values import parameter_complaint

# Aeron takes unknown parameters in silence, so a typing error would go unnoticed.
PARAMETERS: Final = frozenset(
    (
        "alias",
        "ats",
        "cc",
        "channel-rcv-ts-offset",
        "channel-snd-ts-offset",
        "control",
        "control-mode",
        "endpoint",
        "eos",
        "fc",
        "group",
        "gtag",
        "init-term-id",
        "interface",
        "linger",
        "max-resend",
        "media-rcv-ts-offset",
        "mtu",
        "nak-delay",
        "pub-wnd",
        "rcv-wnd",
        "rejoin",
        "reliable",
        "response-correlation-id",
        "session-id",
        "so-rcvbuf",
        "so-sndbuf",
        "so-tos",
        "sparse",
        "ssc",
        "stream-id",
        "tags",
        "term-id",
        "term-length",
        "term-offset",
        "tether",
        "ttl",
        "untethered-linger-timeout",
        "untethered-resting-timeout",
        "untethered-window-limit-timeout",
    )
)
PREFIX: Final = "aeron:"
MEDIA: Final = ("ipc", "udp")


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel URI, taken apart."""

    media: str
    parameters: dict[str, str]

    @classmethod
    def parse(cls, uri: str) -> Channel:
        """Strictly: `ConfigError` for whatever Aeron would misread or silently leave out."""
        if not uri.startswith(PREFIX):
            raise _refused(uri, "does not begin with aeron:")
        media, has_parameters, rest = uri.removeprefix(PREFIX).partition("?")
        if media not in MEDIA:
            raise _refused(uri, f"has the medium {media!r}, which is not one of {', '.join(MEDIA)}")
        parameters: dict[str, str] = {}
        for part in rest.split("|") if has_parameters else ():
            key, equals, value = part.partition("=")
            if not equals or not value:
                raise _refused(uri, f"has the part {part!r}, which is not key=value")
            if key not in PARAMETERS:
                raise _refused(uri, f"has the unknown parameter {key!r}")
            if key in parameters:
                raise _refused(uri, f"has the parameter {key!r} twice")
            if complaint := parameter_complaint(key, value):
                raise _refused(uri, f"has {key}={value}, which {complaint}")
            parameters[key] = value
        if media == "udp" and not parameters.keys() & {"endpoint", "control"}:
            raise _refused(uri, "has neither an endpoint nor a control address")
        return cls(media, parameters)

    def with_defaults(self, **defaults: str) -> Channel:
        """What the URI says itself stays. Names are written with `_` for `-`."""
        added = {key.replace("_", "-"): value for key, value in defaults.items()}
        return Channel(self.media, {**self.parameters, **{key: value for key, value in added.items() if key not in self.parameters}})

    def __str__(self) -> str:
        parameters = "|".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{PREFIX}{self.media}?{parameters}" if parameters else f"{PREFIX}{self.media}"


def exclusive_channel(base: str, term_length: str) -> str:
    """`base` for a publication whose log takes its space when it is made: a full file system is then an error and not a signal later."""
    return str(Channel.parse(base).with_defaults(term_length=term_length, sparse="false"))


def subscription_channel(base: str) -> str:
    """`base` for a subscription. On IPC it may be left behind (`tether=false`), so that this process cannot stall the stream's publishers.

    It then joins again, whatever its media driver has as a default (`rejoin=true`): otherwise that frees a counter of somebody else.
    What only a publication reads (`term-length`, `mtu`, `sparse`) is left out, so that both ends can be given one channel.
    """
    channel = Channel.parse(base)
    if channel.parameters.get("rejoin") == "false" and channel.parameters.get("tether", "false") == "false":
        raise ConfigError(
            f"channel {base!r} has rejoin=false without tether=true: the media driver would free a counter of somebody else",
            key="channel",
            value=base,
            hint="leave rejoin=false out",
        )
    own = {key: value for key, value in channel.parameters.items() if key not in ("term-length", "mtu", "sparse", "so-sndbuf", "linger")}
    subscribed = Channel(channel.media, own)
    return str(subscribed.with_defaults(tether="false", rejoin="true") if channel.media == "ipc" else subscribed)


def _refused(uri: str, why: str) -> ConfigError:
    return ConfigError(
        f"channel {uri!r} {why}", key="channel", value=uri, hint="for example aeron:ipc or aeron:udp?endpoint=127.0.0.1:40123"
    )
