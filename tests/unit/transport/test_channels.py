"""Channels: what is added, what stays, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_pool.errors import ConfigError
from tensor_pool.transport import exclusive_channel, subscription_channel
from tensor_pool.transport.channels import Channel


@pytest.mark.parametrize(
    ("base", "channel"),
    [
        ("aeron:ipc", "aeron:ipc?term-length=1m|sparse=false"),
        ("aeron:ipc?term-length=4m", "aeron:ipc?term-length=4m|sparse=false"),
        ("aeron:ipc?alias=x|sparse=true", "aeron:ipc?alias=x|sparse=true|term-length=1m"),
        ("aeron:udp?endpoint=127.0.0.1:40123|mtu=8192", "aeron:udp?endpoint=127.0.0.1:40123|mtu=8192|term-length=1m|sparse=false"),
    ],
)
def test_a_publication_takes_its_space_at_once_unless_told_otherwise(base: str, channel: str) -> None:
    assert exclusive_channel(base, "1m") == channel


@pytest.mark.parametrize(
    ("base", "channel"),
    [
        ("aeron:ipc", "aeron:ipc?tether=false|rejoin=true"),
        ("aeron:ipc?tether=true|rejoin=false", "aeron:ipc?tether=true|rejoin=false"),
        ("aeron:ipc?term-length=16m|mtu=8k|sparse=false|alias=x", "aeron:ipc?alias=x|tether=false|rejoin=true"),
        ("aeron:udp?endpoint=127.0.0.1:40123|so-sndbuf=2m|rcv-wnd=4m", "aeron:udp?endpoint=127.0.0.1:40123|rcv-wnd=4m"),
    ],
)
def test_a_subscription_on_ipc_may_be_left_behind(base: str, channel: str) -> None:
    assert subscription_channel(base) == channel


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("", "does not begin with aeron:"),
        ("ipc", "does not begin with aeron:"),
        ("aeron:", "medium ''"),
        ("aeron:tcp?endpoint=h:1", "medium 'tcp'"),
        ("aeron:ipc?", "not key=value"),
        ("aeron:ipc?term-length", "not key=value"),
        ("aeron:ipc?term-length=", "not key=value"),
        ("aeron:ipc?tether=false||alias=x", "not key=value"),
        ("aeron:ipc?term_length=1m", "unknown parameter 'term_length'"),
        ("aeron:ipc?mtu=8k|mtu=4k", "'mtu' twice"),
        ("aeron:udp?mtu=8k", "neither an endpoint nor a control address"),
        ("aeron:ipc?term-length=3", "term-length=3, which is not a power of two"),
        ("aeron:ipc?term-length=2g", "term-length=2g, which is not a power of two"),
        ("aeron:ipc?term-length=96k", "term-length=96k, which is not a power of two"),
        ("aeron:ipc?term-length=1t", "term-length=1t, which is not a power of two"),
        ("aeron:ipc?mtu=1400", "mtu=1400, which is not a multiple of 32"),
        ("aeron:ipc?mtu=32", "mtu=32, which is not a multiple of 32 from 64"),
        ("aeron:udp?endpoint=nohost", "endpoint=nohost, which is no host:port"),
        ("aeron:udp?endpoint=host:", "endpoint=host:, which is no host:port"),
        ("aeron:udp?endpoint=host:0", "endpoint=host:0, which is no host:port"),
        ("aeron:udp?endpoint=host:65536", "endpoint=host:65536, which is no host:port"),
        ("aeron:udp?endpoint=::1:40123", "endpoint=::1:40123, which is no host:port"),
        ("aeron:udp?control=host|control-mode=dynamic", "control=host, which is no host:port"),
        ("aeron:ipc?sparse=maybe", "sparse=maybe, which is not true or false"),
        ("aeron:ipc?tether=False", "tether=False, which is not true or false"),
        ("aeron:udp?endpoint=h:1|so-rcvbuf=large", "so-rcvbuf=large, which is no size"),
        ("aeron:ipc?session-id=mine", "session-id=mine, which is neither a whole number nor a tag"),
        ("aeron:udp?endpoint=h:1|ttl=far", "ttl=far, which is not a whole number"),
        ("aeron:ipc?linger=soon", "linger=soon, which is no duration"),
    ],
)
def test_what_aeron_would_misread_is_refused_with_the_channel_and_an_example(base: str, why: str) -> None:
    for build in (lambda: exclusive_channel(base, "1m"), lambda: subscription_channel(base)):
        with pytest.raises(ConfigError, match=why.replace("?", r"\?")) as refused:
            build()
        assert refused.value.value == base
        assert "aeron:ipc" in refused.value.hint


@pytest.mark.parametrize("base", ["aeron:ipc?rejoin=false", "aeron:ipc?rejoin=false|tether=false"])
def test_rejoin_false_on_an_untethered_subscription_is_refused(base: str) -> None:
    with pytest.raises(ConfigError, match="rejoin=false"):
        subscription_channel(base)


def test_sizes_durations_and_addresses_are_written_as_aeron_writes_them() -> None:
    for parameters in (
        "term-length=64K|mtu=65504",
        "linger=5s|untethered-linger-timeout=11000000",
        "so-sndbuf=2m|rcv-wnd=131072",
        "session-id=-7|ttl=16",
        "session-id=tag:7",
    ):
        channel = f"aeron:udp?endpoint=[::1]:40123|{parameters}"
        assert str(Channel.parse(channel)) == channel
    for address in ("127.0.0.1:1", "camera-host.lab:65535", "[fe80::1%eth0]:40123", "224.20.30.39:40123"):
        assert Channel.parse(f"aeron:udp?endpoint={address}").parameters == {"endpoint": address}


# of any text: those whose values are texts to Aeron too
TEXTS = ("alias", "cc", "control-mode", "fc", "group", "gtag", "interface", "tags")
parameters = st.dictionaries(
    st.sampled_from(TEXTS), st.text(st.characters(exclude_characters="|", exclude_categories=("Cs",)), min_size=1), max_size=6
)


@given(parameters)
def test_a_channel_that_is_written_reads_back(values: dict[str, str]) -> None:
    channel = Channel("ipc", values)
    assert Channel.parse(str(channel)) == channel


@given(st.text())
def test_any_text_is_a_channel_or_a_config_error(text: str) -> None:
    for candidate in (text, f"aeron:ipc?{text}", f"aeron:udp?endpoint=h:1|{text}"):
        try:
            channel = Channel.parse(candidate)
        except ConfigError:
            continue
        assert str(channel) == candidate
