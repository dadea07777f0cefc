from __future__ import annotations

from contextlib import suppress

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tensor_pool.errors import ProtocolError
from tensor_pool.uri import RegionUri

path_characters = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "?|")
uris = st.builds(RegionUri, path=st.text(path_characters, max_size=60).map(lambda tail: "/" + tail), require_hugepages=st.booleans())
pieces = st.sampled_from(["shm:file?", "path=", "/a", "|", "require_hugepages=", "true", "false", "=", "?", "&", " ", "é"])
texts = st.one_of(
    st.text(max_size=60),
    st.lists(pieces, max_size=8).map("".join),
    st.lists(pieces, max_size=8).map(lambda p: "shm:file?path=/" + "".join(p)),
)


@given(uris)
def test_what_is_written_is_read_back_equal(uri: RegionUri) -> None:
    assert RegionUri.parse(str(uri)) == uri


@given(texts)
@example("shm:file?path=/a|require_hugepages=false")
@settings(max_examples=300)
def test_any_text_is_a_uri_or_a_protocol_error(text: str) -> None:
    with suppress(ProtocolError):
        uri = RegionUri.parse(text)
        assert text.isascii()
        assert RegionUri.parse(str(uri)) == uri
