"""`make gen`: the generated files are what the schemas say, and a schema it cannot turn into a layout is refused with its line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from codegen.emit_python import emit_module
from codegen.parse import SchemaError, parse_schema

ROOT = Path(__file__).resolve().parents[3]
GENERATED = (
    "src/tensor_pool/sbe/control.py",
    "src/tensor_pool/sbe/driver.py",
    "src/tensor_pool/sbe/bridge.py",
    "src/tensor_pool/sbe/discovery.py",
    "native/core/src/layout.rs",
)


def generate(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/gen.py"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the schemas, with room for what is made of them."""
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    for path in GENERATED:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    return tmp_path


def edit(checkout: Path, schema: str, old: str, new: str) -> int:
    """Replaces one piece of a schema; gives the line where the piece begins."""
    path = checkout / "schemas" / schema
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def test_the_committed_files_are_what_the_schemas_say(checkout: Path) -> None:
    assert generate(ROOT, "--check").returncode == 0
    assert generate(checkout).returncode == 0
    for path in GENERATED:
        assert (checkout / path).read_text() == (ROOT / path).read_text()


def test_a_file_that_is_out_of_date_is_named_and_left_alone(checkout: Path) -> None:
    generate(checkout)
    stale = checkout / GENERATED[3]
    stale.write_text("# edited by hand\n")
    result = generate(checkout, "--check")
    assert result.returncode == 1
    assert GENERATED[3] in result.stderr
    assert GENERATED[0] not in result.stderr
    assert "hint: run `make gen`" in result.stderr
    assert stale.read_text() == "# edited by hand\n"


def test_a_new_field_reaches_python_and_rust(checkout: Path) -> None:
    generate(checkout)
    edit(checkout, "control-900.xml", '<field name="state"  ', '<field name="priority" id="9" type="uint16"/>\n<field name="state"  ')
    assert generate(checkout).returncode == 0
    assert '"priority": 28' in (checkout / GENERATED[0]).read_text()
    assert "PRIORITY_OFFSET: usize = 28" in (checkout / GENERATED[4]).read_text()


PRODUCER_MESSAGE = '<sbe:message name="QosProducer" id="6">'
LAST_UNIT = '<validValue name="COLUMNS">2</validValue>'
LEASE_NULL = ' nullValue="18446744073709551615"/>\n    <field name="leaseExpiryTimestampNs"'
HEADER_URI = 'id="11" type="varAsciiEncoding"'
ROOT_ELEMENT = "<sbe:messageSchema"


@pytest.mark.parametrize(
    ("schema", "old", "new", "words"),
    [
        ("control-900.xml", 'type="ClockDomain"', 'type="Clock"', "Clock is not a type of fixed size"),
        ("control-900.xml", 'id="2" type="uint32"', 'id="2"', "no attribute type"),
        ("control-900.xml", 'id="3" type="seq_t"', 'id="3" type="seq_t" length="2"', "unknown attribute length"),
        ("control-900.xml", 'blockLength="60"', 'blockLength="61"', "the fields fill 60 bytes, the schema declares 61"),
        ("control-900.xml", PRODUCER_MESSAGE, PRODUCER_MESSAGE.replace("6", "5"), "template id 5 is taken"),
        ("control-900.xml", PRODUCER_MESSAGE, '<sbe:message name="QosConsumer" id="60">', "a message QosConsumer already"),
        ("control-900.xml", LAST_UNIT, LAST_UNIT.replace("2", "1"), "a value 1 already"),
        ("control-900.xml", LAST_UNIT, LAST_UNIT.replace("2", "two"), "'two', expected a whole number"),
        ("control-900.xml", '"int32" length="8"', '"int31" length="8"', "int31, expected one of"),
        ("control-900.xml", '"int32" length="8"', '"int32" length="0"', "at least one item"),
        ("control-900.xml", '<field name="mode"', '<field name="streamId"', "a member streamId already"),
        ("control-900.xml", "<data  name=", "<text name=", "fields come first, then groups, then var-data"),
        ("driver-901.xml", LEASE_NULL, LEASE_NULL.replace(' nullValue="18446744073709551615"', ""), "needs one null value"),
        ("driver-901.xml", HEADER_URI, f'{HEADER_URI} presence="optional"', "absent is length 0"),
        ("bridge-902.xml", 'type="varDataEncoding256"', 'type="uint8"', "uint8 is not a kind of var-data"),
        ("discovery-910.xml", "</types>", "</type>", "mismatched tag"),
        ("discovery-910.xml", 'dimensionType="groupSizeEncoding"', 'dimensionType="wideGroup"', "dimensionType is groupSizeEncoding"),
    ],
)
def test_a_schema_that_is_not_understood_is_refused_with_its_line(checkout: Path, schema: str, old: str, new: str, words: str) -> None:
    line = edit(checkout, schema, old, new)
    with pytest.raises(SchemaError, match=words) as caught:
        parse_schema(checkout / "schemas" / schema)
    assert str(caught.value).startswith(f"{checkout / 'schemas' / schema}:{line}: ")


@pytest.mark.parametrize(
    ("schema", "old", "new", "words", "place"),
    [
        ("bridge-902.xml", 'byteOrder="littleEndian"', 'byteOrder="bigEndian"', "only byteOrder littleEndian", ROOT_ELEMENT),
        ("discovery-910.xml", 'id="910"', 'id="911"', "the file name says schema 910", ROOT_ELEMENT),
        ("driver-901.xml", '"TRUE">1', '"TRUE">255', "the null 255 is a member of Bool", '<field name="requireHugepages"'),
    ],
)
def test_the_line_is_the_one_of_the_element_that_cannot_be(checkout: Path, schema: str, old: str, new: str, words: str, place: str) -> None:
    edit(checkout, schema, old, new)
    line = edit(checkout, schema, place, place)
    with pytest.raises(SchemaError, match=words) as caught:
        parse_schema(checkout / "schemas" / schema)
    assert str(caught.value).startswith(f"{checkout / 'schemas' / schema}:{line}: ")


@pytest.mark.requirement("W-10.1-5")
@pytest.mark.parametrize("schema", ["control-900.xml", "driver-901.xml", "bridge-902.xml", "discovery-910.xml"])
def test_no_schema_marks_var_data_as_optional(checkout: Path, schema: str) -> None:
    path = checkout / "schemas" / schema
    parse_schema(path)
    path.write_text(path.read_text().replace("<data ", '<data presence="optional" ', 1))
    with pytest.raises(SchemaError, match="absent is length 0"):
        parse_schema(path)


def test_the_command_says_it_in_one_line_and_writes_nothing(checkout: Path) -> None:
    edit(checkout, "bridge-902.xml", 'type="varDataEncoding256"', 'type="uint8"')
    result = generate(checkout)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "bridge-902.xml:" in result.stderr
    assert not any((checkout / path).exists() for path in GENERATED)


def test_a_schema_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"control-900\.xml: No such file"):
        parse_schema(tmp_path / "control-900.xml")


def test_every_generated_class_says_what_it_is_for() -> None:
    for path in sorted((ROOT / "schemas").glob("*.xml")):
        schema = parse_schema(path)
        text = emit_module(schema)
        for message in schema.messages:
            docstring = text.split(f"class {message.name}:\n")[1].split('"""')[1]
            assert len(docstring.splitlines()[0]) > 20
            assert f"Template {message.template_id} of schema {schema.schema_id}." in docstring
