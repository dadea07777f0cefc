"""hypothesis strategies for the plain values of any message, from what the reference codec reads in the schemas."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from hypothesis import strategies as st

from tests.property.sbe.reference import TRACE_ID_NULLS, ReferenceSchema, snake_case


def messages(schema: ReferenceSchema, name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Values that have bytes: nulls are given as None, codes of enumerations are known ones."""
    values = members(schema, schema.messages[name])
    if name != "SlotHeader":
        return values
    header = members(schema, schema.messages["TensorHeader"])
    return st.tuples(values, st.none() | header).map(lambda pair: _slot(*pair))


def _slot(values: dict[str, Any], header: dict[str, Any] | None) -> dict[str, Any]:
    if header is None:
        values["seq_commit"] &= ~1
    return {**{key: value for key, value in values.items() if key != "header_bytes"}, "tensor_header": header}


def members(schema: ReferenceSchema, parent: ElementTree.Element) -> st.SearchStrategy[dict[str, Any]]:
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for element in parent:
        name = snake_case(element.attrib["name"])
        if element.tag == "field":
            _, _, count = schema.primitive(element.attrib["type"])
            if count and name != "pad":
                number = _numbers(schema, element)
                strategies[name] = number if count == 1 else st.lists(number, min_size=count, max_size=count)
        elif element.tag == "group":
            strategies[name] = st.lists(members(schema, element), max_size=4)
        else:
            strategies[name] = st.binary(max_size=min(40, schema.largest_data(element)))
    return st.fixed_dictionaries(strategies)


def _numbers(schema: ReferenceSchema, field: ElementTree.Element) -> st.SearchStrategy[Any]:
    codes = schema.codes(field.attrib["type"])
    null = schema.null(field)
    if codes is not None:
        known: st.SearchStrategy[Any] = st.sampled_from(codes)
    else:
        width, signed, _ = schema.primitive(field.attrib["type"])
        low, high = (-(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1) if signed else (0, 2 ** (8 * width) - 1)
        high = min(high, int(field.attrib.get("maxValue", high)))
        nulls = TRACE_ID_NULLS if field.attrib["name"] == "traceId" else (null,)
        known = st.integers(low, high).filter(lambda value: value not in nulls)
    return known if null is None else st.none() | known
